// The C that generated kernels begin with, and elements of ops as C: compiled by the system's compiler and held to libm, to base and to the element functions.
#include <doctest/doctest.h>
#include <cstdio>
import std;
import tenon.base;
import tenon.ir;
import tenon.device;
import tenon.fusion;
#include "op_samples.hpp"
using namespace tenon;
using base::DType;

namespace {

bool skipped(std::string_view what) {
  if (device::toolchain()) return false;
  std::cout << "SKIP: " << what << ": no C compiler on this machine\n";
  return true;
}

/// C behind the prelude, compiled and loaded.
class Compiled {
 public:
  explicit Compiled(std::string_view text)
      : library_(device::compile(*device::toolchain(), std::string(fusion::prelude()).append(text)).bytes, "tenon_fusion_math") {}
  template <class F>
  F* function(std::string const& name) const {
    auto* const found = reinterpret_cast<F*>(library_.symbol(name));
    REQUIRE_MESSAGE((found != nullptr), name);
    return found;
  }

 private:
  device::Library library_;
};

// A row: function, its value in double, the bound in units of the last place, and whether --full goes through every float.
struct Function {
  std::string_view name, exact;
  double bound;
  bool every = false;
};
constexpr std::array functions{
    Function{"exp", "__builtin_exp(x)", 2, true},   Function{"erf", "__builtin_erf(x)", 2, true},
    Function{"tanh", "__builtin_tanh(x)", 2, true}, Function{"expm1", "__builtin_expm1(x)", 2},
    Function{"log", "__builtin_log(x)", 2},         Function{"log1p", "__builtin_log1p(x)", 2},
    Function{"log2", "__builtin_log2(x)", 2},       Function{"sigmoid", "(x < 0 ? __builtin_exp(x) / (1 + __builtin_exp(x)) : 1 / (1 + __builtin_exp(-x)))", 4},
    Function{"erfc", "__builtin_erfc(x)", 4},       Function{"sin", "__builtin_sin(x)", 4},
    Function{"cos", "__builtin_cos(x)", 4},         Function{"exp_down", "(x > 43 ? to[j] : __builtin_exp(x))", 2, true},
};
// Units of the last place between a float and the exact value: both NaN, equal infinities and equal zeros are 0 apart, other differences of kind are huge.
constexpr std::string_view distance_text = R"(
static double tn_distance(float got, double want) {
  float const nearest = (float)want;
  int exponent;
  if (want != want || got != got) return want != want && got != got ? 0 : 1e9;
  if (__builtin_isinf(nearest) || __builtin_isinf(got))
    return nearest == got ? 0 : __builtin_fabs(want) < 0x1.000002p128 && __builtin_fabsf(got) >= 0x1.fffffcp127f && (got < 0) == (want < 0) ? 1 : 1e9;
  if (!__builtin_signbit(got) != !__builtin_signbit(want)) return 1e8;
  if (want == 0) return got / 0x1p-149f;
  __builtin_frexp(want, &exponent);
  exponent = exponent - 24 < -149 ? -149 : exponent - 24;
  return __builtin_fabs((double)got - want) / __builtin_ldexp(1, exponent);
}
)";
std::string checker(Function const& function) {
  return std::format(R"(
__attribute__((noinline)) void loop_{0}(float const* restrict from, float* restrict to, long n) {{
  for (long j = 0; j < n; ++j) to[j] = tn_{0}(from[j]);
}}
double worst_{0}(unsigned first, unsigned step, float* where) {{
  float from[1024], to[1024];
  double worst = 0;
  unsigned long long at = first;
  while (at < 1ULL << 32) {{
    long n = 0;
    for (; n < 1024 && at < 1ULL << 32; at += step) from[n++] = tn_float((unsigned)at);
    loop_{0}(from, to, n);
    for (long j = 0; j < n; ++j) {{
      double const x = from[j], d = tn_distance(to[j], {1});
      if (d > worst) worst = d, *where = from[j];
    }}
  }}
  return worst;
}}
)",
                     function.name, function.exact);
}

constexpr std::array<float, 34> edges{0.0f,   -0.0f,   1.0f,     -1.0f,    0.5f,     -0.5f,    2.0f,    -2.0f,    3.0f,       -3.0f,   7.5f,      -7.5f,
                                      1e-45f, -1e-45f, 1e-38f,   -1e-38f,  1e30f,    -1e30f,   1e-30f,  -1e-30f,  0.625f,     0.9f,    88.72284f, -103.9721f,
                                      448.0f, 464.0f,  65504.0f, 65520.0f, 57344.0f, 61440.0f, 0x1p-9f, 0x1p-10f, 0x1.8p-25f, 0x1p-24f};
constexpr float inf = std::numeric_limits<float>::infinity(), not_a_number = std::numeric_limits<float>::quiet_NaN();

/// Floats of every size, with those on and beside the ties of smaller formats.
std::vector<float> floats(int count, std::mt19937& random) {
  std::vector<float> all(edges.begin(), edges.end());
  for (float const v : {inf, -inf, not_a_number, -not_a_number, std::numeric_limits<float>::max(), std::numeric_limits<float>::lowest()}) all.push_back(v);
  while (std::ssize(all) < count) {
    auto const bits = static_cast<std::uint32_t>(random());
    for (std::uint32_t const mask : {0xffffffffu, 0xffff0000u, 0xffffe000u, 0xfff00000u}) {
      auto const high = bits & mask, tie = high | (~mask + 1) >> 1;
      for (std::uint32_t const b : {high, tie, tie - 1, tie + 1}) all.push_back(std::bit_cast<float>(b));
      auto const usual = (120u + bits % 16) << 23;  // near 1, where the small formats have their subnormals and ends
      all.push_back(std::bit_cast<float>((tie & 0x807fffffu) | usual));
    }
  }
  return all;
}
}  // namespace

TEST_CASE("prelude: functions of floats are within their bounds over all floats, and every loop over them is vector code") {
  if (skipped("functions of the prelude")) return;
  std::string text(distance_text);
  for (auto const& function : functions) text += checker(function);
  Compiled const library(text);
  for (auto const& function : functions) {
    float at = 0;
    auto* const worst = library.function<double(unsigned, unsigned, float*)>(std::format("worst_{}", function.name));
    auto const step = static_cast<unsigned>(support::tier(65'537, 4'099, function.every ? 1 : 257));
    double const found = worst(0, step, &at);
    CHECK_MESSAGE(found <= function.bound, function.name << ": " << found << " units of the last place at " << at);
    auto* const loop = library.function<void(float const*, float*, long)>(std::format("loop_{}", function.name));
    // Known values, so that the double functions themselves are not all that this rests on.
    constexpr std::array<float, 5> known{0.0f, inf, -inf, not_a_number, -0.0f};
    std::array<float, 5> got{};
    loop(known.data(), got.data(), 5);
    CHECK(std::isnan(got[3]));
    if (function.name == "exp") CHECK((got[0] == 1 && got[1] == inf && got[2] == 0));
    if (function.name == "tanh" || function.name == "erf") CHECK((got[0] == 0 && got[1] == 1 && got[2] == -1));
    if (function.name == "tanh" || function.name == "erf" || function.name == "expm1" || function.name == "log1p" || function.name == "sin")
      CHECK((got[4] == 0 && std::signbit(got[4])));
    if (function.name == "log") CHECK((got[0] == -inf && got[1] == inf && std::isnan(got[2])));
    if (function.name == "sigmoid") CHECK((got[0] == 0.5f && got[1] == 1 && got[2] == 0));
  }
}

TEST_CASE("prelude: every loop over a function of it is vector code") {
  if (skipped("vector code of the prelude")) return;
  auto const& toolchain = *device::toolchain();
  if (!toolchain.clang || device::cpu().isa == device::Isa::baseline) {
    std::cout << "SKIP: vector code of the prelude: only clang says which loops it made vector code, and without AVX2 not all pay\n";
    return;
  }
  // A row: function, operand, result.
  constexpr std::array<std::array<std::string_view, 3>, 26> rows{{{"exp", "float", "float"},
                                                                  {"exp_down", "float", "float"},
                                                                  {"gelu_tanh", "float", "float"},
                                                                  {"expm1", "float", "float"},
                                                                  {"log", "float", "float"},
                                                                  {"log1p", "float", "float"},
                                                                  {"log2", "float", "float"},
                                                                  {"tanh", "float", "float"},
                                                                  {"sigmoid", "float", "float"},
                                                                  {"erf", "float", "float"},
                                                                  {"from_bf16", "unsigned short", "float"},
                                                                  {"from_f16", "unsigned short", "float"},
                                                                  {"from_f8e4m3", "unsigned char", "float"},
                                                                  {"from_f8e5m2", "unsigned char", "float"},
                                                                  {"to_bf16", "float", "unsigned short"},
                                                                  {"to_f16", "float", "unsigned short"},
                                                                  {"to_f8e4m3", "float", "unsigned char"},
                                                                  {"to_f8e5m2", "float", "unsigned char"},
                                                                  {"odd", "double", "float"},
                                                                  {"key", "float", "int"},
                                                                  {"key_min", "float", "int"},
                                                                  {"unkey", "int", "float"},
                                                                  {"key_d", "double", "tn_i64"},
                                                                  {"unkey_d", "tn_i64", "double"},
                                                                  {"whole", "double", "tn_i64"},
                                                                  {"abs_i64", "tn_i64", "tn_i64"}}};
  std::string text;
  for (auto const& [name, from, to] : rows)
    text += std::format("void loop_{0}({1} const* restrict from, {2} * restrict to, long n) {{ for (long j = 0; j < n; ++j) to[j] = tn_{0}(from[j]); }}\n",
                        name, from, to);
  text +=
      "int top(float const* from, long n) { int k = -0x7fffffff - 1; for (long j = 0; j < n; ++j) { int const m = tn_key(from[j]); k = m > k ? m : k; } return "
      "k; }\n";
  auto const source = std::filesystem::temp_directory_path() / std::format("tenon_math_{}.c", std::random_device{}());
  std::ofstream(source) << fusion::prelude() << text;
  auto command = toolchain.path;
  for (auto const& flag : device::compile_flags(toolchain)) command += " " + flag;
  command += std::format(" -Rpass=loop-vectorize -c -o /dev/null '{}' 2>&1", source.string());
  std::string said;
  if (auto* const pipe = popen(command.c_str(), "r")) {
    std::array<char, 4096> bytes{};
    for (std::size_t n; (n = std::fread(bytes.data(), 1, bytes.size(), pipe)) > 0;) said.append(bytes.data(), n);
    CHECK(pclose(pipe) == 0);
  }
  std::filesystem::remove(source);
  std::size_t count = 0;
  for (std::size_t at = 0; (at = said.find("vectorized loop", at)) != std::string::npos; ++at) ++count;
  CHECK_MESSAGE(count == rows.size() + 1, said);
}

TEST_CASE("prelude: conversions of small floats have the bits that base gives, from floats, doubles and whole numbers") {
  if (skipped("conversions of the prelude")) return;
  std::string text;
  for (std::string_view const name : {"bf16", "f16", "f8e4m3", "f8e5m2"}) {
    std::string_view const bits = name.starts_with("f8") ? "unsigned char" : "unsigned short";
    text += std::format(
        "void widen_{0}({1} const* x, float* y, long n) {{ for (long j = 0; j < n; ++j) y[j] = tn_from_{0}(x[j]); }}\n"
        "void narrow_{0}(float const* x, {1}* y, long n) {{ for (long j = 0; j < n; ++j) y[j] = tn_to_{0}(x[j]); }}\n"
        "void narrow_d_{0}(double const* x, {1}* y, long n) {{ for (long j = 0; j < n; ++j) y[j] = tn_to_{0}(tn_odd(x[j])); }}\n"
        "void narrow_i_{0}(tn_i64 const* x, {1}* y, long n) {{ for (long j = 0; j < n; ++j) y[j] = tn_to_{0}(tn_odd_i64(x[j])); }}\n",
        name, bits);
  }
  Compiled const library(text);
  std::mt19937 random(7);
  auto const reals = floats(support::tier(20'000, 200'000, 4'000'000), random);
  std::vector<double> wide;
  std::vector<std::int64_t> whole{0, 1, -1, std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()};
  for (float const x : reals) {
    double const step = random() % 2 ? 1e300 : 0.0;
    for (double const v : {double{x}, std::nextafter(double{x}, step), std::nextafter(double{x}, -step)}) wide.push_back(v);
    if (std::fabs(x) < 1e18f) whole.push_back(static_cast<std::int64_t>(x) + static_cast<std::int64_t>(random() % 3) - 1);
  }
  wide.insert(wide.end(), {1e300, -1e300, 1e-300, -1e-300, 5e-324});
  auto const check = [&]<class Bits>(std::string const& name, Bits, float (*widen)(Bits), Bits (*narrow)(double), DType dtype) {
    std::vector<Bits> all(std::size_t{1} << (8 * sizeof(Bits)));
    std::iota(all.begin(), all.end(), Bits{0});
    std::vector<float> wider(all.size());
    library.function<void(Bits const*, float*, long)>("widen_" + name)(all.data(), wider.data(), std::ssize(all));
    int faults = 0;
    for (std::size_t k = 0; k < all.size(); ++k) {
      float const want = widen(all[k]);
      if (std::bit_cast<std::uint32_t>(want) != std::bit_cast<std::uint32_t>(wider[k]) && ++faults < 4)
        FAIL_CHECK(name << " of bits " << k << " is " << want << ", not " << wider[k]);
    }
    auto const compare = [&](auto const& from, std::string const& function, auto expected) {
      using From = std::remove_cvref_t<decltype(from[0])>;
      std::vector<Bits> got(from.size());
      library.function<void(From const*, Bits*, long)>(function + name)(from.data(), got.data(), std::ssize(from));
      for (std::size_t k = 0; k < from.size(); ++k)
        if (Bits const want = expected(from[k]); want != got[k] && ++faults < 8)
          FAIL_CHECK(function << name << " of " << from[k] << " has bits " << int{want} << ", not " << int{got[k]});
    };
    compare(reals, "narrow_", [&](float x) { return narrow(double{x}); });
    compare(wide, "narrow_d_", [&](double x) { return narrow(x); });
    compare(whole, "narrow_i_", [&](std::int64_t x) {
      Bits bits{};
      base::store_whole(dtype, &bits, x);
      return bits;
    });
  };
  check("bf16", std::uint16_t{}, base::from_bf16, base::to_bf16, DType::bf16);
  check("f16", std::uint16_t{}, base::from_f16, base::to_f16, DType::f16);
  check("f8e4m3", std::uint8_t{}, base::from_f8e4m3, base::to_f8e4m3, DType::f8e4m3);
  check("f8e5m2", std::uint8_t{}, base::from_f8e5m2, base::to_f8e5m2, DType::f8e5m2);
}

TEST_CASE("prelude: keys are in the order of floats with NaN at the chosen end, and come back") {
  if (skipped("keys of the prelude")) return;
  Compiled const library(R"(
int key(float x) { return tn_key(x); }
int low(float x) { return tn_key_min(x); }
float back(int k) { return tn_unkey(k); }
tn_i64 key_d(double x) { return tn_key_d(x); }
tn_i64 low_d(double x) { return tn_key_min_d(x); }
double back_d(tn_i64 k) { return tn_unkey_d(k); }
tn_i64 whole(double x) { return tn_whole(x); }
)");
  auto* const key = library.function<int(float)>("key");
  auto* const low = library.function<int(float)>("low");
  auto* const back = library.function<float(int)>("back");
  auto* const key_d = library.function<std::int64_t(double)>("key_d");
  auto* const low_d = library.function<std::int64_t(double)>("low_d");
  auto* const back_d = library.function<double(std::int64_t)>("back_d");
  auto* const whole = library.function<std::int64_t(double)>("whole");
  std::mt19937 random(8);
  auto const values = floats(400, random);
  for (float const a : values) {
    float const again = back(key(a)), again_low = back(low(a));
    CHECK((std::isnan(a) ? std::isnan(again) && std::isnan(again_low) : again == a && again_low == a && std::signbit(again) == std::signbit(a)));
    double const twice = back_d(key_d(a)), twice_low = back_d(low_d(a));
    CHECK((std::isnan(a) ? std::isnan(twice) && std::isnan(twice_low) : twice == double{a} && twice_low == double{a}));
    CHECK(whole(a) == base::truncate(a));
    for (float const b : values) {
      bool const rises = std::isnan(b) ? !std::isnan(a) : a < b, falls = std::isnan(a) ? !std::isnan(b) : a < b;
      if (rises && !(key(a) < key(b) && key_d(a) < key_d(b))) FAIL_CHECK("keys of " << a << " and " << b);
      if (falls && !(low(a) < low(b) && low_d(a) < low_d(b))) FAIL_CHECK("keys for minima of " << a << " and " << b);
    }
  }
  for (double const x : {0x1p63, -0x1p63, 0x1.fffffffffffffp62, 1e300, -1e300}) CHECK(whole(x) == base::truncate(x));
}

TEST_CASE("elements of ops are printed as C of the type that is computed in") {
  auto const text = [](std::string_view name, std::vector<std::string> const& operands, DType compute, ir::Attrs const& attrs) {
    return fusion::element_text(*ir::find_op(name), attrs, operands, compute);
  };
  auto const usual = [&](std::string_view name, std::vector<std::string> const& operands, DType compute) {
    return text(name, operands, compute, ir::default_attrs(*ir::find_op(name)));
  };
  CHECK(usual("exp", {"v1"}, DType::f32) == "tn_exp(v1)");
  CHECK(usual("exp", {"v1"}, DType::f64) == "__builtin_exp(v1)");
  CHECK(usual("abs", {"v1"}, DType::f32) == "__builtin_fabsf(v1)");
  CHECK(usual("abs", {"v1"}, DType::i64) == "tn_abs_i64(v1)");
  CHECK(usual("neg", {"-1.0f"}, DType::f32) == "-(-1.0f)");
  CHECK(usual("add", {"v1", "v2"}, DType::f32) == "(v1 + v2)");
  CHECK(usual("add", {"v1", "v2"}, DType::i64) == "tn_add_i64(v1, tn_mul_i64(1, v2))");
  CHECK(text("add", {"v1", "v2"}, DType::f32, ir::Attrs{}.with_num(-0.1)) == "(v1 + (-0.1f) * v2)");
  CHECK(text("sub", {"v1", "v2"}, DType::f64, ir::Attrs{}.with_num(2)) == "(v1 - 2.0 * v2)");
  CHECK(usual("gelu", {"x"}, DType::f32) == "0.5f * x * (1 + tn_erf(x * 0.7071067811865476f))");
  CHECK(text("gelu", {"x"}, DType::f64, ir::Attrs{}.with(1)) == "0.5 * x * (1 + __builtin_tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))");
  CHECK(usual("sigmoid", {"x"}, DType::f32) == "tn_sigmoid(x)");
  CHECK(usual("floor", {"x"}, DType::i64) == "x");
  CHECK(text("clamp", {"x"}, DType::f32, ir::Attrs{}.with_num(0.0).with_num(ir::Scalar{})) ==
        "(x < 0.0f ? 0.0f : x > (__builtin_nanf(\"\")) ? (__builtin_nanf(\"\")) : x)");
  CHECK(fusion::number_text(ir::Scalar(1e-5), DType::f32) == "1e-05f");
  CHECK(fusion::number_text(ir::Scalar(3), DType::f64) == "3.0");
  CHECK(fusion::number_text(ir::Scalar(-2.75), DType::i64) == "-2");
  CHECK(fusion::number_text(ir::Scalar(std::numeric_limits<std::int64_t>::min()), DType::i64) == "(-9223372036854775807LL - 1)");
  CHECK(fusion::number_text(ir::Scalar(-std::numeric_limits<double>::infinity()), DType::f32) == "-__builtin_inff()");
  CHECK_THROWS_AS(usual("exp", {"x"}, DType::i64), base::Bug);
  CHECK_THROWS_AS(usual("mul", {"x"}, DType::f32), base::Bug);
}

TEST_CASE("elements of ops, compiled in each type, are the element functions") {
  if (skipped("elements of ops")) return;
  struct Row {
    ir::OpDef const* op;
    ir::Attrs attrs;
    std::string name;
    bool whole;
  };
  std::vector<Row> rows;
  std::string text;
  std::mt19937 random(9);
  for (auto const* op : ir::all_ops()) {
    if (!op->element.real) continue;
    for (auto const& call : support::samples(*op, random)) {
      Row const row{op, call.attrs, call.text, op->element.whole != nullptr};
      for (auto const& [compute, type] : {std::pair{DType::f32, "float"}, {DType::f64, "double"}, {DType::i64, "tn_i64"}}) {
        if (compute == DType::i64 && !row.whole) continue;
        std::vector<std::string> const operands{"a[j]", "b[j]", "c[j]"};
        text += std::format(
            "void {0}_{1}({0} const* restrict a, {0} const* restrict b, {0} const* restrict c, {0}* restrict y, long n) {{\n"
            "  for (long j = 0; j < n; ++j) y[j] = {2};\n}}\n",
            type, rows.size(), fusion::element_text(*op, row.attrs, operands, compute));
      }
      rows.push_back(row);
    }
  }
  CHECK(rows.size() > 60);
  Compiled const library(text);
  constexpr int n = 3'000;
  // What cancels, or steps, is off by the operands' last places; all other rows by their results'.
  auto const cancels = [](ir::OpDef const& op) { return op.terms.find('b') != std::string_view::npos || op.name == "gelu" || op.name == "remainder"; };
  auto const run = [&]<class T>(std::string_view type, T, auto special, auto drawn, auto fits) {
    for (std::size_t k = 0; k < rows.size(); ++k) {
      if (std::is_same_v<T, std::int64_t> && !rows[k].whole) continue;
      std::vector<T> in[3], got(n);
      for (auto& x : in) {
        x.resize(n);
        for (std::size_t j = 0; j < n; ++j) x[j] = random() % 2 ? special[random() % special.size()] : drawn();
      }
      library.function<void(T const*, T const*, T const*, T*, long)>(std::format("{}_{}", type, k))(in[0].data(), in[1].data(), in[2].data(), got.data(), n);
      auto const attributes = ir::element_attributes(*rows[k].op, rows[k].attrs);
      int faults = 0;
      for (std::size_t j = 0; j < n; ++j) {
        std::array<T, 3> const x{in[0][j], in[1][j], in[2][j]};
        if (fits(rows[k], x, attributes, got[j]) || ++faults > 3) continue;
        FAIL_CHECK(type << ": " << rows[k].name << " at " << x[0] << ", " << x[1] << ", " << x[2] << " is " << got[j]);
      }
    }
  };
  auto const real = [&](double last) {
    return [&, last](Row const& row, auto const& x, std::vector<double> const& attributes, auto got) {
      std::array<double, 3> const wide{static_cast<double>(x[0]), static_cast<double>(x[1]), static_cast<double>(x[2])};
      using T = decltype(got);
      double const exact = row.op->element.real(wide.data(), attributes.data());
      double const want = static_cast<double>(static_cast<T>(exact));
      if (std::isnan(want) || std::isnan(got)) return std::isnan(want) && std::isnan(got);
      if (std::isinf(want) || std::isinf(got)) return want == static_cast<double>(got);
      double scale = std::fabs(want);
      if (cancels(*row.op))
        for (double const v : wide) scale += std::isfinite(v) ? std::fabs(v) : 0;
      return std::fabs(static_cast<double>(got) - want) <= 8 * last * scale + static_cast<double>(std::numeric_limits<T>::min());
    };
  };
  std::vector<float> const narrow{0.0f, -0.0f, 1.0f, -1.0f, 0.5f, -2.5f, inf, -inf, not_a_number, 1e30f, -1e30f, 1e-30f, 100.0f, -100.0f};
  std::vector<double> const wide{0.0, -0.0, 1.0, -1.0, 0.5, -2.5, inf, -inf, not_a_number, 1e300, -1e300, 1e-300};
  using limits = std::numeric_limits<std::int64_t>;
  std::vector<std::int64_t> const whole{0, 1, -1, 2, -2, 3, -7, 63, limits::min(), limits::max(), limits::min() + 1, 1LL << 53, -(1LL << 31)};
  run("float", 0.0f, narrow, [&] { return std::uniform_real_distribution<float>(-4.0f, 4.0f)(random); }, real(0x1p-23));
  run("double", 0.0, wide, [&] { return std::uniform_real_distribution<double>(-4.0, 4.0)(random); }, real(0x1p-52));
  run(
      "tn_i64", std::int64_t{}, whole, [&] { return static_cast<std::int64_t>(random() % 41) - 20; },
      [](Row const& row, auto const& x, std::vector<double> const& attributes, std::int64_t got) {
        return row.op->element.whole(x.data(), attributes.data()) == got;
      });
}
