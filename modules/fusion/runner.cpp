// A program that runs: sizes of a call, memory for it, one launch after another.
module tenon.fusion;
import std;
import tenon.base;
import tenon.ir;
import tenon.device;
import :print_c;
import :run;
import :entry;

namespace tenon::fusion {
namespace ops = ir::ops;
using base::ensure;

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
    to.attrs = value(node.attrs);
    for (auto const& input : node.inputs) {
      to.scalars.push_back(input.scalar.node < 0 ? input.scalar : value.symbols.evaluate(input.scalar, value.bindings));
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
  for (auto const parameter : kernel.parameters) to.whole.push_back(value(parameter));
  for (auto const& number : kernel.real_parameters) to.real.push_back(value.symbols.evaluate(number, value.bindings).real);
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
  if (to.region == 0) return;
  bool const split = kernel.schedule.form == Form::split;  // chunks depend on sizes alone, so that sums do not depend on threads
  if (split) to.batches = to.items;
  to.chunks = split ? std::clamp<Whole>(to.columns / 8192, 1, std::min<Whole>(64, std::max<Whole>(to.first_columns, 1)))
                    : std::clamp<Whole>(to.rows * to.columns / 32768, 1, std::clamp<Whole>(to.rows / 4, 1, 16));
}
}  // namespace

Sizes sizes_of(Program const& program, ir::Bindings const& bindings) {
  auto const& graph = program.grouping.graph;
  Evaluator const value{graph.symbols, bindings};
  Sizes sizes{
      .symbols = bindings.whole, .bytes = std::vector<std::int64_t>(graph.values.size(), 0), .offsets = std::vector<std::int64_t>(graph.values.size(), 0)};
  std::vector<Block> blocks;
  std::vector<int> block_of(graph.values.size(), -1);
  for (int v = 0; std::cmp_less(v, graph.values.size()); ++v) {
    if (program.homes[at(v)].kind == Home::Kind::none) continue;
    auto const& meta = *graph.values[at(v)].meta;
    std::int64_t bytes = base::bytes_of(meta.dtype);
    for (auto const size : meta.sizes) bytes *= value(size);
    sizes.bytes[at(v)] = bytes;
    if (program.homes[at(v)].kind != Home::Kind::arena) continue;
    block_of[at(v)] = static_cast<int>(blocks.size());
    blocks.push_back({.bytes = bytes, .first = program.first[at(v)], .last = program.last[at(v)], .name = graph.values[at(v)].name});
  }
  for (auto const& [old, fresh] : program.reuse)
    if (block_of[at(fresh)] >= 0) blocks[at(block_of[at(fresh)])].instead_of = block_of[at(old)];
  auto const layout = place(blocks);
  sizes.arena = layout.bytes[static_cast<std::size_t>(Arena::step)];
  for (int v = 0; std::cmp_less(v, graph.values.size()); ++v)
    if (block_of[at(v)] >= 0) sizes.offsets[at(v)] = layout.offsets[at(block_of[at(v)])];
  sizes.launches.resize(program.launches.size());
  for (std::size_t l = 0; l < program.launches.size(); ++l) prepare(program, program.launches[l], value, sizes.launches[l]);
  for (int const output : graph.outputs) {
    auto const& place = program.grouping.places[at(output)];
    auto const& meta = *graph.values[at(output)].meta;
    ir::Strided strided{nullptr, meta.dtype, value(meta.sizes), value(place.strides)};
    strided.data = reinterpret_cast<std::byte*>(value(place.offset) * base::bytes_of(meta.dtype));
    sizes.outputs.push_back(std::move(strided));
  }
  return sizes;
}

namespace {
// What one call at a time uses and leaves to the next.
struct Frame {
  std::shared_ptr<Sizes const> of;
  Sizes sizes;
  base::Ref<base::Buffer> arena;
  std::vector<std::byte*> bases;
};

struct Machine {
  Program program;
  device::Library library{};
  std::vector<Entry> entries{};
  std::vector<std::vector<std::byte>> constants{};
  std::mutex mutex{};
  std::vector<std::shared_ptr<Sizes const>> known{};
  std::vector<std::unique_ptr<Frame>> idle{};
  bool real = false;

  void load() {
    auto const& graph = program.grouping.graph;
    for (auto const& kernel : program.kernels) real |= !kernel.real_parameters.empty();
    for (auto const& node : graph.nodes) {
      for (auto const& input : node.inputs) real |= input.scalar.node >= 0;
      for (auto const& number : node.attrs.nums) real |= number.node >= 0;
      if (node.op != &ops::constant) continue;
      auto const& meta = *graph.values[at(node.first)].meta;
      auto const sizes = ir::values(meta.sizes);
      auto& bytes = constants.emplace_back(at(static_cast<int>(base::numel(sizes) * base::bytes_of(meta.dtype))));
      std::array out{ir::Strided{bytes.data(), meta.dtype, sizes, base::contiguous_strides(sizes)}};
      ir::evaluate(*node.op, {}, {}, node.attrs, out);
    }
    entries.resize(program.kernels.size());
    auto const& compiler = device::toolchain();
    if (program.options.interpret || !compiler || program.kernels.empty()) return;
    auto const start = std::chrono::steady_clock::now();
    library = load_or_compile(*compiler, program);
    for (std::size_t k = 0; k < entries.size(); ++k) {
      entries[k].main = reinterpret_cast<KernelMain>(library.symbol(program.kernels[k].name));
      ensure(entries[k].main != nullptr, "a compiled kernel is missing");
      if (has_partials(program.kernels[k])) entries[k].finish = reinterpret_cast<KernelFinish>(library.symbol(program.kernels[k].name + "_finish"));
    }
    program.compile_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  std::unique_ptr<Frame> frame(ir::Bindings const& bindings) {
    std::unique_ptr<Frame> found;
    std::shared_ptr<Sizes const> sizes;
    {
      std::scoped_lock const lock(mutex);
      for (auto& entry : idle)
        if (entry && entry->of->symbols == bindings.whole) {
          found = std::move(entry);
          break;
        }
      std::erase(idle, nullptr);
      if (found && !real) return found;
      if (!real)
        for (auto const& entry : known)
          if (entry->symbols == bindings.whole) sizes = entry;
    }
    if (!sizes) {
      sizes = std::make_shared<Sizes const>(sizes_of(program, bindings));
      std::scoped_lock const lock(mutex);
      if (known.size() >= 8) known.erase(known.begin());
      if (!real) known.push_back(sizes);
    }
    if (!found) found = std::make_unique<Frame>();
    found->of = sizes, found->sizes = *sizes;
    found->bases.assign(program.homes.size(), nullptr);
    if (!found->arena || found->arena->bytes() < sizes->arena) found->arena = base::make_ref<base::Buffer>(std::max<std::int64_t>(sizes->arena, 64));
    for (std::size_t v = 0; v < program.homes.size(); ++v)
      if (program.homes[v].kind == Home::Kind::arena)
        found->bases[v] = found->arena->data() + sizes->offsets[v];
      else if (program.homes[v].kind == Home::Kind::constant)
        found->bases[v] = constants[at(program.homes[v].number)].data();
    return found;
  }

  ir::Evaluated run(std::span<ir::Strided const> inputs, ir::Bindings const& bindings) {
    auto const& graph = program.grouping.graph;
    ensure(inputs.size() == graph.inputs.size(), std::format("{}: {} inputs given, {} needed", graph.name, inputs.size(), graph.inputs.size()));
    auto now = frame(bindings);
    auto& bases = now->bases;
    for (std::size_t k = 0; k < inputs.size(); ++k) bases[at(graph.inputs[k])] = inputs[k].data;
    std::vector<base::Ref<base::Buffer>> fresh;
    for (int const root : program.output_roots) {
      fresh.push_back(base::make_ref<base::Buffer>(now->sizes.bytes[at(root)]));
      bases[at(root)] = fresh.back()->data();
    }
    for (std::size_t v = 0; v < program.homes.size(); ++v)
      if (program.homes[v].kind == Home::Kind::in_place) bases[v] = inputs[at(program.homes[v].number)].data;
    for (std::size_t l = 0; l < program.launches.size(); ++l) {
      auto const& launch = program.launches[l];
      auto& prepared = now->sizes.launches[l];
      if (launch.node < 0) {
        kernel(launch, prepared, bases);
        continue;
      }
      auto const& node = graph.nodes[at(launch.node)];
      for (std::size_t k = 0; k < prepared.in.size(); ++k)
        if (prepared.in_roots[k] >= 0) prepared.in[k].data = bases[at(prepared.in_roots[k])] + prepared.in_offsets[k];
      for (std::size_t k = 0; k < prepared.out.size(); ++k) prepared.out[k].data = bases[at(node.first) + k];
      if (launch.with_next && entries[at(program.launches[l + 1].kernel)].main && !now->sizes.launches[l + 1].interpreted) {
        auto const& next = program.launches[l + 1];
        auto& behind = now->sizes.launches[l + 1];
        fill_in(next, behind, bases);
        run_matmul(prepared, entries[at(next.kernel)], behind);
        if (behind.bad) interpreted(next, behind);
        ++l;
      } else {
        run_call(*node.op, prepared);
      }
    }
    ir::Evaluated done;
    for (std::size_t k = 0; k < graph.outputs.size(); ++k) {
      int const root = program.grouping.places[at(graph.outputs[k])].root;
      auto value = now->sizes.outputs[k];
      value.data = bases[at(root)] + reinterpret_cast<std::intptr_t>(value.data);
      done.outputs.push_back(std::move(value));
      done.storage.push_back(program.homes[at(root)].kind == Home::Kind::output ? fresh[at(program.homes[at(root)].number)] : nullptr);
    }
    std::scoped_lock const lock(mutex);
    if (idle.size() < 4) idle.push_back(std::move(now));
    return done;
  }
  static void fill_in(Launch const& launch, Prepared& prepared, std::vector<std::byte*> const& bases) {
    for (std::size_t b = 0; b < launch.roots.size(); ++b) prepared.buffers[b] = reinterpret_cast<char*>(bases[at(launch.roots[b])]);
    prepared.bad = 0;
    if (prepared.buffers.size() > launch.roots.size()) prepared.buffers.back() = reinterpret_cast<char*>(&prepared.bad);
  }
  void kernel(Launch const& launch, Prepared& prepared, std::vector<std::byte*> const& bases) {
    fill_in(launch, prepared, bases);
    auto const& entry = entries[at(launch.kernel)];
    if (!entry.main || prepared.interpreted) return interpreted(launch, prepared);
    run_kernel(program.kernels[at(launch.kernel)], entry, prepared);
    if (prepared.bad) interpreted(launch, prepared);  // which says what index it is
  }
  void interpreted(Launch const& launch, Prepared const& prepared) {
    std::vector<std::byte*> pointers;
    for (std::size_t b = 0; b < launch.roots.size(); ++b) pointers.push_back(reinterpret_cast<std::byte*>(prepared.buffers[b]));
    std::vector<std::int64_t> const whole(prepared.whole.begin(), prepared.whole.end());
    interpret(program.kernels[at(launch.kernel)], pointers, whole, prepared.real);
    ensure(prepared.bad == 0, "an index is out of range and the interpreter finds none");
  }
};
}  // namespace

Runner runner(Program program) {
  auto machine = std::make_shared<Machine>(std::move(program));
  machine->load();
  return [machine](std::span<ir::Strided const> inputs, ir::Bindings const& bindings) { return machine->run(inputs, bindings); };
}

}  // namespace tenon::fusion
