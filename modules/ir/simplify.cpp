// Algebra as a table: one rule a line. A rule looks at one call whose operands are simplified already, and gives what may stand for it.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir {
using base::DType;

namespace {
// One call and what its operands are made of.
struct Site {
  Emit& emit;
  Graph const& graph;
  OpDef const& op;
  std::span<Input const> inputs;
  Attrs const& attrs;
  Meta const& meta;  // of result 0
  bool exact;

  Var x(std::size_t k = 0) const { return {inputs[k].value >= 0 ? &emit : nullptr, inputs[k]}; }
  Meta const& of(std::size_t k = 0) const { return *graph.values[static_cast<std::size_t>(inputs[k].value)].meta; }
  bool tensor(std::size_t k = 0) const { return inputs[k].value >= 0; }
  bool whole() const { return !base::is_real(meta.dtype); }
  // The call that makes operand k, if it is one of `op`.
  Node const* made(std::size_t k, OpDef const& by) const { return maker(inputs[k], by); }
  Node const* maker(Input const& input, OpDef const& by) const {
    if (input.value < 0) return nullptr;
    int const n = graph.values[static_cast<std::size_t>(input.value)].node;
    return n >= 0 && graph.nodes[static_cast<std::size_t>(n)].op == &by ? &graph.nodes[static_cast<std::size_t>(n)] : nullptr;
  }
  Var inner(std::size_t k = 0) const {  // the operand of the call that makes operand k
    auto const& node = graph.nodes[static_cast<std::size_t>(graph.values[static_cast<std::size_t>(inputs[k].value)].node)];
    return {&emit, node.inputs[0]};
  }
  // The number that operand k is, in every call of the graph.
  std::optional<double> number(std::size_t k) const {
    Scalar scalar = inputs[k].scalar;
    if (tensor(k)) {
      auto const* full = made(k, ops::full);
      if (!full) return {};
      scalar = full->attrs.nums[0];
    }
    if (scalar.node >= 0 || scalar.kind == ScalarKind::none) return {};
    double const value = scalar.kind == ScalarKind::real ? scalar.real : static_cast<double>(scalar.whole);
    if (!tensor(k)) return value;
    std::array<std::byte, 8> rounded{};
    base::store_real(of(k).dtype, rounded.data(), value);
    return base::load_real(of(k).dtype, rounded.data());
  }
  bool is(std::size_t k, double wish) const {  // -0 and 0 differ
    auto const value = number(k);
    return value && *value == wish && std::signbit(*value) == std::signbit(wish);
  }
  bool zero(std::size_t k) const { return is(k, 0.0) || is(k, -0.0); }
  bool same(std::size_t a, std::size_t b) const { return tensor(a) && inputs[a].value == inputs[b].value; }
  bool unscaled() const { return attrs.nums[0].node < 0 && number_of(attrs.nums[0]) == 1; }
  static double number_of(Scalar const& s) { return s.kind == ScalarKind::real ? s.real : static_cast<double>(s.whole); }
  // Whether x + scale * (operand k) is x for every x: of reals only -0 changes nothing.
  bool adds_nothing(std::size_t k, double sign) const {
    if (!zero(k) || attrs.nums[0].node >= 0) return false;
    double const added = sign * number_of(attrs.nums[0]) * *number(k);
    return whole() || !exact ? added == 0 : added == 0 && std::signbit(added);
  }
  Var filled(double value) const {
    return create(emit, ops::full,
                  Attrs{}.with(meta.sizes).with(meta.dtype).with(meta.device).with_num(whole() ? Scalar(static_cast<std::int64_t>(value)) : Scalar(value)));
  }
  bool same_sizes(Dims const& a, Dims const& b) const {
    return std::ranges::equal(a, b, [&](Dim p, Dim q) { return graph.symbols.own(p) == graph.symbols.own(q); });
  }
};

// Whether `to` holds every value of `from`.
bool lossless(DType from, DType to) {
  struct Bits {
    int digits, exponent;
  };
  static constexpr std::array<Bits, 6> reals{{{53, 11}, {24, 8}, {11, 5}, {8, 8}, {4, 4}, {3, 5}}};  // f64 f32 f16 bf16 f8e4m3 f8e5m2
  auto const real = [](DType t) { return reals[static_cast<std::size_t>(t)]; };
  if (from == to || from == DType::boolean) return true;
  if (base::is_real(from))
    return base::is_real(to) && from != DType::f8e4m3 && from != DType::f8e5m2 && real(from).digits <= real(to).digits &&
           real(from).exponent <= real(to).exponent;
  if (base::is_real(to))
    return to != DType::f8e4m3 && to != DType::f8e5m2 && 8 * base::bytes_of(from) - (from == DType::u8 ? 0 : 1) <= real(to).digits && from != DType::i64;
  return to != DType::boolean && base::promote(from, to) == to;
}
Var recast(Site const& s) {  // x as a, as b: as b at once, if a lost nothing
  auto const from = s.inner().meta().dtype, middle = s.of().dtype, to = s.meta.dtype;
  bool const detour = !base::is_real(from) && base::is_real(middle) && !base::is_real(to) && from != to;
  if (!lossless(from, middle) || detour) return {};
  return from == to ? s.inner() : call(ops::to, {s.inner()}, s.attrs);
}

std::vector<std::size_t> order_of(Node const& node, std::size_t rank) {
  std::vector<std::size_t> order(rank);
  std::iota(order.begin(), order.end(), std::size_t{0});
  auto const place = [&](Dim d) { return static_cast<std::size_t>(base::wrap_dim("permute", d.value, static_cast<int>(std::max<std::size_t>(rank, 1)))); };
  AttrReader reader{node.attrs};
  if (node.op == &ops::transpose && rank > 0) std::swap(order[place(reader.number())], order[place(reader.number())]);
  if (node.op == &ops::permute) {
    auto const dims = reader.list();
    for (std::size_t d = 0; d < rank; ++d) order[d] = place(dims[d]);
  }
  return order;
}
std::vector<std::size_t> own_order(Site const& s) { return order_of(Node{&s.op, {}, s.attrs, 0, 1, {}, {}}, s.of().sizes.size()); }
Var unmoved(Site const& s) { return std::ranges::is_sorted(own_order(s)) ? s.x() : Var(); }
Var reorder_twice(Site const& s) {
  auto const* first = s.made(0, ops::permute) ? s.made(0, ops::permute) : s.made(0, ops::transpose);
  if (!first) return {};
  auto const inner = order_of(*first, s.of().sizes.size());
  Dims order;
  for (auto d : own_order(s)) order.push_back(Dim(inner[d]));
  return call(ops::permute, {s.inner()}, Attrs{}.with(order));
}
bool flattens(Site const& s) {  // operand 0 is the same elements of other sizes
  return s.made(0, ops::reshape) || s.made(0, ops::unsqueeze) || s.made(0, ops::squeeze);
}
Var reshaped_once(Site const& s) { return flattens(s) ? call(ops::reshape, {s.inner()}, Attrs{}.with(s.meta.sizes)) : Var(); }
Var sliced_once(Site const& s) {  // both along one dim, in steps of 1, from plain places in front
  auto const* first = s.made(0, ops::slice);
  if (!first) return {};
  constexpr std::int64_t last = std::numeric_limits<std::int64_t>::max();
  auto const &a = first->attrs.ints, &b = s.attrs.ints;
  int const rank = s.of().rank();
  for (auto const* attrs : {&a, &b})
    for (std::size_t k = 1; k < 4; ++k)
      if ((*attrs)[k].node >= 0 || (*attrs)[k].value < 0) return {};
  if (base::wrap_dim("slice", a[0].value, rank) != base::wrap_dim("slice", b[0].value, rank) || a[3].value != 1 || b[3].value != 1) return {};
  if (a[1].value >= last - b[1].value || a[1].value >= last / 2) return {};
  std::int64_t const end = b[2].value >= last - a[1].value ? last : a[1].value + b[2].value;
  return call(ops::slice, {s.inner()}, Attrs{}.with(b[0]).with(a[1].value + b[1].value).with(std::min(end, a[2].value)).with(1));
}
bool reduces_ones(Site const& s) {  // every reduced dim has size 1, so that each result is one element
  AttrReader reader{s.attrs};
  auto const mask = dim_mask(s.op.name, reader.list(), s.of().rank());
  for (std::size_t d = 0; d < mask.size(); ++d)
    if (mask[d] && s.graph.symbols.own(s.of().sizes[d]) != Dim(1)) return false;
  return true;
}
Var one_element(Site const& s) {
  if (!reduces_ones(s) || s.of().dtype != s.meta.dtype) return {};
  return s.of().rank() == s.meta.rank() ? s.x() : call(ops::reshape, {s.x()}, Attrs{}.with(s.meta.sizes));
}
Var chosen(Site const& s, std::size_t k) {  // operand k of a where, as the result
  if (!s.tensor(k)) return {};
  Var y = cast(s.x(k), s.meta.dtype);
  return s.same_sizes(y.meta().sizes, s.meta.sizes) ? y : call(ops::clone, {call(ops::expand, {y}, Attrs{}.with(s.meta.sizes))});
}
Var joined_once(Site const& s) {  // without parts that are empty where all others have their size
  int const dim = base::wrap_dim("cat", s.attrs.ints[0].value, std::max(s.of().rank(), 1));
  std::vector<Var> parts;
  for (std::size_t k = 0; k < s.inputs.size(); ++k) {
    auto const& sizes = s.of(k).sizes;
    bool const empty =
        sizes.size() == s.meta.sizes.size() && std::cmp_less(dim, sizes.size()) && s.graph.symbols.own(sizes[static_cast<std::size_t>(dim)]) == Dim(0);
    if (!empty || s.of(k).dtype != s.meta.dtype) parts.push_back(s.x(k));
  }
  if (parts.empty() || (parts.size() == s.inputs.size() && parts.size() > 1)) return {};
  return parts.size() == 1 ? parts[0] : concat(parts, s.attrs.ints[0]);
}
template <OpDef const*... rows>
bool made_by(Site const& s) {
  return (s.made(0, *rows) || ...);
}
Var turned_difference(Site const& s) {  // of reals a difference of 0 would change its sign
  auto const* difference = s.made(0, ops::sub);
  if (!difference || (s.exact && !s.whole()) || difference->inputs[1].value < 0) return {};
  auto const& scale = difference->attrs.nums[0];
  if (scale.node >= 0 || Site::number_of(scale) != 1) return {};
  return call(ops::sub, {Var(&s.emit, difference->inputs[1]), Var(&s.emit, difference->inputs[0])}, difference->attrs);
}
using namespace ops;
bool same_attrs(Site const& s) { return s.made(0, s.op) && s.made(0, s.op)->attrs.ints == s.attrs.ints; }
Var if_so(bool condition, auto make) { return condition ? Var(make()) : Var(); }

struct Rule {
  std::string_view text;
  OpDef const* op;
  Var (*apply)(Site const& s);
};
// Reading order: within an op the first rule that applies. A replacement of another dtype, size or stride is refused, so no rule asks for these.
// clang-format off
#define WHEN(condition, ...) [](Site const& s) { return if_so((condition), [&] { return __VA_ARGS__; }); }
constexpr Rule rules[] = {
    {"x + 0 -> x", &add, WHEN(s.tensor() && s.adds_nothing(1, 1), s.x())},
    {"0 + x -> x", &add, WHEN(s.tensor(1) && s.unscaled() && (s.whole() || !s.exact ? s.zero(0) : s.is(0, -0.0)), s.x(1))},
    {"x + -y -> x - y", &add, WHEN(s.tensor() && s.made(1, neg), call(sub, {s.x(), s.inner(1)}, s.attrs))},
    {"x - 0 -> x", &sub, WHEN(s.tensor() && s.adds_nothing(1, -1), s.x())},
    {"x - -y -> x + y", &sub, WHEN(s.tensor() && s.made(1, neg), call(add, {s.x(), s.inner(1)}, s.attrs))},
    {"x - x -> 0", &sub, WHEN(s.same(0, 1) && s.unscaled() && (s.whole() || !s.exact), s.filled(0))},
    {"x * 1 -> x", &mul, WHEN(s.tensor() && s.is(1, 1), s.x())},
    {"1 * x -> x", &mul, WHEN(s.tensor(1) && s.is(0, 1), s.x(1))},
    {"x * 0 -> 0", &mul, WHEN((s.zero(0) || s.zero(1)) && (s.whole() || !s.exact), s.filled(0))},
    {"x * -1 -> -x", &mul, WHEN(s.tensor() && s.is(1, -1), call(neg, {s.x()}))},
    {"-x * -y -> x * y", &mul, WHEN(s.tensor() && s.made(0, neg) && s.made(1, neg), call(mul, {s.inner(0), s.inner(1)}))},
    {"x / 1 -> x", &div, WHEN(s.tensor() && s.is(1, 1), s.x())},
    {"x / -1 -> -x", &div, WHEN(s.tensor() && s.is(1, -1), call(neg, {s.x()}))},
    {"x ** 1 -> x", &pow, WHEN(s.tensor() && s.is(1, 1), s.x())},
    {"x ** 0 -> 1", &pow, WHEN(s.tensor() && s.zero(1), s.filled(1))},
    {"x ** 2 -> square(x)", &pow, WHEN(s.tensor() && s.is(1, 2) && (s.whole() || !s.exact), call(square, {s.x()}))},
    {"max(x, x) -> x", &maximum, WHEN(s.same(0, 1), s.x())},
    {"min(x, x) -> x", &minimum, WHEN(s.same(0, 1), s.x())},
    {"--x -> x", &neg, WHEN(made_by<&neg>(s), s.inner())},
    {"-(x - y) -> y - x", &neg, turned_difference},
    {"abs(abs(x)) -> abs(x)", &abs, WHEN(made_by<&abs>(s), s.x())},
    {"abs(-x) -> abs(x)", &abs, WHEN(made_by<&neg>(s), call(abs, {s.inner()}))},
    {"square(-x) -> square(x)", &square, WHEN((made_by<&neg, &abs>(s)), call(square, {s.inner()}))},
    {"cos(-x) -> cos(x)", &cos, WHEN((made_by<&neg, &abs>(s)), call(cos, {s.inner()}))},
    {"relu(relu(x)) -> relu(x)", &relu, WHEN(made_by<&relu>(s), s.x())},
    {"sign(sign(x)) -> sign(x)", &sign, WHEN(made_by<&sign>(s), s.x())},
    {"floor(whole x) -> x", &floor, WHEN((s.whole() || made_by<&floor, &ceil, &round, &trunc>(s)), s.x())},
    {"ceil(whole x) -> x", &ceil, WHEN((s.whole() || made_by<&floor, &ceil, &round, &trunc>(s)), s.x())},
    {"round(whole x) -> x", &round, WHEN((s.whole() || made_by<&floor, &ceil, &round, &trunc>(s)), s.x())},
    {"trunc(whole x) -> x", &trunc, WHEN((s.whole() || made_by<&floor, &ceil, &round, &trunc>(s)), s.x())},
    {"not not x -> x", &logical_not, WHEN(made_by<&logical_not>(s), s.inner())},
    {"x and true -> x", &logical_and, WHEN(s.tensor() && (s.same(0, 1) || (s.number(1) && *s.number(1) != 0)), s.x())},
    {"x or false -> x", &logical_or, WHEN(s.tensor() && (s.same(0, 1) || s.zero(1)), s.x())},
    {"where(true, x, y) -> x", &where, WHEN(s.number(0) && *s.number(0) != 0, chosen(s, 1))},
    {"where(false, x, y) -> y", &where, WHEN(s.zero(0), chosen(s, 2))},
    {"where(c, x, x) -> x", &where, WHEN(s.same(1, 2), s.x(1))},
    {"masked_fill(x, false) -> x", &masked_fill, WHEN(s.zero(1), s.x())},
    {"clamp(x) -> x", &clamp, WHEN(s.attrs.nums[0].kind == ScalarKind::none && s.attrs.nums[1].kind == ScalarKind::none, s.x())},
    {"to(x, own dtype) -> x", &to, WHEN(s.of().dtype == s.meta.dtype, s.x())},
    {"to(to(x)) -> to(x)", &to, WHEN(made_by<&to>(s), recast(s))},  // unless the first one rounds
    {"clone(x) -> x", &clone, [](Site const& s) { return s.x(); }},
    {"permute(x, identity) -> x", &permute, unmoved},
    {"permute(permute(x)) -> permute(x)", &permute, reorder_twice},
    {"transpose(x, d, d) -> x", &transpose, unmoved},
    {"transpose(permute(x)) -> permute(x)", &transpose, reorder_twice},
    {"reshape(x, own sizes) -> x", &reshape, [](Site const& s) { return s.x(); }},
    {"reshape(reshape(x)) -> reshape(x)", &reshape, reshaped_once},
    {"unsqueeze(squeeze(x)) -> x", &unsqueeze, WHEN(made_by<&squeeze>(s), s.inner())},
    {"squeeze(x, nothing) -> x", &squeeze, [](Site const& s) { return s.x(); }},
    {"squeeze(unsqueeze(x)) -> x", &squeeze, WHEN(made_by<&unsqueeze>(s), s.inner())},
    {"expand(x, own sizes) -> x", &expand, [](Site const& s) { return s.x(); }},
    {"expand(expand(x)) -> expand(x)", &expand, WHEN(made_by<&expand>(s), call(expand, {s.inner()}, Attrs{}.with(s.meta.sizes)))},
    {"slice(x, all) -> x", &slice, [](Site const& s) { return s.x(); }},
    {"slice(slice(x)) -> slice(x)", &slice, sliced_once},
    {"slice_grad(g, all) -> g", &slice_grad, [](Site const& s) { return s.x(); }},
    {"flip(x, no dims) -> x", &flip, WHEN(AttrReader{s.attrs}.list().empty(), s.x())},
    {"flip(flip(x)) -> x", &flip, WHEN(same_attrs(s), s.inner())},
    {"cat(x) -> x", &cat, joined_once},
    {"tril(tril(x)) -> tril(x)", &tril, WHEN(same_attrs(s), s.x())},
    {"triu(triu(x)) -> triu(x)", &triu, WHEN(same_attrs(s), s.x())},
    {"sum(one element) -> x", &sum, one_element},
    {"mean(one element) -> x", &mean, one_element},
    {"prod(one element) -> x", &prod, one_element},
    {"amax(one element) -> x", &amax, one_element},
    {"amin(one element) -> x", &amin, one_element},
};
#undef WHEN
// clang-format on

// Values that an output returns, itself or as memory behind a view: an output never becomes another name of an input or of another output.
std::vector<char> escaping(Graph const& graph) {
  std::vector<char> escapes(graph.values.size(), 0);
  for (int output : graph.outputs) escapes[static_cast<std::size_t>(output)] = 1;
  for (auto const& node : graph.nodes | std::views::reverse) {
    if (node.op->kind != Kind::view) continue;
    for (int k = 0; k < node.results; ++k)
      if (escapes[static_cast<std::size_t>(node.first + k)] && node.inputs[0].value >= 0) escapes[static_cast<std::size_t>(node.inputs[0].value)] = 1;
  }
  return escapes;
}

struct Simplify final : GraphEmit {
  SimplifyOptions const& options;
  std::unordered_map<OpDef const*, std::vector<Rule const*>> by_op;
  Node const* origin = nullptr;

  Simplify(Graph& to, SimplifyOptions const& wish) : GraphEmit(to, {}), options(wish) {
    for (auto const& rule : rules) by_op[rule.op].push_back(&rule);
  }
  // What stands for the call, -1 if no rule applies.
  int simplified(OpDef const& op, std::span<Input const> inputs, Attrs const& attrs, Meta const& meta) {
    auto const found = by_op.find(&op);
    if (found == by_op.end()) return -1;
    for (auto const* rule : found->second) {
      Var const instead = rule->apply({*this, graph, op, inputs, attrs, meta, options.exact});
      if (!instead || !instead.is_tensor() || !same_meta(graph.symbols, instead.meta(), meta)) continue;
      if (options.seen) options.seen(rule->text, *origin);
      return instead.input.value;
    }
    return -1;
  }
  // A rule's own call is simplified like any other.
  int op(OpDef const& op, std::span<Input const> inputs, Attrs attrs) override {
    int const made = GraphEmit::op(op, inputs, attrs);
    auto const meta = graph.values[static_cast<std::size_t>(made)].meta;
    int const instead = simplified(op, inputs, attrs, *meta);
    return instead >= 0 ? instead : made;
  }
};
}  // namespace

std::vector<std::string_view> simplify_rules() {
  std::vector<std::string_view> texts;
  for (auto const& rule : rules) texts.push_back(rule.text);
  return texts;
}

Graph simplify(Graph const& graph, SimplifyOptions const& options) {
  need_no_writes(graph, "simplify");
  Rebuild rebuild(graph);
  auto const escapes = escaping(graph);
  std::vector<char> held(graph.values.size(), 0);  // of new values: inputs, and what an output returns
  auto const hold = [&](int value) {
    if (std::cmp_greater_equal(value, held.size())) held.resize(static_cast<std::size_t>(value) + 1 + held.size() / 2, 0);
    held[static_cast<std::size_t>(value)] = 1;
  };
  for (int input : rebuild.to.inputs) hold(input);
  auto const memory_held = [&](int value) {
    for (;;) {
      if (std::cmp_less(value, held.size()) && held[static_cast<std::size_t>(value)]) return true;
      int const maker = rebuild.to.values[static_cast<std::size_t>(value)].node;
      if (maker < 0 || rebuild.to.nodes[static_cast<std::size_t>(maker)].op->kind != Kind::view) return false;
      value = rebuild.to.nodes[static_cast<std::size_t>(maker)].inputs[0].value;
    }
  };
  Symbols::Scope const scope(&rebuild.to.symbols);
  Simplify emit(rebuild.to, options);
  bool replaced = false;
  for (auto const& node : graph.nodes) {
    emit.origin = &node, emit.place = node.at, emit.module = node.module;
    int instead = -1;
    bool const escapes_here = escapes[static_cast<std::size_t>(node.first)];
    if (node.results == 1) {
      auto const in = rebuild.inputs(node);
      instead = emit.simplified(*node.op, in, node.attrs, *graph.values[static_cast<std::size_t>(node.first)].meta);
      if (instead >= 0 && escapes_here && node.op->kind != Kind::view && memory_held(instead)) instead = -1;
    }
    if (instead < 0)
      rebuild.copy(node);
    else
      rebuild.at(node.first) = instead, replaced = true;
    for (int k = 0; k < node.results; ++k)
      if (escapes[static_cast<std::size_t>(node.first + k)]) hold(rebuild.at(node.first + k));
  }
  auto simpler = rebuild.finish();
  return simpler.nodes.size() == graph.nodes.size() && !replaced ? simpler : eliminate_dead_code(simpler);
}

}  // namespace tenon::ir
