/// What generated C is made of: the functions that every file begins with, and elements of ops as expressions.
module tenon.fusion:c_text;
import std;
import tenon.base;
import tenon.ir;

namespace tenon::fusion {

/// Plain C, as `static inline` functions tn_*: mathematics of floats without branches, conversions of small floats, ordered keys, whole numbers that wrap.
std::string_view prelude();

/// The attributes that {a0}, {a1} … of a row's source name, in order; kind none where an optional one is absent.
std::vector<ir::Scalar> element_scalars(ir::OpDef const& op, ir::Attrs const& attrs);
/// A number as C of the type computed in (f32, f64, i64); whole numbers are those of base::truncate, an absent one is NaN.
std::string number_text(ir::Scalar const& number, base::DType compute);

/// The op's element as a C expression over operands and attributes that are C themselves; f32, f64 or i64 is computed in. Bug if the op has no such text.
std::string element_text(ir::OpDef const& op, std::span<std::string const> attributes, std::span<std::string const> operands, base::DType compute);
/// As above, with the numbers of `attrs`.
std::string element_text(ir::OpDef const& op, ir::Attrs const& attrs, std::span<std::string const> operands, base::DType compute);

}  // namespace tenon::fusion
