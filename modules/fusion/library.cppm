export module tenon.fusion:library;
import std;
import tenon.base;
import tenon.ir;
import :contraction;

export namespace tenon::fusion {

/// Whether a fast function computes calls of this op; others are the reference evaluator's.
bool has_library_call(ir::OpDef const& op);
/// Whether its fast function only adds to a copy of its first operand, and so may work where that lies.
bool adds_to_first(ir::OpDef const& op);
/// Computes a call as `ir::evaluate` does, by its fast function where there is one that takes these dtypes: products, convolutions, attention, and the
/// sums and copies by index of training. Results are row-major, the same bits for any number of threads but for attention's dk and dv.
void library_call(ir::OpDef const& op, std::span<ir::Strided const> in, std::span<ir::Scalar const> scalars, ir::Attrs const& attrs,
                  std::span<ir::Strided> out);

/// The product that a call of matmul is: vectors as one row or column, batches broadcast.
Gemm gemm_of(ir::Strided const& a, ir::Strided const& b, ir::Strided const& y);
/// A call of ir's row `convolution`, floats only: patches of the input as the right operand of a product, one image and group at a time.
void convolution(ir::Attrs const& attrs, ir::Strided const& x, ir::Strided const& w, ir::Strided const& y);

}  // namespace tenon::fusion

namespace tenon::fusion {  // for the calls
/// How a convolution's window moves, one entry a spatial dim.
struct Sweep {
  std::vector<std::int64_t> stride, low, dilation, input_dilation;
  std::int64_t groups = 1;
};
Sweep sweep_of(ir::Attrs const& attrs, std::size_t dims);
/// Row-major elements as T: where they lie if they are, else a copy.
template <class T>
struct Dense {
  Aligned<T> copy{};
  T const* data = nullptr;
};
Dense<float> dense_f32(ir::Strided const& x);
Dense<double> dense_f64(ir::Strided const& x);
template <class T>
Dense<T> dense(ir::Strided const& x) {
  if constexpr (std::is_same_v<T, float>)
    return dense_f32(x);
  else
    return dense_f64(x);
}
template <class T>
constexpr base::DType dtype_for = std::is_same_v<T, float> ? base::DType::f32 : base::DType::f64;
}  // namespace tenon::fusion
