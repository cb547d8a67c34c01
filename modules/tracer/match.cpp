module tenon.tracer;
import std;
import tenon.base;
import tenon.ir;
import tenon.guards;
import :session;

namespace tenon::tracer {

namespace {
using guards::What;
guards::Mismatch differs(Event const& event, Call const& call) {
  return {.what = What::stream,
          .text = std::format("the stream differs: expected {} at {}, actual {} at {}", event.op ? event.op->name : "a first look at a tensor",
                              base::short_place(event.at), call.op.name, base::short_place(call.at))};
}
guards::Mismatch number_differs(std::string_view what, Event const& event, Call const& call, std::string const& expected, std::string const& actual) {
  return {.what = What::number,
          .source = std::string(call.op.name),
          .text = std::format("{} mismatch in {} at {}: expected {}, actual {}", what, event.op->name, base::short_place(call.at), expected, actual)};
}
}  // namespace

bool Session::Data::bind_slot(std::int32_t index, Impl& impl) {
  auto const& slot = segment->slots[static_cast<std::size_t>(index)];
  if (!slot.input || impl.storage->pending) {  // what this call itself makes is no input
    reason = {.what = What::stream, .text = "another tensor of the stream stands where the recording met this one"};
    return false;
  }
  auto const& guard = segment->guards.tensors[static_cast<std::size_t>(slot.guard)];
  bool const needs_grad = impl.requires_grad || impl.node;
  if (!guards::holds(guard, impl.meta, needs_grad, segment->graph.symbols, frame.bindings)) {
    reason = guards::mismatch(guard, *impl.meta, needs_grad, segment->graph.symbols, guards::unbound(segment->graph.symbols));
    return false;
  }
  if (segment->writes) {
    if (bound(impl)) {
      reason = {.what = What::aliasing, .source = guard.source, .text = std::format("tensor '{}' is passed twice and written", guard.source)};
      return false;
    }
    note_input(impl);
  }
  frame.slots[static_cast<std::size_t>(index)] = Ref<Impl>(&impl);
  return true;
}

bool Session::Data::constraints_hold(std::int32_t until) {
  auto const& all = segment->graph.symbols.constraints;
  std::int32_t const from = frame.event == 0 ? 0 : segment->events[frame.event - 1].constraints;
  for (std::int32_t k = from; k < until; ++k)
    if (!guards::holds(all[static_cast<std::size_t>(k)], segment->graph.symbols, frame.bindings)) {
      reason = {.what = What::relation, .text = std::format("sizes: {} does not hold", segment->graph.symbols.to_string(all[static_cast<std::size_t>(k)]))};
      return false;
    }
  return true;
}

bool Session::Data::match_touch(Impl& impl) {
  if (frame.event >= segment->events.size()) return false;
  auto const& event = segment->events[frame.event];
  if (event.op) return false;
  auto const& slot = frame.slots[static_cast<std::size_t>(event.slots[0])];
  if (slot ? slot->id != impl.id : !bind_slot(event.slots[0], impl)) return false;
  if (!constraints_hold(event.constraints)) return false;
  ++frame.event;
  ++replayed_ops;
  return true;
}

// Compares one call with the next recorded event and hands out this call's proxy; nothing is executed.
bool Session::Data::match(Call const& call, std::span<Tensor> results, std::span<Ref<Impl> const> adopted) {
  if (frame.event >= segment->events.size()) {
    reason = {.what = What::stream,
              .text = std::format("the stream goes on: {} at {} behind the end of the segment", call.op.name, base::short_place(call.at))};
    return false;
  }
  auto const& event = segment->events[frame.event];
  auto const& symbols = segment->graph.symbols;
  auto const refuse = [&] {
    reason = differs(event, call);
    return false;
  };
  if (event.op != &call.op || event.slots.size() != call.operands.size()) return refuse();
  for (std::size_t k = 0; k < call.operands.size(); ++k) {
    auto const& operand = call.operands[k];
    std::int32_t const index = event.slots[k];
    if ((index < 0) != !operand.impl) return refuse();
    if (index < 0) {
      if (!guards::agrees(event.scalars[k], operand.scalar, symbols, frame.bindings)) {
        reason = number_differs("number", event, call, symbols.to_string(event.scalars[k]), symbols.to_string(operand.scalar));
        return false;
      }
    } else if (auto const& slot = frame.slots[static_cast<std::size_t>(index)]) {
      if (slot->id != operand.impl->id) return refuse();
    } else if (!bind_slot(index, *operand.impl)) {
      return false;
    }
  }
  auto const &want = event.attrs, &have = call.attrs;
  if (want.ints.size() != have.ints.size() || want.nums.size() != have.nums.size() || want.text.data() != have.text.data()) return refuse();
  for (std::size_t k = 0; k < want.ints.size(); ++k)
    if (!guards::agrees(want.ints[k], have.ints[k].value, symbols, frame.bindings)) {
      reason = number_differs("attribute", event, call, symbols.to_string(want.ints[k]), std::to_string(have.ints[k].value));
      return false;
    }
  for (std::size_t k = 0; k < want.nums.size(); ++k)
    if (!guards::agrees(want.nums[k], have.nums[k], symbols, frame.bindings)) {
      reason = number_differs("number", event, call, symbols.to_string(want.nums[k]), symbols.to_string(have.nums[k]));
      return false;
    }
  if (!constraints_hold(event.constraints)) return false;

  if (&call.op == &copy_row) {
    Impl& target = *call.operands[0].impl;
    if (adopted.empty()) {
      ++target.storage->version;
      written.insert(target.storage.get());
      results[0] = Tensor(Ref<Impl>(&target));
    }
  } else if (!adopted.empty()) {
    for (std::size_t k = 0; k < adopted.size(); ++k) frame.slots[static_cast<std::size_t>(event.result) + k] = adopted[k];
  }
  for (std::int32_t k = 0; adopted.empty() && k < event.results; ++k) {
    auto const place = static_cast<std::size_t>(event.result) + static_cast<std::size_t>(k);
    auto const& slot = segment->slots[place];
    Tensor result;
    auto& proxy = frame.proxies[place];
    if (call.op.geometry) {
      Impl& parent = *call.operands[0].impl;
      auto& known = frame.views[place];
      if (event.view && proxy && known.parent == parent.meta && !segment->symbolic) {
        proxy->id = fresh_id();
        proxy->meta = known.meta;
        proxy->storage = parent.storage;
        proxy->offset = parent.offset + known.offset;
        result = Tensor(std::exchange(proxy, nullptr));
      } else {
        auto view = view_of(parent, call.op, call.attrs);
        if (view.has_value() != event.view) return refuse();
        if (view) {
          known = {parent.meta, view->impl()->meta, view->impl()->offset - parent.offset};
          result = std::move(*view);
        }
      }
    }
    if (!result.defined() && proxy && !segment->symbolic) {
      proxy->id = fresh_id();
      proxy->storage->pending = &self;
      result = Tensor(std::exchange(proxy, nullptr));
    }
    if (!result.defined()) {
      auto meta = slot.meta;
      if (segment->symbolic) {
        auto fresh = base::make_ref<ir::Meta>(*meta);
        for (auto& size : fresh->sizes) size = symbols.evaluate(size, frame.bindings);
        for (auto& stride : fresh->strides) stride = symbols.evaluate(stride, frame.bindings);
        meta = fresh;
      }
      auto storage = base::make_ref<Storage>();
      storage->pending = &self;
      result = Tensor(base::make_ref<Impl>(fresh_id(), std::move(meta), 0, std::move(storage)));
    }
    frame.slots[place] = result.ref();
    results[static_cast<std::size_t>(k)] = std::move(result);
  }
  ++frame.event;
  ++replayed_ops;
  return true;
}

// The matched prefix with this call's tensors and numbers, for another candidate or the recorder.
std::vector<Replayed> Session::Data::replayed() const {
  std::vector<Replayed> calls;
  auto const& symbols = segment->graph.symbols;
  for (std::size_t n = 0; n < frame.event; ++n) {
    auto const& event = segment->events[n];
    Replayed call{event.op, {}, event.attrs, {}, event.at, event.module};
    for (std::size_t k = 0; k < event.slots.size(); ++k)
      call.operands.push_back(event.slots[k] < 0 ? Operand{nullptr, symbols.evaluate(event.scalars[k], frame.bindings)}
                                                 : Operand{frame.slots[static_cast<std::size_t>(event.slots[k])].get(), {}});
    for (auto& number : call.attrs.ints) number = symbols.evaluate(number, frame.bindings);
    for (auto& number : call.attrs.nums) number = symbols.evaluate(number, frame.bindings);
    for (std::int32_t k = 0; k < event.results; ++k) call.results.push_back(frame.slots[static_cast<std::size_t>(event.result) + static_cast<std::size_t>(k)]);
    if (event.op == &copy_row) call.results.emplace_back(call.operands[0].impl);
    calls.push_back(std::move(call));
  }
  return calls;
}

}  // namespace tenon::tracer
