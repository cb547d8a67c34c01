// Memory under several names: what a recorded stream can't say of it.
module tenon.tracer;
import std;
import tenon.base;
import tenon.ir;
import tenon.guards;
import :session;

namespace tenon::tracer {

Break aliasing(At at) {
  return {BreakKind::aliasing, "inputs share memory and one of them is written", "pass separate tensors, or write before the others are read", at};
}

// A write that the recorded stream could not express: into memory that another bound input shares, or a read of such memory after a write. Replay
// finds the same where it binds inputs.
std::optional<Break> Session::Data::hazard(Call const& call) {
  bool const write = is_write(call.op);
  if (!write && written.empty()) return std::nullopt;
  for (std::size_t k = 0; k < call.operands.size(); ++k) {
    Impl* const impl = call.operands[k].impl;
    if (!impl) continue;
    auto const slot = slot_of.find(impl->id);
    bool const known = slot != slot_of.end();
    if (write && k == 0 && known && through_overlap(slot->second))
      return Break{BreakKind::aliasing, "a view of memory that shows elements several times is written", "clone what was expanded before it is written",
                   call.at};
    if (impl->storage->pending) continue;
    if (!known && written.contains(impl->storage.get())) return aliasing(call.at);
    if (write && k == 0) {
      auto const found = input_of.find(impl->storage.get());
      if (found != input_of.end() && (found->second.shared || !known)) return aliasing(call.at);
    }
  }
  return std::nullopt;
}
// Whether a slot is a view of one that shows elements several times: no value of that one says what a write does.
bool Session::Data::through_overlap(std::int32_t slot) const {
  for (slot = origins[static_cast<std::size_t>(slot)].parent; slot >= 0; slot = origins[static_cast<std::size_t>(slot)].parent)
    if (auto const& meta = *frame->slots[static_cast<std::size_t>(slot)]->meta; ir::overlaps(meta.sizes, meta.strides)) return true;
  return false;
}
void Session::Data::note_input(Impl& impl) {
  auto const [at, fresh] = input_of.try_emplace(impl.storage.get(), Owner{impl.id});
  if (!fresh && at->second.id != impl.id) at->second.shared = true;
}
bool Session::Data::started() const { return phase == Phase::record ? !draft->events.empty() : frame->event > 0; }
bool Session::Data::bound(Impl const& impl) const {
  if (phase == Phase::record) return slot_of.contains(impl.id);
  return std::ranges::any_of(frame->slots, [&](Ref<Impl> const& slot) { return slot && slot->id == impl.id; });
}

}  // namespace tenon::tracer
