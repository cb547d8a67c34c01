// What the bindings of one call decide: sizes, places in the arena, the numbers of each launch.
module tenon.fusion;
import std;
import tenon.base;
import tenon.ir;
import tenon.device;
import :print_c;
import :run;

namespace tenon::fusion {

namespace {
std::size_t at(int i) { return static_cast<std::size_t>(i); }

struct Evaluator {
  ir::Symbols const& symbols;
  ir::Bindings const& bindings;
  std::int64_t operator()(ir::Dim dim) const { return dim.node < 0 ? dim.value : symbols.evaluate(dim, bindings); }
  base::Shape operator()(ir::Dims const& dims) const {
    base::Shape shape;
    for (auto const dim : dims) shape.push_back((*this)(dim));
    return shape;
  }
  std::int64_t bytes(ir::Meta const& meta) const {
    std::int64_t bytes = base::bytes_of(meta.dtype);
    for (auto const size : meta.sizes) bytes *= (*this)(size);
    return bytes;
  }
  ir::Attrs operator()(ir::Attrs attrs) const {
    for (auto& dim : attrs.ints) dim = (*this)(dim);
    for (auto& number : attrs.nums)
      if (number.node >= 0) number = symbols.evaluate(number, bindings);
    return attrs;
  }
};

void prepare(Program const& program, Launch const& launch, Evaluator const& value, Prepared& to) {
  auto const& graph = program.grouping.graph;
  if (launch.node >= 0) {
    auto const& node = graph.nodes[at(launch.node)];
    to.engine = launch.engine;
    for (auto const& input : node.inputs) {
      if (input.value < 0) {
        to.in.emplace_back(), to.in_roots.push_back(-1), to.in_offsets.push_back(0);
        continue;
      }
      auto const& place = program.grouping.places[at(input.value)];
      auto const& meta = *graph.values[at(input.value)].meta;
      to.in.push_back({nullptr, meta.dtype, value(meta.sizes), value(place.strides)});
      to.in_roots.push_back(place.root), to.in_offsets.push_back(value(place.offset) * base::bytes_of(meta.dtype));
    }
    for (int k = 0; k < node.results; ++k) {
      auto const& meta = *graph.values[at(node.first + k)].meta;
      auto const sizes = value(meta.sizes);
      to.out.push_back({nullptr, meta.dtype, sizes, base::contiguous_strides(sizes)});
    }
    return;
  }
  auto const& kernel = program.kernels[at(launch.kernel)];
  to.buffers.resize(launch.roots.size() + (has_indices(kernel) ? 1 : 0));
  for (auto const& step : kernel.steps)
    if (step.kind == Step::Kind::load && step.access.index >= 0) to.interpreted |= value(step.access.index_size) == 0;
  int const outer = outer_axes(kernel);
  for (int a = 0; std::cmp_less(a, kernel.axes.size()); ++a) {
    auto const& axis = kernel.axes[at(a)];
    std::int64_t const size = value(axis.size);
    (a < outer ? to.items : to.columns) *= size;
    if (axis.role == Role::batch) to.batches *= size;
    if (axis.role == Role::row) to.rows *= size;
    if (a == outer) to.first_columns = size;
  }
  for (auto const& step : kernel.steps)
    if (step.keep) to.scratch += rounded(to.columns * kept_bytes(step));
  for (int const step : partial_steps(kernel)) to.region += rounded(8 * (partial_per_column(kernel, step) ? to.columns : 1));
  Whole const grain = to.grain = std::max<Whole>(program.options.grain, 1);
  if (to.region == 0) return;
  bool const split = kernel.schedule.form == Form::split;  // chunks depend on sizes alone, so that sums do not depend on threads
  if (split) to.batches = to.items;
  to.chunks = split ? std::clamp<Whole>(to.columns / grain, 1, std::min<Whole>(64, std::max<Whole>(to.first_columns, 1)))
                    : std::clamp<Whole>(to.rows * to.columns / (4 * grain), 1, std::clamp<Whole>(to.rows / 4, 1, 16));
}
}  // namespace

void renumber(Program const& program, Launch const& launch, ir::Bindings const& bindings, Prepared& to) {
  auto const& graph = program.grouping.graph;
  Evaluator const value{graph.symbols, bindings};
  if (launch.node >= 0) {
    auto const& node = graph.nodes[at(launch.node)];
    to.attrs = value(node.attrs);
    to.scalars.clear();
    for (auto const& input : node.inputs) to.scalars.push_back(input.scalar.node < 0 ? input.scalar : graph.symbols.evaluate(input.scalar, bindings));
    return;
  }
  auto const& kernel = program.kernels[at(launch.kernel)];
  to.whole.clear(), to.real.clear();
  for (auto const parameter : kernel.parameters) to.whole.push_back(value(parameter));
  for (auto const& number : kernel.real_parameters) to.real.push_back(graph.symbols.evaluate(number, bindings).real);
}

std::vector<ir::Dim> symbolic_sizes(Program const& program) {
  auto const& graph = program.grouping.graph;
  std::vector<ir::Dim> found;
  std::set<std::int32_t> seen;
  auto const see = [&](ir::Dim dim) {
    if (dim.node >= 0 && seen.insert(dim.node).second) found.push_back(dim);
  };
  auto const value = [&](int v) {
    for (auto const size : graph.values[at(v)].meta->sizes) see(size);
    for (auto const stride : program.grouping.places[at(v)].strides) see(stride);
    see(program.grouping.places[at(v)].offset);
  };
  for (int v = 0; std::cmp_less(v, graph.values.size()); ++v)
    if (program.homes[at(v)].kind != Home::Kind::none) value(v);
  for (int const output : graph.outputs) value(output);
  for (auto const& launch : program.launches) {
    if (launch.node < 0) continue;
    for (auto const& input : graph.nodes[at(launch.node)].inputs)
      if (input.value >= 0) value(input.value);
  }
  for (auto const& kernel : program.kernels) {
    for (auto const& axis : kernel.axes) see(axis.size);
    for (auto const& step : kernel.steps) see(step.access.index_size);
  }
  return found;
}

namespace {
// All but the layout.
Footprint unplaced(Program const& program, ir::Bindings const& bindings) {
  auto const& graph = program.grouping.graph;
  Evaluator const value{graph.symbols, bindings};
  Footprint made;
  std::vector<int> block_of(graph.values.size(), -1);
  for (int v = 0; std::cmp_less(v, graph.values.size()); ++v) {
    auto const kind = program.homes[at(v)].kind;
    if (kind != Home::Kind::arena && kind != Home::Kind::output) continue;
    std::int64_t const bytes = value.bytes(*graph.values[at(v)].meta);
    if (kind == Home::Kind::output) {
      made.outputs += bytes;
      continue;
    }
    block_of[at(v)] = static_cast<int>(made.blocks.size());
    auto const& name = graph.values[at(v)].name;
    made.blocks.push_back({.bytes = bytes, .first = program.first[at(v)], .last = program.last[at(v)], .name = name.empty() ? std::format("%{}", v) : name});
    made.values.push_back(v);
  }
  for (auto const& [old, fresh] : program.reuse)
    if (block_of[at(fresh)] >= 0) made.blocks[at(block_of[at(fresh)])].instead_of = block_of[at(old)];
  return made;
}
}  // namespace

Footprint footprint(Program const& program, ir::Bindings const& bindings) {
  auto made = unplaced(program, bindings);
  made.layout = place(made.blocks);
  return made;
}
Held held(Program const& program) {
  auto const made = unplaced(program, {});
  auto const alive = live_bytes(made.blocks, {.taken = accepted(made.blocks)}, Arena::step);
  return {.outputs = made.outputs, .values = alive.empty() ? 0 : std::ranges::max(alive)};
}

std::string report(Program const& program, ir::Bindings const& bindings, std::size_t rows) {
  auto const needs = footprint(program, bindings);
  return std::format("outputs: {} bytes in {} buffers\n{}", needs.outputs, program.output_roots.size(), report(needs.blocks, needs.layout, rows));
}

Sizes sizes_of(Program const& program, ir::Bindings const& bindings) {
  auto const& graph = program.grouping.graph;
  Evaluator const value{graph.symbols, bindings};
  Sizes sizes{.bytes = std::vector<std::int64_t>(graph.values.size(), 0), .offsets = std::vector<std::int64_t>(graph.values.size(), 0)};
  for (auto const dim : symbolic_sizes(program)) sizes.key.push_back(value(dim));
  auto const needs = footprint(program, bindings);
  sizes.arena = needs.layout.bytes[static_cast<std::size_t>(Arena::step)];
  for (std::size_t b = 0; b < needs.blocks.size(); ++b) sizes.offsets[at(needs.values[b])] = needs.layout.offsets[b];
  for (int v = 0; std::cmp_less(v, graph.values.size()); ++v)
    if (program.homes[at(v)].kind != Home::Kind::none) sizes.bytes[at(v)] = value.bytes(*graph.values[at(v)].meta);
  sizes.launches.resize(program.launches.size());
  for (std::size_t l = 0; l < program.launches.size(); ++l) {
    renumber(program, program.launches[l], bindings, sizes.launches[l]);
    prepare(program, program.launches[l], value, sizes.launches[l]);
  }
  for (int const output : graph.outputs) {
    auto const& place = program.grouping.places[at(output)];
    auto const& meta = *graph.values[at(output)].meta;
    sizes.outputs.push_back({nullptr, meta.dtype, value(meta.sizes), value(place.strides)});
    sizes.output_offsets.push_back(value(place.offset) * base::bytes_of(meta.dtype));
  }
  return sizes;
}

}  // namespace tenon::fusion
