module tenon.tracer;
import std;
import tenon.base;
import tenon.ir;
import tenon.guards;
import :session;

namespace tenon::tracer {
using Clock = std::chrono::steady_clock;

namespace {
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The part of a segment's graph that computes the given slots, then every written input in the order of the inputs.
ir::Graph with_outputs(Segment const& segment, std::span<std::int32_t const> outputs) {
  ir::Graph graph = segment.graph;
  for (auto slot : outputs) graph.outputs.push_back(segment.slots[static_cast<std::size_t>(slot)].final_value);
  for (std::size_t k = 0; k < segment.input_slots.size(); ++k) {
    auto const& slot = segment.slots[static_cast<std::size_t>(segment.input_slots[k])];
    if (slot.written) graph.outputs.push_back(slot.final_value), graph.mutated.push_back(static_cast<int>(k));
  }
  return graph;
}
}  // namespace

Runner reference_backend(ir::Graph const& graph) {
  auto lowered = std::make_shared<ir::Graph>(ir::decompose(ir::eliminate_dead_code(graph)));
  return [lowered](std::span<ir::Strided const> inputs, ir::Bindings const& bindings) { return ir::evaluate(*lowered, inputs, bindings); };
}

Runner eager_backend(ir::Graph const& graph) {
  auto kept = std::make_shared<ir::Graph>(ir::decompose(graph));
  return [kept](std::span<ir::Strided const> inputs, ir::Bindings const& bindings) { return ir::evaluate(*kept, inputs, bindings); };
}

namespace {
constinit std::atomic<Backend (*)(Mode)> default_choice{nullptr};
}
Backend default_backend(Mode mode) {
  auto const choose = default_choice.load();
  return choose ? choose(mode) : reference_backend;
}
void set_default_backend(Backend (*choose)(Mode mode)) { default_choice = choose; }

// Keeps the recording as a segment of its site, unless another thread has kept an equal one since.
void Session::Data::publish(Break const& reason_to_end) {
  scope.reset();
  auto& made = *draft;
  made.end = reason_to_end;
  made.cause = cause;
  made.symbolic = !made.graph.symbols.names().empty();
  for (std::size_t k = 0; k < made.slots.size(); ++k)
    if (made.slots[k].root == static_cast<std::int32_t>(k)) made.slots[k].final_value = current[k];
  double const seconds = seconds_since(began);
  state().record_seconds.fetch_add(seconds);
  std::unique_lock lock(state().mutex);
  for (Segment* other = site->first.load(std::memory_order_acquire); other; other = other->next.load(std::memory_order_acquire))
    if (other->events.size() == made.events.size() && other->guards.tensors.size() == made.guards.tensors.size() &&
        to_string(other->graph) == to_string(made.graph) &&
        guards::to_string(other->guards, other->graph.symbols) == guards::to_string(made.guards, made.graph.symbols) && other->end.kind == made.end.kind &&
        other->end.at.line == made.end.at.line) {
      std::scoped_lock const both(other->mutex);
      std::ranges::move(made.ahead, std::back_inserter(other->ahead));
      segment = other;
      return;
    }
  made.number = static_cast<int>(state().segments.size());
  made.record_seconds = seconds;
  made.next.store(site->first.load());
  for (auto const& given : arguments.tensors)
    if (site == &state().root) made.argument_slots.push_back(slot_of.contains(given.id) ? slot_of.at(given.id) : -1);
  for (auto const& slot : made.slots)
    if (slot.argument >= 0) site->seen[slot.argument].push_back(ir::values(slot.meta->sizes));
  if (newest) state().recompiles.push_back({reason, made.number, 0, site == &state().root ? (made.events.empty() ? At{} : made.events[0].at) : cause.at});
  if (pure) made.recipe = recipe_for(reason_to_end);
  segment = draft.release();
  state().segments.push_back(segment);
  site->first.store(segment, std::memory_order_release);
  site->hot.store(segment, std::memory_order_release);
  lock.unlock();  // who reads the log may ask for the report
  if (newest && base::log_enabled("recompiles"))
    base::log_line("recompiles", std::format("{}: recompiled: {}; a hit with: {}", state().options.name, reason.text, counterfactual(*segment)));
  if (base::log_enabled("guards"))
    base::log_line("guards",
                   std::format("{}: segment {}\n{}", state().options.name, segment->number, guards::to_string(segment->guards, segment->graph.symbols)));
  if (base::log_enabled("graph")) base::log_line("graph", std::format("{}: segment {}\n{}", state().options.name, segment->number, to_string(segment->graph)));
}

// Finds what somebody other than the frame still holds: `outputs` are memory to fill, `escaped` all results that leave. Dead results go first, newest
// first, with their history, so that what only they held is dead as well; they stay in their slots for the next run.
void Session::Data::sort_results(Segment const& from) {
  auto& now = *frame;
  now.outputs.clear();
  now.escaped.clear();
  bool const again = phase == Phase::replay;
  for (std::size_t k = now.slots.size(); k-- > 0;)  // somebody may hold a result's memory, as a detached loss does, but nobody its history
    if (auto& impl = now.slots[k]; impl && !from.slots[k].input && impl->node && impl.use_count() == 1) impl->node = nullptr;
  for (std::size_t k = now.slots.size(); k-- > 0;) {
    auto& impl = now.slots[k];
    if (!impl || from.slots[k].input) continue;
    auto const number = static_cast<std::int32_t>(k);
    bool const root = from.slots[k].root == number;
    if (impl.use_count() == 1 && impl->node) impl->node = nullptr;  // its rule may read the result itself, and hold it by that
    if (impl.use_count() > 1 || (root && impl->storage.use_count() > 1)) {
      now.escaped.push_back(number);
      if (root) now.outputs.push_back(number);
      continue;
    }
    if (!again || impl->requires_grad || impl->grad || impl->marks)
      impl = nullptr;
    else if (!root)
      impl->storage = nullptr;
  }
  std::ranges::reverse(now.outputs);
}

// The graph lowered for these outputs: the one that ran last, another that ran before, or a new one.
Segment::Lowered const& Session::Data::lowered_for(Segment& from) {
  auto const& outputs = frame->outputs;
  if (auto* const hot = from.hot.load(std::memory_order_acquire); hot && hot->outputs == outputs) return *hot;
  std::scoped_lock const lock(from.mutex);
  auto found = std::ranges::find(from.lowered, outputs, [](auto const& l) { return l->outputs; });
  if (found == from.lowered.end()) {
    auto const start = Clock::now();
    if (!from.lowered.empty()) ++state().relowered;
    from.lowered.push_back(std::make_unique<Segment::Lowered>(outputs, state().options.chosen_backend()(with_outputs(from, outputs))));
    found = from.lowered.end() - 1;
    double const seconds = seconds_since(start);
    state().compile_seconds.fetch_add(seconds);
    from.lower_seconds.fetch_add(seconds);
  }
  from.hot.store(found->get(), std::memory_order_release);  // entries are never removed
  return **found;
}

// The graph's inputs as memory; where a tensor has the Meta of the last run, only its place is new.
std::span<ir::Strided const> Session::Data::inputs_of(Segment const& from) {
  auto& now = *frame;
  now.inputs.resize(from.input_slots.size());
  now.input_metas.resize(from.input_slots.size());
  for (std::size_t k = 0; k < from.input_slots.size(); ++k) {
    Impl const& impl = *now.slots[static_cast<std::size_t>(from.input_slots[k])];
    if (now.input_metas[k] == impl.meta && !impl.storage->pending) {
      now.inputs[k].data = impl.storage->buffer->data() + impl.offset * base::bytes_of(impl.meta->dtype);
    } else {
      now.inputs[k] = memory_of(impl);
      now.input_metas[k] = impl.meta;
    }
  }
  return now.inputs;
}

namespace {
// The memory of a result: its own if it alone holds it row by row, else a copy.
Ref<base::Buffer> kept_memory(ir::Strided const& value, Ref<base::Buffer>& storage) {
  if (storage && storage.use_count() == 1 && value.data == storage->data() && base::is_contiguous(value.sizes, value.strides)) return std::move(storage);
  auto copy = base::make_ref<base::Buffer>(base::numel(value.sizes) * base::bytes_of(value.dtype));
  copy_elements(value, {copy->data(), value.dtype, value.sizes, base::contiguous_strides(value.sizes)});
  return copy;
}
}  // namespace

// Computes what is still held, fills it in, and copies written inputs back.
void Session::Data::launch(Segment& from) {
  if (&from == draft.get())
    for (std::size_t k = 0; k < from.slots.size(); ++k)
      if (from.slots[k].root == static_cast<std::int32_t>(k)) from.slots[k].final_value = current[k];
  sort_results(from);
  auto const& outputs = frame->outputs;
  if (!outputs.empty() || from.writes) {
    auto const& run = lowered_for(from).run;
    auto const count = state().launches.fetch_add(1, std::memory_order_relaxed);
    bool const timed = count < 16 || count % 16 == 0;  // two readings of the clock cost as much as ten ops
    auto const start = timed ? Clock::now() : Clock::time_point();
    auto const inputs = inputs_of(from);
    ir::Bindings const hints, &bindings = phase == Phase::record ? hints : frame->bindings;  // a recording runs with its hints
    ir::Evaluated done;
    {
      Active const off(Rank::capture, nullptr);
      ir::Symbols::Scope const outside(nullptr);
      done = run(inputs, bindings);
    }
    for (std::size_t k = 0; k < outputs.size(); ++k) {
      auto& storage = *frame->slots[static_cast<std::size_t>(outputs[k])]->storage;
      storage.buffer = kept_memory(done.outputs[k], done.storage[k]);
      storage.pending = nullptr;
    }
    if (from.writes) write_back(from, done);
    if (timed) state().launch_seconds.fetch_add(seconds_since(start) * (count < 16 ? 1 : 16));
  }
  leave(from);
}

// New elements of written inputs, which stand behind the outputs; values that lie in inputs are copied out before anything is written.
void Session::Data::write_back(Segment const& from, ir::Evaluated const& done) {
  std::size_t next = frame->outputs.size();
  std::vector<std::pair<ir::Strided, ir::Strided>> back;
  std::vector<base::Ref<base::Buffer>> kept;
  for (auto const slot : from.input_slots) {
    if (!from.slots[static_cast<std::size_t>(slot)].written) continue;
    auto value = done.outputs[next];
    auto const memory = memory_of(*frame->slots[static_cast<std::size_t>(slot)]);
    if (value.data == memory.data && value.strides == memory.strides) {  // the backend wrote in place
      ++next;
      continue;
    }
    if (!done.storage[next]) {
      kept.push_back(base::make_ref<base::Buffer>(base::numel(value.sizes) * base::bytes_of(value.dtype)));
      ir::Strided const copy{kept.back()->data(), value.dtype, value.sizes, base::contiguous_strides(value.sizes)};
      copy_elements(value, copy);
      value = copy;
    }
    back.emplace_back(value, memory);
    ++next;
  }
  for (auto const& [value, memory] : back) copy_elements(value, memory);
}

void Session::Data::leave(Segment& from) {
  if (phase == Phase::replay) {
    for (auto const slot : frame->escaped) frame->slots[static_cast<std::size_t>(slot)] = nullptr;
    for (auto const slot : from.input_slots) frame->slots[static_cast<std::size_t>(slot)] = nullptr;
    delete from.spare.exchange(frame.release(), std::memory_order_acq_rel);
  }
  frame = nullptr;
}

}  // namespace tenon::tracer
