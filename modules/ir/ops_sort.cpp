// Rows about order: sort and running extremes have kernels; what takes the largest, a middle or a place in a sorted row is a body over it. NaN is larger than
// any number.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir::ops {
using base::DType;
using base::fail;
namespace {
std::size_t axis_of(std::string_view op, Dim dim, int rank) { return static_cast<std::size_t>(base::wrap_dim(op, dim.value, std::max(rank, 1))); }

void evaluate_sort(Kernel const& kernel) {
  auto const &x = kernel.in[0], &sorted = kernel.out[0], &places = kernel.out[1];
  auto const axis = axis_of("sort", kernel.attrs.ints[0], static_cast<int>(x.sizes.size()));
  bool const descending = kernel.attrs.ints[1].value != 0, real = base::is_real(x.dtype);
  std::int64_t const n = x.sizes.empty() ? 1 : x.sizes[axis];
  auto const step = [&](Strided const& of) { return of.sizes.empty() ? std::int64_t{0} : of.strides[axis]; };
  base::Shape outer = x.sizes;
  if (!outer.empty()) outer[axis] = std::min<std::int64_t>(n, 1);
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  walk<3>(outer, {&x.strides, &sorted.strides, &places.strides}, [&](auto const& at) {
    std::iota(order.begin(), order.end(), std::int64_t{0});
    auto const before = [&](std::int64_t i, std::int64_t j) {
      if (!real) return x.whole(at[0] + i * step(x)) < x.whole(at[0] + j * step(x));
      double const a = x.real(at[0] + i * step(x)), b = x.real(at[0] + j * step(x));
      return a < b || (b != b && a == a);
    };
    std::ranges::stable_sort(order, [&](std::int64_t i, std::int64_t j) { return descending ? before(j, i) : before(i, j); });
    for (std::int64_t k = 0; k < n; ++k) {
      std::int64_t const from = order[static_cast<std::size_t>(k)];
      std::memcpy(sorted.at(at[1] + k * step(sorted)), x.at(at[0] + from * step(x)), static_cast<std::size_t>(base::bytes_of(x.dtype)));
      places.set_whole(at[2] + k * step(places), from);
    }
  });
}

template <bool largest>
void evaluate_running(Kernel const& kernel) {  // of equal ones the later; NaN stays
  auto const &x = kernel.in[0], &best = kernel.out[0], &places = kernel.out[1];
  auto const axis = axis_of(kernel.op.name, kernel.attrs.ints[0], static_cast<int>(x.sizes.size()));
  std::int64_t const n = x.sizes.empty() ? 1 : x.sizes[axis];
  auto const step = [&](Strided const& of) { return of.sizes.empty() ? std::int64_t{0} : of.strides[axis]; };
  bool const real = base::is_real(x.dtype);
  base::Shape outer = x.sizes;
  if (!outer.empty()) outer[axis] = std::min<std::int64_t>(n, 1);
  walk<3>(outer, {&x.strides, &best.strides, &places.strides}, [&](auto const& at) {
    auto const replaces = [&](std::int64_t from, std::int64_t held) {
      if (!real) {
        auto const a = x.whole(at[0] + from * step(x)), b = x.whole(at[0] + held * step(x));
        return largest ? a >= b : a <= b;
      }
      double const a = x.real(at[0] + from * step(x)), b = x.real(at[0] + held * step(x));
      return a != a || (largest ? a >= b : a <= b);
    };
    for (std::int64_t k = 0, held = 0; k < n; ++k) {
      if (replaces(k, held)) held = k;
      std::memcpy(best.at(at[1] + k * step(best)), x.at(at[0] + held * step(x)), static_cast<std::size_t>(base::bytes_of(x.dtype)));
      places.set_whole(at[2] + k * step(places), held);
    }
  });
}
void infer_pair(Inference& call) {
  auto const& x = call.x();
  axis_of(call.op.name, call.attrs.ints[0], x.rank());
  call.out.push_back(contiguous_meta(x.dtype, x.device, x.sizes));
  call.out.push_back(contiguous_meta(DType::i64, x.device, x.sizes));
}
void pair_vjp(Vjp& v) {  // back to where each element came from
  if (v.g(0)) v.grad(0) = call(scatter_add, {zeros_like(v.x()), v.y(1), v.g(0)}, at_dim(v.attrs.ints[0].value));
}

Var sorted_rows(Var x, int dim, bool descending) { return call(sort, {x}, Attrs{}.with(Dim(dim)).with(Dim(descending)).with(Dim(true))); }
Var without(Var x, int dim, bool keep) { return keep || x.rank() == 0 ? x : call(select, {x}, Attrs{}.with(Dim(dim)).with(Dim(0))); }
void need_elements(Var x, int dim) {
  if (x.rank() > 0 && same(x.size(dim), 0)) fail("dim {} of {} is empty", dim, to_string(x.meta()));
}
// The elements at `place` (one a row, the dim kept) and the places: two results.
void results_at(Body& b, int dim, Var place, bool keep) {
  b.out.push_back(without(call(gather, {b.x(), place}, at_dim(dim)), dim, keep));
  b.out.push_back(without(place, dim, keep));
}
template <bool largest>
void extreme_body(Body& b) {
  int const dim = dim_of(b.x(), b.attrs.ints[0]);
  need_elements(b.x(), dim);
  results_at(b, dim, call(largest ? argmax : argmin, {b.x()}, at_dim(dim).with(Dim(true))), b.attrs.ints[1].value != 0);
}
void topk_body(Body& b) {
  AttrReader reader{b.attrs};
  Dim const k = reader.number();
  int const dim = dim_of(b.x(), reader.number());
  Dim const size = b.x().rank() ? b.x().size(dim) : Dim(1);
  if (less(k, 0) || !less_equal(k, size)) fail("topk: k = {} exceeds size {} of dim {}", k.value, size.value, dim);
  Var const both = sorted_rows(b.x(), dim, reader.flag());
  for (int r = 0; r < 2; ++r) b.out.push_back(b.x().rank() ? cut(nth(both, r), dim, 0, k) : nth(both, r));
}
Var kth_place(Var x, int dim, Dim k) {
  Var const places = nth(sorted_rows(x, dim, false), 1);
  return x.rank() ? cut(places, dim, k, k + 1) : places;
}
void kthvalue_body(Body& b) {
  AttrReader reader{b.attrs};
  Dim const k = reader.number();
  int const dim = dim_of(b.x(), reader.number());
  Dim const size = b.x().rank() ? b.x().size(dim) : Dim(1);
  if (less(k, 1) || !less_equal(k, size)) fail("kthvalue: k = {} is out of range for size {} of dim {}", k.value, size.value, dim);
  results_at(b, dim, kth_place(b.x(), dim, k - 1), reader.flag());
}
void median_body(Body& b) {  // the lower of two middles; a row with NaN gives it
  bool const all = b.attrs.ints[0].value == absent;
  Var const x = all ? shaped(b.x(), std::array{product(b.x().meta().sizes)}) : b.x();
  int const dim = all ? 0 : dim_of(x, b.attrs.ints[0]);
  need_elements(x, dim);
  Var place = kth_place(x, dim, x.rank() ? (x.size(dim) - 1) / 2 : Dim(0));
  if (base::is_real(x.meta().dtype)) {
    Var const odd = call(isnan, {x});
    place = choose(call(any, {odd}, over(std::array{Dim(dim)}, true)), call(argmax, {odd}, at_dim(dim).with(Dim(true))), place);
  }
  if (all) return void(b.out.push_back(without(call(gather, {x, place}, at_dim(0)), 0, false)));
  results_at(b, dim, place, b.attrs.ints[1].value != 0);
}
// How many elements of a sorted row lie before the place of x, by halving. The comparison is PyTorch's, so that NaN goes to the end.
void evaluate_searchsorted(Kernel const& kernel) {
  AttrReader reader{kernel.attrs};
  reader.flag();
  bool const right = reader.flag() || reader.number().value == 2;
  auto const &row = kernel.in[0], &x = kernel.in[1], &sorter = kernel.in[2], &y = kernel.out[0];
  bool const real = base::is_real(row.dtype) || base::is_real(x.dtype), shared = row.sizes.size() == 1;
  std::int64_t const n = row.sizes.back(), step = row.strides.back(), turn = sorter.data ? sorter.strides.back() : 0;
  auto const leading = [&](base::Shape const& strides, bool used) {  // over the dims of x
    base::Shape list(x.sizes.size(), 0);
    if (used && !shared) std::copy(strides.begin(), strides.end() - 1, list.begin());
    return list;
  };
  base::Shape const rows = leading(row.strides, true), turns = leading(sorter.strides, sorter.data != nullptr);
  walk<4>(x.sizes, {&x.strides, &rows, &turns, &y.strides}, [&](auto const& at) {
    auto const goes_on = [&](std::int64_t k) {
      std::int64_t place = k;
      if (sorter.data) place = sorter.whole(at[2] + k * turn);
      if (place < 0 || place >= n) fail("searchsorted: sorter holds {}, out of range for size {}", place, n);
      std::int64_t const from = at[1] + place * step;
      if (real) return right ? !(row.real(from) > x.real(at[0])) : !(row.real(from) >= x.real(at[0]));
      return right ? row.whole(from) <= x.whole(at[0]) : row.whole(from) < x.whole(at[0]);
    };
    std::int64_t low = 0, high = n;
    while (low < high) {
      std::int64_t const middle = low + (high - low) / 2;
      goes_on(middle) ? low = middle + 1 : high = middle;
    }
    y.set_whole(at[3], low);
  });
}
void infer_searchsorted(Inference& call) {
  AttrReader reader{call.attrs};
  bool const small = reader.flag(), right = reader.flag();
  auto const side = reader.number().value;
  auto const &row = call.x(0), &x = call.x(1);
  if (row.rank() == 0) fail("searchsorted: the sorted sequence needs a rank of at least 1");
  if (right && side == 1) fail("searchsorted: right and side contradict each other");
  if (call.in[2]) {
    auto const& sorter = call.x(2);
    if (sorter.dtype != DType::i64) fail("searchsorted: the sorter must be i64, not {}", to_string(sorter));
    bool fits = sorter.rank() == row.rank();
    for (std::size_t d = 0; fits && d < row.sizes.size(); ++d) fits = same(sorter.sizes[d], row.sizes[d]);
    if (!fits) fail("searchsorted: sorter {} does not fit {}", to_string(sorter), to_string(row));
  }
  bool fits = row.rank() == 1 || row.rank() == x.rank();
  for (std::size_t d = 0; fits && row.rank() > 1 && d + 1 < row.sizes.size(); ++d) fits = same(row.sizes[d], x.sizes[d]);
  if (!fits) fail("searchsorted: leading sizes of {} and {} differ", to_string(row), to_string(x));
  call.out.push_back(contiguous_meta(small ? DType::i32 : DType::i64, x.device, x.sizes));
}
// The same by comparing with every element, where there is no kernel.
Var place_in(Var row, Var x, bool right, bool small) {
  Var const sorted = row.rank() == 1 ? row : call(unsqueeze, {row}, at_dim(-2)), each = call(unsqueeze, {x}, at_dim(-1));
  Var const before = call(logical_not, {call(right ? gt : ge, {sorted, each})});
  return cast(call(sum, {before}, summed(std::array{Dim(-1)}, false)), small ? DType::i32 : DType::i64);
}
void searchsorted_body(Body& b) {
  AttrReader reader{b.attrs};
  bool const small = reader.flag(), right = reader.flag() || reader.number().value == 2;
  Var const row = b.x(2) ? call(gather, {b.x(0), b.x(2)}, at_dim(-1)) : b.x(0);
  b.out.push_back(place_in(row, b.x(1), right, small));
}
// A sorted row stays whole; if there is one for each row of x, the leading dims are theirs together.
std::string searchsorted_equation(Attrs const&, std::span<Meta const* const> in) {
  auto const all = letters(in[1]->rank(), 1);
  bool const shared = in[0]->rank() == 1;
  auto const row = (shared ? "" : all.substr(0, all.size() - 1)) + "a!";
  return row + "," + all + (in[2] ? "," + row : "") + "->" + all;
}
std::string pair_equation(Attrs const& attrs, std::span<Meta const* const> in) {
  auto const one = whole_dim_equation(attrs, in);
  return one + "," + one.substr(one.find("->") + 2);
}
}  // namespace

// clang-format off
constinit const OpDef sort{.name = "sort", .kind = Kind::sort, .signature = "Tensor input, int dim=-1, bool descending=False, bool stable=False", .results = 2,
    .equation = {.build = pair_equation}, .terms = "-", .mono = ".",
    .vjp = pair_vjp, .saves = saves_result << 1, .infer = infer_pair, .evaluate = evaluate_sort};
constinit const OpDef cummax{.name = "cummax", .kind = Kind::scan, .signature = "Tensor input, int dim", .results = 2, .equation = {.build = pair_equation}, .terms = "-",
    .mono = ".", .vjp = pair_vjp, .saves = saves_result << 1, .infer = infer_pair, .evaluate = evaluate_running<true>};
constinit const OpDef cummin{.name = "cummin", .kind = Kind::scan, .signature = "Tensor input, int dim", .results = 2, .equation = {.build = pair_equation}, .terms = "-",
    .mono = ".", .vjp = pair_vjp, .saves = saves_result << 1, .infer = infer_pair, .evaluate = evaluate_running<false>};
constinit const OpDef argsort{.name = "argsort", .kind = Kind::sort, .signature = "Tensor input, int dim=-1, bool descending=False, bool stable=False", .terms = "-", .mono = ".",
    .decompose = [](Body& b) { b.out.push_back(nth(call(sort, {b.x()}, b.attrs), 1)); }};
constinit const OpDef topk{.name = "topk", .kind = Kind::sort, .signature = "Tensor input, size k, int dim=-1, bool largest=True, bool sorted=True", .results = 2, .terms = "-",
    .mono = ".", .decompose = topk_body};
constinit const OpDef kthvalue{.name = "kthvalue", .kind = Kind::sort, .signature = "Tensor input, size k, int dim=-1, bool keepdim=False", .results = 2, .terms = "-",
    .mono = ".", .decompose = kthvalue_body};
constinit const OpDef median{.name = "median", .kind = Kind::sort, .signature = "Tensor input, int? dim=None, bool keepdim=False", .results = 0, .terms = "-", .mono = ".",
    .decompose = median_body};
constinit const OpDef max_dim{.name = "max.dim", .kind = Kind::reduction, .signature = "Tensor input, int dim, bool keepdim=False", .results = 2, .terms = "-", .mono = ".",
    .decompose = extreme_body<true>};
constinit const OpDef min_dim{.name = "min.dim", .kind = Kind::reduction, .signature = "Tensor input, int dim, bool keepdim=False", .results = 2, .terms = "-", .mono = ".",
    .decompose = extreme_body<false>};
constinit const OpDef searchsorted{.name = "searchsorted", .kind = Kind::sort,
    .signature = "Tensor sorted_sequence, Tensor input, *, bool out_int32=False, bool right=False, none|left|right side=none, Tensor? sorter=None",
    .equation = {.build = searchsorted_equation}, .terms = "---", .mono = "...", .types = Types::index, .vjp = [](Vjp&) {}, .infer = infer_searchsorted, .evaluate = evaluate_searchsorted,
    .decompose = searchsorted_body};
constinit const OpDef bucketize{.name = "bucketize", .kind = Kind::sort, .signature = "Tensor input, Tensor boundaries, *, bool out_int32=False, bool right=False", .terms = "--",
    .mono = "..", .decompose = [](Body& b) {
      if (b.x(1).rank() != 1) fail("bucketize: boundaries need rank 1, not {}", to_string(b.x(1).meta()));
      Attrs attrs = b.attrs;
      b.out.push_back(call(searchsorted, {b.x(1), b.x(0), Var()}, attrs.with(Dim(0))));
    }};

namespace {
constexpr std::array rows{&sort, &cummax, &cummin, &argsort, &topk, &kthvalue, &median, &max_dim, &min_dim, &searchsorted, &bucketize};
}
// clang-format on
std::span<OpDef const* const> sort_rows() { return rows; }

}  // namespace tenon::ir::ops
