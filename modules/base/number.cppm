export module tenon.base:number;
import std;

export namespace tenon::base {

/// Element types; f8e4m3 is the finite-only (fn) format and f8e5m2 has infinities, as in OCP OFP8 1.0.
enum class DType : std::uint8_t { f64, f32, f16, bf16, f8e4m3, f8e5m2, i64, i32, i16, i8, u8, boolean };
inline constexpr int dtype_count = 12;

/// The category that promotion compares first.
enum class DTypeClass : std::uint8_t { boolean, integer, real };

/// What a dtype is: its name ("f32"), PyTorch's ("float32"), safetensors' ("F32"), bytes an element, category.
struct DTypeInfo {
  std::string_view name, torch_name, file_name;
  int bytes;
  DTypeClass category;
};

/// The facts of a dtype.
DTypeInfo const& info(DType dtype);

/// Bytes an element.
int bytes_of(DType dtype);

/// Whether the dtype is floating.
bool is_real(DType dtype);

/// The dtype of that name (ours, PyTorch's or safetensors'); Error naming an unknown one.
DType dtype_of(std::string_view name);

/// The dtype that both promote to, as torch.promote_types; Error for an f8 with any other dtype, which PyTorch refuses too.
DType promote(DType a, DType b);

/// Round-to-nearest-even encodings of a double, exact from the double (no double rounding through float).
std::uint16_t to_f16(double value), to_bf16(double value);
/// As above; what rounds beyond e4m3's 448 becomes NaN (PyTorch's rule up to 2.11; 2.15 clamps to 448), e5m2 overflows to infinity.
std::uint8_t to_f8e4m3(double value), to_f8e5m2(double value);
/// The exact value of an encoding.
float from_f16(std::uint16_t bits), from_bf16(std::uint16_t bits), from_f8e4m3(std::uint8_t bits), from_f8e5m2(std::uint8_t bits);

/// Reads one element as double; i64 values beyond 2^53 round.
double load_real(DType dtype, void const* element);
/// Writes one element from double: floats round to nearest even, integers truncate toward zero (out of range and NaN: as the cast to i64, then wrap), bool is
/// != 0.
void store_real(DType dtype, void* element, double value);
/// Reads one element as i64; floats truncate as store_real says.
std::int64_t load_whole(DType dtype, void const* element);
/// Writes one element from i64: integers wrap, floats round, bool is != 0.
void store_whole(DType dtype, void* element, std::int64_t value);
/// The i64 nearest to zero of a double; out of range and NaN give the lowest i64 (what x86 does), never undefined behaviour.
std::int64_t truncate(double value);

/// Philox4x32-10 (Salmon et al., SC'11): ten rounds over a 128-bit counter with a 64-bit key.
std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);

/// Element `index` of the stream that `seed` and `offset` name, uniform in [0, 1): the upper 24 bits of lane index % 4 of the philox block with
/// counter (index / 4, offset) and key seed, each low word first.
double uniform(std::uint64_t seed, std::uint64_t offset, std::uint64_t index);
/// Element `index` of that stream, standard normal by Box-Muller: block index / 2 gives the radius (lanes 0, 1) and the angle (lanes 2, 3) of a
/// pair, the even element takes the cosine, the odd one the sine.
double normal(std::uint64_t seed, std::uint64_t offset, std::uint64_t index);

}  // namespace tenon::base
