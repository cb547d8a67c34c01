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

// A write whose source is another tensor over the same memory that holds its elements already.
bool overlapping(Call const& call) {
  if (!is_write(call.op)) return false;
  Impl const &target = *call.operands[0].impl, &source = *call.operands[1].impl;
  return target.storage == source.storage && target.id != source.id && !target.storage->pending;
}
// Error if the call is not legal.
void check_legal(Call const& call) {
  ir::Symbols::Scope const plain(nullptr);
  (void)inferred(call);
}
// A call that no graph holds, because the sizes of its results depend on elements.
std::optional<Break> measured(Call const& call) {
  try {
    check_legal(call);
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

thread_local std::unique_ptr<Session::Data> Session::Data::idle;
Session::Session(State& state) : data_(Data::idle ? std::move(Data::idle) : std::make_unique<Data>()) {
  ensure(!this_session, "a capture is opened inside another one");
  data_->self = this;
  data_->at_work = &state;
}
Arguments& Session::arguments() { return data_->arguments; }
void Session::begin() {
  auto& data = *data_;
  this_session = this;
  data.active.emplace(Rank::capture, this);
  data.site = &data.state().root;
  data.state().calls.fetch_add(1, std::memory_order_relaxed);
  data.begin();
}
Session::~Session() {
  auto& data = *data_;
  if (data.replayed_ops) data.state().replayed_ops.fetch_add(data.replayed_ops, std::memory_order_relaxed);
  if (data.recorded_ops) data.state().recorded_ops.fetch_add(data.recorded_ops, std::memory_order_relaxed);
  data.clear();
  this_session = nullptr;
  Data::idle = std::move(data_);
}
void Session::Data::clear() {
  scope.reset();
  active.reset();
  forget_inputs();
  arguments.tensors.clear();
  arguments.values.clear();
  arguments.own = {};
  frame = nullptr;
  if (phase == Phase::record || draft) {
    draft = nullptr;
    slot_of.clear();
    argument_of.clear();
    argument_metas.clear();
    own_names.clear();
    module_calls.clear();
    names_of_tensors.clear();
    names_of_values.clear();
  }
  phase = Phase::eager;
  segment = nullptr;
  misfit = {};
  reason = {};
  danger.reset();
  if (cause.kind != BreakKind::returned) cause = {};
  pure.reset();
  missed = over_limit = unrepeatable = sizes_read = false;
  replayed_ops = recorded_ops = 0;
}

bool Session::fullgraph() const { return data_->state().options.fullgraph && data_->phase != Phase::eager; }

void Session::Data::forget_inputs() {
  if (!input_of.empty()) input_of.clear();
  if (!written.empty()) written.clear();
}

// Chooses a segment of the site by its guards, the one that served last first; none: records.
void Session::Data::begin() {
  began_with = settings();
  forget_inputs();
  misfit = {};
  Segment* const hot = site->hot.load(std::memory_order_acquire);
  if (hot && enter(*hot)) return;
  Misfit const first = misfit;
  for (Segment* candidate = site->first.load(std::memory_order_acquire); candidate; candidate = candidate->next.load(std::memory_order_acquire))
    if (candidate != hot && enter(*candidate)) return;
  if (hot) misfit = first;
  shadow = hot ? hot : site->first.load(std::memory_order_acquire);
  if (state().options.pure && site == &state().root)  // they are alive now
    for (auto const& given : arguments.tensors) argument_metas.push_back(given.impl ? given.impl->meta : ir::MetaRef());
  start_recording();
}

bool Session::Data::refuse(Misfit why) {
  misfit = why;
  return false;
}

bool Session::Data::enter(Segment& candidate, bool begun) {
  if (candidate.guards.settings != began_with) return refuse({.kind = Misfit::settings, .segment = &candidate});
  bool const at_entry = site == &state().root;
  if (at_entry && (candidate.guards.values.size() != arguments.values.size())) return refuse({.kind = Misfit::count, .segment = &candidate, .at = -1});
  if (at_entry)
    for (std::size_t k = 0; k < candidate.guards.values.size(); ++k)
      if (candidate.guards.values[k].expected != arguments.values[k])
        return refuse({.kind = Misfit::value, .segment = &candidate, .at = static_cast<std::int32_t>(k)});
  auto fresh = std::unique_ptr<Frame>(candidate.spare.exchange(nullptr, std::memory_order_acquire));
  if (!fresh) {
    fresh = std::make_unique<Frame>();
    fresh->slots.resize(candidate.slots.size());
    fresh->views.resize(candidate.slots.size());
  }
  bool const symbols = !candidate.graph.symbols.names().empty();
  if (symbols) fresh->bindings = guards::unbound(candidate.graph.symbols);
  Misfit found{.segment = &candidate};
  for (std::size_t k = 0; at_entry && !begun && k < candidate.input_slots.size() && found.kind == Misfit::none; ++k) {  // a body that runs may have let them go
    auto const& slot = candidate.slots[static_cast<std::size_t>(candidate.input_slots[k])];
    if (slot.argument < 0) continue;
    if (std::cmp_greater_equal(slot.argument, arguments.tensors.size()) || !arguments.tensors[static_cast<std::size_t>(slot.argument)].impl) {
      found.kind = Misfit::count, found.at = slot.argument;
      break;
    }
    auto const& [given, id, needs_grad] = arguments.tensors[static_cast<std::size_t>(slot.argument)];
    Impl const& impl = *given;
    auto const& guard = candidate.guards.tensors[static_cast<std::size_t>(slot.guard)];
    bool const as_then = slot.needed_grad == needs_grad;  // the body may set it before it uses the tensor
    if (!guards::holds(guard, impl.meta, as_then == guard.requires_grad, candidate.graph.symbols, fresh->bindings) || !marks_hold(guard, impl))
      found.kind = Misfit::tensor, found.at = slot.guard, found.place = as_then ? 2 : 1, found.impl = &impl;
  }
  if (found.kind != Misfit::none) {
    delete candidate.spare.exchange(fresh.release(), std::memory_order_acq_rel);
    return refuse(found);
  }
  if (symbols) fresh->bindings = guards::unbound(candidate.graph.symbols);  // bound again, in the order of the stream
  fresh->event = 0;
  fresh->constraints = 0;
  frame = std::move(fresh);
  segment = &candidate;
  phase = Phase::replay;
  return true;
}

// The prefix matched, what comes next does not: another segment of the site that matches all of it takes over, or recording goes on in place.
// Returns whether a segment was found for which `fits` also holds.
bool Session::Data::diverge(std::function<bool()> const& fits) {
  auto const calls = replayed();
  Segment* const failed = segment;
  Misfit const first = misfit;
  std::unique_ptr<Frame> const kept = std::move(frame);  // holds the operands of `calls`
  for (Segment* candidate = site->first.load(std::memory_order_acquire); candidate; candidate = candidate->next.load(std::memory_order_acquire)) {
    if (candidate == failed || !enter(*candidate, true)) continue;
    forget_inputs();
    bool matches = true;
    for (auto const& call : calls) {
      matches = call.op ? match({*call.op, call.operands, call.attrs, call.at}, {}, call.results) : match_touch(*call.operands[0].impl);
      if (!matches) break;
      if (call.op && is_write(*call.op)) written.insert(call.operands[0].impl->storage.get());
    }
    if (matches && fits()) {
      misfit = {};
      return true;
    }
    danger.reset();
  }
  misfit = first;
  segment = failed;
  shadow = failed;
  forget_inputs();
  start_recording();
  if (auto const op = std::ranges::find_if(calls, [](Replayed const& call) { return call.op != nullptr; }); op != calls.end())
    over_limit = at_limit({*op->op, op->operands, op->attrs, op->at});
  for (auto const& call : calls)
    if (call.op) {
      record({*call.op, call.operands, call.attrs, call.at}, {}, call.results, call.module);
      if (is_write(*call.op)) written.insert(call.operands[0].impl->storage.get());
    } else {
      slot_for(*call.operands[0].impl, call.at);
    }
  if (over_limit) {  // the prefix is owed; the rest of this call runs eagerly
    scope.reset();
    launch(*draft);
    phase = Phase::eager;
  }
  return false;
}

// Runs a call between two events: what its body looks at is no part of the stream.
void Session::Data::run_eagerly(Call const& call, int below, std::span<Tensor> results) {
  struct Restore {
    Phase& phase;
    Phase was;
    ~Restore() { phase = was; }
  } const restore{phase, std::exchange(phase, Phase::eager)};
  Active const off(Rank::capture, nullptr);
  ir::Symbols::Scope const outside(nullptr);
  dispatch(call, below, results);
}

void Session::bind(Call const& call, int below, std::span<Tensor> results) {
  auto& data = *data_;
  if (call.op.measured && data.phase != Phase::eager)
    if (auto const why = measured(call)) {  // at once, as soon as its operands are there
      if (fullgraph() && data.run_measured(call, below, results)) return;
      for (auto const& operand : call.operands)
        if (operand.impl) make_readable(*operand.impl, *why);
      return data.run_eagerly(call, below, results);
    }
  if (call.op.kind == ir::Kind::host && !is_write(call.op)) {  // an op that a user made for the host
    split({BreakKind::host_op, std::format("{} runs on the host: no graph holds it", call.op.name), "call it outside of the compiled function", call.at});
    return data.run_eagerly(call, below, results);
  }
  while (data.phase != Phase::eager) {
    if (overlapping(call)) {  // no stream can say it: between two segments, at once
      if (data.started() || fullgraph()) split(aliasing(call.at));
      break;
    }
    if (data.phase == Phase::replay) {
      auto const matches = [&] { return data.match(call, results, {}); };
      if (matches()) return;
      if (data.danger) {
        split(*std::exchange(data.danger, std::nullopt));
        continue;
      }
      check_legal(call);  // an illegal call is no event: the stream goes on behind whoever catches the error
      if (data.diverge(matches)) return;
      if (data.phase == Phase::replay && data.danger) split(*std::exchange(data.danger, std::nullopt));
      continue;
    }
    if (auto const why = data.hazard(call)) {
      split(*why);
      continue;
    }
    data.record(call, results, {}, data.module_path());
    if (data.phase == Phase::record) return;
  }
  dispatch(call, below, results);
}

ir::MetaRef Session::meta_of(Impl& impl, At at) {
  auto& data = *data_;
  while (data.phase == Phase::replay) {
    bool const due = data.frame->event < data.segment->events.size() && !data.segment->events[data.frame->event].op;
    if (!due || data.bound(impl) || data.match_touch(impl)) return impl.meta;
    if (data.danger)
      split(*std::exchange(data.danger, std::nullopt));
    else if (data.diverge([&] { return data.match_touch(impl); }))
      return impl.meta;
  }
  // Looking at a tensor makes it an input; one whose memory was written under another name must be met in the next segment.
  if (data.phase == Phase::record && !data.slot_of.contains(impl.id) && !impl.storage->pending && data.written.contains(impl.storage.get())) {
    split(aliasing(at));
    return meta_of(impl, at);
  }
  if (data.phase == Phase::record) return data.draft->slots[static_cast<std::size_t>(data.slot_for(impl, at))].meta;
  return impl.meta;
}

bool Session::meta_is_own() const {
  auto const& data = *data_;
  if (data.phase != Phase::replay) return data.phase == Phase::eager;
  return data.frame->event >= data.segment->events.size() || data.segment->events[data.frame->event].op;
}

std::optional<At> Session::made_at(Impl const& impl) const {
  auto const& data = *data_;
  if (data.phase == Phase::eager) return std::nullopt;
  auto const& events = data.phase == Phase::replay ? data.segment->events : data.draft->events;
  std::size_t const count = data.phase == Phase::replay ? data.frame->event : events.size();
  for (std::size_t k = count; k-- > 0;) {
    for (std::int32_t r = 0; r < events[k].results; ++r) {
      auto const& slot = data.frame->slots[static_cast<std::size_t>(events[k].result) + static_cast<std::size_t>(r)];
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
  auto& state = data.state();
  if (state.options.fullgraph) fail("{}", message(state.options.name, reason));
  data.end(reason);
  if (data.phase == Phase::eager) return;
  Site* site = nullptr;
  bool fresh = false;
  {
    std::scoped_lock const lock(state.mutex);
    auto& found = state.sites[{reason.at.file, reason.at.line, reason.at.column, reason.kind}];
    fresh = !found;
    if (fresh) {
      found = std::make_unique<Site>();
      found->number = state.breaks.size();
      state.breaks.push_back({reason});
    }
    ++state.breaks[found->number].times;
    site = found.get();
  }
  if (fresh) base::log("breaks", "{}: {} at {}", state.options.name, reason.reason, base::short_place(reason.at));
  data.site = site;
  data.cause = std::move(reason);
  data.reason = {};
  data.begin();
}

// Ends the segment with `reason`: the one being replayed if it ends so too, else another that does, else what has been recorded.
void Session::Data::end(Break const& reason_to_end) {
  auto const ends_here = [&] {
    if (frame->event == segment->events.size() && same_place(segment->end, reason_to_end))
      return constraints_hold(static_cast<std::int32_t>(segment->graph.symbols.constraints.size()));
    return refuse({.kind = Misfit::ending, .segment = segment, .at = static_cast<std::int32_t>(frame->event), .end = &reason_to_end});
  };
  if (phase == Phase::replay && (ends_here() || diverge(ends_here))) {
    if (site->hot.load(std::memory_order_relaxed) != segment) site->hot.store(segment, std::memory_order_release);
    launch(*segment);
    return;
  }
  if (phase == Phase::eager) return;
  if (auto const broken = marked.empty() ? std::string() : broken_mark(); !broken.empty()) {  // what was computed stays right
    scope.reset();
    launch(*draft);
    phase = Phase::eager;
    fail("{}", broken);
  }
  publish(reason_to_end);
  launch(*segment);
}

void Session::finish() {
  static Break const returned{};
  if (data_->phase != Phase::eager) data_->end(returned);
}

void Session::abandon() noexcept {
  auto& data = *data_;
  try {
    if (!data.frame) return;
    data.misfit = {};
    if (data.phase == Phase::replay && data.frame->event > 0) data.diverge([] { return false; });
    if (data.phase != Phase::record || data.draft->events.empty()) return;
    data.draft->end = {};
    data.scope.reset();
    data.launch(*data.draft);
  } catch (std::exception const& error) {
    base::log_line("graph", std::format("{}: a capture that was given up could not be run: {}", data.state().options.name, error.what()));
  }
}

}  // namespace tenon::tracer
