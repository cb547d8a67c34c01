// Ops whose results' sizes depend on elements, where nothing may break: what they read is computed ahead.
module tenon.tracer;
import std;
import tenon.base;
import tenon.ir;
import tenon.guards;
import :session;

namespace tenon::tracer {

namespace {
ir::Graph with_output(ir::Graph graph, std::int32_t value) {
  graph.outputs = {value};
  return graph;
}
}  // namespace

// The elements that a slot holds at this place of the stream, in memory of their own; nothing where the recording did not look here.
std::optional<Tensor> Session::Data::computed_ahead(Impl const& impl) {
  bool const recording = phase == Phase::record;
  auto& from = recording ? *draft : *segment;
  auto const event = static_cast<std::int32_t>(recording ? draft->events.size() : frame->event);
  auto const slot =
      static_cast<std::int32_t>(std::ranges::find_if(frame->slots, [&](Ref<Impl> const& held) { return held && held->id == impl.id; }) - frame->slots.begin());
  Segment::Ahead const* found = nullptr;
  {
    std::scoped_lock const lock(from.mutex);
    for (auto const& ahead : from.ahead)
      if (ahead->event == event && ahead->slot == slot) found = ahead.get();
    if (!found && recording) {
      from.ahead.push_back(std::make_unique<Segment::Ahead>(event, slot, state().options.chosen_backend()(with_output(draft->graph, value_of(slot)))));
      found = from.ahead.back().get();
    }
  }
  if (!found) return std::nullopt;
  std::vector<ir::Strided> inputs;
  for (auto const input : from.input_slots) {
    auto const& bound = frame->slots[static_cast<std::size_t>(input)];
    if (!bound) break;  // met later
    inputs.push_back(memory_of(*bound));
  }
  ir::Bindings const hints, &bindings = recording ? hints : frame->bindings;
  Active const off(Rank::capture, nullptr);
  ir::Symbols::Scope const outside(nullptr);
  auto const done = found->run(inputs, bindings);
  auto const& value = done.outputs[0];
  Tensor copy = allocate(ir::contiguous_meta(value.dtype, impl.meta->device, DimList(value.sizes)));
  copy_elements(value, memory_of(*copy.impl()));
  return copy;
}

// Runs the call on operands that are computed ahead; whether it could.
bool Session::Data::run_measured(Call const& call, int below, std::span<Tensor> results) {
  std::vector<Operand> operands(call.operands.begin(), call.operands.end());
  std::vector<Tensor> ahead;
  for (auto& operand : operands) {
    if (!operand.impl || !(operand.impl->storage->pending == self || written.contains(operand.impl->storage.get()))) continue;
    auto computed = computed_ahead(*operand.impl);
    if (!computed && phase == Phase::replay) {  // it was recorded where the operand was no result: recorded anew, in place
      misfit = {};
      (void)diverge([] { return false; });
      if (phase != Phase::record) return false;
      computed = computed_ahead(*operand.impl);
    }
    operand.impl = ahead.emplace_back(std::move(*computed)).impl();
  }
  run_eagerly({call.op, operands, call.attrs, call.at}, below, results);
  return true;
}

}  // namespace tenon::tracer
