module tenon.tracer;
import std;
import tenon.base;
import tenon.ir;
import tenon.guards;
import :session;

namespace tenon::tracer {
using guards::What;

namespace {
// What agrees without a symbol, decided here; guards does the rest.
bool same_number(Scalar const& a, Scalar const& b) {
  return a.node < 0 && a.kind == b.kind && a.whole == b.whole && std::bit_cast<std::uint64_t>(a.real) == std::bit_cast<std::uint64_t>(b.real);
}
// The tensor that argument k was, as the guards name it.
std::string guard_of(Segment const& segment, std::int32_t k) {
  auto const slot = std::ranges::find(segment.slots, k, &Slot::argument);
  return slot == segment.slots.end() ? std::string() : segment.guards.tensors[static_cast<std::size_t>(slot->guard)].source;
}
std::string name_of(Event const& event) { return std::format("{} at {}", event.op ? event.op->name : "a first look at a tensor", base::short_place(event.at)); }
std::string name_of(Break const& end) {
  return end.kind == BreakKind::returned ? "the end of the function" : std::format("a break at {}", base::short_place(end.at));
}
}  // namespace

guards::Mismatch Session::Data::why(Misfit const& misfit) const {
  if (misfit.kind == Misfit::none) return {};
  auto const& segment = *misfit.segment;
  auto const& symbols = segment.graph.symbols;
  auto const at = static_cast<std::size_t>(misfit.at), place = static_cast<std::size_t>(misfit.place);
  auto const* const call = misfit.call;
  auto const stream = [](std::string const& expected, std::string const& actual) {
    return guards::Mismatch{.what = What::stream, .text = std::format("the stream differs: expected {}, actual {}", expected, actual)};
  };
  auto const number = [&](std::string_view what, std::string const& expected, std::string const& actual) {
    return guards::Mismatch{
        .what = What::number,
        .source = std::format("{} at {}", call->op.name, base::short_place(call->at)),
        .text = std::format("{} mismatch in {} at {}: expected {}, actual {}", what, call->op.name, base::short_place(call->at), expected, actual)};
  };
  switch (misfit.kind) {
    case Misfit::none:
      return {};
    case Misfit::settings:
      return guards::mismatch(segment.guards.settings, began_with);
    case Misfit::value:
      return guards::mismatch(segment.guards.values[at], arguments.values[at]);
    case Misfit::count:
      if (misfit.at < 0)
        return {.what = What::count,
                .expected = std::ssize(segment.guards.values),
                .actual = std::ssize(arguments.values),
                .text = std::format("the arguments hold {} values that are guarded, expected {}", arguments.values.size(), segment.guards.values.size())};
      if (std::cmp_less(misfit.at, arguments.tensors.size()))
        return {.what = What::count, .text = std::format("a tensor of the arguments is undefined, where '{}' is expected", guard_of(segment, misfit.at))};
      return {.what = What::count,
              .expected = misfit.at + 1,
              .actual = std::ssize(arguments.tensors),
              .text = std::format("the arguments hold {} tensors, and more than {} are expected", arguments.tensors.size(), misfit.at)};
    case Misfit::tensor: {
      auto const& guard = segment.guards.tensors[at];
      bool const needs_grad = misfit.place == 0 ? misfit.impl->requires_grad || misfit.impl->node : (misfit.place == 2) == guard.requires_grad;
      auto found = guards::mismatch(guard, *misfit.impl->meta, needs_grad, symbols, guards::unbound(symbols));
      if (found) return found;
      if (!marks_hold(guard, *misfit.impl))
        return {
            .what = What::marks, .source = guard.source, .text = std::format("tensor '{}' has a dim marked dynamic that the graph holds fixed", guard.source)};
      return {.what = What::relation,
              .source = guard.source,
              .text = std::format("the sizes of tensor '{}' differ from those of another one that they were equal to", guard.source)};
    }
    case Misfit::proxy:
      return {.what = What::stream, .text = "another tensor of the stream stands where the recording met this one"};
    case Misfit::twice: {
      auto const& source = segment.guards.tensors[at].source;
      return {.what = What::aliasing, .source = source, .text = std::format("tensor '{}' is passed twice and written", source)};
    }
    case Misfit::relation: {
      auto const& constraint = symbols.constraints[at];
      return {.what = What::relation, .text = std::format("sizes: {} does not hold", symbols.to_string(constraint))};
    }
    case Misfit::stream:
      return stream(name_of(segment.events[at]), std::format("{} at {}", call->op.name, base::short_place(call->at)));
    case Misfit::behind:
      return {.what = What::stream,
              .text = std::format("the stream goes on: {} at {} behind the end of the segment", call->op.name, base::short_place(call->at))};
    case Misfit::ending:
      return stream(at < segment.events.size() ? name_of(segment.events[at]) : name_of(segment.end), name_of(*misfit.end));
    case Misfit::operand:
      return number("number", symbols.to_string(segment.events[at].scalars[place]), symbols.to_string(call->operands[place].scalar));
    case Misfit::whole:
      return number("attribute", symbols.to_string(segment.events[at].attrs.ints[place]), std::to_string(call->attrs.ints[place].value));
    case Misfit::real:
      return number("number", symbols.to_string(segment.events[at].attrs.nums[place]), symbols.to_string(call->attrs.nums[place]));
  }
  return {};
}

// A dim that was marked after the graph was made must be open in it.
bool Session::Data::marks_hold(guards::TensorGuard const& guard, Impl const& impl) {
  if (!impl.marks) return true;
  auto const& dims = impl.marks->dims;
  for (std::size_t d = 0; d < dims.size() && d < guard.expected->sizes.size(); ++d)
    if (dims[d].dynamic && guard.expected->sizes[d].node < 0 && impl.meta->sizes[d].value >= 2) return false;
  return true;
}

bool Session::Data::bind_slot(std::int32_t index, Impl& impl, At at) {
  auto const& slot = segment->slots[static_cast<std::size_t>(index)];
  if (!slot.input || impl.storage->pending) return refuse({.kind = Misfit::proxy, .segment = segment});  // what this call itself makes is no input
  if (!written.empty() && written.contains(impl.storage.get())) {
    if (bound(impl)) return refuse({.kind = Misfit::twice, .segment = segment, .at = slot.guard});
    danger = aliasing(at);
    return false;
  }
  auto const& guard = segment->guards.tensors[static_cast<std::size_t>(slot.guard)];
  bool const needs_grad = impl.requires_grad || impl.node;
  bool const same = !guard.symbolic && impl.meta == guard.expected && guard.requires_grad == needs_grad && !impl.marks;
  if (!same && (!guards::holds(guard, impl.meta, needs_grad, segment->graph.symbols, frame->bindings) || !marks_hold(guard, impl)))
    return refuse({.kind = Misfit::tensor, .segment = segment, .at = slot.guard, .impl = &impl});
  if (segment->writes) {
    if (auto const found = input_of.find(impl.storage.get()); found != input_of.end() && bound(impl))
      return refuse({.kind = Misfit::twice, .segment = segment, .at = slot.guard});
    note_input(impl);
  }
  frame->slots[static_cast<std::size_t>(index)] = Ref<Impl>(&impl);
  return true;
}

bool Session::Data::constraints_hold(std::int32_t until) {
  auto const& all = segment->graph.symbols.constraints;
  for (auto& k = frame->constraints; k < until; ++k)
    if (!guards::holds(all[static_cast<std::size_t>(k)], segment->graph.symbols, frame->bindings))
      return refuse({.kind = Misfit::relation, .segment = segment, .at = k});
  return true;
}

bool Session::Data::match_touch(Impl& impl) {
  misfit = {.kind = Misfit::proxy, .segment = segment};
  if (frame->event >= segment->events.size()) return false;
  auto const& event = segment->events[frame->event];
  if (event.op) return false;
  auto const& slot = frame->slots[static_cast<std::size_t>(event.slots[0])];
  if (slot && slot->id != impl.id) return refuse({.kind = Misfit::proxy, .segment = segment});
  if (!slot && !bind_slot(event.slots[0], impl, event.at)) return false;
  if (!constraints_hold(event.constraints)) return false;
  ++frame->event;
  ++replayed_ops;
  return true;
}

// This call's tensor for a result of a matched event: the one of an earlier run, if nobody held it, else a new one.
Tensor Session::Data::replayed_result(Event const& event, Call const& call, std::size_t place) {
  auto& impl = frame->slots[place];
  auto const& symbols = segment->graph.symbols;
  if (call.op.geometry) {
    Impl& parent = *call.operands[0].impl;
    auto& known = frame->views[place];
    if (event.view && impl && known.parent == parent.meta && !segment->symbolic) {
      impl->meta = known.meta;
      impl->storage = parent.storage;
      impl->offset = parent.offset + known.offset;
    } else {
      auto view = view_of(parent, call.op, call.attrs);
      if (view.has_value() != event.view) return {};
      if (view) {
        known = {parent.meta, view->impl()->meta, view->impl()->offset - parent.offset};
        impl = view->ref();
      }
    }
    if (event.view) {
      impl->id = fresh_id();
      return Tensor(impl);
    }
  }
  auto const& recorded = segment->slots[place].meta;
  if (!impl) impl = base::make_ref<Impl>(0, segment->symbolic ? ir::MetaRef() : recorded, 0, base::make_ref<Storage>());
  if (segment->symbolic) {
    auto const agree = [&](Dims const& have, Dims const& want) {
      return std::ranges::equal(have, want, [&](Dim a, Dim b) { return a.value == symbols.evaluate(b, frame->bindings); });
    };
    if (!impl->meta || !agree(impl->meta->sizes, recorded->sizes) || !agree(impl->meta->strides, recorded->strides)) {
      auto fresh = base::make_ref<ir::Meta>(*recorded);
      for (auto& size : fresh->sizes) size = symbols.evaluate(size, frame->bindings);
      for (auto& stride : fresh->strides) stride = symbols.evaluate(stride, frame->bindings);
      impl->meta = fresh;
    }
  }
  impl->id = fresh_id();
  impl->storage->pending = self;
  return Tensor(impl);
}

// Compares one call with the next recorded event and hands out this call's proxy; nothing is executed.
bool Session::Data::match(Call const& call, std::span<Tensor> results, std::span<Ref<Impl> const> adopted) {
  auto& now = *frame;
  auto const number = static_cast<std::int32_t>(now.event);
  if (now.event >= segment->events.size()) return refuse({.kind = Misfit::behind, .segment = segment, .call = &call});
  auto const& event = segment->events[now.event];
  auto const& symbols = segment->graph.symbols;
  auto const misfit_of = [&](Misfit::Kind kind, std::size_t place = 0) {
    return refuse({.kind = kind, .segment = segment, .at = number, .place = static_cast<std::int32_t>(place), .call = &call});
  };
  if (event.op != &call.op || event.slots.size() != call.operands.size()) return misfit_of(Misfit::stream);
  for (std::size_t k = 0; k < call.operands.size(); ++k) {
    auto const& operand = call.operands[k];
    std::int32_t const index = event.slots[k];
    if ((index < 0) != !operand.impl) return misfit_of(Misfit::stream);
    if (index < 0) {
      if (!same_number(event.scalars[k], operand.scalar) && !guards::agrees(event.scalars[k], operand.scalar, symbols, now.bindings))
        return misfit_of(Misfit::operand, k);
    } else if (auto const& slot = now.slots[static_cast<std::size_t>(index)]) {
      if (slot->id != operand.impl->id) return misfit_of(Misfit::stream);
    } else if (!bind_slot(index, *operand.impl, call.at)) {
      return false;
    }
  }
  auto const &want = event.attrs, &have = call.attrs;
  if (want.ints.size() != have.ints.size() || want.nums.size() != have.nums.size() || want.text.data() != have.text.data()) return misfit_of(Misfit::stream);
  for (std::size_t k = 0; k < want.ints.size(); ++k)
    if (want.ints[k].node < 0 ? want.ints[k].value != have.ints[k].value : !guards::agrees(want.ints[k], have.ints[k].value, symbols, now.bindings))
      return misfit_of(Misfit::whole, k);
  for (std::size_t k = 0; k < want.nums.size(); ++k)
    if (!same_number(want.nums[k], have.nums[k]) && !guards::agrees(want.nums[k], have.nums[k], symbols, now.bindings)) return misfit_of(Misfit::real, k);
  if (event.constraints != now.constraints && !constraints_hold(event.constraints)) return false;

  if (is_write(call.op)) {
    Impl& target = *call.operands[0].impl;
    if (auto const found = input_of.find(target.storage.get()); found != input_of.end() && found->second.shared) {
      danger = aliasing(call.at);
      return false;
    }
    if (adopted.empty()) {
      ++target.storage->version;
      written.insert(target.storage.get());
      results[0] = Tensor(Ref<Impl>(&target));
    }
  }
  for (std::int32_t k = 0; k < event.results; ++k) {
    auto const place = static_cast<std::size_t>(event.result) + static_cast<std::size_t>(k);
    if (adopted.empty()) {
      results[static_cast<std::size_t>(k)] = replayed_result(event, call, place);
      if (!results[static_cast<std::size_t>(k)].defined()) return misfit_of(Misfit::stream);
    } else {
      now.slots[place] = adopted[static_cast<std::size_t>(k)];
    }
  }
  ++now.event;
  ++replayed_ops;
  return true;
}

// The matched prefix with this call's tensors and numbers, for another candidate or the recorder.
std::vector<Replayed> Session::Data::replayed() const {
  std::vector<Replayed> calls;
  auto const& symbols = segment->graph.symbols;
  for (std::size_t n = 0; n < frame->event; ++n) {
    auto const& event = segment->events[n];
    Replayed call{event.op, {}, event.attrs, {}, event.at, event.module};
    for (std::size_t k = 0; k < event.slots.size(); ++k)
      call.operands.push_back(event.slots[k] < 0 ? Operand{nullptr, symbols.evaluate(event.scalars[k], frame->bindings)}
                                                 : Operand{frame->slots[static_cast<std::size_t>(event.slots[k])].get(), {}});
    for (auto& number : call.attrs.ints) number = symbols.evaluate(number, frame->bindings);
    for (auto& number : call.attrs.nums) number = symbols.evaluate(number, frame->bindings);
    for (std::int32_t k = 0; k < event.results; ++k) call.results.push_back(frame->slots[static_cast<std::size_t>(event.result) + static_cast<std::size_t>(k)]);
    if (event.op && is_write(*event.op)) call.results.emplace_back(call.operands[0].impl);
    calls.push_back(std::move(call));
  }
  return calls;
}

}  // namespace tenon::tracer
