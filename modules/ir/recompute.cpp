// Which forward values a backward pass keeps: the cheapest cut between what the forward pass may compute and what the backward pass needs.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir {
using base::ensure;
using base::fail;

bool recomputable(OpDef const& op) { return pure(op) && op.kind != Kind::collective && op.kind != Kind::contraction && !op.measured; }

namespace {
// Maximum flow from node 0 to node 1 by Dinic's algorithm (1970): breadth-first levels, then blocking flows along them.
class Network {
 public:
  explicit Network(std::size_t nodes) : edges_of_(nodes) {}
  void edge(std::size_t from, std::size_t to, std::int64_t capacity) {
    edges_of_[from].push_back(edges_.size()), edges_.push_back({to, capacity});
    edges_of_[to].push_back(edges_.size()), edges_.push_back({from, 0});
  }
  std::int64_t flow() {
    std::int64_t total = 0;
    while (levels()) {
      next_.assign(edges_of_.size(), 0);
      while (std::int64_t const pushed = push()) total = plus(total, pushed);
    }
    return total;
  }
  // Nodes from which the sink can still be reached: the cut that lies nearest to it.
  std::vector<char> sink_side() const {
    std::vector<char> side(edges_of_.size(), 0);
    std::vector<std::size_t> todo{1};
    side[1] = 1;
    while (!todo.empty()) {
      auto const node = todo.back();
      todo.pop_back();
      for (auto const e : edges_of_[node]) {
        auto const before = edges_[e].to;
        if (side[before] || edges_[e ^ 1].left == 0) continue;
        side[before] = 1, todo.push_back(before);
      }
    }
    return side;
  }

 private:
  struct Edge {
    std::size_t to;
    std::int64_t left;
  };
  bool levels() {
    level_.assign(edges_of_.size(), -1);
    std::vector<std::size_t> queue{0};
    level_[0] = 0;
    for (std::size_t k = 0; k < queue.size(); ++k)
      for (auto const e : edges_of_[queue[k]])
        if (edges_[e].left > 0 && level_[edges_[e].to] < 0) level_[edges_[e].to] = level_[queue[k]] + 1, queue.push_back(edges_[e].to);
    return level_[1] >= 0;
  }
  std::int64_t push() {  // one path, without recursion: paths are as long as the graph
    std::vector<std::size_t> path;
    for (std::size_t node = 0; node != 1;) {
      auto& at = next_[node];
      while (at < edges_of_[node].size()) {
        auto const& edge = edges_[edges_of_[node][at]];
        if (edge.left > 0 && level_[edge.to] == level_[node] + 1) break;
        ++at;
      }
      if (at < edges_of_[node].size()) {
        path.push_back(edges_of_[node][at]);
        node = edges_[path.back()].to;
      } else if (path.empty()) {
        return 0;
      } else {
        node = edges_[path.back() ^ 1].to;
        ++next_[node];
        path.pop_back();
      }
    }
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (auto const e : path) least = std::min(least, edges_[e].left);
    for (auto const e : path) edges_[e].left -= least, edges_[e ^ 1].left += least;
    return least;
  }
  std::vector<Edge> edges_;
  std::vector<std::vector<std::size_t>> edges_of_;
  std::vector<int> level_;
  std::vector<std::size_t> next_;
};

struct Cut {
  Joint const& joint;
  PartitionOptions const& options;
  Graph const& graph = joint.graph;
  std::vector<char> forward = std::vector<char>(graph.values.size(), 0);  // the forward pass can compute it
  std::vector<char> needed = std::vector<char>(graph.nodes.size(), 0);    // by an output of the backward pass
  Partition done{};

  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  std::span<int const> outputs() const { return std::span(graph.outputs).first(index(joint.outputs)); }
  std::span<int const> gradients() const { return std::span(graph.outputs).subspan(index(joint.outputs)); }
  int maker(int value) const { return graph.values[index(value)].node; }

  void mark_needed(std::span<int const> wanted, std::vector<char>& nodes) const {
    std::vector<char> read(graph.values.size(), 0);
    for (int value : wanted) read[index(value)] = 1;
    for (std::size_t n = graph.nodes.size(); n-- > 0;) {
      auto const& node = graph.nodes[n];
      for (int k = 0; k < node.results; ++k) nodes[n] |= read[index(node.first + k)];
      if (!nodes[n]) continue;
      for (auto const& input : node.inputs)
        if (input.value >= 0) read[index(input.value)] = 1;
    }
  }
  // With cotangents: what does not depend on one. Without: what the outputs need, and what is no part of a gradient.
  void classify() {
    std::vector<char> cotangent(graph.values.size(), 0), output(graph.nodes.size(), 0);
    for (int input : joint.cotangents) cotangent[index(graph.inputs[index(input)])] = 1;
    for (int input : graph.inputs) forward[index(input)] = !cotangent[index(input)];
    mark_needed(outputs(), output), mark_needed(gradients(), needed);
    for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
      auto const& node = graph.nodes[n];
      bool possible = joint.cotangents.empty() ? output[n] || !needed[n] : true;
      for (auto const& input : node.inputs) possible = possible && (input.value < 0 || forward[index(input.value)]);
      if (output[n] && !possible) fail("partition: output part depends on a cotangent at node {} ({})", n, node.op->name);
      for (int k = 0; k < node.results; ++k) forward[index(node.first + k)] = possible;
    }
  }
  std::int64_t bytes(int value) const {
    if (maker(value) < 0 && !options.count_inputs) return 0;
    auto const& meta = *graph.values[index(value)].meta;
    return times(base::numel(values(meta.sizes)), base::bytes_of(meta.dtype));
  }
  // A view is no memory of its own: what it looks at is kept instead.
  bool view(int value) const { return maker(value) >= 0 && graph.nodes[index(maker(value))].op->kind == Kind::view; }
  bool fixed(int value) const { return maker(value) < 0 || (!view(value) && !options.may_recompute(*graph.nodes[index(maker(value))].op)); }

  void save() {
    std::int64_t endless = 1;
    for (std::size_t v = 0; v < graph.values.size(); ++v)
      if (forward[v] && !view(static_cast<int>(v))) endless = plus(endless, bytes(static_cast<int>(v)));
    Network network(2 + 2 * graph.values.size());
    auto const in = [](int value) { return 2 + 2 * index(value); };
    auto const out = [](int value) { return 3 + 2 * index(value); };
    auto const flow_into_backward = [&](int value) {
      if (forward[index(value)]) network.edge(out(value), 1, endless);
    };
    for (int v = 0; std::cmp_less(v, graph.values.size()); ++v) {
      if (!forward[index(v)]) continue;
      network.edge(in(v), out(v), view(v) ? endless : bytes(v));
      if (fixed(v)) {
        network.edge(0, in(v), endless);
      } else {
        for (auto const& input : graph.nodes[index(maker(v))].inputs)
          if (input.value >= 0) network.edge(out(input.value), in(v), endless);
      }
    }
    for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
      auto const& node = graph.nodes[n];
      if (!needed[n] || forward[index(node.first)]) continue;
      for (auto const& input : node.inputs)
        if (input.value >= 0) flow_into_backward(input.value);
    }
    for (int gradient : gradients()) flow_into_backward(gradient);
    done.bytes = network.flow();
    ensure(done.bytes < endless, "partition: no cut");
    auto const behind = network.sink_side();
    for (int v = 0; std::cmp_less(v, graph.values.size()); ++v)
      if (forward[index(v)] && !behind[in(v)] && behind[out(v)]) done.saved.push_back(v);
  }

  Graph part(std::string_view name, std::span<int const> given, std::span<int const> wanted, std::vector<int>* recomputed) const {
    std::vector<char> wish(graph.nodes.size(), 0), read(graph.values.size(), 0), known(graph.values.size(), 0);
    for (int value : given) known[index(value)] = 1;
    for (int value : wanted) read[index(value)] = 1;
    for (std::size_t n = graph.nodes.size(); n-- > 0;) {
      auto const& node = graph.nodes[n];
      for (int k = 0; k < node.results; ++k) wish[n] |= read[index(node.first + k)] && !known[index(node.first + k)];
      if (!pure(*node.op) && (forward[index(node.first)] != 0) == !recomputed) wish[n] = 1;  // effects happen once
      if (!wish[n]) continue;
      for (auto const& input : node.inputs)
        if (input.value >= 0) read[index(input.value)] = 1;
    }
    Rebuild rebuild(graph, false);
    rebuild.to.name = graph.name + std::string(name);
    for (int value : given) {
      auto const& old = graph.values[index(value)];
      rebuild.at(value) = rebuild.to.input(*old.meta, old.name);
    }
    for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
      if (!wish[n]) continue;
      auto const& node = graph.nodes[n];
      std::vector<int> given_results;  // a call with several results may run for the others
      for (int k = 0; k < node.results; ++k) given_results.push_back(known[index(node.first + k)] ? rebuild.at(node.first + k) : -1);
      rebuild.copy(node);
      for (int k = 0; k < node.results; ++k)
        if (int const value = given_results[index(k)]; value >= 0) rebuild.at(node.first + k) = value;
      if (recomputed && forward[index(node.first)]) recomputed->push_back(static_cast<int>(n));
    }
    for (int value : wanted) rebuild.to.outputs.push_back(rebuild.at(value));
    return std::move(rebuild.to);
  }
};
}  // namespace

Partition partition(Joint const& joint, PartitionOptions const& options) {
  need_no_writes(joint.graph, "partition");
  if (joint.outputs < 0 || std::cmp_greater(joint.outputs, joint.graph.outputs.size()))
    fail("partition: {} outputs of the forward part, the graph has {}", joint.outputs, joint.graph.outputs.size());
  Cut cut{joint, options};
  cut.classify();
  cut.save();
  std::vector<int> given, wanted(cut.outputs().begin(), cut.outputs().end()), starts = cut.done.saved;
  for (std::size_t k = 0; k < joint.graph.inputs.size(); ++k) {
    bool const cotangent = std::ranges::find(joint.cotangents, static_cast<int>(k)) != joint.cotangents.end();
    (cotangent ? starts : given).push_back(joint.graph.inputs[k]);
  }
  wanted.insert(wanted.end(), cut.done.saved.begin(), cut.done.saved.end());
  cut.done.forward = cut.part(".forward", given, wanted, nullptr);
  cut.done.backward = cut.part(".backward", starts, cut.gradients(), &cut.done.recomputed);
  return std::move(cut.done);
}

}  // namespace tenon::ir
