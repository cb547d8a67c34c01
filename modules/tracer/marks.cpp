// What a user says of a tensor's dims, and whether a recording kept to it.
module tenon.tracer;
import std;
import tenon.base;
import tenon.ir;
import tenon.guards;
import :session;

namespace tenon::tracer {
using base::fail;
using ir::Relation;

namespace {
Marks::Mark& mark_of(std::string_view who, Tensor const& x, int dim) {
  auto const d = static_cast<std::size_t>(base::wrap_dim(who, dim, x.rank()));
  auto& held = x.impl()->marks;
  auto changed = held ? base::make_ref<Marks>(*held) : base::make_ref<Marks>();  // an earlier reader keeps the old ones
  changed->dims.resize(static_cast<std::size_t>(x.rank()));
  held = changed;
  return changed->dims[d];
}
}  // namespace
void mark_dynamic(Tensor const& x, int dim, std::int64_t min, std::int64_t max) {
  auto const size = x.size(base::wrap_dim("mark_dynamic", dim, x.rank()));
  if (min < 0 || min > max) fail("mark_dynamic: no size lies from {} to {}", min, max);
  if (size < min || size > max) fail("mark_dynamic: dim {} of {} has size {}, outside of {} to {}", dim, ir::to_string(x.meta()), size, min, max);
  mark_of("mark_dynamic", x, dim) = {.dynamic = true, .min = min, .max = max};
}
void mark_static(Tensor const& x, int dim) {
  auto& mark = mark_of("mark_static", x, dim);
  mark.fixed = !mark.dynamic;
}

Dim Session::Data::marked_symbol(Marks::Mark const& mark, std::int32_t guard, int dim, std::int64_t size, At at) {
  auto& symbols = draft->graph.symbols;
  Dim const symbol = symbols.symbol(size);
  marked.push_back({symbols.symbol_number(symbol), guard, dim});
  auto const before = symbols.constraints.size();
  if (mark.min > 2) (void)symbols.decide(mark.min, Relation::less_equal, symbol, at);
  if (mark.max != std::numeric_limits<std::int64_t>::max()) (void)symbols.decide(symbol, Relation::less_equal, mark.max, at);
  for (auto k = before; k < symbols.constraints.size(); ++k) draft->bounds.push_back({k, guard, dim});
  if (mark.min == mark.max) marked.pop_back();  // one size is what was asked for
  return symbol;
}

namespace {
// What a list of constraints leaves of one symbol: from `least` to `most`, and the constraint that narrowed it last.
struct Left {
  std::int64_t least = 2, most = std::numeric_limits<std::int64_t>::max();
  ir::Constraint const* by = nullptr;
};
Left left_of(int number, ir::Symbols const& symbols) {
  Left left;
  auto bindings = guards::unbound(symbols);
  for (std::size_t k = 0; k < bindings.whole.size(); ++k)
    if (!symbols.is_real_symbol(static_cast<int>(k))) bindings.whole[k] = symbols.whole_symbol(static_cast<int>(k)).value;
  auto const value = [&](Dim dim, std::int64_t moved) {
    auto other = bindings;
    other.whole[static_cast<std::size_t>(number)] += moved;
    return symbols.evaluate(dim, other);
  };
  for (auto const& c : symbols.constraints) {
    bool const depends = value(c.a, 0) != value(c.a, 1) || value(c.b, 0) != value(c.b, 1);
    if (!depends) continue;
    auto const hint = bindings.whole[static_cast<std::size_t>(number)];
    bool const fixed = c.relation == Relation::equal && (c.a.node < 0 || c.b.node < 0);  // an expression of it equals a number
    bool const below = symbols.symbol_number(c.a) == number && c.b.node < 0, above = symbols.symbol_number(c.b) == number && c.a.node < 0;
    std::int64_t const strict = c.relation == Relation::less;
    auto const was = std::pair(left.least, left.most);
    if (fixed) left.least = left.most = hint;
    if (below && (c.relation == Relation::less || c.relation == Relation::less_equal)) left.most = std::min(left.most, c.b.value - strict);
    if (above && (c.relation == Relation::less || c.relation == Relation::less_equal)) left.least = std::max(left.least, c.a.value + strict);
    if (was != std::pair(left.least, left.most)) left.by = &c;
  }
  return left;
}
}  // namespace

// The recording as it stands needs one size of a dim that was marked dynamic: who asks for it, and where; empty if none does.
std::string Session::Data::broken_mark() const {
  auto const& symbols = draft->graph.symbols;
  for (auto const& [symbol, guard, dim] : marked) {
    auto const left = left_of(symbol, symbols);
    if (left.least < left.most || !left.by) continue;
    auto const& event = draft->events[std::min(static_cast<std::size_t>(left.by->event), draft->events.size() - 1)];
    std::string others;
    for (auto const slot : event.slots) {
      if (slot < 0 || !draft->slots[static_cast<std::size_t>(slot)].input) continue;
      auto const& tensor = draft->guards.tensors[static_cast<std::size_t>(draft->slots[static_cast<std::size_t>(slot)].guard)];
      others += std::format("{}'{}' is {}", others.empty() ? "" : ", ", tensor.source, ir::to_string(*tensor.expected, &symbols));
    }
    return std::format("{}: dim {} of '{}' was marked dynamic, but {} at {} needs {}{}\n{}    hint: mark the size that it meets dynamic too, or drop the mark",
                       state().options.name, dim, draft->guards.tensors[static_cast<std::size_t>(guard)].source, event.op ? event.op->name : "a look",
                       base::short_place(event.at), symbols.to_string(*left.by), others.empty() ? "" : " (" + others + ")", base::caret(event.at));
  }
  return {};
}

}  // namespace tenon::tracer
