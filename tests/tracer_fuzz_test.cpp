// Random bodies, eager against compiled. A body is a list of steps over a growing list of tensors; both worlds run the same steps on equal tensors.
// After each call every value, shape, stride and alias is compared; then every output is written to, and all is compared once more, which
// finds memory that is shared where it should not be, or not shared where it should.
#include <doctest/doctest.h>

import std;
import tenon.base;
import tenon.ir;
import tenon.tracer;

using namespace tenon;
using namespace tenon::tracer;

namespace {
struct Rng {
  std::uint64_t seed, at = 0;
  int below(int n) { return static_cast<int>(base::uniform(seed, 7, at++) * n); }
  bool chance(double p) { return base::uniform(seed, 7, at++) < p; }
};

enum class Step {
  binary,
  scalar,
  unary,
  view,
  write_scalar,
  write_tensor,
  write_view,
  explicit_break,
  condition,
  item,
  loop,
  fail,
  keep,
  captured,
  write_captured,
  reassign,
  random,
  reduce,
  host_read,
  cast,
  join,
  product,
  widen,
  picked,
  open_size,
  silent,
  nested,
  swap,
  count
};

struct Instruction {
  Step step;
  int a, b, c;
};
struct Program {
  std::vector<Instruction> steps;
  int outputs;
};

// What lives outside a call: captured tensors and handles that escaped.
struct World {
  std::vector<Tensor> args;
  Tensor captured, kept;
};
struct Host {  // numbers that change between calls
  double scale;
  std::int64_t cut;
  bool raises;
};

Program random_program(Rng& rng, bool gradients) {
  Program program;
  int const length = 2 + rng.below(14);
  for (int k = 0; k < length; ++k) {
    auto step = static_cast<Step>(rng.below(static_cast<int>(Step::count)));
    if (gradients && step == Step::write_captured) step = Step::binary;
    program.steps.push_back({step, rng.below(1000), rng.below(1000), rng.below(1000)});
  }
  program.outputs = 1 + rng.below(4);
  return program;
}

bool same_shape(Tensor const& a, Tensor const& b) { return a.shape() == b.shape(); }

Tensor viewed(Tensor const& x, int which, std::int64_t cut) {
  switch (which % 5) {
    case 0:
      return x.rank() >= 2 ? transpose(x, 0, 1) : x;
    case 1:
      return x.rank() >= 1 ? slice(x, 0, 0, std::min(cut, x.size(0))) : x;
    case 2:
      return reshape(x, {-1});
    case 3:
      return x.rank() >= 1 && x.size(0) > 0 ? select(x, 0, 0) : x;
    default:
      return unsqueeze(x, 0);
  }
}

DimList widened(Tensor const& x) {
  DimList sizes{2};
  for (int d = 0; d < x.rank(); ++d) sizes.push_back(x.dim(d));
  return sizes;
}
// Eager code refuses to write leaves and views that need a gradient, so bodies do not try.
bool may_write(Tensor const& x) { return !grad_enabled() || !x.requires_grad() || !(x.impl()->requires_grad || x.impl()->view); }

std::vector<Tensor> run(Program const& program, World& world, Host const& host) {
  static auto const inner = compile([](Tensor const& x) { return relu(x) + 0.25; });
  std::vector<Tensor> t = world.args;
  auto const pick = [&](int k) -> Tensor& { return t[static_cast<std::size_t>(k) % t.size()]; };
  for (auto const& [step, a, b, c] : program.steps) {
    Tensor x = pick(a), y = pick(b);
    switch (step) {
      case Step::binary:
        t.push_back(same_shape(x, y) ? (c % 2 ? x + y : x * y) : x + 0.5);
        break;
      case Step::scalar:
        t.push_back(x * host.scale);
        break;
      case Step::unary:
        t.push_back(c % 2 ? relu(x) : tanh(x));
        break;
      case Step::view:
        t.push_back(viewed(x, c, host.cut));
        break;
      case Step::write_scalar:
        if (may_write(x)) x.mul_(c % 2 ? 0.5 : host.scale);
        break;
      case Step::write_tensor:
        if (same_shape(x, y) && may_write(x)) x.copy_(y);
        break;
      case Step::write_view: {
        Tensor v = viewed(x, c, host.cut);
        if (may_write(v)) v.add_(full({}, 1));
        t.push_back(v);
        break;
      }
      case Step::explicit_break:
        graph_break();
        break;
      case Step::condition:
        if (sum(x) > 0.1)
          t.push_back(x - 1);
        else
          t.push_back(x * 2);
        break;
      case Step::item:
        t.push_back(y * tanh(sum(x)).item());
        break;
      case Step::loop: {
        Tensor sum_of = x;
        for (int k = 0; k < c % 4; ++k) {
          sum_of = sum_of + 1;
          if (b % 3 == 0) graph_break();
        }
        t.push_back(sum_of);
        break;
      }
      case Step::fail:
        if (host.raises && c % 3 == 0) throw std::runtime_error("the body gives up");
        break;
      case Step::keep:
        world.kept = x;
        break;
      case Step::captured:
        t.push_back(c % 2 ? world.captured + 1 : world.kept.defined() ? world.kept * 2 : world.captured);
        break;
      case Step::write_captured:
        world.captured.add_(full({}, 1));
        break;
      case Step::reassign:
        world.captured = c % 2 ? clone(world.captured) : world.captured + 1;
        break;
      case Step::random:
        t.push_back(x + rand(DimList(x.shape())));
        break;
      case Step::reduce:
        t.push_back(x.rank() >= 1 ? sum(x, {0}) : x + 1);
        break;
      case Step::host_read:
        t.push_back(x * (x.to_vector<double>().empty() ? 1.0 : 0.25));
        break;
      case Step::cast:
        t.push_back(c % 3 == 0 ? to(x, base::DType::f64) : to(to(x, base::DType::bf16), base::DType::f32));
        break;
      case Step::join:
        if (x.rank() > 0 && same_shape(x, y)) t.push_back(cat(std::array{x, y}, 0));
        break;
      case Step::product:
        if (x.rank() == 2 && x.dtype() == base::DType::f32) t.push_back(matmul(x, transpose(x, 0, 1)) * 0.125);
        break;
      case Step::widen:
        t.push_back(expand(unsqueeze(x, 0), widened(x)));
        break;
      case Step::picked:
        t.push_back(x + to(sum(masked_select(x, x > 0.1)), x.dtype()));
        break;
      case Step::open_size:
        if (x.rank() > 0) t.push_back(reshape(x, {x.dim(0), -1}) * x.dim(0));
        break;
      case Step::silent: {
        NoGrad const off;
        t.push_back(x * 2 + 1);
        break;
      }
      case Step::nested:
        t.push_back(inner(x));
        break;
      case Step::swap:
        if (same_shape(world.captured, world.args[0]) && c % 2) std::swap(world.captured, world.args[1]);
        break;
      case Step::count:
        break;
    }
  }
  std::vector<Tensor> outputs;
  for (int k = 0; k < program.outputs && std::cmp_less(k, t.size()); ++k) outputs.push_back(t[t.size() - 1 - static_cast<std::size_t>(k)]);
  return outputs;
}

std::string text(Tensor const& x) { return x.defined() ? std::format("{} {}", base::to_string(x.strides()), x.to_string()) : "undefined"; }
std::string text(World const& world, std::vector<Tensor> const& outputs) {
  std::string all;
  for (auto const& x : world.args) all += "arg " + text(x) + (x.grad().defined() ? " grad " + text(x.grad()) : "") + "\n";
  all += "captured " + text(world.captured) + "\nkept " + text(world.kept) + "\n";
  for (auto const& x : outputs) all += "out " + text(x) + "\n";
  return all;
}

// Equal arguments for both worlds; in some calls two of them are the same tensor, or a view of another.
void fill(Rng& rng, std::array<World*, 2> worlds, std::int64_t n, bool gradients) {
  int const alias = gradients ? 0 : rng.below(6);
  std::uint64_t const stream = static_cast<std::uint64_t>(rng.below(1 << 20));
  bool const leaf = gradients && rng.chance(0.8);
  for (World* world : worlds) {
    world->args.clear();
    for (int k = 0; k < 3; ++k) {
      manual_seed(stream + static_cast<std::uint64_t>(k));
      Tensor x = rand({n, 3}) - 0.4;
      if (k == 1 && alias == 0 && !gradients) x = transpose(rand({3, n}) - 0.3, 0, 1);
      world->args.push_back(x);
    }
    if (alias == 1) world->args[1] = world->args[0];
    if (alias == 2) world->args[2] = slice(world->args[0], 0, 0, 1);
    if (alias == 3) world->captured = world->args[1];
    if (leaf) world->args[0].set_requires_grad(), world->args[2].set_requires_grad();
  }
}

struct Tally {
  int programs = 0, calls = 0, graphs = 0, recompiles = 0, breaks = 0, limited = 0, thrown = 0;
};

void try_program(std::uint64_t seed, bool gradients, Tally& tally) {
  Rng rng{seed};
  auto const program = random_program(rng, gradients);
  World eager, fast;
  for (World* world : {&eager, &fast}) {
    manual_seed(99);
    world->captured = rand({4, 3});
  }
  Options options;
  if (rng.chance(0.2)) options.dynamic = Dynamic::always;
  if (rng.chance(0.2)) options.dynamic = Dynamic::never;
  if (rng.chance(0.1)) options.recompile_limit = 2;
  auto compiled = compile(
      [](Program const* body, World& world, Host const& host, bool differentiate, std::vector<Tensor> const&) {
        auto outputs = run(*body, world, host);
        if (differentiate)
          for (auto const& out : outputs)
            if (out.requires_grad()) {
              sum(out * out).backward();
              break;
            }
        return outputs;
      },
      options);
  std::int64_t n = 2 + rng.below(3);
  int const calls = 2 + rng.below(5);
  for (int call = 0; call < calls; ++call) {
    if (rng.chance(0.4)) n = 1 + rng.below(6);
    fill(rng, {&eager, &fast}, n, gradients);
    Host const host{rng.chance(0.5) ? 0.5 : 0.25 * rng.below(8), 1 + rng.below(4), rng.chance(0.3)};
    std::array<std::string, 2> thrown;
    std::array<std::vector<Tensor>, 2> outputs;
    for (int side = 0; side < 2; ++side) {
      World& world = side ? fast : eager;
      manual_seed(seed + 5);
      try {
        outputs[static_cast<std::size_t>(side)] =
            side ? compiled(&program, world, host, gradients, world.args) : compiled.function()(&program, world, host, gradients, world.args);
      } catch (std::exception const& error) {
        thrown[static_cast<std::size_t>(side)] = error.what();
      }
    }
    auto const where = std::format("seed {} call {} gradients {}", seed, call, gradients);
    REQUIRE_MESSAGE(thrown[0] == thrown[1], where);
    REQUIRE_MESSAGE(text(eager, outputs[0]) == text(fast, outputs[1]), where);
    if (!gradients) {
      for (std::size_t k = 0; k < outputs[0].size(); ++k)
        for (int side = 0; side < 2; ++side) {
          auto& out = outputs[static_cast<std::size_t>(side)][k];
          if (!ir::overlaps(out.meta().sizes, out.meta().strides)) out.add_(full({}, static_cast<double>(k + 1)));
        }
      REQUIRE_MESSAGE(text(eager, outputs[0]) == text(fast, outputs[1]), (where + " after writing the outputs"));
    }
    tally.thrown += !thrown[0].empty();
    ++tally.calls;
  }
  auto const report = describe(compiled.state());
  ++tally.programs;
  tally.graphs += report.graphs;
  tally.recompiles += static_cast<int>(report.recompiles.size());
  tally.breaks += static_cast<int>(report.breaks.size());
  tally.limited += report.eager_calls > 0;
}

int programs() {
  if (char const* const count = std::getenv("TENON_PROGRAMS")) return std::atoi(count);
  char const* const tier = std::getenv("TENON_TIER");
  return tier && std::string_view(tier) == "full" ? 24000 : tier && std::string_view(tier) == "quick" ? 200 : 1000;
}
std::uint64_t first_seed() {
  char const* const seed = std::getenv("TENON_SEED");
  return seed ? std::strtoull(seed, nullptr, 10) : 1;
}
}  // namespace

TEST_CASE("fuzz: compiled bodies equal eager ones") {
  Tally tally;
  for (int k = 0; k < programs(); ++k) try_program(first_seed() + static_cast<std::uint64_t>(k), false, tally);
  std::printf("capture fuzz: %d programs, %d calls, %d graphs, %d recompiles, %d break places, %d over the limit, %d bodies threw\n", tally.programs,
              tally.calls, tally.graphs, tally.recompiles, tally.breaks, tally.limited, tally.thrown);
}

TEST_CASE("fuzz: pure functions equal eager ones, whoever runs their bodies") {
  Tally tally;
  std::int64_t hits = 0;
  constexpr std::array pure_steps{Step::binary, Step::scalar, Step::unary, Step::view, Step::reduce, Step::cast, Step::join, Step::product, Step::open_size};
  for (int k = 0; k < (programs() + 1) / 2; ++k) {
    auto const seed = first_seed() + 2000000 + static_cast<std::uint64_t>(k);
    Rng rng{seed};
    auto program = random_program(rng, false);
    for (auto& instruction : program.steps) instruction.step = pure_steps[static_cast<std::size_t>(instruction.a) % pure_steps.size()];
    auto const body = [&program](std::vector<Tensor> const& args, double scale, std::int64_t cut) {
      World world{.args = args};
      return run(program, world, {scale, cut, false});
    };
    auto const fast = compile(body, {.pure = true});
    std::int64_t n = 2 + rng.below(3);
    for (int call = 0; call < 8; ++call, ++tally.calls) {
      if (rng.chance(0.3)) n = 1 + rng.below(6);
      double const scale = rng.chance(0.9) ? 0.5 : 0.25 * rng.below(8);
      std::int64_t const cut = rng.chance(0.9) ? 2 : 1 + rng.below(4);
      World eager, compiled;
      fill(rng, {&eager, &compiled}, n, false);
      auto wanted = body(eager.args, scale, cut), have = fast(compiled.args, scale, cut);
      auto const where = std::format("seed {} call {}", seed, call);
      REQUIRE_MESSAGE(text(eager, wanted) == text(compiled, have), where);
      for (auto* outputs : {&wanted, &have})
        for (auto& out : *outputs) {
          bool const dense = !ir::overlaps(out.meta().sizes, out.meta().strides);
          if (dense) out.add_(full({}, 1));
        }
      REQUIRE_MESSAGE(text(eager, wanted) == text(compiled, have), (where + " after writing the outputs"));
    }
    ++tally.programs;
    hits += fast.state().pure_hits;
  }
  CHECK(hits > tally.calls / 20);
  std::printf("pure fuzz: %d programs, %d calls, %lld without the body\n", tally.programs, tally.calls, static_cast<long long>(hits));
}

TEST_CASE("fuzz: gradients of compiled bodies equal eager ones bit for bit") {
  Tally tally;
  for (int k = 0; k < (programs() + 1) / 2; ++k) try_program(first_seed() + 1000000 + static_cast<std::uint64_t>(k), true, tally);
  std::printf("gradient fuzz: %d programs, %d calls, %d graphs, %d recompiles, %d break places, %d over the limit, %d bodies threw\n", tally.programs,
              tally.calls, tally.graphs, tally.recompiles, tally.breaks, tally.limited, tally.thrown);
}
