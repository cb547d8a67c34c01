// Backward passes: the vjp of each call in reverse order, appended to the forward graph.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir {
using base::ensure;
using base::fail;

namespace {
struct Seed {
  int value;  // whose gradient starts here
  Var gradient;
};

// Values that inputs `sources` move, as far as rules of gradients reach.
std::vector<char> reached(Graph const& graph, std::span<int const> sources) {
  std::vector<char> live(graph.values.size(), 0);
  for (int source : sources) live[static_cast<std::size_t>(source)] = 1;
  for (auto const& node : graph.nodes) {
    bool const reaches =
        node.op->vjp && std::ranges::any_of(node.inputs, [&](Input const& i) { return i.value >= 0 && live[static_cast<std::size_t>(i.value)]; });
    for (int k = 0; k < node.results; ++k) {
      auto const value = static_cast<std::size_t>(node.first + k);
      live[value] = reaches && base::is_real(graph.values[value].meta->dtype);
    }
  }
  return live;
}

// Appends gradients of `sources` as outputs, zeros where no seed depends on one; the first `forward` nodes are walked back.
void append_gradients(GraphEmit& emit, std::size_t forward, std::span<Seed const> seeds, std::span<int const> sources, std::vector<char> const& live) {
  auto& joint = emit.graph;
  std::vector<Var> gradient(joint.values.size());
  auto const accumulate = [&](int value, Var g) {
    auto& sum = gradient[static_cast<std::size_t>(value)];
    sum = sum ? sum + g : g;
  };
  for (auto const& seed : seeds) accumulate(seed.value, seed.gradient);
  for (std::size_t n = forward; n-- > 0;) {
    Node const node = joint.nodes[n];
    std::vector<Var> cotangents;
    for (int k = 0; k < node.results; ++k) {
      auto const value = static_cast<std::size_t>(node.first + k);
      cotangents.push_back(live[value] ? gradient[value] : Var());
    }
    if (std::ranges::none_of(cotangents, [](Var const& v) { return static_cast<bool>(v); })) continue;
    std::vector<Var> in, out;
    auto wanted = std::make_unique<bool[]>(node.inputs.size());
    for (std::size_t k = 0; k < node.inputs.size(); ++k) {
      in.emplace_back(node.inputs[k].value >= 0 ? &emit : nullptr, node.inputs[k]);
      wanted[k] = node.inputs[k].value >= 0 && live[static_cast<std::size_t>(node.inputs[k].value)];
    }
    for (int k = 0; k < node.results; ++k) out.emplace_back(emit, node.first + k);
    emit.place = node.at, emit.module = node.module;
    Vjp vjp{node.attrs, in, out, cotangents, {wanted.get(), node.inputs.size()}, {}};
    differentiate(*node.op, vjp);
    for (std::size_t k = 0; k < in.size(); ++k)
      if (wanted[k] && vjp.grads[k]) accumulate(node.inputs[k].value, vjp.grads[k]);
  }
  for (int source : sources) {
    auto const& sum = gradient[static_cast<std::size_t>(source)];
    joint.outputs.push_back(sum ? sum.input.value : zeros_like(Var(emit, source)).input.value);
  }
}

std::vector<int> sources_of(Graph const& graph, std::span<int const> wrt, std::string_view what) {
  std::vector<int> sources;
  for (int input : wrt) {
    if (input < 0 || std::cmp_greater_equal(input, graph.inputs.size())) fail("{}: there is no input {}, the graph has {}", what, input, graph.inputs.size());
    sources.push_back(graph.inputs[static_cast<std::size_t>(input)]);
  }
  return sources;
}
Graph differentiable(Graph const& graph) {
  return decompose(graph, [](OpDef const& op) { return op.vjp || !op.decompose; });
}
}  // namespace

Graph with_gradients(Graph const& graph, std::span<int const> wrt) {
  ensure(!graph.outputs.empty(), "with_gradients needs an output");
  need_no_writes(graph, "with_gradients");
  Graph joint = differentiable(graph);
  Symbols::Scope const scope(&joint.symbols);
  int const loss = joint.outputs[0], maker = joint.values[static_cast<std::size_t>(loss)].node;
  GraphEmit emit(joint, maker < 0 ? base::At{} : joint.nodes[static_cast<std::size_t>(maker)].at);
  auto const seed = joint.values[static_cast<std::size_t>(loss)].meta;
  if (seed->rank() != 0) fail("with_gradients: output 0 must be a scalar, not {}", to_string(*seed));
  auto const sources = sources_of(joint, wrt, "with_gradients");
  auto const live = reached(joint, sources);
  std::size_t const forward = joint.nodes.size();
  Var const one = create(emit, ops::full, Attrs{}.with(seed->sizes).with(seed->dtype).with(seed->device).with_num(1.0));
  append_gradients(emit, forward, std::array{Seed{loss, one}}, sources, live);
  return joint;
}

Joint joint_graph(Graph const& graph, std::span<int const> wrt) {
  need_no_writes(graph, "joint_graph");
  Joint joint{differentiable(graph), static_cast<int>(graph.outputs.size()), {}};
  auto& to = joint.graph;
  Symbols::Scope const scope(&to.symbols);
  GraphEmit emit(to, {});
  auto const sources = sources_of(to, wrt, "joint_graph");
  auto live = reached(to, sources);
  std::vector<Seed> seeds;
  for (int output : std::vector(to.outputs)) {
    auto const meta = to.values[static_cast<std::size_t>(output)].meta;
    if (!base::is_real(meta->dtype)) continue;
    joint.cotangents.push_back(static_cast<int>(to.inputs.size()));
    seeds.push_back({output, Var(emit, to.input(contiguous_meta(meta->dtype, meta->device, meta->sizes)))});
  }
  append_gradients(emit, to.nodes.size(), seeds, sources, live);
  return joint;
}

}  // namespace tenon::ir
