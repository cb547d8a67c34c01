// Rules of convolution and of the largest element of each window.
module tenon.ir;
import std;
import tenon.base;
import :hlo;
import :hlo_raise;

namespace tenon::ir::hlo {
using base::DType;
namespace {
using I = std::int64_t;

Sizes each(AttrReader& reader, std::size_t dims, I usual) {  // an entry a dim; one stands for all
  auto const list = reader.list();
  Sizes full;
  for (std::size_t d = 0; d < dims; ++d) full.push_back(list.empty() ? usual : list[list.size() == 1 ? 0 : d].value);
  return full;
}
Attribute ends(Sizes const& low, Sizes const& high) {
  std::vector<Sizes> rows;
  for (std::size_t d = 0; d < low.size(); ++d) rows.push_back({low[d], high[d]});
  return rows;
}

void convolution(Raising& r) {
  Type const result = r.result();
  DType const type = working(result.dtype);
  std::size_t const dims = result.sizes.size() - 2;
  auto reader = r.attrs();
  auto const stride = each(reader, dims, 1), low = each(reader, dims, 0), high = each(reader, dims, 0), dilation = each(reader, dims, 1),
             input_dilation = each(reader, dims, 1);
  if (contains(r.x(0).sizes(), 0) || contains(r.x(1).sizes(), 0)) return void(r.out = {r.to.number(0, result)});
  Sizes space(dims);
  std::iota(space.begin(), space.end(), I{2});
  Attributes attributes{{"window_strides", stride}, {"padding", ends(low, high)}, {"lhs_dilation", input_dilation}, {"rhs_dilation", dilation}};
  auto const layout = [&](std::string const& first, std::string const& second, std::string const& rest) {
    attributes.emplace_back(first, I{0}), attributes.emplace_back(second, I{1}), attributes.emplace_back(rest, space);
  };
  layout("input_batch_dimension", "input_feature_dimension", "input_spatial_dimensions");
  layout("kernel_output_feature_dimension", "kernel_input_feature_dimension", "kernel_spatial_dimensions");
  layout("output_batch_dimension", "output_feature_dimension", "output_spatial_dimensions");
  attributes.emplace_back("feature_group_count", reader.number().value);
  attributes.emplace_back("batch_group_count", I{1});
  r.out = {convert(r.to.write("convolution", {convert(r.x(0), type), convert(r.x(1), type)}, {type, result.sizes}, std::move(attributes)), result.dtype)};
}

// The value alone is a window reduction; the place as well is found among the elements of each window, laid out behind its place.
void max_pool(Raising& r) {
  Type const result = r.result();
  auto reader = r.attrs();
  std::size_t const dims = reader.list().size(), rank = result.sizes.size(), lead = rank - dims;
  reader.at = 0;
  auto const kernel = each(reader, dims, 1);
  bool const own_stride = r.node.attrs.ints[reader.at].value != 0;
  auto const given = each(reader, dims, 1), padding = each(reader, dims, 0), dilation = each(reader, dims, 1);
  auto const& stride = own_stride ? given : kernel;
  Term x = r.x();
  Sizes low(rank, 0), high(rank, 0), window(rank, 1), steps(rank, 1), spacing(rank, 1), flat(dims, 1);
  bool framed = false;
  for (std::size_t d = dims; d-- > 0;) {
    std::size_t const k = lead + d;
    low[k] = padding[d], window[k] = kernel[d], steps[k] = stride[d], spacing[k] = dilation[d];
    high[k] = std::max<I>(0, (result.sizes[k] - 1) * stride[d] + dilation[d] * (kernel[d] - 1) + 1 - x.sizes()[k] - padding[d]);
    framed = framed || low[k] > 0 || high[k] > 0;
    if (d + 1 < dims) flat[d] = flat[d + 1] * x.sizes()[k + 1];
  }
  auto const word = most_word(x.dtype(), true);
  if (!r.used(1)) {
    Term const start = r.to.number(least(x.dtype(), true), {x.dtype(), {}});
    auto const larger = r.to.region({x.dtype(), x.dtype()}, [&](std::span<Term const> pair) { return binary(word, pair[0], pair[1]); });
    Term const best = r.to.write("reduce_window", {x, start}, result,
                                 {{"window_dimensions", window},
                                  {"window_strides", steps},
                                  {"base_dilations", Sizes(rank, 1)},
                                  {"window_dilations", spacing},
                                  {"padding", ends(low, high)}},
                                 {larger});
    return void(r.out = {best, best});
  }
  Term parts = padded(x, least(x.dtype(), true), low, high, Sizes(rank, 0));
  Type grid{DType::i64, Sizes(result.sizes.begin() + static_cast<I>(lead), result.sizes.end())};
  grid.sizes.insert(grid.sizes.end(), kernel.begin(), kernel.end());
  Term places = r.to.number(0, grid), inside;
  auto order = counted(lead);
  Sizes taps;
  for (std::size_t d = 0; d < dims; ++d) {
    Type const pair{DType::i64, {result.sizes[lead + d], kernel[d]}};
    parts = taken(parts, lead + 2 * d, r.to.counting(pair, 0) * stride[d] + r.to.counting(pair, 1) * dilation[d]);
    Term const at = r.to.counting(grid, d) * stride[d] + r.to.counting(grid, dims + d) * dilation[d] - padding[d];
    places = places + at * flat[d];
    Term const here = compare("GE", at, 0) & compare("LT", at, x.sizes()[lead + d]);
    inside = inside.to ? inside & here : here;
    order.push_back(static_cast<I>(lead + 2 * d));
    taps.push_back(static_cast<I>(rank + d));
  }
  for (std::size_t d = 0; d < dims; ++d) order.push_back(static_cast<I>(lead + 2 * d + 1));
  parts = permuted(parts, order);
  Term const best = folded(word, parts, taps, least(x.dtype(), true));
  Sizes kept = best.sizes();
  kept.resize(parts.rank(), 1);
  auto const where = [&](Term found, std::string_view word, I none) {
    if (framed) found = found & broadcast(inside, parts.sizes());
    return folded(word, choose(found, broadcast(places, parts.sizes()), none), taps, none);
  };
  Term place =
      where(compare("EQ", parts, broadcast(reshaped(best, kept), parts.sizes())), "minimum", std::numeric_limits<I>::max());  // the first of equal ones
  if (base::is_real(x.dtype())) {  // but the last NaN, as the row says
    Term const last = where(compare("NE", parts, parts), "maximum", -1);
    place = choose(compare("GE", last, 0), last, place);
  }
  r.out = {best, place};
}
}  // namespace

std::span<RaiseRule const> raised_window() {
  static constexpr RaiseRule rules[] = {
      // clang-format off
      {.op = "convolution", .write = convolution},
      {.op = "max_pool", .write = max_pool},
      // clang-format on
  };
  return rules;
}

}  // namespace tenon::ir::hlo
