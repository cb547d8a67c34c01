// From a graph to launches: groups, kernels without repetition, homes of values.
module tenon.fusion;
import std;
import tenon.base;
import tenon.ir;
import tenon.device;
import :build;
import :print_c;
import :c_text;
import :choose;

namespace tenon::fusion {
namespace ops = ir::ops;
using base::ensure;

namespace {
std::size_t at(int i) { return static_cast<std::size_t>(i); }

struct Planner {
  Program& to;
  ir::Graph& graph = to.grouping.graph;
  std::unordered_map<std::string, int> known{};

  std::string const* choice(std::string_view what, std::size_t launch) {
    auto const found = to.options.choices.find(std::format("{} {}", what, launch));
    if (found == to.options.choices.end()) return nullptr;
    used_choices.insert(found->first);
    return &found->second;
  }
  static void ensure_choice(bool fits, std::string_view what, std::size_t launch, std::string_view value) {
    if (!fits) base::fail("choice \"{} {}\": \"{}\" does not go with it here", what, launch, value);
  }
  std::set<std::string> used_choices{};
  int root(int value) const { return to.grouping.places[at(value)].root; }

  // Kernels that are equal but for names are one.
  int unique(Kernel kernel) {
    Kernel bare = kernel;
    bare.origin.clear();
    for (auto& buffer : bare.buffers) buffer.name.clear();
    auto const [found, fresh] = known.try_emplace(to_string(bare, &graph.symbols), static_cast<int>(to.kernels.size()));
    if (fresh) {
      kernel.name = std::format("tn_kernel{}", to.kernels.size());
      to.kernels.push_back(std::move(kernel));
    }
    return found->second;
  }
  void launches() {
    auto made = kernels_of(to.grouping);
    for (std::size_t g = 0; g < to.grouping.groups.size(); ++g) {
      auto const& group = to.grouping.groups[g];
      Launch launch{.group = static_cast<int>(g)};
      if (group.call) {
        launch.node = group.nodes[0];
        if (graph.nodes[at(launch.node)].op == &ops::constant) continue;  // computed once
        if (graph.nodes[at(launch.node)].op == &ops::matmul)
          if (auto const* const name = choice("gemm", to.launches.size())) {
            for (auto const engine : engines())
              if (name_of(engine) == *name) launch.engine = engine;
            ensure_choice(launch.engine.has_value(), "gemm", to.launches.size(), *name);
          }
      } else {
        auto& kernel = made[g].kernel;
        launch.roots = std::move(made[g].roots);
        schedule(kernel);
        if (auto const* const variant = choice("kernel", to.launches.size())) ensure_choice(vary(kernel, *variant), "kernel", to.launches.size(), *variant);
        verify(kernel);
        launch.kernel = static_cast<int>(kernels_.size());  // until equal ones are joined
        kernels_.push_back(std::move(kernel));
      }
      to.launches.push_back(std::move(launch));
    }
  }
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
    if (launch.node >= 0) return false;
    auto const& kernel = kernels_[at(launch.kernel)];
    auto const write = only_access(launch, fresh, true);
    if (!write) return false;
    int const last_pass = passes(kernel) - 1;  // an earlier one would take from a later one what it reads again
    auto const finished = finished_steps(kernel);
    for (auto const& store : kernel.stores) {
      if (launch.roots[at(store.to.buffer)] != fresh) continue;
      auto const& step = kernel.steps[at(store.step)];
      bool const at_every_point = step.level == all_of(kernel, over_all) && step.pass == last_pass;
      bool const behind_all =
          finished[at(store.step)] && step.level == all_of(kernel, kernel.schedule.form == Form::split ? over_batch | over_rows : over_batch | over_columns);
      if (!at_every_point && !behind_all) return false;
    }
    bool const reads = std::ranges::find(launch.roots, old) != launch.roots.end();
    if (!reads) return to.last[at(old)] < l;
    auto const read = only_access(launch, old, false);
    return read && to.last[at(old)] == l && read->offset == write->offset && read->strides == write->strides;
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
      std::set<int> taken;
      for (std::size_t b = 0; b < launch.roots.size(); ++b) {
        int const fresh = launch.roots[b];
        if (to.homes[at(fresh)].kind != Home::Kind::arena || to.first[at(fresh)] != l) continue;
        for (int const old : launch.roots) {
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
  // The kernel behind a matmul takes its rows as they are done, if it reads just those.
  void epilogues() {
    for (int l = 0; l + 1 < static_cast<int>(to.launches.size()); ++l) {
      auto& launch = to.launches[at(l)];
      auto const& next = to.launches[at(l + 1)];
      if (launch.node < 0 || graph.nodes[at(launch.node)].op != &ops::matmul || next.node >= 0) continue;
      auto const& kernel = kernels_[at(next.kernel)];
      int const product = graph.nodes[at(launch.node)].first;
      if (auto const* const rows = choice("rows", at(l)); rows && *rows == "apart") continue;
      if (has_partials(kernel) || kernel.schedule.form == Form::split || std::ranges::find(next.roots, product) == next.roots.end()) continue;
      launch.with_next = rows_match(kernel, next, product);
    }
  }
  // Whether item i of the kernel reads row i of the product, and nothing else of it.
  bool rows_match(Kernel const& kernel, Launch const& launch, int product) const {
    auto const& meta = *graph.values[at(product)].meta;
    if (meta.rank() < 2 || ir::contiguous_meta(meta.dtype, meta.device, meta.sizes).strides != to.grouping.places[at(product)].strides) return false;
    int const outer = outer_axes(kernel);
    ir::Dim rows = 1, items = 1;
    for (std::size_t d = 0; d + 1 < meta.sizes.size(); ++d) rows = rows * meta.sizes[d];
    for (int a = 0; a < outer; ++a) items = items * kernel.axes[at(a)].size;
    auto const width = meta.sizes[meta.sizes.size() - 1];
    if (rows != items || outer == 0) return false;
    for (auto const& step : kernel.steps) {
      if (step.kind != Step::Kind::load || launch.roots[at(step.access.buffer)] != product) continue;
      if (step.access.index >= 0 || step.access.guard >= 0) return false;
      ir::Dim stride = width;
      for (int a = outer; a-- > 0;) {
        if (step.access.strides[at(a)] != stride) return false;
        stride = stride * kernel.axes[at(a)].size;
      }
      std::int64_t reach = step.access.offset.value;
      for (std::size_t a = at(outer); a < kernel.axes.size(); ++a) {
        if (step.access.strides[a].node >= 0 || kernel.axes[a].size.node >= 0) {
          if (!(kernel.axes.size() == at(outer) + 1 && step.access.strides[a] == ir::Dim(1) && kernel.axes[a].size == width &&
                step.access.offset == ir::Dim(0)))
            return false;
          reach = -1;
        } else {
          reach += step.access.strides[a].value * (kernel.axes[a].size.value - 1);
        }
      }
      if (reach >= 0 && (width.node >= 0 || step.access.offset.node >= 0 || step.access.offset.value < 0 || reach >= width.value)) return false;
    }
    return true;
  }
  void name_kernels() {
    for (auto& launch : to.launches)
      if (launch.node < 0) launch.kernel = unique(std::move(kernels_[at(launch.kernel)]));
  }
  void write_source() {
    to.source = std::string(prelude());
    for (auto const& kernel : to.kernels) to.source += "\n" + c_text(kernel);
  }
  std::vector<Kernel> kernels_{};
};
}  // namespace

namespace {
// A new option must find its place here: it does not compile otherwise.
std::string words_of(LowerOptions const& options) {
  auto const& [group, interpret, in_place, memory_budget, grain, mode, tune_seconds, choices] = options;
  auto const& [fuse, max_steps, max_buffers, apart] = group;
  std::string alone, chosen;
  for (int const node : apart) alone += std::format(" {}", node);
  for (auto const& [name, value] : choices) chosen += std::format(" '{}'='{}'", name, value);
  return std::format("fuse={} max_steps={} max_buffers={} apart={{{}}} interpret={} in_place={} memory_budget={} grain={} mode={} tune_seconds={}{}", fuse,
                     max_steps, max_buffers, alone, interpret, in_place, memory_budget, grain, static_cast<int>(mode), tune_seconds, chosen);
}
Key key_of_canonical(ir::Graph const& graph, LowerOptions const& options) {
  auto parts = parts_of(graph);
  parts.push_back(key_part("options", words_of(options)));
  std::ranges::move(parts_of_this_machine(), std::back_inserter(parts));
  return key_of(std::move(parts));
}
}  // namespace

Key key_of(ir::Graph const& graph, LowerOptions const& options) { return key_of_canonical(canonical(graph), options); }

Program plan(ir::Graph const& graph, LowerOptions const& options) {
  auto const start = std::chrono::steady_clock::now();
  auto how = options.group;
  choose_groups(options.choices, how);
  auto const ordered = canonical(graph);
  Program program{.grouping = group(primitive(ordered), how), .options = options};
  program.key = key_of_canonical(ordered, options);
  ir::Symbols::Scope const scope(&program.grouping.graph.symbols);
  Planner planner{program};
  planner.launches();
  planner.lifetimes();
  planner.homes();
  planner.epilogues();
  planner.name_kernels();
  planner.write_source();
  refuse_unused(options.choices, planner.used_choices);
  program.group_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return program;
}

std::string to_string(Program const& program) {
  auto const& graph = program.grouping.graph;
  constexpr std::string_view kinds[] = {"none", "input", "constant", "output", "in place of input", "arena"};
  std::string text = to_string(graph) + to_string(program.grouping);
  for (auto const& kernel : program.kernels) text += to_string(kernel, &graph.symbols);
  for (std::size_t l = 0; l < program.launches.size(); ++l) {
    auto const& launch = program.launches[l];
    text += launch.node >= 0 ? std::format("{}: {} %{}{}\n", l, graph.nodes[at(launch.node)].op->name, graph.nodes[at(launch.node)].first,
                                           launch.with_next ? ", rows to the next" : "")
                             : std::format("{}: {}\n", l, program.kernels[at(launch.kernel)].name);
  }
  for (std::size_t v = 0; v < program.homes.size(); ++v)
    if (program.homes[v].kind != Home::Kind::none)
      text += std::format("%{}: {} {}\n", v, kinds[static_cast<std::size_t>(program.homes[v].kind)], program.homes[v].number);
  return text;
}

Runner lower(ir::Graph const& graph, LowerOptions const& options) {
  if (options.mode != Mode::max_autotune || !options.choices.empty()) return runner(plan(graph, options));
  auto tuned = options;
  tuned.choices = tune(graph, options);
  return runner(plan(graph, tuned));
}

}  // namespace tenon::fusion
