// Which engines there are, and which of them is the fastest for a product.
module;
#include "gemm_kernels.h"
module tenon.fusion;
import std;
import tenon.base;
import tenon.device;

namespace tenon::fusion {
namespace {
struct EngineRow {
  Engine engine;
  std::string_view name;
  bool (*present)();
};
constexpr std::array engine_rows{
    EngineRow{Engine::blocks, "blocks", [] { return true; }},
    EngineRow{Engine::eigen, "eigen", [] { return true; }},
    EngineRow{Engine::openblas, "openblas", [] { return kernels::openblas() != nullptr; }},
    EngineRow{Engine::onednn, "onednn", [] { return kernels::onednn() != nullptr; }},
};

std::optional<Engine> const& wish() {
  static std::optional<Engine> const engine = []() -> std::optional<Engine> {
    char const* const name = std::getenv("TENON_GEMM");
    return name && *name ? std::optional(engine_of(name)) : std::nullopt;
  }();
  return engine;
}

// What the speed of a product hangs on: sizes to a power of two, and which operands lie along rows.
std::array<std::int64_t, 6> class_of(Gemm const& g) {
  auto const width = [](std::int64_t size) { return static_cast<std::int64_t>(std::bit_width(static_cast<std::uint64_t>(size))); };
  return {static_cast<std::int64_t>(g.dtype), width(g.m), width(g.n), width(g.k), g.a.column_stride == 1, g.b.column_stride == 1};
}

// A product like `like` on memory of its own, at most some million terms.
struct Trial {
  std::vector<double> memory;
  Gemm gemm;
  explicit Trial(Gemm const& like) {
    auto const m = std::min<std::int64_t>(like.m, 512), n = std::min<std::int64_t>(like.n, 1024), k = std::min<std::int64_t>(like.k, 1024);
    std::int64_t const bytes = base::bytes_of(like.dtype), doubles = sizeof(double);
    std::array<std::int64_t, 3> const sizes{m * k * bytes / doubles + 1, k * n * bytes / doubles + 1, m * n * bytes / doubles + 1};
    memory.assign(static_cast<std::size_t>(sizes[0] + sizes[1] + sizes[2]), 0.0);
    auto* const data = reinterpret_cast<std::byte*>(memory.data());
    auto const laid = [](std::byte* at, bool rows, std::int64_t height, std::int64_t width) { return rows ? Matrix{at, width, 1} : Matrix{at, 1, height}; };
    gemm = {.dtype = like.dtype,
            .m = m,
            .n = n,
            .k = k,
            .a = laid(data, like.a.column_stride == 1, m, k),
            .b = laid(data + sizes[0] * doubles, like.b.column_stride == 1, k, n),
            .c = laid(data + (sizes[0] + sizes[1]) * doubles, like.c.column_stride == 1, m, n)};
  }
  // The best of as many runs as fit, at least two.
  double seconds(Engine engine, double budget) {
    using Clock = std::chrono::steady_clock;
    gemm.engine = engine;
    double best = std::numeric_limits<double>::infinity();
    auto const start = Clock::now();
    for (int run = 0; run < 2 || (run < 50 && std::chrono::duration<double>(Clock::now() - start).count() < budget); ++run) {
      auto const begin = Clock::now();
      gemm_rows(gemm, 0, 0, gemm.m);
      best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count());
    }
    return best;
  }
};
}  // namespace

std::string_view name_of(Engine engine) { return engine_rows[static_cast<std::size_t>(engine)].name; }

Engine engine_of(std::string_view name) {
  std::string names;
  for (auto const& row : engine_rows) {
    if (row.name == name && !row.present()) base::fail("TENON_GEMM: {} is not on this machine", name);
    if (row.name == name) return row.engine;
    names += std::format("{}{}", names.empty() ? "" : ", ", row.name);
  }
  base::fail("TENON_GEMM: no engine is called '{}', only {}", name, names);
}

std::span<Engine const> engines() {
  static std::vector<Engine> const present = [] {
    std::vector<Engine> list;
    for (auto const& row : engine_rows)
      if (row.present()) list.push_back(row.engine);
    return list;
  }();
  return present;
}
Engine preferred(base::DType dtype) {
  if (wish()) return *wish();
  bool const tiles = dtype == base::DType::bf16 && device::cpu().amx_bf16;
  return tiles && kernels::onednn() ? Engine::onednn : Engine::blocks;
}

Engine fastest(Gemm const& g, double seconds) {
  if (wish()) return *wish();
  if (!base::is_real(g.dtype) || g.m == 0 || g.n == 0 || g.k == 0) return Engine::blocks;
  static std::mutex mutex;
  static std::map<std::array<std::int64_t, 6>, Engine> known;
  std::scoped_lock const lock(mutex);
  auto const [place, fresh] = known.try_emplace(class_of(g), Engine::blocks);
  if (!fresh) return place->second;
  Trial trial(g);
  double best = std::numeric_limits<double>::infinity();
  for (auto const engine : engines())
    if (double const time = trial.seconds(engine, seconds / static_cast<double>(engines().size())); time < best) best = time, place->second = engine;
  return place->second;
}

}  // namespace tenon::fusion
