module tenon.base;
import std;

namespace tenon::base {
namespace {

using enum DType;
using Class = DTypeClass;

constexpr std::array<DTypeInfo, dtype_count> table{{
    {"f64", "float64", "F64", 8, Class::real},
    {"f32", "float32", "F32", 4, Class::real},
    {"f16", "float16", "F16", 2, Class::real},
    {"bf16", "bfloat16", "BF16", 2, Class::real},
    {"f8e4m3", "float8_e4m3fn", "F8_E4M3", 1, Class::real},
    {"f8e5m2", "float8_e5m2", "F8_E5M2", 1, Class::real},
    {"i64", "int64", "I64", 8, Class::integer},
    {"i32", "int32", "I32", 4, Class::integer},
    {"i16", "int16", "I16", 2, Class::integer},
    {"i8", "int8", "I8", 1, Class::integer},
    {"u8", "uint8", "U8", 1, Class::integer},
    {"bool", "bool", "BOOL", 1, Class::boolean},
}};

bool is_f8(DType dtype) { return dtype == f8e4m3 || dtype == f8e5m2; }

/// A float format below f32: `infinity` is the magnitude after the largest finite one, `nan` the quiet one that we write.
struct Format {
  int mantissa_bits, lowest_exponent;
  std::uint32_t sign, infinity, nan;
};

constexpr Format format_f16{10, -14, 0x8000, 0x7c00, 0x7e00};
constexpr Format format_bf16{7, -126, 0x8000, 0x7f80, 0x7fc0};
constexpr Format format_f8e4m3{3, -6, 0x80, 0x7f, 0x7f};
constexpr Format format_f8e5m2{2, -14, 0x80, 0x7c, 0x7f};

std::uint32_t encode(Format const& format, double value) {
  constexpr std::uint64_t hidden = std::uint64_t{1} << 52;
  auto const bits = std::bit_cast<std::uint64_t>(value);
  std::uint32_t const sign = bits >> 63 ? format.sign : 0;
  int const exponent = static_cast<int>(bits >> 52 & 0x7ff) - 1023;
  if (exponent == 1024) return sign | (std::isnan(value) ? format.nan : format.infinity);

  int const binade = std::max(exponent, format.lowest_exponent);
  int const dropped = 52 - format.mantissa_bits + binade - exponent;
  if (dropped > 54) return sign;  // below half of the smallest subnormal; also zero and every subnormal double
  std::uint64_t const significand = hidden | (bits & (hidden - 1));
  std::uint64_t const odd = significand >> dropped & 1;
  std::uint64_t const rounded = (significand + (std::uint64_t{1} << (dropped - 1)) - 1 + odd) >> dropped;
  // The hidden bit and a carry of the rounding both move the exponent field up by one, which is what an encoding means by them.
  auto const magnitude = (static_cast<std::uint32_t>(binade - format.lowest_exponent) << format.mantissa_bits) + rounded;
  return sign | static_cast<std::uint32_t>(std::min<std::uint64_t>(magnitude, format.infinity));
}

float decode(Format const& format, std::uint32_t bits) {
  std::uint32_t const magnitude = bits & (format.sign - 1);
  float const sign = bits & format.sign ? -1.0f : 1.0f;
  if (magnitude > format.infinity || magnitude == format.nan) return std::copysign(std::numeric_limits<float>::quiet_NaN(), sign);
  if (magnitude == format.infinity) return sign * std::numeric_limits<float>::infinity();
  // With the fields in f32's places the value is off by the difference of the exponent biases, subnormals included.
  float const rebias = std::bit_cast<float>(static_cast<std::uint32_t>(127 + 126 + format.lowest_exponent) << 23);
  return sign * std::bit_cast<float>(magnitude << (23 - format.mantissa_bits)) * rebias;
}

template <class T>
T read(void const* element) {
  T value;
  std::memcpy(&value, element, sizeof value);
  return value;
}

template <class T>
void write(void* element, T value) {
  std::memcpy(element, &value, sizeof value);
}

void store_integer(DType dtype, void* element, std::int64_t value) {
  switch (dtype) {
    case i64:
      return write(element, value);
    case i32:
      return write(element, static_cast<std::int32_t>(value));
    case i16:
      return write(element, static_cast<std::int16_t>(value));
    case i8:
      return write(element, static_cast<std::int8_t>(value));
    case u8:
      return write(element, static_cast<std::uint8_t>(value));
    default:
      ensure(false, "store_integer: a dtype that is not an integer");
  }
}

/// The i64 as a double whose last bit is sticky, so that a later rounding to at most 50 bits sees on which side of a tie it lay.
double sticky_double(std::int64_t value) {
  if (std::int64_t{-1} << 53 <= value && value <= std::int64_t{1} << 53) return static_cast<double>(value);
  std::int64_t const lost = value & 0x7ff;
  return static_cast<double>((value - lost) | (lost ? 0x800 : 0));
}

}  // namespace

DTypeInfo const& info(DType dtype) { return table[static_cast<std::size_t>(dtype)]; }
int bytes_of(DType dtype) { return info(dtype).bytes; }
bool is_real(DType dtype) { return info(dtype).category == Class::real; }

DType dtype_of(std::string_view name) {
  for (int i = 0; i < dtype_count; ++i)
    if (auto const& row = table[i]; name == row.name || name == row.torch_name || name == row.file_name) return static_cast<DType>(i);
  fail("dtype_of: unknown dtype '{}'", name);
}

DType promote(DType a, DType b) {
  if (a == b) return a;
  if (is_f8(a) || is_f8(b)) fail("promote: no common dtype of {} and {}", info(a).name, info(b).name);
  if (info(a).category != info(b).category) return info(a).category > info(b).category ? a : b;
  if (bytes_of(a) != bytes_of(b)) return bytes_of(a) > bytes_of(b) ? a : b;
  return is_real(a) ? f32 : i16;  // f16 with bf16, i8 with u8: the next size holds both
}

std::uint16_t to_f16(double value) { return static_cast<std::uint16_t>(encode(format_f16, value)); }
std::uint16_t to_bf16(double value) { return static_cast<std::uint16_t>(encode(format_bf16, value)); }
std::uint8_t to_f8e4m3(double value) { return static_cast<std::uint8_t>(encode(format_f8e4m3, value)); }
std::uint8_t to_f8e5m2(double value) { return static_cast<std::uint8_t>(encode(format_f8e5m2, value)); }
float from_f16(std::uint16_t bits) { return decode(format_f16, bits); }
float from_bf16(std::uint16_t bits) { return decode(format_bf16, bits); }
float from_f8e4m3(std::uint8_t bits) { return decode(format_f8e4m3, bits); }
float from_f8e5m2(std::uint8_t bits) { return decode(format_f8e5m2, bits); }

double load_real(DType dtype, void const* element) {
  switch (dtype) {
    case f64:
      return read<double>(element);
    case f32:
      return read<float>(element);
    case f16:
      return from_f16(read<std::uint16_t>(element));
    case bf16:
      return from_bf16(read<std::uint16_t>(element));
    case f8e4m3:
      return from_f8e4m3(read<std::uint8_t>(element));
    case f8e5m2:
      return from_f8e5m2(read<std::uint8_t>(element));
    default:
      return static_cast<double>(load_whole(dtype, element));
  }
}

void store_real(DType dtype, void* element, double value) {
  switch (dtype) {
    case f64:
      return write(element, value);
    case f32:
      return write(element, static_cast<float>(value));
    case f16:
      return write(element, to_f16(value));
    case bf16:
      return write(element, to_bf16(value));
    case f8e4m3:
      return write(element, to_f8e4m3(value));
    case f8e5m2:
      return write(element, to_f8e5m2(value));
    case boolean:
      return write(element, static_cast<std::uint8_t>(value != 0));
    default:
      return store_integer(dtype, element, truncate(value));
  }
}

std::int64_t load_whole(DType dtype, void const* element) {
  switch (dtype) {
    case i64:
      return read<std::int64_t>(element);
    case i32:
      return read<std::int32_t>(element);
    case i16:
      return read<std::int16_t>(element);
    case i8:
      return read<std::int8_t>(element);
    case u8:
      return read<std::uint8_t>(element);
    case boolean:
      return read<std::uint8_t>(element) != 0;
    default:
      return truncate(load_real(dtype, element));
  }
}

void store_whole(DType dtype, void* element, std::int64_t value) {
  switch (dtype) {
    case f64:
      return write(element, static_cast<double>(value));
    case f32:
      return write(element, static_cast<float>(value));
    case f16:
    case bf16:
    case f8e4m3:
    case f8e5m2:
      return store_real(dtype, element, sticky_double(value));
    case boolean:
      return write(element, static_cast<std::uint8_t>(value != 0));
    default:
      return store_integer(dtype, element, value);
  }
}

std::int64_t truncate(double value) {
  constexpr double limit = 0x1p63;
  return -limit <= value && value < limit ? static_cast<std::int64_t>(value) : std::numeric_limits<std::int64_t>::min();
}

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    std::uint64_t const even = std::uint64_t{0xD2511F53} * counter[0];
    std::uint64_t const odd = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(odd >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(odd),
               static_cast<std::uint32_t>(even >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(even)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

namespace {

std::array<std::uint32_t, 4> block_of(std::uint64_t seed, std::uint64_t offset, std::uint64_t block) {
  auto const low = [](std::uint64_t word) { return static_cast<std::uint32_t>(word); };
  return philox({low(block), low(block >> 32), low(offset), low(offset >> 32)}, {low(seed), low(seed >> 32)});
}

}  // namespace

double uniform(std::uint64_t seed, std::uint64_t offset, std::uint64_t index) { return (block_of(seed, offset, index / 4)[index % 4] >> 8) * 0x1p-24; }

double normal(std::uint64_t seed, std::uint64_t offset, std::uint64_t index) {
  auto const lanes = block_of(seed, offset, index / 2);
  auto const fraction = [](std::uint64_t high, std::uint64_t low) { return static_cast<double>(high << 21 | low >> 11); };
  double const radius = std::sqrt(-2 * std::log((fraction(lanes[0], lanes[1]) + 1) * 0x1p-53));  // + 1: the logarithm never sees zero
  double const angle = 2 * std::numbers::pi * fraction(lanes[2], lanes[3]) * 0x1p-53;
  return radius * (index % 2 ? std::sin(angle) : std::cos(angle));
}

}  // namespace tenon::base
