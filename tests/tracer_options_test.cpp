// What a user may ask of a compiled function: marked dims, pure, a backend of their own; and what tensors may be: on other devices, written through views.
#include <doctest/doctest.h>

import std;
import tenon.base;
import tenon.ir;
import tenon.tracer;
#include "caught.hpp"

using namespace tenon;
using namespace tenon::tracer;

namespace {
using V = std::vector<double>;
V numbers(Tensor const& x) { return x.to_vector<double>(); }
int graphs(auto const& compiled) { return describe(compiled.state()).graphs; }
base::Device const other = base::device_of("sim:0");
}  // namespace

TEST_CASE("writes through views are values in the graph: no break, one graph") {
  struct Case {
    char const* name;
    std::function<Tensor(Tensor)> body;
  };
  std::vector<Case> const cases{
      {"row of a result",
       [](Tensor x) {
         Tensor y = x * 2;
         Tensor row = select(y, 0, 1);
         row.add_(full({}, 10));
         return y;
       }},
      {"slice of an input",
       [](Tensor x) {
         Tensor part = slice(x, 1, 0, 2);
         part.mul_(3);
         return x + 1;
       }},
      {"view of a view, transposed",
       [](Tensor x) {
         Tensor y = x + 0;
         Tensor cell = select(transpose(y, 0, 1), 0, 2);
         cell.copy_(full({}, -1));
         return y;
       }},
      {"reshape, then the base is read",
       [](Tensor x) {
         Tensor y = clone(x);
         Tensor flat = reshape(y, {-1});
         slice(flat, 0, 1, 5, 2).fill_(7);
         return y * flat.dim(0);
       }},
      {"base written, view read, view written, base read",
       [](Tensor x) {
         Tensor y = x + 1;
         Tensor row = select(y, 0, 0);
         y.mul_(2);
         Tensor const seen = row + 0;
         row.add_(seen);
         return y + seen;
       }},
      {"two views of one memory",
       [](Tensor x) {
         Tensor y = x + 1;
         Tensor a = slice(y, 1, 0, 2), b = slice(y, 1, 1, 3);
         a.add_(b);
         b.mul_(a);
         return a + b + slice(y, 1, 0, 2);
       }},
      {"whole numbers take the written value in their own dtype",
       [](Tensor x) {
         Tensor y = to(x * 10, base::DType::i32);
         select(y, 1, 0).copy_(select(x, 1, 1) + 0.75);
         return y;
       }},
      {"an empty view changes nothing",
       [](Tensor x) {
         Tensor y = x + 1;
         slice(y, 0, 1, 1).fill_(9);
         return y;
       }},
  };
  for (auto const& [name, body] : cases) {
    auto const fast = compile(body, {.fullgraph = true});
    for (int call = 0; call < 3; ++call) {
      Tensor const x = reshape(arange(call, call + 6.0), {2, 3}), twin = clone(x);
      CHECK_MESSAGE(numbers(fast(x)) == numbers(body(twin)), name);
      CHECK_MESSAGE(numbers(x) == numbers(twin), name);
    }
    CHECK_MESSAGE(graphs(fast) == 1, name);
    CHECK_MESSAGE(describe(fast.state()).breaks.empty(), name);
  }
}

TEST_CASE("a write through a view of many places in one is refused, compiled as eager") {
  auto const body = [](Tensor const& x) {
    Tensor wide = expand(x + 0, {3, 2});
    wide.mul_(2);
    return wide;
  };
  auto const wanted = support::caught([&] { (void)body(ones({2})); });
  CHECK(support::says(wanted, "several elements"));
  CHECK(support::caught([&] { (void)compile(body)(ones({2})); }) == wanted);
}

TEST_CASE("a write through one row of an expanded view is seen in all rows, as in eager code; it breaks") {
  auto const body = [](Tensor const& x) {
    Tensor const base = x * 2;
    Tensor wide = expand(base, {3, 2});
    select(wide, 0, 1).add_(full({}, 1));
    return base + sum(wide, {0});
  };
  auto const fast = compile(body);
  for (int call = 0; call < 3; ++call) CHECK(numbers(fast(full({2}, call))) == numbers(body(full({2}, call))));
  CHECK(describe(fast.state()).breaks.at(0).reason == "a view of memory that shows elements several times is written");
}

TEST_CASE("one tensor for two arguments, one of them written, is another graph and no break") {
  auto const f = compile([](Tensor& a, Tensor const& b) { return a.add_(ones({2})), b * 10; }, {.fullgraph = true});
  Tensor a = ones({2}), b = ones({2});
  CHECK(numbers(f(a, b)) == V{10, 10});
  CHECK(numbers(f(a, a)) == V{30, 30});
  CHECK(numbers(f(b, a)) == V{30, 30});
  CHECK(numbers(f(b, b)) == V{30, 30});
  CHECK(graphs(f) == 2);
}

TEST_CASE("item() of a whole tensor is a whole number, with fullgraph too") {
  auto const body = [](Tensor const& x, Tensor const& n) { return x * n.item(); };
  Tensor const whole = index_tensor(std::array<std::int64_t, 2>{2, 3}, {2}), n = index_tensor(std::array<std::int64_t, 1>{4}, {1});
  for (Tensor const& y : {body(whole, n), compile(body)(whole, n), compile(body, {.fullgraph = true})(whole, n)}) {
    CHECK(y.dtype() == base::DType::i64);
    CHECK(numbers(y) == V{8, 12});
  }
  CHECK(body(whole, full({1}, 2.5)).dtype() == base::DType::f32);
}

TEST_CASE("what is not 0 is true, as a cast and as a write, eager and compiled") {
  Tensor const y = tensor({-1.05, -0.35, 0.5, 0});
  CHECK(numbers(to(y, base::DType::boolean)) == V{1, 1, 1, 0});
  Tensor a = to(ones({4}), base::DType::boolean), b = clone(a);
  a.copy_(y);
  compile([](Tensor x, Tensor const& s) { x.copy_(s); })(b, y);
  CHECK(numbers(a) == V{1, 1, 1, 0});
  CHECK(numbers(b) == V{1, 1, 1, 0});
}

TEST_CASE("an in-place optimizer over 150 parameters is one graph, replayed") {
  std::vector<Tensor> weights, twins;
  for (int k = 0; k < 150; ++k) weights.push_back(full({3}, k)), twins.push_back(full({3}, k));
  auto const step = [](std::vector<Tensor>& all, double rate) {
    for (auto& w : all) w -= w * rate;
  };
  auto const fast = compile(step);
  for (int call = 0; call < 4; ++call) {
    fast(weights, 0.5);
    step(twins, 0.5);
  }
  for (int k = 0; k < 150; ++k) CHECK(numbers(weights[static_cast<std::size_t>(k)]) == numbers(twins[static_cast<std::size_t>(k)]));
  CHECK(graphs(fast) == 1);
}

TEST_CASE("mixed devices are an error that names both operands; calls that alternate are two graphs") {
  auto const sum_of = [](Tensor const& x, Tensor const& y) { return x + y; };
  Tensor const here = ones({3}), there = to(here, other);
  CHECK(base::to_string(there.device()) == "sim:0");
  CHECK(numbers(to(there, base::Device{})) == V{1, 1, 1});
  std::string const wanted = "add: operands on different devices: input f32[3] on cpu and other f32[3] on sim:0; move one of them with to()";
  CHECK(support::caught([&] { (void)sum_of(here, there); }) == wanted);
  auto const fast = compile(sum_of);
  CHECK(support::caught([&] { (void)fast(here, there); }) == wanted);
  CHECK(numbers(there + ones({})) == V{2, 2, 2});  // a number on the cpu goes with everything
  for (int call = 0; call < 4; ++call) {
    Tensor const x = call % 2 ? there : here;
    CHECK(fast(x, x).device() == x.device());
  }
  CHECK(graphs(fast) == 2);
  CHECK(describe(fast.state()).recompiles.at(0).reason.text == "tensor 'args[0]' device mismatch: expected cpu, actual sim:0");
  Tensor w = ones({3}).set_requires_grad();
  sum(to(w, other) * to(full({3}, 4), other)).backward();
  CHECK(w.grad().device() == base::Device{});
  CHECK(numbers(w.grad()) == V{4, 4, 4});
  Tensor target = zeros({3});
  target.copy_(there);  // copies between devices
  CHECK(numbers(target) == V{1, 1, 1});
}

TEST_CASE("settings of the thread are guarded, each with its name in the reason, and equal ones by value") {
  auto const fast = compile([](Tensor const& x) { return x + 1; });
  Tensor const x = ones({2});
  auto const with = [&](auto change) {
    auto wanted = settings();
    change(wanted);
    SettingsScope const scope(wanted);
    (void)fast(x);
    return graphs(fast);
  };
  auto const last = [&] { return describe(fast.state()).recompiles.back().reason.text; };
  CHECK(with([](auto&) {}) == 1);
  CHECK(with([](auto& s) { s.deterministic = true; }) == 2);
  CHECK(last() == "deterministic mismatch: expected off, actual on");
  CHECK(with([](auto& s) { s.default_dtype = base::DType::f64; }) == 3);
  CHECK(with([](auto& s) { s.autocast[0] = {true, base::DType::bf16}; }) == 4);
  CHECK(last() == "default dtype mismatch: expected f64, actual f32");
  CHECK(with([](auto& s) { s.autocast[0] = {true, base::DType::f16}; }) == 5);
  CHECK(last() == "autocast(cpu) mismatch: expected bf16, actual f16");
  CHECK(with([](auto& s) { s.autocast[0].dtype = base::DType::f16; }) == 5);  // the dtype counts only where it is enabled
  CHECK(with([](auto& s) { s.autocast[2] = {true, base::DType::f16}; }) == 6);
  CHECK(with([](auto& s) { s.autocast[0] = {true, base::DType::bf16}; }) == 6);
}

TEST_CASE("the default dtype decides what no operand decides") {
  auto wide = settings();
  wide.default_dtype = base::DType::f64;
  Tensor const whole = index_tensor(std::array<std::int64_t, 2>{1, 2}, {2});
  CHECK((whole * 1.5).dtype() == base::DType::f32);
  {
    SettingsScope const scope(wide);
    CHECK(ones({2}).dtype() == base::DType::f64);
    CHECK((whole * 1.5).dtype() == base::DType::f64);
    CHECK((whole / 2).dtype() == base::DType::f64);
    CHECK((whole * 2).dtype() == base::DType::i64);
    CHECK(arange(0.0, 1.0, 0.5).dtype() == base::DType::f64);
  }
  CHECK(ones({2}).dtype() == base::DType::f32);
  wide.default_dtype = base::DType::i64;
  CHECK(support::caught([&] { SettingsScope const scope(wide); }) == "the default dtype must be floating, not i64");
  CHECK(settings().default_dtype == base::DType::f32);
}

TEST_CASE("a marked dim is open from the first graph on, within its bounds") {
  auto const body = [](Tensor const& x) { return sum(x * 2, {1}); };
  auto const fast = compile(body);
  for (int const rows : {4, 7, 2, 9}) {
    Tensor const x = ones({rows, 3});
    mark_dynamic(x, 0, 2, 8 + (rows == 9));
    CHECK(numbers(fast(x)) == V(static_cast<std::size_t>(rows), 6));
    CHECK(graphs(fast) == (rows == 9 ? 2 : 1));  // 9 lies outside of what the first graph was made for
  }
  CHECK(describe(fast.state()).recompiles.at(0).reason.text == "sizes: s0 <= 8 does not hold");
  auto const never = compile(body, {.dynamic = Dynamic::never});
  for (int const rows : {4, 7, 2}) {
    Tensor const x = ones({rows, 3});
    mark_dynamic(x, -2);
    (void)never(x);
  }
  CHECK(graphs(never) == 1);  // a mark overrides it
  (void)never(ones({5, 3}));
  CHECK(graphs(never) == 1);  // and the graph serves unmarked tensors
}

TEST_CASE("a mark that comes after the graph makes a new one, and says so; a size-1 dim has its own") {
  auto const fast = compile([](Tensor const& x) { return x + 1; });
  Tensor const x = ones({4});
  (void)fast(x);
  mark_dynamic(x, 0, 0);
  (void)fast(x);
  CHECK(graphs(fast) == 2);
  CHECK(describe(fast.state()).recompiles.at(0).reason.text == "tensor 'args[0]' has a dim marked dynamic that the graph holds fixed");
  Tensor const one = ones({1}), six = ones({6});
  mark_dynamic(one, 0, 1);
  mark_dynamic(six, 0, 1);
  (void)fast(one);
  (void)fast(six);
  CHECK(graphs(fast) == 3);
}

TEST_CASE("a marked dim that the function fixes is an error that names the line and what it met") {
  Tensor const w = ones({4, 2});
  auto const fixed = compile([w](Tensor const& x) { return matmul(x, w); }, {.name = "product"});
  Tensor const x = ones({3, 4});
  mark_dynamic(x, 1);
  auto const text = support::caught([&] { (void)fixed(x); });
  CHECK(text.starts_with("product: dim 1 of 'args[0]' was marked dynamic, but matmul at tracer_options_test.cpp:"));
  CHECK(support::says(text, "needs s0 == 4 ('args[0]' is f32[3, s0], 'captured at tracer_options_test.cpp:"));
  CHECK(support::says(text, "return matmul(x, w);"));
  CHECK(graphs(fixed) == 0);
  Tensor const plain = ones({3, 4});
  CHECK(numbers(fixed(plain)) == V(6, 4));  // the function is as usable as before
  auto const pinned = compile([](Tensor const& y) { return y + ones({5}); });
  Tensor const five = ones({5});
  mark_dynamic(five, 0);
  CHECK(support::says(support::caught([&] { (void)pinned(five); }), "needs s0 == 5"));
  CHECK(support::caught([&] { mark_dynamic(five, 0, 6, 9); }) == "mark_dynamic: dim 0 of f32[5] has size 5, outside of 6 to 9");
  CHECK(support::says(support::caught([&] { mark_dynamic(five, 1); }), "mark_dynamic"));
  CHECK(support::caught([&] { mark_dynamic(five, 0, 9, 6); }) == "mark_dynamic: no size lies from 9 to 6");
}

TEST_CASE("equal sizes of two marked dims are no relation between them") {
  auto const fast = compile([](Tensor const& a, Tensor const& b) { return sum(a) + sum(b); });
  for (auto const& [n, m] : {std::pair(4, 4), {5, 4}, {4, 7}}) {
    Tensor const a = ones({n}), b = ones({m});
    mark_dynamic(a, 0);
    mark_dynamic(b, 0);
    CHECK(fast(a, b).item() == n + m);
  }
  CHECK(graphs(fast) == 1);
}

TEST_CASE("a static mark keeps a size out of the symbols") {
  auto const fast = compile([](Tensor const& x) { return x + 1; }, {.dynamic = Dynamic::always});
  for (int const n : {3, 4, 5}) {
    Tensor const x = ones({n, 2});
    mark_static(x, 0);
    (void)fast(x);
  }
  CHECK(graphs(fast) == 3);
}

// -- pure -----------------------------------------------------------------------------------------------------------------------------------

TEST_CASE("a pure function's body runs twice for each graph: to record it, and to see which tensors are arguments") {
  int runs = 0;
  auto const fast = compile(
      [&runs](Tensor const& x, Tensor const& w) {
        ++runs;
        return std::pair(relu(x * w + 1), std::vector<Tensor>{transpose(x * 2, 0, 1), x});
      },
      {.pure = true});
  Tensor const w = ones({3});
  for (int call = 1; call <= 4; ++call) {
    Tensor const x = full({2, 3}, call);
    auto const [y, list] = fast(x, w);
    CHECK(numbers(y) == V(6, call + 1));
    CHECK(numbers(list[0]) == V(6, 2 * call));
    CHECK(list[0].shape() == base::Shape{3, 2});
    CHECK(list[1].impl() == x.impl());
  }
  CHECK(runs == 2);
  for (int const rows : {5, 7, 4, 6}) {
    auto const [y, list] = fast(ones({rows, 3}), w);
    CHECK(y.shape() == base::Shape{rows, 3});
    CHECK(list[0].shape() == base::Shape{3, rows});
  }
  CHECK(runs == 4);  // the second graph keeps the rows open
  CHECK(describe(fast.state()).graphs == 2);
}

TEST_CASE("results of a pure function share memory as eager ones do, and never with those of another call") {
  auto const body = [](Tensor const& x) {
    Tensor const y = x + 1;
    return std::vector<Tensor>{y, y, select(y, 0, 1), select(x, 0, 0)};
  };
  auto const fast = compile(body, {.pure = true});
  std::vector<std::vector<Tensor>> kept;
  for (int call = 0; call < 3; ++call) {
    Tensor x = full({2, 2}, call);
    auto list = fast(x);
    CHECK(list[0].impl() == list[1].impl());
    list[2].fill_(50 + call);
    CHECK(numbers(list[0]) == V{call + 1.0, call + 1.0, 50.0 + call, 50.0 + call});
    x.fill_(9);
    CHECK(numbers(list[3]) == V{9, 9});
    kept.push_back(list);
  }
  CHECK(numbers(kept[0][0]) == V{1, 1, 50, 50});
  CHECK(describe(fast.state()).calls == 3);
  CHECK(fast.state().pure_hits == 1);
}

TEST_CASE("what a pure function depends on is guarded: numbers, flags, texts, sizes that the host reads") {
  int runs = 0;
  auto const fast = compile(
      [&runs](Tensor const& x, int n, double s, bool flag, std::string const& mode) {
        ++runs;
        Tensor const y = flag ? x * s : x + s;
        return mode == "size" ? y * x.size(0) : y * n;
      },
      {.pure = true});
  auto const eager = fast.function();
  auto const agree = [&](int size, int n, double s, bool flag, std::string const& mode) {
    Tensor const x = full({size}, 3);
    CHECK(numbers(fast(x, n, s, flag, mode)) == numbers(eager(x, n, s, flag, mode)));
  };
  for (int const size : {2, 3, 4, 3})
    for (std::string const& mode : {"size", "n"})
      for (bool const flag : {true, false})
        for (double const s : {0.5, 2.0})
          for (int const n : {2, 3}) agree(size, n, s, flag, mode);
  CHECK(runs > 0);
}

TEST_CASE("an argument that is also captured, or passed twice, is told from the other one") {
  Tensor const w = full({3}, 2);
  auto const fast = compile([w](Tensor const& x, Tensor const& y) { return x * w + y; }, {.pure = true});
  for (auto const& [x, y] : {std::pair(w, w), {w, w}, {full({3}, 5), w}, {full({3}, 6), full({3}, 1)}, {full({3}, 7), full({3}, 2)}, {w, full({3}, 3)}})
    CHECK(numbers(fast(x, y)) == numbers(x * w + y));
  auto const first = compile([](Tensor const& x, Tensor const&) { return x; }, {.pure = true});
  for (auto const& [x, y] : {std::pair(w, w), {full({3}, 5), w}, {w, full({3}, 1)}, {full({3}, 7), full({3}, 2)}}) CHECK(first(x, y).impl() == x.impl());
}

TEST_CASE("what a pure function captured is held and not looked at again") {
  Tensor w = tensor({1, 2, 3});
  auto const fast = compile([&w](Tensor const& x) { return x * w; }, {.pure = true});
  CHECK(numbers(fast(ones({3}))) == V{1, 2, 3});
  CHECK(numbers(fast(full({3}, 2))) == V{2, 4, 6});
  w = zeros({3});
  CHECK(numbers(fast(ones({3}))) == V{1, 2, 3});
}

TEST_CASE("what is not pure after all is replayed: writes, breaks, random numbers, gradients") {
  int runs = 0;
  auto const count = [&runs](auto body) {
    return [&runs, body](Tensor const& x) {
      ++runs;
      return body(x);
    };
  };
  auto const check = [&](auto body, bool gradient = false) {
    runs = 0;
    auto const fast = compile(count(body), {.pure = true});
    for (int call = 0; call < 3; ++call) {
      Tensor x = full({3}, call), twin = full({3}, call);
      if (gradient) x.set_requires_grad(), twin.set_requires_grad();
      manual_seed(5);
      Tensor const have = fast(x);
      manual_seed(5);
      CHECK(numbers(have) == numbers(body(twin)));
      CHECK(numbers(x) == numbers(twin));
      if (gradient) {
        sum(have).backward();
        CHECK(numbers(x.grad()) == V{2, 2, 2});
      }
    }
    CHECK(runs == 3);
  };
  check([](Tensor x) { return x.add_(full({}, 1)) * 2; });
  check([](Tensor const& x) { return sum(x) > 2 ? x : x + 1; });
  check([](Tensor const& x) { return x + rand({3}); });
  check([](Tensor const& x) { return x * 2; }, true);
  check([](Tensor const&) { return tensor({1, 2, 3}); });
}

// -- backends -------------------------------------------------------------------------------------------------------------------------------

TEST_CASE("backends: reference, eager, and one that a user writes") {
  int seen = 0, ran = 0;
  Backend const mine = [&](ir::Graph const& graph) -> Runner {
    seen += static_cast<int>(graph.nodes.size());
    return [&ran, run = eager_backend(graph)](auto inputs, auto const& bindings) {
      ++ran;
      return run(inputs, bindings);
    };
  };
  auto const body = [](Tensor const& x, Tensor const& y) { return softmax(matmul(x, y) + 1, 1); };
  Tensor const x = ones({2, 3}), y = ones({3, 2});
  auto const wanted = numbers(body(x, y));
  for (Backend const& backend : {Backend(reference_backend), Backend(eager_backend), mine}) CHECK(numbers(compile(body, {.backend = backend})(x, y)) == wanted);
  CHECK(seen == 3);
  CHECK(ran == 1);
  Backend const broken = [](ir::Graph const&) -> Runner { base::fail("no such kernel"); };
  auto const fails = compile(body, {.backend = broken});
  CHECK(support::says(support::caught([&] { (void)fails(x, y); }), "no such kernel"));
  CHECK(support::says(support::caught([&] { (void)fails(x, y); }), "no such kernel"));  // and nothing is left behind
  CHECK(numbers(body(x, y)) == wanted);
}
