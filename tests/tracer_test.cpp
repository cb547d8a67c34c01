#include <doctest/doctest.h>

import std;
import tenon.base;
import tenon.ir;
import tenon.guards;
import tenon.tracer;
#include "caught.hpp"

using namespace tenon;
using namespace tenon::tracer;
using support::caught;

namespace {
std::vector<double> numbers(Tensor const& x) { return x.to_vector<double>(); }
struct Model {
  Tensor weight, bias;
  std::string name = "linear";
  static void fields(auto& self, auto&& field) { field("weight", self.weight), field("bias", self.bias), field("name", self.name); }
};
}  // namespace

TEST_CASE("eager arithmetic, broadcasting, views and in-place writes") {
  Tensor const a = tensor({1, 2, 3}), b = tensor({10, 20, 30});
  CHECK(numbers(a + b) == std::vector<double>{11, 22, 33});
  CHECK(numbers(2 - a * 3) == std::vector<double>{-1, -4, -7});
  Tensor m = reshape(arange(0, 6), {2, 3});
  Tensor row = select(m, 0, 1);
  row.mul_(10);
  CHECK(numbers(m) == std::vector<double>{0, 1, 2, 30, 40, 50});
  CHECK(transpose(m, 0, 1).strides() == base::Shape{1, 3});
  CHECK(numbers(transpose(m, 0, 1)) == std::vector<double>{0, 30, 1, 40, 2, 50});
  CHECK(sum(m).item() == 123);
  CHECK(caught([&] { (void)(a + ones({2})); }) == "add: sizes 3 and 2 do not broadcast at dim 0 of (f32[3], f32[2])");
}

TEST_CASE("pools of two dims: values and gradients") {
  Tensor x = reshape(tensor({1, 5, 2, 0, 3, 4, 8, 6, 7, 9, -1, 1, 2, 0, 3, 5}), {1, 4, 4}).set_requires_grad();
  Tensor const most = max_pool2d(x, 2), mean = avg_pool2d(x, 2, 2, 1);
  CHECK(numbers(most) == std::vector<double>{5, 8, 9, 5});
  CHECK(numbers(mean) == std::vector<double>{0.25, 1.75, 0, 2.5, 5, 1.75, 0.5, 0.75, 1.25});
  sum(most * 2 + sum(mean)).backward();
  CHECK(numbers(x.grad()) == std::vector<double>{1, 3, 1, 1, 1, 1, 3, 1, 1, 3, 1, 1, 1, 1, 1, 3});
}

TEST_CASE("an undefined tensor is refused by name, where it is not optional") {
  Tensor const a = ones({2, 2}), none;
  CHECK(caught([&] { (void)linear(none, a); }) == "linear: operand 'input' is an undefined tensor");
  CHECK(caught([&] { (void)linear(a, none); }) == "linear: operand 'weight' is an undefined tensor");
  CHECK(caught([&] { (void)(a + none); }) == "add: operand 'other' is an undefined tensor");
  CHECK(caught([&] { (void)cat(std::array{a, none}); }) == "cat: operand 'tensors' is an undefined tensor");
  CHECK(numbers(linear(a, a, none)) == std::vector<double>{2, 2, 2, 2});
}

TEST_CASE("gradients on the tape") {
  Tensor x = tensor({1, 2, 3}).set_requires_grad();
  Tensor y = sum(x * x + 3 * x);
  y.backward();
  CHECK(numbers(x.grad()) == std::vector<double>{5, 7, 9});
  sum(x).backward();
  CHECK(numbers(x.grad()) == std::vector<double>{6, 8, 10});
  auto [loss, grads] = value_and_grad([](Tensor const& p) { return sum(exp(p)); })(tensor({0, 0}));
  CHECK(loss.item() == 2);
  CHECK(numbers(grads[0]) == std::vector<double>{1, 1});
}

TEST_CASE("second derivatives, through operands and through results") {
  Tensor x = tensor({1, 2, 3}).set_requires_grad();
  auto const twice = [&](auto f) {
    Tensor const slope = gradients(sum(f(x)), std::array{x}, {}, {.create_graph = true})[0];
    return numbers(gradients(sum(slope), std::array{x})[0]);
  };
  CHECK(twice([](Tensor const& a) { return a * a * a; }) == std::vector<double>{6, 12, 18});
  CHECK(twice([](Tensor const& a) { return exp(a); }) == numbers(exp(x)));
  CHECK(twice([](Tensor const& a) { return (a * 2 + 1) * (a * 2 + 1); }) == std::vector<double>{8, 8, 8});
}

TEST_CASE("a compiled function is captured once and replayed") {
  auto f = compile([](Tensor const& x, Tensor const& w) { return relu(matmul(x, w) + 1); });
  Tensor const x = randn({4, 3}), w = randn({3, 2});
  Tensor const expected = relu(matmul(x, w) + 1);
  for (int k = 0; k < 3; ++k) CHECK(numbers(f(x, w)) == numbers(expected));
  auto const report = describe(f.state());
  CHECK(report.graphs == 1);
  CHECK(report.recorded_ops == 3);
  CHECK(report.replayed_ops == 6);
}

TEST_CASE("the ragged batch recompiles once, with a symbol") {
  auto f = compile([](Tensor const& x) { return sum(relu(x * 2), {1}); });
  for (int n : {4, 4, 3, 5, 6}) {
    Tensor const x = randn({n, 3});
    CHECK(numbers(f(x)) == numbers(sum(relu(x * 2), {1})));
  }
  auto const report = describe(f.state());
  CHECK(report.graphs == 2);
}

TEST_CASE("a fact on sizes names the line of the user that asked for it") {
  auto const fast = compile([](Tensor const& x, Tensor const& y) { return x + y; });
  for (int n : {3, 5}) (void)fast(ones({n, 2}), ones({n, 2}));
  auto const guards = describe(fast.state()).parts.at(1).guards;
  auto const fact = std::ranges::find(guards, "s0 == s1", &Guard::text);
  REQUIRE(fact != guards.end());
  CHECK(fact->place.starts_with("tracer_test.cpp:"));
}

TEST_CASE("breaks") {
  auto f = compile([](Tensor const& x) {
    Tensor y = x + 1;
    if (sum(y) > 0)
      y = y * 2;
    else
      y = y - 1;
    return y * y.size(0);
  });
  for (double s : {1.0, -5.0, 2.0, -7.0}) {
    Tensor const x = full({3}, s);
    double const e = s + 1 > 0 ? (s + 1) * 2 * 3 : s * 3;
    CHECK(numbers(f(x)) == std::vector<double>{e, e, e});
  }
  auto const report = describe(f.state());
  CHECK(report.graphs == 3);
  CHECK(report.breaks.size() == 1);
}

TEST_CASE("a training step with backward and a write inside") {
  auto step = [](Tensor& w, Tensor const& x) {
    Tensor loss = mean((matmul(x, w)) * (matmul(x, w)));
    loss.backward();
    NoGrad const off;
    w.add_(w.grad(), -0.1);
    w.set_grad({});
    return loss;
  };
  manual_seed(1);
  Tensor const x = randn({8, 3});
  Tensor w1 = randn({3, 2}).set_requires_grad(), w2 = clone(w1).detach().set_requires_grad();
  auto fast = compile(step);
  for (int k = 0; k < 5; ++k) {
    Tensor const a = step(w1, x), b = fast(w2, x);
    CHECK(numbers(a) == numbers(b));
    CHECK(numbers(w1) == numbers(w2));
  }
  CHECK(describe(fast.state()).graphs == 1);
}

TEST_CASE("a float that decides more than elements stays a constant: one graph each") {
  auto f = compile([](Tensor const& x, double p) { return dropout(x, p); });
  Tensor const x = ones({4});
  for (double p : {0.25, 0.5, 0.75}) (void)f(x, p);
  CHECK(describe(f.state()).graphs == 3);
}

TEST_CASE("a history of 200,000 calls is taken down without recursion") {
  Tensor x = tensor({1}).set_requires_grad(), y = x;
  for (int k = 0; k < 200000; ++k) y = y + 1;
  sum(y).backward();
  CHECK(x.grad().item() == 1);
}

TEST_CASE("a history that several threads made is walked in order, and may end on another one") {
  Tensor const x = tensor({1.5, -2}).set_requires_grad();
  Tensor twice, y;
  std::thread([&] {
    Tensor far = x;
    for (int k = 0; k < 1000; ++k) far = far + 1;  // this thread has made many calls, the next one none
    twice = x * 2;
  }).join();
  std::thread([&] { y = (twice + 1) * (twice * 3); }).join();
  CHECK(numbers(gradients(y, std::array{twice}, ones({2}))[0]) == std::vector<double>{21, -21});  // 6 t + 3 at t = 3, -4
  y.backward(ones({2}));
  CHECK(numbers(x.grad()) == std::vector<double>{42, -42});  // 24 x + 6
  std::thread([last = std::move(y), before = std::move(twice)] {}).join();
}

TEST_CASE("what is kept of a call for the next one holds nothing of it") {
  Tensor const x = tensor({1, 2}).set_requires_grad();
  for (int parts : {7, 1, 2, 9, 3}) {  // more operands than a node has room for, and fewer
    std::vector<Tensor> list;
    for (int k = 0; k < parts; ++k) list.push_back(k % 2 ? x * (k + 1) : x.detach());
    list.push_back(x + 1);
    int const memory = x.impl()->storage.use_count(), holders = x.ref().use_count();
    {
      Tensor const all = cat(list);
      double factor = 1;
      for (int k = 1; k < parts; k += 2) factor += k + 1;
      CHECK(numbers(gradients(sum(all), std::array{x})[0]) == std::vector<double>{factor, factor});
    }
    CHECK(x.impl()->storage.use_count() == memory);
    CHECK(x.ref().use_count() == holders);
  }
}

TEST_CASE("errors in a body leave what eager would leave") {
  auto body = [](Tensor& x, bool raise) {
    x.mul_(2.0);
    Tensor const y = x + 1;
    if (raise) throw std::runtime_error("no more");
    return y;
  };
  auto f = compile(body);
  Tensor x = ones({2});
  for (bool raise : {false, true, true, false}) {
    Tensor const before = clone(x);
    try {
      Tensor const y = f(x, raise);
      CHECK_FALSE(raise);
      CHECK(numbers(y) == numbers(before * 2 + 1));
    } catch (std::runtime_error const&) {
      CHECK(raise);
    }
    CHECK(numbers(x) == numbers(before * 2));
  }
}

TEST_CASE("fullgraph turns a break into an error that shows the line") {
  auto f = compile(
      [](Tensor const& x) {
        if (sum(x) > 0) return x * 2;
        return x;
      },
      {.fullgraph = true, .name = "branchy"});
  auto const text = caught([&] { (void)f(ones({2})); });
  CHECK(text.starts_with("branchy: fullgraph: a tensor is used as a condition of the host at tracer_test.cpp:"));
  CHECK(text.find("if (sum(x) > 0) return x * 2;") != std::string::npos);
  CHECK(text.find("hint: ") != std::string::npos);
}

TEST_CASE("structs with fields are arguments, guarded by path") {
  Model model{randn({3, 2}), zeros({2})};
  auto f = compile([](Model const& m, std::vector<Tensor> const& xs) { return matmul(xs[0], m.weight) + m.bias; });
  Tensor const x = randn({4, 3});
  CHECK(numbers(f(model, std::vector{x})) == numbers(matmul(x, model.weight) + model.bias));
  model.weight = randn({3, 5}), model.bias = zeros({5});
  CHECK(numbers(f(model, std::vector{x})) == numbers(matmul(x, model.weight) + model.bias));
  auto const report = describe(f.state());
  REQUIRE(report.recompiles.size() == 1);
  CHECK(report.recompiles[0].reason.text == "tensor 'args[0].weight' size mismatch at dim 1: expected 2, actual 5");
}

TEST_CASE("a step with a bias and a loss over ragged batches is captured twice") {
  manual_seed(2);
  Tensor w = randn({3, 5}).set_requires_grad(), b = randn({3}).set_requires_grad();
  auto const step = [&](Tensor const& x, Tensor const& y) {
    auto const loss = cross_entropy(linear(x, w, b), y);
    std::vector<Tensor> results = gradients(loss, std::array{w, b});
    results.push_back(loss.detach());
    return results;
  };
  auto fast = compile(step);
  for (int n : {8, 8, 5, 7, 8, 3}) {
    Tensor const x = randn({n, 5}), y = randint(0, 3, {n});
    auto const expected = step(x, y), actual = fast(x, y);
    for (std::size_t k = 0; k < expected.size(); ++k) CHECK(numbers(actual[k]) == numbers(expected[k]));
  }
  auto const report = describe(fast.state());
  CHECK(report.graphs == 2);
  CHECK(report.recompiles.at(0).reason.text == "tensor 'args[0]' size mismatch at dim 0: expected 8, actual 5");
}

TEST_CASE("a stream that differs inside backward keeps the grad mode that it began under") {
  double factor = 1;
  auto fast = compile([&](Tensor const& x) {
    Tensor const w = ones({2}).set_requires_grad();
    auto const slope = gradients(sum(w * x), std::array{w})[0];
    NoGrad const off;
    return slope * factor;
  });
  for (double const f : {1.0, 2.0, 3.0, 4.0}) {
    factor = f;
    CHECK(numbers(fast(ones({2}))) == std::vector<double>{f, f});
  }
  CHECK(describe(fast.state()).graphs == 2);
  CHECK(describe(fast.state()).parts[1].guards[0].text == "grad mode is on");
}

TEST_CASE("a body may let its arguments go before a break") {
  auto const body = [](std::vector<Tensor>& list, Tensor& x) {
    Tensor y = list[0] + x;
    list.clear();
    x = y * 2.0;
    double const seen = y.to_vector<double>()[0];
    return x * seen;
  };
  auto const fast = compile(body);
  for (int call = 0; call < 4; ++call) {
    std::array<std::vector<double>, 2> results;
    for (int side = 0; side < 2; ++side) {
      std::vector<Tensor> list{full({3}, 1.0 + call)};
      Tensor x = ones({3});
      results[static_cast<std::size_t>(side)] = (side ? fast(list, x) : body(list, x)).to_vector<double>();
    }
    CHECK(results[0] == results[1]);
  }
}

TEST_CASE("a proxy that is handed out again is a tensor of this call alone") {
  std::vector<Tensor> kept;
  auto const body = [&](Tensor const& x, bool keep) {
    Tensor const y = x * 2.0, turned = transpose(y, 0, 1);
    if (keep) kept.push_back(turned);
    return turned + 1.0;
  };
  auto const fast = compile([&](Tensor const& x, int keep) { return body(x, keep != 0); });
  for (int call = 0; call < 12; ++call) {
    auto const wide = call % 3 == 1;
    Tensor x = full({2, wide ? 4 : 3}, 1.0 + call);
    if (call % 4 == 2) x = transpose(full({wide ? 4 : 3, 2}, 1.0 + call), 0, 1);
    Tensor const got = fast(x, call % 5 == 3 ? 1 : 0);
    auto const size = kept.size();
    Tensor const want = body(x, false);
    CHECK(kept.size() == size);
    CHECK(got.shape() == want.shape());
    CHECK(got.to_vector<double>() == want.to_vector<double>());
  }
  REQUIRE(kept.size() == 2);
  CHECK(kept[0].to_vector<double>() == std::vector<double>(6, 8.0));
  CHECK(kept[1].to_vector<double>() == std::vector<double>(6, 18.0));
}

TEST_CASE("one compiled function is called from several threads") {
  auto const body = [](Tensor const& x) { return sum(transpose(x * 2.0, 0, 1) + 1.0); };
  auto const fast = compile(body);
  std::atomic<int> wrong = 0;
  {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        for (int call = 0; call < 100; ++call) {
          Tensor const x = full({2 + (call + t) % 3, 3}, 1.0 * call + t);
          wrong += fast(x).to_vector<double>() != body(x).to_vector<double>();
        }
      });
    for (auto& thread : threads) thread.join();
  }
  CHECK(wrong == 0);
}
