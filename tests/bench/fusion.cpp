// The work of the peers' table through the public API, as a user compiles it.
#include <stdlib.h>
import std;
import tenon;
#include "bench.hpp"
using namespace tenon;

namespace {
using Run = std::function<void()>;
// Sizes as scripts/peer/serve.py has them; a small run divides the rows by 64, to try the cases where the reference kernels run.
bool small() { return std::getenv("TENON_BENCH_SMALL") != nullptr; }
std::int64_t rows(std::int64_t full) { return small() ? std::max<std::int64_t>(full / 64, 2) : full; }
constexpr std::int64_t elements = 1 << 22, columns = 4096, features = 768, classes = 50304;

template <class F>
auto compiled(F f, Mode mode = Mode::normal) {
  return compile(std::move(f), {.mode = mode});
}
Tensor leaf(DimList const& sizes) {
  auto x = randn(sizes);
  x.set_requires_grad();
  return x;
}

struct Case {
  std::string_view name;
  Run (*make)();
  double bytes = 0, flops = 0;  // of one call at full size
  int turns = 1;                // calls that one run makes
};

Run gelu_chain() {
  auto const f = compiled([](Tensor const& a, Tensor const& b, Tensor const& c) { return gelu(a * b + c, Gelu::tanh) * c; });
  return [f, a = randn({rows(elements)}), b = randn({rows(elements)}), c = randn({rows(elements)})] { (void)f(a, b, c); };
}
Run softmax_rows() {
  auto const f = compiled([](Tensor const& x) { return softmax(x, -1); });
  return [f, x = randn({rows(elements / columns), columns})] { (void)f(x); };
}
Run norm_forward() {
  auto const f = compiled([](Tensor const& x, Tensor const& g, Tensor const& b) { return layer_norm(x, {features}, g, b); });
  return [f, x = randn({rows(elements / features), features}), g = randn({features}), b = randn({features})] { (void)f(x, g, b); };
}
Run norm_both() {
  auto const f = compiled(
      [](Tensor const& x, Tensor const& g, Tensor const& b, Tensor const& dy) { return gradients(layer_norm(x, {features}, g, b), std::array{x, g, b}, dy); });
  return [f, x = leaf({rows(elements / features), features}), g = leaf({features}), b = leaf({features}), dy = randn({rows(elements / features), features})] {
    (void)f(x, g, b, dy);
  };
}
Run loss_both() {
  auto const f = compiled([](Tensor const& x, Tensor const& target) { return gradients(cross_entropy(x, target), std::array{x})[0]; });
  return [f, x = leaf({rows(256), classes}), target = randint(0, classes, {rows(256)})] { (void)f(x, target); };
}
Run adam_update() {
  auto const f = compiled([](Tensor& p, Tensor const& g, Tensor& m, Tensor& v) {
    m.copy_(0.9 * m + 0.1 * g);
    v.copy_(0.999 * v + 0.001 * g * g);
    p.copy_(p * (1 - 1e-4) - 1e-3 * m / (sqrt(v) + 1e-8));
  });
  return [f, p = rand({rows(elements)}), g = rand({rows(elements)}), m = rand({rows(elements)}), v = rand({rows(elements)})]() mutable { f(p, g, m, v); };
}
template <int n>
Run product() {
  auto const f = compiled([](Tensor const& a, Tensor const& b) { return matmul(a, b); }, Mode::max_autotune);  // who multiplies is measured
  return [f, a = randn({rows(n), n}), b = randn({n, n})] { (void)f(a, b); };
}
template <int n>
Run product_gelu() {
  auto const f = compiled([](Tensor const& a, Tensor const& w, Tensor const& bias) { return gelu(linear(a, w, bias), Gelu::tanh); }, Mode::max_autotune);
  return [f, a = randn({rows(n), n}), w = randn({n, n}), bias = randn({n})] { (void)f(a, w, bias); };
}
// B batch, H heads, T tokens, D features
DimList attention_sizes() { return {1, 4, small() ? 32 : 512, 64}; }
Run attention_forward() {
  auto const f = compiled([](Tensor const& q, Tensor const& k, Tensor const& v) { return scaled_dot_product_attention(q, k, v, {.causal = true}); });
  return [f, q = randn(attention_sizes()), k = randn(attention_sizes()), v = randn(attention_sizes())] { (void)f(q, k, v); };
}
Run attention_both() {
  auto const f = compiled([](Tensor const& q, Tensor const& k, Tensor const& v, Tensor const& d) {
    return gradients(scaled_dot_product_attention(q, k, v, {.causal = true}), std::array{q, k, v}, d);
  });
  return [f, q = leaf(attention_sizes()), k = leaf(attention_sizes()), v = leaf(attention_sizes()), d = randn(attention_sizes())] { (void)f(q, k, v, d); };
}

// The whole training step is one graph: forward, backward, AdamW.
struct Training {
  std::int64_t tokens = small() ? 8 : 128, vocabulary = small() ? 64 : 8192;
  nn::Gpt model{{.vocabulary = vocabulary, .context = tokens, .layers = 2, .heads = 4, .features = small() ? 16 : 256}};
  nn::Adam optimizer;
  Tensor indices = randint(0, vocabulary, {1, tokens}), targets = randint(0, vocabulary, {tokens});
  Training() : optimizer(fresh()) {}
  nn::Adam fresh() { return {learnable(model), {.lr = 6e-4, .beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1, .decoupled = true}}; }
  Tensor step() {
    optimizer.zero_grad();
    Tensor const loss = cross_entropy(reshape(model(indices), {tokens, vocabulary}), targets);
    loss.backward();
    optimizer.step();
    return loss;
  }
  static std::vector<Tensor> learnable(nn::Gpt& gpt) {
    auto list = nn::parameters(gpt);
    for (auto& parameter : list) parameter.set_requires_grad();
    return list;
  }
};
Run training() {
  auto const state = std::make_shared<Training>();
  return [state, f = compiled([state] { return state->step(); })] { (void)f(); };
}
// A fresh capture each time: the first call, with its run, is the price. From the cache or without one.
template <bool cached>
Run compile_training() {
  auto const folder = std::filesystem::temp_directory_path() / "tenon_bench_cache";
  return [state = std::make_shared<Training>(), where = cached ? folder.string() : "none"] {
    ::setenv("TENON_CACHE", where.c_str(), 1);
    state->optimizer = state->fresh();  // the numbers of the first step are part of the graph
    (void)compiled([state] { return state->step(); })();
  };
}
template <int inputs>
Run overhead() {
  std::vector<Tensor> all;
  for (int k = 0; k < inputs; ++k) all.push_back(randn({4}));
  auto const f = compiled([](std::vector<Tensor> const& xs) { return xs[0] + 1.0; });
  return [f, all] {
    for (int turn = 0; turn < 1000; ++turn) (void)f(all);
  };
}
// A graph of `nodes` calls that no rule shortens, as a chain with side branches.
template <int nodes>
Run compile_nodes() {
  return [] {
    ::setenv("TENON_CACHE", "none", 1);  // a case before may have named a folder
    auto const f = compiled([](Tensor const& x) {
      Tensor y = x, side = x;
      for (int k = 0; k < nodes / 2; ++k) y = sin(y), side = side * y;
      return y + side;
    });
    (void)f(randn({4}));
  };
}

constexpr double memory = 4.0 * elements;
constexpr Case cases[] = {
    {"pointwise_gelu_chain", gelu_chain, 4 * memory},
    {"softmax_4096", softmax_rows, 2 * memory},
    {"layernorm_fwd", norm_forward, 2 * memory},
    {"layernorm_fwd_bwd", norm_both, 5 * memory},
    {"cross_entropy_50k_fwd_bwd", loss_both, 3.0 * 4 * 256 * classes},
    {"adam_fp32", adam_update, 7 * memory},
    {"matmul_512", product<512>, 0, 2.0 * 512 * 512 * 512},
    {"matmul_1024", product<1024>, 0, 2.0 * 1024 * 1024 * 1024},
    {"matmul_bias_gelu_512", product_gelu<512>, 0, 2.0 * 512 * 512 * 512},
    {"matmul_bias_gelu_1024", product_gelu<1024>, 0, 2.0 * 1024 * 1024 * 1024},
    {"sdpa_causal_fwd", attention_forward, 0, 2.0 * 4 * 512 * 512 * 64},
    {"sdpa_causal_fwd_bwd", attention_both, 0, 7.0 * 4 * 512 * 512 * 64},
    {"gpt2_train_B1_T128", training, 0, 2.9e9},
    {"call_overhead_1_input", overhead<1>, 0, 0, 1000},
    {"call_overhead_100_inputs", overhead<100>, 0, 0, 1000},
    {"compile_gpt_cold", compile_training<false>},
    {"compile_gpt_cached", compile_training<true>},
    {"compile_nodes_1000", compile_nodes<1000>},
    {"compile_nodes_10000", compile_nodes<10000>},
};

// Milliseconds by the clock, of all threads: the median of single runs within a budget, after one that warms up.
double median_ms(Run const& call, double budget_ms = 400) {
  using Clock = std::chrono::steady_clock;
  auto const timed = [&] {
    auto const start = Clock::now();
    call();
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  };
  (void)timed();
  std::vector<double> times;
  double spent = 0;
  while (times.size() < 5 || (times.size() < 40 && spent < budget_ms)) times.push_back(timed()), spent += times.back();
  std::ranges::sort(times);
  return times[times.size() / 2];
}
}  // namespace

std::vector<bench::Figure> bench::fusion_figures() {
  std::vector<Figure> list;
  for (auto const& one : cases) {
    double const ms = median_ms(one.make());
    if (one.turns > 1)
      list.push_back({std::string(one.name), ms / one.turns * 1e3, "us"});
    else
      list.push_back({std::string(one.name), ms, "ms"});
    if (!small() && one.bytes > 0) list.push_back({std::format("{} rate", one.name), one.bytes / ms / 1e6, "GB/s"});
    if (!small() && one.flops > 0) list.push_back({std::format("{} rate", one.name), one.flops / ms / 1e6, "GFLOP/s"});
  }
  return list;
}

std::vector<std::string_view> bench::fusion_cases() {
  std::vector<std::string_view> names{"copy"};
  for (auto const& one : cases) names.push_back(one.name);
  return names;
}
std::optional<bench::Round> bench::fusion_round(std::string_view name) {
  struct Made {
    Run ours, plain;
  };
  static std::map<std::string, Made, std::less<>> made;
  auto const known = std::ranges::find(cases, name, &Case::name);
  if (known == std::end(cases) && name != "copy") return std::nullopt;
  auto const [at, fresh] = made.try_emplace(std::string(name));
  if (fresh) at->second = {known == std::end(cases) ? Run() : known->make(), plain_loops(name)};
  Round round;
  if (at->second.ours) round = {.ms = median_ms(at->second.ours), .bytes = small() ? 0 : known->bytes, .flops = small() ? 0 : known->flops};
  if (at->second.plain) round.plain_ms = median_ms(at->second.plain);
  return round;
}
