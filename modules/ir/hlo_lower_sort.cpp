// sort by a comparator: a comparator of keys in turn is a stable sort by each; any other one ranks every element against every other.
module tenon.ir;
import std;
import tenon.base;
import :hlo_lower;

namespace tenon::ir::hlo {
using base::DType;
using List = std::vector<std::int64_t>;

namespace {
constexpr std::int64_t most_elements = std::int64_t{1} << 24;

struct Key {
  std::size_t operand;
  bool descending;
};

// A comparator read as keys: lt(a0, b0) or (eq(a0, b0) and (lt(a1, b1) or ..)).
class Comparator {
 public:
  explicit Comparator(Function const& region) : region_(region) {
    for (auto const& op : region.ops)
      for (int value : op.results) made_[value] = &op;
  }
  std::optional<std::vector<Key>> keys() const {
    std::vector<Key> found;
    if (region_.returns.size() != 1 || !keys_of(region_.returns[0], found)) return std::nullopt;
    return found;
  }

 private:
  Op const* op(int value, std::string_view name) const {
    auto const found = made_.find(value);
    return found != made_.end() && found->second->name == name ? found->second : nullptr;
  }
  std::optional<double> number(int value) const {
    auto const* constant = op(value, "constant");
    auto const* found = constant ? constant->find("value") : nullptr;
    auto const* literal = found ? std::get_if<Literal>(found) : nullptr;
    return literal && literal->reals.size() == 1 ? std::optional(literal->reals[0]) : std::nullopt;
  }
  static bool says(Attribute const* attribute, std::string_view word) {
    auto const* text = std::get_if<std::string>(attribute);
    return text && *text == word;
  }
  bool compares(int value, std::string_view direction, int a, std::optional<int> b) const {  // b: that value, else the number 0
    auto const* compare = op(value, "compare");
    if (!compare || compare->operands.size() != 2 || compare->operands[0] != a) return false;
    auto const* word = compare->find("comparison_direction");
    if (!word || !says(word, direction)) return false;
    return b ? compare->operands[1] == *b : number(compare->operands[1]) == 0.0;
  }
  // The parameter that a value is: itself, or with -0 as 0 and every NaN as one.
  std::optional<std::size_t> parameter(int value, int depth = 0) const {
    auto const found = std::ranges::find(region_.parameters, value);
    if (found != region_.parameters.end()) return static_cast<std::size_t>(found - region_.parameters.begin());
    auto const* select = op(value, "select");
    if (!select || select->operands.size() != 3 || depth > 4) return std::nullopt;
    auto const inner = parameter(select->operands[2], depth + 1);
    auto const fixed = number(select->operands[1]);
    if (!inner || !fixed) return std::nullopt;
    int const x = region_.parameters[*inner];
    bool const zero = *fixed == 0 && compares(select->operands[0], "EQ", x, std::nullopt), nan = *fixed != *fixed && compares(select->operands[0], "NE", x, x);
    return zero || nan ? inner : std::nullopt;
  }
  // Which key two values are of the left and right element, and whether they stand the other way round.
  std::optional<std::pair<std::size_t, bool>> sides(Op const& compare) const {
    auto const a = parameter(compare.operands.at(0)), b = parameter(compare.operands.at(1));
    if (!a || !b || *a / 2 != *b / 2 || *a == *b) return std::nullopt;
    return std::pair(*a / 2, *a > *b);
  }
  std::optional<Key> first(int value) const {
    auto const* compare = op(value, "compare");
    auto const* word = compare && compare->operands.size() == 2 ? compare->find("comparison_direction") : nullptr;
    auto const found = word ? sides(*compare) : std::nullopt;
    if (!found) return std::nullopt;
    bool const less = says(word, "LT"), greater = says(word, "GT");
    return less || greater ? std::optional(Key{found->first, greater != found->second}) : std::nullopt;
  }
  bool equal(int value, std::size_t operand) const {
    auto const* compare = op(value, "compare");
    auto const* word = compare && compare->operands.size() == 2 ? compare->find("comparison_direction") : nullptr;
    if (!word || !says(word, "EQ")) return false;
    auto const found = sides(*compare);
    return found && found->first == operand;
  }
  bool keys_of(int value, std::vector<Key>& into) const {
    for (int at = value;;) {
      if (auto const key = first(at)) return into.push_back(*key), true;
      auto const* either = op(at, "or");
      if (!either || either->operands.size() != 2 || into.size() >= region_.parameters.size()) return false;
      bool followed = false;
      for (std::size_t k = 0; k < 2 && !followed; ++k) {
        auto const key = first(either->operands[k]);
        auto const* both = op(either->operands[1 - k], "and");
        if (!key || !both || both->operands.size() != 2) continue;
        for (std::size_t j = 0; j < 2 && !followed; ++j)
          if (equal(both->operands[j], key->operand)) into.push_back(*key), at = both->operands[1 - j], followed = true;
      }
      if (!followed) return false;
    }
  }

  Function const& region_;
  std::unordered_map<int, Op const*> made_;
};

Var places_of(Var x, std::int64_t dim, bool descending, Var* sorted = nullptr) {
  Var const both = call(ops::sort, {x}, Attrs{}.with(Dim(dim)).with(Dim(descending)).with(Dim(true)));
  if (sorted) *sorted = both;
  return nth(both, 1);
}

// Places by the number of elements that come before each, ties in their order.
Var ranked(Step& step, std::vector<Var> const& x, Function const& region, std::int64_t dim) {
  auto const sizes = values(x[0].meta().sizes);
  auto const n = sizes[static_cast<std::size_t>(dim)];
  if (times(base::numel(sizes), n) > most_elements) step.refuse(std::format("this comparator compares each of {} elements with each: too many", n));
  std::vector<Var> other_first, own_first;
  for (auto const& part : x) {
    Var const own = call(ops::unsqueeze, {part}, at_dim(dim + 1)), other = call(ops::unsqueeze, {part}, at_dim(dim));
    other_first.insert(other_first.end(), {other, own});
    own_first.insert(own_first.end(), {own, other});
  }
  Var const less = step.to.apply(region, other_first).at(0), more = step.to.apply(region, own_first).at(0);  // [.., i, j]: j before i, i before j
  List line_i(sizes.size() + 1, 1), line_j = line_i;
  line_i[static_cast<std::size_t>(dim)] = n, line_j[static_cast<std::size_t>(dim) + 1] = n;
  Var const earlier = call(ops::lt, {sized(step.to.counting(n), line_j), sized(step.to.counting(n), line_i)});
  Var const before = choose(call(ops::eq, {less, more}), earlier, less);
  Var const rank = call(ops::sum, {cast(before, DType::i64)}, summed(std::array{Dim(dim + 1)}, false));
  return places_of(rank, dim, false);
}

void sort(Step& step) {
  if (step.count() == 0) step.refuse("no operands");
  auto const sizes = step.type(0).sizes;
  auto const given = step.whole("dimension", -1);
  auto const dim = given < 0 ? plus(given, static_cast<std::int64_t>(sizes.size())) : given;
  if (dim < 0 || std::cmp_greater_equal(dim, sizes.size())) step.refuse(std::format("dim {} of rank {}", given, sizes.size()));
  auto const& region = step.region(0, 2 * step.in.size());
  std::vector<Var> x;
  for (int k = 0; k < step.count(); ++k) {
    if (step.type(k).sizes != sizes) step.refuse(std::format("{} beside {}", to_string(step.type(k)), to_string(step.type(0))));
    x.push_back(step.x(k));
  }
  Var places;
  if (auto const keys = Comparator(region).keys()) {
    if (x.size() == 1) {
      Var sorted;
      places_of(x[0], dim, (*keys)[0].descending, &sorted);
      return step.give(sorted);
    }
    for (auto const& key : std::views::reverse(*keys)) {  // the last key first: later sorts keep its order
      Var const held = places ? call(ops::gather, {x[key.operand], places}, at_dim(dim)) : x[key.operand];
      Var const order = places_of(held, dim, key.descending);
      places = places ? call(ops::gather, {places, order}, at_dim(dim)) : order;
    }
  } else {
    places = ranked(step, x, region, dim);
  }
  for (auto const& part : x) step.give(call(ops::gather, {part, places}, at_dim(dim)));
}

void top_k(Step& step) {
  auto const& from = step.type(0).sizes;
  auto const k = step.whole("k");
  if (from.empty() || k < 0 || k > from.back()) step.refuse(std::format("k = {} of {}", k, to_string(step.type(0))));
  if (step.op.types.size() != 2) step.refuse("two results are needed");
  auto const last = static_cast<std::int64_t>(from.size()) - 1;
  Var sorted;
  Var const places = places_of(step.x(), last, step.whole("largest", 1) != 0, &sorted);
  step.give(strided(sorted, from.size() - 1, 0, k, 1));
  step.give(cast(strided(places, from.size() - 1, 0, k, 1), step.result(1).dtype));
}

constexpr Rule rules[] = {{"sort", sort}, {"chlo.top_k", top_k}};
}  // namespace

std::span<Rule const> sort_rules() { return rules; }

}  // namespace tenon::ir::hlo
