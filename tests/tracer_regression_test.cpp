// What went wrong in other compilers of this kind, as small tests. A number is an issue of pytorch/pytorch unless another project is named.
#include <doctest/doctest.h>

import std;
import tenon.base;
import tenon.ir;
import tenon.tracer;
#include "caught.hpp"
#include "compared.hpp"

using namespace tenon;
using namespace tenon::tracer;
using support::caught;
using support::exactly;
using support::graphs;
using support::last_reason;
using support::same_memory;
using support::says;
using support::Twin;

namespace {
std::vector<double> numbers(Tensor const& x) { return x.to_vector<double>(); }
Tensor counted(DimList const& sizes, double from = 1) { return reshape(to(arange(0, base::numel(ir::values(sizes))), DType::f32) + from, sizes); }
Explanation report_of(auto const& compiled) { return describe(compiled.state()); }
}  // namespace

// ---- numbers that change

namespace {
struct Counter {
  Tensor weight;
  int calls = 0;
  Tensor operator()(Tensor const& x) {
    ++calls;
    return x * weight + calls;
  }
  static void fields(auto& self, auto&& field) { field("weight", self.weight), field("calls", self.calls); }
};
}  // namespace

TEST_CASE("a counter attribute that changes on every call takes at most three entries") {  // 128319
  auto const own = compile(Counter{ones({3})});
  auto const argument = compile([](Counter& counter, Tensor const& x) { return counter(x); });
  Counter counter{ones({3})};
  for (int call = 1; call <= 10; ++call) {
    CHECK(numbers(own(ones({3}))) == std::vector<double>(3, 1.0 + call));
    CHECK(numbers(argument(counter, ones({3}))) == std::vector<double>(3, 1.0 + call));
  }
  CHECK(graphs(own) == 2);
  CHECK(graphs(argument) == 2);
}

TEST_CASE("a learning rate that changes every step becomes an input, and no call runs beyond the limit") {  // 107076, 120934
  auto const step = compile([](Tensor& w, Tensor const& g, double lr) { w.add_(g, -lr); });
  Tensor w = ones({4});
  double expected = 1;
  for (int k = 0; k < 20; ++k) {
    double const lr = 0.5 / (1 << (k % 8));  // exact in binary
    step(w, ones({4}), lr);
    expected -= lr;
    CHECK(numbers(w) == std::vector<double>(4, expected));
  }
  CHECK(graphs(step) == 2);
  CHECK(report_of(step).eager_calls == 0);
}

// ---- what is not read

TEST_CASE("an input that no op reads gets no guard on its shape, dtype, strides or gradient") {  // 131893
  Twin f([](Tensor const& x, Tensor const&, std::vector<Tensor> const& more) { return x * 2 + more[0]; });
  Tensor const x = counted({3});
  for (Tensor const& unused : {counted({3}), counted({5}), counted({2, 2}), to(x, DType::i64), transpose(counted({2, 3}), 0, 1), Tensor(x).detach()})
    CHECK(f(x, unused, std::vector{x, unused}) == 1);
  CHECK(!says(support::guards_of(report_of(f.fast)), "args[1]"));
  CHECK(!says(support::guards_of(report_of(f.fast)), "args[2][1]"));
}

TEST_CASE("an unused input of size 0 or 1 does not recompile either") {  // 106067
  for (auto const dynamic : {Dynamic::automatic, Dynamic::always, Dynamic::never}) {
    Twin f([](Tensor const& x, Tensor const&) { return x + 1; }, {.dynamic = dynamic});
    for (int const n : {4, 1, 0, 2, 1}) CHECK(f(counted({3}), counted({n})) == 1);
  }
}

TEST_CASE("a size that is read but decides nothing does not recompile") {
  Twin f([](Tensor const& x, Tensor const& y) { return y.size(0) > 0 ? x + 1 : x - 1; });
  for (int const n : {4, 1, 7}) CHECK(f(counted({3}), counted({n})) == 1);
  CHECK(f(counted({3}), counted({0})) == 2);
}

// ---- sizes as expressions

TEST_CASE("a*b and b*a are one expression") {  // 144068
  Twin f([](Tensor const& x) { return reshape(x, {x.dim(0) * x.dim(1)}) + reshape(x * 2, {x.dim(1) * x.dim(0)}); }, {.dynamic = Dynamic::always});
  for (auto const& [a, b] : {std::pair(2, 3), std::pair(4, 5), std::pair(7, 3), std::pair(3, 2)}) CHECK(f(counted({a, b})) == 1);
  CHECK(!says(support::guards_of(report_of(f.fast)), "=="));
  Twin sum([](Tensor const& x, Tensor const& y) { return cat(std::array{x, y}) + cat(std::array{y, x}); }, {.dynamic = Dynamic::always});
  CHECK(sum(counted({2}), counted({3})) == 1);
  CHECK(sum(counted({5}), counted({4})) == 1);
}

TEST_CASE("shapes of different rank are compared without a guard") {  // 137515
  Twin f([](Tensor const& x, Tensor const& y) { return x.shape() == y.shape() ? x + y : x * 2 + sum(y); }, {.dynamic = Dynamic::always});
  for (int const n : {3, 5, 8}) CHECK(f(counted({n, 4}), counted({n})) == 1);
  for (auto const& constraint : {"==", "!=", "<"}) CHECK(!says(support::guards_of(report_of(f.fast)), constraint));
}

TEST_CASE("strides of views that vary with a size, or alone, stay open") {  // 129798
  auto const after_ten = [](auto const& input) {
    Twin f([](Tensor const& x) { return x * 2 + 1; });
    for (int n = 4; n < 14; ++n) (void)f(input(n));
    CHECK(report_of(f.fast).eager_calls == 0);
    return graphs(f.fast);
  };
  CHECK(after_ten([](int n) { return slice(counted({3, 2 * n}), 1, 0, n); }) == 2);
  CHECK(after_ten([](int n) { return slice(counted({3, n}), 1, 0, 3); }) <= 3);
  CHECK(after_ten([](int n) { return transpose(counted({3, n}), 0, 1); }) == 2);
  CHECK(after_ten([](int n) { return permute(counted({2, n, n + 1, 3}), {0, 3, 1, 2}); }) <= 3);
}

TEST_CASE("a batch of 1 and then 2: sizes differ, the stride of a dim of size 1 is not looked at") {  // 160271
  Twin f([](Tensor const& x) { return x * 2; }, {.dynamic = Dynamic::always});
  Tensor const wide = counted({4, 12});
  CHECK(f(counted({1, 3})) == 1);
  CHECK(f(slice(slice(wide, 0, 1, 2), 1, 0, 3)) == 1);  // [1, 3] strides [12, 1]
  CHECK(f(counted({2, 3})) == 2);
  CHECK(says(f.reason(), "size mismatch at dim 0: expected 1, actual 2"));
  CHECK(f(counted({5, 3})) == 2);
  CHECK(f(counted({1, 7})) == 2);
}

TEST_CASE("with dynamic sizes, a batch of 1 is its own graph and others share one") {
  Twin f([](Tensor const& x) { return x * 2 + 1; });
  for (auto const& [n, expected] : {std::pair(8, 1), std::pair(4, 2), std::pair(1, 3), std::pair(16, 3), std::pair(1, 3), std::pair(0, 4), std::pair(5, 4)})
    CHECK(f(counted({n, 3})) == expected);
}

TEST_CASE("a range that includes size 1 is honoured: it has a graph of its own, all others share one") {  // 135005
  Twin f([](Tensor const& x) { return sum(x * 2, {1}) + 1; });
  for (auto const& [n, expected] : {std::pair(4, 1), std::pair(1, 2), std::pair(6, 2), std::pair(2, 2), std::pair(1, 2)}) {
    Tensor const x = counted({n, 3});
    mark_dynamic(x, 0, 1, 8);
    CHECK(f(x) == expected);
  }
}

TEST_CASE("a marked dim that another operand fixes: the error names that operand, the op and its line") {  // 102814, 145587
  auto const add = compile([](Tensor const& x, Tensor const& y) { return x * 2 + y; }, {.name = "add"});
  Tensor const x = counted({3, 4}), fixed = counted({4});
  mark_dynamic(x, 1);
  auto const text = caught([&] { (void)add(x, fixed); });
  CHECK(text.starts_with("add: dim 1 of 'args[0]' was marked dynamic, but add at tracer_regression_test.cpp:"));
  CHECK(says(text, "needs s0 == 4"));
  CHECK(says(text, "'args[1]' is f32[4]"));
  CHECK(says(text, "return x * 2 + y;"));
  CHECK(numbers(add(x, counted({1}))) == numbers(x * 2 + 1));  // a size of 1 broadcasts to any
  CHECK(numbers(add(counted({3, 4}), fixed)) == numbers(counted({3, 4}) * 2 + fixed));
}

// ---- aliases

TEST_CASE("two bounds that together leave one size of a marked dim are the error that one equation is") {  // 191833
  auto const fast = compile([](Tensor const& x) {
    auto const rows = x.dim(0);
    return ir::less_equal(rows, 5) && ir::less_equal(5, rows) ? x * 2 : x + 1;
  });
  Tensor const x = counted({5});
  mark_dynamic(x, 0);
  CHECK(says(caught([&] { (void)fast(x); }), "was marked dynamic, but"));
  Tensor const other = counted({6});  // one bound leaves many sizes
  mark_dynamic(other, 0);
  CHECK(numbers(fast(other)) == numbers(other + 1));
  CHECK(graphs(fast) == 1);
}

TEST_CASE("two references to one object that is no tensor, and to two: right in both orders") {  // 111562
  auto const body = [](std::vector<double>& a, std::vector<double> const& b, Tensor const& x) {
    a.push_back(1);
    return x * static_cast<double>(b.size());
  };
  for (bool const same_first : {false, true}) {
    auto const fast = compile(body);
    for (int call = 0; call < 6; ++call) {
      std::vector<double> a{1, 2}, b{1, 2};
      bool const same = (call % 2 == 0) == same_first;
      CHECK(numbers(fast(a, same ? a : b, ones({1}))) == std::vector<double>{same ? 3.0 : 2.0});
    }
  }
}

TEST_CASE("one parameter passed twice after a call with two, one of them written: right in both orders") {  // PR 138954
  auto const body = [](Tensor& a, Tensor const& b, Tensor const& x) {
    a.add_(x);
    return b * 10 + x;
  };
  for (bool const same_first : {false, true}) {
    auto const fast = compile(body);
    for (int call = 0; call < 6; ++call) {
      Tensor a = ones({2}), b = ones({2});
      bool const same = (call % 2 == 0) == same_first;
      CHECK(numbers(fast(a, same ? a : b, ones({2}))) == std::vector<double>(2, same ? 21.0 : 11.0));
      CHECK(numbers(a) == std::vector<double>{2, 2});
    }
    CHECK(report_of(fast).eager_calls == 0);
    CHECK(graphs(fast) == 2);
    CHECK(report_of(fast).breaks.empty());
  }
}

// ---- settings

namespace {
Settings with_autocast(std::size_t kind, DType dtype) {
  Settings wanted = settings();
  wanted.autocast[kind] = {true, dtype};
  return wanted;
}
}  // namespace

TEST_CASE("the reason of a recompile names the setting, its device and both values") {  // PR 172636
  auto const reason = [](Settings const& changed) {
    auto const f = compile([](Tensor const& x) { return x + 1; });
    (void)f(ones({2}));
    SettingsScope const scope(changed);
    (void)f(ones({2}));
    CHECK(graphs(f) == 2);
    return last_reason(f);
  };
  CHECK(reason(with_autocast(0, DType::bf16)) == "autocast(cpu) mismatch: expected off, actual bf16");
  CHECK(reason(with_autocast(1, DType::f16)) == "autocast(cuda) mismatch: expected off, actual f16");
  Settings changed;
  changed.grad_enabled = false;
  CHECK(reason(changed) == "grad mode mismatch: expected on, actual off");
  changed = {}, changed.deterministic = true;
  CHECK(reason(changed) == "deterministic mismatch: expected off, actual on");
  changed = {}, changed.default_dtype = DType::f64;
  CHECK(reason(changed) == "default dtype mismatch: expected f32, actual f64");
}

TEST_CASE("settings are compared by value: an equal state made anew is a hit, a changed one is not") {  // PR 194754
  Twin f([](Tensor const& x) { return settings().autocast[0].enabled ? to(x, settings().autocast[0].dtype) * 2 : x * 2; });
  Tensor const x = counted({2});
  CHECK(f(x) == 1);
  for (int k = 0; k < 3; ++k) {
    SettingsScope const scope(with_autocast(0, DType::bf16));
    CHECK(f(x) == 2);
  }
  {
    SettingsScope const scope(with_autocast(0, DType::f16));
    CHECK(f(x) == 3);
  }
  Settings off;
  off.autocast[0].dtype = DType::f16;  // of no matter while it is off
  SettingsScope const scope(off);
  CHECK(f(x) == 3);
}

TEST_CASE("an exception in the body leaves the thread's settings and its session as they were") {  // 195488
  auto const f = compile([](Tensor const& x, int way) {
    SettingsScope const scope(with_autocast(0, DType::f16));
    NoGrad const off;
    Tensor const y = x * 2;
    if (way == 1) throw std::runtime_error("given up");
    graph_break();
    if (way == 2) throw std::runtime_error("given up");
    return y + 1;
  });
  for (int const way : {1, 0, 1, 2, 0, 2}) {
    if (way)
      CHECK_THROWS_WITH(f(ones({2}), way), "given up");
    else
      CHECK(numbers(f(ones({2}), way)) == std::vector<double>{3, 3});
    CHECK(settings() == Settings());
    CHECK(Session::current() == nullptr);
  }
}

TEST_CASE("a scope of a setting may lie across a break") {  // 124900
  Twin f([](Tensor const& x, Tensor const& w) {
    Tensor y;
    {
      NoGrad const off;
      y = x * w;
      graph_break();
      y = y * w;
    }
    graph_break();
    return y * w;
  });
  Tensor const w = counted({3}).set_requires_grad();
  for (int k = 0; k < 3; ++k) CHECK(f(counted({3}), w) == 3);
  CHECK(f.fast(counted({3}), w).requires_grad());
}

TEST_CASE("a worker thread with the same settings finds the graph of the main thread") {  // PR 113247
  auto const f = compile([](Tensor const& x) { return x * 2; });
  (void)f(ones({2}));
  std::thread([&] { CHECK(numbers(f(ones({2}))) == std::vector<double>{2, 2}); }).join();
  CHECK(graphs(f) == 1);
  {
    SettingsScope const scope(with_autocast(0, DType::bf16));
    (void)f(ones({2}));
    Settings const snapshot = settings();
    std::thread([&] {
      SettingsScope const own(snapshot);
      (void)f(ones({2}));
    }).join();
  }
  CHECK(graphs(f) == 2);
}

// ---- breaks and explanations

TEST_CASE("breaks are counted where no graph stands beside them") {  // 113443
  auto const f = compile([](int n) {
    graph_break("the first");
    host_effect([&] { ++n; });
    return n;
  });
  CHECK(f(2) == 3);
  auto const report = report_of(f);
  CHECK(report.graphs == 0);
  REQUIRE(report.breaks.size() == 2);
  CHECK(report.breaks[0].reason == "the first");
  CHECK(report.breaks[1].kind == BreakKind::host_effect);
}

TEST_CASE("a break that is passed many times is told once, with the user's line") {  // 93656
  auto const f = compile([](Tensor x) {
    for (int k = 0; k < 5; ++k) {
      x = x * 2;
      graph_break();
    }
    return x;
  });
  for (int k = 0; k < 3; ++k) CHECK(numbers(f(ones({1}))) == std::vector<double>{32});
  auto const report = report_of(f);
  CHECK(report.breaks.size() == 1);
  CHECK(says(to_string(report), "tracer_regression_test.cpp:"));
  CHECK(says(to_string(report), "graph_break();"));
  CHECK(graphs(f) == 2);  // the first turn, and each later one
}

TEST_CASE("fullgraph never falls back in silence: a loop with a break, and a state beyond the limit, are errors") {  // 161790, 132923
  auto const loop = compile(
      [](Tensor x) {
        for (int k = 0; k < 3; ++k)
          if (sum(x) > 0) x = x * 2;
        return x;
      },
      {.fullgraph = true});
  CHECK(says(caught([&] { (void)loop(ones({2})); }), "fullgraph: a tensor is used as a condition"));
  auto const f = compile([](Tensor const& x, std::string const& text) { return x * static_cast<double>(text.size()); },
                         {.fullgraph = true, .dynamic = Dynamic::never, .recompile_limit = 2});
  CHECK(numbers(f(ones({1}), std::string("1"))) == std::vector<double>{1});
  CHECK(numbers(f(ones({1}), std::string("12"))) == std::vector<double>{2});
  CHECK(says(caught([&] { (void)f(ones({1}), std::string("123")); }), "fullgraph: the recompile limit of 2 is reached"));
  CHECK(numbers(f(ones({1}), std::string("1"))) == std::vector<double>{1});
  CHECK(report_of(f).eager_calls == 0);
}

// ---- many instances, and the limit

namespace {
struct Scale {
  Tensor weight;
  std::string mode = "mul";
  Tensor operator()(Tensor const& x) const { return mode == "mul" ? x * weight : x + weight; }
  static void fields(auto& self, auto&& field) { field("weight", self.weight), field("mode", self.mode); }
};
}  // namespace

TEST_CASE("many module instances through one compiled callable share its graphs") {  // 171593
  Twin f([](Scale const& module, Tensor const& x) { return module(x); });
  for (int k = 0; k < 40; ++k) CHECK(f(Scale{counted({3}, k)}, counted({2, 3})) == 1);
  for (int k = 0; k < 40; ++k) CHECK(f(Scale{counted({3}, k), "add"}, counted({2, 3})) == 2);
  for (int k = 2; k < 40; ++k) (void)f(Scale{counted({k}, k)}, counted({2, k}));
  CHECK(graphs(f.fast) <= 4);
  CHECK(report_of(f.fast).eager_calls == 0);
}

TEST_CASE("beyond the limit old entries serve, new states run eagerly, and the status says so") {  // vllm-project/vllm 27178
  auto const f = compile([](Tensor const& x, std::string const& text) { return x * static_cast<double>(text.size()); },
                         {.dynamic = Dynamic::never, .recompile_limit = 3, .name = "texts"});
  auto const call = [&](int n) { CHECK(numbers(f(ones({1}), std::string(static_cast<std::size_t>(n), 'x'))) == std::vector<double>{1.0 * n}); };
  for (int n = 1; n <= 3; ++n) call(n);
  CHECK(report_of(f).eager_calls == 0);
  for (int n = 4; n <= 8; ++n) call(n), call(n - 3 > 3 ? 3 : n - 3);
  auto const report = report_of(f);
  CHECK(report.graphs == 3);
  CHECK(report.eager_calls == 5);
  CHECK(says(to_string(report), "5 calls ran eagerly beyond the recompile limit"));
  REQUIRE(f.state().limits.size() == 1);
  CHECK(f.state().limits[0].calls == 5);
  CHECK(says(f.state().limits[0].reason.text, "value 'args[1]' mismatch"));
}

TEST_CASE("a function holds at most 256 graphs over all its places, whatever the limit of one place") {
  auto const f = compile(
      [](Tensor const& x) {
        Tensor const y = x * 2;
        graph_break();
        return y + 1;
      },
      {.dynamic = Dynamic::never, .recompile_limit = 1000});
  for (int n = 1; n < 140; ++n) CHECK(numbers(f(ones({n}))) == std::vector<double>(static_cast<std::size_t>(n), 3));
  CHECK(graphs(f) == 256);
  CHECK(report_of(f).eager_calls > 0);
}

TEST_CASE("values, writes and gradients beyond the limit are eager's") {
  auto const body = [](Tensor& w, Tensor const& x, std::string const& text) {
    Tensor const loss = sum(tanh(w * x) * static_cast<double>(text.size()));
    loss.backward();
    NoGrad const off;
    w.add_(w.grad(), -0.5);
    w.set_grad({});
    graph_break();
    return loss.detach() * 2;
  };
  auto const fast = compile(body, {.dynamic = Dynamic::never, .recompile_limit = 2});
  Tensor a = counted({3}).set_requires_grad(), b = counted({3}).set_requires_grad();
  for (int const n : {1, 2, 3, 1, 4, 2, 3, 1}) {
    std::string const text(static_cast<std::size_t>(n), 'x');
    Tensor const x = counted({3}, -2);
    CHECK(exactly(fast(a, x, text)) == exactly(body(b, x, text)));
    CHECK(exactly(a) == exactly(b));
  }
  CHECK(report_of(fast).eager_calls == 3);
}

// ---- numerics, memory and strides

TEST_CASE("a cast that the user wrote rounds, also when another one goes back") {  // 179561
  Twin f([](Tensor const& x) {
    return std::vector{to(to(x, DType::bf16), DType::f32), to(to(x * 3, DType::f16), DType::f32) - x, to(to(x, DType::i64), DType::f32)};
  });
  Tensor const x = tensor({1.0 / 3, 3.14159274, 1e-5, -2.7182818});
  CHECK(f(x) == 1);
  CHECK(f(x * 7) == 1);
  auto const rounded = numbers(f.fast(x)[0]);
  CHECK(rounded[0] == 0.333984375);  // 1/3 to 8 bits of mantissa
  CHECK(rounded[1] == 3.140625);
}

TEST_CASE("the square of an f16 that overflows is infinite, though something wider follows") {  // 183607
  Twin f([](Tensor const& x) { return to(x * x, DType::f32) * 0.5; });
  CHECK(f(full({2}, 300.0, DType::f16)) == 1);
  CHECK(numbers(f.fast(full({2}, 300.0, DType::f16))) == std::vector<double>(2, std::numeric_limits<double>::infinity()));
}

TEST_CASE("a seed gives the numbers that it gives eagerly") {  // 118735, 172206
  auto const body = [](Tensor const& x) { return x + rand({2, 3}) * randn({3}) + dropout(ones({2, 3}), 0.5); };
  auto const fast = compile(body);
  for (int k = 0; k < 4; ++k) {
    std::array<std::string, 2> texts;
    for (bool const compiled : {false, true}) {
      manual_seed(static_cast<std::uint64_t>(k / 2));
      for (int call = 0; call < 3; ++call) texts[compiled] += exactly(compiled ? fast(ones({3})) : body(ones({3})));
    }
    CHECK(texts[0] == texts[1]);
  }
}

TEST_CASE("an output is not overwritten by the next replay, whoever holds it") {  // 148439, 170604
  auto const f = compile([](Tensor const& x) {
    Tensor const y = x * 2;
    return std::pair(y, select(transpose(y, 0, 1), 0, 1));
  });
  std::vector<std::pair<Tensor, Tensor>> held;
  std::vector<Tensor> views;
  for (int k = 0; k < 6; ++k) {
    auto const both = f(full({2, 3}, k));
    if (k % 2) held.push_back(both);
    views.push_back(slice(both.first, 0, 1));
  }
  for (int k = 0; k < 6; ++k) CHECK(numbers(views[static_cast<std::size_t>(k)]) == std::vector<double>(3, 2.0 * k));
  for (int k = 0; k < 3; ++k) {
    CHECK(numbers(held[static_cast<std::size_t>(k)].second) == std::vector<double>(2, 2.0 * (2 * k + 1)));
    CHECK(same_memory(held[static_cast<std::size_t>(k)].first, held[static_cast<std::size_t>(k)].second));
  }
}

TEST_CASE("views of inputs that are not row-major are views or copies as eagerly, with eager's strides") {  // 172693, 174963
  Twin f([](Tensor const& x) {                                                                              // [B, C, H, W]
    return std::vector{reshape(x, {x.size(0), -1}), flatten(permute(x, {0, 2, 3, 1}), 0, 2), reshape(x, {-1, 2}), x * 2, contiguous(x), transpose(x, 1, 3)};
  });
  Tensor const plain = counted({2, 4, 3, 2});
  std::array const inputs{plain, permute(counted({2, 3, 2, 4}), {0, 3, 1, 2}), transpose(counted({2, 4, 2, 3}), 2, 3), slice(counted({2, 8, 3, 2}), 1, 0, 8, 2),
                          expand(counted({1, 4, 3, 2}), {2, 4, 3, 2})};
  for (int turn = 0; turn < 2; ++turn)
    for (auto const& x : inputs) {
      CHECK(f(x) <= 5);
      auto const want = f.body(x), got = f.fast(x);
      for (std::size_t k = 0; k < want.size(); ++k) CHECK(same_memory(got[k], x) == same_memory(want[k], x));
    }
  CHECK(report_of(f.fast).eager_calls == 0);
}

TEST_CASE("a result that only its own gradient rule reads is no output of the graph") {
  std::size_t outputs = 0;
  auto const counting = [&](ir::Graph const& graph) {
    outputs = graph.outputs.size();
    return reference_backend(graph);
  };
  auto const f = compile([](Tensor const& x) { return gradients(sum(exp(tanh(x))), std::array{x})[0]; }, {.backend = counting});
  Tensor x = zeros({3});
  x.set_requires_grad();
  for (int call = 0; call < 2; ++call) {
    CHECK(numbers(f(x)) == std::vector<double>(3, 1.0));  // exp(tanh(0)) * (1 - tanh(0)^2)
    CHECK(outputs == 1);
  }
}
