#include <doctest/doctest.h>

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "kernels.h"
#include "kernels_test.h"

namespace {

// The state of one AdamW problem, f32 as the kernels see it.
struct State {
  std::vector<float> p, g, m, v;
};

struct Settings {
  double lr, beta1, beta2, eps, weight_decay;
  int64_t step;
};

State random_state(int64_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  State state;
  for (int64_t i = 0; i < n; ++i) {
    state.p.push_back(normal(random));
    state.g.push_back(normal(random) * 0.1f);
    state.m.push_back(normal(random) * 0.05f);
    state.v.push_back(std::abs(normal(random)) * 0.01f);
  }
  return state;
}

int step_twin(State& s, Settings const& a) {
  return tenon_adamw_f32_cpu(s.p.data(), s.g.data(), s.m.data(), s.v.data(), static_cast<int64_t>(s.p.size()), a.lr, a.beta1, a.beta2, a.eps, a.weight_decay,
                             a.step, nullptr);
}

Settings const settings[] = {
    {1e-3, 0.9, 0.999, 1e-8, 0.01, 1},
    {1e-2, 0.9, 0.95, 1e-8, 0.0, 10},
    {3e-4, 0.0, 0.99, 1e-6, 0.1, 1000},
};

}  // namespace

TEST_CASE("adamw: the twin agrees with the formula in f64") {
  for (Settings const& a : settings) {
    State s = random_state(1000, 7);
    State const before = s;
    REQUIRE(step_twin(s, a) == tenon_ok);
    for (std::size_t i = 0; i < s.p.size(); ++i) {
      double const g = before.g[i];
      double const m = a.beta1 * before.m[i] + (1 - a.beta1) * g;
      double const v = a.beta2 * before.v[i] + (1 - a.beta2) * g * g;
      double const step_size = a.lr / (1 - std::pow(a.beta1, a.step));
      double const update = step_size * m / (std::sqrt(v / (1 - std::pow(a.beta2, a.step))) + a.eps);
      double const p = before.p[i] * (1 - a.lr * a.weight_decay) - update;
      // Each of m's and v's two products, its sum and its rounded weights is off by at most 2^-24 of its magnitude.
      double const m_scale = std::abs(a.beta1 * before.m[i]) + std::abs((1 - a.beta1) * g);
      double const ulp = 0x1p-24;
      CHECK(std::abs(s.m[i] - m) <= 4 * ulp * m_scale);
      CHECK(std::abs(s.v[i] - v) <= 6 * ulp * v);
      double const update_error = std::abs(update) * 16 * ulp + step_size * 4 * ulp * m_scale / std::sqrt(v);
      CHECK(std::abs(s.p[i] - p) <= 4 * ulp * (std::abs(before.p[i]) + std::abs(update)) + update_error);
    }
  }
}

TEST_CASE("adamw: bad arguments are refused and nothing is written") {
  State s = random_state(4, 1);
  State const before = s;
  for (auto* launch : {tenon_adamw_f32_cpu, tenon_adamw_f32}) {
    CHECK(launch(s.p.data(), s.g.data(), s.m.data(), s.v.data(), -1, 1e-3, 0.9, 0.999, 1e-8, 0, 1, nullptr) == tenon_bad_argument);
    CHECK(launch(s.p.data(), s.g.data(), s.m.data(), s.v.data(), 4, 1e-3, 0.9, 0.999, 1e-8, 0, 0, nullptr) == tenon_bad_argument);
    CHECK(launch(nullptr, s.g.data(), s.m.data(), s.v.data(), 4, 1e-3, 0.9, 0.999, 1e-8, 0, 1, nullptr) == tenon_bad_argument);
  }
  CHECK(s.p == before.p);
  CHECK(s.m == before.m);
  CHECK(s.v == before.v);
}

TEST_CASE("adamw: the kernel gives the twin's bits") {
  for (int64_t n : {int64_t{1}, int64_t{1000}, int64_t{20'000'003}}) {
    for (Settings const& a : settings) {
      State device = random_state(n, 11), host = device;
      int const status = on_device({&device.p, &device.g, &device.m, &device.v}, [&](std::vector<float*> const& at) {
        return tenon_adamw_f32(at[0], at[1], at[2], at[3], n, a.lr, a.beta1, a.beta2, a.eps, a.weight_decay, a.step, nullptr);
      });
      if (status == tenon_no_device) {
        std::puts("SKIP: adamw, the kernel gives the twin's bits: no CUDA device, or a build without CUDA");
        return;
      }
      REQUIRE(status == tenon_ok);
      REQUIRE(step_twin(host, a) == tenon_ok);
      CHECK(device.p == host.p);
      CHECK(device.m == host.m);
      CHECK(device.v == host.v);
    }
  }
}
