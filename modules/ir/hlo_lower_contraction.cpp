// dot_general as a batched matmul, convolution as our row of it.
module tenon.ir;
import std;
import tenon.base;
import :hlo_lower;

namespace tenon::ir::hlo {
using List = std::vector<std::int64_t>;

namespace {
std::int64_t size_at(Type const& type, std::int64_t dim) { return type.sizes[static_cast<std::size_t>(dim)]; }
std::int64_t product_of(Type const& type, List const& dims) {
  std::int64_t total = 1;
  for (auto d : dims) total = times(total, size_at(type, d));
  return total;
}
List others(std::size_t rank, List const& a, List const& b) {
  List free;
  for (std::size_t d = 0; d < rank; ++d)
    if (!contains(a, static_cast<std::int64_t>(d)) && !contains(b, static_cast<std::int64_t>(d))) free.push_back(static_cast<std::int64_t>(d));
  return free;
}
List joined(std::initializer_list<List> lists) {
  List all;
  for (auto const& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

void dot_general(Step& step) {
  if (step.count() != 2) step.refuse(std::format("{} operands, 2 needed", step.count()));
  auto const a = step.type(0), b = step.type(1);
  auto const batch_a = step.dims("lhs_batching_dimensions", a.sizes.size(), List{}), batch_b = step.dims("rhs_batching_dimensions", b.sizes.size(), List{});
  auto const sum_a = step.dims("lhs_contracting_dimensions", a.sizes.size(), List{}), sum_b = step.dims("rhs_contracting_dimensions", b.sizes.size(), List{});
  auto const free_a = others(a.sizes.size(), batch_a, sum_a), free_b = others(b.sizes.size(), batch_b, sum_b);
  auto const agree = [&](List const& x, List const& y) {
    if (x.size() != y.size()) step.refuse(std::format("{} dims against {}", x.size(), y.size()));
    for (std::size_t k = 0; k < x.size(); ++k)
      if (size_at(a, x[k]) != size_at(b, y[k]))
        step.refuse(std::format("size {} of dim {} against {} of dim {}", size_at(a, x[k]), x[k], size_at(b, y[k]), y[k]));
  };
  agree(batch_a, batch_b), agree(sum_a, sum_b);
  if (free_a.size() + batch_a.size() + sum_a.size() != a.sizes.size() || free_b.size() + batch_b.size() + sum_b.size() != b.sizes.size())
    step.refuse("a dim is summed and kept");
  auto const dtype = step.result().dtype;
  auto const sum_type = dtype == base::DType::boolean ? base::DType::i64 : dtype;
  Var x = ordered(cast(step.x(0), sum_type), joined({batch_a, free_a, sum_a})), y = ordered(cast(step.x(1), sum_type), joined({batch_b, sum_b, free_b}));
  auto const batch = product_of(a, batch_a), m = product_of(a, free_a), n = product_of(b, free_b), k = product_of(a, sum_a);
  List const sizes_x = batch_a.empty() ? List{m, k} : List{batch, m, k}, sizes_y = batch_a.empty() ? List{k, n} : List{batch, k, n};
  Var const z = call(ops::matmul, {sized(x, sizes_x), sized(y, sizes_y)});
  step.give(cast(sized(z, step.result().sizes), dtype));
}

// HLO's dot of two operands without labels: the last dim of the one against the first of the other.
void dot(Step& step) {
  auto const a = step.type(0), b = step.type(1);
  if (a.sizes.empty() || b.sizes.empty() || a.sizes.size() > 2 || b.sizes.size() > 2) step.refuse(std::format("{} by {}", to_string(a), to_string(b)));
  step.give(cast(call(ops::matmul, {cast(step.x(0), step.result().dtype), cast(step.x(1), step.result().dtype)}), step.result().dtype));
}

// Where batch, features and spatial dims stand, as an order that brings them to the front in turn.
struct Layout {
  List order, spatial;
};
Layout layout(Step const& step, std::string_view first, std::string_view second, std::string_view spatial, std::size_t rank) {
  auto const a = step.whole(first), b = step.whole(second);
  auto const dims = step.dims(spatial, rank);
  List order = joined({{a, b}, dims}), sorted = order;
  std::ranges::sort(sorted);
  for (std::size_t k = 0; k < sorted.size(); ++k)
    if (std::cmp_not_equal(sorted[k], k) || sorted.size() != rank)
      step.refuse(std::format("{}, {} and {} are not the dims of rank {}", first, second, spatial, rank));
  if (sorted.size() != rank) step.refuse(std::format("{} dims named of rank {}", sorted.size(), rank));
  return {order, dims};
}
Dims dims_of(std::span<std::int64_t const> list) {
  Dims dims;
  for (auto n : list) dims.push_back(n);
  return dims;
}

void convolution(Step& step) {
  if (step.count() != 2) step.refuse(std::format("{} operands, 2 needed", step.count()));
  auto const rank = step.type(0).sizes.size();
  if (rank < 2 || step.type(1).sizes.size() != rank || step.result().sizes.size() != rank) step.refuse("operands and result of different ranks");
  auto const in = layout(step, "input_batch_dimension", "input_feature_dimension", "input_spatial_dimensions", rank);
  auto const kernel = layout(step, "kernel_output_feature_dimension", "kernel_input_feature_dimension", "kernel_spatial_dimensions", rank);
  auto const out = layout(step, "output_batch_dimension", "output_feature_dimension", "output_spatial_dimensions", rank);
  auto const s = rank - 2;
  List const ones(s, 1);
  auto const stride = step.list("window_strides", ones), input_dilation = step.list("lhs_dilation", ones), dilation = step.list("rhs_dilation", ones);
  auto const reversal = step.list("window_reversal", List(s, 0));
  auto const padding = step.matrix("padding", s);
  auto const feature_groups = step.whole("feature_group_count", 1), batch_groups = step.whole("batch_group_count", 1);
  if (feature_groups < 1 || batch_groups < 1 || (feature_groups > 1 && batch_groups > 1))
    step.refuse(std::format("{} groups of features, {} of the batch", feature_groups, batch_groups));
  auto const dtype = step.result().dtype;
  Var x = ordered(cast(step.x(0), dtype), in.order), w = ordered(cast(step.x(1), dtype), kernel.order);
  List flipped;
  for (std::size_t d = 0; d < s; ++d)
    if (reversal[d]) flipped.push_back(static_cast<std::int64_t>(d) + 2);
  if (!flipped.empty()) w = call(ops::flip, {w}, Attrs{}.with(dims_of(flipped)));
  if (batch_groups > 1) {  // a group of the batch is one of features beside the others
    auto sizes = values(x.meta().sizes);
    if (sizes[0] % batch_groups) step.refuse(std::format("{} groups do not divide a batch of {}", batch_groups, sizes[0]));
    List apart = joined({{batch_groups, sizes[0] / batch_groups}, List(sizes.begin() + 1, sizes.end())}), order = {1, 0};
    for (std::size_t d = 2; d < apart.size(); ++d) order.push_back(static_cast<std::int64_t>(d));
    sizes[0] /= batch_groups, sizes[1] = times(sizes[1], batch_groups);
    x = sized(ordered(sized(x, apart), order), sizes);
  }
  List low, high;
  for (auto const& pair : padding) low.push_back(pair[0]), high.push_back(pair[1]);
  Attrs attrs;
  for (auto const& list : {stride, low, high, dilation, input_dilation}) attrs.with(dims_of(list));
  Var const y = call(ops::convolution, {x, w}, attrs.with(Dim(std::max(feature_groups, batch_groups))));
  List back(rank);
  for (std::size_t d = 0; d < rank; ++d) back[static_cast<std::size_t>(out.order[d])] = static_cast<std::int64_t>(d);
  step.give(ordered(y, back));
}

constexpr Rule rules[] = {{"dot_general", dot_general}, {"dot", dot}, {"convolution", convolution}};
}  // namespace

std::span<Rule const> contraction_rules() { return rules; }

}  // namespace tenon::ir::hlo
