// What the processes of a group compute together: each holds one operand, and each gets a result.
//
// To passes a collective is a pure function of what the group holds. Every process runs an equal graph and a pass depends on the graph alone, so
// merging equal calls or dropping dead ones is the same decision everywhere. A program whose processes run different graphs must not pass them
// through such a pass one by one.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir::ops {
using base::fail;
namespace {
enum class How : std::uint8_t { sum, avg, max, min, prod };

Dim group_of(Attrs const& attrs) { return attrs.ints.back(); }  // group_size is the last attribute of every row
void need_group(Inference const& call) {
  if (call.attrs.text.empty()) fail("the group needs a name");
  if (auto const n = group_of(call.attrs).value; n < 1) fail("a group of {} processes", n);
}
void need_average(Inference const& call) {
  if (call.attrs.ints[0].value == static_cast<int>(How::avg) && !base::is_real(call.x().dtype))
    fail("an average needs floating elements, not {}", to_string(call.x()));
}
std::size_t axis(Meta const& x, Dim dim) {
  if (x.rank() == 0) fail("a 0-d tensor has no dim to cut or join");
  return static_cast<std::size_t>(base::wrap_dim("collective", dim.value, x.rank()));
}
void give(Inference& call, Dims sizes) { call.out.push_back(contiguous_meta(call.x().dtype, call.x().device, std::move(sizes))); }
void infer_same(Inference& call) {
  need_group(call);
  give(call, call.x().sizes);
}
void infer_reduced(Inference& call) {
  need_average(call);
  infer_same(call);
}
void infer_rooted(Inference& call) {
  infer_same(call);
  if (auto const root = call.attrs.ints[0].value; root < 0 || root >= group_of(call.attrs).value)
    fail("process {} is not in a group of {}", root, group_of(call.attrs).value);
}
Dim split(Dim size, Dim parts) {
  if (!same(size % parts, 0)) fail("size {} does not divide among {} processes", size.value, parts.value);
  return size / parts;
}
void infer_moved(Inference& call, std::optional<Dim> cut_dim, std::optional<Dim> join_dim) {
  need_group(call);
  Dims sizes = call.x().sizes;
  if (cut_dim) {
    Dim& size = sizes[axis(call.x(), *cut_dim)];
    size = split(size, group_of(call.attrs));
  }
  if (join_dim) {
    Dim& size = sizes[axis(call.x(), *join_dim)];
    size = size * group_of(call.attrs);
  }
  give(call, std::move(sizes));
}
// Dims that a group cuts or joins stay whole on each process.
std::string moved_equation(Meta const& x, std::initializer_list<Dim> dims, Dim group) {
  auto from = letters(x.rank()), to = from;
  std::vector<bool> whole(from.size(), false);
  for (Dim const dim : dims) whole[axis(x, dim)] = true;
  std::string left, right;
  for (std::size_t d = 0; d < from.size(); ++d) {
    bool const changes = whole[d] && group.value != 1;
    left += from[d], right += changes ? letters(1, x.rank() + static_cast<int>(d)) : from.substr(d, 1);
    if (whole[d]) left += '!', right += '!';
  }
  return left + "->" + right;
}
std::string same_equation(Attrs const&, std::span<Meta const* const> in) {
  auto const all = letters(in[0]->rank());
  return all + "->" + all;
}
void evaluate_alone(Kernel const& kernel) {
  if (auto const n = group_of(kernel.attrs).value; n != 1)
    fail("{}: a group of {} processes (\"{}\") cannot run on one process", kernel.op.name, n, kernel.attrs.text);
  auto const &x = kernel.in[0], &y = kernel.out[0];
  auto const bytes = static_cast<std::size_t>(base::bytes_of(x.dtype));
  walk<2>(x.sizes, {&x.strides, &y.strides}, [&](auto const& at) { std::memcpy(y.at(at[1]), x.at(at[0]), bytes); });
}

// The attributes of another row for the same group: numbers first, then the group.
Attrs in_group(Attrs const& attrs, std::initializer_list<Dim> numbers) {
  Attrs other;
  for (Dim const number : numbers) other.with(number);
  other.text = attrs.text;
  return other.with(group_of(attrs));
}
Var reduced_by(Var x, Attrs const& attrs, How how) { return call(all_reduce, {x}, in_group(attrs, {Dim(static_cast<int>(how))})); }
// The gradient of x from the sum of all processes' gradients of the reduced y: an equal share for each of several largest or smallest
// elements, and the product of the others, which is no quotient where an element is 0.
Var through(How how, Var x, Var y, Var total, Attrs const& attrs) {
  if (how == How::sum) return total;
  if (how == How::avg) return total / Var(group_of(attrs));
  auto const type = x.meta().dtype;
  if (how == How::max || how == How::min) {
    Var const chosen = cast(call(eq, {x, y}), type);
    return total * chosen / reduced_by(chosen, attrs, How::sum);
  }
  Var const zero = call(eq, {x, Var(0.0)}), zeros = reduced_by(cast(zero, type), attrs, How::sum);
  Var const others = reduced_by(choose(zero, Var(1.0), x), attrs, How::prod);
  Var const quotient = y / choose(zero, Var(1.0), x), alone = choose(call(eq, {zeros, Var(1.0)}), others, Var(0.0));
  return total * choose(zero, alone, quotient);
}
void all_reduce_vjp(Vjp& v) {
  auto const how = static_cast<How>(v.attrs.ints[0].value);
  v.grad(0) = through(how, v.x(), v.y(), reduced_by(v.g(), v.attrs, How::sum), v.attrs);
}
void reduce_scatter_vjp(Vjp& v) {
  auto const how = static_cast<How>(v.attrs.ints[0].value);
  auto const whole = [&](Var part) { return call(all_gather, {part}, in_group(v.attrs, {v.attrs.ints[1]})); };
  v.grad(0) = through(how, v.x(), how == How::sum || how == How::avg ? v.y() : whole(v.y()), whole(v.g()), v.attrs);
}
}  // namespace

// clang-format off
constinit const OpDef all_reduce{.name = "all_reduce", .kind = Kind::collective,
    .signature = "Tensor input, sum|avg|max|min|prod reduction=sum, str group, int group_size=1",
    .equation = {.build = same_equation}, .terms = "-", .mono = ".", .types = Types::first, .vjp = all_reduce_vjp, .saves = 1 | saves_result,
    .infer = infer_reduced, .evaluate = evaluate_alone};
constinit const OpDef all_gather{.name = "all_gather", .kind = Kind::collective, .signature = "Tensor input, int dim=0, str group, int group_size=1",
    .equation = {.build = [](Attrs const& a, std::span<Meta const* const> in) { return moved_equation(*in[0], {a.ints[0]}, group_of(a)); }}, .terms = "a",
    .mono = "+", .copy = true, .types = Types::first,
    .vjp = [](Vjp& v) { v.grad(0) = call(reduce_scatter, {v.g()}, in_group(v.attrs, {Dim(0), v.attrs.ints[0]})); },
    .infer = [](Inference& call) { infer_moved(call, std::nullopt, call.attrs.ints[0]); }, .evaluate = evaluate_alone};
constinit const OpDef reduce_scatter{.name = "reduce_scatter", .kind = Kind::collective,
    .signature = "Tensor input, sum|avg|max|min|prod reduction=sum, int dim=0, str group, int group_size=1",
    .equation = {.build = [](Attrs const& a, std::span<Meta const* const> in) { return moved_equation(*in[0], {a.ints[1]}, group_of(a)); }}, .terms = "-",
    .mono = ".", .types = Types::first, .vjp = reduce_scatter_vjp, .saves = 1 | saves_result, .infer = [](Inference& call) {
      need_average(call);
      infer_moved(call, call.attrs.ints[1], std::nullopt);
    }, .evaluate = evaluate_alone};
constinit const OpDef all_to_all{.name = "all_to_all", .kind = Kind::collective,
    .signature = "Tensor input, int split_dim=0, int concat_dim=0, str group, int group_size=1",
    .equation = {.build = [](Attrs const& a, std::span<Meta const* const> in) { return moved_equation(*in[0], {a.ints[0], a.ints[1]}, group_of(a)); }},
    .terms = "a", .mono = "+", .copy = true, .types = Types::first,
    .vjp = [](Vjp& v) { v.grad(0) = call(all_to_all, {v.g()}, in_group(v.attrs, {v.attrs.ints[1], v.attrs.ints[0]})); },
    .infer = [](Inference& call) { infer_moved(call, call.attrs.ints[0], call.attrs.ints[1]); }, .evaluate = evaluate_alone};
constinit const OpDef broadcast{.name = "broadcast", .kind = Kind::collective, .signature = "Tensor input, int src=0, str group, int group_size=1",
    .equation = {.build = same_equation}, .terms = "a", .mono = "+", .copy = true, .types = Types::first,
    .vjp = [](Vjp& v) { v.grad(0) = call(reduce, {v.g()}, v.attrs); }, .infer = infer_rooted, .evaluate = evaluate_alone};
constinit const OpDef reduce{.name = "reduce", .kind = Kind::collective, .signature = "Tensor input, int dst=0, str group, int group_size=1",
    .equation = {.build = same_equation}, .terms = "a", .mono = "+", .types = Types::first,
    .vjp = [](Vjp& v) { v.grad(0) = call(broadcast, {v.g()}, v.attrs); }, .infer = infer_rooted, .evaluate = evaluate_alone};
constinit const OpDef collective_permute{.name = "collective_permute", .kind = Kind::collective,
    .signature = "Tensor input, int shift=1, str group, int group_size=1",
    .equation = {.build = same_equation}, .terms = "a", .mono = "+", .copy = true, .types = Types::first,
    .vjp = [](Vjp& v) { v.grad(0) = call(collective_permute, {v.g()}, in_group(v.attrs, {Dim(0) - v.attrs.ints[0]})); }, .infer = infer_same,
    .evaluate = evaluate_alone};

namespace {
constexpr std::array rows{&all_reduce, &all_gather, &reduce_scatter, &all_to_all, &broadcast, &reduce, &collective_permute};
}
// clang-format on
std::span<OpDef const* const> collective_rows() { return rows; }

}  // namespace tenon::ir::ops
