// Included once for each instruction set, in a namespace and under a target of its own.

template <class T>
inline constexpr Lane lane_of = std::is_same_v<T, float>    ? Lane::f32
                                : std::is_same_v<T, double> ? Lane::f64
                                                            : Lane::i64;

// What a row's formula is written in: one word for all lanes. Whole numbers wrap.
inline float exp_(float x) { return tn_exp(x); }
inline double exp_(double x) { return std::exp(x); }
inline float expm1_(float x) { return tn_expm1(x); }
inline double expm1_(double x) { return std::expm1(x); }
inline float log_(float x) { return tn_log(x); }
inline double log_(double x) { return std::log(x); }
inline float log1p_(float x) { return tn_log1p(x); }
inline double log1p_(double x) { return std::log1p(x); }
inline float log2_(float x) { return tn_log2(x); }
inline double log2_(double x) { return std::log2(x); }
inline float tanh_(float x) { return tn_tanh(x); }
inline double tanh_(double x) { return std::tanh(x); }
inline float erf_(float x) { return tn_erf(x); }
inline double erf_(double x) { return std::erf(x); }
inline float sigmoid_(float x) { return tn_sigmoid(x); }
inline double sigmoid_(double x) {
  double const e = std::exp(-std::fabs(x));
  return (x < 0 ? e : 1) / (1 + e);
}
inline float sqrt_(float x) { return __builtin_sqrtf(x); }
inline double sqrt_(double x) { return __builtin_sqrt(x); }
inline float abs_(float x) { return __builtin_fabsf(x); }
inline double abs_(double x) { return __builtin_fabs(x); }
inline std::int64_t abs_(std::int64_t x) { return tn_abs_i64(x); }
template <class T>
T plus_(T a, T b) {
  if constexpr (std::is_same_v<T, std::int64_t>)
    return tn_add_i64(a, b);
  else
    return a + b;
}
template <class T>
T times_(T a, T b) {
  if constexpr (std::is_same_v<T, std::int64_t>)
    return tn_mul_i64(a, b);
  else
    return a * b;
}
template <class T>
T minus_(T a, T b) {
  if constexpr (std::is_same_v<T, std::int64_t>)
    return tn_sub_i64(a, b);
  else
    return a - b;
}

template <class T, auto formula>
void over_block(void const* const* in, void* out, std::int64_t n, double const* attributes) {
  auto const number = [](double a) { return std::is_same_v<T, std::int64_t> ? static_cast<T>(base::truncate(a)) : static_cast<T>(a); };
  T const a = number(attributes[0]), b = number(attributes[1]);
  auto const* const x = static_cast<T const*>(in[0]);
  auto const* const y = static_cast<T const*>(in[1]);
  auto const* const z = static_cast<T const*>(in[2]);
  auto* __restrict const to = static_cast<T*>(out);
  for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(formula(x[i], y[i], z[i], a, b));
}
template <auto formula>
constexpr BlockRow real(ir::OpDef const& op) {
  return {&op, {over_block<float, formula>, over_block<double, formula>, nullptr}};
}
// An attribute that chooses one of two formulas.
template <class T, auto zero, auto other>
void chosen_block(void const* const* in, void* out, std::int64_t n, double const* attributes) {
  attributes[0] == 0 ? over_block<T, zero>(in, out, n, attributes) : over_block<T, other>(in, out, n, attributes);
}
template <auto zero, auto other>
constexpr BlockRow real(ir::OpDef const& op) {
  return {&op, {chosen_block<float, zero, other>, chosen_block<double, zero, other>, nullptr}};
}
template <auto formula>
constexpr BlockRow any(ir::OpDef const& op) {
  return {&op, {over_block<float, formula>, over_block<double, formula>, over_block<std::int64_t, formula>}};
}

// A row: op and its element over x, y, z and attributes a, b.
// clang-format off
constexpr std::array rows{
    any<[](auto x, auto y, auto, auto a, auto) { return plus_(x, times_(a, y)); }>(ir::ops::add),
    any<[](auto x, auto y, auto, auto a, auto) { return minus_(x, times_(a, y)); }>(ir::ops::sub),
    any<[](auto x, auto y, auto, auto, auto) { return times_(x, y); }>(ir::ops::mul),
    real<[](auto x, auto y, auto, auto, auto) { return x / y; }>(ir::ops::div),
    any<[](auto x, auto, auto, auto, auto) { return minus_(decltype(x)(-0.0), x); }>(ir::ops::neg),
    any<[](auto x, auto, auto, auto, auto) { return abs_(x); }>(ir::ops::abs),
    any<[](auto x, auto, auto, auto, auto) { return times_(x, x); }>(ir::ops::square),
    any<[](auto x, auto y, auto, auto, auto) { return x > y || x != x ? x : y; }>(ir::ops::maximum),
    any<[](auto x, auto y, auto, auto, auto) { return x < y || x != x ? x : y; }>(ir::ops::minimum),
    any<[](auto x, auto y, auto, auto, auto) { return x == y; }>(ir::ops::eq),
    any<[](auto x, auto y, auto, auto, auto) { return x != y; }>(ir::ops::ne),
    any<[](auto x, auto y, auto, auto, auto) { return x < y; }>(ir::ops::lt),
    any<[](auto x, auto y, auto, auto, auto) { return x <= y; }>(ir::ops::le),
    any<[](auto x, auto y, auto, auto, auto) { return x > y; }>(ir::ops::gt),
    any<[](auto x, auto y, auto, auto, auto) { return x >= y; }>(ir::ops::ge),
    any<[](auto x, auto y, auto, auto, auto) { return (x != 0) & (y != 0); }>(ir::ops::logical_and),
    any<[](auto x, auto y, auto, auto, auto) { return (x != 0) | (y != 0); }>(ir::ops::logical_or),
    any<[](auto x, auto, auto, auto, auto) { return x == 0; }>(ir::ops::logical_not),
    any<[](auto x, auto, auto, auto, auto) { return x != x; }>(ir::ops::isnan),
    any<[](auto x, auto y, auto z, auto, auto) { return x != 0 ? y : z; }>(ir::ops::where),
    real<[](auto x, auto y, auto, auto a, auto) { return y != 0 ? a : x; }>(ir::ops::masked_fill),
    real<[](auto x, auto, auto, auto a, auto b) {
      auto const low = x < a ? a : x;
      return low > b ? b : low;
    }>(ir::ops::clamp),
    real<[](auto x, auto y, auto z, auto, auto) { return abs_(z) < decltype(x)(0.5) ? x + z * (y - x) : y - (y - x) * (1 - z); }>(ir::ops::lerp),
    any<[](auto x, auto, auto, auto, auto) { return x <= 0 ? decltype(x)(0) : x; }>(ir::ops::relu),
    real<[](auto x, auto, auto, auto a, auto) { return x > 0 ? x : x * a; }>(ir::ops::leaky_relu),
    any<[](auto x, auto, auto, auto, auto) { return (x > 0) - (x < 0); }>(ir::ops::sign),
    real<[](auto x, auto, auto, auto, auto) { return exp_(x); }>(ir::ops::exp),
    real<[](auto x, auto, auto, auto, auto) { return expm1_(x); }>(ir::ops::expm1),
    real<[](auto x, auto, auto, auto, auto) { return log_(x); }>(ir::ops::log),
    real<[](auto x, auto, auto, auto, auto) { return log1p_(x); }>(ir::ops::log1p),
    real<[](auto x, auto, auto, auto, auto) { return log2_(x); }>(ir::ops::log2),
    real<[](auto x, auto, auto, auto, auto) { return sqrt_(x); }>(ir::ops::sqrt),
    real<[](auto x, auto, auto, auto, auto) { return 1 / sqrt_(x); }>(ir::ops::rsqrt),
    real<[](auto x, auto, auto, auto, auto) { return 1 / x; }>(ir::ops::reciprocal),
    real<[](auto x, auto, auto, auto, auto) { return tanh_(x); }>(ir::ops::tanh),
    real<[](auto x, auto, auto, auto, auto) { return sigmoid_(x); }>(ir::ops::sigmoid),
    real<[](auto x, auto, auto, auto, auto) { return x * sigmoid_(x); }>(ir::ops::silu),
    real<[](auto x, auto, auto, auto, auto) { return erf_(x); }>(ir::ops::erf),
    real<[](auto x, auto, auto, auto, auto) { return decltype(x)(0.5) * x * (1 + erf_(x * decltype(x)(0.7071067811865476))); },
         [](auto x, auto, auto, auto, auto) {
           using T = decltype(x);
           if constexpr (std::is_same_v<T, float>) return tn_gelu_tanh(x);
           return T(0.5) * x * (1 + tanh_(T(0.7978845608028654) * (x + T(0.044715) * x * x * x)));
         }>(ir::ops::gelu),
    any<[](auto x, auto, auto, auto, auto) { return x; }>(ir::ops::clone),
};
// clang-format on

template <class From, class To>
void convert_block(void const* x, void* y, std::int64_t n) {
  auto const* const from = static_cast<From const*>(x);
  auto* __restrict const to = static_cast<To*>(y);
  for (std::int64_t i = 0; i < n; ++i)
    if constexpr (std::is_same_v<To, std::int64_t> && !std::is_same_v<From, std::int64_t>)
      to[i] = tn_whole(static_cast<double>(from[i]));
    else
      to[i] = static_cast<To>(from[i]);
}
using Convert = void (*)(void const*, void*, std::int64_t);
template <class From>
constexpr std::array<Convert, 3> from_lane{convert_block<From, float>, convert_block<From, double>, convert_block<From, std::int64_t>};
void convert(Lane from, void const* x, Lane to, void* y, std::int64_t n) {
  constexpr std::array<std::array<Convert, 3>, 3> table{from_lane<float>, from_lane<double>, from_lane<std::int64_t>};
  table[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)](x, y, n);
}

template <class T>
void settle_block(DType dtype, void* x, std::int64_t n) {
  auto* const values = static_cast<T*>(x);
  auto const each = [&](auto&& rounded) {
    for (std::int64_t i = 0; i < n; ++i) values[i] = static_cast<T>(rounded(values[i]));
  };
  auto const narrow = [](auto v) {  // for one more rounding
    if constexpr (std::is_same_v<T, float>)
      return v;
    else if constexpr (std::is_same_v<T, double>)
      return tn_odd(v);
    else
      return tn_odd_i64(v);
  };
  switch (dtype) {
    case DType::f64:
      return;
    case DType::f32:
      return each([](T v) { return static_cast<float>(v); });
    case DType::f16:
      return each([&](T v) { return tn_from_f16(tn_to_f16(narrow(v))); });
    case DType::bf16:
      return each([&](T v) { return tn_from_bf16(tn_to_bf16(narrow(v))); });
    case DType::f8e4m3:
      return each([&](T v) { return tn_from_f8e4m3(tn_to_f8e4m3(narrow(v))); });
    case DType::f8e5m2:
      return each([&](T v) { return tn_from_f8e5m2(tn_to_f8e5m2(narrow(v))); });
    case DType::boolean:
      return each([](T v) { return v != 0; });
    default:
      break;
  }
  if constexpr (std::is_same_v<T, std::int64_t>) switch (dtype) {
      case DType::i32:
        return each([](T v) { return static_cast<std::int32_t>(v); });
      case DType::i16:
        return each([](T v) { return static_cast<std::int16_t>(v); });
      case DType::i8:
        return each([](T v) { return static_cast<std::int8_t>(v); });
      case DType::u8:
        return each([](T v) { return static_cast<std::uint8_t>(v); });
      default:
        break;
    }
}
void settle(DType dtype, Lane lane, void* x, std::int64_t n) {
  if (lane == Lane::f32)
    dtype == DType::f32 ? void() : settle_block<float>(dtype, x, n);
  else if (lane == Lane::f64)
    settle_block<double>(dtype, x, n);
  else
    settle_block<std::int64_t>(dtype, x, n);
}

template <class Memory, class T, auto read>
void read_block(std::byte const* from, std::int64_t stride, void* y, std::int64_t n) {
  auto const* const x = reinterpret_cast<Memory const*>(from);
  auto* __restrict const to = static_cast<T*>(y);
  if (stride == 1)
    for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(read(x[i]));
  else if (stride == 0)
    std::fill_n(to, n, static_cast<T>(read(x[0])));
  else
    for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(read(x[i * stride]));
}
template <class Memory, class T, auto write>
void write_block(std::byte* to, std::int64_t stride, void const* x, std::int64_t n) {
  auto const* const from = static_cast<T const*>(x);
  auto* const y = reinterpret_cast<Memory*>(to);
  if (stride == 1)
    for (std::int64_t i = 0; i < n; ++i) y[i] = static_cast<Memory>(write(from[i]));
  else
    for (std::int64_t i = 0; i < n; ++i) y[i * stride] = static_cast<Memory>(write(from[i]));
}
// How a dtype is held and the functions between memory and that lane.
struct Memory {
  Lane lane;
  void (*read)(std::byte const*, std::int64_t, void*, std::int64_t);
  void (*write)(std::byte*, std::int64_t, void const*, std::int64_t);
};
template <class M, class T, auto read = [](M v) { return v; }, auto write = [](T v) { return v; }>
constexpr Memory memory{lane_of<T>, read_block<M, T, read>, write_block<M, T, write>};
using u16 = std::uint16_t;
using u8 = std::uint8_t;
constexpr std::array<Memory, base::dtype_count> memories{
    memory<double, double>,
    memory<float, float>,
    memory<u16, float, [](u16 v) { return tn_from_f16(v); }, [](float v) { return tn_to_f16(v); }>,
    memory<u16, float, [](u16 v) { return tn_from_bf16(v); }, [](float v) { return tn_to_bf16(v); }>,
    memory<u8, float, [](u8 v) { return tn_from_f8e4m3(v); }, [](float v) { return tn_to_f8e4m3(v); }>,
    memory<u8, float, [](u8 v) { return tn_from_f8e5m2(v); }, [](float v) { return tn_to_f8e5m2(v); }>,
    memory<std::int64_t, std::int64_t>,
    memory<std::int32_t, std::int64_t>,
    memory<std::int16_t, std::int64_t>,
    memory<std::int8_t, std::int64_t, [](std::int8_t v) -> std::int64_t { return v; }>,
    memory<u8, std::int64_t>,
    memory<u8, float, [](u8 v) { return v != 0; }, [](float v) { return v != 0; }>,
};
void load(DType dtype, std::byte const* from, std::int64_t stride, Lane lane, void* y, std::int64_t n) {
  auto const& how = memories[static_cast<std::size_t>(dtype)];
  if (how.lane == lane) return how.read(from, stride, y, n);
  alignas(64) std::array<std::byte, 8 * block_length> held;
  how.read(from, stride, held.data(), n);
  convert(how.lane, held.data(), lane, y, n);
}
void store(DType dtype, std::byte* to, std::int64_t stride, Lane lane, void const* x, std::int64_t n) {
  auto const& how = memories[static_cast<std::size_t>(dtype)];
  if (how.lane == lane) return how.write(to, stride, x, n);
  auto const bytes = base::bytes_of(dtype);
  for (std::int64_t i = 0; i < n; ++i) {  // what a value is rounded from decides: no lane stands between
    auto* const at = to + i * stride * bytes;
    if (lane == Lane::i64)
      base::store_whole(dtype, at, static_cast<std::int64_t const*>(x)[i]);
    else
      base::store_real(dtype, at, lane == Lane::f32 ? static_cast<double>(static_cast<float const*>(x)[i]) : static_cast<double const*>(x)[i]);
  }
}

template <class T>
T larger(T a, T b) {
  return a > b || a != a ? a : b;
}
template <class T>
T smaller(T a, T b) {
  return a < b || a != a ? a : b;
}
// Sixteen lanes side by side, so that the order of additions depends on the block alone.
template <class T, auto combine>
T fold_lanes(T const* x, std::int64_t n, T start) {
  constexpr std::int64_t width = 16;
  std::array<T, width> lanes;
  lanes.fill(start);
  std::int64_t i = 0;
  for (; i + width <= n; i += width)
    for (std::int64_t l = 0; l < width; ++l) lanes[static_cast<std::size_t>(l)] = combine(lanes[static_cast<std::size_t>(l)], x[i + l]);
  for (; i < n; ++i) lanes[static_cast<std::size_t>(i % width)] = combine(lanes[static_cast<std::size_t>(i % width)], x[i]);
  for (std::size_t half = width / 2; half > 0; half /= 2)
    for (std::size_t l = 0; l < half; ++l) lanes[l] = combine(lanes[l], lanes[l + half]);
  return lanes[0];
}
template <class T, class U>
void fold_block(Monoid monoid, T const* x, std::int64_t n, U& total) {
  constexpr auto plus = [](auto a, auto b) { return plus_(a, b); };
  constexpr auto bigger = [](auto a, auto b) { return larger(a, b); };
  constexpr auto lesser = [](auto a, auto b) { return smaller(a, b); };
  switch (monoid) {
    case Monoid::sum:
      total = plus_(total, static_cast<U>(fold_lanes<T, plus>(x, n, T(0))));
      return;
    case Monoid::prod:
      for (std::int64_t i = 0; i < n; ++i) total = times_(total, static_cast<U>(x[i]));
      return;
    case Monoid::max:
      total = n ? larger(total, static_cast<U>(fold_lanes<T, bigger>(x, n, x[0]))) : total;
      return;
    default:
      total = n ? smaller(total, static_cast<U>(fold_lanes<T, lesser>(x, n, x[0]))) : total;
      return;
  }
}
void fold(Monoid monoid, Lane lane, void const* x, std::int64_t n, Total& total) {
  if (lane == Lane::f32)
    fold_block(monoid, static_cast<float const*>(x), n, total.real);
  else if (lane == Lane::f64)
    fold_block(monoid, static_cast<double const*>(x), n, total.real);
  else
    fold_block(monoid, static_cast<std::int64_t const*>(x), n, total.whole);
}
template <class T, class U>
void fold_each_block(Monoid monoid, T const* __restrict x, std::int64_t n, U* __restrict totals) {
  auto const each = [&](auto&& combine) {
    for (std::int64_t i = 0; i < n; ++i) totals[i] = combine(totals[i], static_cast<U>(x[i]));
  };
  switch (monoid) {
    case Monoid::sum:
      return each([](U a, U b) { return plus_(a, b); });
    case Monoid::prod:
      return each([](U a, U b) { return times_(a, b); });
    case Monoid::max:
      return each([](U a, U b) { return larger(a, b); });
    default:
      return each([](U a, U b) { return smaller(a, b); });
  }
}
void fold_each(Monoid monoid, Lane lane, void const* x, std::int64_t n, void* totals) {
  if (lane == Lane::f32)
    fold_each_block(monoid, static_cast<float const*>(x), n, static_cast<double*>(totals));
  else if (lane == Lane::f64)
    fold_each_block(monoid, static_cast<double const*>(x), n, static_cast<double*>(totals));
  else
    fold_each_block(monoid, static_cast<std::int64_t const*>(x), n, static_cast<std::int64_t*>(totals));
}

constexpr Blocks set{rows, convert, settle, load, store, fold, fold_each};
