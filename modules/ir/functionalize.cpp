// Writes become values: memory is a root value and the views of it, and a write makes a new root.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir::ops {
extern OpDef const slice_scatter;  // as ops_layout.cpp declares it
}

namespace tenon::ir {
using base::fail;

namespace {
bool is_view(Symbols& symbols, Node const& node, Meta const& parent) {
  Symbols::Scope const scope(&symbols);
  View view{node.attrs, parent.dtype, parent.sizes, parent.strides, 0};
  return node.op->geometry(view);
}
bool composite(OpDef const& op) { return op.decompose && !has_kernel(op); }

// Whether a body gives an operand back, or a view of one.
bool body_shares(Graph const& graph, Node const& node) {
  Graph scratch;
  scratch.symbols = graph.symbols;
  Symbols::Scope const scope(&scratch.symbols);
  GraphEmit emit(scratch, node.at);
  std::vector<Var> in;
  for (auto const& input : node.inputs)
    in.push_back(input.value < 0 ? Var(nullptr, input) : Var(emit, scratch.input(*graph.values[static_cast<std::size_t>(input.value)].meta)));
  Body body{node.attrs, in};
  node.op->decompose(body);
  return std::ranges::any_of(body.out, [&](Var const& out) {
    for (int value = out.input.value;;) {
      auto const maker = scratch.values[static_cast<std::size_t>(value)].node;
      if (maker < 0) return true;
      auto const& by = scratch.nodes[static_cast<std::size_t>(maker)];
      if (composite(*by.op) && body_shares(scratch, by)) return true;
      if (!by.op->geometry || !is_view(scratch.symbols, by, *scratch.values[static_cast<std::size_t>(by.inputs[0].value)].meta)) return false;
      value = by.inputs[0].value;
    }
  });
}
// The graph in which what shares memory is a call with a geometry: composite views are replaced by their bodies.
Graph with_plain_views(Graph graph) {
  if (std::ranges::none_of(graph.nodes, [](Node const& node) { return composite(*node.op); })) return graph;
  Rebuild rebuild(graph);
  bool again = false;
  for (auto const& node : graph.nodes) {
    if (!composite(*node.op) || !(node.op->kind == Kind::view || body_shares(graph, node))) {
      rebuild.copy(node);
      continue;
    }
    Symbols::Scope const scope(&rebuild.to.symbols);
    GraphEmit emit(rebuild.to, node.at);
    emit.module = node.module;
    std::vector<Var> in;
    for (auto const& input : rebuild.inputs(node)) in.emplace_back(input.value >= 0 ? &emit : nullptr, input);
    std::size_t const before = rebuild.to.nodes.size();
    Body body{node.attrs, in};
    node.op->decompose(body);
    for (int k = 0; k < node.results; ++k) rebuild.at(node.first + k) = body.out[static_cast<std::size_t>(k)].input.value;
    for (std::size_t n = before; n < rebuild.to.nodes.size(); ++n) again |= composite(*rebuild.to.nodes[n].op);
  }
  auto done = rebuild.finish();
  return again ? with_plain_views(std::move(done)) : done;
}

// -- the way back through a view ------------------------------------------------------------------------------------------------------------

// What the gradient of a view does: each element goes where the view found it, zeros elsewhere.
Var back(Node const& by, Var parent, Var content) {
  if (!by.op->vjp) {
    if (parent.rank() != content.rank() || !std::ranges::equal(parent.meta().sizes, content.meta().sizes, [](Dim a, Dim b) { return same(a, b); }))
      fail("functionalize: no way to write through {}", by.op->name);
    return content;
  }
  bool const wanted = true;
  std::array const in{parent}, out{content}, cotangents{content};
  Vjp vjp{by.attrs, in, out, cotangents, {&wanted, 1}, std::vector<Var>(1)};
  by.op->vjp(vjp);
  return cast(vjp.grads[0], content.meta().dtype);  // a sum of booleans counts
}
OpDef const& row(std::string_view name) { return *find_op(name); }
Var into_slice(Node const& by, Var parent, Var content) { return call(ops::slice_scatter, {parent, content}, by.attrs); }
Var into_select(Node const& by, Var parent, Var content) { return call(row("select_scatter"), {parent, content}, by.attrs); }
Var into_diagonal(Node const& by, Var parent, Var content) { return call(row("diagonal_scatter"), {parent, content}, by.attrs); }
Var into_windows(Node const& by, Var parent, Var content) {
  if (parent.rank() == 0) return shaped(content, std::span<Dim const>{});
  int const dim = dim_of(parent, by.attrs.ints[0]);
  Dim const size = by.attrs.ints[1], step = by.attrs.ints[2], windows = content.size(dim);
  Dims order, sizes = parent.meta().sizes;
  for (int d = 0; d < parent.rank(); ++d) {
    order.push_back(d);
    if (d == dim) order.push_back(parent.rank());
  }
  sizes[static_cast<std::size_t>(dim)] = windows * size;
  Var const rows = shaped(call(ops::permute, {content}, Attrs{}.with(order)), sizes);
  Var const first = shaped(counting(parent, windows) * Var(step), std::array{windows, Dim(1)});
  return call(ops::index_copy, {parent, shaped(first + counting(parent, size), std::array{windows * size}), rows}, at_dim(dim));
}
struct WayBack {
  OpDef const* op;
  Var (*put)(Node const& by, Var parent, Var content);
};
constexpr std::array ways{WayBack{&ops::slice, into_slice}, WayBack{&ops::select, into_select}, WayBack{&ops::diagonal, into_diagonal},
                          WayBack{&ops::unfold, into_windows}};

// The parent's elements after its view `by` got `content`. The default holds for every view with a gradient.
Var written(Node const& by, Var parent, Var content) {
  if (auto const way = std::ranges::find(ways, by.op, &WayBack::op); way != ways.end()) return way->put(by, parent, content);
  if (same(product(parent.meta().sizes), product(content.meta().sizes))) return back(by, parent, content);
  auto const& meta = content.meta();
  Var const ones = create(*content.emit, ops::full, Attrs{}.with(meta.sizes).with(base::DType::boolean).with(meta.device).with_num(Scalar(true)));
  return choose(back(by, parent, ones), back(by, parent, content), parent);
}

}  // namespace

int write_through(Graph& graph, ViewCall const& by, int parent, int content, base::At at) {
  GraphEmit emit(graph, at);
  return written(Node{.op = &by.op, .attrs = by.attrs, .at = at}, Var(emit, parent), Var(emit, content)).input.value;
}

namespace {
// -- memory ---------------------------------------------------------------------------------------------------------------------------------

// Where a value lies: a root owns its memory; a view is what node `by` makes of `parent`.
struct Place {
  int root = -1, parent = -1;
  Node const* by = nullptr;
};

struct Memory {
  Graph const& from;
  Rebuild rebuild{from};
  std::vector<Place> place{from.values.size()};
  std::vector<int> same_as = std::vector<int>(from.values.size(), -1);  // a write gives its operand back
  std::vector<int> version = std::vector<int>(from.values.size(), 0);   // of a root; of a view: the root's when it was last made

  std::size_t index(int value) const { return static_cast<std::size_t>(value); }
  void own(int value) { place[index(value)].root = same_as[index(value)] = value; }
  Meta const& meta(int value) const { return *from.values[index(value)].meta; }

  // The new graph's value that holds the elements now.
  int read(int value) {
    int const wanted = same_as[index(value)], root = place[index(wanted)].root;
    std::vector<int> stale;
    for (int at = wanted; at != root && version[index(at)] != version[index(root)]; at = place[index(at)].parent) stale.push_back(at);
    for (int const at : stale | std::views::reverse) {
      auto const& [_, parent, by] = place[index(at)];
      auto in = by->inputs;
      in[0].value = rebuild.at(parent);
      rebuild.at(at) = rebuild.to.add(*by->op, std::move(in), by->attrs, by->at);
      rebuild.to.nodes.back().module = by->module;
      version[index(at)] = version[index(root)];
    }
    return rebuild.at(value) = rebuild.at(wanted);
  }

  void write(Node const& node) {
    int const target = same_as[index(node.inputs[0].value)], root = place[index(target)].root;
    Symbols::Scope const scope(&rebuild.to.symbols);
    GraphEmit emit(rebuild.to, node.at);
    emit.module = node.module;
    auto const& wish = meta(target);
    same_as[index(node.first)] = target;
    if (std::ranges::any_of(wish.sizes, [](Dim size) { return size.value == 0 && same(size, 0); })) return;  // no elements
    Var content(emit, read(node.inputs[1].value));
    content = cast(content, wish.dtype);
    if (content.meta().sizes != wish.sizes) content = call(ops::clone, {call(ops::expand, {content}, Attrs{}.with(wish.sizes))});
    std::vector<std::pair<int, int>> fresh{{target, content.input.value}};
    for (int at = target; at != root; at = place[index(at)].parent) {
      auto const& [_, parent, by] = place[index(at)];
      if (overlaps(meta(at).sizes, meta(at).strides))
        fail("functionalize: node {} ({}) writes through {}, which shows elements several times", node_number(node), node.op->name, by->op->name);
      content = written(*by, Var(emit, read(parent)), content);
      fresh.emplace_back(parent, content.input.value);
    }
    ++version[index(root)];
    for (auto const& [value, now] : fresh) rebuild.at(value) = now, version[index(value)] = version[index(root)];
  }
  int node_number(Node const& node) const { return static_cast<int>(&node - from.nodes.data()); }

  void call_node(Node const& node) {
    for (auto const& input : node.inputs)
      if (input.value >= 0) read(input.value);
    rebuild.copy(node);
    for (int k = 0; k < node.results; ++k) own(node.first + k);
    if (!node.op->geometry) return;
    int const parent = same_as[index(node.inputs[0].value)], root = place[index(parent)].root;
    if (!is_view(rebuild.to.symbols, node, meta(parent))) return;
    place[index(node.first)] = {root, parent, &node};
    version[index(node.first)] = version[index(root)];
  }
};
}  // namespace

Functional functionalize(Graph const& graph) {
  if (std::ranges::none_of(graph.nodes, [](Node const& node) { return writes(*node.op); })) return {graph, {}};
  Graph const plain = with_plain_views(graph);
  Memory memory{plain};
  for (int input : plain.inputs) memory.own(input);
  for (auto const& node : plain.nodes) {
    if (!writes(*node.op))
      memory.call_node(node);
    else if (node.op == &ops::copy_)
      memory.write(node);
    else
      fail("functionalize: node {} ({}) writes, and only copy_ is known: compute, then copy_", memory.node_number(node), node.op->name);
  }
  for (int output : plain.outputs) memory.read(output);
  Functional done{memory.rebuild.finish(), {}};
  for (std::size_t k = 0; k < plain.inputs.size(); ++k) {
    int const input = plain.inputs[k];
    if (memory.version[memory.index(input)] == 0) continue;
    done.mutated.push_back(static_cast<int>(k));
    done.graph.outputs.push_back(memory.rebuild.at(input));
  }
  done.graph.mutated = done.mutated;
  done.graph = eliminate_dead_code(done.graph);
  return done;
}

}  // namespace tenon::ir
