// fusion: a graph as few kernels, from the list of calls to machine code.
//
// Run it:  ninja -C build && ./build/samples/m_fusion
//
// What costs time in a chain of small ops is memory: each op reads its operands and writes its result, and the arithmetic in between is nearly free.
// So calls that can share one loop share it, and what they hand to each other never leaves a register. This page takes one block of a network through
// every station: primitive graph, groups, loop nests, C, a plan for memory, runs. Letters: T tokens, C features.
import std;
import tenon.base;
import tenon.ir;
import tenon.device;
import tenon.fusion;
#include "lesson.h"
using namespace tenon;
using base::DType;
using ir::Dim;

namespace {

// 0. A block as a graph: a product, a bias, gelu, a residual sum, a norm, and what each feature is beyond its mean over the tokens.
// The numbers are those that the timings at the end use; nothing before them computes anything.
constexpr std::int64_t tokens = 2048, features = 512;
ir::Graph block() {
  return ir::parse_graph(std::format(R"(graph block(%0 x: f32[{0}, {1}], %1 w: f32[{1}, {1}], %2 b: f32[{1}], %3 scale: f32[{1}], %4 shift: f32[{1}]) {{
  %5 = matmul(%0, %1): f32[{0}, {1}]
  %6 = add(%5, %2): f32[{0}, {1}]
  %7 = gelu(%6, approximate=tanh): f32[{0}, {1}]
  %8 = add(%7, %0): f32[{0}, {1}]
  %9 = layer_norm(%8, %3, %4, normalized_shape=[{1}]): f32[{0}, {1}]
  %10 = mean(%9, dim=[0]): f32[{1}]
  %11 = sub(%9, %10): f32[{0}, {1}]
  return %11
}})",
                                     tokens, features));
}

// 1. Primitive ops.
// Composite calls give way to their bodies (the norm is a mean, a variance, and arithmetic), equal calls are merged, and views stay: they will be strides
// of loads and cost nothing. Products stay whole, for a library computes them better than any loop nest.
ir::Graph primitives(ir::Graph const& graph) {
  heading("primitive ops");
  std::cout << ir::to_string(graph);
  auto const simple = fusion::primitive(graph);
  std::cout << std::format("\n{} calls become {} primitive ones:\n", graph.nodes.size(), simple.nodes.size()) << ir::to_string(simple);
  return simple;
}

// 2. Groups.
// A node joins the group that saves most traffic, if one loop nest can hold both: that is asked by building the nest. Where it can't be, there is one
// reason of a closed list, and why_not_fused says it for any two nodes.
fusion::Grouping groups(ir::Graph const& graph) {
  heading("groups");
  auto grouping = fusion::group(graph);
  std::cout << fusion::to_string(grouping) << "\nwhy neighbours that are not together are not:\n";
  std::set<std::pair<int, int>> told;
  for (std::size_t n = 0; n < grouping.graph.nodes.size(); ++n)
    for (auto const& input : grouping.graph.nodes[n].inputs) {
      int const maker = input.value < 0 ? -1 : grouping.graph.values[static_cast<std::size_t>(input.value)].node;
      if (maker < 0) continue;
      auto const why = fusion::why_not_fused(grouping, maker, static_cast<int>(n));
      std::pair const pair{grouping.group_of[static_cast<std::size_t>(maker)], grouping.group_of[n]};
      if (why == fusion::Refusal::none || !told.insert(pair).second) continue;
      auto const& from = grouping.graph.nodes[static_cast<std::size_t>(maker)];
      auto const& to = grouping.graph.nodes[n];
      std::cout << std::format("  %{} {}, %{} {}: {}\n", from.first, from.op->name, to.first, to.op->name, fusion::text_of(why));
    }
  return grouping;
}

// 3. Loop nests.
// A kernel walks rows, and for each row its columns, in passes: a pass can use what an earlier one has reduced. Loads, steps and stores are in
// single-assignment form, each with what it varies over. The same nest is what printers read, for C here, and what the interpreter runs.
void loop_nests(fusion::Grouping& grouping) {
  heading("loop nests");
  for (auto& made : fusion::kernels_of(grouping)) {
    if (made.kernel.steps.empty()) continue;  // a call
    fusion::schedule(made.kernel);
    auto const spent = fusion::cost(made.kernel);
    std::cout << fusion::to_string(made.kernel, &grouping.graph.symbols)
              << std::format("  {:.1f} MB through memory, {:.1f} MFLOP\n\n", spent.bytes * 1e-6, spent.flops * 1e-6);
  }
}

// 4. C.
// Loops over plain scalars, which the compiler turns into vector code of whatever width the machine has. One file a graph: compiling is what takes time,
// so it is asked once. Equal layers give equal nests, and an equal nest is printed once.
fusion::Program code(ir::Graph const& graph) {
  heading("C");
  auto program = fusion::plan(graph);
  auto const begin = program.source.find("\nvoid tn_kernel");
  std::cout << std::string_view(program.source).substr(begin == std::string::npos ? 0 : begin + 1);
  std::cout << std::format("\n{} lines of mathematics stand before it. Launches of a run:\n", std::ranges::count(fusion::prelude(), '\n'));
  for (std::size_t l = 0; l < program.launches.size(); ++l) {
    auto const& launch = program.launches[l];
    std::cout << std::format("  {}: {}{}\n", l,
                             launch.node >= 0 ? std::string(program.grouping.graph.nodes[static_cast<std::size_t>(launch.node)].op->name)
                                              : program.kernels[static_cast<std::size_t>(launch.kernel)].name,
                             launch.with_next ? ", a block of rows at a time, each handed to the next while it is in the cache" : "");
  }
  return program;
}

// 5. Memory.
// Run node by node, each result needs a place from the call that makes it to the last one that reads it. Places are offsets in one arena, found greedily
// in several orders; a pointwise result may take its operand's place. The lower bound is the most that is alive at once. Fusing first is better still:
// what never leaves a register needs no place.
void memory(ir::Graph const& graph, fusion::Program const& program) {
  heading("memory");
  auto const [blocks, values] = fusion::blocks_of(graph);
  auto const layout = fusion::place(blocks);
  fusion::verify(blocks, layout);
  std::cout << "node by node:\n" << fusion::report(blocks, layout, 6);
  std::int64_t arena = 0;
  for (std::size_t v = 0; v < program.homes.size(); ++v) {
    if (program.homes[v].kind != fusion::Home::Kind::arena) continue;
    auto const& meta = *program.grouping.graph.values[v].meta;
    arena += base::numel(ir::values(meta.sizes)) * base::bytes_of(meta.dtype);
    std::cout << std::format("fused, in the arena: %{} {}\n", v, ir::to_string(meta));
  }
  std::cout << std::format("fused: {} bytes between kernels, results and inputs apart\n", arena);
}

// 6. Runs.
// Four ways through one graph: the reference evaluator (slow, the judge), a kernel for each call, fused kernels, and fused kernels by the interpreter of
// loop nests, which runs where there is no compiler.
struct Inputs {
  std::vector<base::Ref<base::Buffer>> storage{};
  std::vector<ir::Strided> all{};
  explicit Inputs(ir::Graph const& graph) {
    std::mt19937 random(7);
    std::uniform_real_distribution<float> between(-0.1F, 0.1F);
    for (int const input : graph.inputs) {
      auto const sizes = ir::values(graph.values[static_cast<std::size_t>(input)].meta->sizes);
      auto& memory = storage.emplace_back(base::make_ref<base::Buffer>(base::numel(sizes) * 4));
      auto* const elements = reinterpret_cast<float*>(memory->data());
      for (std::int64_t i = 0; i < base::numel(sizes); ++i) elements[i] = between(random);
      all.push_back({memory->data(), DType::f32, sizes, base::contiguous_strides(sizes)});
    }
  }
};
void runs(ir::Graph const& graph) {
  heading("runs");
  Inputs const inputs(graph);
  auto const start = std::chrono::steady_clock::now;
  auto const since = [&](auto begin) { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  auto const plain = ir::decompose(graph);
  auto begin = start();
  auto const expected = ir::evaluate(plain, inputs.all);
  std::cout << std::format("{:22} {:>9} {:>10} {:>9} {:>12}\n", "", "launches", "lowered, s", "best, ms", "difference");
  std::cout << std::format("{:22} {:9} {:10} {:9.2f}\n", "reference evaluator", plain.nodes.size(), "", since(begin) * 1e3);
  std::array<double, 3> milliseconds{};
  std::size_t which = 0;
  for (auto const& [name, options] : {std::pair<std::string_view, fusion::LowerOptions>{"a kernel for each call", {.group = {.fuse = false}}},
                                      {"fused", {}},
                                      {"fused, interpreted", {.interpret = true}}}) {
    begin = start();
    auto program = fusion::plan(graph, options);
    auto const launches = program.launches.size();
    auto const run = fusion::runner(std::move(program));
    double const lowered = since(begin);
    std::vector<double> times;
    double gap = 0;
    for (int turn = 0; turn < 9; ++turn) {
      begin = start();
      auto const done = run(inputs.all, {});
      times.push_back(since(begin));
      for (std::size_t k = 0; k < done.outputs.size(); ++k)
        for (std::int64_t i = 0; i < base::numel(done.outputs[k].sizes); ++i)
          gap = std::max(gap, std::abs(done.outputs[k].real(i) - expected.outputs[k].real(i)));
    }
    double const best = std::ranges::min(times);
    milliseconds[which++] = best * 1e3;
    std::cout << std::format("{:22} {:9} {:10.3f} {:9.2f} {:12.1e}\n", name, launches, lowered, best * 1e3, gap);
    if (!(gap < 1e-4)) base::fail("{}: a result differs by {}", name, gap);
  }
  auto const& compiler = device::toolchain();
  std::cout << std::format("on {} threads, {}; fused kernels take {:.2f} of the time of separate ones, the product of {:.2f} GFLOP included\n",
                           device::threads(), compiler ? compiler->path : "without a compiler", milliseconds[1] / milliseconds[0],
                           2e-9 * tokens * features * features);
}

}  // namespace

int main(int argc, char** argv) {
  return run_lesson("m_fusion", argc, argv, [] {
    auto const graph = block();
    auto const simple = primitives(graph);
    auto grouping = groups(simple);
    loop_nests(grouping);
    auto const program = code(graph);
    memory(simple, program);
    runs(graph);
  });
}
