module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir {
using base::DType;

namespace {
constexpr std::int64_t row_length = 256;

template <class T>
void load_reals(std::byte const* from, std::int64_t stride, std::int64_t n, double* to) {
  auto const* item = reinterpret_cast<T const*>(from);
  for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<double>(item[i * stride]);
}

// One row of an operand as doubles, rounded to the dtype that the op computes in.
void load_row(Strided const& x, std::int64_t offset, std::int64_t stride, std::int64_t n, DType compute, double* to) {
  switch (x.dtype) {
    case DType::f32:
      load_reals<float>(x.at(offset), stride, n, to);
      break;
    case DType::f64:
      load_reals<double>(x.at(offset), stride, n, to);
      break;
    case DType::i64:
      load_reals<std::int64_t>(x.at(offset), stride, n, to);
      break;
    default:
      for (std::int64_t i = 0; i < n; ++i) to[i] = x.real(offset + i * stride);
  }
  if (x.dtype == compute || compute == DType::f64 || !base::is_real(compute)) return;
  for (std::int64_t i = 0; i < n; ++i) {
    std::array<std::byte, 8> rounded{};
    base::store_real(compute, rounded.data(), to[i]);
    to[i] = base::load_real(compute, rounded.data());
  }
}
void load_row(Strided const& x, std::int64_t offset, std::int64_t stride, std::int64_t n, DType compute, std::int64_t* to) {
  for (std::int64_t i = 0; i < n; ++i) {
    to[i] = x.whole(offset + i * stride);
    if (x.dtype == compute || compute == DType::i64) continue;
    std::array<std::byte, 8> wrapped{};
    base::store_whole(compute, wrapped.data(), to[i]);
    to[i] = base::load_whole(compute, wrapped.data());
  }
}
void store_row(Strided const& y, std::int64_t offset, std::int64_t stride, std::int64_t n, double const* from) {
  if (y.dtype == DType::f32) {
    auto* item = reinterpret_cast<float*>(y.at(offset));
    for (std::int64_t i = 0; i < n; ++i) item[i * stride] = static_cast<float>(from[i]);
    return;
  }
  for (std::int64_t i = 0; i < n; ++i) y.set(offset + i * stride, from[i]);
}
void store_row(Strided const& y, std::int64_t offset, std::int64_t stride, std::int64_t n, std::int64_t const* from) {
  for (std::int64_t i = 0; i < n; ++i) y.set_whole(offset + i * stride, from[i]);
}

double number_of(Scalar const& scalar, DType compute, double) {
  double const value = scalar.kind == ScalarKind::real ? scalar.real : static_cast<double>(scalar.whole);
  return compute == DType::f64 ? value : static_cast<double>(static_cast<float>(value));
}
std::int64_t number_of(Scalar const& scalar, DType, std::int64_t) { return scalar.kind == ScalarKind::real ? base::truncate(scalar.real) : scalar.whole; }

template <class T>
void pointwise(Kernel const& kernel, DType compute, T (*element)(T const*, double const*)) {
  auto const& out = kernel.out[0];
  auto const attributes = element_attributes(kernel.op, kernel.attrs);
  std::size_t const operands = kernel.in.size();
  std::size_t const rank = out.sizes.size();
  std::int64_t const n = rank ? out.sizes[rank - 1] : 1;
  base::Shape const outer(out.sizes.begin(), out.sizes.end() - (rank ? 1 : 0));
  std::vector<base::Shape> strides(operands + 1, base::Shape(std::max<std::size_t>(rank, 1), 0));  // broadcast: stride 0
  for (std::size_t d = 0; d < rank; ++d) strides[operands][d] = out.strides[d];
  for (std::size_t k = 0; k < operands; ++k)
    for (std::size_t d = 0; d < kernel.in[k].sizes.size(); ++d)
      if (kernel.in[k].sizes[d] != 1) strides[k][rank - kernel.in[k].sizes.size() + d] = kernel.in[k].strides[d];
  std::vector<T> rows(operands * row_length), result(row_length), x(operands);
  for (std::size_t k = 0; k < operands; ++k)
    if (!kernel.in[k].data) std::fill_n(rows.data() + k * row_length, row_length, number_of(kernel.scalars[k], compute, T{}));
  base::Shape index(outer.size(), 0);
  if (base::numel(out.sizes) == 0) return;
  std::size_t const inner = rank ? rank - 1 : 0;
  for (std::vector<std::int64_t> offsets(operands + 1, 0);;) {
    for (std::int64_t start = 0; start < n; start += row_length) {
      std::int64_t const length = std::min(row_length, n - start);
      for (std::size_t k = 0; k < operands; ++k)
        if (kernel.in[k].data) load_row(kernel.in[k], offsets[k] + start * strides[k][inner], strides[k][inner], length, compute, rows.data() + k * row_length);
      for (std::int64_t i = 0; i < length; ++i) {
        for (std::size_t k = 0; k < operands; ++k) x[k] = rows[k * row_length + static_cast<std::size_t>(i)];
        result[static_cast<std::size_t>(i)] = element(x.data(), attributes.data());
      }
      store_row(out, offsets[operands] + start * strides[operands][inner], strides[operands][inner], length, result.data());
    }
    std::size_t d = outer.size();
    for (; d-- > 0;) {
      if (++index[d] < outer[d]) {
        for (std::size_t k = 0; k <= operands; ++k) offsets[k] += strides[k][d];
        break;
      }
      for (std::size_t k = 0; k <= operands; ++k) offsets[k] -= strides[k][d] * (outer[d] - 1);
      index[d] = 0;
    }
    if (d == std::size_t(-1)) return;
  }
}

void evaluate_pointwise(Kernel const& kernel) {
  DType compute = kernel.out[0].dtype;
  if (kernel.op.types == Types::boolean) {
    std::vector<DType> dtypes;
    std::vector<int> ranks;
    for (auto const& x : kernel.in) {
      dtypes.push_back(x.dtype);
      ranks.push_back(x.data ? static_cast<int>(x.sizes.size()) : -1);
    }
    compute = common_type(dtypes, ranks, kernel.scalars);
  }
  // A cast reads real elements as they are: what truncates to 0 is still true.
  if (!base::is_real(compute) && std::ranges::any_of(kernel.in, [](Strided const& x) { return x.data && base::is_real(x.dtype); })) compute = DType::f64;
  if (!base::is_real(compute) && kernel.op.element.whole)
    pointwise<std::int64_t>(kernel, compute, kernel.op.element.whole);
  else
    pointwise<double>(kernel, compute, kernel.op.element.real);
}

void evaluate_view(Kernel const& kernel) {  // as a copy: only where the geometry has no strides for it, or nobody keeps the parent
  View view{kernel.attrs, kernel.in[0].dtype, {}, {}, 0};
  for (auto size : kernel.in[0].sizes) view.sizes.push_back(size);
  for (auto stride : kernel.in[0].strides) view.strides.push_back(stride);
  Strided from = kernel.in[0];
  if (kernel.op.geometry(view)) {
    from.data = from.at(view.offset.value);
    from.sizes = values(view.sizes);
    from.strides = values(view.strides);
    walk<2>(from.sizes, {&from.strides, &kernel.out[0].strides},
            [&](auto const& at) { std::memcpy(kernel.out[0].at(at[1]), from.at(at[0]), static_cast<std::size_t>(base::bytes_of(from.dtype))); });
    return;
  }
  std::byte* to = kernel.out[0].data;  // row-major
  auto const bytes = static_cast<std::size_t>(base::bytes_of(from.dtype));
  walk<1>(from.sizes, {&from.strides}, [&](auto const& at) {
    std::memcpy(to, from.at(at[0]), bytes);
    to += bytes;
  });
}
}  // namespace

std::vector<double> element_attributes(OpDef const& op, Attrs const& attrs) {
  std::vector<double> flat;
  AttrReader reader{attrs};
  for (auto const& parameter : signature(op).parameters) switch (parameter.type) {
      case Parameter::Type::tensor:
      case Parameter::Type::tensors:
      case Parameter::Type::text:
        break;
      case Parameter::Type::wholes:
      case Parameter::Type::sizes:
        reader.list();
        break;
      case Parameter::Type::reals:
        for (auto n = reader.number().value; n-- > 0;) reader.num();
        break;
      case Parameter::Type::real: {
        auto const number = reader.num();
        flat.push_back(number.kind == ScalarKind::none   ? std::numeric_limits<double>::quiet_NaN()
                       : number.kind == ScalarKind::real ? number.real
                                                         : static_cast<double>(number.whole));
        break;
      }
      default:
        flat.push_back(static_cast<double>(reader.number().value));
    }
  return flat;
}

bool has_kernel(OpDef const& op) { return op.evaluate || op.element.real || op.geometry; }

void evaluate(OpDef const& op, std::span<Strided const> in, std::span<Scalar const> scalars, Attrs const& attrs, std::span<Strided> out) {
  Kernel const kernel{op, attrs, in, scalars, out};
  if (op.evaluate) return op.evaluate(kernel);
  if (op.element.real) return evaluate_pointwise(kernel);
  if (!op.geometry) throw base::Bug(std::format("{} has no kernel: decompose it first", op.name));
  evaluate_view(kernel);
}

}  // namespace tenon::ir
