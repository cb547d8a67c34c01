// The order of a graph's nodes that needs the least memory, and what a graph that runs node by node holds.
module tenon.fusion;
import std;
import tenon.base;
import tenon.ir;

namespace tenon::fusion {

namespace {
std::size_t index(int i) { return static_cast<std::size_t>(i); }
std::int64_t bytes_of(ir::Graph const& graph, int value) {
  auto const& meta = *graph.values[index(value)].meta;
  return base::numel(ir::values(meta.sizes)) * base::bytes_of(meta.dtype);
}
bool is_view(ir::Graph const& graph, ir::Node const& node) {
  if (!node.op->geometry || node.inputs.empty() || node.inputs[0].value < 0) return false;
  auto const& parent = *graph.values[index(node.inputs[0].value)].meta;
  ir::View view{node.attrs, parent.dtype, parent.sizes, parent.strides, 0};
  return node.op->geometry(view);
}
// Whether the node may write its result over `root`: it reads that memory element by element, nowhere else.
bool safe_in_place(ir::Graph const& graph, ir::Node const& node, std::span<int const> roots, int root) {
  if (node.op->kind != ir::Kind::pointwise || node.results != 1 || bytes_of(graph, node.first) != bytes_of(graph, root)) return false;
  auto const& result = *graph.values[index(node.first)].meta;
  return std::ranges::all_of(node.inputs, [&](ir::Input const& input) {
    if (input.value < 0 || roots[index(input.value)] != root) return true;
    auto const& read = *graph.values[index(input.value)].meta;
    return input.value == root && std::ranges::equal(ir::values(read.sizes), ir::values(result.sizes)) &&
           std::ranges::equal(ir::values(read.strides), ir::values(result.strides));
  });
}
bool ordered(ir::OpDef const& op) { return op.kind == ir::Kind::random || op.kind == ir::Kind::host || op.kind == ir::Kind::collective; }

// The nodes as a partial order, with the memory that each makes and reads.
struct Dependencies {
  ir::Graph const& graph;
  std::vector<int> roots = roots_of(graph);
  std::vector<std::int64_t> bytes = std::vector<std::int64_t>(graph.values.size(), 0);    // of step memory, by its root
  std::vector<char> kept = std::vector<char>(graph.values.size(), 0);                     // alive to the end
  std::vector<std::vector<int>> before{graph.nodes.size()}, after{graph.nodes.size()};    // nodes
  std::vector<std::vector<int>> reads{graph.nodes.size()}, readers{graph.values.size()};  // roots that a node reads, once each; and back

  explicit Dependencies(ir::Graph const& of) : graph(of) {
    for (int v = 0; std::cmp_less(v, graph.values.size()); ++v)
      if (roots[index(v)] == v && graph.values[index(v)].node >= 0) bytes[index(v)] = bytes_of(graph, v);
    for (int output : graph.outputs) kept[index(roots[index(output)])] = 1;
    int chained = -1;
    for (int n = 0; std::cmp_less(n, graph.nodes.size()); ++n) {
      auto const& node = graph.nodes[index(n)];
      auto& earlier = before[index(n)];
      for (auto const& input : node.inputs) {
        if (input.value < 0) continue;
        if (int const maker = graph.values[index(input.value)].node; maker >= 0) earlier.push_back(maker);
        reads[index(n)].push_back(roots[index(input.value)]);
      }
      if (ordered(*node.op)) {
        if (chained >= 0) earlier.push_back(chained);
        chained = n;
      }
      for (auto* list : {&earlier, &reads[index(n)]}) {
        std::ranges::sort(*list);
        list->erase(std::ranges::unique(*list).begin(), list->end());
      }
      for (int m : earlier) after[index(m)].push_back(n);
      for (int root : reads[index(n)]) readers[index(root)].push_back(n);
    }
  }
  std::int64_t made(int n) const {
    std::int64_t sum = 0;
    auto const& node = graph.nodes[index(n)];
    for (int k = 0; k < node.results; ++k) sum += bytes[index(node.first + k)];
    return sum;
  }
};

// Always the node next that adds the fewest bytes, then the first in the given order; prices change as readers go.
class Ready {
 public:
  explicit Ready(std::size_t nodes) : price_(nodes, 0), inside_(nodes, 0) {}
  void enter(int node, std::int64_t price, int rank) {
    price_[index(node)] = price, inside_[index(node)] = 1;
    set_.insert({price, rank, node});
  }
  void lower(int node, std::int64_t by, int rank) {
    if (!inside_[index(node)]) return;
    set_.erase({price_[index(node)], rank, node});
    enter(node, price_[index(node)] - by, rank);
  }
  int take() {
    int const node = std::get<2>(*set_.begin());
    set_.erase(set_.begin()), inside_[index(node)] = 0;
    return node;
  }
  bool empty() const { return set_.empty(); }

 private:
  std::set<std::tuple<std::int64_t, int, int>> set_;
  std::vector<std::int64_t> price_;
  std::vector<char> inside_;
};

std::vector<int> from_start(Dependencies const& all) {
  std::vector<int> order;
  std::vector<std::size_t> waits, left;
  std::vector<std::int64_t> sum;  // of the readers that are left: the last one's number
  for (auto const& list : all.before) waits.push_back(list.size());
  for (auto const& list : all.readers) left.push_back(list.size()), sum.push_back(std::accumulate(list.begin(), list.end(), std::int64_t{0}));
  Ready ready(all.before.size());
  auto const enter = [&](int n) {
    std::int64_t price = all.made(n);
    for (int root : all.reads[index(n)])
      if (left[index(root)] == 1 && !all.kept[index(root)]) price -= all.bytes[index(root)];
    ready.enter(n, price, n);
  };
  for (int n = 0; std::cmp_less(n, waits.size()); ++n)
    if (!waits[index(n)]) enter(n);
  while (!ready.empty()) {
    int const n = ready.take();
    order.push_back(n);
    for (int root : all.reads[index(n)]) {
      sum[index(root)] -= n;
      if (--left[index(root)] == 1 && !all.kept[index(root)])
        ready.lower(static_cast<int>(sum[index(root)]), all.bytes[index(root)], static_cast<int>(sum[index(root)]));
    }
    for (int m : all.after[index(n)])
      if (--waits[index(m)] == 0) enter(m);
  }
  return order;
}

std::vector<int> from_end(Dependencies const& all) {
  std::vector<int> order;
  std::vector<std::size_t> waits;
  waits.reserve(all.after.size());
  for (auto const& list : all.after) waits.push_back(list.size());
  auto alive = all.kept;
  Ready ready(all.after.size());
  auto const enter = [&](int n) {
    std::int64_t price = -all.made(n);
    for (int root : all.reads[index(n)])
      if (!alive[index(root)]) price += all.bytes[index(root)];
    ready.enter(n, price, -n);
  };
  for (int n = 0; std::cmp_less(n, waits.size()); ++n)
    if (!waits[index(n)]) enter(n);
  while (!ready.empty()) {
    int const n = ready.take();
    order.push_back(n);
    for (int root : all.reads[index(n)]) {
      if (std::exchange(alive[index(root)], 1)) continue;
      for (int reader : all.readers[index(root)]) ready.lower(reader, all.bytes[index(root)], -reader);
    }
    for (int m : all.before[index(n)])
      if (--waits[index(m)] == 0) enter(m);
  }
  std::ranges::reverse(order);
  return order;
}

ir::Graph in_order(ir::Graph const& graph, std::span<int const> order) {
  Moving moving(graph);
  for (int n : order) moving.copy(n);
  return moving.finish();
}
}  // namespace

void need_no_writes(ir::Graph const& graph, std::string_view pass) {
  for (std::size_t n = 0; n < graph.nodes.size(); ++n)
    if (ir::writes(*graph.nodes[n].op))
      base::fail("{}: node {} ({}) writes into %{}: functionalize first", pass, n, graph.nodes[n].op->name, graph.nodes[n].inputs[0].value);
}

Moving::Moving(ir::Graph const& graph) : from(graph), moved(graph.values.size(), -1) {
  to.name = from.name, to.symbols = from.symbols;
  to.nodes.reserve(from.nodes.size()), to.values.reserve(from.values.size());
  for (int input : from.inputs) {
    moved[index(input)] = static_cast<int>(to.values.size());
    to.inputs.push_back(moved[index(input)]);
    to.values.push_back(from.values[index(input)]);
  }
}
void Moving::copy(int n) {
  auto node = from.nodes[index(n)];
  for (auto& input : node.inputs)
    if (input.value >= 0) input.value = moved[index(input.value)];
  int const first = static_cast<int>(to.values.size());
  for (int k = 0; k < node.results; ++k) {
    to.values.push_back(from.values[index(node.first + k)]);
    to.values.back().node = static_cast<int>(to.nodes.size());
    moved[index(node.first + k)] = first + k;
  }
  node.first = first;
  to.nodes.push_back(std::move(node));
}
ir::Graph Moving::finish() {
  for (int output : from.outputs) to.outputs.push_back(moved[index(output)]);
  to.mutated = from.mutated;
  return std::move(to);
}

std::vector<int> roots_of(ir::Graph const& graph) {
  std::vector<int> roots(graph.values.size());
  std::iota(roots.begin(), roots.end(), 0);
  for (auto const& node : graph.nodes)
    if (is_view(graph, node)) roots[index(node.first)] = roots[index(node.inputs[0].value)];
  return roots;
}

GraphBlocks blocks_of(ir::Graph const& graph) {
  auto const roots = roots_of(graph);
  int const end = static_cast<int>(graph.nodes.size());
  std::vector<int> last(graph.values.size(), -1), block_of(graph.values.size(), -1), written_back(graph.values.size(), -1);
  for (int n = 0; n < end; ++n)
    for (auto const& input : graph.nodes[index(n)].inputs)
      if (input.value >= 0) last[index(roots[index(input.value)])] = n;
  for (int output : graph.outputs) last[index(roots[index(output)])] = end;
  auto const plain = graph.outputs.size() - graph.mutated.size();
  for (std::size_t k = 0; k < graph.mutated.size(); ++k) written_back[index(graph.outputs[plain + k])] = graph.inputs[index(graph.mutated[k])];
  GraphBlocks made;
  auto const add = [&](int value, Block block) {
    auto const& name = graph.values[index(value)].name;
    block.bytes = bytes_of(graph, value), block.name = name.empty() ? std::format("%{}", value) : name;
    block_of[index(value)] = static_cast<int>(made.blocks.size());
    made.blocks.push_back(std::move(block)), made.values.push_back(value);
  };
  for (int input : graph.inputs) add(input, {.first = -1, .last = std::max(last[index(input)], 0), .arena = Arena::persistent});
  for (int n = 0; n < end; ++n) {
    auto const& node = graph.nodes[index(n)];
    for (int v = node.first; v < node.first + node.results; ++v) {
      if (roots[index(v)] != v) continue;
      Block block{.first = n, .last = std::max(last[index(v)], n)};
      // An input's new elements take its place if nobody reads the old ones later.
      if (int const state = written_back[index(v)]; state >= 0 && last[index(state)] <= n && safe_in_place(graph, node, roots, state)) {
        block.arena = Arena::persistent, block.instead_of = block_of[index(state)];
        made.blocks[index(block.instead_of)].last = n;
      } else {
        for (auto const& input : node.inputs) {
          if (input.value < 0) continue;
          int const root = roots[index(input.value)], old = block_of[index(root)];
          if (made.blocks[index(old)].arena != Arena::step || last[index(root)] != n || !safe_in_place(graph, node, roots, root)) continue;
          block.instead_of = old;
          break;
        }
      }
      add(v, std::move(block));
    }
  }
  return made;
}

std::int64_t step_peak(ir::Graph const& graph) {
  auto const blocks = blocks_of(graph).blocks;
  auto const alive = live_bytes(blocks, {.taken = accepted(blocks), .alignment = 1}, Arena::step);
  return alive.empty() ? 0 : std::ranges::max(alive);
}

std::vector<int> order_for_memory(ir::Graph const& graph) {
  need_no_writes(graph, "order_for_memory");
  std::vector<int> best(graph.nodes.size());
  std::iota(best.begin(), best.end(), 0);
  auto least = step_peak(graph);
  Dependencies const all(graph);
  for (auto& order : {from_start(all), from_end(all)}) {
    auto const peak = step_peak(in_order(graph, order));
    if (peak < least) least = peak, best = order;
  }
  return best;
}
ir::Graph reorder(ir::Graph const& graph) { return in_order(graph, order_for_memory(graph)); }

std::int64_t eager_peak(ir::Graph const& graph) {
  auto const roots = roots_of(graph);
  std::size_t const end = graph.nodes.size();
  std::vector<std::size_t> last(graph.values.size(), 0);
  for (std::size_t n = 0; n < end; ++n)
    for (auto const& input : graph.nodes[n].inputs)
      if (input.value >= 0) last[index(roots[index(input.value)])] = n;
  for (int const output : graph.outputs) last[index(roots[index(output)])] = end;
  std::vector<std::int64_t> freed(end + 1, 0);
  std::int64_t alive = 0, most = 0;
  for (std::size_t n = 0; n < end; ++n) {
    auto const& node = graph.nodes[n];
    for (int v = node.first; v < node.first + node.results; ++v) {
      if (roots[index(v)] != v) continue;
      alive += bytes_of(graph, v);
      freed[std::max(last[index(v)], n)] += bytes_of(graph, v);
    }
    most = std::max(most, alive);
    alive -= freed[n];
  }
  return most;
}

}  // namespace tenon::fusion
