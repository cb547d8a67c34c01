module tenon.tracer;
import std;
import tenon.base;
import tenon.ir;
import tenon.guards;
import :session;

namespace tenon::tracer {
using base::fail;
using ir::ScalarKind;
using Type = Parameter::Type;

// The body may have changed its arguments before they are named.
std::string name_at(std::span<std::string const> names, std::size_t k) { return k < names.size() ? names[k] : std::format("argument {}", k); }

void Session::Data::start_recording() {
  phase = Phase::record;
  if (!std::exchange(missed, true)) ++state().misses;
  over_limit = false;
  draft = std::make_unique<Segment>();
  draft->guards.settings = began_with;
  draft->graph.name = state().options.name;
  if (site == &state().root) {
    if (names_of_values.empty()) names_of_values = arguments.names(false);
    for (std::size_t k = 0; k < arguments.values.size(); ++k) draft->guards.values.push_back({name_at(names_of_values, k), arguments.values[k]});
  }
  scope.reset();
  scope.emplace(&draft->graph.symbols);
  slot_of.clear();
  input_of.clear();
  origins.clear();
  current.clear();
  versions.clear();
  frame = std::make_unique<Frame>();
  reason = why(misfit);
  newest = site->first.load(std::memory_order_acquire);
  began = std::chrono::steady_clock::now();
  module_calls.clear();
  marked.clear();
  if (own_names.empty() && arguments.own.second)
    for (auto const& [name, tensor] : arguments.own.second(arguments.own.first))
      if (tensor.defined()) own_names.try_emplace(tensor.impl()->id, name);
  if (!argument_of.empty()) return;
  names_of_tensors = arguments.names(true);
  for (std::size_t k = 0; k < arguments.tensors.size(); ++k)
    if (arguments.tensors[k].id) argument_of.try_emplace(arguments.tensors[k].id, static_cast<std::int32_t>(k));
}

// Whether the site holds as many segments that begin with this call as it may; with fullgraph that is an error.
bool Session::Data::at_limit(Call const& call) {
  int same = 0;
  for (Segment const* s = site->first.load(std::memory_order_acquire); s; s = s->next.load(std::memory_order_acquire)) {
    auto const first = std::ranges::find_if(s->events, [](Event const& e) { return e.op != nullptr; });
    same += first != s->events.end() && first->op == &call.op && first->at.line == call.at.line && first->at.column == call.at.column;
  }
  constexpr std::size_t most = 256;  // of a function
  std::scoped_lock const lock(state().mutex);
  bool const here = same >= state().options.recompile_limit;
  if (!here && state().segments.size() < most) return false;
  auto const limit = here ? static_cast<std::size_t>(state().options.recompile_limit) : most;
  if (state().options.fullgraph)
    fail("{}: fullgraph: the recompile limit of {} is reached; the last state differed in: {}", state().options.name, limit, reason.text);
  auto const known = std::ranges::find_if(state().limits, [&](Limit const& l) { return l.at.line == call.at.line && l.at.column == call.at.column; });
  if (known == state().limits.end())
    base::log("recompiles", "{}: the recompile limit of {} is reached, new states run eagerly; the last one differed in: {}", state().options.name, limit,
              reason.text);
  auto& reached = known == state().limits.end() ? state().limits.emplace_back(call.at) : *known;
  reached.reason = reason;
  ++reached.calls;
  ++state().eager_calls;
  return true;
}

// The graph value of a slot now: a view is derived anew from its parent when the memory was written since.
std::int32_t Session::Data::value_of(std::int32_t index) {
  auto const place = static_cast<std::size_t>(index);
  auto const root = static_cast<std::size_t>(draft->slots[place].root);
  auto& origin = origins[place];
  if (origin.parent >= 0 && origin.version != versions[root]) {
    current[place] = draft->graph.add(*origin.op, {ir::Input{value_of(origin.parent), {}}}, *origin.attrs, origin.at);
    origin.version = versions[root];
  }
  return current[place];
}

Dim Session::Data::generalised(Type type, Dim const* earlier, Dim now) {
  auto& symbols = draft->graph.symbols;
  now = symbols.own(now);
  if (type == Type::counter) return symbols.index_symbol(now.value);
  bool const may_vary = type == Type::size || type == Type::sizes;
  if (now.node >= 0 && may_vary) return now;
  now = Dim(now.value);
  bool const special = now.value < 0 || now.value == std::numeric_limits<std::int64_t>::max();
  if (!may_vary || special || !earlier || state().options.dynamic == Dynamic::never) return now;
  if (earlier->node < 0 && earlier->value == now.value) return now;
  draft->guessed.push_back(static_cast<std::int32_t>(draft->events.size()));
  for (int number = 0; std::cmp_less(number, symbols.names().size()); ++number)  // a guess: a wrong one costs a segment, never a result
    if (symbols.names()[static_cast<std::size_t>(number)][0] == 's' && symbols.whole_symbol(number).value == now.value) return symbols.whole_symbol(number);
  return symbols.index_symbol(now.value);
}
Scalar Session::Data::generalised(Scalar const* earlier, Scalar const& now) {
  auto& symbols = draft->graph.symbols;
  if (now.kind == ScalarKind::none || now.kind == ScalarKind::boolean) return now;
  if (now.kind == ScalarKind::whole) {
    Dim const dim = symbols.own(Dim(now.whole, now.node, now.owner));
    if (dim.node >= 0) return Scalar(dim);
    Dim const before = earlier && earlier->kind == now.kind ? Dim(earlier->whole, earlier->node, earlier->owner) : dim;
    if (dim.value < 0 && before.value != dim.value && state().options.dynamic != Dynamic::never) return Scalar(symbols.index_symbol(dim.value));
    return Scalar(generalised(Type::size, &before, dim));
  }
  if (!earlier || earlier->kind != now.kind || state().options.dynamic == Dynamic::never) return Scalar(now.real);
  return earlier->node < 0 && same_value(*earlier, Scalar(now.real)) ? Scalar(now.real) : symbols.real_symbol(now.real);
}

// Attributes as recorded: what may vary and did, compared with an earlier segment, becomes a parameter.
ir::Attrs Session::Data::generalised(ir::Attrs const* earlier, Call const& call) {
  ir::Attrs result;
  result.text = call.attrs.text;
  if (earlier && earlier->ints.size() != call.attrs.ints.size()) earlier = nullptr;
  std::size_t at = 0, num_at = 0;
  auto const next = [&](Type type) {
    result.ints.push_back(generalised(type, earlier ? &earlier->ints[at] : nullptr, call.attrs.ints[at]));
    ++at;
  };
  for (auto const& parameter : ir::signature(call.op).parameters) switch (parameter.type) {
      case Type::tensor:
      case Type::tensors:
      case Type::text:
        break;
      case Type::real: {
        auto const& now = call.attrs.nums[num_at];
        bool const may_vary = earlier && num_at < earlier->nums.size() && !(parameter.fixed && now.kind == ScalarKind::real);
        result.nums.push_back(generalised(may_vary ? &earlier->nums[num_at] : nullptr, now));
        ++num_at;
        break;
      }
      case Type::reals: {  // fixed: they decide sizes
        auto const length = call.attrs.ints[at].value;
        next(Type::whole);
        for (std::int64_t k = 0; k < length; ++k) result.nums.push_back(generalised(nullptr, call.attrs.nums[num_at++]));
        break;
      }
      case Type::wholes:
      case Type::sizes: {
        auto const length = call.attrs.ints[at].value;
        next(Type::whole);
        for (std::int64_t k = 0; k < length; ++k) next(parameter.type);
        break;
      }
      default:
        next(parameter.type);
    }
  return result;
}

// A slot for one result of a call: a view over its operand's memory, or a proxy that the launch will fill.
Ref<Impl> Session::Data::new_result(Event& event, Call const& call, std::int32_t value, Ref<Impl> result) {
  auto const index = static_cast<std::int32_t>(draft->slots.size());
  auto meta = draft->graph.values[static_cast<std::size_t>(value)].meta;
  bool const adopted = static_cast<bool>(result);
  if (!result && call.op.geometry)
    if (auto view = view_of(*call.operands[0].impl, call.op, call.attrs)) result = view->ref();
  bool const copied = call.op.geometry && (adopted ? result->storage != call.operands[0].impl->storage : !result);
  if (copied) meta = ir::MetaRef(new ir::Meta(ir::contiguous_meta(meta->dtype, meta->device, meta->sizes)));  // a value may lie otherwise than its tensor
  if (!result) {
    auto plain = meta;
    auto const symbolic = [](Dim dim) { return dim.node >= 0; };
    if (std::ranges::any_of(meta->sizes, symbolic) || std::ranges::any_of(meta->strides, symbolic)) {
      auto numbers = base::make_ref<ir::Meta>(*meta);
      for (auto& size : numbers->sizes) size = Dim(size.value);
      for (auto& stride : numbers->strides) stride = Dim(stride.value);
      plain = ir::MetaRef(numbers);
    }
    auto storage = base::make_ref<Storage>();
    storage->pending = self;
    result = base::make_ref<Impl>(fresh_id(), std::move(plain), 0, std::move(storage));
  }
  event.view = call.op.geometry && result->storage == call.operands[0].impl->storage;
  std::int32_t const root = event.view ? draft->slots[static_cast<std::size_t>(event.slots[0])].root : index;
  draft->slots.push_back({.root = root, .value = value, .meta = meta});
  current.push_back(value);
  versions.push_back(0);
  origins.push_back(event.view
                        ? Origin{event.slots[0], &call.op, std::make_shared<ir::Attrs const>(event.attrs), versions[static_cast<std::size_t>(root)], call.at}
                        : Origin{});
  slot_of.emplace(result->id, index);
  frame->slots.push_back(result);
  return result;
}

// The path of the layer whose call runs now, by the name of the first tensor that it holds: "blocks.0.mlp", "fc1@1" for a second call of fc1.
std::string_view Session::Data::module_path() {
  auto const* const layer = ModuleScope::innermost();
  if (!layer) return {};
  if (layer->reader == draft.get()) return layer->path;
  layer->reader = draft.get();
  layer->path = {};
  auto const [impl, inside] = layer->first_tensor(layer->layer);
  if (!impl) return {};
  std::string_view name;
  if (auto const argument = argument_of.find(impl->id); argument != argument_of.end())
    name = std::cmp_less(argument->second, names_of_tensors.size()) ? std::string_view(names_of_tensors[static_cast<std::size_t>(argument->second)])
                                                                    : std::string_view();
  else if (auto const own = own_names.find(impl->id); own != own_names.end())
    name = own->second;
  if (name.size() <= inside.size() + 1 || !name.ends_with(inside)) return {};
  name.remove_suffix(inside.size() + 1);
  auto const root = [](std::string_view text) { return text.starts_with("args[") ? text.substr(0, text.find("].") + 1) : std::string_view{}; };
  bool const several = std::ranges::any_of(names_of_tensors, [&](auto const& other) { return !root(other).empty() && root(other) != root(name); });
  if (!several) name.remove_prefix(std::min(root(name).size() + (root(name).empty() ? 0 : 1), name.size()));
  std::string path;
  for (char c : name)
    if (c != ']') path += c == '[' ? '.' : c;
  if (path.empty() || (!several && path.starts_with("args."))) return {};
  if (int const calls = module_calls[path]++) path += std::format("@{}", calls);
  return layer->path = ir::intern(path);
}

// A write gives its slot another value, and through a view each parent up to the memory's own slot.
void Session::Data::record_write(Event& event, Call const& call, std::int32_t content) {
  auto& graph = draft->graph;
  ir::Meta target = *draft->slots[static_cast<std::size_t>(event.slots[0])].meta;
  target.strides = call.operands[0].impl->meta->strides;  // the slot's may be those of a value that was written into its parent
  auto const meta = [&](std::int32_t value) -> ir::Meta const& { return *graph.values[static_cast<std::size_t>(value)].meta; };
  (void)ir::infer(call.op, std::array<ir::Meta const*, 2>{&target, &meta(content)}, std::array<Scalar, 2>{}, {});
  if (meta(content).dtype != target.dtype) content = graph.add(ir::ops::to, {{content, {}}}, ir::Attrs{}.with(target.dtype), call.at);
  if (meta(content).device != target.device) content = graph.add(ir::ops::to_device, {{content, {}}}, ir::Attrs{}.with(target.device), call.at);
  if (ir::values(meta(content).sizes) != ir::values(target.sizes))
    content = graph.add(ir::ops::expand, {{content, {}}}, ir::Attrs{}.with(target.sizes), call.at);
  std::vector<std::pair<std::size_t, std::int32_t>> now;
  auto slot = event.slots[0];
  for (auto const* origin = &origins[static_cast<std::size_t>(slot)]; origin->parent >= 0; origin = &origins[static_cast<std::size_t>(slot)]) {
    now.emplace_back(slot, content);
    if (base::numel(ir::values(meta(content).sizes)) > 0)  // else nothing changes
      content = ir::write_through(graph, {*origin->op, *origin->attrs}, value_of(origin->parent), content, call.at);
    else
      content = value_of(origin->parent);
    slot = origin->parent;
  }
  now.emplace_back(slot, content);
  auto const version = ++versions[static_cast<std::size_t>(slot)];
  for (auto const& [place, value] : now) current[place] = value, origins[place].version = version;
  if (draft->slots[static_cast<std::size_t>(slot)].input) draft->slots[static_cast<std::size_t>(slot)].written = draft->writes = true;
}

void Session::Data::record(Call const& call, std::span<Tensor> results, std::span<Ref<Impl> const> adopted, std::string_view module) {
  auto& graph = draft->graph;
  if (adopted.empty() && std::ranges::none_of(draft->events, [](Event const& event) { return event.op != nullptr; }) && at_limit(call)) {
    scope.reset();
    phase = Phase::eager;
    return;
  }
  ++recorded_ops;
  auto const asked = graph.symbols.constraints.size();
  Event event;
  event.op = &call.op;
  event.at = call.at;
  event.module = module;
  graph.symbols.event = static_cast<int>(draft->events.size());
  Event const* earlier = shadow && draft->events.size() < shadow->events.size() ? &shadow->events[draft->events.size()] : nullptr;
  if (earlier && (earlier->op != &call.op || earlier->slots.size() != call.operands.size())) earlier = nullptr;
  if (!earlier) shadow = nullptr;
  std::vector<ir::Input> in;
  in.reserve(call.operands.size());
  for (std::size_t k = 0; k < call.operands.size(); ++k) {
    auto const& operand = call.operands[k];
    if (operand.impl) {
      auto const found = slot_of.find(operand.impl->id);
      event.slots.push_back(found != slot_of.end() ? found->second : input_slot(*operand.impl, call.at));
      event.scalars.push_back({});
      in.push_back({value_of(event.slots[k]), {}});
    } else {
      event.slots.push_back(-1);
      event.scalars.push_back(generalised(earlier ? &earlier->scalars[k] : nullptr, operand.scalar));
      in.push_back({-1, event.scalars[k]});
    }
    if (earlier && earlier->slots[k] != event.slots[k]) earlier = nullptr, shadow = nullptr;
  }
  event.attrs = generalised(earlier ? &earlier->attrs : nullptr, call);

  if (is_write(call.op)) {
    record_write(event, call, in[1].value);
    if (adopted.empty()) {
      ++call.operands[0].impl->storage->version;
      written.insert(call.operands[0].impl->storage.get());
      results[0] = Tensor(Ref<Impl>(call.operands[0].impl));
    }
  } else {
    auto const value = graph.add(call.op, std::move(in), event.attrs, call.at);
    graph.nodes.back().module = module;
    event.result = static_cast<std::int32_t>(draft->slots.size());
    event.results = graph.nodes.back().results;
    if (earlier && earlier->result != event.result) shadow = nullptr;
    for (std::int32_t k = 0; k < event.results; ++k) {
      auto const place = static_cast<std::size_t>(k);
      auto result = new_result(event, call, value + k, adopted.empty() ? Ref<Impl>() : adopted[place]);
      if (adopted.empty()) results[place] = Tensor(std::move(result));
    }
  }
  for (auto k = asked; k < graph.symbols.constraints.size(); ++k) graph.symbols.constraints[k].at = call.at;  // not the rule's line, the user's
  event.constraints = static_cast<std::int32_t>(graph.symbols.constraints.size());
  draft->events.push_back(std::move(event));
}

}  // namespace tenon::tracer
