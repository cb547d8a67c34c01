// Reductions over dims and over windows: by a row of ours where the region is one operation, else as a tree of the region on halves.
module tenon.ir;
import std;
import tenon.base;
import :hlo_lower;

namespace tenon::ir::hlo {
using base::DType;
using List = std::vector<std::int64_t>;

namespace {
constexpr double infinity = std::numeric_limits<double>::infinity();
std::size_t place(std::int64_t dim) { return static_cast<std::size_t>(dim); }
Dims dims_of(std::span<std::int64_t const> list) {
  Dims dims;
  for (auto n : list) dims.push_back(n);
  return dims;
}
std::int64_t lowest(DType dtype) {
  if (dtype == DType::u8 || dtype == DType::boolean) return 0;
  return std::numeric_limits<std::int64_t>::min() >> (64 - 8 * base::bytes_of(dtype));
}
}  // namespace

std::string_view combiner(Function const& region) {
  static constexpr std::string_view names[] = {"add", "multiply", "maximum", "minimum", "and", "or"};
  if (region.parameters.size() != 2 || region.returns.size() != 1) return {};
  if (region.ops.empty()) return region.returns[0] == region.parameters[1] ? "second" : std::string_view{};
  auto const& op = region.ops[0];
  auto const &operands = op.operands, &parameters = region.parameters;
  bool const both = operands.size() == 2 && (std::ranges::equal(operands, parameters) || (operands[0] == parameters[1] && operands[1] == parameters[0]));
  if (region.ops.size() != 1 || !both || op.results != region.returns) return {};
  auto const found = std::ranges::find(names, op.name);
  return found == std::end(names) ? std::string_view{} : *found;
}

namespace {
// What a combiner means for a dtype: or and and are an extreme of booleans.
struct Meaning {
  std::string_view name;
  bool flags;
  OpDef const *pair, *whole;  // of two tensors, of a tensor's dims
};
constexpr Meaning meanings[] = {{"add", false, &ops::add, &ops::sum},           {"multiply", false, &ops::mul, &ops::prod},
                                {"maximum", false, &ops::maximum, &ops::amax},  {"minimum", false, &ops::minimum, &ops::amin},
                                {"add", true, &ops::logical_or, &ops::any},     {"multiply", true, &ops::logical_and, &ops::all},
                                {"maximum", true, &ops::logical_or, &ops::any}, {"minimum", true, &ops::logical_and, &ops::all},
                                {"and", true, &ops::logical_and, &ops::all},    {"or", true, &ops::logical_or, &ops::any}};
Meaning const* meaning(std::string_view name, DType dtype) {
  auto const found = std::ranges::find_if(meanings, [&](Meaning const& m) { return m.name == name && m.flags == (dtype == DType::boolean); });
  return found == std::end(meanings) ? nullptr : found;
}
}  // namespace

Scalar identity(std::string_view combiner, DType dtype) {
  bool const unit = combiner == "multiply" || combiner == "and", least = combiner == "maximum", greatest = combiner == "minimum";
  if (base::is_real(dtype)) return Scalar(unit ? 1.0 : least ? -infinity : greatest ? infinity : -0.0);
  if (dtype == DType::boolean) return Scalar(unit || greatest);
  return Scalar(unit ? std::int64_t{1} : least ? lowest(dtype) : greatest ? (dtype == DType::u8 ? std::int64_t{255} : -1 - lowest(dtype)) : std::int64_t{0});
}
Var combined(std::string_view combiner, Var a, Var b) {
  auto const* how = meaning(combiner, (a.is_tensor() ? a : b).meta().dtype);
  base::ensure(how != nullptr, "a combiner without a row");
  return how->pair == &ops::add ? a + b : call(*how->pair, {a, b});
}
std::optional<Var> reduced_by(std::string_view combiner, Var x, std::span<std::int64_t const> dims) {
  auto const dtype = x.meta().dtype;
  auto const* how = meaning(combiner, dtype);
  if (!how) return std::nullopt;
  if (dims.empty()) return x;
  bool const extreme = how->whole == &ops::amax || how->whole == &ops::amin;
  if (extreme && base::numel(values(x.meta().sizes)) == 0) {
    Dims sizes;
    for (std::size_t d = 0; d < x.meta().sizes.size(); ++d)
      if (!contains(dims, static_cast<std::int64_t>(d))) sizes.push_back(x.meta().sizes[d]);
    return create(*x.emit, ops::full, Attrs{}.with(sizes).with(dtype).with(x.meta().device).with_num(identity(combiner, dtype)));
  }
  Attrs attrs = over(dims_of(dims), false);
  bool const sums = how->whole == &ops::sum || how->whole == &ops::prod;
  return call(*how->whole, {x}, sums ? attrs.with(dtype) : attrs);
}

namespace {
bool is_identity(std::string_view combiner, Item const& item) {
  if (!item.splat) return false;
  auto const neutral = identity(combiner, item.type.dtype);
  return neutral.real == item.splat->real && neutral.whole == item.splat->whole;
}

// Neighbours are combined until one is left; the order of elements stays.
std::vector<Var> tree(Step& step, Function const& region, std::vector<Var> x, std::size_t dim) {
  auto const d = static_cast<int>(dim);
  for (std::int64_t n; (n = x[0].size(d).value) > 1;) {
    std::vector<Var> both, odd;
    for (std::int64_t side : {0, 1})
      for (auto const& part : x) both.push_back(strided(part, dim, side, n - n % 2 - 1 + side, 2));
    if (n % 2)
      for (auto const& part : x) odd.push_back(strided(part, dim, n - 1, n, 1));
    x = step.to.apply(region, both);
    for (std::size_t k = 0; k < odd.size(); ++k) x[k] = concat(std::array{x[k], odd[k]}, Dim(dim));
  }
  return x;
}

// Several operands reduced together over dims, their inits combined in front.
std::vector<Var> reduced_together(Step& step, std::vector<Var> x, std::vector<Item*> const& inits, List const& dims) {
  auto const n = x.size();
  auto const& region = step.region(0, 2 * n);
  auto const name = n == 1 ? combiner(region) : std::string_view{};
  if (n == 1)
    if (auto const whole = reduced_by(name, x[0], dims))
      return {is_identity(name, *inits[0]) ? *whole
                                           : combined(name, inits[0]->splat && !inits[0]->made ? num(*inits[0]->splat) : step.to.tensor(*inits[0]), *whole)};
  auto const full = values(x[0].meta().sizes);
  List sizes;
  bool empty = false;
  for (std::size_t d = 0; d < full.size(); ++d)
    if (contains(dims, static_cast<std::int64_t>(d)))
      empty = empty || full[d] == 0;
    else
      sizes.push_back(full[d]);
  std::vector<Var> both;
  for (std::size_t k = 0; k < n; ++k) both.push_back(call(ops::expand, {step.to.tensor(*inits[k])}, Attrs{}.with(dims_of(sizes))));
  if (empty) return both;
  for (auto d : dims) x = tree(step, region, std::move(x), place(d));
  for (auto const& part : x) both.push_back(sized(part, sizes));
  return step.to.apply(region, both);
}
// Inputs, then as many inits; all inputs of the same sizes.
struct Operands {
  std::vector<Var> x;
  std::vector<Item*> inits;
};
Operands operands(Step& step) {
  auto const n = step.in.size() / 2;
  if (n == 0 || step.in.size() % 2) step.refuse(std::format("{} operands are no pairs of input and init", step.in.size()));
  Operands made;
  for (std::size_t k = 0; k < n; ++k) {
    auto const a = static_cast<int>(k), b = static_cast<int>(k + n);
    if (step.type(a).sizes != step.type(0).sizes) step.refuse(std::format("{} beside {}", to_string(step.type(a)), to_string(step.type(0))));
    if (!step.type(b).sizes.empty() || step.type(b).dtype != step.type(a).dtype)
      step.refuse(std::format("init {} of {}", to_string(step.type(b)), to_string(step.type(a))));
    made.x.push_back(step.x(a)), made.inits.push_back(&step.item(b));
  }
  return made;
}
void reduce(Step& step) {
  auto const made = operands(step);
  auto const dims = step.dims("dimensions", step.type(0).sizes.size());
  for (auto const& x : reduced_together(step, made.x, made.inits, dims)) step.give(x);
}

// -- windows --------------------------------------------------------------------------------------------------------------------------------

struct Windows {
  List size, stride, base, dilation, low, high;
  std::vector<std::int64_t> sizes;  // of the result
};
Windows windows_of(Step const& step) {
  auto const& from = step.type(0).sizes;
  List const ones(from.size(), 1);
  Windows w{step.list("window_dimensions", ones),
            step.list("window_strides", ones),
            step.list("base_dilations", ones),
            step.list("window_dilations", ones),
            {},
            {},
            {}};
  for (auto const& pair : step.matrix("padding", from.size())) w.low.push_back(pair[0]), w.high.push_back(pair[1]);
  for (std::size_t d = 0; d < from.size(); ++d) {
    for (auto n : {w.size[d], w.stride[d], w.base[d], w.dilation[d]})
      if (n < 1) step.refuse(std::format("{} of a window at dim {} is not positive", n, d));
    auto const spread = from[d] == 0 ? 0 : plus(times(from[d] - 1, w.base[d]), 1), length = plus(plus(spread, w.low[d]), w.high[d]);
    auto const window = plus(times(w.size[d] - 1, w.dilation[d]), 1);
    w.sizes.push_back(length < window ? 0 : (length - window) / w.stride[d] + 1);
  }
  return w;
}
Var spread_out(Step& step, Windows const& w, Var x, Item& value) {
  auto inner = w.base;
  for (auto& n : inner) --n;
  return padded(step, x, value, w.low, w.high, inner);
}
// Every window as dims behind those of the result: views.
Var unfolded(Windows const& w, Var x, List& behind) {
  for (std::size_t d = 0; d < w.size.size(); ++d) {
    if (w.size[d] == 1) {
      x = strided(x, d, 0, (w.sizes[d] - 1) * w.stride[d] + 1, w.stride[d]);
      continue;
    }
    auto const window = (w.size[d] - 1) * w.dilation[d] + 1;
    x = call(row("unfold"), {x}, Attrs{}.with(Dim(d)).with(Dim(window)).with(Dim(w.stride[d])));
    behind.push_back(x.rank() - 1);
    if (w.dilation[d] > 1) x = strided(x, place(behind.back()), 0, window, w.dilation[d]);
  }
  return x;
}
// A window that holds all that came before (or comes after) is a running sum, product or extreme.
std::optional<Var> scanned(Windows const& w, Function const& region, Var x, Item const& init) {
  auto const name = combiner(region);
  auto const* how = meaning(name, x.meta().dtype);
  if (!how || how->flags || !is_identity(name, init) || std::ranges::count(w.size, 1) != static_cast<std::ptrdiff_t>(w.size.size()) - 1) return std::nullopt;
  auto const d = static_cast<std::size_t>(std::ranges::find_if(w.size, [](auto n) { return n != 1; }) - w.size.begin());
  auto const plain = [](List const& list, std::int64_t n) { return std::ranges::count(list, n) == static_cast<std::ptrdiff_t>(list.size()); };
  auto const n = x.size(static_cast<int>(d)).value;
  bool const forward = w.low[d] == n - 1 && w.high[d] == 0, backward = w.low[d] == 0 && w.high[d] == n - 1;
  if (w.size[d] != n || !(forward || backward) || !plain(w.stride, 1) || !plain(w.base, 1) || !plain(w.dilation, 1)) return std::nullopt;
  for (std::size_t other = 0; other < w.size.size(); ++other)
    if (other != d && (w.low[other] != 0 || w.high[other] != 0)) return std::nullopt;
  auto const dtype = x.meta().dtype;
  auto const turned = [&](Var v) { return forward ? v : call(ops::flip, {v}, Attrs{}.with(std::array{Dim(d)})); };
  auto const dim = at_dim(static_cast<std::int64_t>(d));
  x = turned(x);
  if (how->pair == &ops::add) return turned(call(ops::cumsum, {x}, Attrs(dim).with(dtype)));
  if (how->pair == &ops::mul) return turned(call(ops::cumprod, {x}, Attrs(dim).with(dtype)));
  return turned(call(how->pair == &ops::maximum ? ops::cummax : ops::cummin, {x}, dim));
}
void reduce_window(Step& step) {
  auto const made = operands(step);
  auto const w = windows_of(step);
  auto const n = made.x.size();
  auto const& region = step.region(0, 2 * n);
  if (n == 1)
    if (auto const scan = scanned(w, region, made.x[0], *made.inits[0])) return step.give(*scan);
  if (base::numel(w.sizes) == 0) {
    for (std::size_t k = 0; k < n; ++k) step.give(Item{{made.x[k].meta().dtype, w.sizes}, {}, scalar_of(made.x[k].meta().dtype, 0, 0)});
    return;
  }
  std::vector<Var> parts;
  List behind;
  for (std::size_t k = 0; k < n; ++k) {
    behind.clear();
    parts.push_back(unfolded(w, spread_out(step, w, made.x[k], *made.inits[k]), behind));
  }
  for (auto const& x : reduced_together(step, parts, made.inits, behind)) step.give(x);
}

// The place of each window's first extreme, and the source added there.
void select_and_scatter(Step& step) {
  if (step.count() != 3) step.refuse(std::format("{} operands, 3 needed", step.count()));
  auto const& choice = step.region(0, 2);
  auto const adds = combiner(step.region(1, 2));
  bool const compares = choice.ops.size() == 1 && choice.ops[0].name == "compare" && std::ranges::equal(choice.ops[0].operands, choice.parameters);
  auto const* direction = compares ? choice.ops[0].find("comparison_direction") : nullptr;
  auto const* word = direction ? std::get_if<std::string>(direction) : nullptr;
  bool const largest = word && (*word == "GE" || *word == "GT"), smallest = word && (*word == "LE" || *word == "LT");
  if (adds != "add" || !(largest || smallest)) step.refuse("only the largest or smallest of a window is chosen, and only sums are scattered");
  auto const w = windows_of(step);
  auto const dtype = step.type(0).dtype;
  if (w.sizes != step.type(1).sizes) step.refuse(std::format("windows of sizes {} for a source {}", base::to_string(w.sizes), to_string(step.type(1))));
  if (step.type(1).dtype != dtype || step.type(2).dtype != dtype || !step.type(2).sizes.empty()) step.refuse("operand, source and init of different dtypes");
  if (dtype == DType::boolean) step.refuse("booleans are not added");
  Item& init = step.item(2);
  auto const start = [&](Var x) { return is_number(init, 0) ? x : x + (init.splat ? num(*init.splat) : step.to.tensor(init)); };
  if (base::numel(w.sizes) == 0) return step.give(start(step.to.filled(step.type(0), scalar_of(dtype, 0, 0))));
  Item edge{{dtype, {}}, {}, identity(largest ? "maximum" : "minimum", dtype)};
  Var const x = spread_out(step, w, step.x(0), edge);
  auto const wide = values(x.meta().sizes);
  auto const total = base::numel(wide);
  List behind, flat = w.sizes;
  std::int64_t window = 1;
  for (auto n : w.size) window = times(window, n);
  flat.push_back(window);
  Var const elements = sized(unfolded(w, x, behind), flat);
  Var const places = sized(unfolded(w, sized(step.to.counting(total), wide), behind), flat);
  Var const best = call(largest ? ops::argmax : ops::argmin, {elements}, at_dim(-1).with(Dim(true)));
  Var const at = sized(call(ops::gather, {places, best}, at_dim(-1)), std::array{base::numel(w.sizes)});
  Var const zeros = step.to.filled({dtype, {total}}, scalar_of(dtype, 0, 0));
  Var const sums = call(ops::index_add, {zeros, at, sized(step.x(1), std::array{base::numel(w.sizes)})}, at_dim(0).with_num(1.0));
  Var y = sized(sums, wide);
  for (std::size_t d = 0; d < wide.size(); ++d) y = strided(y, d, w.low[d], w.low[d] + step.type(0).sizes[d], 1);
  step.give(start(y));
}

constexpr Rule rules[] = {{"reduce", reduce}, {"reduce_window", reduce_window}, {"select_and_scatter", select_and_scatter}};
}  // namespace

std::span<Rule const> reduce_rules() { return rules; }

}  // namespace tenon::ir::hlo
