module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir {
using base::fail;

namespace {
Value const& at(Graph const& graph, int value) { return graph.values[static_cast<std::size_t>(value)]; }

std::vector<Meta> infer_node(Graph const& graph, OpDef const& op, std::span<Input const> inputs, Attrs const& attrs) {
  base::InlineVector<Meta const*, 4> in;
  base::InlineVector<Scalar, 4> scalars;
  for (auto const& input : inputs) {
    if (std::cmp_greater_equal(input.value, graph.values.size())) throw base::Bug(std::format("{}: operand %{} is not made yet", op.name, input.value));
    in.push_back(input.value < 0 ? nullptr : at(graph, input.value).meta.get());
    scalars.push_back(input.scalar);
  }
  return infer(op, in, scalars, attrs);
}
}  // namespace

int Graph::input(Meta meta, std::string input_name) {
  int const value = static_cast<int>(values.size());
  values.push_back({MetaRef(new Meta(std::move(meta))), -1, static_cast<int>(inputs.size()), std::move(input_name)});
  inputs.push_back(value);
  return value;
}

int Graph::add(OpDef const& op, std::vector<Input> in, Attrs attrs, base::At place) {
  Symbols::Scope const scope(&symbols);
  auto results = infer_node(*this, op, in, attrs);
  int const first = static_cast<int>(values.size());
  for (std::size_t k = 0; k < results.size(); ++k)
    values.emplace_back(MetaRef(new Meta(std::move(results[k]))), static_cast<int>(nodes.size()), static_cast<int>(k));
  nodes.emplace_back(&op, std::move(in), std::move(attrs), first, static_cast<int>(results.size()), place);
  return first;
}

void verify(Graph const& graph) {
  auto const check = [&](bool holds, auto const& what) {  // texts are made only for a fault
    if (!holds) throw base::Bug(std::format("verify: {}: {}", graph.name, what()));
  };
  std::size_t made = 0;
  std::vector<char> known(graph.values.size(), 0);
  auto const is_known = [&](int value) { return value >= 0 && std::cmp_less(value, known.size()) && known[static_cast<std::size_t>(value)]; };
  auto const make = [&](int value) {
    check(value >= 0 && std::cmp_less(value, known.size()) && !known[static_cast<std::size_t>(value)] && at(graph, value).meta,
          [&] { return std::format("%{} is made twice or does not exist", value); });
    known[static_cast<std::size_t>(value)] = 1;
    ++made;
  };
  for (std::size_t k = 0; k < graph.inputs.size(); ++k) {
    make(graph.inputs[k]);
    check(at(graph, graph.inputs[k]).node < 0 && std::cmp_equal(at(graph, graph.inputs[k]).index, k),
          [&] { return std::format("input %{} is recorded as another value", graph.inputs[k]); });
  }
  Symbols scratch = graph.symbols;
  Symbols::Scope const scope(&scratch);
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    auto const& node = graph.nodes[n];
    auto const in_node = [&](auto const& what) { return [&, what] { return std::format("node {} ({}) {}", n, node.op->name, what()); }; };
    check(node.op != nullptr, [&] { return std::format("node {} has no op", n); });
    for (auto const& input : node.inputs)
      check(input.value < 0 || is_known(input.value), in_node([&] { return std::format("reads %{} before it is made", input.value); }));
    std::vector<Meta> metas;
    try {
      metas = infer_node(graph, *node.op, node.inputs, node.attrs);
    } catch (base::Error const& error) {
      check(false, in_node([&] { return std::format("is not legal: {}", error.what()); }));
    }
    check(std::cmp_equal(metas.size(), node.results), in_node([&] { return std::format("makes {} results, {} are recorded", metas.size(), node.results); }));
    for (int k = 0; k < node.results; ++k) {
      int const value = node.first + k;
      make(value);
      check(std::cmp_equal(at(graph, value).node, n) && at(graph, value).index == k,
            in_node([&] { return std::format("makes %{}, which names another node", value); }));
      auto const &inferred = metas[static_cast<std::size_t>(k)], &recorded = *at(graph, value).meta;
      check(same_meta(scratch, inferred, recorded),
            in_node([&] { return std::format("makes {}, {} is recorded", to_string(inferred, &scratch), to_string(recorded, &graph.symbols)); }));
    }
  }
  check(made == graph.values.size(), [&] { return std::format("{} values, {} of them made", graph.values.size(), made); });
  for (int output : graph.outputs) check(is_known(output), [&] { return std::format("output %{} does not exist", output); });
}

Graph eliminate_dead_code(Graph const& graph) {
  std::vector<char> needed(graph.values.size(), 0);
  for (int output : graph.outputs) needed[static_cast<std::size_t>(output)] = 1;
  std::vector<char> kept(graph.nodes.size(), 0);
  for (std::size_t n = graph.nodes.size(); n-- > 0;) {
    auto const& node = graph.nodes[n];
    kept[n] = !pure(*node.op);
    for (int k = 0; k < node.results; ++k) kept[n] |= needed[static_cast<std::size_t>(node.first + k)];
    if (!kept[n]) continue;
    for (auto const& input : node.inputs)
      if (input.value >= 0) needed[static_cast<std::size_t>(input.value)] = 1;
  }
  Rebuild rebuild(graph);
  for (std::size_t n = 0; n < graph.nodes.size(); ++n)
    if (kept[n]) rebuild.copy(graph.nodes[n]);
  return rebuild.finish();
}

Graph merge_common(Graph const& graph) {
  need_no_writes(graph, "merge_common");
  Rebuild rebuild(graph);
  std::unordered_map<std::string, int> seen;  // printed call → first value
  for (auto const& node : graph.nodes) {
    if (pure(*node.op)) {
      auto key = std::string(node.op->name) + "(";
      for (auto const& input : rebuild.inputs(node)) key += input.value >= 0 ? std::format("%{},", input.value) : graph.symbols.to_string(input.scalar) + ",";
      key += to_string(*node.op, node.attrs, &graph.symbols);
      auto const [at, fresh] = seen.try_emplace(std::move(key), static_cast<int>(rebuild.to.values.size()));
      if (!fresh) {
        for (int k = 0; k < node.results; ++k) rebuild.at(node.first + k) = at->second + k;
        continue;
      }
    }
    rebuild.copy(node);
  }
  return rebuild.finish();
}

Graph decompose(Graph const& graph, std::function<bool(OpDef const&)> keep) {
  Rebuild rebuild(graph);
  auto& to = rebuild.to;
  bool again = false;
  for (auto const& node : graph.nodes) {
    if (keep(*node.op) || !node.op->decompose) {
      rebuild.copy(node);
      continue;
    }
    Symbols::Scope const scope(&to.symbols);
    GraphEmit emit(to, node.at);
    emit.module = node.module;
    std::vector<Var> in;
    for (auto const& input : rebuild.inputs(node)) in.emplace_back(input.value >= 0 ? &emit : nullptr, input);
    std::size_t const before = to.nodes.size();
    Body body{node.attrs, in};
    node.op->decompose(body);
    for (int k = 0; k < node.results; ++k) rebuild.at(node.first + k) = body.out[static_cast<std::size_t>(k)].input.value;
    for (std::size_t n = before; n < to.nodes.size(); ++n) again |= !keep(*to.nodes[n].op) && to.nodes[n].op->decompose;
  }
  auto done = rebuild.finish();
  return again ? decompose(done, std::move(keep)) : done;
}

bool equal(Graph const& a, Graph const& b) { return to_string(a) == to_string(b); }

}  // namespace tenon::ir
