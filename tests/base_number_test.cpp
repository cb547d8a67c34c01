#include "golden.hpp"
import std;
import tenon.base;
using namespace tenon::base;

namespace {

constexpr DType all_dtypes[]{DType::f64, DType::f32, DType::f16, DType::bf16, DType::f8e4m3, DType::f8e5m2,
                             DType::i64, DType::i32, DType::i16, DType::i8,   DType::u8,     DType::boolean};

/// One float format, with a decoder that shares nothing with the library's: fields and std::ldexp.
struct Format {
  std::string name;
  int mantissa_bits, exponent_bits;
  std::uint32_t largest;  // the largest finite magnitude
  double past_infinity;   // what overflow and infinity give
  std::uint32_t (*to)(double);
  float (*from)(std::uint32_t);

  int count() const { return 1 << (1 + exponent_bits + mantissa_bits); }
  std::uint32_t sign_bit() const { return static_cast<std::uint32_t>(count()) / 2; }
  /// The value of a magnitude; one past the largest gives the value that a wider exponent range would have there.
  double value(std::uint32_t magnitude) const {
    int const bias = (1 << (exponent_bits - 1)) - 1;
    int const exponent = static_cast<int>(magnitude >> mantissa_bits);
    double const fraction = std::ldexp(magnitude & ((1u << mantissa_bits) - 1), -mantissa_bits);
    return exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
  }
};

constexpr double infinity = std::numeric_limits<double>::infinity(), nan_value = std::numeric_limits<double>::quiet_NaN();

Format const formats[]{
    {"f16", 10, 5, 0x7bff, infinity, [](double x) -> std::uint32_t { return to_f16(x); },
     [](std::uint32_t b) { return from_f16(static_cast<std::uint16_t>(b)); }},
    {"bf16", 7, 8, 0x7f7f, infinity, [](double x) -> std::uint32_t { return to_bf16(x); },
     [](std::uint32_t b) { return from_bf16(static_cast<std::uint16_t>(b)); }},
    {"f8e4m3", 3, 4, 0x7e, nan_value, [](double x) -> std::uint32_t { return to_f8e4m3(x); },
     [](std::uint32_t b) { return from_f8e4m3(static_cast<std::uint8_t>(b)); }},
    {"f8e5m2", 2, 5, 0x7b, infinity, [](double x) -> std::uint32_t { return to_f8e5m2(x); },
     [](std::uint32_t b) { return from_f8e5m2(static_cast<std::uint8_t>(b)); }},
};

/// Nearest magnitude by search over all of them, ties to even; `largest + 1` for what overflows.
std::uint32_t nearest(Format const& format, std::vector<double> const& values, double x) {
  std::size_t const above = static_cast<std::size_t>(std::ranges::lower_bound(values, x) - values.begin());
  if (above == values.size()) return format.largest + 1;
  if (values[above] == x) return static_cast<std::uint32_t>(above);
  double const middle = (values[above - 1] + values[above]) / 2;  // exact: a format below f32 leaves 40 bits free
  std::size_t const even = above % 2 == 0 ? above : above - 1;
  return static_cast<std::uint32_t>(x < middle ? above - 1 : x > middle ? above : even);
}

bool same(double a, double b) { return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b); }

}  // namespace

TEST_CASE("a dtype has one row of facts and is found by each of its three names") {
  for (DType const dtype : all_dtypes) {
    DTypeInfo const& row = info(dtype);
    CHECK(dtype_of(row.name) == dtype);
    CHECK(dtype_of(row.torch_name) == dtype);
    CHECK(dtype_of(row.file_name) == dtype);
    CHECK(bytes_of(dtype) == row.bytes);
    CHECK(is_real(dtype) == (row.category == DTypeClass::real));
  }
  CHECK(std::size(all_dtypes) == dtype_count);
  CHECK(info(DType::f8e4m3).torch_name == "float8_e4m3fn");
  CHECK_THROWS_WITH_AS(dtype_of("f17"), "dtype_of: unknown dtype 'f17'", Error);
}

TEST_CASE("golden: promotion is PyTorch's") {
  auto const rows = golden::load("ops.json", "type_promotion");
  if (!rows) return;
  golden::Tally tally{"type_promotion"};
  auto const known = [](std::string const& name) { return std::ranges::any_of(all_dtypes, [&](DType dtype) { return info(dtype).torch_name == name; }); };
  for (auto const& row : *rows) {
    auto const names = row.get<std::array<std::string, 3>>();
    if (!std::ranges::all_of(names, known)) {
      ++tally.skipped;
      continue;
    }
    ++tally.checked;
    CHECK_MESSAGE(info(promote(dtype_of(names[0]), dtype_of(names[1]))).torch_name == names[2], names[0] << " with " << names[1]);
  }
}

TEST_CASE("promotion commutes, keeps equal dtypes and refuses to guess about f8") {
  for (DType const a : all_dtypes)
    for (DType const b : all_dtypes) {
      bool const f8 = bytes_of(a) == 1 && is_real(a), other_f8 = bytes_of(b) == 1 && is_real(b);
      if (a == b)
        CHECK(promote(a, b) == a);
      else if (f8 || other_f8)
        CHECK_THROWS_AS(promote(a, b), Error);
      else
        CHECK(promote(a, b) == promote(b, a));
    }
  CHECK(promote(DType::i8, DType::u8) == DType::i16);
  CHECK(promote(DType::f16, DType::bf16) == DType::f32);
  CHECK(promote(DType::i64, DType::f16) == DType::f16);
  CHECK_THROWS_WITH_AS(promote(DType::f8e4m3, DType::f16), "promote: no common dtype of f8e4m3 and f16", Error);
}

TEST_CASE("every bit pattern of a small float decodes to its value and encodes back to itself") {
  for (Format const& format : formats) {
    CAPTURE(format.name);
    int wrong = 0, nans = 0;
    for (std::uint32_t bits = 0; bits < static_cast<std::uint32_t>(format.count()); ++bits) {
      std::uint32_t const magnitude = bits & (format.sign_bit() - 1);
      double const sign = bits & format.sign_bit() ? -1 : 1;
      double const expected = magnitude <= format.largest ? format.value(magnitude) : magnitude == format.largest + 1 ? format.past_infinity : nan_value;
      double const decoded = format.from(bits);
      if (std::isnan(expected)) {
        ++nans;
        wrong += !std::isnan(decoded) || !std::isnan(format.from(format.to(decoded))) || (format.to(decoded) & format.sign_bit()) != (bits & format.sign_bit());
      } else {
        wrong += !same(decoded, sign * expected) || format.to(decoded) != bits;
      }
    }
    CHECK(wrong == 0);
    CHECK(nans == 2 * static_cast<int>(format.sign_bit() - 1 - format.largest - (std::isnan(format.past_infinity) ? 0 : 1)));
  }
}

TEST_CASE("a double is rounded once, to nearest, ties to even, as a search over all encodings finds") {
  std::mt19937_64 random(1);
  for (Format const& format : formats) {
    CAPTURE(format.name);
    std::vector<double> values;
    for (std::uint32_t magnitude = 0; magnitude <= format.largest + 1; ++magnitude) values.push_back(format.value(magnitude));
    std::int64_t wrong = 0, checked = 0;
    auto const check = [&](double x) {
      std::uint32_t const expected = nearest(format, values, x);
      double const value = expected > format.largest ? format.past_infinity : values[expected];
      for (double const sign : {1.0, -1.0}) {
        ++checked;
        wrong += !same(format.from(format.to(sign * x)), sign * value);
      }
    };
    for (std::size_t i = 0; i + 1 < values.size(); ++i) {
      double const middle = (values[i] + values[i + 1]) / 2;
      for (double const x : {values[i], middle, std::nextafter(middle, 0), std::nextafter(middle, infinity), std::nextafter(values[i + 1], 0)}) check(x);
    }
    for (int i = 0; i < 200'000; ++i)
      check(std::abs(std::ldexp(std::bit_cast<double>(random() >> 12 | 0x3ff0000000000000), static_cast<int>(random() % 300) - 160)));
    for (double const x : {0.0, 5e-324, 1e-310, 2.2250738585072014e-308, 1e300, std::numeric_limits<double>::max(), infinity}) check(x);
    CHECK(wrong == 0);
    MESSAGE(format.name << ": " << checked << " roundings checked");
    CHECK(std::isnan(format.from(format.to(nan_value))));
    CHECK(format.to(-0.0) == format.sign_bit());
  }
}

TEST_CASE("landmarks of the small floats") {
  CHECK(to_f16(65504) == 0x7bff);
  CHECK(to_f16(65519.999) == 0x7bff);
  CHECK(to_f16(65520) == 0x7c00);
  CHECK(to_f16(0x1p-24) == 1);
  CHECK(to_f16(0x1p-25) == 0);
  CHECK(to_f16(1 + 0x1p-11 + 0x1p-40) == 0x3c01);  // through a float it would be a tie and round down
  CHECK(to_bf16(1 + 0x1p-8 + 0x1p-40) == 0x3f81);
  CHECK(to_f8e4m3(448) == 0x7e);
  CHECK(to_f8e4m3(464) == 0x7e);
  CHECK(to_f8e4m3(std::nextafter(464, 500)) == 0x7f);
  CHECK(to_f8e4m3(-infinity) == 0xff);
  CHECK(to_f8e5m2(57344) == 0x7b);
  CHECK(to_f8e5m2(61440) == 0x7c);
  CHECK(to_f8e5m2(std::nextafter(61440, 0)) == 0x7b);
}

TEST_CASE("elements are stored and loaded by the rules of their dtype") {
  auto const stored = [](DType dtype, double value) {
    std::array<std::byte, 8> element{};
    store_real(dtype, element.data(), value);
    return std::pair(load_real(dtype, element.data()), load_whole(dtype, element.data()));
  };
  CHECK(stored(DType::i8, 300.9) == std::pair(44.0, std::int64_t{44}));
  CHECK(stored(DType::u8, -1.5) == std::pair(255.0, std::int64_t{255}));
  CHECK(stored(DType::i16, -2.9).second == -2);
  CHECK(stored(DType::i32, 1e30).second == 0);
  CHECK(stored(DType::i64, infinity).second == std::numeric_limits<std::int64_t>::min());
  CHECK(stored(DType::boolean, nan_value).second == 1);
  CHECK(stored(DType::boolean, -0.0).second == 0);
  CHECK(stored(DType::f32, 0.1).first == 0.1f);
  CHECK(stored(DType::f64, -2.75) == std::pair(-2.75, std::int64_t{-2}));
  CHECK(stored(DType::f8e5m2, 7.0).first == 7.0);
  CHECK(stored(DType::f8e4m3, 17.0).first == 16.0);
  CHECK(truncate(nan_value) == std::numeric_limits<std::int64_t>::min());
  CHECK(truncate(0x1p63) == std::numeric_limits<std::int64_t>::min());
  CHECK(truncate(-0x1p63) == std::numeric_limits<std::int64_t>::min());
  CHECK(truncate(std::nextafter(0x1p63, 0)) == 9223372036854774784);
}

TEST_CASE("an i64 is rounded to a float once, and wraps into an integer") {
  auto const stored = [](DType dtype, std::int64_t value) {
    std::array<std::byte, 8> element{};
    store_whole(dtype, element.data(), value);
    return std::pair(load_whole(dtype, element.data()), load_real(dtype, element.data()));
  };
  std::int64_t const beyond_tie = (std::int64_t{1} << 60) + (std::int64_t{1} << 52) + 1;  // as a double it is the tie itself
  CHECK(stored(DType::bf16, beyond_tie).second == 0x1p60 + 0x1p53);
  CHECK(stored(DType::bf16, -beyond_tie).second == -0x1p60 - 0x1p53);
  CHECK(stored(DType::bf16, beyond_tie - 1).second == 0x1p60);
  CHECK(stored(DType::f32, (std::int64_t{1} << 60) + (std::int64_t{1} << 36) + 1).second == 0x1p60 + 0x1p37);
  CHECK(stored(DType::f16, 65519).second == 65504);
  CHECK(stored(DType::f16, 65520).second == infinity);
  CHECK(stored(DType::i64, std::numeric_limits<std::int64_t>::max()).first == std::numeric_limits<std::int64_t>::max());
  CHECK(stored(DType::i32, (std::int64_t{1} << 40) + 7).first == 7);
  CHECK(stored(DType::u8, -1).first == 255);
  CHECK(stored(DType::boolean, 256).first == 1);
  std::mt19937_64 random(2);
  for (int i = 0; i < 100'000; ++i) {
    std::int64_t const value = static_cast<std::int64_t>(random()) >> (random() % 64);
    // An independent single rounding: an 80-bit long double holds every i64.
    long double const exact = value;
    double const ours = stored(DType::bf16, value).second;
    auto const bits = static_cast<std::uint16_t>(to_bf16(ours));
    auto const distance = [&](std::uint16_t other) { return std::abs(static_cast<long double>(from_bf16(other)) - exact); };
    if (value != 0 && (distance(bits) > distance(static_cast<std::uint16_t>(bits + 1)) || distance(bits) > distance(static_cast<std::uint16_t>(bits - 1))))
      FAIL_CHECK(value);
  }
}

TEST_CASE("philox gives Random123's known answers") {
  using Words = std::array<std::uint32_t, 4>;
  CHECK(philox({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  std::uint32_t const ones = 0xffffffff;
  CHECK(philox({ones, ones, ones, ones}, {ones, ones}) == Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) == Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("an element of a stream is a function of seed, offset and index alone") {
  std::uint64_t const seed = 0x0123456789abcdef, offset = 0xfedcba9876543210, index = (std::uint64_t{5} << 34) + 7;
  auto const lanes =
      philox({static_cast<std::uint32_t>(index / 4), static_cast<std::uint32_t>(index / 4 >> 32), 0x76543210, 0xfedcba98}, {0x89abcdef, 0x01234567});
  CHECK(uniform(seed, offset, index) == (lanes[index % 4] >> 8) * 0x1p-24);
  std::vector<double> forward, backward;
  for (std::uint64_t i = 0; i < 1000; ++i) forward.push_back(normal(seed, offset, i));
  for (std::uint64_t i = 1000; i-- > 0;) backward.push_back(normal(seed, offset, i));
  std::ranges::reverse(backward);
  CHECK(forward == backward);
  std::set<double> distinct;
  for (std::uint64_t i = 0; i < 50; ++i) distinct.insert({uniform(i, 0, 0), uniform(7777, i + 1, 0), uniform(7777, 0, i)});
  CHECK(distinct.size() >= 148);
  double const even = normal(1, 2, 10), odd = normal(1, 2, 11);
  auto const pair = philox({5, 0, 2, 0}, {1, 0});
  double const radius = std::sqrt(-2 * std::log(((static_cast<std::uint64_t>(pair[0]) << 21 | pair[1] >> 11) + 1) * 0x1p-53));
  CHECK(std::hypot(even, odd) == doctest::Approx(radius).epsilon(1e-12));
}

namespace {

/// The Kolmogorov-Smirnov statistic of a sample against a distribution, times the root of its size; above 1.95 once in a thousand.
template <class Cdf>
double ks(std::vector<double> sample, Cdf cdf) {
  std::ranges::sort(sample);
  double worst = 0;
  double const n = static_cast<double>(sample.size());
  for (std::size_t i = 0; i < sample.size(); ++i)
    worst = std::max({worst, std::abs(cdf(sample[i]) - static_cast<double>(i) / n), std::abs(cdf(sample[i]) - static_cast<double>(i + 1) / n)});
  return worst * std::sqrt(n);
}

struct Moments {
  double mean, variance;
};

Moments moments(std::vector<double> const& sample) {
  double sum = 0, squares = 0;
  for (double const x : sample) sum += x, squares += x * x;
  double const n = static_cast<double>(sample.size()), mean = sum / n;
  return {mean, squares / n - mean * mean};
}

}  // namespace

TEST_CASE("streams have the distribution that they name") {
  constexpr int n = 200'000;
  for (std::uint64_t const seed : {0ull, 1ull, 42ull}) {
    std::vector<double> flat, bell;
    for (std::uint64_t i = 0; i < n; ++i) flat.push_back(uniform(seed, 3, i)), bell.push_back(normal(seed, 4, i));
    CHECK(std::ranges::min(flat) >= 0);
    CHECK(std::ranges::max(flat) < 1);
    CHECK(std::abs(moments(flat).mean - 0.5) < 4 * std::sqrt(1.0 / 12 / n));
    CHECK(moments(flat).variance == doctest::Approx(1.0 / 12).epsilon(0.01));
    CHECK(ks(flat, [](double x) { return x; }) < 1.95);
    CHECK(std::abs(moments(bell).mean) < 4 / std::sqrt(n));
    CHECK(moments(bell).variance == doctest::Approx(1).epsilon(0.02));
    CHECK(ks(bell, [](double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }) < 1.95);
    double across = 0;  // the two of a pair, and neighbours of a block, do not correlate
    for (std::size_t i = 0; i + 1 < n; ++i) across += bell[i] * bell[i + 1];
    CHECK(std::abs(across / n) < 4 / std::sqrt(n));
  }
}
