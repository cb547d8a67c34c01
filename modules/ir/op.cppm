export module tenon.ir:op;
import std;
import tenon.base;
import :sym;

export namespace tenon::ir {

/// What is known of a tensor without its elements; immutable once shared.
struct Meta : base::RefCounted {
  base::DType dtype = base::DType::f32;
  base::Device device{};
  Dims sizes, strides;
  inline int rank() const { return static_cast<int>(sizes.size()); }
};
using MetaRef = base::Ref<Meta const>;
/// A row-major Meta.
Meta contiguous_meta(base::DType dtype, base::Device device, Dims sizes);
/// "f32[2, 3]" and " strides [1, 2]" unless row-major.
std::string to_string(Meta const& meta, Symbols const* symbols = nullptr);

/// Attributes of a call in the order of the signature: integers, flags, dtypes and lists (a length, then items) in `ints`, floats in `nums`.
struct Attrs {
  base::InlineVector<Dim, 8> ints;
  base::InlineVector<Scalar, 2> nums;
  std::string_view text;  ///< interned
  inline Attrs& with(Dim number) { return ints.push_back(number), *this; }
  inline Attrs& with(base::DType dtype) { return with(Dim(static_cast<int>(dtype))); }
  Attrs& with(base::Device device) { return with(Dim(static_cast<int>(device.kind) * 256 + device.index)); }
  Attrs& with(std::span<Dim const> list);
  inline Attrs& with_num(Scalar number) { return nums.push_back(number), *this; }
  Attrs& with_text(std::string_view words);
};
/// Stands for an optional integer that is not given.
inline constexpr std::int64_t absent = std::numeric_limits<std::int64_t>::min();
/// The one string_view of equal text that lives for ever, so that equal texts have equal addresses.
std::string_view intern(std::string_view text);

/// Reads attributes back in signature order.
struct AttrReader {
  Attrs const& attrs;
  std::size_t at = 0, num_at = 0;
  inline Dim number() { return attrs.ints[at++]; }
  inline bool flag() { return number().value != 0; }
  inline base::DType dtype() { return static_cast<base::DType>(number().value); }
  base::Device device();
  std::span<Dim const> list();
  inline Scalar num() { return attrs.nums[num_at++]; }
};

/// An operand: a value of a graph, or a number in its place (kind none: an optional operand that is not given).
struct Input {
  std::int32_t value = -1;
  Scalar scalar{};
};

struct OpDef;
struct Vjp;
struct Body;
struct Inference;
struct Kernel;
struct View;

enum class Kind : std::uint8_t { pointwise, reduction, contraction, normalise, scan, sort, gather, view, creation, random, collective, host };
enum class Monoid : std::uint8_t { none, sum, avg, max, min, prod, norm, lse };
/// The dtype of this thread's floating results that no operand decides (f32 at first): of a real number beside whole tensors, of a whole tensor divided.
base::DType default_dtype();
void set_default_dtype(base::DType dtype);
/// What the arithmetic needs: `low` gains from small floats with a wide accumulator, `wide` wants f32, `any` runs in what it is given.
enum class Precision : std::uint8_t { any, low, wide };
/// The result's dtype: `promote` the operands', `real` likewise but floating, `boolean`, `first` operand's, `index` i64, `custom` by infer.
enum class Types : std::uint8_t { promote, real, boolean, first, index, custom };

/// One element as C++: over doubles, and over i64 where every operand is whole (null: integers are computed as doubles).
struct Element {
  double (*real)(double const* x, double const* a) = nullptr;
  std::int64_t (*whole)(std::int64_t const* x, double const* a) = nullptr;
};

/// The index equation ("mk,kn->mn"), as text or built from attributes and operands (null where a number stands); see parse_equation.
struct EquationRule {
  std::string_view text{};
  std::string (*build)(Attrs const& attrs, std::span<Meta const* const> in) = nullptr;
};

/// What an op *is*, as data; every module derives its own policy from these facts.
struct OpDef {
  std::string_view name;  ///< PyTorch's name
  Kind kind;
  std::string_view signature;  ///< "Tensor input, int[] dim=[], bool keepdim=False"; `size` marks an int that may vary between calls, `fixed` a float that may
                               ///< not, `size[]` the sizes of the result
  std::uint8_t results = 1;    ///< how many; 0: a composite view with as many as its body gives
  EquationRule equation{};     ///< empty: "..." for pointwise, nothing known otherwise
  std::string_view terms{};    ///< per operand: '-' not linear in it; same letter multiplied, other letter added; "*": any number, all added
  Monoid combine = Monoid::none;  ///< how a vanishing letter is combined
  std::string_view mono{};        ///< per operand: '+' rising, '-' falling, '.' neither
  bool copy = false;              ///< each output element is one input element or 0
  Monoid joint = Monoid::none;    ///< all operands pending under this monoid together stay pending
  bool affine = false;            ///< linear plus a constant
  bool value_free = false;        ///< only shapes are read
  Types types = Types::promote;
  Precision precision = Precision::any;
  double cost = 1;  ///< FLOPs an output element (pointwise), an input element (reduction), a multiplication or addition (contraction)
  Element element{};
  std::string_view source{};    ///< one element as C, operands {0} {1}, attributes {a0}
  void (*vjp)(Vjp&) = nullptr;  ///< gradient; null: not differentiable, or through the decomposition
  std::uint32_t saves = 0;      ///< what the gradient reads: bit k operand k, bit 16+k result k
  bool (*geometry)(View&) = nullptr;
  void (*infer)(Inference&) = nullptr;                               ///< null: derived from equation, kind and types
  void (*evaluate)(Kernel const&) = nullptr;                         ///< null: derived from `element` or the decomposition
  void (*measured)(Kernel const&, std::span<Dims> sizes) = nullptr;  ///< sizes of the results where they depend on elements: such a call breaks a graph
  void (*decompose)(Body&) = nullptr;
};
inline constexpr std::uint32_t saves_result = 1u << 16;

}  // namespace tenon::ir

namespace tenon::ir {  // for the rows
/// n letters from the first-th on: "abc".
std::string letters(int n, int first = 0);
/// Which dims an attribute list names, wrapped and checked; an empty list names all of them.
std::vector<bool> dim_mask(std::string_view op, std::span<Dim const> dims, int rank);
/// Equations of reductions over (dims, keepdim), of ops that keep dim `ints[0]` whole, and of ops that keep every dim whole.
std::string reduce_equation(Attrs const& attrs, std::span<Meta const* const> in);
std::string whole_dim_equation(Attrs const& attrs, std::span<Meta const* const> in);
}  // namespace tenon::ir
