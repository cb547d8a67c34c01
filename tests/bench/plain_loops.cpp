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
// Loss and gradient of 256 rows of 50,304 classes; the loss itself is not asked for, as in the case.
std::function<void()> cross_entropy() {
  constexpr std::int64_t n = 256, classes = 50304;
  return [x = drawn(n * classes, 1), t = Array(n * classes), most = Array(n), sum = Array(n)]() mutable {
    float const* in = x.data();
    float *y = t.data(), *top = most.data(), *total = sum.data();
    halves(n, [&](std::int64_t from, std::int64_t to) {
      each(from, to, [&](std::int64_t r) { top[r] = *std::max_element(in + r * classes, in + (r + 1) * classes); });
      each(from * classes, to * classes, [&](std::int64_t i) { y[i] = in[i] - top[i / classes]; });
      each(from * classes, to * classes, [&](std::int64_t i) { y[i] = std::exp(y[i]); });
      each(from, to, [&](std::int64_t r) { total[r] = std::accumulate(y + r * classes, y + (r + 1) * classes, 0.0f); });
      each(from * classes, to * classes, [&](std::int64_t i) { y[i] = y[i] / total[i / classes]; });
      each(from, to, [&](std::int64_t r) { y[r * classes + r * 97 % classes] -= 1; });
      each(from * classes, to * classes, [&](std::int64_t i) { y[i] = y[i] / n; });
    });
  };
}
// c[m, n] (+)= a b, with a's element (i, l) at a[i * a_row + l * a_column].
void product(std::int64_t m, std::int64_t n, std::int64_t k, float const* a, std::int64_t a_row, std::int64_t a_column, float const* b, float* c) {
  each(0, m, [&](std::int64_t i) {
    std::fill_n(c + i * n, n, 0.0f);
    each(0, k, [&](std::int64_t l) {
      float const factor = a[i * a_row + l * a_column];
      each(0, n, [&](std::int64_t j) { c[i * n + j] += factor * b[l * n + j]; });
    });
  });
}
// Causal attention of 4 heads of 512 tokens and 64 features: forward, and with `backward` its gradients.
template <bool backward>
std::function<void()> attention() {
  constexpr std::int64_t heads = 4, tokens = 512, features = 64, all = heads * tokens * features, square = heads * tokens * tokens;
  struct Memory {
    Array q = drawn(all, 1), k = drawn(all, 2), v = drawn(all, 3), g = drawn(all, 4), out = Array(all), dq = Array(all), dk = Array(all), dv = Array(all);
    Array kt = Array(all), vt = Array(all), p = Array(square), dp = Array(square);
  };
  return [memory = std::make_shared<Memory>()] {
    auto& at = *memory;
    halves(heads, [&](std::int64_t from, std::int64_t to) {
      each(from, to, [&](std::int64_t h) {
        std::int64_t const rows = h * tokens * features;
        float *p = at.p.data() + h * tokens * tokens, *dp = at.dp.data() + h * tokens * tokens, *kt = at.kt.data() + rows, *vt = at.vt.data() + rows;
        auto const turn = [&](float const* x, float* y) {
          each(0, tokens, [&](std::int64_t i) { each(0, features, [&](std::int64_t j) { y[j * tokens + i] = x[i * features + j]; }); });
        };
        turn(at.k.data() + rows, kt);
        product(tokens, tokens, features, at.q.data() + rows, features, 1, kt, p);
        each(0, tokens, [&](std::int64_t i) {
          float* const row = p + i * tokens;
          each(0, tokens, [&](std::int64_t j) { row[j] = j <= i ? row[j] * 0.125f : -std::numeric_limits<float>::infinity(); });
          float const top = *std::max_element(row, row + tokens);
          each(0, tokens, [&](std::int64_t j) { row[j] = std::exp(row[j] - top); });
          float const sum = std::accumulate(row, row + tokens, 0.0f);
          each(0, tokens, [&](std::int64_t j) { row[j] = row[j] / sum; });
        });
        product(tokens, features, tokens, p, tokens, 1, at.v.data() + rows, at.out.data() + rows);
        if (!backward) return;
        product(tokens, features, tokens, p, 1, tokens, at.g.data() + rows, at.dv.data() + rows);
        turn(at.v.data() + rows, vt);
        product(tokens, tokens, features, at.g.data() + rows, features, 1, vt, dp);
        each(0, tokens, [&](std::int64_t i) {
          float *const e = p + i * tokens, *const d = dp + i * tokens;
          float const mean = std::inner_product(e, e + tokens, d, 0.0f);
          each(0, tokens, [&](std::int64_t j) { d[j] = e[j] * (d[j] - mean) * 0.125f; });
        });
        product(tokens, features, tokens, dp, tokens, 1, at.k.data() + rows, at.dq.data() + rows);
        product(tokens, features, tokens, dp, 1, tokens, at.q.data() + rows, at.dk.data() + rows);
      });
    });
  };
}
}  // namespace

std::function<void()> bench::plain_loops(std::string_view name) {
  struct Row {
    std::string_view name;
    std::function<void()> (*make)();
  };
  static constexpr std::array rows{Row{"copy", copy},
                                   Row{"pointwise_gelu_chain", gelu_chain},
                                   Row{"softmax_4096", softmax},
                                   Row{"layernorm_fwd", layer_norm},
                                   Row{"adam_fp32", adam},
                                   Row{"cross_entropy_50k_fwd_bwd", cross_entropy},
                                   Row{"sdpa_causal_fwd", attention<false>},
                                   Row{"sdpa_causal_fwd_bwd", attention<true>}};
  auto const found = std::ranges::find(rows, name, &Row::name);
  return found == rows.end() ? std::function<void()>() : found->make();
}
