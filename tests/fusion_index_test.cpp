// Indices out of range: compiled kernels and the interpreter refuse what the evaluator refuses, in its words.
#include <doctest/doctest.h>
import std;
import tenon.base;
import tenon.ir;
import tenon.fusion;
#include "ir_random.hpp"
#include "ir_support.hpp"

namespace ir = tenon::ir;
namespace base = tenon::base;
namespace fusion = tenon::fusion;

namespace {
// A graph whose input 0 holds indices into a dim of `size`; element `place` of it is spoiled.
struct Indexed {
  std::string_view what, text;
  std::int64_t size;
  std::size_t place;
  int calls;  ///< launches that are no loop nests
};
Indexed const graphs[] = {
    {"gather", R"(graph g(%0 "index": i64[3, 2], %1: f32[3, 5]) {
  %2 = gather(%1, %0, dim=1): f32[3, 2]
  %3 = exp(%2): f32[3, 2]
  return %3
})",
     5, 3, 0},
    {"gather of i32 indices along dim 0", R"(graph g(%0 "index": i32[3, 2], %1: f32[5, 2]) {
  %2 = gather(%1, %0, dim=0): f32[3, 2]
  %3 = sum(%2, dim=[0]): f32[2]
  return %3
})",
     5, 4, 0},
    {"index_select", R"(graph g(%0 "index": i64[6], %1: f32[3, 5]) {
  %2 = index_select(%1, %0, dim=1): f32[3, 6]
  %3 = exp(%2): f32[3, 6]
  return %3
})",
     5, 5, 0},
    {"embedding", R"(graph g(%0 "index": i64[3, 2], %1: f32[5, 4]) {
  %2 = embedding(%1, %0): f32[3, 2, 4]
  %3 = exp(%2): f32[3, 2, 4]
  return %3
})",
     5, 5, 0},
    {"embedding_grad", R"(graph g(%0 "index": i64[3, 2], %1: f32[3, 2, 4]) {
  %2 = embedding_grad(%1, %0, rows=5): f32[5, 4]
  %3 = exp(%2): f32[5, 4]
  return %3
})",
     5, 2, 1},
    {"scatter_add of one place a row to zeros", R"(graph g(%0 "index": i64[3, 1], %1: f32[3, 1]) {
  %2 = full(size=[3, 5], fill_value=0.0): f32[3, 5]
  %3 = scatter_add(%2, %0, %1, dim=1): f32[3, 5]
  return %3
})",
     5, 1, 0},
    {"scatter_add of one i32 place a column, summed, to an input", R"(graph g(%0 "index": i32[1, 4], %1: f32[1, 4], %2: f32[5, 4]) {
  %3 = exp(%1): f32[1, 4]
  %4 = scatter_add(%2, %0, %3, dim=0): f32[5, 4]
  %5 = sum(%4, dim=[1]): f32[5]
  return %5
})",
     5, 3, 0},
    {"scatter_add of one place a row, of bf16, with what it is computed from", R"(graph g(%0 "index": i64[3, 1], %1: bf16[3, 1], %2: bf16[3, 700]) {
  %3 = neg(%0): i64[3, 1]
  %4 = neg(%3): i64[3, 1]
  %5 = exp(%1): bf16[3, 1]
  %6 = scatter_add(%2, %4, %5, dim=1): bf16[3, 700]
  %7 = exp(%6): bf16[3, 700]
  return %7, %4
})",
     700, 2, 0},
    {"scatter_add of several places", R"(graph g(%0 "index": i64[3, 2], %1: f32[3, 2], %2: f32[3, 5]) {
  %3 = scatter_add(%2, %0, %1, dim=1): f32[3, 5]
  %4 = exp(%3): f32[3, 5]
  return %4
})",
     5, 1, 1},
    {"a sum of what was scattered, and nothing else of it", R"(graph g(%0 "index": i64[3, 1], %1: f32[3, 1]) {
  %2 = full(size=[3, 5], fill_value=0.0): f32[3, 5]
  %3 = scatter_add(%2, %0, %1, dim=1): f32[3, 5]
  %4 = sum(%3, dim=[1], keepdim=true): f32[3, 1]
  return %4
})",
     5, 2, 0},
    {"a sum of what was scattered, and a second reader", R"(graph g(%0 "index": i64[3, 1], %1: f32[3, 1], %2: f32[3, 5]) {
  %3 = full(size=[3, 5], fill_value=0.0): f32[3, 5]
  %4 = scatter_add(%3, %0, %1, dim=1): f32[3, 5]
  %5 = sum(%4, dim=[1], keepdim=true): f32[3, 1]
  %6 = mul(%2, %5): f32[3, 5]
  %7 = sub(%4, %6): f32[3, 5]
  return %7
})",
     5, 0, 0},
    {"index_add", R"(graph g(%0 "index": i64[4], %1: f32[3, 4], %2: f32[3, 5]) {
  %3 = index_add(%2, %0, %1, dim=1): f32[3, 5]
  return %3
})",
     5, 3, 1},
    {"one_hot", R"(graph g(%0 "index": i64[4]) {
  %1 = one_hot(%0, num_classes=5): i64[4, 5]
  return %1
})",
     5, 2, 1},
    {"index_copy", R"(graph g(%0 "index": i64[2], %1: f32[3, 2], %2: f32[3, 5]) {
  %3 = index_copy(%2, %0, %1, dim=1): f32[3, 5]
  return %3
})",
     5, 1, 1},
    {"cross_entropy", R"(graph g(%0 "index": i64[4], %1: f32[4, 5]) {
  %2 = cross_entropy(%1, %0, none): f32[]
  return %2
})",
     5, 2, 0},
    {"nll_loss", R"(graph g(%0 "index": i64[4], %1: f32[4, 5]) {
  %2 = nll_loss(%1, %0, none): f32[]
  return %2
})",
     5, 1, 0},
};

std::vector<support::Array> inputs_of(ir::Graph const& graph, std::int64_t size) {
  std::mt19937 random(5);
  std::vector<support::Array> list;
  for (int const input : graph.inputs) {
    auto const& meta = *graph.values[static_cast<std::size_t>(input)].meta;
    auto const sizes = ir::values(meta.sizes);
    std::vector<double> values(static_cast<std::size_t>(base::numel(sizes)));
    for (auto& x : values)
      x = base::is_real(meta.dtype) ? std::uniform_real_distribution(-1.0, 1.0)(random) : static_cast<double>(random() % static_cast<unsigned>(size));
    list.push_back(support::array(meta.dtype, sizes, values));
  }
  return list;
}
std::vector<ir::Strided> views_of(std::span<support::Array const> list) {
  std::vector<ir::Strided> views;
  for (auto const& x : list) views.push_back(x.at);
  return views;
}
ir::Evaluated eager(ir::Graph const& graph, std::span<ir::Strided const> inputs) { return ir::evaluate(ir::decompose(graph), inputs, {}); }
// Each way of running a graph but the evaluator.
std::vector<std::pair<std::string_view, fusion::Runner>> runners(ir::Graph const& graph) {
  std::vector<std::pair<std::string_view, fusion::Runner>> list;
  list.emplace_back("compiled", fusion::lower(graph));
  list.emplace_back("one by one", fusion::lower(graph, {.group = {.fuse = false}, .mode = fusion::Mode::reduce_overhead}));
  list.emplace_back("a thread for every element", fusion::lower(graph, {.grain = 1}));
  list.emplace_back("interpreted", fusion::lower(graph, {.interpret = true}));
  return list;
}
void agree(ir::Evaluated const& a, ir::Evaluated const& b) {
  REQUIRE(a.outputs.size() == b.outputs.size());
  for (std::size_t k = 0; k < a.outputs.size(); ++k) {
    auto const x = support::reals(a.outputs[k]), y = support::reals(b.outputs[k]);
    CHECK(support::distance(x, y) <= (a.outputs[k].dtype == base::DType::bf16 ? 2e-2 : 2e-6) * support::scale_of(y));
  }
}
}  // namespace

TEST_CASE("an index out of range is the evaluator's error in every form that reads or adds by index") {
  for (auto const& [what, text, size, place, calls] : graphs) {
    INFO(what);
    auto const graph = ir::parse_graph(text);
    auto const program = fusion::plan(graph);
    CHECK(std::ranges::count_if(program.launches, [](auto const& launch) { return launch.node >= 0; }) == calls);
    auto const held = inputs_of(graph, size);
    auto const in = views_of(held);
    auto const expected = eager(graph, in);
    auto const ways = runners(graph);
    for (auto const& way : ways) agree(way.second(in, {}), expected);
    auto const least = in[0].dtype == base::DType::i32 ? std::numeric_limits<std::int32_t>::min() : std::numeric_limits<std::int64_t>::min();
    auto const most = in[0].dtype == base::DType::i32 ? std::numeric_limits<std::int32_t>::max() : std::numeric_limits<std::int64_t>::max();
    auto const element = static_cast<std::int64_t>(place);
    auto const good = in[0].whole(element);
    for (std::int64_t const bad : {std::int64_t{-1}, -size, -size - 1, size, size + 1000, std::int64_t{least}, std::int64_t{most}}) {
      in[0].set_whole(element, bad);
      auto const words = support::caught([&] { eager(graph, in); });
      INFO(words);
      CHECK(words.ends_with(std::format(": index {} is out of range for size {}", bad, size)));
      for (auto const& [name, run] : ways) {
        auto const own = support::caught([&] { run(in, {}); });
        INFO(name << ": " << own);
        CHECK((own == words || own.starts_with(words + ", in %")));
      }
    }
    in[0].set_whole(element, good);
    for (auto const& way : ways) agree(way.second(in, {}), expected);
  }
}

TEST_CASE("no indices are in range, and none are in range of a dim of size 0") {
  auto const none = ir::parse_graph(R"(graph g(%0 "index": i64[0, 1], %1: f32[0, 1], %2: f32[0, 5], %3: i64[0], %4: f32[3, 5]) {
  %5 = scatter_add(%2, %0, %1, dim=1): f32[0, 5]
  %6 = gather(%2, %0, dim=1): f32[0, 1]
  %7 = index_select(%4, %3, dim=1): f32[3, 0]
  %8 = sum(%5, dim=[0]): f32[5]
  return %5, %6, %7, %8
})");
  auto const held = inputs_of(none, 5);
  auto const in = views_of(held);
  for (auto const& way : runners(none)) agree(way.second(in, {}), eager(none, in));
  for (auto const* const text : {R"(graph g(%0 "index": i64[3, 1], %1: f32[3, 1], %2: f32[3, 0]) {
  %3 = scatter_add(%2, %0, %1, dim=1): f32[3, 0]
  return %3
})",
                                 R"(graph g(%0 "index": i64[1, 3], %1: f32[1, 3], %2: f32[0, 3]) {
  %3 = scatter_add(%2, %0, %1, dim=0): f32[0, 3]
  %4 = sum(%3, dim=[0]): f32[3]
  return %4
})",
                                 R"(graph g(%0 "index": i64[3, 1], %1: f32[3, 0]) {
  %2 = gather(%1, %0, dim=1): f32[3, 1]
  return %2
})"}) {
    auto const graph = ir::parse_graph(text);
    auto const kept = inputs_of(graph, 1);
    auto const views = views_of(kept);
    auto const words = support::caught([&] { eager(graph, views); });
    CHECK(words.ends_with(": index 0 is out of range for size 0"));
    for (auto const& [name, run] : runners(graph)) {
      auto const own = support::caught([&] { run(views, {}); });
      INFO(name << ": " << own);
      CHECK((own == words || own.starts_with(words + ", in %")));
    }
  }
}

TEST_CASE("gathers from a part of a table and from all of it, and from tables of other lengths, keep ranges of their own") {
  for (auto const& [text, least] : {std::pair{R"(graph g(%0 "index": i64[3], %1: f32[9, 4]) {
  %2 = slice(%1, dim=0, start=0, end=4, step=1): f32[4, 4]
  %3 = index_select(%1, %0, dim=0): f32[3, 4]
  %4 = index_select(%2, %0, dim=0): f32[3, 4]
  %5 = add(%3, %4): f32[3, 4]
  return %5
})",
                                              4},
                                    {R"(graph g(%0 "index": i64[3], %1: f32[9, 4], %2: f32[5, 4]) {
  %3 = index_select(%1, %0, dim=0): f32[3, 4]
  %4 = index_select(%2, %0, dim=0): f32[3, 4]
  return %3, %4
})",
                                     5}}) {
    auto const graph = ir::parse_graph(text);
    auto const held = inputs_of(graph, least);
    auto const in = views_of(held);
    auto const ways = runners(graph);
    in[0].set_whole(1, least - 1);
    for (auto const& way : ways) agree(way.second(in, {}), eager(graph, in));
    in[0].set_whole(1, least);
    for (auto const& [name, run] : ways) {
      auto const words = support::caught([&] { run(in, {}); });
      INFO(name << ": " << words);
      CHECK(words.starts_with(std::format("index_select: index {0} is out of range for size {0}, in %", least)));
    }
  }
}

TEST_CASE("random graphs with a spoiled index are refused where the evaluator refuses them, and only there") {
  std::vector<std::string_view> const calls{"gather(f64[3, 5], i64[3, 5]{0..4}, dim=1)",
                                            "gather(f64[3, 5], i64[3, 5]{0..2}, dim=0)",
                                            "gather(f64[3, 5], i64[3, 1]{0..4}, dim=1)",
                                            "scatter_add(f64[3, 5], i64[3, 1]{0..4}, f64[3, 1], dim=1)",
                                            "scatter_add(f64[3, 5], i64[1, 5]{0..2}, f64[1, 5], dim=0)",
                                            "scatter_add(f64[3, 5], i64[3, 5]{0..4}, f64[3, 5], dim=1)",
                                            "scatter(f64[3, 5], i64[3, 1]{0..4}, f64[3, 1], dim=1)",
                                            "index_select(f64[3, 5], i64[5]{0..4}, dim=1)",
                                            "index_select(f64[3, 5], i64[3]{0..2}, dim=0)",
                                            "index_add(f64[3, 5], i64[3]{0..4}, f64[3, 3], dim=1)",
                                            "embedding(f64[3, 5], i64[3]{0..2})",
                                            "embedding_grad(f64[3, 5], i64[3]{0..2}, rows=3)",
                                            "cross_entropy(f64[3, 5], i64[3]{0..4}, none, reduction=none)",
                                            "exp(f64[3, 5])",
                                            "add(f64[3, 5], f64[3, 5])",
                                            "mul(f64[3, 5], f64[3, 1])",
                                            "where(bool[3, 5], f64[3, 5], f64[3, 5])",
                                            "sum(f64[3, 5], dim=[1], keepdim=true)",
                                            "sum(f64[3, 5], dim=[0], keepdim=true)",
                                            "softmax(f64[3, 5], dim=1)"};
  int refused = 0, taken = 0;
  for (int const k : support::seeds(support::tier(60, 400, 4000))) {
    std::mt19937 random(400u + static_cast<unsigned>(k));
    auto made = support::random_graph(random, {.nodes = 2 + k % 9, .calls = calls});
    auto const graph = ir::eliminate_dead_code(made.graph);  // what nobody needs is not computed, and so not refused
    auto const inputs = made.elements();
    INFO("seed " << k << ", alone: TENON_SEEDS=" << k << "\n" << ir::to_string(graph));
    std::vector<ir::Strided const*> whole;
    for (auto const& input : inputs)
      if (input.dtype == base::DType::i64) whole.push_back(&input);
    if (whole.empty()) continue;
    auto const& index = *whole[random() % whole.size()];
    constexpr std::array<std::int64_t, 6> values{-1, 3, 4, 5, -6, 1 << 20};
    index.set_whole(static_cast<std::int64_t>(random() % static_cast<std::size_t>(base::numel(index.sizes))), values[random() % values.size()]);
    auto const words = support::caught([&] { eager(graph, inputs); });
    ++(words == "nothing" ? taken : refused);
    for (int const way : {0, 1, 2}) {  // one graph in eight is compiled
      if (way == 2 && k % 8) continue;
      auto const run = fusion::lower(graph, {.group = {.fuse = way != 1}, .interpret = way < 2});
      auto const own = support::caught([&] { run(inputs, {}); });
      INFO("way " << way << ": " << own << "\nevaluator: " << words);
      CHECK((own == "nothing") == (words == "nothing"));
      if (own != "nothing") CHECK(support::says(own, " is out of range for size "));
    }
  }
  if (refused + taken >= 40) CHECK((refused > taken / 4 && taken > refused / 8));
}
