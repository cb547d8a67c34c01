// Bodies that call, throw, alias, write and draw: what a compiled function leaves behind is what its body would leave eagerly.
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
using support::same_memory;
using support::same_place;
using support::says;

namespace {
std::vector<double> numbers(Tensor const& x) { return x.to_vector<double>(); }
Tensor counted(DimList const& sizes, double from = 1) { return reshape(to(arange(0, base::numel(ir::values(sizes))), DType::f32) + from, sizes); }

// What a body sees: arguments, and tensors and numbers that it finds outside of them.
struct World {
  std::vector<Tensor> args{counted({3, 4}), counted({3, 4}, -5)}, held{counted({3, 4}, 2)};
  double number = 1;
  int count = 0;
  static void fields(auto& self, auto&& field) { field("args", self.args); }
};
std::string everything(World const& world, std::vector<Tensor> const& outputs) {
  std::string text;
  std::vector<Tensor> all;
  for (auto const* const list : {&world.args, &world.held, &outputs})
    for (auto const& x : *list) {
      text += exactly(x) + (x.defined() && x.grad().defined() ? " its grad " + exactly(x.grad()) : "") + "\n";
      if (x.defined()) all.push_back(x);
    }
  for (std::size_t a = 0; a < all.size(); ++a)
    for (std::size_t b = 0; b < a; ++b)
      if (same_memory(all[a], all[b]))
        text += std::format("{} and {} share memory, {} apart{}\n", b, a, all[a].impl()->offset - all[b].impl()->offset,
                            all[a].impl() == all[b].impl() ? ", one object" : "");
  return text + std::format("{} {}\n", world.number, world.count);
}

using Between = std::function<void(World&, int)>;
// Runs the body eagerly in one world and compiled in another, `between` in both before each call; compares all that is left after each, and once more
// after each output was written to. The report of the compiled one.
template <class Body>
Explanation agree(Body body, Between const& between = {}, Options options = {}, int calls = 5) {
  World eager, fast;
  auto const compiled = compile(body, std::move(options));
  for (int call = 0; call < calls; ++call) {
    std::array<std::string, 2> texts;
    std::array<std::vector<Tensor>, 2> outputs;
    std::array<GeneratorState, 2> generators;
    for (std::size_t side = 0; side < 2; ++side) {
      World& world = side ? fast : eager;
      Settings const before = settings();
      manual_seed(static_cast<std::uint64_t>(call));
      if (between) between(world, call);
      try {
        outputs[side] = side ? compiled(world) : body(world);
      } catch (std::exception const& error) {
        texts[side] = std::string("throws ") + error.what() + "\n";
      }
      CHECK(settings() == before);
      CHECK(Session::current() == nullptr);
      generators[side] = generator_state();
      texts[side] += everything(world, outputs[side]);
    }
    REQUIRE_MESSAGE(texts[0] == texts[1], "call ", call, "\n", texts[0], "compiled:\n", texts[1]);
    CHECK(generators[0].offset == generators[1].offset);
    NoGrad const off;
    for (std::size_t side = 0; side < 2; ++side) {
      for (std::size_t k = 0; k < outputs[side].size(); ++k)
        if (base::is_real(outputs[side][k].dtype())) outputs[side][k].detach().mul_(static_cast<double>(k + 2));
      texts[side] = everything(side ? fast : eager, outputs[side]);
    }
    REQUIRE_MESSAGE(texts[0] == texts[1], "call ", call, " after its outputs were written\n", texts[0], "compiled:\n", texts[1]);
  }
  return describe(compiled.state());
}
using Outputs = std::vector<Tensor>;
}  // namespace

TEST_CASE("recursion: one graph a depth, whatever the numbers on the way") {
  std::function<Tensor(Tensor const&, int)> again;
  auto const body = [&again](Tensor const& x, int depth) -> Tensor { return depth == 0 ? x + 1 : again(x * 2, depth - 1) - 3; };
  auto const fast = compile(body);
  for (bool const compiled : {false, true})
    for (int const depth : {3, 3, 1, 3, 5}) {
      again = compiled ? std::function<Tensor(Tensor const&, int)>(fast) : body;
      double expected = std::pow(2.0, depth) + 1;
      for (int k = 0; k < depth; ++k) expected -= 3;
      CHECK(numbers(compiled ? fast(ones({2}), depth) : body(ones({2}), depth)) == std::vector<double>{expected, expected});
    }
  CHECK(graphs(fast) == 3);
  CHECK(describe(fast.state()).calls == 5);  // the inner calls are part of the outer ones
}

TEST_CASE("recursion through breaks: a collatz walk that asks a tensor where to go") {
  std::function<int(Tensor const&, int)> again;
  auto const body = [&again](Tensor const& n, int steps) -> int {
    if (n < 1.5) return steps;
    Tensor const half = n * 0.5, rest = half - to(to(half, DType::i64), DType::f32);
    return again(rest > 0.25 ? n * 3 + 1 : half, steps + 1);
  };
  auto const fast = compile(body);
  again = fast;
  std::map<int, int> const lengths{{1, 0}, {2, 1}, {3, 7}, {6, 8}, {7, 16}, {9, 19}, {27, 111}};  // OEIS A006577
  for (auto const& [n, steps] : lengths) CHECK(fast(full({1}, n), 0) == steps);
  CHECK(describe(fast.state()).eager_calls == 0);
  CHECK(graphs(fast) <= 8);
}

TEST_CASE("a compiled function inside another one becomes part of it") {
  auto const inner = compile([](Tensor const& x) { return relu(x) * 2; }, {.name = "inner"});
  auto const outer = compile([inner](Tensor const& x) { return inner(x + 1) - inner(x); }, {.name = "outer"});
  Tensor const x = tensor({-3, 2});
  for (int k = 0; k < 3; ++k) CHECK(numbers(outer(x)) == std::vector<double>{0, 2});
  CHECK(graphs(outer) == 1);
  CHECK(describe(outer.state()).ops == 6);
  CHECK(describe(inner.state()).calls == 0);
  CHECK(numbers(inner(x)) == std::vector<double>{0, 4});
  CHECK(graphs(inner) == 1);
  CHECK(describe(outer.state()).calls == 3);
}

TEST_CASE("behind a break of the outer function the inner one is still part of it") {
  auto const inner = compile([](Tensor const& x) { return x * 2; });
  auto const outer = compile([inner](Tensor const& x) {
    Tensor const y = inner(x);
    graph_break();
    return inner(y) + 1;
  });
  for (int k = 0; k < 3; ++k) CHECK(numbers(outer(ones({1}))) == std::vector<double>{5});
  CHECK(graphs(outer) == 2);
  CHECK(describe(inner.state()).calls == 0);
}

TEST_CASE("the options of the outermost function hold: fullgraph outside refuses the inner break, fullgraph inside is part of the outer one") {
  auto const breaks = [](Tensor const& x) { return sum(x) > 0 ? x * 2 : x; };
  auto const loose = compile(breaks, {.name = "inner"});
  auto const strict = compile(breaks, {.fullgraph = true, .name = "inner"});
  auto const strict_outside = compile([loose](Tensor const& x) { return loose(x) + 1; }, {.fullgraph = true, .name = "outer"});
  auto const loose_outside = compile([strict](Tensor const& x) { return strict(x) + 1; }, {.name = "outer"});
  Tensor const x = ones({2});
  for (int k = 0; k < 2; ++k) {
    CHECK(caught([&] { (void)strict_outside(x); }).starts_with("outer: fullgraph: a tensor is used as a condition"));
    CHECK(numbers(loose_outside(x)) == std::vector<double>{3, 3});
    CHECK(caught([&] { (void)strict(x); }).starts_with("inner: fullgraph: a tensor is used as a condition"));
    CHECK(numbers(loose(x)) == std::vector<double>{2, 2});
  }
  CHECK(describe(loose_outside.state()).breaks.size() == 1);
  CHECK(describe(strict.state()).graphs == 0);
}

TEST_CASE("an inner function runs eagerly where the outer one is over its limit") {
  auto const inner = compile([](Tensor const& x, double n) { return x * n; });
  auto const outer = compile([inner](Tensor const& x, std::string const& text) { return inner(x, static_cast<double>(text.size())); },
                             {.dynamic = Dynamic::never, .recompile_limit = 2});
  for (int n : {1, 2, 3, 4, 1}) CHECK(numbers(outer(ones({1}), std::string(static_cast<std::size_t>(n), 'x'))) == std::vector<double>{1.0 * n});
  CHECK(graphs(outer) == 2);
  CHECK(describe(outer.state()).eager_calls == 2);
  CHECK(describe(inner.state()).calls == 0);
}

TEST_CASE("an exception leaves what eager would leave, in every phase") {
  auto const at = [](int place) {  // the body throws at the given place in calls 1, 3 and 4: recording (another number), replaying, replaying
    return agree(
        [place](World& w) -> Outputs {
          auto const give_up = [&](int here) {
            if (here == place && (w.count == 1 || w.count >= 3)) throw std::runtime_error("given up");
          };
          ++w.count;
          give_up(0);
          w.args[0].mul_(2.0);
          Tensor y = w.args[0] + w.held[0];
          give_up(1);
          w.held[0].add_(y);
          w.held.resize(1);
          w.held.push_back(y * w.number);
          give_up(2);
          graph_break();
          y = y * 2;
          w.args[1].copy_(y);
          give_up(3);
          if (sum(y) > 1e9) y = y + 1;
          y = y - 1;
          give_up(4);
          return {y, w.args[1]};
        },
        [](World& w, int call) { w.number = call < 2 ? 1 : 2; });
  };
  for (int const place : {0, 1, 2, 3, 4}) {
    CAPTURE(place);
    CHECK(at(place).breaks.size() <= 2);
  }
}

TEST_CASE("an exception in the very first call publishes nothing, and the next call records") {
  bool raise = true;
  auto const f = compile([&](Tensor const& x) {
    Tensor const y = x * 2;
    if (raise) throw std::runtime_error("given up");
    return y;
  });
  CHECK_THROWS_WITH(f(ones({1})), "given up");
  CHECK(graphs(f) == 0);
  raise = false;
  CHECK(numbers(f(ones({1}))) == std::vector<double>{2});
  CHECK(graphs(f) == 1);
  raise = true;
  CHECK_THROWS_WITH(f(ones({1})), "given up");
  CHECK_THROWS_WITH(f(ones({5})), "given up");
  raise = false;
  CHECK(numbers(f(ones({1}))) == std::vector<double>{2});
  CHECK(graphs(f) == 1);
  CHECK(describe(f.state()).recompiles.empty());
}

TEST_CASE("an illegal op says in a capture what it says eagerly, and the body may catch it and go on") {
  auto const report = agree(
      [](World& w) -> Outputs {
        Tensor y = w.args[0] * w.number;
        try {
          y = y + ones({w.count % 2 ? 4 : 5});
        } catch (base::Error const& error) {
          w.held.resize(1);
          w.held.push_back(full({1}, static_cast<double>(std::string_view(error.what()).size())));
          y = y - 1;
        }
        ++w.count;
        return {y, y + w.args[1]};
      },
      {}, {}, 7);
  CHECK(report.eager_calls == 0);
  agree([](World& w) -> Outputs { return {w.args[0] * 2, matmul(w.args[0], w.args[1])}; });
  agree([](World& w) -> Outputs { return {w.args[0] * 2, w.args[++w.count % 2] + Tensor()}; });
}

TEST_CASE("settings and grad mode that the body changes are its own, also when it throws") {
  agree([](World& w) -> Outputs {
    Settings own = settings();
    own.deterministic = true, own.default_dtype = DType::f64;
    own.autocast[0] = {true, DType::bf16};
    SettingsScope const scope(own);
    NoGrad const off;
    Tensor const y = w.args[0] * 2;
    if (++w.count % 2 == 0) throw std::runtime_error("given up");
    graph_break();
    return {y + 1};
  });
}

TEST_CASE("a backend that fails says so, and the function works once it does not") {
  int failing = 1;  // 1: when the graph is lowered, 2: when it runs
  auto const backend = [&failing](ir::Graph const& graph) -> Runner {
    if (failing == 1) throw base::Error("no kernel today");
    return [&failing, run = reference_backend(graph)](auto inputs, auto const& bindings) {
      if (failing == 2) throw base::Error("no device today");
      return run(inputs, bindings);
    };
  };
  auto const f = compile([](Tensor const& x) { return x * 2 + 1; }, {.backend = backend});
  CHECK(caught([&] { (void)f(ones({2})); }) == "no kernel today");
  CHECK(Session::current() == nullptr);
  failing = 2;
  for (int k = 0; k < 2; ++k) CHECK(caught([&] { (void)f(ones({2})); }) == "no device today");
  failing = 0;
  for (int k = 0; k < 2; ++k) CHECK(numbers(f(ones({2}))) == std::vector<double>{3, 3});
  failing = 2;
  CHECK(caught([&] { (void)f(ones({2})); }) == "no device today");
  failing = 0;
  CHECK(numbers(f(ones({2}))) == std::vector<double>{3, 3});
}

TEST_CASE("captured tensors that are reassigned, swapped, reshaped, retyped, resized or undefined between calls are never stale") {
  auto const body = [](World& w) -> Outputs {
    return {w.held[0].defined() ? w.held[0] * 2 : w.args[0], w.held.back().defined() ? w.held.back() + 1 : w.args[1]};
  };
  std::vector<std::pair<std::string, Between>> const changes{
      {"reassigned", [](World& w, int call) { w.held[0] = counted({3, 4}, call); }},
      {"swapped", [](World& w, int) { w.held.resize(2, counted({3, 4}, 7)), std::swap(w.held[0], w.held[1]); }},
      {"reshaped", [](World& w, int call) { w.held[0] = reshape(w.held[0], call % 2 ? DimList{4, 3} : DimList{2, 6}); }},
      {"transposed", [](World& w, int) { w.held[0] = transpose(w.held[0], 0, 1); }},
      {"retyped", [](World& w, int call) { w.held[0] = to(w.held[0], call % 2 ? DType::f64 : DType::i64); }},
      {"resized", [](World& w, int call) { w.held[0].resize_({2 + call, 2}); }},
      {"written", [](World& w, int) { w.held[0].mul_(3.0); }},
      {"an argument", [](World& w, int call) { w.held[0] = w.args[static_cast<std::size_t>(call) % 2]; }},
      {"the last output, a view", [](World& w, int call) { w.held[0] = select(w.held[0], 0, 0), w.held[0] = expand(w.held[0], {2 + call, 4}); }},
      {"undefined", [](World& w, int call) { w.held[0] = call % 2 ? Tensor() : counted({3}); }},
      {"needs a gradient", [](World& w, int call) { w.held[0] = counted({3}).set_requires_grad(call % 2 == 0); }},
  };
  for (auto const& [name, change] : changes)
    for (auto const dynamic : {Dynamic::automatic, Dynamic::never, Dynamic::always}) {
      CAPTURE(name);
      agree(body, change, {.dynamic = dynamic}, 6);
    }
}

TEST_CASE("backward and updates inside: gradients accumulate, are dropped, pass breaks and nested calls") {
  auto const loss_of = compile([](Tensor const& w, Tensor const& x) { return sum(tanh(w * x) * w); });
  auto const report = agree(
      [loss_of](World& w) -> Outputs {
        Tensor& weight = w.held[0];
        weight.set_requires_grad();
        Tensor const loss = loss_of(weight, w.args[0]);
        if (w.count % 3 == 1) graph_break();
        loss.backward();
        if (w.count++ % 2 == 0) loss_of(weight, w.args[1]).backward();  // adds into the same gradient
        NoGrad const off;
        weight.add_(weight.grad(), -0.125 * w.number);
        if (w.count == 4) weight.set_grad({});
        return {loss.detach()};
      },
      [](World& w, int call) { w.number = 1 + call; }, {}, 8);
  CHECK(report.eager_calls == 0);
}

TEST_CASE("a forward pass whose gradient is taken outside, again and again") {
  auto const f = compile([](Tensor const& w, Tensor const& x) { return sum(tanh(w * x) * w, {1}); });
  Tensor w = counted({1, 3}, -1).set_requires_grad();
  for (int n : {2, 4, 3, 4}) {
    Tensor const x = counted({n, 3}, -2) * 0.25;
    Tensor const want = sum(tanh(w * x) * w, {1}), got = f(w, x);
    auto const slope = [&](Tensor const& y) { return gradients(sum(y * y), std::array{w}, {}, {.create_graph = true})[0]; };
    CHECK(exactly(got) == exactly(want));
    CHECK(exactly(slope(got)) == exactly(slope(want)));
    CHECK(exactly(gradients(sum(slope(got)), std::array{w})) == exactly(gradients(sum(slope(want)), std::array{w})));
  }
  CHECK(graphs(f) == 2);
}

TEST_CASE("random ops keep their place among the host's draws, used or not") {
  auto const host_draw = [] {
    Active const outside(Rank::capture, nullptr);
    return rand({1}).item().value;
  };
  auto const report = agree([host_draw](World& w) -> Outputs {
    Tensor const first = rand({3, 4});
    (void)randn({7});  // nobody reads it
    double const between = host_draw();
    Tensor const second = w.args[0] + randn({3, 4}) * between;
    if (w.count++ % 3 == 2) graph_break();
    Tensor const third = dropout(w.args[1], 0.5);
    return {first, second, third, full({1}, host_draw()), randperm(6), to(randint(0, 9, {4}), DType::f32)};
  });
  CHECK(report.eager_calls == 0);
}

TEST_CASE("a body that starts the generator anew, or puts back its state, draws as eagerly") {
  agree([](World& w) -> Outputs {
    Tensor const before = rand({2});
    auto const state = generator_state();
    Tensor const first = rand({2});
    set_generator_state(state);
    Tensor const again = rand({2});
    manual_seed(static_cast<std::uint64_t>(++w.count));
    return {before, first, again, rand({2})};
  });
}

namespace {
// An interpreter above capture: what is multiplied is multiplied in another dtype, as autocast would.
struct Narrow final : Interpreter {
  DType dtype;
  int calls = 0;
  explicit Narrow(DType wanted) : dtype(wanted) {}
  void bind(Call const& call, int below, std::span<Tensor> results) override {
    ++calls;
    if (&call.op != &ir::ops::mul && &call.op != &ir::ops::matmul) return dispatch(call, below, results);
    std::vector<Tensor> cast(call.operands.size());
    std::vector<Operand> operands(call.operands.begin(), call.operands.end());
    auto const attrs = ir::Attrs{}.with(dtype);
    for (std::size_t k = 0; k < operands.size(); ++k)
      if (operands[k].impl && base::is_real(operands[k].impl->meta->dtype) && operands[k].impl->meta->dtype != dtype) {
        dispatch({ir::ops::to, {&operands[k], 1}, attrs, call.at}, below, {&cast[k], 1});
        operands[k].impl = cast[k].impl();
      }
    dispatch({call.op, operands, call.attrs, call.at}, below, results);
  }
};
}  // namespace

TEST_CASE("an interpreter of a higher rank means the same outside of a compiled function, inside, and without one") {
  auto const body = [](Tensor const& x, Tensor const& w) { return matmul(x * 1.1, w) + x; };
  Tensor const x = counted({3, 3}, 0.3), w = counted({3, 3}, -2.7);
  for (auto const dtype : {DType::bf16, DType::f16, DType::f64}) {
    Narrow narrow(dtype);
    auto const within = [&](auto const& f) {
      return [&narrow, f](Tensor const& a, Tensor const& b) {
        Active const on(Rank::autocast, &narrow);
        return f(a, b);
      };
    };
    auto const plain = compile(body);
    auto const inside = compile(within(body));
    auto const eager = within(body)(x, w);
    CHECK(exactly(eager) != exactly(body(x, w)));
    for (int k = 0; k < 3; ++k) {
      CHECK(exactly(within(plain)(x, w)) == exactly(eager));  // entered outside
      CHECK(exactly(inside(x, w)) == exactly(eager));         // entered inside
      CHECK(exactly(plain(x, w)) == exactly(body(x, w)));     // and left again
    }
    CHECK(graphs(inside) == 1);
    CHECK(graphs(plain) == 2);
    int const before = narrow.calls;
    (void)inside(x, w);
    CHECK(narrow.calls == before + 3);  // it meets the ops of a replay too
  }
}

TEST_CASE("an interpreter above capture, with gradients, breaks and exceptions") {
  Narrow narrow(DType::bf16);
  auto const report = agree(
      [&narrow](World& w) -> Outputs {
        Tensor& weight = w.held[0];
        weight.set_requires_grad();
        Tensor y;
        {
          Active const on(Rank::autocast, &narrow);
          y = w.args[0] * weight;
          if (w.count++ % 2) graph_break();
          y = y * w.args[1];
          if (w.count == 4) throw std::runtime_error("given up");
        }
        Tensor const loss = sum(to(y, DType::f32) * weight);
        loss.backward();
        return {loss.detach(), to(y.detach(), DType::f32)};
      },
      {}, {}, 7);
  CHECK(report.eager_calls == 0);
  CHECK(narrow.calls > 0);
}

TEST_CASE("outputs that alias inputs: the object itself, a view, a view of a view, two that share memory") {
  auto const one = agree([](World& w) -> Outputs { return {w.args[0], w.args[0] * 2}; });
  CHECK(one.graphs == 1);
  agree([](World& w) -> Outputs { return {transpose(w.args[0], 0, 1), w.args[0]}; });
  agree([](World& w) -> Outputs {
    Tensor const part = slice(w.args[0], 0, 1, 3);
    return {select(part, 1, ++w.count % 4), part};
  });
  agree([](World& w) -> Outputs {
    Tensor const y = w.args[0] + w.args[1];
    return {y, reshape(y, {-1}), select(y, 0, 1)};
  });
  agree([](World& w) -> Outputs { return {w.held[0], unsqueeze(w.held[0], 0), w.args[1] - w.held[0]}; });
  agree([](World& w) -> Outputs {
    w.held.assign({slice(w.args[0], 0, 0, 2), w.args[1] * 2});
    return {w.held[0], transpose(w.held[1], 0, 1)};
  });
}

TEST_CASE("inputs written as a whole, through views and through views of views") {
  agree([](World& w) -> Outputs { return {w.args[0].mul_(2.0), w.args[0] + 1}; });
  agree([](World& w) -> Outputs {
    select(w.args[0], 0, 1).mul_(3.0);
    return {w.args[0] + 1};
  });
  agree([](World& w) -> Outputs {
    Tensor turned = transpose(w.args[0], 0, 1), corner = slice(turned, 0, 0, 2);
    corner.copy_(slice(transpose(w.args[1], 0, 1), 0, 1, 3));
    return {turned * 2, corner + 1, w.args[0]};
  });
  agree([](World& w) -> Outputs {
    Tensor y = w.args[0] + 1, row = select(y, 0, 0);
    row.add_(row);
    y.add_(w.args[1]);
    return {row + 0.5, y, y * 2};
  });
  agree([](World& w) -> Outputs {
    Tensor& x = w.held[0];
    reshape(x, {-1}).mul_(2.0);
    w.args[0].copy_(transpose(transpose(x, 0, 1), 0, 1));
    x.fill_(static_cast<double>(w.count++));
    return {x + w.args[0]};
  });
}

TEST_CASE("arguments that share memory, some written: equal to eager in whatever order the patterns come") {
  auto const body = [](World& w) -> Outputs {
    Tensor const before = w.args[0] + w.args[1];
    w.args[0].mul_(2.0);
    Tensor const after = w.args[1] * 3;
    w.args[1].add_(w.held[0]);
    return {before, after, w.args[0] - w.args[1], w.held[0] + 1};
  };
  std::vector<std::function<void(World&)>> const patterns{
      [](World& w) { w = World{}; },
      [](World& w) { w = World{}, w.args[1] = w.args[0]; },
      [](World& w) { w = World{}, w.held[0] = w.args[0]; },
      [](World& w) { w = World{}, w.args[1] = slice(w.args[0], 0, 0, 3); },
      [](World& w) { w = World{}, w.args[1] = expand(select(w.args[0], 0, 0), {3, 4}), w.args[1] = clone(w.args[1]); },
      [](World& w) { w = World{}, w.args[0] = slice(counted({5, 4}), 0, 0, 3), w.args[1] = slice(w.args[0], 0, 0, 3); },
      [](World& w) {
        Tensor const memory = counted({5, 4});
        w = World{}, w.args[0] = slice(memory, 0, 0, 3), w.args[1] = slice(memory, 0, 2, 5), w.held[0] = slice(memory, 0, 1, 4);
      },
  };
  for (std::size_t first = 0; first < patterns.size(); ++first)
    for (std::size_t second = 0; second < patterns.size(); ++second) {
      CAPTURE(first);
      CAPTURE(second);
      agree(body, [&](World& w, int call) { patterns[call % 2 ? second : first](w); }, {}, 4);
    }
}

TEST_CASE("effects of the host keep their place: each sees what came before it") {
  std::vector<double> seen;
  Tensor total = zeros({1});
  auto const f = compile([&](Tensor const& x) {
    total.add_(x);
    host_effect([&] { seen.push_back(total.item()); });
    total.mul_(2.0);
    host_effect([&] { seen.push_back(total.item()); });
    return total + 1;
  });
  for (int k = 0; k < 3; ++k) (void)f(ones({1}));
  CHECK(seen == std::vector<double>{1, 2, 3, 6, 7, 14});
  CHECK(describe(f.state()).breaks.size() == 2);
  CHECK(graphs(f) == 3);
}

TEST_CASE("outputs outlive their compiled function, and later calls leave them alone") {
  std::vector<Tensor> outputs;
  {
    auto const f = compile([](Tensor const& x) { return x * 2; });
    for (int k = 0; k < 4; ++k) outputs.push_back(f(full({2}, k)));
  }
  for (int k = 0; k < 4; ++k) CHECK(numbers(outputs[static_cast<std::size_t>(k)]) == std::vector<double>{2.0 * k, 2.0 * k});
}

TEST_CASE("a tensor that a call still owes is refused by another thread, in words") {
  std::string refused;
  auto const f = compile([&refused](Tensor const& x) {
    Tensor const y = x * 2;
    std::thread([&] { refused = caught([&] { (void)numbers(y); }); }).join();
    return y;
  });
  for (int k = 0; k < 2; ++k) {
    CHECK(numbers(f(ones({2}))) == std::vector<double>{2, 2});
    CHECK(refused == "a tensor f32[2] is read outside the compiled call that still has to compute it");
  }
}

namespace {
// Runs `act(thread, call)` on ten threads at once; how often it said that something was wrong.
int wrong_in_threads(std::function<bool(int, int)> const& act, int calls = 200) {
  std::atomic<int> wrong = 0;
  std::barrier start(10);
  std::vector<std::thread> threads;
  for (int t = 0; t < 10; ++t)
    threads.emplace_back([&, t] {
      start.arrive_and_wait();
      for (int call = 0; call < calls; ++call) wrong += !act(t, call);
    });
  for (auto& thread : threads) thread.join();
  return wrong;
}
}  // namespace

TEST_CASE("threads: ten of them on one compiled function, with sizes, breaks, writes and draws of their own") {
  auto const body = [](Tensor x, Tensor& into, double scale) {
    x = x * scale;
    if (sum(x) > 40) x = transpose(x - 1, 0, 1);
    into.add_(sum(x));
    graph_break();
    return x + rand(DimList(x.shape())) + into;
  };
  auto const fast = compile(body);
  CHECK(wrong_in_threads([&](int t, int call) {
          Tensor const x = full({2 + (call + t) % 3, 3}, 1.0 + call % 5);
          std::array<Tensor, 2> into{ones({}), ones({})}, out;
          for (std::size_t side = 0; side < 2; ++side) {
            manual_seed(static_cast<std::uint64_t>(t * 1000 + call));
            out[side] = side ? fast(x, into[side], 1.0 + call % 3) : body(x, into[side], 1.0 + call % 3);
          }
          return exactly(out[0]) == exactly(out[1]) && exactly(into[0]) == exactly(into[1]);
        }) == 0);
  auto const report = describe(fast.state());
  CHECK(report.calls == 2000);
  CHECK(report.breaks.size() == 2);
}

TEST_CASE("threads: gradients, grad modes and reports at the same time") {
  Tensor const w = counted({3, 2}, -2);
  auto const fast = compile([](Tensor const& x, Tensor const& weight) { return sum(tanh(matmul(x, weight))); });
  auto const step = [](auto const& f, Tensor const& x, Tensor const& weight) {
    Tensor const loss = f(x, weight);
    return std::vector{loss.detach(), gradients(loss, std::array{weight})[0]};
  };
  CHECK(wrong_in_threads(
            [&](int t, int call) {
              Tensor const x = counted({1 + (t + call) % 4, 3}, 0.1 * t), own = clone(w).detach().set_requires_grad();
              if (t % 5 == 4) return describe(fast.state()).calls >= 0 && !to_string(describe(fast.state())).empty();
              if (t % 5 == 3) {
                NoGrad const off;
                return exactly(fast(x, own)) == exactly(fast.function()(x, own));
              }
              return exactly(step(fast, x, own)) == exactly(step(fast.function(), x, own));
            },
            100) == 0);
  CHECK(describe(fast.state()).calls == 800);
}

TEST_CASE("threads: one pure function, with sizes and values of their own") {
  auto const fast = compile([](Tensor const& x, double scale) { return std::vector{x * scale + 1, select(x, 0, 0), x}; }, {.pure = true});
  CHECK(wrong_in_threads(
            [&](int t, int call) {
              Tensor const x = counted({2 + (t + call) % 3, 3}, t);
              auto const got = fast(x, 1.0 + call % 2), want = fast.function()(x, 1.0 + call % 2);
              return exactly(got) == exactly(want) && same_place(got[1], want[1]) && got[2].impl() == x.impl();
            },
            100) == 0);
}

TEST_CASE("threads: an exception on one leaves the others alone") {
  auto const fast = compile([](Tensor const& x, bool raise) {
    Tensor const y = x * 2;
    if (raise) throw std::runtime_error("given up");
    return y + 1;
  });
  CHECK(wrong_in_threads(
            [&](int t, int call) {
              bool const raise = (t + call) % 3 == 0;
              try {
                return numbers(fast(full({2}, t), raise)) == std::vector<double>(2, 2.0 * t + 1) && !raise;
              } catch (std::runtime_error const&) {
                return raise && Session::current() == nullptr;
              }
            },
            100) == 0);
  CHECK(graphs(fast) == 1);
}

TEST_CASE("threads: at the recompile limit old entries serve all of them, and every new state is counted") {
  auto const fast = compile(
      [](Tensor const& x) {
        Tensor const y = x * 2;
        graph_break();
        return y + 1;
      },
      {.dynamic = Dynamic::never, .recompile_limit = 2});
  CHECK(wrong_in_threads(
            [&](int t, int call) {
              int const n = 1 + (t + call) % 6;
              return numbers(fast(full({n}, t))) == std::vector<double>(static_cast<std::size_t>(n), 2.0 * t + 1);
            },
            60) == 0);
  auto const report = describe(fast.state());
  CHECK(report.calls == 600);
  CHECK(report.eager_calls > 0);
  CHECK(report.eager_calls < 600);
}
