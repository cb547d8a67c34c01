// A program that runs: memory for a call, one launch after another.
module tenon.fusion;
import std;
import tenon.base;
import tenon.ir;
import tenon.device;
import :print_c;
import :build;
import :run;
import :execute;
import :entry;

namespace tenon::fusion {
namespace ops = ir::ops;
using base::ensure;

namespace {
std::size_t at(int i) { return static_cast<std::size_t>(i); }
}  // namespace

Executor::Executor(Program program) : program_(std::move(program)) {
  for (std::size_t v = 0; v < program_.homes.size(); ++v)
    if (program_.homes[v].kind == Home::Kind::in_place) in_place_.emplace_back(static_cast<int>(v), program_.homes[v].number);
  symbolic_sizes_ = symbolic_sizes(program_);
  find_varying();
  load();
}
Executor::~Executor() { delete hot_.load(); }

void Executor::load() {
  auto const& graph = program_.grouping.graph;
  for (auto const& node : graph.nodes) {
    if (node.op != &ops::constant) continue;
    auto const& meta = *graph.values[at(node.first)].meta;
    auto const sizes = ir::values(meta.sizes);
    constants_.push_back(base::make_ref<base::Buffer>(base::numel(sizes) * base::bytes_of(meta.dtype)));
    std::array out{ir::Strided{constants_.back()->data(), meta.dtype, sizes, base::contiguous_strides(sizes)}};
    ir::evaluate(*node.op, {}, {}, node.attrs, out);
  }
  entries_.resize(program_.kernels.size());
  auto const& compiler = device::toolchain();
  if (program_.options.interpret || !compiler || program_.kernels.empty()) return;
  auto const start = std::chrono::steady_clock::now();
  library_ = load_or_compile(*compiler, program_);
  for (std::size_t k = 0; k < entries_.size(); ++k) {
    entries_[k].main = reinterpret_cast<KernelMain>(library_.symbol(program_.kernels[k].name));
    ensure(entries_[k].main != nullptr, "a compiled kernel is missing");
    if (has_partials(program_.kernels[k])) entries_[k].finish = reinterpret_cast<KernelFinish>(library_.symbol(program_.kernels[k].name + "_finish"));
    if (has_second_pass(program_.kernels[k])) entries_[k].apply = reinterpret_cast<KernelApply>(library_.symbol(program_.kernels[k].name + "_apply"));
  }
  program_.compile_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Launches whose numbers may differ between calls of the same sizes.
void Executor::find_varying() {
  auto const& graph = program_.grouping.graph;
  for (int l = 0; std::cmp_less(l, program_.launches.size()); ++l) {
    auto const& launch = program_.launches[at(l)];
    bool varies = false;
    if (launch.node >= 0) {
      auto const& node = graph.nodes[at(launch.node)];
      for (auto const& input : node.inputs) varies |= input.scalar.node >= 0;
      for (auto const& number : node.attrs.nums) varies |= number.node >= 0;
      for (auto const dim : node.attrs.ints) varies |= dim.node >= 0;
    } else {
      auto const& kernel = program_.kernels[at(launch.kernel)];
      varies = !kernel.parameters.empty() || !kernel.real_parameters.empty();
    }
    if (varies) varying_.push_back(l);
  }
}

bool Executor::same_sizes(Sizes const& sizes, ir::Bindings const& bindings) const {
  auto const& symbols = program_.grouping.graph.symbols;
  for (std::size_t k = 0; k < symbolic_sizes_.size(); ++k)
    if (symbols.evaluate(symbolic_sizes_[k], bindings) != sizes.key[k]) return false;
  return true;
}
bool Executor::fits(Frame const& frame, ir::Bindings const& bindings) const {
  return frame.bindings.whole == bindings.whole || same_sizes(*frame.of, bindings);
}

std::unique_ptr<Frame> Executor::frame(ir::Bindings const& bindings) {
  std::unique_ptr<Frame> found(hot_.exchange(nullptr, std::memory_order_acquire));
  std::shared_ptr<Sizes const> sizes;
  if (!found || !fits(*found, bindings)) {
    std::scoped_lock const lock(mutex_);
    if (found) idle_.push_back(std::exchange(found, nullptr));
    auto const entry = std::ranges::find_if(idle_, [&](auto const& f) { return fits(*f, bindings); });
    if (entry != idle_.end()) {
      found = std::move(*entry);
      idle_.erase(entry);
    } else if (auto const known = std::ranges::find_if(known_, [&](auto const& s) { return same_sizes(*s, bindings); }); known != known_.end()) {
      sizes = *known;
    }
    if (idle_.size() > 4) idle_.erase(idle_.begin());  // sizes that come and go leave no arenas behind
  }
  if (!found) return make_frame(bindings, std::move(sizes));
  if (!varying_.empty() && (found->bindings.whole != bindings.whole || found->bindings.real != bindings.real)) {
    for (int const l : varying_) renumber(program_, program_.launches[at(l)], bindings, found->sizes.launches[at(l)]);
    found->bindings = bindings;
  }
  return found;
}

std::unique_ptr<Frame> Executor::make_frame(ir::Bindings const& bindings, std::shared_ptr<Sizes const> sizes) {
  auto made = std::make_unique<Frame>();
  if (!sizes) {
    sizes = std::make_shared<Sizes const>(sizes_of(program_, bindings));
    std::scoped_lock const lock(mutex_);
    if (known_.size() >= 8) known_.erase(known_.begin());
    known_.push_back(sizes);
  }
  made->of = sizes, made->sizes = *sizes, made->bindings = bindings;
  for (int const l : varying_) renumber(program_, program_.launches[at(l)], bindings, made->sizes.launches[at(l)]);
  made->bases.assign(program_.homes.size(), nullptr);
  made->arena = base::make_ref<base::Buffer>(std::max<std::int64_t>(sizes->arena, 64));
  for (std::size_t v = 0; v < program_.homes.size(); ++v)
    if (program_.homes[v].kind == Home::Kind::arena)
      made->bases[v] = made->arena->data() + sizes->offsets[v];
    else if (program_.homes[v].kind == Home::Kind::constant)
      made->bases[v] = constants_[at(program_.homes[v].number)]->data();
  if (program_.options.mode == Mode::reduce_overhead) tie(*made);
  return made;
}

// Sets the pointers that stay, and lists those that every call sets anew.
void Executor::tie(Frame& frame) const {
  auto const changes = [&](int root) {
    auto const kind = program_.homes[at(root)].kind;
    return kind == Home::Kind::input || kind == Home::Kind::output || kind == Home::Kind::in_place;
  };
  for (std::size_t l = 0; l < program_.launches.size(); ++l) {
    fill(frame, l);
    auto const& launch = program_.launches[l];
    auto const& prepared = frame.sizes.launches[l];
    auto const add = [&](Patch::Kind kind, std::size_t slot, int root, std::int64_t offset) {
      if (changes(root)) frame.patches.push_back({kind, static_cast<int>(l), static_cast<int>(slot), root, offset});
    };
    for (std::size_t b = 0; b < launch.roots.size(); ++b) add(Patch::Kind::buffer, b, launch.roots[b], 0);
    for (std::size_t k = 0; k < prepared.in.size(); ++k)
      if (prepared.in_roots[k] >= 0) add(Patch::Kind::in, k, prepared.in_roots[k], prepared.in_offsets[k]);
    for (std::size_t k = 0; k < prepared.out.size(); ++k)
      add(Patch::Kind::out, k, program_.grouping.graph.nodes[at(launch.node)].first + static_cast<int>(k), 0);
  }
}

void Executor::attach(Frame& frame, std::span<ir::Strided const> inputs, std::vector<base::Ref<base::Buffer>>& outputs) const {
  auto const& graph = program_.grouping.graph;
  auto& bases = frame.bases;
  for (std::size_t k = 0; k < inputs.size(); ++k) bases[at(graph.inputs[k])] = inputs[k].data;
  outputs.reserve(program_.output_roots.size());
  for (int const root : program_.output_roots) {
    outputs.push_back(base::make_ref<base::Buffer>(frame.sizes.bytes[at(root)]));
    bases[at(root)] = outputs.back()->data();
  }
  for (auto const& [root, input] : in_place_) bases[at(root)] = inputs[at(input)].data;
  for (auto const& patch : frame.patches) {
    auto& prepared = frame.sizes.launches[at(patch.launch)];
    auto* const place = bases[at(patch.root)] + patch.offset;
    if (patch.kind == Patch::Kind::buffer)
      prepared.buffers[at(patch.slot)] = reinterpret_cast<char*>(place);
    else
      (patch.kind == Patch::Kind::in ? prepared.in : prepared.out)[at(patch.slot)].data = place;
  }
}

// Every pointer of a launch.
void Executor::fill(Frame& frame, std::size_t l) const {
  auto const& launch = program_.launches[l];
  auto& prepared = frame.sizes.launches[l];
  auto const& bases = frame.bases;
  for (std::size_t b = 0; b < launch.roots.size(); ++b) prepared.buffers[b] = reinterpret_cast<char*>(bases[at(launch.roots[b])]);
  if (prepared.buffers.size() > launch.roots.size()) prepared.buffers.back() = reinterpret_cast<char*>(&prepared.bad);
  for (std::size_t k = 0; k < prepared.in.size(); ++k)
    if (prepared.in_roots[k] >= 0 && bases[at(prepared.in_roots[k])]) prepared.in[k].data = bases[at(prepared.in_roots[k])] + prepared.in_offsets[k];
  for (std::size_t k = 0; k < prepared.out.size(); ++k) prepared.out[k].data = bases[at(program_.grouping.graph.nodes[at(launch.node)].first) + k];
}

std::size_t Executor::launch(Frame& frame, std::size_t l) const {
  if (program_.options.mode != Mode::reduce_overhead) {
    fill(frame, l);
    if (program_.launches[l].with_next) fill(frame, l + 1);
  }
  return go(frame, l);
}
std::size_t Executor::go(Frame& frame, std::size_t l) const {
  auto const& launch = program_.launches[l];
  auto& prepared = frame.sizes.launches[l];
  if (launch.node < 0) {
    auto const& entry = entries_[at(launch.kernel)];
    if (!entry.main || prepared.interpreted) return interpreted(launch, prepared), 1;
    run_kernel(program_.kernels[at(launch.kernel)], entry, prepared);
    if (prepared.bad) interpreted(launch, prepared);  // which says what index it is
    return 1;
  }
  if (launch.with_next && joined_pays(prepared)) {
    auto const& next = program_.launches[l + 1];
    auto& behind = frame.sizes.launches[l + 1];
    if (auto const& entry = entries_[at(next.kernel)]; entry.main && !behind.interpreted) {
      run_matmul(prepared, entry, behind);
      if (behind.bad) interpreted(next, behind);
      return 2;
    }
  }
  run_call(*program_.grouping.graph.nodes[at(launch.node)].op, prepared);
  return 1;
}
void Executor::interpreted(Launch const& launch, Prepared const& prepared) const {
  std::vector<std::byte*> pointers;
  pointers.reserve(launch.roots.size());
  for (std::size_t b = 0; b < launch.roots.size(); ++b) pointers.push_back(reinterpret_cast<std::byte*>(prepared.buffers[b]));
  std::vector<std::int64_t> const whole(prepared.whole.begin(), prepared.whole.end());
  auto const& kernel = program_.kernels[at(launch.kernel)];
  if (!has_indices(kernel)) return interpret(kernel, pointers, whole, prepared.real);
  auto own = kernel;  // which may be another layer's, that is no place of this one's errors
  own.origin.clear();
  for (int const n : program_.grouping.groups[at(launch.group)].nodes) own.origin.push_back(line_of(program_.grouping.graph.nodes[at(n)]));
  interpret(own, pointers, whole, prepared.real);
  if (prepared.bad) base::fail("an index is out of range, in {}", own.origin[0]);  // and results were written over it
}

void Executor::give_back(std::unique_ptr<Frame> frame) {
  std::unique_ptr<Frame> before(hot_.exchange(frame.release(), std::memory_order_acq_rel));
  if (!before) return;
  std::scoped_lock const lock(mutex_);
  if (idle_.size() < 4) idle_.push_back(std::move(before));
}

// A launch, and a line that says its time and what it computes.
std::size_t Executor::logged_launch(Frame& frame, std::size_t l) const {
  auto const start = std::chrono::steady_clock::now();
  auto const done = launch(frame, l);
  double const us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  auto const& graph = program_.grouping.graph;
  std::string what;
  for (std::size_t k = l; k < l + done; ++k)
    for (int const n : program_.grouping.groups[at(program_.launches[k].group)].nodes) {
      auto const& node = graph.nodes[at(n)];
      what += std::format(" {}:{}", node.op->name, ir::to_string(*graph.values[at(node.first)].meta, &graph.symbols));
    }
  base::log_line("launches", std::format("{} {}: {:.1f} us:{}", graph.name, l, us, what));
  return done;
}

ir::Evaluated Executor::run(std::span<ir::Strided const> inputs, ir::Bindings const& bindings) {
  auto const& graph = program_.grouping.graph;
  if (inputs.size() != graph.inputs.size()) ensure(false, std::format("{}: {} inputs given, {} needed", graph.name, inputs.size(), graph.inputs.size()));
  auto now = frame(bindings);
  std::vector<base::Ref<base::Buffer>> fresh;
  attach(*now, inputs, fresh);
  bool const logged = base::log_enabled("launches");
  for (std::size_t l = 0; l < program_.launches.size();) l += logged ? logged_launch(*now, l) : launch(*now, l);
  ir::Evaluated done;
  done.outputs.reserve(graph.outputs.size()), done.storage.reserve(graph.outputs.size());
  for (std::size_t k = 0; k < graph.outputs.size(); ++k) {
    int const root = program_.grouping.places[at(graph.outputs[k])].root;
    auto const home = program_.homes[at(root)];
    auto& value = done.outputs.emplace_back(now->sizes.outputs[k]);
    value.data = now->bases[at(root)] + now->sizes.output_offsets[k];
    done.storage.push_back(home.kind == Home::Kind::output     ? fresh[at(home.number)]
                           : home.kind == Home::Kind::constant ? constants_[at(home.number)]
                                                               : nullptr);
  }
  give_back(std::move(now));
  return done;
}

Runner runner(Program program) {
  auto executor = std::make_shared<Executor>(std::move(program));
  return [executor](std::span<ir::Strided const> inputs, ir::Bindings const& bindings) { return executor->run(inputs, bindings); };
}

}  // namespace tenon::fusion
