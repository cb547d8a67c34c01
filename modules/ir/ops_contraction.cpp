// matmul through Eigen, and conv2d with the two products that are its gradients: one traversal serves all three.
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
    if constexpr (std::is_integral_v<T>)
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

struct Window {
  std::array<std::int64_t, 2> stride, padding, dilation;
  std::int64_t groups;
};
Window window_of(AttrReader& reader, std::string_view op) {
  auto const pair = [&](std::string_view what, std::int64_t least) {
    auto const list = reader.list();
    if (list.empty() || list.size() > 2) fail("{}: {} takes one or two numbers, not {}", op, what, list.size());
    std::array const two{list.front().value, list.back().value};
    if (std::ranges::min(two) < least) fail("{}: {} must be at least {}, not {}", op, what, least, std::ranges::min(two));
    return two;
  };
  Window window{pair("stride", 1), pair("padding", 0), pair("dilation", 1), reader.number().value};
  if (window.groups < 1) fail("{}: groups must be at least 1, not {}", op, window.groups);
  return window;
}
void infer_conv2d(Inference& call) {
  auto const &x = call.x(0), &w = call.x(1);
  AttrReader reader{call.attrs};
  auto const window = window_of(reader, "conv2d");
  if ((x.rank() != 4 && x.rank() != 3) || w.rank() != 4)
    fail("conv2d: the input needs rank 4 (or 3 without a batch), the weight rank 4: {} and {}", to_string(x), to_string(w));
  if (x.dtype != w.dtype) fail("conv2d: dtypes differ: {} and {}", base::info(x.dtype).name, base::info(w.dtype).name);
  Dims const image(std::span<Dim const>(x.sizes).last(3));
  if (!same(image[0], w.sizes[1] * Dim(window.groups)))
    fail("conv2d: input has {} channels, weight takes {} in {} groups", image[0].value, (w.sizes[1] * Dim(window.groups)).value, window.groups);
  if (!same(w.sizes[0] % Dim(window.groups), 0)) fail("conv2d: {} output channels do not divide into {} groups", w.sizes[0].value, window.groups);
  if (call.in.size() > 2 && call.in[2] && (call.x(2).rank() != 1 || !same(call.x(2).sizes[0], w.sizes[0]) || call.x(2).dtype != x.dtype))
    fail("conv2d: the bias must be {}[{}], not {}", base::info(x.dtype).name, w.sizes[0].value, to_string(call.x(2)));
  Dims sizes;
  if (x.rank() == 4) sizes.push_back(x.sizes[0]);
  sizes.push_back(w.sizes[0]);
  for (std::size_t d = 0; d < 2; ++d) {
    Dim const room = image[d + 1] + Dim(2) * Dim(window.padding[d]) - (w.sizes[d + 2] - 1) * Dim(window.dilation[d]) - 1;
    if (less(room, 0))
      fail("conv2d: a kernel of size {} does not fit an input of size {} with padding {}", w.sizes[d + 2].value, image[d + 1].value, window.padding[d]);
    sizes.push_back(room / Dim(window.stride[d]) + 1);
  }
  call.out.push_back(contiguous_meta(x.dtype, x.device, std::move(sizes)));
}

// Every (input, weight, output) triple of element offsets that meet in a product.
template <class F>
void meet(Strided const& x, Strided const& w, Strided const& y, Window const& window, F f) {
  std::int64_t const per_group = w.sizes[0] / window.groups;
  for (std::int64_t n = 0; n < y.sizes[0]; ++n)
    for (std::int64_t o = 0; o < y.sizes[1]; ++o)
      for (std::int64_t c = 0; c < w.sizes[1]; ++c)
        for (std::int64_t p = 0; p < y.sizes[2]; ++p)
          for (std::int64_t q = 0; q < y.sizes[3]; ++q)
            for (std::int64_t i = 0; i < w.sizes[2]; ++i) {
              std::int64_t const row = p * window.stride[0] + i * window.dilation[0] - window.padding[0];
              if (row < 0 || row >= x.sizes[2]) continue;
              for (std::int64_t j = 0; j < w.sizes[3]; ++j) {
                std::int64_t const column = q * window.stride[1] + j * window.dilation[1] - window.padding[1];
                if (column < 0 || column >= x.sizes[3]) continue;
                std::int64_t const channel = o / per_group * w.sizes[1] + c;
                f(n * x.strides[0] + channel * x.strides[1] + row * x.strides[2] + column * x.strides[3],
                  o * w.strides[0] + c * w.strides[1] + i * w.strides[2] + j * w.strides[3],
                  n * y.strides[0] + o * y.strides[1] + p * y.strides[2] + q * y.strides[3]);
              }
            }
}
struct Sums {  // f64 accumulators in the row-major order of a result
  std::vector<double> totals;
  Strided const& out;
  explicit Sums(Strided const& result) : totals(static_cast<std::size_t>(base::numel(result.sizes)), 0.0), out(result) {}
  ~Sums() {
    for (std::size_t i = 0; i < totals.size(); ++i) out.set(static_cast<std::int64_t>(i), totals[i]);
  }
};
Strided batched(Strided x) {  // an image without a batch is a batch of one
  if (x.sizes.size() == 3) x.sizes.insert(x.sizes.begin(), 1), x.strides.insert(x.strides.begin(), 0);
  return x;
}
void evaluate_conv2d(Kernel const& kernel) {
  auto const x = batched(kernel.in[0]), y = batched(kernel.out[0]);
  auto const& w = kernel.in[1];
  AttrReader reader{kernel.attrs};
  Sums sums(y);
  meet(x, w, y, window_of(reader, "conv2d"), [&](auto a, auto b, auto c) { sums.totals[static_cast<std::size_t>(c)] += x.real(a) * w.real(b); });
  if (!kernel.in[2].data) return;
  base::Shape const per_channel{0, kernel.in[2].strides[0], 0, 0};
  walk<2>(y.sizes, {&y.strides, &per_channel}, [&](auto const& at) { sums.totals[static_cast<std::size_t>(at[0])] += kernel.in[2].real(at[1]); });
}
void evaluate_input_grad(Kernel const& kernel) {
  auto const g = batched(kernel.in[0]), x = batched(kernel.out[0]);
  auto const& w = kernel.in[1];
  AttrReader reader{kernel.attrs};
  reader.list();
  Sums sums(x);
  meet(x, w, g, window_of(reader, "conv2d"), [&](auto a, auto b, auto c) { sums.totals[static_cast<std::size_t>(a)] += g.real(c) * w.real(b); });
}
void evaluate_weight_grad(Kernel const& kernel) {
  auto const g = batched(kernel.in[0]), x = batched(kernel.in[1]);
  auto const& w = kernel.out[0];
  AttrReader reader{kernel.attrs};
  reader.list();
  Sums sums(w);
  meet(x, w, g, window_of(reader, "conv2d"), [&](auto a, auto b, auto c) { sums.totals[static_cast<std::size_t>(b)] += g.real(c) * x.real(a); });
}
Attrs with_sizes(Dims const& sizes, Attrs const& window) {
  Attrs attrs = Attrs{}.with(sizes);
  for (auto number : window.ints) attrs.with(number);
  return attrs;
}
Attrs without_sizes(Attrs const& attrs) {
  Attrs window;
  AttrReader reader{attrs};
  for (reader.list(); reader.at < attrs.ints.size();) window.with(reader.number());
  return window;
}
// The result has the sizes of the attribute, and conv2d from there must give the sizes of the incoming gradient.
template <bool of_input>
void infer_conv2d_grad(Inference& call) {
  auto const &g = call.x(0), &other = call.x(1);
  AttrReader reader{call.attrs};
  Meta const missing = contiguous_meta(other.dtype, other.device, Dims(reader.list()));
  auto const &x = of_input ? missing : other, &w = of_input ? other : missing;
  Meta const y = infer(conv2d, std::array<Meta const*, 3>{&x, &w, nullptr}, std::array<Scalar, 3>{}, without_sizes(call.attrs))[0];
  bool fits = g.rank() == y.rank() && g.dtype == y.dtype;
  for (std::size_t d = 0; fits && d < y.sizes.size(); ++d) fits = same(g.sizes[d], y.sizes[d]);
  if (!fits) fail("{}: a gradient {} does not fit the result {}", call.op.name, to_string(g), to_string(y));
  call.out.push_back(missing);
}
// n batch, c input channels (of a group), o output channels, h w image, i j kernel, p q output image; with groups no channel can be cut.
std::string conv2d_equation(Attrs const& attrs, std::span<Meta const* const> in, std::string_view plain, std::string_view grouped) {
  bool const groups = attrs.ints.back().value != 1, biased = in.size() > 2 && in[2];
  std::string text(groups ? grouped : plain);
  bool const image = in[0]->rank() == 3 || in[1]->rank() == 3;  // no batch
  if (image) std::erase(text, 'n');
  if (biased) text.insert(text.find("->"), groups ? ",o!" : ",o");
  return text;
}
}  // namespace

// clang-format off
constinit const OpDef matmul{.name = "matmul", .kind = Kind::contraction, .signature = "Tensor input, Tensor other", .equation = {.build = matmul_equation}, .terms = "aa",
    .combine = Monoid::sum, .mono = "..", .precision = Precision::low, .vjp = matmul_vjp, .saves = 3, .infer = infer_matmul, .evaluate = evaluate_matmul};
constinit const OpDef conv2d{.name = "conv2d", .kind = Kind::contraction,
    .signature = "Tensor input, Tensor weight, Tensor? bias=None, int[] stride=[1], int[] padding=[0], int[] dilation=[1], int groups=1",
    .equation = {.build = [](Attrs const& attrs, std::span<Meta const* const> in) {
      return conv2d_equation(attrs, in, "nch!w!,oci!j!->nop!q!", "nd!h!w!,o!c!i!j!->no!p!q!");
    }},
    .terms = "aab", .combine = Monoid::sum, .mono = "...", .precision = Precision::low,
    .vjp = [](Vjp& v) {
      if (v.wants(0)) v.grad(0) = call(conv2d_input_grad, {v.g(), v.x(1)}, with_sizes(v.x(0).meta().sizes, v.attrs));
      if (v.wants(1)) v.grad(1) = call(conv2d_weight_grad, {v.g(), v.x(0)}, with_sizes(v.x(1).meta().sizes, v.attrs));
      if (v.wants(2)) v.grad(2) = call(sum, {v.g()}, summed(v.g().rank() == 4 ? Dims{Dim(0), Dim(-2), Dim(-1)} : Dims{Dim(-2), Dim(-1)}, false));
    }, .saves = 3, .infer = infer_conv2d, .evaluate = evaluate_conv2d};
constinit const OpDef conv2d_input_grad{.name = "conv2d_input_grad", .kind = Kind::contraction,
    .signature = "Tensor grad, Tensor weight, size[] sizes, int[] stride=[1], int[] padding=[0], int[] dilation=[1], int groups=1",
    .equation = {.build = [](Attrs const& attrs, std::span<Meta const* const> in) {
      return conv2d_equation(attrs, in, "nop!q!,oci!j!->nch!w!", "no!p!q!,o!c!i!j!->nd!h!w!");
    }}, .terms = "aa", .combine = Monoid::sum, .mono = "..", .precision = Precision::low,
    .vjp = [](Vjp& v) {
      if (v.wants(0)) v.grad(0) = call(conv2d, {v.g(), v.x(1), Var()}, without_sizes(v.attrs));
      if (v.wants(1)) v.grad(1) = call(conv2d_weight_grad, {v.x(0), v.g()}, with_sizes(v.x(1).meta().sizes, without_sizes(v.attrs)));
    }, .saves = 3, .infer = infer_conv2d_grad<true>, .evaluate = evaluate_input_grad};
constinit const OpDef conv2d_weight_grad{.name = "conv2d_weight_grad", .kind = Kind::contraction,
    .signature = "Tensor grad, Tensor input, size[] sizes, int[] stride=[1], int[] padding=[0], int[] dilation=[1], int groups=1",
    .equation = {.build = [](Attrs const& attrs, std::span<Meta const* const> in) {
      return conv2d_equation(attrs, in, "nop!q!,nch!w!->oci!j!", "no!p!q!,nd!h!w!->o!c!i!j!");
    }}, .terms = "aa", .combine = Monoid::sum, .mono = "..", .precision = Precision::low,
    .vjp = [](Vjp& v) {
      if (v.wants(0)) v.grad(0) = call(conv2d, {v.x(1), v.g(), Var()}, without_sizes(v.attrs));
      if (v.wants(1)) v.grad(1) = call(conv2d_input_grad, {v.x(0), v.g()}, with_sizes(v.x(1).meta().sizes, without_sizes(v.attrs)));
    }, .saves = 3, .infer = infer_conv2d_grad<false>, .evaluate = evaluate_weight_grad};

namespace {
constexpr std::array rows{&matmul, &conv2d, &conv2d_input_grad, &conv2d_weight_grad};
}
// clang-format on
std::span<OpDef const* const> contraction_rows() { return rows; }

}  // namespace tenon::ir::ops
