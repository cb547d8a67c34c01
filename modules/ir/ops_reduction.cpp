// Rows that combine or scan along dims. In all of them an empty list of dims means every dim, as in PyTorch.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir::ops {
using base::DType;
using base::fail;
namespace {

struct Reduction {
  std::vector<bool> mask;
  bool keep;
};
Reduction read(OpDef const& op, Attrs const& attrs, int rank) {
  AttrReader reader{attrs};
  auto const dims = reader.list();
  return {dim_mask(op.name, dims, rank), reader.flag()};
}
Dims reduced_sizes(Meta const& x, Reduction const& how, bool keep) {
  Dims sizes;
  for (std::size_t d = 0; d < x.sizes.size(); ++d)
    if (!how.mask[d])
      sizes.push_back(x.sizes[d]);
    else if (keep)
      sizes.push_back(1);
  return sizes;
}
Dim reduced_count(Meta const& x, Reduction const& how) {
  Dim count = 1;
  for (std::size_t d = 0; d < x.sizes.size(); ++d)
    if (how.mask[d]) count = count * x.sizes[d];
  return count;
}

// sum, mean and prod take a dtype as third attribute; whole sums are i64.
void infer_reduce(Inference& call) {
  auto const& x = call.x();
  auto const how = read(call.op, call.attrs, x.rank());
  DType type = x.dtype;
  bool const accumulates = call.op.combine == Monoid::sum || call.op.combine == Monoid::prod || call.op.combine == Monoid::avg;
  if (call.op.types == Types::boolean) {
    type = DType::boolean;
  } else if (accumulates) {
    auto const wish = call.attrs.ints.back().value;
    if (wish != absent)
      type = static_cast<DType>(wish);
    else if (!base::is_real(type))
      type = DType::i64;
    if (call.op.combine == Monoid::avg && !base::is_real(type)) fail("{}: needs a floating dtype, not {}", call.op.name, base::info(x.dtype).name);
  } else {
    for (std::size_t d = 0; d < x.sizes.size(); ++d)
      if (how.mask[d] && same(x.sizes[d], 0))
        fail("{}: dim {} of {} is empty and has no {}", call.op.name, d, to_string(x), call.op.combine == Monoid::max ? "maximum" : "minimum");
  }
  call.out.push_back(contiguous_meta(type, x.device, reduced_sizes(x, how, how.keep)));
}

double fold(Monoid monoid, double a, double b) {
  switch (monoid) {
    case Monoid::prod:
      return a * b;
    case Monoid::max:
      return a != a || a > b ? a : b;
    case Monoid::min:
      return a != a || a < b ? a : b;
    default:
      return a + b;
  }
}
std::int64_t fold(Monoid monoid, std::int64_t a, std::int64_t b) {
  auto const x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
  switch (monoid) {
    case Monoid::prod:
      return static_cast<std::int64_t>(x * y);
    case Monoid::max:
      return std::max(a, b);
    case Monoid::min:
      return std::min(a, b);
    default:
      return static_cast<std::int64_t>(x + y);
  }
}
double item(Strided const& x, std::int64_t at, double) { return x.real(at); }
std::int64_t item(Strided const& x, std::int64_t at, std::int64_t) { return x.whole(at); }
void put(Strided const& y, std::int64_t at, double value) { y.set(at, value); }
void put(Strided const& y, std::int64_t at, std::int64_t value) { y.set_whole(at, value); }

// Folds the run of reduced elements behind each kept index; sums of small floats in f64.
template <class T>
void reduce(Kernel const& kernel, Reduction const& how) {
  auto const& x = kernel.in[0];
  auto const monoid = kernel.op.combine;
  bool const logical = kernel.op.types == Types::boolean;
  base::Shape kept, kept_strides, run, run_strides;
  for (std::size_t d = 0; d < x.sizes.size(); ++d) {
    (how.mask[d] ? run : kept).push_back(x.sizes[d]);
    (how.mask[d] ? run_strides : kept_strides).push_back(x.strides[d]);
  }
  T const count = static_cast<T>(base::numel(run));
  T const empty = monoid == Monoid::prod || (logical && monoid == Monoid::min) ? 1 : 0;
  std::int64_t to = 0;
  walk<1>(kept, {&kept_strides}, [&](auto const& at) {
    T total = empty;
    bool first = true;
    walk<1>(run, {&run_strides}, [&](auto const& inner) {
      T const next = logical ? static_cast<T>(item(x, at[0] + inner[0], T{}) != 0) : item(x, at[0] + inner[0], T{});
      total = first ? next : fold(monoid, total, next);
      first = false;
    });
    put(kernel.out[0], to++, monoid == Monoid::avg ? total / count : total);
  });
}
void evaluate_reduce(Kernel const& kernel) {
  auto const how = read(kernel.op, kernel.attrs, static_cast<int>(kernel.in[0].sizes.size()));
  if (base::is_real(kernel.in[0].dtype) || base::is_real(kernel.out[0].dtype))
    reduce<double>(kernel, how);
  else
    reduce<std::int64_t>(kernel, how);
}

// An incoming gradient with the reduced dims back in place, of the operand's sizes.
Var spread(Vjp& v, Var g) {
  auto const& x = v.x().meta();
  auto const how = read(sum, v.attrs, x.rank());
  if (!how.keep) g = call(reshape, {g}, Attrs{}.with(reduced_sizes(x, how, true)));
  return call(expand, {g}, Attrs{}.with(x.sizes));
}
Attrs reduce_attrs(Vjp& v, bool with_dtype) {
  AttrReader reader{v.attrs};
  Attrs attrs = Attrs{}.with(reader.list()).with(Dim(true));
  return with_dtype ? attrs.with(Dim(absent)) : attrs;
}
void extreme_vjp(Vjp& v) {  // equal extremes share the gradient
  Var const mask = call(to, {call(eq, {v.x(), spread(v, v.y())})}, Attrs{}.with(v.x().meta().dtype));
  v.grad(0) = spread(v, v.g()) * mask / call(sum, {mask}, reduce_attrs(v, true));
}

void infer_arg(Inference& call) {
  auto const& x = call.x();
  AttrReader reader{call.attrs};
  auto const dim = reader.number();
  bool const keep = reader.flag();
  Dims sizes;
  if (dim.value == absent) {
    if (same(product(x.sizes), 0)) fail("{}: {} is empty", call.op.name, to_string(x));
    if (keep) sizes.resize(x.sizes.size(), Dim(1));
  } else {
    auto const axis = x.rank() ? static_cast<std::size_t>(base::wrap_dim(call.op.name, dim.value, x.rank())) : 0;
    for (std::size_t d = 0; d < x.sizes.size(); ++d)
      if (d != axis)
        sizes.push_back(x.sizes[d]);
      else if (same(x.sizes[d], 0))
        fail("{}: dim {} of {} is empty", call.op.name, d, to_string(x));
      else if (keep)
        sizes.push_back(1);
  }
  call.out.push_back(contiguous_meta(DType::i64, x.device, sizes));
}
template <bool largest>
void evaluate_arg(Kernel const& kernel) {  // the first of equal ones; NaN wins
  auto const& x = kernel.in[0];
  auto const dim = kernel.attrs.ints[0].value;
  bool const all = dim == absent || x.sizes.empty();
  auto const axis = all ? 0 : static_cast<std::size_t>(base::wrap_dim(kernel.op.name, dim, static_cast<int>(x.sizes.size())));
  base::Shape kept, kept_strides, run, run_strides;
  for (std::size_t d = 0; d < x.sizes.size(); ++d) {
    (all || d == axis ? run : kept).push_back(x.sizes[d]);
    (all || d == axis ? run_strides : kept_strides).push_back(x.strides[d]);
  }
  std::int64_t to = 0;
  walk<1>(kept, {&kept_strides}, [&](auto const& at) {
    std::int64_t best = 0, place = 0;
    double extreme = 0;
    walk<1>(run, {&run_strides}, [&](auto const& inner) {
      double const value = x.real(at[0] + inner[0]);
      if (place == 0 || (extreme == extreme && (value != value || (largest ? value > extreme : value < extreme)))) {
        extreme = value;
        best = place;
      }
      ++place;
    });
    kernel.out[0].set_whole(to++, best);
  });
}
std::string arg_equation(Attrs const& attrs, std::span<Meta const* const> in) {
  int const rank = in[0]->rank();
  auto from = letters(rank), to = from;
  bool const keep = attrs.ints[1].value != 0;
  if (attrs.ints[0].value == absent) {
    std::string marked;
    for (char c : from) marked += {c, '!'};
    return marked + "->" + (keep ? std::string(from.size(), '1') : "");
  }
  if (rank == 0) return "->";
  auto const d = static_cast<std::size_t>(base::wrap_dim("equation", attrs.ints[0].value, rank));
  from.insert(d + 1, "!");
  keep ? to.replace(d, 1, "1") : to.erase(d, 1);
  return from + "->" + to;
}

void infer_scan(Inference& call) {
  auto const& x = call.x();
  AttrReader reader{call.attrs};
  base::wrap_dim(call.op.name, reader.number().value, std::max(x.rank(), 1));
  auto const wish = reader.number().value;
  call.out.push_back(contiguous_meta(wish != absent ? static_cast<DType>(wish) : base::is_real(x.dtype) ? x.dtype : DType::i64, x.device, x.sizes));
}
template <class T>
void scan(Kernel const& kernel) {
  auto const& x = kernel.in[0];
  auto const& y = kernel.out[0];
  auto const axis = x.sizes.empty() ? 0 : static_cast<std::size_t>(base::wrap_dim("cumsum", kernel.attrs.ints[0].value, static_cast<int>(x.sizes.size())));
  base::Shape outer = x.sizes;
  if (x.sizes.empty()) return put(y, 0, item(x, 0, T{}));
  outer[axis] = std::min<std::int64_t>(outer[axis], 1);
  walk<2>(outer, {&x.strides, &y.strides}, [&](auto const& at) {
    T total = 0;
    for (std::int64_t i = 0; i < x.sizes[axis]; ++i) {
      total = fold(Monoid::sum, total, item(x, at[0] + i * x.strides[axis], T{}));
      put(y, at[1] + i * y.strides[axis], total);
    }
  });
}
}  // namespace

// clang-format off
constinit const OpDef sum{.name = "sum", .kind = Kind::reduction, .signature = "Tensor input, int[] dim=[], bool keepdim=False, *, dtype? dtype=None",
    .equation = {.build = reduce_equation}, .terms = "a", .combine = Monoid::sum, .mono = "+", .types = Types::custom, .precision = Precision::wide,
    .vjp = [](Vjp& v) { v.grad(0) = spread(v, v.g()); }, .infer = infer_reduce, .evaluate = evaluate_reduce};
constinit const OpDef mean{.name = "mean", .kind = Kind::reduction, .signature = "Tensor input, int[] dim=[], bool keepdim=False, *, dtype? dtype=None",
    .equation = {.build = reduce_equation}, .terms = "a", .combine = Monoid::avg, .mono = "+", .types = Types::custom,
    .vjp = [](Vjp& v) { v.grad(0) = spread(v, v.g()) / Var(reduced_count(v.x().meta(), read(mean, v.attrs, v.x().rank()))); }, .infer = infer_reduce,
    .evaluate = evaluate_reduce};
constinit const OpDef prod{.name = "prod", .kind = Kind::reduction, .signature = "Tensor input, int[] dim=[], bool keepdim=False, *, dtype? dtype=None",
    .equation = {.build = reduce_equation}, .terms = "-", .combine = Monoid::prod, .mono = ".", .types = Types::custom, .precision = Precision::wide,
    .vjp = [](Vjp& v) {  // without zeros y / x; with one zero only that element has a slope, the product of the others
      Var const zero = call(eq, {v.x(), 0.0});
      Var const zeros = call(sum, {call(to, {zero}, Attrs{}.with(v.x().meta().dtype))}, reduce_attrs(v, true));
      Var const others = call(prod, {choose(zero, 1.0, v.x())}, reduce_attrs(v, true));
      Var const single = choose(call(logical_and, {zero, call(eq, {zeros, 1.0})}), others, 0.0);
      v.grad(0) = spread(v, v.g()) * choose(call(eq, {zeros, 0.0}), others / choose(zero, 1.0, v.x()), single);
    }, .saves = 1, .infer = infer_reduce, .evaluate = evaluate_reduce};
constinit const OpDef amax{.name = "amax", .kind = Kind::reduction, .signature = "Tensor input, int[] dim=[], bool keepdim=False", .equation = {.build = reduce_equation},
    .terms = "-", .combine = Monoid::max, .mono = "+", .types = Types::custom, .vjp = extreme_vjp, .saves = 1 | saves_result, .infer = infer_reduce, .evaluate = evaluate_reduce};
constinit const OpDef amin{.name = "amin", .kind = Kind::reduction, .signature = "Tensor input, int[] dim=[], bool keepdim=False", .equation = {.build = reduce_equation},
    .terms = "-", .combine = Monoid::min, .mono = "+", .types = Types::custom, .vjp = extreme_vjp, .saves = 1 | saves_result, .infer = infer_reduce, .evaluate = evaluate_reduce};
constinit const OpDef any{.name = "any", .kind = Kind::reduction, .signature = "Tensor input, int[] dim=[], bool keepdim=False", .equation = {.build = reduce_equation},
    .terms = "-", .combine = Monoid::max, .mono = ".", .types = Types::boolean, .infer = infer_reduce, .evaluate = evaluate_reduce};
constinit const OpDef all{.name = "all", .kind = Kind::reduction, .signature = "Tensor input, int[] dim=[], bool keepdim=False", .equation = {.build = reduce_equation},
    .terms = "-", .combine = Monoid::min, .mono = ".", .types = Types::boolean, .infer = infer_reduce, .evaluate = evaluate_reduce};
constinit const OpDef argmax{.name = "argmax", .kind = Kind::reduction, .signature = "Tensor input, int? dim=None, bool keepdim=False", .equation = {.build = arg_equation},
    .terms = "-", .mono = ".", .types = Types::index, .infer = infer_arg, .evaluate = evaluate_arg<true>};
constinit const OpDef argmin{.name = "argmin", .kind = Kind::reduction, .signature = "Tensor input, int? dim=None, bool keepdim=False", .equation = {.build = arg_equation},
    .terms = "-", .mono = ".", .types = Types::index, .infer = infer_arg, .evaluate = evaluate_arg<false>};
constinit const OpDef cumsum{.name = "cumsum", .kind = Kind::scan, .signature = "Tensor input, int dim, *, dtype? dtype=None", .equation = {.build = whole_dim_equation},
    .terms = "a", .mono = ".", .types = Types::custom, .precision = Precision::wide,
    .vjp = [](Vjp& v) {  // the reverse scan: total - scan + own
      if (v.x().rank() == 0) return void(v.grad(0) = v.g());
      Var const total = call(sum, {v.g()}, Attrs{}.with(std::array{v.attrs.ints[0]}).with(Dim(true)).with(Dim(absent)));
      v.grad(0) = total - call(cumsum, {v.g()}, Attrs{}.with(v.attrs.ints[0]).with(Dim(absent))) + v.g();
    }, .infer = infer_scan, .evaluate = [](Kernel const& k) { base::is_real(k.out[0].dtype) ? scan<double>(k) : scan<std::int64_t>(k); }};

namespace {
constexpr std::array rows{&sum, &mean, &prod, &amax, &amin, &any, &all, &argmax, &argmin, &cumsum};
}
// clang-format on
std::span<OpDef const* const> reduction_rows() { return rows; }

}  // namespace tenon::ir::ops
