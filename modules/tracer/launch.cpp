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

// The part of a segment's graph that computes the given slots and every written input, in that order.
ir::Graph with_outputs(Segment const& segment, std::span<std::int32_t const> outputs) {
  ir::Graph graph = segment.graph;
  for (auto slot : outputs) graph.outputs.push_back(segment.slots[static_cast<std::size_t>(slot)].final_value);
  for (auto const& slot : segment.slots)
    if (slot.written) graph.outputs.push_back(slot.final_value);
  return graph;
}
}  // namespace

Runner reference_backend(ir::Graph const& graph) {
  auto lowered = std::make_shared<ir::Graph>(ir::decompose(ir::eliminate_dead_code(graph)));
  return [lowered](std::span<ir::Strided const> inputs, ir::Bindings const& bindings) { return ir::evaluate(*lowered, inputs, bindings); };
}

// Keeps the recording as a segment of its site, unless another thread has kept an equal one since.
void Session::Data::publish(Break reason_to_end) {
  scope.reset();
  auto& made = *draft;
  made.end = std::move(reason_to_end);
  made.cause = cause;
  made.symbolic = !made.graph.symbols.names().empty();
  for (std::size_t k = 0; k < made.slots.size(); ++k)
    if (made.slots[k].root == static_cast<std::int32_t>(k)) made.slots[k].final_value = current[k];
  double const seconds = seconds_since(began);
  state.record_seconds.fetch_add(seconds);
  std::scoped_lock const lock(state.mutex);
  for (Segment* other = site->first.load(std::memory_order_acquire); other && other != newest; other = other->next.load(std::memory_order_acquire))
    if (other->events.size() == made.events.size() && other->guards.tensors.size() == made.guards.tensors.size() &&
        to_string(other->graph) == to_string(made.graph) && other->end.kind == made.end.kind && other->end.at.line == made.end.at.line) {
      segment = other;
      return;
    }
  made.number = static_cast<int>(state.segments.size());
  made.record_seconds = seconds;
  made.next.store(site->first.load());
  for (auto const& slot : made.slots)
    if (slot.argument >= 0) site->seen[slot.argument].push_back(ir::values(slot.meta->sizes));
  if (newest) {
    state.recompiles.push_back({reason, made.number, 0, site == &state.root ? (made.events.empty() ? At{} : made.events[0].at) : cause.at});
    if (base::log_enabled("recompiles"))
      base::log_line("recompiles", std::format("{}: recompiled: {}; a hit with: {}", state.options.name, reason.text, counterfactual(made, state.options)));
  }
  segment = draft.release();
  state.segments.push_back(segment);
  site->first.store(segment, std::memory_order_release);
  site->hot.store(segment, std::memory_order_release);
  if (base::log_enabled("guards"))
    base::log_line("guards",
                   std::format("{}: segment {}\n{}", state.options.name, segment->number, guards::to_string(segment->guards, segment->graph.symbols)));
  if (base::log_enabled("graph")) base::log_line("graph", std::format("{}: segment {}\n{}", state.options.name, segment->number, to_string(segment->graph)));
}

// Computes what somebody other than the frame still holds, fills it in, and copies written inputs back.
void Session::Data::launch(Segment& from) {
  if (&from == draft.get())
    for (std::size_t k = 0; k < from.slots.size(); ++k)
      if (from.slots[k].root == static_cast<std::int32_t>(k)) from.slots[k].final_value = current[k];
  // Dead proxies go first, newest first, with their history, so that what only they held is dead as well.
  std::vector<std::int32_t> outputs;
  for (std::size_t k = frame.slots.size(); k-- > 0;) {
    auto const& slot = from.slots[k];
    auto& impl = frame.slots[k];
    if (!impl || slot.input) continue;
    bool const needed = impl.use_count() > 1 || (slot.root == static_cast<std::int32_t>(k) && impl->storage.use_count() > 1);
    if (!needed) {
      impl->node = nullptr;
      bool const again = phase == Phase::replay && !impl->requires_grad && !impl->grad && (impl->view || impl->storage.use_count() == 1);
      if (again && impl->view) impl->storage = nullptr;
      if (again) frame.proxies[k] = std::move(impl);
      impl = nullptr;
    } else if (slot.root == static_cast<std::int32_t>(k)) {
      outputs.push_back(static_cast<std::int32_t>(k));
    }
  }
  std::ranges::reverse(outputs);
  bool const writes = from.writes;
  if (!outputs.empty() || writes) {
    Runner const* run = nullptr;  // entries are never removed
    {
      std::scoped_lock const lock(from.mutex);
      auto found = std::ranges::find(from.lowered, outputs, [](auto const& l) { return l->outputs; });
      if (found == from.lowered.end()) {
        auto const start = Clock::now();
        if (!from.lowered.empty()) ++state.relowered;
        from.lowered.push_back(std::make_unique<Segment::Lowered>(outputs, state.options.backend(with_outputs(from, outputs))));
        found = from.lowered.end() - 1;
        double const seconds = seconds_since(start);
        state.compile_seconds.fetch_add(seconds);
        from.lower_seconds.fetch_add(seconds);
      }
      run = &(*found)->run;
    }
    auto const start = Clock::now();
    std::vector<ir::Strided> inputs;
    inputs.reserve(from.input_slots.size());
    for (auto index : from.input_slots) inputs.push_back(memory_of(*frame.slots[static_cast<std::size_t>(index)]));
    ir::Bindings const hints, &bindings = phase == Phase::record ? hints : frame.bindings;  // a recording runs with its hints
    ir::Evaluated done;
    {
      Active const off(Rank::capture, nullptr);
      ir::Symbols::Scope const outside(nullptr);
      done = (*run)(inputs, bindings);
    }
    ++state.launches;
    for (std::size_t k = 0; k < outputs.size(); ++k) {
      auto& storage = *frame.slots[static_cast<std::size_t>(outputs[k])]->storage;
      auto const& value = done.outputs[k];
      bool const own = done.storage[k] && done.storage[k].use_count() == 1 && value.data == done.storage[k]->data() &&
                       base::is_contiguous(value.sizes, value.strides);  // held by this result alone
      if (own) {
        storage.buffer = std::move(done.storage[k]);
      } else {
        storage.buffer = base::make_ref<base::Buffer>(base::numel(value.sizes) * base::bytes_of(value.dtype));
        copy_elements(value, {storage.buffer->data(), value.dtype, value.sizes, base::contiguous_strides(value.sizes)});
      }
      storage.pending = nullptr;
    }
    std::size_t next = outputs.size();
    std::vector<std::pair<ir::Strided, ir::Strided>> back;  // values that lie in inputs are copied out before anything is written
    std::vector<base::Ref<base::Buffer>> kept;
    for (std::size_t k = 0; writes && k < from.slots.size(); ++k) {
      if (!from.slots[k].written) continue;
      auto value = done.outputs[next];
      if (!done.storage[next]) {
        kept.push_back(base::make_ref<base::Buffer>(base::numel(value.sizes) * base::bytes_of(value.dtype)));
        ir::Strided const copy{kept.back()->data(), value.dtype, value.sizes, base::contiguous_strides(value.sizes)};
        copy_elements(value, copy);
        value = copy;
      }
      back.emplace_back(value, memory_of(*frame.slots[k]));
      ++next;
    }
    for (auto const& [value, memory] : back) copy_elements(value, memory);
    state.launch_seconds.fetch_add(seconds_since(start));
  }
  leave(from);
}

void Session::Data::leave(Segment& from) {
  if (phase == Phase::replay) {
    for (auto& slot : frame.slots) slot = nullptr;
    auto left = std::make_unique<Frame>(std::move(frame));
    std::unique_ptr<Frame> const older{from.spare.exchange(left.release(), std::memory_order_acq_rel)};
  }
  frame = {};
}

}  // namespace tenon::tracer
