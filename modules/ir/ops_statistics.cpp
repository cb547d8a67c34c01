// Rows that summarise along dims, as bodies over sum, mean and var.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir::ops {
using base::DType;
using base::fail;
namespace {
Var number_mask(Var x) { return call(logical_not, {call(isnan, {x})}); }
Var without_nan(Var x) { return choose(call(isnan, {x}), 0.0, x); }
void nansum_body(Body& b) { b.out.push_back(call(sum, {base::is_real(b.x().meta().dtype) ? without_nan(b.x()) : b.x()}, b.attrs)); }
void nanmean_body(Body& b) {
  AttrReader reader{b.attrs};
  Dims const dims(reader.list());
  bool const keep = reader.flag();
  Var const x = b.x();
  if (!base::is_real(x.meta().dtype)) fail("nanmean: needs a floating dtype, not {}", to_string(x.meta()));
  auto const wish = reader.number().value;
  Var const total = call(sum, {without_nan(x)}, summed(dims, keep)), count = call(sum, {number_mask(x)}, summed(dims, keep));
  Var const mean_of = total / cast(count, total.meta().dtype);
  b.out.push_back(wish == absent ? mean_of : cast(mean_of, static_cast<DType>(wish)));
}
template <OpDef const& spread>
void spread_and_mean(Body& b) {
  AttrReader reader{b.attrs};
  Dims const dims(reader.list());
  bool const keep = reader.flag();
  b.out.push_back(call(spread, {b.x()}, Attrs{}.with(dims).with(Dim(keep)).with_num(b.attrs.nums[0])));
  b.out.push_back(call(mean, {b.x()}, summed(dims, keep)));
}
}  // namespace

// clang-format off
constinit const OpDef count_nonzero{.name = "count_nonzero", .kind = Kind::reduction, .signature = "Tensor input, int[] dim=[]",
    .equation = {.build = [](Attrs const& attrs, std::span<Meta const* const> in) {
      AttrReader reader{attrs};
      return reduce_equation(over(reader.list(), false), in);
    }},
    .terms = "-", .combine = Monoid::sum, .mono = ".", .decompose = [](Body& b) {
      AttrReader reader{b.attrs};
      b.out.push_back(call(sum, {call(ne, {b.x(), Var(0)})}, summed(reader.list(), false)));
    }};
constinit const OpDef nansum{.name = "nansum", .kind = Kind::reduction, .signature = "Tensor input, int[] dim=[], bool keepdim=False, *, dtype? dtype=None",
    .equation = {.build = reduce_equation}, .terms = "-", .combine = Monoid::sum, .mono = "+", .precision = Precision::wide, .decompose = nansum_body};
constinit const OpDef nanmean{.name = "nanmean", .kind = Kind::reduction, .signature = "Tensor input, int[] dim=[], bool keepdim=False, *, dtype? dtype=None", .terms = "-",
    .mono = "+", .precision = Precision::wide, .decompose = nanmean_body};
constinit const OpDef var_mean{.name = "var_mean", .kind = Kind::reduction, .signature = "Tensor input, int[] dim=[], *, fixed correction=1, bool keepdim=False", .results = 2,
    .terms = "-", .mono = ".", .precision = Precision::wide, .cost = 4, .decompose = spread_and_mean<var>};
constinit const OpDef std_mean{.name = "std_mean", .kind = Kind::reduction, .signature = "Tensor input, int[] dim=[], *, fixed correction=1, bool keepdim=False", .results = 2,
    .terms = "-", .mono = ".", .precision = Precision::wide, .cost = 4, .decompose = spread_and_mean<stddev>};

namespace {
constexpr std::array rows{&count_nonzero, &nansum, &nanmean, &var_mean, &std_mean};
}
// clang-format on
std::span<OpDef const* const> statistics_rows() { return rows; }

}  // namespace tenon::ir::ops
