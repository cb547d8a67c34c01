// matmul through Eigen.
module;
#include <Eigen/Core>
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir::ops {
using base::DType;
using base::fail;
namespace {

// Ranks of 1 become a row (left) or a column (right), and leading dims broadcast: torch.matmul.
std::string matmul_equation(Attrs const&, std::span<Meta const* const> in) {
  int const a = in[0]->rank(), b = in[1]->rank(), batch = std::max({a, b, 2}) - 2;
  auto const names = letters(batch, 3);  // b, c: columns and the inner dim are 'b' and 'c', rows 'a'
  auto const lead = [&](Meta const& x) {
    std::string text;
    int const own = std::max(x.rank() - 2, 0);
    for (int d = 0; d < own; ++d) text += x.sizes[static_cast<std::size_t>(d)].value == 1 ? '1' : names[static_cast<std::size_t>(batch - own + d)];
    return text;
  };
  std::string out;
  for (int d = 0; d < batch; ++d) {
    char const name = names[static_cast<std::size_t>(d)];
    bool const bound = lead(*in[0]).find(name) != std::string::npos || lead(*in[1]).find(name) != std::string::npos;
    out += bound ? name : '1';
  }
  return lead(*in[0]) + (a > 1 ? "ac" : "c") + "," + lead(*in[1]) + (b > 1 ? "cb" : "c") + "->" + out + (a > 1 ? "a" : "") + (b > 1 ? "b" : "");
}

void infer_matmul(Inference& call) {
  auto const &a = call.x(0), &b = call.x(1);
  if (a.rank() == 0 || b.rank() == 0) fail("matmul: operands need at least one dim: {} and {}", to_string(a), to_string(b));
  if (a.dtype != b.dtype) fail("matmul: dtypes differ: {} and {}", base::info(a.dtype).name, base::info(b.dtype).name);
  Dim const k = a.sizes[a.sizes.size() - 1], k2 = b.sizes[b.sizes.size() - (b.rank() > 1 ? 2 : 1)];
  if (!same(k, k2)) fail("matmul: inner dims differ: {} and {} ({} and {})", k.value, k2.value, to_string(a), to_string(b));
  auto const lead = [](Meta const& x) {
    return contiguous_meta(x.dtype, {}, Dims(std::span<Dim const>(x.sizes).first(static_cast<std::size_t>(std::max(x.rank() - 2, 0)))));
  };
  Meta const left = lead(a), right = lead(b);
  Dims sizes = infer(add, std::array<Meta const*, 2>{&left, &right}, std::array<Scalar, 2>{}, Attrs{}.with_num(1.0))[0].sizes;
  if (a.rank() > 1) sizes.push_back(a.sizes[a.sizes.size() - 2]);
  if (b.rank() > 1) sizes.push_back(b.sizes[b.sizes.size() - 1]);
  call.out.push_back(contiguous_meta(a.dtype, a.device, std::move(sizes)));
}

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Rows and columns of a matrix operand; a vector is one row or one column.
struct Panel {
  std::int64_t rows, columns, row_stride, column_stride;
};
Panel panel(Strided const& x, bool left) {
  std::size_t const r = x.sizes.size();
  if (r == 1) return left ? Panel{1, x.sizes[0], 0, x.strides[0]} : Panel{x.sizes[0], 1, x.strides[0], 0};
  return {x.sizes[r - 2], x.sizes[r - 1], x.strides[r - 2], x.strides[r - 1]};
}

template <class T>
Matrix<T> load(Strided const& x, std::int64_t offset, Panel const& p) {
  using Stored = Eigen::Map<Matrix<T> const, 0, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>;
  if (x.dtype == (std::is_same_v<T, float> ? DType::f32 : std::is_same_v<T, double> ? DType::f64 : DType::i64))
    return Stored(reinterpret_cast<T const*>(x.at(offset)), p.rows, p.columns, {p.row_stride, p.column_stride});
  Matrix<T> copy(p.rows, p.columns);
  for (std::int64_t i = 0; i < p.rows; ++i)
    for (std::int64_t j = 0; j < p.columns; ++j)
      if constexpr (std::is_integral_v<T>)
        copy(i, j) = static_cast<T>(x.whole(offset + i * p.row_stride + j * p.column_stride));
      else
        copy(i, j) = static_cast<T>(x.real(offset + i * p.row_stride + j * p.column_stride));
  return copy;
}

template <class T>
void multiply(Kernel const& kernel) {
  auto const &a = kernel.in[0], &b = kernel.in[1], &y = kernel.out[0];
  Panel const left = panel(a, true), right = panel(b, false);
  std::size_t const batch = y.sizes.size() - (a.sizes.size() > 1) - (b.sizes.size() > 1);
  base::Shape const sizes(y.sizes.begin(), y.sizes.begin() + static_cast<std::ptrdiff_t>(batch));
  auto const lead = [&](Strided const& x) {  // strides over the batch, 0 where broadcast
    base::Shape strides(batch, 0);
    std::size_t const own = x.sizes.size() > 2 ? x.sizes.size() - 2 : 0;
    for (std::size_t d = 0; d < own; ++d)
      if (x.sizes[d] != 1) strides[batch - own + d] = x.strides[d];
    return strides;
  };
  base::Shape const a_strides = lead(a), b_strides = lead(b);
  std::int64_t to = 0;
  std::optional<Matrix<T>> shared;  // the right operand of every product when it has no batch
  walk<2>(sizes, {&a_strides, &b_strides}, [&](auto const& at) {
    if (!shared || b.sizes.size() > 2) shared = load<T>(b, at[1], right);
    Matrix<T> product;
    if (left.columns == 0)  // sums of nothing
      product.setZero(left.rows, right.columns);
    else if constexpr (std::is_integral_v<T>)
      product = load<T>(a, at[0], left).lazyProduct(*shared);
    else
      product.noalias() = load<T>(a, at[0], left) * *shared;
    for (Eigen::Index i = 0; i < product.size(); ++i, ++to)
      if constexpr (std::is_integral_v<T>)
        y.set_whole(to, static_cast<std::int64_t>(product.data()[i]));
      else
        y.set(to, static_cast<double>(product.data()[i]));
  });
}
void evaluate_matmul(Kernel const& kernel) {  // small floats multiply in f32
  auto const type = kernel.in[0].dtype;
  type == DType::f64 ? multiply<double>(kernel) : base::is_real(type) ? multiply<float>(kernel) : multiply<std::uint64_t>(kernel);
}

Var turned(Var x) { return call(transpose, {x}, Attrs{}.with(Dim(-2)).with(Dim(-1))); }
Var inserted(Var x, int dim) { return call(unsqueeze, {x}, Attrs{}.with(Dim(dim))); }
Var reshaped(Var x, Dims const& sizes) { return call(reshape, {x}, Attrs{}.with(sizes)); }
void matmul_vjp(Vjp& v) {
  int const ra = v.x(0).rank(), rb = v.x(1).rank();
  Var const a = ra == 1 ? inserted(v.x(0), 0) : v.x(0), b = rb == 1 ? inserted(v.x(1), 1) : v.x(1);
  Var g = v.g();
  if (rb == 1) g = inserted(g, -1);
  if (ra == 1) g = inserted(g, -2);
  if (v.wants(0)) {
    Var const product = sum_to(call(matmul, {g, turned(b)}), a.meta().sizes);
    v.grad(0) = ra == 1 ? reshaped(product, v.x(0).meta().sizes) : product;
  }
  if (v.wants(1)) {
    // One product over all rows where only the left operand has a batch: fewer, larger multiplications and no sum afterwards.
    bool const flat = ra > 2 && rb == 2;
    auto const rows = [](Var x) {
      auto const& sizes = x.meta().sizes;
      return reshaped(x, Dims{product(std::span<Dim const>(sizes).first(sizes.size() - 1)), x.size(-1)});
    };
    Var const product = flat ? call(matmul, {turned(rows(a)), rows(g)}) : sum_to(call(matmul, {turned(a), g}), b.meta().sizes);
    v.grad(1) = rb == 1 ? reshaped(product, v.x(1).meta().sizes) : product;
  }
}
}  // namespace

// clang-format off
constinit const OpDef matmul{.name = "matmul", .kind = Kind::contraction, .signature = "Tensor input, Tensor other", .equation = {.build = matmul_equation}, .terms = "aa",
    .combine = Monoid::sum, .mono = "..", .precision = Precision::low, .vjp = matmul_vjp, .saves = 3, .infer = infer_matmul, .evaluate = evaluate_matmul};

namespace {
constexpr std::array rows{&matmul};
}
// clang-format on
std::span<OpDef const* const> contraction_rows() { return rows; }

}  // namespace tenon::ir::ops
