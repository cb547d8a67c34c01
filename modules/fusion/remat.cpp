// Values computed again just before their late readers, so that less is held across the middle of a graph.
module tenon.fusion;
import std;
import tenon.base;
import tenon.ir;

namespace tenon::fusion {

namespace {
std::size_t index(int i) { return static_cast<std::size_t>(i); }

// What to make again before node `reader`, and what that is worth.
struct Candidate {
  int reader = 0;
  std::vector<int> nodes;  // in order of the graph
  std::vector<int> seeds;  // values that `reader` and later nodes shall read from the copies
  double flops = 0;
  double worth = 0;  // FLOPs per byte and step
};

double flops_of(ir::Graph const& graph, int n) {
  auto const& node = graph.nodes[index(n)];
  std::vector<ir::Meta const*> in;
  std::vector<ir::Meta> out;
  in.reserve(node.inputs.size()), out.reserve(index(node.results));
  for (auto const& input : node.inputs) in.push_back(input.value < 0 ? nullptr : graph.values[index(input.value)].meta.get());
  for (int k = 0; k < node.results; ++k) out.push_back(*graph.values[index(node.first + k)].meta);
  return ir::cost(*node.op, in, out, node.attrs).flops;
}

// A graph while values are made again in it; `origin` says which node of the given graph each of its nodes is.
struct Work {
  ir::Graph graph;
  std::vector<int> origin, recomputed{};
  std::int64_t peak = 0;
  int crowded = 0;    // steps at the peak
  int peak_step = 0;  // the first of them
  std::vector<int> roots{}, block_of{};
  std::vector<Block> blocks{};

  void measure() {
    auto made = blocks_of(graph);
    blocks = std::move(made.blocks);
    block_of.assign(graph.values.size(), -1);
    for (std::size_t b = 0; b < blocks.size(); ++b) block_of[index(made.values[b])] = static_cast<int>(b);
    roots = roots_of(graph);
    auto const alive = live_bytes(blocks, {.taken = accepted(blocks), .alignment = 1}, Arena::step);
    int const begin = blocks.empty() ? 0 : std::ranges::min(blocks, {}, &Block::first).first;
    auto const top = std::ranges::max_element(alive);
    peak = alive.empty() ? 0 : *top;
    peak_step = alive.empty() ? 0 : static_cast<int>(top - alive.begin()) + begin;
    crowded = static_cast<int>(std::ranges::count(alive, peak));
  }
  bool better_than(Work const& other) const { return std::tie(peak, crowded) < std::tie(other.peak, other.crowded); }
  Block const& block(int value) const { return blocks[index(block_of[index(roots[index(value)])])]; }
};

// Ways to hold less at the peak: for each value that is alive there but not used there, the calls that make it again for its next reader.
class Search {
 public:
  Search(Work const& work, RematOptions const& options) : work_(work), options_(options), uses_(work.graph.values.size()) {
    for (int n = 0; std::cmp_less(n, work.graph.nodes.size()); ++n)
      for (auto const& input : work.graph.nodes[index(n)].inputs)
        if (input.value >= 0) uses_[index(work.roots[index(input.value)])].emplace_back(n, input.value);
  }
  std::vector<Candidate> candidates() const {
    std::vector<Candidate> list;
    int const end = static_cast<int>(work_.graph.nodes.size());
    for (int v = 0; std::cmp_less(v, work_.graph.values.size()); ++v) {
      if (work_.roots[index(v)] != v || work_.graph.values[index(v)].node < 0) continue;
      auto const& block = work_.block(v);
      if (block.arena != Arena::step || block.bytes == 0 || block.first >= work_.peak_step || block.last <= work_.peak_step || block.last == end) continue;
      if (auto found = again(v)) list.push_back(std::move(*found));
    }
    std::ranges::stable_sort(list, {}, &Candidate::worth);
    return list;
  }

 private:
  std::optional<Candidate> again(int v) const {
    int const maker = work_.graph.values[index(v)].node, peak = work_.peak_step;
    if (!options_.may_recompute(*work_.graph.nodes[index(maker)].op)) return std::nullopt;
    Candidate made{.reader = -1};
    int before = maker;
    for (auto const& [n, value] : uses_[index(v)]) {
      if (n == peak) return std::nullopt;
      if (n < peak) before = n;
      if (n > peak && made.reader < 0) made.reader = n;
    }
    if (made.reader < 0) return std::nullopt;
    for (auto const& [n, value] : uses_[index(v)])
      if (n >= made.reader && (value == v || work_.graph.values[index(value)].node < made.reader)) made.seeds.push_back(value);
    std::set<int> nodes, held;
    std::int64_t extra = 0;
    std::vector<int> todo = made.seeds;
    while (!todo.empty()) {
      int const value = todo.back(), root = work_.roots[index(value)], node = work_.graph.values[index(value)].node;
      todo.pop_back();
      if (node < 0) continue;
      if (root != v) {
        auto const& block = work_.block(value);
        if (block.arena == Arena::persistent ? block.instead_of < 0 || block.last > made.reader : block.last >= made.reader) continue;  // still there
        if (block.arena == Arena::persistent) return std::nullopt;
        int const source = work_.graph.values[index(root)].node;
        if (!options_.may_recompute(*work_.graph.nodes[index(source)].op)) {  // held longer instead
          if (block.last < peak && held.insert(root).second) extra += block.bytes;
          continue;
        }
      }
      if (!nodes.insert(node).second) continue;
      if (std::cmp_greater(nodes.size(), options_.longest)) return std::nullopt;
      for (auto const& input : work_.graph.nodes[index(node)].inputs)
        if (input.value >= 0) todo.push_back(input.value);
    }
    std::int64_t const saved = work_.block(v).bytes - extra;
    if (saved <= 0) return std::nullopt;
    made.nodes.assign(nodes.begin(), nodes.end());
    for (int n : made.nodes) made.flops += flops_of(work_.graph, n);
    made.worth = made.flops / (static_cast<double>(saved) * (made.reader - before));
    return made;
  }

  Work const& work_;
  RematOptions const& options_;
  std::vector<std::vector<std::pair<int, int>>> uses_;  // of a root: node, value that it reads
};

Work with(Work const& work, Candidate const& choice) {
  Moving moving(work.graph);
  Work next{.recomputed = work.recomputed};
  for (int n = 0; std::cmp_less(n, work.graph.nodes.size()); ++n) {
    if (n == choice.reader) {
      auto const original = moving.moved;
      for (int again : choice.nodes) {
        moving.copy(again);
        next.origin.push_back(work.origin[index(again)]), next.recomputed.push_back(work.origin[index(again)]);
      }
      // Only the value itself is read from the copies, what was made on the way only by them.
      std::set<int> const seeds(choice.seeds.begin(), choice.seeds.end());
      for (int again : choice.nodes) {
        auto const& node = work.graph.nodes[index(again)];
        for (int value = node.first; value < node.first + node.results; ++value)
          if (!seeds.contains(value)) moving.moved[index(value)] = original[index(value)];
      }
    }
    moving.copy(n);
    next.origin.push_back(work.origin[index(n)]);
  }
  next.graph = moving.finish();
  next.measure();
  return next;
}

Work begun(ir::Graph const& graph) {
  Work work{.graph = graph};
  work.origin.resize(graph.nodes.size());
  std::iota(work.origin.begin(), work.origin.end(), 0);
  work.measure();
  return work;
}

Work lowered(Work work, RematOptions const& options) {
  constexpr std::size_t tries = 16;  // candidates that may fail before the peak counts as final
  std::int64_t visited = 0;
  while (work.peak > options.budget_bytes) {
    bool found = false;
    auto const list = Search(work, options).candidates();
    for (std::size_t k = 0; k < std::min(tries, list.size()) && !found && visited < options.effort; ++k) {
      visited += static_cast<std::int64_t>(work.graph.nodes.size());
      if (auto next = with(work, list[k]); next.better_than(work)) work = std::move(next), found = true;
    }
    if (!found) break;
  }
  return work;
}

Rematerialized told(ir::Graph const& given, std::int64_t before, Work work, RematOptions const& options) {
  Rematerialized done{std::move(work.graph), before, work.peak, options.budget_bytes, std::move(work.recomputed)};
  for (int n : done.recomputed) done.flops += flops_of(given, n);
  return done;
}

// The joint graph run as its minimum cut says: the backward part reads what is saved, and makes the rest again where it first needs it.
Work cut(ir::Joint const& joint, RematOptions const& options) {
  auto const& graph = joint.graph;
  auto const parts = ir::partition(joint, {.may_recompute = options.may_recompute, .count_inputs = false});
  std::vector<char> again(graph.nodes.size(), 0), saved(graph.values.size(), 0), output(graph.nodes.size(), 0), late(graph.values.size(), 0);
  for (int n : parts.recomputed) again[index(n)] = 1;
  for (int v : parts.saved) saved[index(v)] = 1;
  for (int k = 0; k < joint.outputs; ++k)
    if (int const maker = graph.values[index(graph.outputs[index(k)])].node; maker >= 0) output[index(maker)] = 1;
  for (std::size_t n = graph.nodes.size(); n-- > 0;)
    if (output[n])
      for (auto const& input : graph.nodes[n].inputs)
        if (input.value >= 0 && graph.values[index(input.value)].node >= 0) output[index(graph.values[index(input.value)].node)] = 1;
  for (int k : joint.cotangents) late[index(graph.inputs[index(k)])] = 1;
  // The backward part: what depends on a cotangent, or without any what no output needs.
  std::vector<char> backward(graph.nodes.size(), 0);
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    auto const& node = graph.nodes[n];
    backward[n] =
        joint.cotangents.empty() ? !output[n] : std::ranges::any_of(node.inputs, [&](ir::Input const& in) { return in.value >= 0 && late[index(in.value)]; });
    for (int k = 0; k < node.results; ++k) late[index(node.first + k)] = backward[n];
  }
  Moving moving(graph);
  Work work;
  std::vector<int> fresh(graph.values.size(), -1);  // as the backward part sees a value
  auto const place = [&](int n) {
    moving.copy(n);
    work.origin.push_back(n);
  };
  auto const make_again = [&](int wanted) {  // and, without recursion, what it is made from
    std::vector<int> todo{wanted}, nodes;
    std::set<int> seen;
    while (!todo.empty()) {
      int const value = todo.back(), maker = graph.values[index(value)].node;
      todo.pop_back();
      if (maker < 0 || saved[index(value)] || !again[index(maker)] || backward[index(maker)] || fresh[index(value)] >= 0 || !seen.insert(maker).second)
        continue;
      nodes.push_back(maker);
      for (auto const& input : graph.nodes[index(maker)].inputs)
        if (input.value >= 0) todo.push_back(input.value);
    }
    std::ranges::sort(nodes);
    for (int n : nodes) {
      auto const original = moving.moved;
      for (auto const& input : graph.nodes[index(n)].inputs)
        if (input.value >= 0 && fresh[index(input.value)] >= 0) moving.moved[index(input.value)] = fresh[index(input.value)];
      place(n);
      work.recomputed.push_back(n);
      auto const& node = graph.nodes[index(n)];
      for (int v = node.first; v < node.first + node.results; ++v)
        if (!saved[index(v)]) fresh[index(v)] = moving.moved[index(v)];
      moving.moved = original;
    }
  };
  for (int n = 0; std::cmp_less(n, graph.nodes.size()); ++n) {
    if (!backward[index(n)]) {
      place(n);
      continue;
    }
    std::vector<std::pair<int, int>> exchanged;
    for (auto const& input : graph.nodes[index(n)].inputs) {
      if (input.value < 0 || late[index(input.value)]) continue;
      make_again(input.value);
      if (int const value = fresh[index(input.value)]; value >= 0) exchanged.emplace_back(input.value, std::exchange(moving.moved[index(input.value)], value));
    }
    place(n);
    for (auto const& [value, old] : exchanged | std::views::reverse) moving.moved[index(value)] = old;
  }
  work.graph = moving.finish();
  work.measure();
  return work;
}
}  // namespace

Rematerialized rematerialize(ir::Graph const& graph, RematOptions const& options) {
  need_no_writes(graph, "rematerialize");
  auto work = begun(graph);
  auto const before = work.peak;
  return told(graph, before, lowered(std::move(work), options), options);
}

Rematerialized rematerialize(ir::Joint const& joint, RematOptions const& options) {
  auto done = rematerialize(joint.graph, options);
  if (done.before <= options.budget_bytes) return done;
  auto other = told(joint.graph, done.before, lowered(cut(joint, options), options), options);
  bool const cheaper = done.reached() && other.reached() ? other.flops < done.flops : other.peak < done.peak;
  return cheaper ? std::move(other) : std::move(done);
}

std::string to_string(Rematerialized const& done) {
  return std::format("step peak {} bytes, {} before, budget {}: {}, {} calls run again, {:.0f} FLOPs", done.peak, done.before, done.budget,
                     done.reached() ? "reached" : "out of reach", done.recomputed.size(), done.flops);
}

}  // namespace tenon::fusion
