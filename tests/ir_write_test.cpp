// Writes: copy_ into memory as evaluate does it, and functionalize, which must give the same elements without any write.
#include <doctest/doctest.h>
import std;
import tenon.base;
import tenon.ir;
#include "bits.hpp"
#include "ir_support.hpp"
using namespace tenon;
using base::DType;
using ir::Graph;
using support::Array;
using support::bits;

namespace {
/// The same elements and strides in memory of their own.
Array copied(Array const& x) {
  Array y{base::make_ref<base::Buffer>(x.storage->bytes()), x.at};
  std::memcpy(y.storage->data(), x.storage->data(), static_cast<std::size_t>(x.storage->bytes()));
  y.at.data = y.storage->data() + (x.at.data - x.storage->data());
  return y;
}
/// Evaluates with writes; the inputs' memory is a copy, whose state afterwards is compared too.
void check_functional(Graph const& graph, std::vector<Array> const& inputs, ir::Functional const& pure, std::string const& text) {
  std::vector<Array> memory;
  std::vector<ir::Strided> written, given;
  for (auto const& x : inputs) memory.push_back(copied(x)), written.push_back(memory.back().at), given.push_back(x.at);
  auto const slow = ir::evaluate(ir::decompose(graph), written);
  auto const fast = ir::evaluate(ir::decompose(pure.graph), given);
  REQUIRE_MESSAGE(fast.outputs.size() == slow.outputs.size() + pure.mutated.size(), text);
  for (std::size_t k = 0; k < slow.outputs.size(); ++k) {
    CHECK_MESSAGE(fast.outputs[k].sizes == slow.outputs[k].sizes, text);
    CHECK_MESSAGE(bits(fast.outputs[k]) == bits(slow.outputs[k]), text << "output " << k << "\n" << ir::to_string(pure.graph));
  }
  for (std::size_t k = 0; k < pure.mutated.size(); ++k)
    CHECK_MESSAGE(bits(fast.outputs[slow.outputs.size() + k]) == bits(written[static_cast<std::size_t>(pure.mutated[k])]), text << "input " << pure.mutated[k]
                                                                                                                                << "\n"
                                                                                                                                << ir::to_string(pure.graph));
  for (int k = 0; std::cmp_less(k, inputs.size()); ++k)
    if (std::ranges::find(pure.mutated, k) == pure.mutated.end())
      CHECK_MESSAGE(bits(written[static_cast<std::size_t>(k)]) == bits(given[static_cast<std::size_t>(k)]), text << "input " << k << " is written to");
}

/// Random programs of views, writes and reads. Views are legal by asking for what the operand's sizes allow.
struct Program {
  std::mt19937& random;
  bool symbolic = false;  // sizes of inputs become symbols
  Graph graph{};
  std::vector<Array> inputs{};
  std::map<std::int64_t, ir::Dim> known{};
  int writes = 0, refused = 0;

  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n)); }
  ir::Meta const& meta(int value) const { return *graph.values[static_cast<std::size_t>(value)].meta; }
  int any() { return static_cast<int>(below(std::ssize(graph.values))); }
  int recent() { return std::max(0, static_cast<int>(std::ssize(graph.values) - 1 - below(4))); }
  int add(std::string_view op, std::vector<ir::Input> in, ir::Attrs attrs = {}) { return graph.add(*ir::find_op(op), std::move(in), std::move(attrs), {}); }

  void input() {
    static constexpr std::int64_t sizes[5][3] = {{2, 3, 4}, {4, 4, 1}, {3, 2, 2}, {1, 4, 3}, {5, 2, 2}};
    static constexpr std::array types{DType::f64, DType::f32, DType::i64, DType::boolean};
    auto const* full = sizes[below(5)];
    base::Shape const shape(full, full + 1 + below(3));
    auto const type = types[static_cast<std::size_t>(below(8) < 5 ? 0 : below(4))];
    std::vector<double> elements(static_cast<std::size_t>(base::numel(shape)));
    for (auto& x : elements) x = below(9) == 0 ? -0.0 : static_cast<double>(below(100) - 50) / 4;
    auto x = support::array(type, shape, elements);
    if (below(2)) x = support::restrided(x.at, random);
    auto meta = support::meta_of(x.at);
    if (symbolic) {
      ir::Symbols::Scope const scope(&graph.symbols);
      bool const plain = ir::values(meta.strides) == base::contiguous_strides(x.at.sizes);
      for (auto& size : meta.sizes)
        if (size.value > 1) size = known.contains(size.value) ? known[size.value] : known[size.value] = graph.symbols.symbol(size.value);
      if (plain) meta = ir::contiguous_meta(type, {}, meta.sizes);
    }
    graph.input(std::move(meta));
    inputs.push_back(x);
  }
  void view(int x) {
    auto const& sizes = meta(x).sizes;
    std::int64_t const rank = std::ssize(sizes), d = rank ? below(rank) : 0, e = rank ? below(rank) : 0,
                       n = rank ? sizes[static_cast<std::size_t>(d)].value : 1;
    std::int64_t const whole = base::numel(ir::values(sizes));
    switch (below(15)) {
      case 0:
      case 1:
        if (rank)
          add("slice", {{x, {}}},
              ir::Attrs{}.with(d).with(below(n + 1) - below(2)).with(below(3) ? std::numeric_limits<std::int64_t>::max() : below(n + 1)).with(1 + below(3)));
        return;
      case 2:
        if (rank && n) add("select", {{x, {}}}, ir::Attrs{}.with(d).with(below(2 * n) - n));
        return;
      case 3:
        if (rank) add("transpose", {{x, {}}}, ir::Attrs{}.with(d).with(e));
        return;
      case 4: {
        ir::Dims order;
        for (std::int64_t k = 0; k < rank; ++k) order.push_back((k + d) % rank);
        add("permute", {{x, {}}}, ir::Attrs{}.with(order));
        return;
      }
      case 5:
        add("unsqueeze", {{x, {}}}, ir::Attrs{}.with(below(rank + 1)));
        return;
      case 6:
        add("squeeze", {{x, {}}}, ir::Attrs{}.with(std::span<ir::Dim const>{}));
        return;
      case 7:
        add("reshape", {{x, {}}}, ir::Attrs{}.with(whole % 2 == 0 && whole ? ir::Dims{2, whole / 2} : ir::Dims{whole}));
        return;
      case 8:
        if (rank >= 2 && d != e) add("diagonal", {{x, {}}}, ir::Attrs{}.with(below(3) - 1).with(d).with(e));
        return;
      case 9:
        if (rank && n) {
          std::int64_t const size = 1 + below(n);
          add("unfold", {{x, {}}}, ir::Attrs{}.with(d).with(size).with(size + below(2)));
        }
        return;
      case 10:
        add("detach", {{x, {}}});
        return;
      case 11:
        if (rank && n) below(2) ? add("unbind", {{x, {}}}, ir::Attrs{}.with(d)) : add("chunk", {{x, {}}}, ir::Attrs{}.with(2).with(d));
        return;
      case 13:  // without training it gives its operand back
        if (base::is_real(meta(x).dtype)) {
          auto attrs = ir::default_attrs(ir::ops::dropout);
          attrs.ints[0] = 0;
          add("dropout", {{x, {}}}, attrs);
        }
        return;
      case 12: {
        ir::Dims wide = sizes;
        for (auto& size : wide)
          if (size.value == 1 && below(2)) size = 3;
        if (below(2)) {
          ir::Dims more{1};
          for (auto size : wide) more.push_back(size);
          wide = more;
        }
        add("expand", {{x, {}}}, ir::Attrs{}.with(wide));
        return;
      }
      default:
        if (rank && n) add("narrow", {{x, {}}}, ir::Attrs{}.with(d).with(below(n)).with(1));
    }
  }
  void read(int x) {
    switch (below(4)) {
      case 0:
        add("clone", {{x, {}}});
        return;
      case 1:
        add("add", {{x, {}}, {-1, ir::Scalar(1)}}, ir::Attrs{}.with_num(1.0));
        return;
      case 2:
        add("sum", {{x, {}}}, ir::default_attrs(ir::ops::sum));
        return;
      default:
        add("flip", {{x, {}}}, ir::Attrs{}.with(std::span<ir::Dim const>{}));
    }
  }
  void write(int x) {
    auto fits = [&](int src) {
      auto const &to = meta(x).sizes, &from = meta(src).sizes;
      if (from.size() > to.size()) return false;
      for (std::size_t d = 0; d < from.size(); ++d)
        if (from[d].value != 1 && from[d].value != to[to.size() - from.size() + d].value) return false;
      return true;
    };
    std::vector<int> sources;
    for (int v = 0; std::cmp_less(v, graph.values.size()); ++v)
      if (fits(v)) sources.push_back(v);
    add("copy_", {{x, {}}, {sources[static_cast<std::size_t>(below(std::ssize(sources)))], {}}});
    ++writes;
  }
  void step() try {
    auto const what = below(10);
    int const x = below(2) ? any() : recent();
    what < 5 ? view(x) : what < 7 ? read(x) : write(x);
  } catch (base::Error const&) {  // overlapping memory, chunk's attributes
    ++refused;
  }
};
}  // namespace

TEST_CASE("copy_ writes through a view, casts and broadcasts, and gives its operand back") {
  auto const graph = ir::parse_graph(R"(graph g(%0 x: f32[2, 3], %1 y: i64[2, 1]) {
  %2 = slice(%0, dim=1, start=1): f32[2, 2] strides [3, 1]
  %3 = copy_(%2, %1): f32[2, 2] strides [3, 1]
  %4 = neg(%0): f32[2, 3]
  return %3, %4
})");
  ir::verify(graph);
  std::array const x{1.0, 2.0, 3.0, 4.0, 5.0, 6.0};
  std::array const y{7.0, 8.0};
  auto const memory = support::array(DType::f32, {2, 3}, x), src = support::array(DType::i64, {2, 1}, y);
  auto const done = ir::evaluate(graph, std::array{memory.at, src.at});
  CHECK(support::reals(memory.at) == std::vector{1.0, 7.0, 7.0, 4.0, 8.0, 8.0});
  CHECK(support::reals(done.outputs[0]) == std::vector{7.0, 7.0, 8.0, 8.0});
  CHECK(support::reals(done.outputs[1]) == std::vector{-1.0, -7.0, -7.0, -4.0, -8.0, -8.0});
  CHECK(done.outputs[0].data == memory.at.at(1));
  auto const pure = ir::functionalize(graph);
  CHECK(ir::to_string(pure.graph) == R"(graph g(%0 x: f32[2, 3], %1 y: i64[2, 1]) {
  %2 = to(%1, dtype=f32): f32[2, 1]
  %3 = expand(%2, size=[2, 2]): f32[2, 2] strides [1, 0]
  %4 = clone(%3): f32[2, 2]
  %5 = slice_scatter(%0, %4, dim=1, start=1): f32[2, 3]
  %6 = neg(%5): f32[2, 3]
  return %4, %6, %5 into %0
}
)");
  CHECK(pure.mutated == std::vector{0});
}

TEST_CASE("memory that shows an element twice is not written to") {
  struct Row {
    std::string_view graph, text;
  };
  constexpr std::array rows{
      Row{"graph g(%0: f32[1, 3]) { %1 = expand(%0, size=[2, 3]): f32[2, 3] strides [3, 0] %2 = copy_(%1, %0): f32[2, 3] return %2 }",
          "copy_: several elements of f32[2, 3] strides [0, 1] lie in one place of memory: clone it first"},
      Row{"graph g(%0: f32[5]) { %1 = unfold(%0, dimension=0, size=3, step=1): f32[3, 3] %2 = copy_(%1, %1): f32[3, 3] return %2 }",
          "copy_: several elements of f32[3, 3] strides [1, 1] lie in one place of memory: clone it first"},
      Row{"graph g(%0: f32[2, 3], %1: f32[4]) { %2 = copy_(%0, %1): f32[2, 3] return %2 }", "copy_: f32[4] does not broadcast to f32[2, 3]"},
      Row{"graph g(%0: f32[2], %1: f32[1, 2]) { %2 = copy_(%0, %1): f32[2] return %2 }", "copy_: f32[1, 2] does not broadcast to f32[2]"},
  };
  for (auto const& row : rows) {
    auto const parsed = ir::parse_graph(row.graph);
    Graph graph;  // built anew, so that strides are the inferred ones
    for (int input : parsed.inputs) graph.input(*parsed.values[static_cast<std::size_t>(input)].meta);
    CHECK(support::caught([&] {
            for (auto const& node : parsed.nodes) graph.add(*node.op, node.inputs, node.attrs, {});
          }) == row.text);
  }
  Graph graph;  // one window of a view that shows elements several times
  int const x = graph.input(ir::contiguous_meta(DType::f32, {}, {1, 3}));
  int const wide = graph.add(ir::ops::expand, {{x, {}}}, ir::Attrs{}.with(ir::Dims{4, 3}), {});
  int const row = graph.add(ir::ops::select, {{wide, {}}}, ir::Attrs{}.with(0).with(2), {});
  graph.outputs = {graph.add(*ir::find_op("copy_"), {{row, {}}, {row, {}}}, {}, {})};
  CHECK(support::caught([&] { ir::functionalize(graph); }) == "functionalize: node 2 (copy_) writes through expand, which shows elements several times");
}

TEST_CASE("passes that reorder reads ask for a graph without writes") {
  auto const graph = ir::parse_graph("graph g(%0: f32[], %1: f32[]) { %2 = neg(%0): f32[] %3 = copy_(%0, %1): f32[] %4 = neg(%0): f32[] return %2, %4 }");
  ir::verify(graph);
  CHECK(ir::equal(ir::eliminate_dead_code(graph), graph));  // a write stays
  std::array const wrt{0};
  for (auto const& [name, run] : std::vector<std::pair<std::string, std::function<void()>>>{{"merge_common", [&] { ir::merge_common(graph); }},
                                                                                            {"fold_constants", [&] { ir::fold_constants(graph); }},
                                                                                            {"simplify", [&] { ir::simplify(graph); }},
                                                                                            {"with_gradients", [&] { ir::with_gradients(graph, wrt); }},
                                                                                            {"joint_graph", [&] { ir::joint_graph(graph, wrt); }},
                                                                                            {"partition", [&] { ir::partition({graph, 1, {}}); }}})
    CHECK(support::caught(run) == name + ": node 1 (copy_) writes into %0: functionalize first");
}

TEST_CASE("random programs of views, writes and reads mean the same without writes") {
  std::mt19937 random(61);
  int writes = 0, mutated = 0, unwritable = 0;
  int const programs = support::tier(300, 3000, 40'000);
  for (int turn = 0; turn < programs; ++turn) {
    Program program{random, turn % 3 == 0};
    for (auto k = 1 + random() % 3; k > 0; --k) program.input();
    for (auto k = 2 + random() % 20; k > 0; --k) program.step();
    auto& graph = program.graph;
    for (auto k = 1 + random() % 3; k > 0; --k) graph.outputs.push_back(program.any());
    graph.outputs.push_back(static_cast<int>(graph.values.size()) - 1);
    auto const text = ir::to_string(graph);
    auto const why = support::caught([&] {
      ir::verify(graph);
      auto const pure = ir::functionalize(graph);
      ir::verify(pure.graph);
      CHECK(std::ranges::none_of(pure.graph.nodes, [](auto const& node) { return ir::writes(*node.op); }));
      check_functional(graph, program.inputs, pure, text);
      auto const less = ir::functionalize(graph);
      check_functional(graph, program.inputs, {ir::simplify(ir::merge_common(ir::fold_constants(less.graph))), less.mutated}, text);
      mutated += static_cast<int>(pure.mutated.size());
    });
    writes += program.writes;
    if (support::says(why, "which shows elements several times"))
      ++unwritable;
    else
      CHECK_MESSAGE(why == "nothing", why << "\n" << text);
  }
  std::cout << std::format("{} programs, {} writes, {} inputs mutated, {} programs write through one element of an expanded view\n", programs, writes, mutated,
                           unwritable);
  CHECK(writes > 2 * programs);
  CHECK(mutated > programs / 2);
  CHECK(unwritable < programs / 20);
}

TEST_CASE("the example of docs/ir.md") {
  auto const before = ir::parse_graph(R"(graph g(%0: f32[2, 3]) {
  %1 = select(%0, dim=0, index=0): f32[3]
  %2 = mul(%1, 2.0): f32[3]
  %3 = copy_(%1, %2): f32[3]
  %4 = sum(%0): f32[]
  return %4
})");
  CHECK(ir::to_string(ir::functionalize(before).graph) == R"(graph g(%0: f32[2, 3]) {
  %1 = select(%0, dim=0, index=0): f32[3]
  %2 = mul(%1, 2.0): f32[3]
  %3 = select_scatter(%0, %2, dim=0, index=0): f32[2, 3]
  %4 = sum(%3): f32[]
  return %4, %3 into %0
}
)");
}

TEST_CASE("functionalize keeps symbols, names and places") {
  Graph graph;
  auto const rows = graph.symbols.symbol(4);
  int const x = graph.input(
      [&] {
        ir::Symbols::Scope const scope(&graph.symbols);
        return ir::contiguous_meta(DType::f32, {}, {rows, 3});
      }(),
      "x");
  int const first = graph.add(ir::ops::select, {{x, {}}}, ir::Attrs{}.with(0).with(0), {});
  int const last = graph.add(ir::ops::select, {{x, {}}}, ir::Attrs{}.with(0).with(-1), {});
  graph.add(*ir::find_op("copy_"), {{first, {}}, {last, {}}}, {}, {});
  graph.outputs = {graph.add(ir::ops::neg, {{x, {}}}, {}, {})};
  auto const pure = ir::functionalize(graph);
  ir::verify(pure.graph);
  std::array const values{1.0, 2.0, 3.0, 4.0, 5.0, 6.0};
  auto const in = support::array(DType::f32, {2, 3}, values);
  auto const done = ir::evaluate(ir::decompose(pure.graph), std::array{in.at}, {{2}, {}});
  CHECK(support::reals(done.outputs[1]) == std::vector{4.0, 5.0, 6.0, 4.0, 5.0, 6.0});
  CHECK(support::reals(in.at)[0] == 1);
}
