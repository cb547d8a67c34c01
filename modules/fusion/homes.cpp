// Where the values of a plan lie: in inputs, constants, fresh outputs or the arena, and who may take over whose memory.
module tenon.fusion;
import std;
import tenon.base;
import tenon.ir;
import :homes;
import :library;
import :print_c;

namespace tenon::fusion {
namespace ops = ir::ops;

namespace {
std::size_t at(int i) { return static_cast<std::size_t>(i); }

struct Housing {
  Program& to;
  std::span<Kernel const> kernels_;
  ir::Graph const& graph = to.grouping.graph;

  int root(int value) const { return to.grouping.places[at(value)].root; }
  void lifetimes() {
    to.first.assign(graph.values.size(), -1), to.last.assign(graph.values.size(), -1);
    for (int l = 0; std::cmp_less(l, to.launches.size()); ++l) {
      auto const& launch = to.launches[at(l)];
      auto const touch = [&](int r) {
        if (to.first[at(r)] < 0) to.first[at(r)] = l;
        to.last[at(r)] = l;
      };
      if (launch.node >= 0) {
        auto const& node = graph.nodes[at(launch.node)];
        for (auto const& input : node.inputs)
          if (input.value >= 0) touch(root(input.value));
        for (int k = 0; k < node.results; ++k) touch(node.first + k);
      }
      for (int const r : launch.roots) touch(r);
    }
  }
  void homes() {
    to.homes.assign(graph.values.size(), {});
    for (std::size_t k = 0; k < graph.inputs.size(); ++k) to.homes[at(graph.inputs[k])] = {Home::Kind::input, static_cast<int>(k)};
    int constants = 0;
    for (auto const& node : graph.nodes)
      if (node.op == &ops::constant) to.homes[at(node.first)] = {Home::Kind::constant, constants++};
    if (to.options.in_place) write_back();
    for (int const output : graph.outputs) {
      int const r = root(output);
      if (to.homes[at(r)].kind != Home::Kind::none) continue;
      to.homes[at(r)] = {Home::Kind::output, static_cast<int>(to.output_roots.size())};
      to.output_roots.push_back(r);
    }
    int blocks = 0;
    for (int r = 0; std::cmp_less(r, graph.values.size()); ++r)
      if (to.first[at(r)] >= 0 && to.homes[at(r)].kind == Home::Kind::none) to.homes[at(r)] = {Home::Kind::arena, blocks++};
    offer_reuse();
  }
  // The access by which a launch's kernel reads or writes a root, if it is one and plain.
  std::optional<Access> only_access(Launch const& launch, int r, bool written) const {
    auto const& kernel = kernels_[at(launch.kernel)];
    std::optional<Access> found;
    auto const same = [](Access const& a, Access const& b) {
      return a.offset == b.offset && a.strides == b.strides && a.index == b.index && a.guard == b.guard;
    };
    auto const see = [&](Access const& access) {
      if (launch.roots[at(access.buffer)] != r) return true;
      if (access.index >= 0 || access.guard >= 0 || (found && !same(*found, access))) return false;
      found = access;
      return true;
    };
    if (written) {
      for (auto const& store : kernel.stores)
        if (!see(store.to)) return std::nullopt;
    } else {
      for (auto const& step : kernel.steps)
        if (step.kind == Step::Kind::load && !see(step.access)) return std::nullopt;
    }
    return found;
  }
  // Whether what a launch writes to `fresh` may lie where `old` lies: it reads each element at the point that writes it, and nobody reads it later.
  bool may_overwrite(int l, int fresh, int old) const {
    auto const& launch = to.launches[at(l)];
    if (launch.node >= 0) return adds_to(launch.node, old) && to.last[at(old)] == l;
    auto const& kernel = kernels_[at(launch.kernel)];
    auto const write = only_access(launch, fresh, true);
    if (!write) return false;
    int const last_pass = passes(kernel) - 1;  // an earlier one would take from a later one what it reads again
    auto const finished = finished_steps(kernel);
    for (auto const& store : kernel.stores) {
      if (launch.roots[at(store.to.buffer)] != fresh) continue;
      auto const& step = kernel.steps[at(store.step)];
      bool const at_every_point = step.level == all_of(kernel, over_all) && step.pass == last_pass;
      bool const behind_all =  // a second pass over chunks comes later
          !has_second_pass(kernel) && finished[at(store.step)] &&
          step.level == all_of(kernel, kernel.schedule.form == Form::split ? over_batch | over_rows : over_batch | over_columns);
      if (!at_every_point && !behind_all) return false;
    }
    bool const reads = std::ranges::find(launch.roots, old) != launch.roots.end();
    if (!reads) return to.last[at(old)] < l;
    auto const read = only_access(launch, old, false);
    return read && to.last[at(old)] == l && read->offset == write->offset && read->strides == write->strides;
  }
  // Whether a call adds to its first operand, all of the memory of `old`, and reads nothing else of it.
  bool adds_to(int n, int old) const {
    auto const& node = graph.nodes[at(n)];
    int const first = node.inputs[0].value;
    if (!adds_to_first(*node.op) || first < 0 || root(first) != old) return false;
    for (std::size_t k = 1; k < node.inputs.size(); ++k)
      if (node.inputs[k].value >= 0 && root(node.inputs[k].value) == old) return false;
    auto const &meta = *graph.values[at(first)].meta, &whole = *graph.values[at(old)].meta;
    auto const& place = to.grouping.places[at(first)];
    return base::is_real(meta.dtype) && meta.dtype == whole.dtype && ir::product(meta.sizes) == ir::product(whole.sizes) && place.offset == ir::Dim(0) &&
           place.strides == ir::contiguous_meta(meta.dtype, meta.device, meta.sizes).strides;
  }
  static Roles all_of(Kernel const& kernel, int roles) {
    Roles all = 0;
    for (auto const& axis : kernel.axes) all |= roles_of(axis.role);
    return static_cast<Roles>(all & roles);
  }
  // Steps that are known when every partial result is: what they lead to is stored behind the last point, once an item that is finished.
  static std::vector<char> finished_steps(Kernel const& kernel) {
    std::vector<char> finished(kernel.steps.size(), 0);
    for (int const k : partial_steps(kernel)) finished[at(k)] = 1;
    for (std::size_t k = 0; k < kernel.steps.size(); ++k) {
      auto const& step = kernel.steps[k];
      for (auto const in : step.in) finished[k] |= finished[at(in)];
      for (int const in : {step.access.index, step.access.guard})
        if (in >= 0) finished[k] |= finished[at(in)];
    }
    return finished;
  }
  void write_back() {
    auto const from = graph.outputs.size() - graph.mutated.size();
    for (std::size_t m = 0; m < graph.mutated.size(); ++m) {
      int const value = graph.outputs[from + m], input = graph.inputs[at(graph.mutated[m])];
      auto const &now = *graph.values[at(value)].meta, &before = *graph.values[at(input)].meta;
      bool const plain = root(value) == value && graph.values[at(value)].node >= 0 && to.homes[at(value)].kind == Home::Kind::none &&
                         now.dtype == before.dtype && now.sizes == before.sizes &&
                         ir::contiguous_meta(before.dtype, before.device, before.sizes).strides == before.strides;
      if (!plain || to.first[at(value)] < 0) continue;
      int others = 0;
      for (int const output : graph.outputs) others += root(output) == value || root(output) == input ? 1 : 0;
      if (others != 1) continue;
      int const l = to.first[at(value)];
      bool const unread = to.last[at(input)] < l;
      bool const by_call = to.launches[at(l)].node >= 0;
      if (by_call ? !unread : !may_overwrite(l, value, input)) continue;
      to.homes[at(value)] = {Home::Kind::in_place, graph.mutated[m]};
    }
  }
  void offer_reuse() {
    for (int l = 0; std::cmp_less(l, to.launches.size()); ++l) {
      auto const& launch = to.launches[at(l)];
      std::vector<int> roots = launch.roots;
      if (launch.node >= 0 && adds_to_first(*graph.nodes[at(launch.node)].op)) {
        auto const& node = graph.nodes[at(launch.node)];
        roots = {node.first};
        if (node.inputs[0].value >= 0) roots.push_back(root(node.inputs[0].value));
      }
      std::set<int> taken;
      for (int const fresh : roots) {
        if (to.homes[at(fresh)].kind != Home::Kind::arena || to.first[at(fresh)] != l) continue;
        for (int const old : roots) {
          if (old == fresh || taken.contains(old) || to.homes[at(old)].kind != Home::Kind::arena || to.first[at(old)] == l || to.last[at(old)] != l) continue;
          auto const &a = *graph.values[at(old)].meta, &c = *graph.values[at(fresh)].meta;
          if (a.dtype != c.dtype || ir::product(a.sizes) != ir::product(c.sizes) || !may_overwrite(l, fresh, old)) continue;
          to.reuse.emplace_back(old, fresh);
          taken.insert(old);
          break;
        }
      }
    }
  }
};
}  // namespace

void give_homes(Program& program, std::span<Kernel const> kernels) {
  Housing housing{program, kernels};
  housing.lifetimes();
  housing.homes();
}

}  // namespace tenon::fusion
