// Cutting a graph into groups: a node joins the groups that it reads from, or reads with, where that saves memory traffic and one loop nest can hold both.
module tenon.fusion;
import std;
import tenon.base;
import tenon.ir;
import :build;

namespace tenon::fusion {
namespace ops = ir::ops;
using base::ensure;
using ir::Node;

namespace {
std::size_t at(int i) { return static_cast<std::size_t>(i); }

double bytes_of(ir::Meta const& meta) {
  double n = base::bytes_of(meta.dtype);
  for (auto const size : meta.sizes) n *= static_cast<double>(size.value);
  return n;
}

// A refusal, what it is called, and what to say.
struct Words {
  Refusal refusal;
  std::string_view text;
};
constexpr Words words[] = {
    {Refusal::none, "they share a kernel"},
    {Refusal::call, "one of them is a library call, which no loop nest computes"},
    {Refusal::view, "one of them is a view: it is never computed"},
    {Refusal::unrelated, "neither reads the other and they read nothing in common"},
    {Refusal::cycle, "a node that is in neither kernel must run between them"},
    {Refusal::space, "their iteration spaces differ"},
    {Refusal::index, "no strides lead from the elements of one to those of the other"},
    {Refusal::reduction, "their reductions take away different dims"},
    {Refusal::order, "one needs the whole result of a reduction of the other at every point"},
    {Refusal::size, "the kernel would hold too many steps or buffers"},
    {Refusal::parallel, "the few long rows of the reduction could no longer be cut for several threads"},
    {Refusal::memory, "what the later one makes would be held for long, and is more than what it would no longer need"},
};

struct Grouper {
  Grouping& to;
  GroupOptions const& options;
  Analysis analysis;
  bool exact = false;
  struct Set {
    std::vector<int> nodes;  // empty: merged into another
    int lowest = 0, highest = 0;
  };
  std::vector<Set> sets{};
  std::vector<int> set_of{};                                               // per node: its loop set or call; -1 for views and inlined nodes
  std::vector<char> member = std::vector<char>(to.graph.nodes.size(), 0);  // scratch of attempts
  std::vector<int> stamp{};
  int stamps = 0;
  static constexpr int far = 4;     // calls between two sets
  std::vector<int> calls_before{};  // per node

  ir::Graph const& graph() const { return to.graph; }
  bool apart(int n) const { return std::ranges::binary_search(options.apart, n); }
  bool is_loop(int n) const { return to.ways[at(n)] == Way::loop; }
  int root(int value) const { return to.places[at(value)].root; }
  int maker(int value) const { return graph().values[at(root(value))].node; }

  bool needs_set(int n) const {
    if (to.ways[at(n)] == Way::view) return false;
    auto const& node = graph().nodes[at(n)];
    if (!is_loop(n) || !inlined(node)) return true;
    return analysis.escapes[at(node.first)] || std::ranges::any_of(analysis.readers[at(node.first)], [&](int reader) { return !is_loop(reader); });
  }
  void each_source(int set, auto f) const {
    for (int const n : sets[at(set)].nodes)
      for (auto const& input : graph().nodes[at(n)].inputs)
        if (input.value >= 0)
          if (int const from = maker(input.value); from >= 0 && set_of[at(from)] >= 0 && set_of[at(from)] != set) f(set_of[at(from)]);
  }
  // Whether a path leads from one of the two sets to one of them through another set.
  bool ties_a_loop(int a, int b) {
    ++stamps;
    int const lowest = std::min(sets[at(a)].lowest, sets[at(b)].lowest);
    std::vector<int> todo;
    bool found = false;
    auto const visit = [&](int from) {
      if (from == a || from == b || stamp[at(from)] == stamps) return;
      if (!exact && sets[at(from)].highest < lowest) return;
      stamp[at(from)] = stamps, todo.push_back(from);
    };
    each_source(a, visit), each_source(b, visit);
    while (!todo.empty() && !found) {
      int const next = todo.back();
      todo.pop_back();
      each_source(next, [&](int from) { found |= from == a || from == b, visit(from); });
    }
    return found;
  }
  std::vector<int> both(int a, int b) const {
    std::vector<int> nodes;
    std::ranges::merge(sets[at(a)].nodes, sets[at(b)].nodes, std::back_inserter(nodes));
    return nodes;
  }
  Refusal fits(std::vector<int> const& nodes) {
    if (std::cmp_greater(nodes.size(), options.max_steps)) return Refusal::size;
    for (int const n : nodes) member[at(n)] = 1;
    auto const built = build(analysis, nodes, member, false);
    bool const serial = built.refusal == Refusal::none && few_long_rows(built) && !can_walk(build(analysis, nodes, member, true).kernel, Form::split);
    for (int const n : nodes) member[at(n)] = 0;
    if (built.refusal != Refusal::none) return built.refusal;
    if (std::cmp_greater(built.buffers.size(), options.max_buffers) || std::cmp_greater(built.kernel.steps.size(), 4 * options.max_steps)) return Refusal::size;
    return serial ? Refusal::parallel : Refusal::none;
  }
  // A few rows that are long and walked several times would keep one thread busy and the others idle, if their columns can't be cut.
  static bool few_long_rows(Built const& built) {
    bool again = false;
    for (auto const& step : built.kernel.steps) again |= step.pass > 0 && (step.level & over_columns);
    return again && built.rows < few_rows && built.columns > long_row;
  }
  // Two sets far apart: whether what the later one makes and others read later is more than what they would no longer hold between.
  bool holds_more(int a, int b) const {
    if (sets[at(a)].lowest > sets[at(b)].lowest) std::swap(a, b);
    auto const &early = sets[at(a)], &late = sets[at(b)];
    if (early.highest > late.lowest || calls_before[at(late.lowest)] - calls_before[at(early.highest)] < far) return false;
    auto const in = [&](int n, int set) { return set_of[at(n)] == set; };
    double made = 0, freed = 0;
    for (int const n : late.nodes) {
      int const value = graph().nodes[at(n)].first;
      if (std::ranges::any_of(analysis.readers[at(value)], [&](int r) { return !in(r, a) && !in(r, b); })) made += bytes_of(*graph().values[at(value)].meta);
    }
    std::set<int> seen;
    for (int const n : late.nodes)
      for (auto const& input : graph().nodes[at(n)].inputs) {
        if (input.value < 0) continue;
        int const r = root(input.value), from = graph().values[at(r)].node;
        if (from < 0 || in(from, b) || analysis.escapes[at(r)] || !seen.insert(r).second) continue;
        bool const last = std::ranges::all_of(analysis.readers[at(r)], [&](int reader) {
          return in(reader, a) || in(reader, b) || calls_before[at(reader)] - calls_before[at(early.highest)] < far;
        });
        if (last) freed += bytes_of(*graph().values[at(r)].meta);
      }
    return made > freed;
  }
  Refusal refusal(int a, int b) {
    if (ties_a_loop(a, b)) return Refusal::cycle;
    if (holds_more(a, b)) return Refusal::memory;
    return fits(both(a, b));
  }
  void merge(int a, int b) {
    auto nodes = both(a, b);
    for (int const n : nodes) set_of[at(n)] = b;
    sets[at(b)] = {std::move(nodes), std::min(sets[at(a)].lowest, sets[at(b)].lowest), std::max(sets[at(a)].highest, sets[at(b)].highest)};
    sets[at(a)].nodes.clear();
  }
  // The sets that node n could join, and the traffic which that saves, largest first.
  std::vector<std::pair<double, int>> candidates(int n) const {
    std::map<int, double> bytes;
    int const own = set_of[at(n)];
    for (auto const& input : graph().nodes[at(n)].inputs) {
      if (input.value < 0) continue;
      int const r = root(input.value), from = graph().values[at(r)].node;
      if (from >= 0 && is_loop(from) && set_of[at(from)] >= 0 && set_of[at(from)] != own) bytes[set_of[at(from)]] += 2 * bytes_of(*graph().values[at(r)].meta);
      if (from >= 0 && inlined(graph().nodes[at(from)])) continue;
      auto const& readers = analysis.readers[at(r)];
      for (std::size_t k = 0, looked = 0; k < readers.size() && looked < 8; ++k) {  // those that read the same, the latest first
        int const other = readers[readers.size() - 1 - k];
        if (other >= n) continue;
        ++looked;
        if (is_loop(other) && set_of[at(other)] >= 0 && set_of[at(other)] != own) bytes[set_of[at(other)]] += bytes_of(*graph().values[at(r)].meta);
      }
    }
    std::vector<std::pair<double, int>> list;
    list.reserve(bytes.size());
    for (auto const& [set, saved] : bytes) list.emplace_back(saved, set);
    std::ranges::sort(list, [](auto const& a, auto const& b) { return a.first != b.first ? a.first > b.first : a.second > b.second; });
    return list;
  }

  // A node that no loop nest computes by itself is a call.
  void settle_ways() {
    for (int n = 0; std::cmp_less(n, graph().nodes.size()); ++n)
      if (is_loop(n) && fits({n}) != Refusal::none) to.ways[at(n)] = Way::call;
  }
  void start() {
    set_of.assign(graph().nodes.size(), -1);
    sets.clear();
    for (int n = 0; std::cmp_less(n, graph().nodes.size()); ++n)
      if (needs_set(n)) set_of[at(n)] = static_cast<int>(sets.size()), sets.push_back({{n}, n, n});
    stamp.assign(sets.size(), 0);
    calls_before.assign(graph().nodes.size(), 0);
    for (std::size_t n = 1; n < calls_before.size(); ++n) calls_before[n] = calls_before[n - 1] + (to.ways[n - 1] == Way::call ? 1 : 0);
  }
  void fuse() {
    for (int n = 0; std::cmp_less(n, graph().nodes.size()); ++n) {
      if (set_of[at(n)] < 0 || !is_loop(n) || apart(n)) continue;
      for (auto const& [saved, set] : candidates(n)) {
        if (sets[at(set)].nodes.empty() || set == set_of[at(n)] || apart(sets[at(set)].nodes[0])) continue;
        if (refusal(set, set_of[at(n)]) == Refusal::none) merge(set, set_of[at(n)]);
      }
    }
  }
  // Groups in an order in which they can run, close to the graph's; false if there is none. One that makes a new value of an input waits for the
  // others that read the old one, where it can, so that it may write there.
  bool order() {
    std::vector<std::set<int>> readers(sets.size());
    std::vector<int> waits(sets.size(), 0), before_writing(sets.size(), 0);
    std::vector<std::vector<int>> lets_write(sets.size());
    std::size_t left = 0;
    for (std::size_t s = 0; s < sets.size(); ++s) {
      if (sets[s].nodes.empty()) continue;
      ++left;
      each_source(static_cast<int>(s), [&](int from) {
        if (readers[at(from)].insert(static_cast<int>(s)).second) ++waits[s];
      });
    }
    auto const plain = graph().outputs.size() - graph().mutated.size();
    for (std::size_t m = 0; m < graph().mutated.size(); ++m) {
      int const from = maker(graph().outputs[plain + m]), writer = from < 0 ? -1 : set_of[at(from)];
      if (writer < 0) continue;
      std::set<int> others;
      for (int const reader : analysis.readers[at(graph().inputs[at(graph().mutated[m])])])
        if (int const set = set_of[at(reader)]; set >= 0 && set != writer) others.insert(set);
      for (int const set : others) lets_write[at(set)].push_back(writer), ++before_writing[at(writer)];
    }
    std::set<std::tuple<bool, int, int>> ready;  // those that would write too early last
    auto const key = [&](int s) { return std::tuple(before_writing[at(s)] > 0, sets[at(s)].highest, s); };
    for (int s = 0; std::cmp_less(s, sets.size()); ++s)
      if (!sets[at(s)].nodes.empty() && waits[at(s)] == 0) ready.insert(key(s));
    to.group_of.assign(graph().nodes.size(), -1);
    to.groups.clear();
    while (!ready.empty()) {
      int const s = std::get<2>(*ready.begin());
      ready.erase(ready.begin());
      --left;
      for (int const n : sets[at(s)].nodes) to.group_of[at(n)] = static_cast<int>(to.groups.size());
      to.groups.push_back({sets[at(s)].nodes, !is_loop(sets[at(s)].nodes[0]), 0});
      for (int const writer : lets_write[at(s)]) {
        bool const waiting = ready.erase(key(writer)) > 0;
        --before_writing[at(writer)];
        if (waiting) ready.insert(key(writer));
      }
      for (int const reader : readers[at(s)])
        if (--waits[at(reader)] == 0) ready.insert(key(reader));
    }
    return left == 0;
  }
  void count_saved() {
    for (auto& group : to.groups)
      for (int const n : group.nodes) {
        auto const value = graph().nodes[at(n)].first;
        bool const outside =
            analysis.escapes[at(value)] || std::ranges::any_of(analysis.readers[at(value)], [&](int r) { return to.group_of[at(r)] != to.group_of[at(n)]; });
        if (!outside && group.nodes.size() > 1) group.bytes_saved += 2 * bytes_of(*graph().values[at(value)].meta);
      }
  }
};
GroupKernel kernel_of(Grouping const& grouping, Analysis const& analysis, Group const& group, std::vector<char>& member) {
  for (int const n : group.nodes) member[at(n)] = 1;
  auto built = build(analysis, group.nodes, member, true);
  for (int const n : group.nodes) member[at(n)] = 0;
  ensure(built.refusal == Refusal::none, std::format("a group can't be built: {}", text_of(built.refusal)));
  for (int const n : group.nodes) {
    auto const& node = grouping.graph.nodes[at(n)];
    built.kernel.origin.push_back(line_of(node));
  }
  return {std::move(built.kernel), std::move(built.buffers)};
}
}  // namespace

std::string_view text_of(Refusal refusal) {
  for (auto const& word : words)
    if (word.refusal == refusal) return word.text;
  return "";
}

Grouping group(ir::Graph graph, GroupOptions const& options) {
  Grouping done{std::move(graph), {}, {}, {}, {}};
  ir::Symbols::Scope const scope(&done.graph.symbols);
  done.places = places_of(done.graph);
  done.ways = ways_of(done.graph, done.places);
  Grouper grouper{done, options, analyse(done.graph, done.places, done.ways)};
  grouper.settle_ways();
  for (bool const exact : {false, true}) {
    grouper.exact = exact;
    grouper.start();
    if (options.fuse) grouper.fuse();
    if (grouper.order()) break;
    ensure(!exact, "groups wait for one another");
  }
  grouper.count_saved();
  return done;
}

Refusal why_not_fused(Grouping const& grouping, int a, int b) {
  if (a > b) std::swap(a, b);
  auto const way = [&](int n) { return grouping.ways[at(n)]; };
  if (way(a) == Way::view || way(b) == Way::view) return Refusal::view;
  if (way(a) == Way::call || way(b) == Way::call) return Refusal::call;
  if (grouping.group_of[at(a)] == grouping.group_of[at(b)]) return Refusal::none;
  Grouping copy = grouping;
  ir::Symbols::Scope const scope(&copy.graph.symbols);
  GroupOptions const options;
  Grouper grouper{copy, options, analyse(copy.graph, copy.places, copy.ways)};
  grouper.exact = true;
  grouper.start();
  for (std::size_t g = 0; g < grouping.groups.size(); ++g)
    for (int const n : grouping.groups[g].nodes)
      if (n != grouping.groups[g].nodes[0]) grouper.merge(grouper.set_of[at(n)], grouper.set_of[at(grouping.groups[g].nodes[0])]);
  auto const inputs_of = [&](int n) {
    std::set<int> roots;
    for (int const m : grouping.groups[at(grouping.group_of[at(n)])].nodes)
      for (auto const& input : copy.graph.nodes[at(m)].inputs)
        if (input.value >= 0) roots.insert(grouper.root(input.value));
    return roots;
  };
  auto const mine = inputs_of(a), yours = inputs_of(b);
  bool related = std::ranges::any_of(mine, [&](int r) { return yours.contains(r); });
  for (auto const& [roots, other] : {std::pair{&mine, b}, {&yours, a}})
    for (int const r : *roots)
      if (int const from = copy.graph.values[at(r)].node; from >= 0) related |= grouping.group_of[at(from)] == grouping.group_of[at(other)];
  if (!related) return Refusal::unrelated;
  return grouper.refusal(grouper.set_of[at(a)], grouper.set_of[at(b)]);
}

std::vector<GroupKernel> kernels_of(Grouping& grouping) {
  ir::Symbols::Scope const scope(&grouping.graph.symbols);
  auto const analysis = analyse(grouping.graph, grouping.places, grouping.ways);
  std::vector<char> member(grouping.graph.nodes.size(), 0);
  std::vector<GroupKernel> made;
  made.reserve(grouping.groups.size());
  for (auto const& group : grouping.groups) made.push_back(group.call ? GroupKernel{} : kernel_of(grouping, analysis, group, member));
  return made;
}

std::string to_string(Grouping const& grouping) {
  std::string text;
  for (std::size_t g = 0; g < grouping.groups.size(); ++g) {
    auto const& group = grouping.groups[g];
    text += std::format("{} {}:", group.call ? "call" : "kernel", g);
    for (int const n : group.nodes) text += std::format(" %{}={}", grouping.graph.nodes[at(n)].first, grouping.graph.nodes[at(n)].op->name);
    if (group.bytes_saved > 0) text += std::format("  saves {:.0f} bytes", group.bytes_saved);
    text += "\n";
  }
  return text;
}

}  // namespace tenon::fusion
