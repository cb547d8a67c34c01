// The same work as plain loops, one an operation over the whole array and nothing fused, on two halves of the rows: what a compiler makes of C++.
import std;
#include "bench.hpp"

namespace {
using Array = std::vector<float>;
constexpr std::int64_t elements = 1 << 22, columns = 4096, features = 768;
Array drawn(std::int64_t n, unsigned seed) {
  std::mt19937 random(seed);
  Array x(static_cast<std::size_t>(n));
  for (auto& value : x) value = std::uniform_real_distribution(0.0f, 1.0f)(random);
  return x;
}
// f(first, last) on both halves of [0, n), one of them on another thread.
template <class F>
void halves(std::int64_t n, F f) {
  std::thread other([&] { f(n / 2, n); });
  f(0, n / 2);
  other.join();
}
template <class F>
void each(std::int64_t from, std::int64_t to, F f) {
  for (std::int64_t i = from; i < to; ++i) f(i);
}

std::function<void()> copy() {
  return [x = drawn(elements, 1), y = Array(elements)]() mutable {
    halves(elements,
           [&](std::int64_t from, std::int64_t to) { std::memcpy(y.data() + from, x.data() + from, static_cast<std::size_t>(to - from) * sizeof(float)); });
  };
}
std::function<void()> gelu_chain() {
  return [a = drawn(elements, 1), b = drawn(elements, 2), c = drawn(elements, 3), t = Array(elements), u = Array(elements)]() mutable {
    float const *pa = a.data(), *pb = b.data(), *pc = c.data();
    float *x = t.data(), *y = u.data();
    halves(elements, [&](std::int64_t from, std::int64_t to) {
      each(from, to, [&](std::int64_t i) { x[i] = pa[i] * pb[i]; });
      each(from, to, [&](std::int64_t i) { x[i] = x[i] + pc[i]; });
      each(from, to, [&](std::int64_t i) { y[i] = x[i] * x[i] * x[i]; });
      each(from, to, [&](std::int64_t i) { y[i] = 0.79788456f * (x[i] + 0.044715f * y[i]); });
      each(from, to, [&](std::int64_t i) { y[i] = std::tanh(y[i]); });
      each(from, to, [&](std::int64_t i) { x[i] = 0.5f * x[i] * (1 + y[i]); });
      each(from, to, [&](std::int64_t i) { y[i] = x[i] * pc[i]; });
    });
  };
}
std::function<void()> softmax() {
  return [x = drawn(elements, 1), t = Array(elements), most = Array(elements / columns), sum = Array(elements / columns)]() mutable {
    float const* in = x.data();
    float *y = t.data(), *top = most.data(), *total = sum.data();
    halves(elements / columns, [&](std::int64_t from, std::int64_t to) {
      each(from, to, [&](std::int64_t r) { top[r] = *std::max_element(in + r * columns, in + (r + 1) * columns); });
      each(from * columns, to * columns, [&](std::int64_t i) { y[i] = in[i] - top[i / columns]; });
      each(from * columns, to * columns, [&](std::int64_t i) { y[i] = std::exp(y[i]); });
      each(from, to, [&](std::int64_t r) { total[r] = std::accumulate(y + r * columns, y + (r + 1) * columns, 0.0f); });
      each(from * columns, to * columns, [&](std::int64_t i) { y[i] = y[i] / total[i / columns]; });
    });
  };
}
std::function<void()> layer_norm() {
  return [x = drawn(elements, 1), g = drawn(features, 2), b = drawn(features, 3), t = Array(elements), mean = Array(elements / features),
          spread = Array(elements / features)]() mutable {
    float const *in = x.data(), *scale = g.data(), *shift = b.data();
    float *y = t.data(), *m = mean.data(), *s = spread.data();
    halves(elements / features, [&](std::int64_t from, std::int64_t to) {
      each(from, to, [&](std::int64_t r) { m[r] = std::accumulate(in + r * features, in + (r + 1) * features, 0.0f) / features; });
      each(from * features, to * features, [&](std::int64_t i) { y[i] = in[i] - m[i / features]; });
      each(from, to, [&](std::int64_t r) {
        s[r] = 1 / std::sqrt(std::inner_product(y + r * features, y + (r + 1) * features, y + r * features, 0.0f) / features + 1e-5f);
      });
      each(from * features, to * features, [&](std::int64_t i) { y[i] = y[i] * s[i / features]; });
      each(from * features, to * features, [&](std::int64_t i) { y[i] = y[i] * scale[i % features]; });
      each(from * features, to * features, [&](std::int64_t i) { y[i] = y[i] + shift[i % features]; });
    });
  };
}
std::function<void()> adam() {
  return [p = drawn(elements, 1), g = drawn(elements, 2), m = drawn(elements, 3), v = drawn(elements, 4), t = Array(elements)]() mutable {
    float *pp = p.data(), *pg = g.data(), *pm = m.data(), *pv = v.data(), *x = t.data();
    halves(elements, [&](std::int64_t from, std::int64_t to) {
      each(from, to, [&](std::int64_t i) { pm[i] = 0.9f * pm[i] + 0.1f * pg[i]; });
      each(from, to, [&](std::int64_t i) { pv[i] = 0.999f * pv[i]; });
      each(from, to, [&](std::int64_t i) { x[i] = 0.001f * pg[i] * pg[i]; });
      each(from, to, [&](std::int64_t i) { pv[i] = pv[i] + x[i]; });
      each(from, to, [&](std::int64_t i) { x[i] = std::sqrt(pv[i]) + 1e-8f; });
      each(from, to, [&](std::int64_t i) { x[i] = pm[i] / x[i]; });
      each(from, to, [&](std::int64_t i) { pp[i] = pp[i] * (1 - 1e-4f) - 1e-3f * x[i]; });
    });
  };
}
}  // namespace

std::function<void()> bench::plain_loops(std::string_view name) {
  struct Row {
    std::string_view name;
    std::function<void()> (*make)();
  };
  static constexpr std::array rows{Row{"copy", copy}, Row{"pointwise_gelu_chain", gelu_chain}, Row{"softmax_4096", softmax}, Row{"layernorm_fwd", layer_norm},
                                   Row{"adam_fp32", adam}};
  auto const found = std::ranges::find(rows, name, &Row::name);
  return found == rows.end() ? std::function<void()>() : found->make();
}
