// What is met for the first time while a call is recorded: its guard, and which of its sizes and strides stay open.
module tenon.tracer;
import std;
import tenon.base;
import tenon.ir;
import tenon.guards;
import :session;

namespace tenon::tracer {
using ir::Meta;

// The Meta that the shadowed segment recorded in this place of the stream; null if it met another tensor there.
Meta const* Session::Data::earlier_meta(Slot const& slot, std::int32_t index) const {
  if (!shadow || std::cmp_greater_equal(index, shadow->slots.size())) return nullptr;
  auto const& earlier = shadow->slots[static_cast<std::size_t>(index)];
  return earlier.input && earlier.argument == slot.argument ? earlier.meta.get() : nullptr;
}

// Which sizes vary: all of at least 2, or those that an earlier segment or call saw with another value; of an argument that came with another rank, all.
std::vector<bool> Session::Data::varying(Impl const& impl, Slot const& slot, std::int32_t index) {
  auto const& sizes = impl.meta->sizes;
  std::vector<bool> varies(sizes.size(), state().options.dynamic == Dynamic::always);
  if (state().options.dynamic != Dynamic::automatic) return varies;
  auto const compare = [&](Dims const& earlier) {
    if (earlier.size() != sizes.size() && slot.argument >= 0) varies.assign(sizes.size(), true);
    if (earlier.size() != sizes.size()) return;
    for (std::size_t d = 0; d < sizes.size(); ++d) varies[d] = varies[d] || earlier[d].node >= 0 || earlier[d].value != sizes[d].value;
  };
  if (auto const* const earlier = earlier_meta(slot, index)) compare(earlier->sizes);
  if (slot.argument >= 0) {
    std::scoped_lock const lock(state().mutex);
    for (auto const& seen : site->seen[slot.argument]) compare(DimList(seen));
  }
  return varies;
}

// Strides as expressions of the sizes where the memory is dense in some order of the dims; else one that was another number before is a parameter.
// Nobody steps along a dim of size 1, so its stride is as it is.
Dims Session::Data::open_strides(Dims const& sizes, Meta const& now, Meta const* earlier) {
  auto& symbols = draft->graph.symbols;
  auto const& strides = now.strides;
  if (base::is_contiguous(ir::values(sizes), ir::values(strides))) return ir::contiguous_meta(now.dtype, now.device, sizes).strides;
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t d) { return strides[d].value; });
  Dims dense = strides;
  Dim step = 1;
  bool fits = true;
  for (auto const d : order) {
    if (sizes[d].value == 1) continue;
    fits = fits && step.value == strides[d].value;
    dense[d] = step;
    step = symbols.mul(step, sizes[d]);
  }
  if (fits) return dense;
  Dims open = strides;
  bool const known = earlier && earlier->strides.size() == strides.size() && state().options.dynamic == Dynamic::automatic;
  for (std::size_t d = 0; known && d < strides.size(); ++d)
    if (sizes[d].value != 1 && strides[d].value > 1 && earlier->strides[d] != strides[d]) open[d] = symbols.index_symbol(strides[d].value);
  return open;
}

std::int32_t Session::Data::input_slot(Impl& impl, At at) {
  auto const index = static_cast<std::int32_t>(draft->slots.size());
  auto& symbols = draft->graph.symbols;
  Slot slot;
  slot.input = true;
  slot.guard = static_cast<std::int32_t>(draft->guards.tensors.size());
  slot.root = index;
  if (auto const found = argument_of.find(impl.id); found != argument_of.end()) {
    slot.argument = found->second;
    slot.needed_grad = arguments.tensors[static_cast<std::size_t>(slot.argument)].needs_grad;
  }

  auto const varies = varying(impl, slot, index);
  auto const mark = [&](std::size_t d) { return impl.marks && d < impl.marks->dims.size() ? impl.marks->dims[d] : Marks::Mark{}; };
  auto const& sizes = impl.meta->sizes;
  Dims symbolic = sizes;
  bool any = false;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (mark(d).dynamic && sizes[d].value >= 2) {  // a symbol of its own, never shared with an equal size
      any = true;
      symbolic[d] = marked_symbol(mark(d), slot.guard, static_cast<int>(d), sizes[d].value, at);
      continue;
    }
    if (!varies[d] || mark(d).fixed || sizes[d].value < 2) continue;
    any = true;
    symbolic[d] = Dim(sizes[d].value);
    // Where all sizes are symbols from the start, equal ones share one; sizes that were seen to vary need not vary together.
    for (int number = 0; state().options.dynamic == Dynamic::always && std::cmp_less(number, symbols.names().size()); ++number)
      if (symbols.names()[static_cast<std::size_t>(number)][0] == 's' && symbols.whole_symbol(number).value == sizes[d].value &&
          std::ranges::find(marked, number, &Marked::symbol) == marked.end())
        symbolic[d] = symbols.whole_symbol(number);
    if (symbolic[d].node < 0) symbolic[d] = symbols.symbol(sizes[d].value);
  }
  slot.meta = impl.meta;
  auto const* const earlier = earlier_meta(slot, index);
  any = any || (earlier && ir::values(earlier->strides) != ir::values(impl.meta->strides));
  if (any) {
    auto meta = base::make_ref<ir::Meta>(*impl.meta);
    meta->sizes = symbolic;
    meta->strides = open_strides(symbolic, *impl.meta, earlier);
    slot.meta = ir::MetaRef(meta);
    draft->symbolic = true;
  }
  auto const own = own_names.find(impl.id);
  bool const named = slot.argument >= 0 || own != own_names.end();
  auto const source = slot.argument >= 0 ? name_at(names_of_tensors, static_cast<std::size_t>(slot.argument))
                      : named            ? own->second
                                         : std::format("captured at {}", base::short_place(at));
  draft->guards.tensors.push_back({source, slot.meta, impl.requires_grad || impl.node, any, at});
  slot.value = draft->graph.input(*slot.meta, named ? source : std::format("captured{}", index));
  draft->input_slots.push_back(index);
  slot_of.emplace(impl.id, index);
  note_input(impl);
  current.push_back(slot.value);
  versions.push_back(0);
  origins.emplace_back();
  draft->slots.push_back(std::move(slot));
  frame->slots.emplace_back(&impl);
  return index;
}

std::int32_t Session::Data::slot_for(Impl& impl, At at) {
  if (auto const found = slot_of.find(impl.id); found != slot_of.end()) return found->second;
  auto const index = input_slot(impl, at);
  Event event;
  event.slots.push_back(index);
  event.scalars.push_back({});
  event.constraints = static_cast<std::int32_t>(draft->graph.symbols.constraints.size());
  event.at = at;
  draft->events.push_back(std::move(event));
  return index;
}

}  // namespace tenon::tracer
