// What would have made a call a hit: the segment that it made is compared with the earlier ones of its site, and each difference has one line of advice.
module tenon.tracer;
import std;
import tenon.base;
import tenon.ir;
import tenon.guards;
import :session;

namespace tenon::tracer {

namespace {
using guards::What;
using Type = Parameter::Type;

/// One thing in which a call differs from what an earlier segment expects.
struct Difference {
  What what = What::nothing;
  std::string source;               ///< of a tensor or value; the name of a setting; the op of a number or of the place where the streams part
  int dim = -1;                     ///< of a size, or of the size that a number seems to be
  std::string expected{};           ///< what would have fitted
  std::string place{};              ///< the line of a number or of the place where the streams part
  std::int64_t have = 0, want = 0;  /// of a size or length
  enum class Kind : std::uint8_t { usual, inner, inner_shared, range, twice, flag, number, text, length, fixed, loop } kind = Kind::usual;
};
using Kind = Difference::Kind;

// The rules, the first that fits counts. In an advice {0} is the source, {1} the dim, {2} what was expected, {3} the place.
struct Rule {
  What what;
  bool (*when)(Difference const&);
  std::string_view advice;
};
constexpr auto any = [](Difference const&) { return true; };
template <Kind kind>
constexpr auto is = [](Difference const& d) { return d.kind == kind; };
constexpr auto small = [](Difference const& d) { return d.have < 2 || d.want < 2; };
constexpr auto wanted = [](Difference const& d) { return d.expected == "true"; };
constexpr auto is_size = [](Difference const& d) { return d.dim >= 0; };
constexpr Rule rules[] = {
    {What::settings, any, "one state of {0} in every call: {2}"},
    {What::value, is<Kind::flag>, "where() on {0} as a tensor"},
    {What::value, is<Kind::number>, "{0} as an element of a tensor argument"},
    {What::value, is<Kind::length>, "none: each length of a container has a graph of its own"},
    {What::value, any, "none: a text is compared by value, and each has a graph of its own"},
    {What::count, any, "none: each number of tensors has a graph of its own"},
    {What::dtype, any, "one dtype: to({0}, DType::{2})"},
    {What::device, any, "one device: to({0}, device_of(\"{2}\"))"},
    {What::rank, any, "none: each rank has a graph of its own"},
    {What::requires_grad, wanted, "{0}.set_requires_grad() in every call"},
    {What::requires_grad, any, "{0}.detach() in every call"},
    {What::size, small, "none: sizes 0 and 1 always have graphs of their own"},
    {What::size, is<Kind::inner>, ".dynamic = Dynamic::always"},
    {What::size, is<Kind::inner_shared>, ".dynamic = Dynamic::always, and a first call in which dim {1} of {0} has a size that no other dim has"},
    {What::size, any, "mark_dynamic({0}, {1})"},
    {What::stride, any, "contiguous({0})"},
    {What::marks, any, "mark_dynamic({0}, {1}) before the first call"},
    {What::aliasing, is<Kind::twice>, "clone() where one tensor is passed twice"},
    {What::aliasing, any, "clone() where {0} at {3} is given one tensor twice"},
    {What::number, is<Kind::fixed>, "none: this number of {0} at {3} decides what the graph is"},
    {What::number, is_size, "dim({1}) in place of size({1}) for the number of {0} at {3}"},
    {What::number, any, "the number of {0} at {3} as an element of a tensor argument"},
    {What::relation, is<Kind::range>, "a wider range in mark_dynamic({0}, {1})"},
    {What::relation, any, "none: sizes on either side of {0} have graphs of their own"},
    {What::stream, is<Kind::loop>, "none: each number of turns of a loop has a graph of its own"},
    {What::stream, is<Kind::text>, "none: a break at another place begins another graph"},
    {What::stream, any, "where() in place of the host's choice before {0} at {3}"},
    {What::nothing, any, "none: no setting is known that would have done it"},
};
std::string advice(Difference const& d) {
  auto const& rule = *std::ranges::find_if(rules, [&](Rule const& r) { return (r.what == d.what || r.what == What::nothing) && r.when(d); });
  return std::vformat(rule.advice, std::make_format_args(d.source, d.dim, d.expected, d.place));
}

std::string_view name_of(base::DType dtype) { return base::info(dtype).name; }
std::string on(bool flag) { return flag ? "on" : "off"; }
std::string name_of(guards::TensorGuard const& guard) { return guard.source.starts_with("captured") ? "the tensor " + guard.source : guard.source; }

// How the call that made `made` differs from what `earlier`, of the same site, expects: both are records, so nothing is run.
class Comparison {
 public:
  Comparison(Segment const& earlier, Segment const& made) : earlier_(earlier), made_(made) {
    bindings_ = guards::unbound(earlier.graph.symbols);
    settings();
    values();
    tensors();
    stream();
    if (std::ranges::all_of(found_, [](auto const& d) { return d.what == What::size; })) relations();
    if (found_.empty()) marks();
  }
  std::vector<Difference> const& found() const { return found_; }

 private:
  Segment const &earlier_, &made_;
  ir::Bindings bindings_;  // of the earlier segment's symbols to this call's sizes
  std::vector<Difference> found_;

  void settings() {
    auto const &want = earlier_.guards.settings, &have = made_.guards.settings;
    if (want.grad_enabled != have.grad_enabled) found_.push_back({What::settings, "grad mode", -1, on(want.grad_enabled)});
    if (want.deterministic != have.deterministic) found_.push_back({What::settings, "deterministic", -1, on(want.deterministic)});
    if (want.default_dtype != have.default_dtype) found_.push_back({What::settings, "default dtype", -1, std::string(name_of(want.default_dtype))});
    constexpr std::array names{"autocast(cpu)", "autocast(cuda)", "autocast(sim)"};
    for (std::size_t k = 0; k < names.size(); ++k)
      if (want.autocast[k] != have.autocast[k])
        found_.push_back({What::settings, names[k], -1, want.autocast[k].enabled ? std::string(name_of(want.autocast[k].dtype)) : "off"});
  }

  void values() {
    std::map<std::string, guards::Plain> have;
    for (auto const& value : made_.guards.values) have.try_emplace(value.source + (value.expected.text == "length" ? "#" : ""), value.expected);
    for (auto const& value : earlier_.guards.values) {
      auto const& want = value.expected;
      auto const now = have.find(value.source + (want.text == "length" ? "#" : ""));
      if (now == have.end() || now->second == want) continue;
      bool const flag = want.text == "true" || want.text == "false" || (want.text.empty() && want.number != ir::absent);
      Kind const kind = want.text == "length" ? Kind::length : flag ? Kind::flag : want.number != ir::absent ? Kind::number : Kind::text;
      found_.push_back({.what = What::value, .source = value.source, .expected = guards::to_string(want), .kind = kind});
    }
  }

  // The inputs of both: an argument each has read, else tensors of one name.
  struct Pair {
    Slot const *slot, *now;
    std::string source;
  };
  std::vector<Pair> pairs() const {
    std::vector<Pair> list;
    std::set<Slot const*> taken;
    auto const slot_at = [](Segment const& of, std::int32_t index) { return &of.slots[static_cast<std::size_t>(index)]; };
    auto const count = std::min(earlier_.argument_slots.size(), made_.argument_slots.size());
    for (std::size_t k = 0; k < count; ++k) {
      auto const before = earlier_.argument_slots[k], after = made_.argument_slots[k];
      if (before < 0 || after < 0) continue;
      Slot const *const slot = slot_at(earlier_, before), *const now = slot_at(made_, after);
      if (!slot->input || !now->input) continue;
      bool const own = std::cmp_equal(slot->argument, k);  // else the earlier call passed one tensor twice, and the other place has the name
      list.push_back({slot, now, name_of(own ? guard_of(earlier_, *slot) : guard_of(made_, *now))});
      taken.insert(now);
    }
    for (auto const& slot : earlier_.slots) {
      if (!slot.input || (slot.argument >= 0 && count > 0)) continue;
      auto const other = std::ranges::find_if(
          made_.slots, [&](Slot const& now) { return now.input && !taken.contains(&now) && guard_of(made_, now).source == guard_of(earlier_, slot).source; });
      if (other == made_.slots.end()) continue;
      taken.insert(&*other);
      list.push_back({&slot, &*other, name_of(guard_of(earlier_, slot))});
    }
    return list;
  }
  static guards::TensorGuard const& guard_of(Segment const& of, Slot const& slot) { return of.guards.tensors[static_cast<std::size_t>(slot.guard)]; }

  void tensors() {
    auto const all = pairs();
    bool const always = fits_always(all);
    for (auto const& [slot, now, source] : all) {
      auto const &want = guard_of(earlier_, *slot), &have = guard_of(made_, *now);
      auto const &expected = *want.expected, &actual = *have.expected;
      if (expected.dtype != actual.dtype) found_.push_back({What::dtype, source, -1, std::string(name_of(expected.dtype))});
      if (expected.device != actual.device) found_.push_back({What::device, source, -1, base::to_string(expected.device)});
      if (want.requires_grad != have.requires_grad) found_.push_back({What::requires_grad, source, -1, want.requires_grad ? "true" : "false"});
      if (expected.rank() != actual.rank()) {
        found_.push_back({What::rank, source, -1, std::to_string(expected.rank())});
        continue;
      }
      bool const inner = slot->argument < 0 && earlier_.cause.kind != BreakKind::returned;  // an earlier segment may have made it
      for (std::size_t d = 0; d < expected.sizes.size(); ++d) {
        auto const size = expected.sizes[d];
        auto const number = actual.sizes[d].value;
        if (fits(size, number)) continue;
        Kind const kind = !inner ? Kind::usual : always && size.node < 0 ? Kind::inner : Kind::inner_shared;
        found_.push_back({.what = What::size, .source = source, .dim = static_cast<int>(d), .have = number, .want = size.value, .kind = kind});
      }
      if (!same_layout(expected, actual)) found_.push_back({What::stride, source});
    }
    auto const marked = [](Difference const& d) { return d.what == What::size && d.kind == Kind::usual && d.have > 1 && d.want > 1; };
    bool const sweeping = always && (std::ranges::count_if(found_, marked) > 2 || std::ranges::any_of(found_, is<Kind::inner>));
    for (auto& d : found_)  // one option instead of many marks
      if (sweeping && marked(d)) d.kind = Kind::inner;
    auto const one_tensor_twice = [](std::vector<std::int32_t> slots) {
      std::ranges::sort(slots);
      return std::ranges::adjacent_find(slots, [](auto x, auto y) { return x >= 0 && x == y; }) != slots.end();
    };
    if (std::ranges::any_of(found_, marked) && one_tensor_twice(made_.argument_slots) && !one_tensor_twice(earlier_.argument_slots))
      found_.push_back({.what = What::aliasing, .kind = Kind::twice});  // its marks would be those of both arguments
  }
  // With the hints for what nothing bound: every expression has a value then.
  static ir::Bindings filled(ir::Symbols const& symbols, ir::Bindings bindings) {
    for (int k = 0; std::cmp_less(k, symbols.names().size()); ++k)
      if (auto& bound = bindings.whole[static_cast<std::size_t>(k)]; bound == ir::absent && !symbols.is_real_symbol(k)) bound = symbols.whole_symbol(k).value;
    return bindings;
  }
  // Whether a number of this call is what the earlier segment expects; a bare symbol is bound where it is met first.
  bool fits(Dim expected, std::int64_t actual) {
    auto const& symbols = earlier_.graph.symbols;
    bool const composed = symbols.own(expected).node >= 0 && symbols.symbol_number(expected) < 0;
    return composed ? symbols.evaluate(expected, filled(symbols, bindings_)) == actual : guards::agrees(expected, actual, symbols, bindings_);
  }
  bool fits(Scalar const& expected, Scalar const& actual) {
    bool const whole = expected.kind == ir::ScalarKind::whole && actual.kind == expected.kind;
    return whole ? fits(Dim(expected.whole, expected.node, expected.owner), actual.whole) : guards::agrees(expected, actual, earlier_.graph.symbols, bindings_);
  }

  // Whether the strides are those expected, or follow in both from the sizes in one order of the dims.
  bool same_layout(ir::Meta const& expected, ir::Meta const& actual) {
    bool equal = true;
    for (std::size_t d = 0; d < expected.sizes.size(); ++d) equal = equal && (actual.sizes[d].value == 1 || fits(expected.strides[d], actual.strides[d].value));
    std::vector<std::size_t> order(expected.sizes.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, {}, [&](std::size_t d) { return expected.strides[d].value; });
    auto const dense = [&](ir::Meta const& meta) {
      std::int64_t step = 1;
      return std::ranges::all_of(
          order, [&](std::size_t d) { return meta.sizes[d].value == 1 || meta.strides[d].value == std::exchange(step, step * meta.sizes[d].value); });
    };
    return equal || (dense(expected) && dense(actual));
  }

  // Whether symbols for all sizes from the start, equal ones shared, would have let this call in.
  static bool fits_always(std::vector<Pair> const& all) {
    std::map<std::int64_t, std::int64_t> now_of;
    for (auto const& [slot, now, source] : all)
      for (std::size_t d = 0; d < std::min(slot->meta->sizes.size(), now->meta->sizes.size()); ++d) {
        auto const before = slot->meta->sizes[d].value, after = now->meta->sizes[d].value;
        if (before != after && (before < 2 || after < 2)) return false;
        if (now_of.try_emplace(before, after).first->second != after) return false;
      }
    return true;
  }

  // The first fact on sizes that does not hold under these bindings.
  static std::optional<Difference> broken(Segment const& of, ir::Bindings bindings) {
    auto const& symbols = of.graph.symbols;
    bindings = filled(symbols, std::move(bindings));
    for (std::size_t k = 0; k < symbols.constraints.size(); ++k) {
      auto const& constraint = symbols.constraints[k];
      if (guards::holds(constraint, symbols, bindings)) continue;
      auto const bound = std::ranges::find(of.bounds, k, &Segment::Bound::constraint);
      if (bound != of.bounds.end())
        return Difference{
            .what = What::relation, .source = name_of(of.guards.tensors[static_cast<std::size_t>(bound->guard)]), .dim = bound->dim, .kind = Kind::range};
      return Difference{What::relation, std::format("'{}' ({})", symbols.to_string(constraint), base::short_place(constraint.at))};
    }
    return std::nullopt;
  }
  // Facts that one of the two relied on and that the sizes of the other one break.
  bool relations() {
    auto const& symbols = made_.graph.symbols;
    auto fact = broken(earlier_, bindings_);
    auto turned = guards::unbound(symbols);
    for (auto const& [slot, now, source] : pairs())
      for (std::size_t d = 0; !fact && d < std::min(slot->meta->sizes.size(), now->meta->sizes.size()); ++d)
        if (!guards::agrees(now->meta->sizes[d], slot->meta->sizes[d].value, symbols, turned)) return false;  // it shares a symbol by chance
    if (!fact) fact = broken(made_, turned);
    if (fact) found_.push_back(*fact);
    return fact.has_value();
  }

  // Dims that are symbols here and numbers there, though of one size: they were marked since.
  void marks() {
    for (auto const& [slot, now, source] : pairs())
      for (std::size_t d = 0; d < std::min(slot->meta->sizes.size(), now->meta->sizes.size()); ++d)
        if (slot->meta->sizes[d].node < 0 && now->meta->sizes[d].node >= 0) found_.push_back({What::marks, source, static_cast<int>(d)});
  }

  void stream() {
    auto const &events = earlier_.events, &now = made_.events;
    auto const place = [](Event const& event) { return base::short_place(event.at); };
    bool const other = std::ranges::any_of(found_, [](auto const& d) { return d.what != What::size && d.what != What::stride; });
    std::vector<std::int32_t> slot_now(earlier_.slots.size(), -1);
    for (std::size_t n = 0; n < std::max(events.size(), now.size()); ++n) {
      bool const both = n < events.size() && n < now.size();
      if (!both || events[n].op != now[n].op || events[n].at.line != now[n].at.line || events[n].slots.size() != now[n].slots.size() ||
          events[n].attrs.ints.size() != now[n].attrs.ints.size()) {
        if (other || relations()) return;  // that may be why, or the body asked for a size
        auto const& more = n < now.size() ? now : events;
        auto const again = [&](auto const& list) {
          return n < list.size() && std::ranges::any_of(
                                        std::span(list).first(n),
                                        [&](Event const& e) { return e.op == list[n].op && e.at.line == list[n].at.line && e.at.column == list[n].at.column; });
        };
        bool const loop = again(now) || again(events);
        found_.push_back({.what = What::stream,
                          .source = std::string(more[n].op ? more[n].op->name : "a look at a tensor"),
                          .place = place(more[n]),
                          .kind = loop ? Kind::loop : Kind::usual});
        return;
      }
      for (std::size_t k = 0; k < events[n].slots.size(); ++k) {
        auto const before = events[n].slots[k], after = now[n].slots[k];
        if (before < 0 && after < 0) continue;
        bool const input = before >= 0 && after >= 0 && earlier_.slots[static_cast<std::size_t>(before)].input;
        if (input && slot_now[static_cast<std::size_t>(before)] < 0 && (!earlier_.writes || std::ranges::find(slot_now, after) == slot_now.end()))
          slot_now[static_cast<std::size_t>(before)] = after;
        if (before >= 0 && slot_now[static_cast<std::size_t>(before)] == after) continue;
        found_.push_back(
            {.what = input ? What::aliasing : What::stream, .source = std::string(now[n].op ? now[n].op->name : "a look"), .place = place(now[n])});
        if (!input) return;
      }
      for (std::int32_t r = 0; r < std::min(events[n].results, now[n].results); ++r)
        slot_now[static_cast<std::size_t>(events[n].result) + static_cast<std::size_t>(r)] = now[n].result + r;
      numbers(n);
    }
    if (!other && (earlier_.end.kind != made_.end.kind || earlier_.end.at.line != made_.end.at.line))
      found_.push_back({.what = What::stream, .source = "a break", .place = base::short_place(made_.end.at), .kind = Kind::text});
  }

  // The numbers of event n that differ.
  void numbers(std::size_t n) {
    Event const &before = earlier_.events[n], &now = made_.events[n];
    if (!now.op) return;
    if (before.attrs.text != now.attrs.text)
      found_.push_back({.what = What::number, .source = std::string(now.op->name), .place = base::short_place(now.at), .kind = Kind::fixed});
    auto const differs = [&](std::int64_t want, std::int64_t have, bool plain, bool fixed) {
      Difference d{.what = What::number, .source = std::string(now.op->name), .place = base::short_place(now.at), .kind = fixed ? Kind::fixed : Kind::usual};
      if (!fixed && !plain) return;                                         // it follows from sizes
      if (!fixed && std::ranges::any_of(found_, is<Kind::number>)) return;  // the argument is named already
      for (auto const& size : found_)
        if (size.what == What::size && size.have == have && size.want == want) d.dim = size.dim;
      found_.push_back(d);
    };
    bool const guessed = std::ranges::find(made_.guessed, static_cast<std::int32_t>(n)) != made_.guessed.end();
    for (std::size_t k = 0; k < now.scalars.size(); ++k) {
      auto const &want = before.scalars[k], &have = now.scalars[k];
      Scalar const number = made_.graph.symbols.evaluate(have, {});
      if (!fits(want, number)) differs(want.whole, number.whole, have.node < 0 || guessed || have.kind == ir::ScalarKind::real, false);
    }
    std::size_t at = 0, real_at = 0;
    for (auto const& parameter : ir::signature(*now.op).parameters) {
      if (parameter.type == Type::tensor || parameter.type == Type::tensors || parameter.type == Type::text) continue;
      bool const list = parameter.type == Type::wholes || parameter.type == Type::sizes || parameter.type == Type::reals;
      bool const real = parameter.type == Type::real || parameter.type == Type::reals;
      auto count = static_cast<std::size_t>(list ? now.attrs.ints[at].value : 1);
      if (list) {
        if (before.attrs.ints[at].value != now.attrs.ints[at].value) return differs(0, 0, true, true);
        ++at;
      }
      bool const may_vary = parameter.type == Type::size || parameter.type == Type::sizes || (real && !list && !parameter.fixed);
      for (; count > 0; --count) {
        if (real) {
          Scalar const number = made_.graph.symbols.evaluate(now.attrs.nums[real_at], {});
          if (!fits(before.attrs.nums[real_at], number)) differs(0, 0, true, !may_vary);
          ++real_at;
        } else {
          auto const have = now.attrs.ints[at];
          if (!fits(before.attrs.ints[at], have.value)) differs(before.attrs.ints[at].value, have.value, have.node < 0 || guessed, !may_vary);
          ++at;
        }
      }
    }
  }
};
}  // namespace

std::string counterfactual(Segment const& made) {
  std::vector<std::string> best;
  for (Segment const* earlier = made.next.load(std::memory_order_acquire); earlier; earlier = earlier->next.load(std::memory_order_acquire)) {
    std::vector<std::string> list;
    Comparison const comparison(*earlier, made);
    for (auto const& difference : comparison.found())
      if (auto text = advice(difference); std::ranges::find(list, text) == list.end()) list.push_back(std::move(text));
    if (list.empty()) list.push_back(advice({}));
    if (auto const none = std::ranges::find_if(list, [](auto const& text) { return text.starts_with("none: "); }); none != list.end()) list = {*none};
    bool const better = best.empty() || (best[0].starts_with("none: ") && !list[0].starts_with("none: ")) ||
                        (best[0].starts_with("none: ") == list[0].starts_with("none: ") && list.size() < best.size());
    if (better) best = std::move(list);
  }
  std::string text;
  for (auto const& one : best) text += (text.empty() ? "" : " and ") + one;
  return text;
}

}  // namespace tenon::tracer
