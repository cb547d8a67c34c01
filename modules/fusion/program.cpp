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
import :entry;
import :homes;
import :run;

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
      launch.with_next = rows_match(kernel, next, product) && !overwrites_operands(l);
      if (!launch.with_next) continue;
      for (auto const& input : graph.nodes[at(launch.node)].inputs)  // other threads still read them while the kernel writes
        if (input.value >= 0) to.last[at(root(input.value))] = std::max(to.last[at(root(input.value))], l + 1);
    }
  }
  // Whether the kernel behind product l writes where the product's operands lie.
  bool overwrites_operands(int l) const {
    for (auto const& input : graph.nodes[at(to.launches[at(l)].node)].inputs) {
      if (input.value < 0) continue;
      int const operand = root(input.value);
      for (auto const& [old, fresh] : to.reuse)
        if (old == operand && to.first[at(fresh)] == l + 1) return true;
      for (int const written : to.launches[at(l + 1)].roots)
        if (auto const& home = to.homes[at(written)]; home.kind == Home::Kind::in_place && graph.inputs[at(home.number)] == operand) return true;
    }
    return false;
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
  std::span<Kernel const> kernels() const { return kernels_; }
  std::vector<Kernel> kernels_{};
};
}  // namespace

namespace {
// A new option must find its place here: it does not compile otherwise.
std::string words_of(LowerOptions const& options) {
  auto const& [group, interpret, in_place, memory_budget, memory_share, grain, mode, tune_seconds, choices] = options;
  auto const& [fuse, max_steps, max_buffers, apart] = group;
  std::string alone, chosen;
  for (int const node : apart) alone += std::format(" {}", node);
  for (auto const& [name, value] : choices) chosen += std::format(" '{}'='{}'", name, value);
  return std::format(
      "fuse={} max_steps={} max_buffers={} apart={{{}}} interpret={} in_place={} memory_budget={} memory_share={} grain={} mode={} tune_seconds={}{}", fuse,
      max_steps, max_buffers, alone, interpret, in_place, memory_budget, memory_share, grain, static_cast<int>(mode), tune_seconds, chosen);
}
Key key_of_canonical(ir::Graph const& graph, LowerOptions const& options) {
  auto parts = parts_of(graph);
  parts.push_back(key_part("options", words_of(options)));
  std::ranges::move(parts_of_this_machine(), std::back_inserter(parts));
  return key_of(std::move(parts));
}
}  // namespace

Key key_of(ir::Graph const& graph, LowerOptions const& options) { return key_of_canonical(canonical(graph), options); }

namespace {
// A plan of a primitive graph, and the choices that had a place in it.
std::pair<Program, std::set<std::string>> planned(ir::Graph lowered, LowerOptions const& options, GroupOptions const& how) {
  Program program{.grouping = group(std::move(lowered), how), .options = options};
  ir::Symbols::Scope const scope(&program.grouping.graph.symbols);
  Planner planner{program};
  planner.launches();
  give_homes(program, planner.kernels());
  planner.epilogues();
  planner.name_kernels();
  return {std::move(program), std::move(planner.used_choices)};
}
// What a plan may need. Without one of the caller's there is a budget where it can be reached, and where memory matters at all.
std::int64_t budget_of(ir::Graph const& graph, Held const& needs, LowerOptions const& options) {
  constexpr std::int64_t matters = std::int64_t{1} << 20;
  if (options.memory_budget > 0) return options.memory_budget;
  if (options.memory_share <= 0 || needs.peak() < matters) return std::numeric_limits<std::int64_t>::max();
  auto const budget = static_cast<std::int64_t>(options.memory_share * static_cast<double>(eager_peak(graph)));
  return needs.outputs <= budget ? budget : std::numeric_limits<std::int64_t>::max();
}
}  // namespace

Program plan(ir::Graph const& graph, LowerOptions const& options) {
  auto const start = std::chrono::steady_clock::now();
  auto how = options.group;
  choose_groups(options.choices, how);
  auto const ordered = canonical(graph);
  auto const lowered = primitive(ordered);
  auto made = planned(lowered, options, how);
  // Graphs that hold less, the one that changes least first, until a plan fits; else the plan that needs least.
  constexpr int ways = 3;
  auto needs = held(made.first);
  auto const budget = budget_of(ordered, needs, options);
  auto const effort = options.memory_budget > 0 ? RematOptions{}.effort : std::int64_t{300'000};  // some tenths of a second
  for (int k = 0; k < ways && needs.peak() > budget; ++k) {
    auto less = k == 0 ? reorder(lowered) : rematerialize(lowered, {.budget_bytes = budget, .effort = effort}).graph;
    if (k == 2) less = reorder(less);
    auto other = planned(std::move(less), options, how);
    if (auto const its = held(other.first); its.peak() < needs.peak()) made = std::move(other), needs = its;
  }
  auto& program = made.first;
  refuse_unused(options.choices, made.second);
  program.key = key_of_canonical(ordered, options);
  program.source = prelude();
  for (auto const& kernel : program.kernels) program.source += "\n" + c_text(kernel);
  program.group_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return std::move(program);
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
  auto chosen = options;
  chosen.choices = tuned(graph, options);
  return runner(plan(graph, chosen));
}

}  // namespace tenon::fusion
