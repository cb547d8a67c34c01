module tenon.tracer;
import std;
import tenon.base;
import tenon.ir;
import tenon.guards;
import :session;

namespace tenon::tracer {
using base::ensure;
using base::fail;

namespace {
thread_local Session* this_session = nullptr;

bool same_place(Break const& a, Break const& b) {
  return a.kind == b.kind &&
         (a.kind == BreakKind::returned || (a.at.line == b.at.line && a.at.column == b.at.column && std::string_view(a.at.file) == b.at.file));
}
std::string message(std::string_view name, Break const& cause) {
  return std::format("{}: fullgraph: {} at {}\n{}    hint: {}", name, cause.reason, base::short_place(cause.at), base::caret(cause.at), cause.hint);
}
Break aliasing(At at) {
  return {BreakKind::aliasing, "inputs share memory and one of them is written", "pass separate tensors, or write before the others are read", at};
}
// A write whose source is another tensor over the same memory that holds its elements already.
bool overlapping(Call const& call) {
  if (&call.op != &copy_row) return false;
  Impl const &target = *call.operands[0].impl, &source = *call.operands[1].impl;
  return target.storage == source.storage && target.id != source.id && !target.storage->pending;
}
// A call that no graph holds, because the sizes of its results depend on elements.
std::optional<Break> measured(Call const& call) {
  if (!call.op.measured) return std::nullopt;
  std::vector<ir::Meta const*> in;
  std::vector<Scalar> scalars;
  for (auto const& operand : call.operands) {
    in.push_back(operand.impl ? operand.impl->meta.get() : nullptr);
    scalars.push_back(operand.scalar);
  }
  try {
    (void)ir::infer(call.op, in, scalars, call.attrs);
    return std::nullopt;
  } catch (base::Error const& error) {
    return Break{BreakKind::measured, error.what(), "choose with where(), or call it on what is computed outside of the compiled function", call.at};
  }
}
}  // namespace

Site::~Site() {
  for (Segment* segment = first.load(); segment;) delete std::exchange(segment, segment->next.load());
}

Segment::~Segment() { delete spare.load(); }

Session* Session::current() { return this_session; }

Session::Session(State& state, Arguments arguments) : data_(new Data{.self = *this, .state = state, .arguments = std::move(arguments)}) {
  ensure(!this_session, "a capture is opened inside another one");
  this_session = this;
  data_->active.emplace(Rank::capture, this);
  data_->site = &state.root;
  ++state.calls;
  data_->begin();
}
Session::~Session() {
  data_->state.replayed_ops += data_->replayed_ops;
  data_->state.recorded_ops += data_->recorded_ops;
  if (!data_->missed) ++data_->state.hits;
  data_->scope.reset();
  this_session = nullptr;
}

bool Session::fullgraph() const { return data_->state.options.fullgraph && data_->phase != Phase::eager; }

// Chooses a segment of the site by its guards, the one that served last first; none: records.
void Session::Data::begin() {
  began_with = settings();
  frame = {};
  input_of.clear();
  written.clear();
  Segment* const hot = site->hot.load(std::memory_order_acquire);
  if (hot && enter(*hot, frame)) return;
  for (Segment* candidate = site->first.load(std::memory_order_acquire); candidate; candidate = candidate->next.load(std::memory_order_acquire))
    if (candidate != hot && enter(*candidate, frame)) return;
  frame = {};
  shadow = hot ? hot : site->first.load(std::memory_order_acquire);
  start_recording();
}

bool Session::Data::enter(Segment& candidate, Frame& fresh) {
  auto const refuse = [&](guards::Mismatch why) {
    reason = std::move(why);
    return false;
  };
  if (candidate.guards.settings != began_with) return refuse(guards::mismatch(candidate.guards.settings, began_with));
  if (site == &state.root)
    for (std::size_t k = 0; k < candidate.guards.values.size(); ++k)
      if (candidate.guards.values[k].expected != arguments.values[k]) return refuse(guards::mismatch(candidate.guards.values[k], arguments.values[k]));
  fresh.bindings = guards::unbound(candidate.graph.symbols);
  fresh.event = 0;
  for (auto const& slot : candidate.slots) {
    if (slot.argument < 0 || site != &state.root) continue;  // behind a break the body may have let its arguments go
    if (std::cmp_greater_equal(slot.argument, arguments.tensors.size()))
      return refuse({.what = guards::What::count,
                     .expected = slot.argument + 1,
                     .actual = static_cast<std::int64_t>(arguments.tensors.size()),
                     .text = std::format("the arguments hold {} tensors, and more than {} are expected", arguments.tensors.size(), slot.argument)});
    Impl const& impl = *arguments.tensors[static_cast<std::size_t>(slot.argument)].impl;
    auto const& guard = candidate.guards.tensors[static_cast<std::size_t>(slot.guard)];
    if (!guards::holds(guard, impl.meta, impl.requires_grad || impl.node, candidate.graph.symbols, fresh.bindings))
      return refuse(guards::mismatch(guard, *impl.meta, impl.requires_grad || impl.node, candidate.graph.symbols, guards::unbound(candidate.graph.symbols)));
  }
  fresh.bindings = guards::unbound(candidate.graph.symbols);  // bound again, in the order of the stream
  if (std::unique_ptr<Frame> const spare{candidate.spare.exchange(nullptr, std::memory_order_acquire)}) {
    fresh.slots.swap(spare->slots);
    fresh.proxies.swap(spare->proxies);
    fresh.views.swap(spare->views);
  } else {
    fresh.slots.assign(candidate.slots.size(), nullptr);
    fresh.proxies.assign(candidate.slots.size(), nullptr);
    fresh.views.assign(candidate.slots.size(), {});
  }
  segment = &candidate;
  phase = Phase::replay;
  return true;
}

// The prefix matched, what comes next does not: another segment of the site that matches all of it takes over, or recording goes on in place.
// Returns whether a segment was found for which `fits` also holds.
bool Session::Data::diverge(std::function<bool()> const& fits) {
  auto const calls = replayed();
  Segment* const failed = segment;
  Frame const kept = std::move(frame);  // holds the operands of `calls`
  for (Segment* candidate = site->first.load(std::memory_order_acquire); candidate; candidate = candidate->next.load(std::memory_order_acquire)) {
    if (candidate == failed) continue;
    auto const why = reason;
    Frame fresh;
    if (!enter(*candidate, fresh)) {
      reason = why;
      continue;
    }
    frame = std::move(fresh);
    input_of.clear();
    bool matches = true;
    for (auto const& call : calls) {
      matches = call.op ? match({*call.op, call.operands, call.attrs, call.at}, {}, call.results) : match_touch(*call.operands[0].impl);
      if (!matches) break;
    }
    if (matches && fits()) return true;
    reason = why;
  }
  segment = failed;
  shadow = failed;
  start_recording();
  if (auto const first = std::ranges::find_if(calls, [](Replayed const& call) { return call.op != nullptr; }); first != calls.end())
    over_limit = at_limit({*first->op, first->operands, first->attrs, first->at});
  for (auto const& call : calls)
    if (call.op)
      record({*call.op, call.operands, call.attrs, call.at}, {}, call.results, call.module);
    else
      slot_for(*call.operands[0].impl, call.at);
  if (over_limit) {  // the prefix is owed; the rest of this call runs eagerly
    scope.reset();
    launch(*draft);
    phase = Phase::eager;
  }
  return false;
}

// A write that the recorded stream could not express: into memory that another bound input shares, or a read of such memory after a write.
std::optional<Break> Session::Data::hazard(Call const& call) {
  bool const write = &call.op == &copy_row;
  if (!write && written.empty()) return std::nullopt;
  for (std::size_t k = 0; k < call.operands.size(); ++k) {
    Impl* const impl = call.operands[k].impl;
    if (!impl) continue;
    if (write && k == 0 && phase == Phase::record && is_view_slot(*impl))
      return Break{BreakKind::view_write, "a view made in this segment is written in place", "write the whole tensor, or choose with where()", call.at};
    if (impl->storage->pending) continue;
    if (written.contains(impl->storage.get()) && !bound(*impl)) return aliasing(call.at);
    if (write && k == 0) {
      auto const found = input_of.find(impl->storage.get());
      if (found != input_of.end() && (found->second.id != impl->id || found->second.shared)) return aliasing(call.at);
    }
  }
  return std::nullopt;
}
void Session::Data::note_input(Impl& impl) {
  auto const [at, fresh] = input_of.try_emplace(impl.storage.get(), Owner{impl.id});
  if (!fresh && at->second.id != impl.id) at->second.shared = true;
}
bool Session::Data::started() const { return phase == Phase::record ? !draft->events.empty() : frame.event > 0; }
bool Session::Data::bound(Impl const& impl) const {
  if (phase == Phase::record) return slot_of.contains(impl.id);
  return std::ranges::any_of(frame.slots, [&](Ref<Impl> const& slot) { return slot && slot->id == impl.id; });
}

void Session::bind(Call const& call, int below, std::span<Tensor> results) {
  auto& data = *data_;
  if (auto const why = data.phase != Phase::eager ? measured(call) : std::nullopt) {  // at once, as soon as its operands are there
    for (auto const& operand : call.operands)
      if (operand.impl) make_readable(*operand.impl, *why);
    return dispatch(call, below, results);
  }
  while (data.phase != Phase::eager) {
    if (overlapping(call)) {  // no stream can say it: between two segments, at once
      if (data.started() || fullgraph()) split(aliasing(call.at));
      break;
    }
    if (auto const why = data.hazard(call)) {
      split(*why);
      continue;
    }
    if (data.phase == Phase::replay) {
      auto const matches = [&] { return data.match(call, results, {}); };
      if (matches() || data.diverge(matches)) return;
      continue;
    }
    data.record(call, results, {}, data.module_path());
    if (data.phase == Phase::record) return;
  }
  dispatch(call, below, results);
}

ir::MetaRef Session::meta_of(Impl& impl, At at) {
  auto& data = *data_;
  if (data.phase == Phase::replay) {
    bool const due = data.frame.event < data.segment->events.size() && !data.segment->events[data.frame.event].op;
    if (!due || data.bound(impl) || data.match_touch(impl)) return impl.meta;
    if (data.diverge([&] { return data.match_touch(impl); })) return impl.meta;
  }
  if (data.phase == Phase::record) return data.draft->slots[static_cast<std::size_t>(data.slot_for(impl, at))].meta;
  return impl.meta;
}

std::optional<At> Session::made_at(Impl const& impl) const {
  auto const& data = *data_;
  if (data.phase == Phase::eager) return std::nullopt;
  auto const& events = data.phase == Phase::replay ? data.segment->events : data.draft->events;
  std::size_t const count = data.phase == Phase::replay ? data.frame.event : events.size();
  for (std::size_t k = count; k-- > 0;) {
    for (std::int32_t r = 0; r < events[k].results; ++r) {
      auto const& slot = data.frame.slots[static_cast<std::size_t>(events[k].result) + static_cast<std::size_t>(r)];
      if (slot && slot->id == impl.id) return events[k].at;
    }
  }
  return std::nullopt;
}

void Session::make_readable(Impl& impl, Break reason) {
  auto& data = *data_;
  if (data.phase == Phase::eager) return;
  if (impl.storage->pending == this || data.written.contains(impl.storage.get())) split(std::move(reason));
}

void Session::split(Break reason) {
  auto& data = *data_;
  if (data.phase == Phase::eager) return;
  if (data.state.options.fullgraph) fail("{}", message(data.state.options.name, reason));
  data.end(reason);
  if (data.phase == Phase::eager) return;
  Site* site = nullptr;
  {
    std::scoped_lock const lock(data.state.mutex);
    auto& found = data.state.sites[{reason.at.file, reason.at.line, reason.at.column, reason.kind}];
    if (!found) {
      found = std::make_unique<Site>();
      found->number = data.state.breaks.size();
      data.state.breaks.push_back({reason});
      base::log("breaks", "{}: {} at {}", data.state.options.name, reason.reason, base::short_place(reason.at));
    }
    ++data.state.breaks[found->number].times;
    site = found.get();
  }
  data.site = site;
  data.cause = std::move(reason);
  data.reason = {};
  data.begin();
}

// Ends the segment with `reason`: the one being replayed if it ends so too, else another that does, else what has been recorded.
void Session::Data::end(Break reason_to_end) {
  auto const ends_here = [&] {
    if (frame.event == segment->events.size() && same_place(segment->end, reason_to_end))
      return constraints_hold(static_cast<std::int32_t>(segment->graph.symbols.constraints.size()));
    auto const name = [](Break const& end) {
      return end.kind == BreakKind::returned ? "the end of the function" : std::format("a break at {}", base::short_place(end.at));
    };
    std::string expected = name(segment->end);
    if (frame.event < segment->events.size()) {
      auto const& next = segment->events[frame.event];
      expected = std::format("{} at {}", next.op ? next.op->name : "a first look at a tensor", base::short_place(next.at));
    }
    reason = {.what = guards::What::stream, .text = std::format("the stream differs: expected {}, actual {}", expected, name(reason_to_end))};
    return false;
  };
  if (phase == Phase::replay && (ends_here() || diverge(ends_here))) {
    if (site->hot.load(std::memory_order_relaxed) != segment) site->hot.store(segment, std::memory_order_release);
    launch(*segment);
    return;
  }
  if (phase == Phase::eager) return;
  publish(std::move(reason_to_end));
  launch(*segment);
}

void Session::finish() {
  if (data_->phase != Phase::eager) data_->end({});
}

void Session::abandon() noexcept {
  auto& data = *data_;
  try {
    if (data.phase == Phase::replay && data.frame.event > 0) data.diverge([] { return false; });
    if (data.phase != Phase::record || data.draft->events.empty()) return;
    data.draft->end = {};
    data.scope.reset();
    data.launch(*data.draft);
  } catch (std::exception const& error) {
    base::log_line("graph", std::format("{}: a capture that was given up could not be run: {}", data.state.options.name, error.what()));
  }
}

}  // namespace tenon::tracer
