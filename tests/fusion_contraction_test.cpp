// Products, convolutions and attention beside loops in double precision. m, n, k: rows, columns and terms of a product.
#include <doctest/doctest.h>

#include "../modules/fusion/gemm_kernels.h"
import std;
import tenon.base;
import tenon.device;
import tenon.ir;
import tenon.fusion;
#include "caught.hpp"

using namespace tenon;
using base::DType;
namespace kernels = fusion::kernels;

namespace {

struct Random {
  std::mt19937_64 bits;
  std::int64_t whole(std::int64_t low, std::int64_t high) { return std::uniform_int_distribution<std::int64_t>(low, high)(bits); }
  double real() { return std::uniform_real_distribution<double>(-1, 1)(bits); }
  bool coin() { return whole(0, 1) == 1; }
};

// A matrix, or one of a batch, somewhere in memory of its own.
struct Stored {
  std::vector<std::byte> memory;
  fusion::Matrix at;
  base::InlineVector<std::int64_t, 4> batch;
};
// Laid out along rows, along columns or with two strides, forwards or backwards, with gaps; `free` layouts may also show an element more than once.
Stored stored(Random& random, DType dtype, std::int64_t rows, std::int64_t columns, std::span<std::int64_t const> batch, bool free) {
  auto const bytes = base::bytes_of(dtype);
  std::int64_t const gap = random.whole(0, 3) == 0 ? random.whole(1, 5) : 0, inner = random.whole(0, 2) == 0 ? random.whole(2, 3) : 1;
  bool const by_rows = random.coin();
  std::int64_t const line = inner * (by_rows ? columns : rows) + gap, lines = by_rows ? rows : columns;
  std::int64_t strides[2] = {by_rows ? line : inner, by_rows ? inner : line};
  std::int64_t step = std::max<std::int64_t>(line * lines, 1), first = 0;
  Stored result;
  result.batch.resize(batch.size());
  for (std::size_t d = batch.size(); d-- > 0;) {
    bool const shared = free && random.whole(0, 3) == 0;
    result.batch[d] = shared ? 0 : step;
    if (!shared) step *= batch[d];
  }
  for (std::size_t d = 0; d < 2; ++d) {
    auto const size = d == 0 ? rows : columns;
    if (free && random.whole(0, 9) == 0)
      strides[d] = 0;
    else if (random.whole(0, 9) == 0 && size > 0)
      first += (size - 1) * strides[d], strides[d] = -strides[d];
  }
  result.memory.resize(static_cast<std::size_t>((step + 1) * bytes));
  for (std::int64_t i = 0; i <= step; ++i) {
    auto* const element = result.memory.data() + i * bytes;
    base::is_real(dtype) ? base::store_real(dtype, element, random.real()) : base::store_whole(dtype, element, random.whole(-100, 100));
  }
  result.at = {result.memory.data() + first * bytes, strides[0], strides[1]};
  return result;
}
std::byte* element(Stored const& x, DType dtype, std::span<std::int64_t const> batch, std::int64_t entry, std::int64_t i, std::int64_t j) {
  std::int64_t offset = i * x.at.row_stride + j * x.at.column_stride;
  for (std::size_t d = batch.size(); d-- > 0; entry /= batch[d]) offset += entry % batch[d] * x.batch[d];
  return x.at.data + offset * base::bytes_of(dtype);
}
double epsilon(DType dtype) {
  return dtype == DType::f64 ? 0x1p-53 : dtype == DType::f32 ? 0x1p-24 : dtype == DType::f16 ? 0x1p-11 : dtype == DType::bf16 ? 0x1p-8 : 0x1p-3;
}

// A random product and what the double loop says of each element: its value and a bound on the error.
struct Case {
  Stored a, b, c;
  fusion::Gemm gemm;
  std::vector<double> want, bound;
  std::vector<std::int64_t> whole;
  std::vector<std::byte> before;

  Case(Random& random, DType dtype, std::int64_t m, std::int64_t n, std::int64_t k, std::vector<std::int64_t> const& batch, bool accumulate) {
    a = stored(random, dtype, m, k, batch, true), b = stored(random, dtype, k, n, batch, true), c = stored(random, dtype, m, n, batch, false);
    gemm = {.dtype = dtype, .m = m, .n = n, .k = k, .a = a.at, .b = b.at, .c = c.at, .accumulate = accumulate};
    gemm.batch.assign(batch);
    gemm.a_batch = a.batch, gemm.b_batch = b.batch, gemm.c_batch = c.batch;
    before = c.memory;
    each([&](std::int64_t entry, std::int64_t i, std::int64_t j, std::byte* to) {
      double sum = accumulate ? base::load_real(dtype, to) : 0, size = std::abs(sum);
      std::uint64_t total = accumulate ? static_cast<std::uint64_t>(base::load_whole(dtype, to)) : 0;
      for (std::int64_t l = 0; l < k; ++l) {
        auto const *x = element(a, dtype, batch, entry, i, l), *y = element(b, dtype, batch, entry, l, j);
        double const term = base::load_real(dtype, x) * base::load_real(dtype, y);
        sum += term, size += std::abs(term);
        total += static_cast<std::uint64_t>(base::load_whole(dtype, x)) * static_cast<std::uint64_t>(base::load_whole(dtype, y));
      }
      bool const small = dtype != DType::f32 && dtype != DType::f64;
      double const sums = static_cast<double>(k + 2) * size * (small ? 0x1p-24 : epsilon(dtype));
      want.push_back(sum), whole.push_back(static_cast<std::int64_t>(total));
      bound.push_back(sums + (small ? (std::abs(sum) + sums) * epsilon(dtype) + (dtype == DType::f8e5m2 ? 0x1p-17 : 0x1p-25) : 0));  // half the least denormal
    });
  }
  template <class F>
  void each(F f) {
    std::vector<std::int64_t> const batch(gemm.batch.begin(), gemm.batch.end());
    for (std::int64_t entry = 0; entry < fusion::entries(gemm); ++entry)
      for (std::int64_t i = 0; i < gemm.m; ++i)
        for (std::int64_t j = 0; j < gemm.n; ++j) f(entry, i, j, element(c, gemm.dtype, batch, entry, i, j));
  }
  // The first element that is off, or that was written and is none of the result; empty if all is well.
  std::string fault() {
    std::string text;
    std::size_t at = 0;
    std::set<std::byte const*> mine;
    each([&](std::int64_t entry, std::int64_t i, std::int64_t j, std::byte* place) {
      mine.insert(place);
      double const got = base::load_real(gemm.dtype, place);
      if (base::is_real(gemm.dtype)) {
        if (!(std::abs(got - want[at]) <= bound[at]) && text.empty())
          text = std::format("[{}][{}, {}] is {} and not {} within {}", entry, i, j, got, want[at], bound[at]);
      } else {
        std::byte wrapped[8] = {};
        base::store_whole(gemm.dtype, wrapped, whole[at]);
        if (base::load_whole(gemm.dtype, wrapped) != base::load_whole(gemm.dtype, place) && text.empty())
          text = std::format("[{}][{}, {}] is {} and not {}", entry, i, j, base::load_whole(gemm.dtype, place), base::load_whole(gemm.dtype, wrapped));
      }
      ++at;
    });
    auto const bytes = base::bytes_of(gemm.dtype);
    for (std::size_t i = 0; i < before.size(); i += static_cast<std::size_t>(bytes))
      if (!mine.contains(c.memory.data() + i) && std::memcmp(before.data() + i, c.memory.data() + i, static_cast<std::size_t>(bytes)) != 0 && text.empty())
        text = std::format("element {} of the memory is none of the result and was written", i / static_cast<std::size_t>(bytes));
    return text.empty() ? text : std::format("{} {}x{}x{}: {}", base::info(gemm.dtype).name, gemm.m, gemm.n, gemm.k, text);
  }
};

constexpr std::array all_dtypes{DType::f32, DType::f64, DType::bf16, DType::f16, DType::f8e5m2, DType::i64,
                                DType::i32, DType::i16, DType::i8,   DType::u8,  DType::boolean};
std::int64_t some_size(Random& random) {
  constexpr std::array usual{0, 1, 1, 2, 3, 7, 16, 17, 33, 64, 65, 100};
  return usual[static_cast<std::size_t>(random.whole(0, static_cast<std::int64_t>(usual.size()) - 1))];
}

}  // namespace

TEST_CASE("products of any dtype, layout and batch are those of a double loop") {
  Random random{std::mt19937_64(1)};
  for (int turn = 0; turn < 600; ++turn) {
    auto const dtype = all_dtypes[static_cast<std::size_t>(random.whole(0, static_cast<std::int64_t>(all_dtypes.size()) - 1))];
    std::vector<std::int64_t> batch;
    for (auto dims = random.whole(0, 2); dims-- > 0;) batch.push_back(random.whole(1, 3));
    auto const engines = fusion::engines();
    Case test(random, dtype, some_size(random), some_size(random), some_size(random), batch, random.coin());
    test.gemm.engine = engines[static_cast<std::size_t>(turn) % engines.size()];
    CAPTURE(turn);
    CAPTURE(fusion::name_of(*test.gemm.engine));
    if (random.coin()) {
      fusion::gemm(test.gemm);
    } else {  // in pieces of rows, or tiles
      auto const cut = random.coin() ? fusion::tiling(test.gemm, 3) : fusion::Tiling{.rows = random.whole(1, 40), .columns = random.whole(1, 40)};
      for (std::int64_t k = 0; k < fusion::tiles(test.gemm, cut); ++k) fusion::gemm(test.gemm, fusion::tile(test.gemm, cut, k));
    }
    REQUIRE(test.fault() == "");
  }
}

TEST_CASE("products larger than a panel, by every engine") {
  Random random{std::mt19937_64(2)};
  for (auto const engine : fusion::engines())
    for (auto const dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
      Case tall(random, dtype, random.whole(513, 520), random.whole(6, 20), random.whole(1, 20), {}, random.coin());
      Case deep(random, dtype, random.whole(170, 180), random.whole(17, 34), random.whole(513, 520), {}, random.coin());
      Case wide(random, dtype, random.whole(2, 8), random.whole(1030, 1040), random.whole(257, 260), {}, random.coin());
      for (auto* each : {&tall, &deep, &wide}) {
        each->gemm.engine = engine;
        fusion::gemm(each->gemm);
        CAPTURE(fusion::name_of(engine));
        REQUIRE(each->fault() == "");
      }
    }
}

namespace {
// Products of random layouts by one function beside the double loop; every third one has no gaps of memory behind its operands to read into.
template <class T>
void check_products(Random& random, void (*product)(kernels::Product<T> const&), int turns) {
  for (int turn = 0; turn < turns; ++turn) {
    std::int64_t const m = some_size(random), n = some_size(random), k = some_size(random), gap = turn % 3 ? random.whole(0, 9) : 0;
    bool const a_rows = random.coin(), b_rows = random.coin(), accumulate = random.coin();
    kernels::Product<T> p{.m = m, .n = n, .k = k, .accumulate = accumulate};
    p.a_row = a_rows ? k + gap : 1, p.a_column = a_rows ? 1 : m + gap, p.b_row = b_rows ? n + gap : 1, p.b_column = b_rows ? 1 : k + gap, p.c_row = n + gap;
    auto const filled = [&](std::int64_t lines, std::int64_t length) {
      std::vector<T> x(static_cast<std::size_t>(std::max<std::int64_t>(lines * (length + gap) - gap, 0)));
      for (T& value : x) value = static_cast<T>(random.real());
      return x;
    };
    auto const a = a_rows ? filled(m, k) : filled(k, m), b = b_rows ? filled(k, n) : filled(n, k), before = filled(m, n);
    auto c = before;
    p.a = a.data(), p.b = b.data(), p.c = c.data();
    product(p);
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n + (i + 1 < m ? gap : 0); ++j) {
        auto const at = static_cast<std::size_t>(i * p.c_row + j);
        if (j >= n) {
          REQUIRE(c[at] == before[at]);
          continue;
        }
        double sum = accumulate ? double{before[at]} : 0, size = std::abs(sum);
        for (std::int64_t l = 0; l < k; ++l) {
          double const term =
              double{a[static_cast<std::size_t>(i * p.a_row + l * p.a_column)]} * double{b[static_cast<std::size_t>(l * p.b_row + j * p.b_column)]};
          sum += term, size += std::abs(term);
        }
        REQUIRE(std::abs(double{c[at]} - sum) <= static_cast<double>(k + 2) * size * (sizeof(T) == 4 ? 0x1p-24 : 0x1p-53));
      }
  }
}
struct IsaRow {
  device::Isa isa;
  kernels::Table const& table;
  kernels::Products const& blocks;
};
std::vector<IsaRow> instruction_sets() {
  std::vector<IsaRow> rows{{device::Isa::baseline, kernels::baseline, kernels::blocks::baseline}};
  if (device::cpu().isa >= device::Isa::avx2) rows.push_back({device::Isa::avx2, kernels::avx2, kernels::blocks::avx2});
  if (device::cpu().isa >= device::Isa::avx512) rows.push_back({device::Isa::avx512, kernels::avx512, kernels::blocks::avx512});
  return rows;
}
}  // namespace

TEST_CASE("every instruction set that this processor has multiplies right, with Eigen and with blocks") {
  Random random{std::mt19937_64(3)};
  for (auto const& row : instruction_sets()) {
    CAPTURE(device::name_of(row.isa));
    check_products(random, row.table.product_f32, 100);
    check_products(random, row.table.product_f64, 100);
    check_products(random, row.blocks.f32, 200);
    check_products(random, row.blocks.f64, 200);
  }
}

TEST_CASE("every instruction set that this processor has converts small floats alike") {
  for (auto const& row : instruction_sets()) {
    auto const* table = &row.table;
    std::vector<std::uint16_t> halves(65536), back(65536);
    std::iota(halves.begin(), halves.end(), std::uint16_t{0});
    std::vector<float> wide(65536);
    auto const same = [](float x, float y) { return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y) || (std::isnan(x) && std::isnan(y)); };
    auto const narrows = [&](auto narrow, auto rounded, auto widened) {  // halves, their neighbours and what lies between them
      std::vector<float> values;
      for (std::size_t i = 0; i < wide.size(); ++i) {
        auto const bits = std::bit_cast<std::uint32_t>(wide[i]);
        for (std::uint32_t const step : {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u}) values.push_back(std::bit_cast<float>(bits + step));
      }
      std::vector<std::uint16_t> got(values.size());
      narrow(values.data(), got.data(), static_cast<std::int64_t>(values.size()));
      for (std::size_t i = 0; i < values.size(); ++i)
        if (!same(widened(got[i]), widened(rounded(static_cast<double>(values[i])))))
          FAIL(std::format("{} becomes {} and not {}", values[i], widened(got[i]), widened(rounded(static_cast<double>(values[i])))));
    };
    table->widen_bf16(halves.data(), wide.data(), 65536);
    for (std::size_t i = 0; i < halves.size(); ++i) REQUIRE(same(wide[i], base::from_bf16(halves[i])));
    narrows(table->narrow_bf16, base::to_bf16, base::from_bf16);
    table->widen_f16(halves.data(), wide.data(), 65536);
    for (std::size_t i = 0; i < halves.size(); ++i) REQUIRE(same(wide[i], base::from_f16(halves[i])));
    narrows(table->narrow_f16, base::to_f16, base::from_f16);
  }
}

TEST_CASE("the engine of a product: ours and Eigen are always there, the fastest is one of those that are") {
  auto const present = fusion::engines();
  REQUIRE(present.size() >= 2);
  CHECK(present[0] == fusion::Engine::blocks);
  CHECK(present[1] == fusion::Engine::eigen);
  for (auto const dtype : {DType::f32, DType::f64, DType::i32}) {
    fusion::Gemm const g{.dtype = dtype, .m = 100, .n = 90, .k = 80, .a = {nullptr, 80, 1}, .b = {nullptr, 1, 80}, .c = {nullptr, 90, 1}};
    CHECK(std::ranges::count(present, fusion::fastest(g)) == 1);
    CHECK(fusion::fastest(g) == fusion::fastest(g));
  }
  for (auto const engine : present) CHECK(fusion::engine_of(fusion::name_of(engine)) == engine);
  CHECK(support::caught([] { fusion::engine_of("mkl"); }) == "TENON_GEMM: no engine is called 'mkl', only blocks, eigen, openblas, onednn");
}

TEST_CASE("tiles cover each element once") {
  Random random{std::mt19937_64(4)};
  for (int turn = 0; turn < 200; ++turn) {
    fusion::Gemm g{.m = random.whole(0, 300), .n = random.whole(0, 300), .k = random.whole(0, 3000)};
    g.batch.push_back(random.whole(1, 3));
    auto const threads = static_cast<int>(random.whole(1, 9));
    for (auto const& cut : {fusion::tiling(g, threads), fusion::tiling(g, threads, fusion::Cut::whole_rows),
                            fusion::Tiling{.rows = random.whole(1, 99), .columns = random.whole(1, 99)}}) {
      std::vector<int> seen(static_cast<std::size_t>(fusion::entries(g) * g.m * g.n));
      for (std::int64_t k = 0; k < fusion::tiles(g, cut); ++k) {
        auto const t = fusion::tile(g, cut, k);
        for (auto i = t.row; i < t.row + t.rows; ++i)
          for (auto j = t.column; j < t.column + t.columns; ++j) ++seen.at(static_cast<std::size_t>((t.entry * g.m + i) * g.n + j));
      }
      REQUIRE(std::ranges::all_of(seen, [](int times) { return times == 1; }));
    }
  }
  fusion::Gemm const tall{.m = 1024, .n = 1024, .k = 1024};
  CHECK(fusion::tiles(tall, fusion::tiling(tall, 2)) == 2);
  fusion::Gemm const little{.m = 16, .n = 16, .k = 16};
  CHECK(fusion::tiles(little, fusion::tiling(little, 8)) == 1);
  fusion::Gemm const flat{.m = 1, .n = 4096, .k = 4096};
  CHECK(fusion::tiles(flat, fusion::tiling(flat, 4)) == 4);
  CHECK(fusion::tiles(flat, fusion::tiling(flat, 4, fusion::Cut::whole_rows)) == 1);
}

namespace {
// An operand [batch, head, time, feature] somewhere in memory, as views of packed projections lie.
struct HeadsCase {
  std::vector<std::byte> memory;
  fusion::Heads at;
  DType dtype;
  std::byte* element(std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t d) const {
    return at.data + (b * at.batch + h * at.head + t * at.time + d * at.feature) * base::bytes_of(dtype);
  }
  double real(std::int64_t b, std::int64_t h, std::int64_t t, std::int64_t d) const { return base::load_real(dtype, element(b, h, t, d)); }
};
HeadsCase heads_case(Random& random, DType dtype, std::int64_t B, std::int64_t H, std::int64_t T, std::int64_t D) {
  HeadsCase x{.dtype = dtype};
  switch (random.whole(0, 2)) {
    case 0:
      x.at = {nullptr, H * T * D, T * D, D, 1};
      break;  // [B, H, T, D]
    case 1:
      x.at = {nullptr, T * 3 * H * D, D, 3 * H * D, 1};
      break;  // [B, T, 3, H, D]
    default:
      x.at = {nullptr, H * T * D * 2, T * D * 2, 2, 2 * T};
      break;  // [B, H, D, T, 2]
  }
  x.memory.resize(static_cast<std::size_t>((B * std::max(x.at.batch, std::int64_t{1}) + 1) * base::bytes_of(dtype)));
  x.at.data = x.memory.data();
  for (std::size_t i = 0; i * static_cast<std::size_t>(base::bytes_of(dtype)) < x.memory.size(); ++i)
    base::store_real(dtype, x.memory.data() + i * static_cast<std::size_t>(base::bytes_of(dtype)), random.real());
  return x;
}
}  // namespace

TEST_CASE("attention and its gradient are those of loops in double precision") {
  Random random{std::mt19937_64(5)};
  constexpr std::array lengths{1, 2, 15, 16, 17, 56, 57, 64, 113, 130};
  auto const length = [&] { return std::int64_t{lengths[static_cast<std::size_t>(random.whole(0, std::ssize(lengths) - 1))]}; };
  int const threads = device::threads();
  for (int turn = 0; turn < 60; ++turn) {
    DType const dtype = std::array{DType::f32, DType::f64, DType::f32, DType::bf16, DType::f16}[static_cast<std::size_t>(turn % 5)];
    auto const B = random.whole(1, 2), H = random.whole(1, 3), Q = length(), K = random.coin() ? Q : length(), D = random.whole(1, 40),
               E = random.coin() ? D : random.whole(1, 40);
    bool const causal = random.coin();
    double const scale = random.whole(0, 3) == 0 ? -1.5 : 1 / std::sqrt(static_cast<double>(D));
    auto q = heads_case(random, dtype, B, H, Q, D), k = heads_case(random, dtype, B, H, K, D), v = heads_case(random, dtype, B, H, K, E),
         o = heads_case(random, dtype, B, H, Q, E), g = heads_case(random, dtype, B, H, Q, E), dq = heads_case(random, dtype, B, H, Q, D),
         dk = heads_case(random, dtype, B, H, K, D), dv = heads_case(random, dtype, B, H, K, E);
    fusion::Attention const call{.dtype = dtype,
                                 .batch = B,
                                 .heads = H,
                                 .queries = Q,
                                 .keys = K,
                                 .features = D,
                                 .value_features = E,
                                 .scale = scale,
                                 .causal = causal,
                                 .q = q.at,
                                 .k = k.at,
                                 .v = v.at,
                                 .o = o.at};
    fusion::AttentionGrad const grad{.call = call, .g = g.at, .dq = dq.at, .dk = dk.at, .dv = dv.at};
    device::set_threads(turn % 2 ? 1 : 8);  // with 8 a head is cut in parts
    fusion::attention(call);
    fusion::attention_grad(grad);
    device::set_threads(threads);
    CAPTURE(turn);
    double const eps = epsilon(dtype), sums = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
    auto const near = [&](double got, double want, double size) {  // size: the sum of the absolute values of its terms
      double const bound = (eps != sums ? std::abs(want) * eps + 0x1p-25 : 0) + sums * size * 8 * std::sqrt(static_cast<double>(Q + K + D + E));
      if (!(std::abs(got - want) <= bound)) FAIL(std::format("{} and not {} within {}", got, want, bound));
    };
    auto const at = [](std::vector<double>& x, std::int64_t i, std::int64_t j, std::int64_t width) -> double& {
      return x[static_cast<std::size_t>(i * width + j)];
    };
    for (std::int64_t b = 0; b < B; ++b)
      for (std::int64_t h = 0; h < H; ++h) {
        auto const zeros = [](std::int64_t n) { return std::vector<double>(static_cast<std::size_t>(n), 0.0); };
        auto want_dk = zeros(K * D), want_dv = zeros(K * E), size_dk = zeros(K * D), size_dv = zeros(K * E);
        for (std::int64_t i = 0; i < Q; ++i) {
          auto const seen = causal ? std::min(K, i + 1) : K;
          auto p = zeros(seen), dp = zeros(seen);
          double highest = -std::numeric_limits<double>::infinity(), total = 0, mean = 0;
          for (std::int64_t j = 0; j < seen; ++j) {
            double s = 0;
            for (std::int64_t d = 0; d < D; ++d) s += q.real(b, h, i, d) * k.real(b, h, j, d);
            at(p, 0, j, 0) = s * scale;
            highest = std::max(highest, s * scale);
          }
          for (double& x : p) total += x = std::exp(x - highest);
          for (std::int64_t j = 0; j < seen; ++j) {
            at(p, 0, j, 0) /= total;
            for (std::int64_t e = 0; e < E; ++e) at(dp, 0, j, 0) += g.real(b, h, i, e) * v.real(b, h, j, e);
            mean += at(p, 0, j, 0) * at(dp, 0, j, 0);
          }
          for (std::int64_t e = 0; e < E; ++e) {
            double sum = 0, size = 0;
            for (std::int64_t j = 0; j < seen; ++j) sum += at(p, 0, j, 0) * v.real(b, h, j, e), size += std::abs(at(p, 0, j, 0) * v.real(b, h, j, e));
            near(o.real(b, h, i, e), sum, size);
          }
          auto want_dq = zeros(D), size_dq = zeros(D);
          for (std::int64_t j = 0; j < seen; ++j) {
            double const weight = at(p, 0, j, 0), ds = weight * (at(dp, 0, j, 0) - mean) * scale,
                         size = weight * (std::abs(at(dp, 0, j, 0)) + static_cast<double>(E)) * std::abs(scale);
            for (std::int64_t d = 0; d < D; ++d) {
              at(want_dq, 0, d, 0) += ds * k.real(b, h, j, d), at(size_dq, 0, d, 0) += size;
              at(want_dk, j, d, D) += ds * q.real(b, h, i, d), at(size_dk, j, d, D) += size;
            }
            for (std::int64_t e = 0; e < E; ++e) at(want_dv, j, e, E) += weight * g.real(b, h, i, e), at(size_dv, j, e, E) += weight;
          }
          for (std::int64_t d = 0; d < D; ++d) near(dq.real(b, h, i, d), at(want_dq, 0, d, 0), at(size_dq, 0, d, 0));
        }
        for (std::int64_t j = 0; j < K; ++j) {
          for (std::int64_t d = 0; d < D; ++d) near(dk.real(b, h, j, d), at(want_dk, j, d, D), at(size_dk, j, d, D));
          for (std::int64_t e = 0; e < E; ++e) near(dv.real(b, h, j, e), at(want_dv, j, e, E), at(size_dv, j, e, E));
        }
      }
  }
}

TEST_CASE("attention without keys is 0, with NaN or infinite scores NaN where torch's is") {
  std::vector<float> q{1, 1, 1}, k{1, std::numeric_limits<float>::infinity(), 2}, v{1, 2, 3}, o(3, 7);
  auto const at = [](std::vector<float>& x) { return fusion::Heads{reinterpret_cast<std::byte*>(x.data()), 3, 3, 1, 1}; };
  fusion::Attention call{.queries = 3, .keys = 0, .features = 1, .value_features = 1, .q = at(q), .k = at(k), .v = at(v), .o = at(o)};
  fusion::attention(call);
  CHECK(o == std::vector<float>{0, 0, 0});
  call.keys = 3, call.causal = true;
  fusion::attention(call);
  CHECK(o[0] == 1);  // one key only
  CHECK(std::isnan(o[1]));
  CHECK(std::isnan(o[2]));
  for (float const lowest : {-std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    k = {lowest, 1, 2};
    fusion::attention(call);
    CHECK(std::isnan(o[0]));  // all that it sees is -inf, or NaN
    CHECK((std::isnan(o[1]) == std::isnan(lowest)));
  }
}
