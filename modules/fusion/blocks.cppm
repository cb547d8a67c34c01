/// The interpreter's instructions: loops over a block of elements, made for each vector width.
module tenon.fusion:blocks;
import std;
import tenon.base;
import tenon.ir;

namespace tenon::fusion {

/// How a value is held: small floats as f32, whole numbers as i64, bools as 0 and 1 in any of them.
enum class Lane : std::uint8_t { f32, f64, i64 };
/// Elements of a block at most; each takes a slot of 8 bytes.
inline constexpr std::int64_t block_length = 512;

/// An element function over n elements of one lane; three operands can be read, two attributes.
using OpBlock = void (*)(void const* const* in, void* out, std::int64_t n, double const* attributes);
/// An op's loops, one a lane; null where the element function is called instead.
struct BlockRow {
  ir::OpDef const* op;
  std::array<OpBlock, 3> lanes;
};

/// A reduction's value so far; f32 and f64 are added up as doubles.
struct Total {
  double real = 0;
  std::int64_t whole = 0;
};

/// One set of loops. Strides are in elements.
struct Blocks {
  std::span<BlockRow const> rows;
  void (*convert)(Lane from, void const* x, Lane to, void* y, std::int64_t n);
  /// Rounds or wraps to what the dtype can hold, in place.
  void (*settle)(base::DType dtype, Lane lane, void* x, std::int64_t n);
  void (*load)(base::DType dtype, std::byte const* from, std::int64_t stride, Lane lane, void* y, std::int64_t n);
  void (*store)(base::DType dtype, std::byte* to, std::int64_t stride, Lane lane, void const* x, std::int64_t n);
  /// Combines n elements into one total; or each into a total of its own (doubles, or i64 for that lane). NaN wins maxima and minima.
  void (*fold)(ir::Monoid combine, Lane lane, void const* x, std::int64_t n, Total& total);
  void (*fold_each)(ir::Monoid combine, Lane lane, void const* x, std::int64_t n, void* totals);
};
/// The set for device::cpu().isa.
Blocks const& blocks();
/// The loops of an op; null if it has none.
BlockRow const* block_row(ir::OpDef const& op);
/// What a reduction starts from.
Total identity(ir::Monoid combine);

}  // namespace tenon::fusion
