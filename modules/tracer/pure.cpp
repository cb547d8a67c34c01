// Functions that promise to depend on their arguments alone: a call whose guards hold runs the graph and not the body.
module tenon.tracer;
import std;
import tenon.base;
import tenon.ir;
import tenon.guards;
import :session;

namespace tenon::tracer {

namespace {
// Whether a host that asks can't tell them apart.
bool same_look(ir::Meta const& a, ir::Meta const& b) {
  return &a == &b || (a.dtype == b.dtype && a.device == b.device && a.sizes == b.sizes && a.strides == b.strides);
}
}  // namespace

// What a later call needs to do without the body; null where it can't: another break or write, random streams, parameters of the host, gradients,
// tensors that the body made on the host, sizes that the host read while they are symbols.
std::shared_ptr<Recipe const> Session::Data::recipe_for(Break const& end) const {
  auto const& names = draft->graph.symbols.names();
  bool const alone = site == &state().root && end.kind == BreakKind::returned && !draft->writes && !unrepeatable;
  bool const sizes_only = std::ranges::all_of(names, [](std::string const& name) { return name[0] == 's'; });
  bool const same_every_time = std::ranges::none_of(draft->events, [](Event const& event) {
    return event.op && (event.op->kind == ir::Kind::random || event.op->kind == ir::Kind::host || event.op->kind == ir::Kind::collective);
  });
  bool const seen_at_entry = argument_metas.size() == arguments.tensors.size();
  bool const history = std::ranges::any_of(pure->leaves, [](Ref<Impl> const& leaf) { return leaf && leaf->node; });
  if (!alone || !seen_at_entry || !sizes_only || !same_every_time || history || (sizes_read && !names.empty())) return nullptr;
  auto recipe = std::make_shared<Recipe>();
  recipe->result = pure->result;
  for (auto const& leaf : pure->leaves) {
    if (!leaf) {
      recipe->leaves.push_back({});
    } else if (auto const slot = slot_of.find(leaf->id); slot != slot_of.end()) {
      recipe->leaves.push_back({.slot = slot->second});
    } else if (auto const argument = argument_of.find(leaf->id); argument != argument_of.end()) {
      recipe->leaves.push_back({.argument = argument->second});
    } else {
      return nullptr;
    }
  }
  for (auto const index : draft->input_slots) {
    auto const place = static_cast<std::size_t>(index);
    recipe->captured.push_back(draft->slots[place].argument < 0 ? frame->slots[place] : Ref<Impl>());
  }
  for (auto const& [impl, id, needs_grad] : arguments.tensors) recipe->recorded.push_back({id, argument_metas.at(recipe->recorded.size()), needs_grad});
  for (auto const index : draft->input_slots)  // these are guarded
    if (auto const k = draft->slots[static_cast<std::size_t>(index)].argument; k >= 0) recipe->recorded[static_cast<std::size_t>(k)].meta = nullptr;
  recipe->verified = std::make_unique<std::atomic<bool>[]>(arguments.tensors.size());
  recipe->maker.assign(draft->slots.size(), -1);
  for (std::size_t n = 0; n < draft->events.size(); ++n)
    if (draft->events[n].view) recipe->maker[static_cast<std::size_t>(draft->events[n].result)] = static_cast<std::int32_t>(n);
  return recipe;
}

// The tensor of a slot in this call: an input, a view of another slot, or one that the launch will fill.
Tensor Session::Data::made_for(std::int32_t slot, std::vector<std::int32_t>& made) {
  auto const place = static_cast<std::size_t>(slot);
  auto& impl = frame->slots[place];
  if (segment->slots[place].input || std::ranges::find(made, slot) != made.end()) return Tensor(impl);
  made.push_back(slot);
  auto const& symbols = segment->graph.symbols;
  if (auto const maker = segment->recipe->maker[place]; maker >= 0) {
    auto const& event = segment->events[static_cast<std::size_t>(maker)];
    auto attrs = event.attrs;
    for (auto& number : attrs.ints) number = symbols.evaluate(number, frame->bindings);
    Tensor const parent = made_for(event.slots[0], made);
    auto view = view_of(*parent.impl(), *event.op, attrs);
    base::ensure(view.has_value(), "a view of a pure function became a copy");
    impl = view->ref();
    return *view;
  }
  auto meta = base::make_ref<ir::Meta>(*segment->slots[place].meta);
  for (auto& size : meta->sizes) size = symbols.evaluate(size, frame->bindings);
  for (auto& stride : meta->strides) stride = symbols.evaluate(stride, frame->bindings);
  auto storage = base::make_ref<Storage>();
  storage->pending = self;
  impl = base::make_ref<Impl>(fresh_id(), ir::MetaRef(meta), 0, std::move(storage));
  return Tensor(impl);
}

// The body ran under replay: an argument that is no other tensor of this call, and was met where the recording met it, is one.
void Session::Data::verify() const {
  auto const& recipe = segment->recipe;
  if (!recipe || recipe->leaves.size() != pure->leaves.size() || frame->event != segment->events.size()) return;
  auto const given = [&](std::int32_t k) { return arguments.tensors[static_cast<std::size_t>(k)].impl; };
  std::unordered_map<Impl const*, int> seen;
  for (auto const& argument : arguments.tensors)
    if (argument.impl) ++seen[argument.impl];
  for (auto const& held : recipe->captured)
    if (held) ++seen[held.get()];
  std::vector<bool> met(arguments.tensors.size(), true);
  for (auto const index : segment->input_slots)
    if (auto const k = segment->slots[static_cast<std::size_t>(index)].argument; k >= 0)
      met[static_cast<std::size_t>(k)] = frame->slots[static_cast<std::size_t>(index)].get() == given(k);
  for (std::size_t n = 0; n < recipe->leaves.size(); ++n) {
    auto const& [slot, k] = recipe->leaves[n];
    if (slot >= 0 && frame->slots[static_cast<std::size_t>(slot)] != pure->leaves[n]) return;  // the result is put together in another way
    if (k >= 0 && pure->leaves[n].get() != given(k)) return;
    if (slot < 0 && k < 0 && pure->leaves[n]) return;
  }
  for (std::size_t k = 0; k < met.size(); ++k)
    if (met[k] && arguments.tensors[k].impl && arguments.tensors[k].id != recipe->recorded[k].id && seen[arguments.tensors[k].impl] == 1)
      recipe->verified[k].store(true);
}

std::shared_ptr<void const> Session::pure_result(std::vector<Tensor>& leaves) {
  auto& data = *data_;
  if (data.phase != Phase::replay || !data.segment->recipe) return nullptr;
  auto const& recipe = *data.segment->recipe;
  auto const& segment = *data.segment;
  // The recording can't tell an argument from a captured tensor, or from another argument, that is the same one: where an argument is another tensor
  // now, the body must have run once with it.
  bool fits = data.arguments.tensors.size() == recipe.recorded.size();
  for (std::size_t k = 0; fits && k < recipe.recorded.size(); ++k) {
    auto const& [impl, id, needs_grad] = data.arguments.tensors[k];
    auto const& then = recipe.recorded[k];
    fits = id == then.id || (id && then.id && recipe.verified[k].load(std::memory_order_relaxed));
    if (then.meta && id) fits = fits && needs_grad == then.needs_grad && same_look(*impl->meta, *then.meta);
  }
  if (!fits) return nullptr;
  for (std::size_t k = 0; fits && k < segment.input_slots.size(); ++k) {
    auto const index = segment.input_slots[k];
    auto const argument = segment.slots[static_cast<std::size_t>(index)].argument;
    Impl* const impl = argument < 0 ? recipe.captured[k].get() : data.arguments.tensors[static_cast<std::size_t>(argument)].impl;
    fits = data.bind_slot(index, *impl, {});
  }
  if (!fits || !data.constraints_hold(static_cast<std::int32_t>(segment.graph.symbols.constraints.size()))) {
    (void)data.enter(*data.segment);  // from the start, with the body
    return nullptr;
  }
  std::vector<std::int32_t> made;
  for (auto const& leaf : recipe.leaves) {
    if (leaf.slot >= 0)
      leaves.push_back(data.made_for(leaf.slot, made));
    else if (leaf.argument >= 0)
      leaves.emplace_back(Ref<Impl>(data.arguments.tensors[static_cast<std::size_t>(leaf.argument)].impl));
    else
      leaves.emplace_back();
  }
  auto const result = recipe.result;
  data.state().pure_hits.fetch_add(1, std::memory_order_relaxed);
  data.launch(*data.segment);
  return result;
}

void Session::finish_pure(std::vector<Ref<Impl>> leaves, std::shared_ptr<void const> result) {
  data_->pure.emplace(std::move(leaves), std::move(result));
  if (data_->phase == Phase::replay) data_->verify();
  finish();
}

void Session::unrepeatable() { data_->unrepeatable = true; }
void Session::sizes_read() { data_->sizes_read = true; }

}  // namespace tenon::tracer
