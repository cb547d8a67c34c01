module tenon.tracer;
import std;
import tenon.base;
import tenon.ir;
import :session;

namespace tenon::tracer {
using base::ensure;
using base::fail;

namespace {
std::atomic<std::uint64_t> next_order{1};

bool needs_grad(Impl const* impl) { return impl && (impl->requires_grad || impl->node); }
Ref<Impl> alias_of(Impl const& impl) {
  auto alias = base::make_ref<Impl>(impl.id, impl.meta, impl.offset, impl.storage);
  alias->view = impl.view;
  return alias;
}
bool saves(ir::OpDef const& op, std::size_t bit) { return (op.saves >> std::min<std::size_t>(bit, 31)) & 1u; }

void fill(TapeNode::Edge& edge, Operand const& operand, bool saved, At at) {
  if (!operand.impl) {
    edge.scalar = operand.scalar;
    return;
  }
  Impl& impl = *operand.impl;
  auto* session = Session::current();
  edge.meta = session ? session->meta_of(impl, at) : impl.meta;
  edge.wanted = needs_grad(&impl) && base::is_real(impl.meta->dtype);
  if (edge.wanted && impl.node) {
    edge.node = impl.node;
    edge.result = impl.result;
  } else if (edge.wanted) {
    edge.leaf = Ref<Impl>(&impl);
  }
  if (saved) {
    edge.saved = alias_of(impl);
    edge.version = impl.storage->version;
  }
}

// Records calls whose operands need gradients; everything is handed below first.
struct Tape final : Interpreter {
  void bind(Call const& call, int below, std::span<Tensor> results) override {
    auto const& op = call.op;
    bool const write = is_write(op);
    bool const needed = std::ranges::any_of(call.operands, [](Operand const& o) { return needs_grad(o.impl); });
    if (!needed) return dispatch(call, below, results);
    if (write) refuse_write(call);
    if (!op.vjp && op.decompose) return void(std::ranges::move(run_body(call, static_cast<int>(Rank::autograd)), results.begin()));
    auto node = base::make_ref<TapeNode>();
    node->op = &op;
    node->attrs = call.attrs;
    node->at = call.at;
    dispatch(call, below, results);
    if (!op.vjp) return;
    node->operands = call.operands.size();
    node->edges.resize(call.operands.size() + results.size());
    for (std::size_t k = 0; k < call.operands.size(); ++k) fill(node->edges[k], call.operands[k], saves(op, k), call.at);
    if (write) node->edges[0].wanted = false, node->edges[0].node = nullptr, node->edges[0].leaf = nullptr;
    if (std::ranges::none_of(node->inputs(), &TapeNode::Edge::wanted)) {
      if (write) results[0].impl()->node = nullptr;
      return;
    }
    for (std::size_t k = 0; k < results.size(); ++k) {
      Impl& impl = *results[k].impl();
      auto& edge = node->results()[k];
      fill(edge, Operand{&impl, {}}, saves(op, 16 + k), call.at);
      edge.node = nullptr;
      edge.leaf = nullptr;
      edge.result = static_cast<int>(k);
      if (base::is_real(impl.meta->dtype)) impl.node = node, impl.result = static_cast<int>(k);
    }
    node->order = next_order.fetch_add(1, std::memory_order_relaxed);
  }
  static void refuse_write(Call const& call) {
    Impl const& target = *call.operands[0].impl;
    if (target.requires_grad) fail("copy_: a leaf that requires a gradient is written in place at {}; write it under NoGrad", base::short_place(call.at));
    if (target.view)
      fail("copy_: a view is written in place at {} while gradients are recorded; write the whole tensor or use where()", base::short_place(call.at));
  }
} the_tape;

// One run back over the tape: gradients that wait, by call and result, the latest call first.
struct Backward {
  DispatchEmit emit;
  std::map<std::uint64_t, std::pair<Ref<TapeNode>, std::vector<Tensor>>, std::greater<>> waiting{};
  std::unordered_map<std::uint64_t, std::pair<Ref<Impl>, Tensor>> leaves{};
  std::vector<std::uint64_t> leaf_order{};
  Backward(int from, At at) : emit(from, at) {}

  Tensor sum(Tensor const& a, Tensor const& b) {
    Tensor result;
    std::array const operands{Operand{a.impl(), {}}, Operand{b.impl(), {}}};
    ir::Attrs const one = ir::Attrs{}.with_num(1.0);
    dispatch({ir::ops::add, operands, one, emit.at}, emit.from, {&result, 1});
    return result;
  }
  void give(TapeNode::Edge const& edge, Tensor const& gradient) {
    if (edge.node) {
      auto& [node, sums] = waiting[edge.node->order];
      node = edge.node;
      sums.resize(std::max(sums.size(), static_cast<std::size_t>(edge.result) + 1));
      auto& have = sums[static_cast<std::size_t>(edge.result)];
      have = have.defined() ? sum(have, gradient) : gradient;
    } else if (edge.leaf) {
      auto const [at, fresh] = leaves.try_emplace(edge.leaf->id, edge.leaf, gradient);
      if (fresh)
        leaf_order.push_back(edge.leaf->id);
      else
        at->second.second = sum(at->second.second, gradient);
    }
  }
  // What a rule reads of an operand or a result; `maker` is the call that gave it. A second derivative goes on through it, so there it keeps
  // its history, which the saved alias has not.
  ir::Var read(TapeNode::Edge const& edge, TapeNode const& node, Ref<TapeNode> const& maker) {
    if (!edge.meta) return {nullptr, ir::Input{-1, edge.scalar}};
    if (!edge.saved) return emit.add(edge.meta);
    if (edge.saved->storage->version != edge.version)
      fail("backward: a tensor {} that the gradient of {} at {} needs was written in place since", ir::to_string(*edge.meta), node.op->name,
           base::short_place(node.at));
    if (emit.from < static_cast<int>(Rank::autograd)) return emit.add(Tensor(edge.saved));
    if (edge.leaf) return emit.add(Tensor(edge.leaf));
    auto alias = alias_of(*edge.saved);
    if (base::is_real(alias->meta->dtype)) alias->node = maker;
    alias->result = edge.result;
    return emit.add(Tensor(std::move(alias)));
  }
  void step(TapeNode& node, std::vector<Tensor> const& gradients) {
    emit.at = node.at;
    emit.values.clear();
    emit.metas.clear();
    std::vector<ir::Var> in, out, cotangents;
    auto wanted = std::make_unique<bool[]>(node.operands);
    auto const inputs = node.inputs(), results = node.results();
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      in.push_back(read(inputs[k], node, inputs[k].node));
      wanted[k] = inputs[k].wanted;
    }
    for (std::size_t k = 0; k < results.size(); ++k) {
      out.push_back(read(results[k], node, Ref<TapeNode>(&node)));
      cotangents.push_back(k < gradients.size() && gradients[k].defined() ? emit.add(gradients[k]) : ir::Var());
    }
    ir::Vjp vjp{node.attrs, in, out, cotangents, {wanted.get(), node.operands}, {}};
    ir::differentiate(*node.op, vjp);
    for (std::size_t k = 0; k < in.size(); ++k)
      if (wanted[k] && vjp.grads[k]) give(inputs[k], emit.tensor(vjp.grads[k]));
  }
  // Calls seen(node, gradients of its results) for every call on the way.
  template <class F>
  void run(Tensor const& output, Tensor const& seed, F seen) {
    TapeNode::Edge start;
    start.node = output.impl()->node;
    start.result = output.impl()->result;
    if (!start.node) start.leaf = output.ref();
    give(start, seed);
    while (!waiting.empty()) {
      auto const [node, gradients] = std::move(waiting.begin()->second);
      waiting.erase(waiting.begin());
      seen(*node, gradients);
      step(*node, gradients);
    }
  }
};

Tensor seed_for(Tensor const& output, Tensor const& seed, At at) {
  if (!output.requires_grad()) fail("backward: the tensor {} has no history that needs a gradient", ir::to_string(output.meta()));
  if (seed.defined()) {
    if (seed.shape() != output.shape()) fail("backward: the seed {} does not fit the output {}", ir::to_string(seed.meta()), ir::to_string(output.meta()));
    return seed;
  }
  if (output.numel() != 1) fail("backward: an output of {} elements ({}) needs a seed", output.numel(), ir::to_string(output.meta()));
  return full(DimList(output.meta().sizes), 1.0, output.dtype(), at);
}
}  // namespace

TapeNode::~TapeNode() {  // a long history is taken down in a loop, not by recursion
  static thread_local std::vector<Ref<TapeNode>>* pending = nullptr;
  std::vector<Ref<TapeNode>> own;
  bool const outermost = !pending;
  if (outermost) pending = &own;
  for (auto& input : inputs())
    if (input.node) pending->push_back(std::move(input.node));
  if (!outermost) return;
  while (!own.empty()) {
    auto const next = std::move(own.back());
    own.pop_back();
  }
  pending = nullptr;
}

Interpreter& tape() { return the_tape; }
thread_local constinit Settings thread_settings{};
namespace {
void change(Settings const& wanted) {
  ir::set_default_dtype(wanted.default_dtype);
  thread_settings = wanted;
}
}  // namespace
SettingsScope::SettingsScope(Settings const& wanted) : outer_(thread_settings) { change(wanted); }
SettingsScope::~SettingsScope() { change(outer_); }
GradMode::GradMode(bool enabled) : outer_(std::exchange(thread_settings.grad_enabled, enabled)) {}
GradMode::~GradMode() { thread_settings.grad_enabled = outer_; }

void Tensor::backward(Tensor const& given, At at) const {
  (void)meta();
  NoGrad const off;
  Tensor const seed = seed_for(*this, given, at);
  if (auto* session = Session::current()) session->unrepeatable();  // it adds into grads
  Backward walk(static_cast<int>(Rank::capture), at);
  walk.run(*this, seed, [](TapeNode const&, std::vector<Tensor> const&) {});
  std::unordered_set<Storage*> taken{seed.impl()->storage.get()};
  if (!given.defined()) taken.clear();  // nobody else holds our own seed
  for (auto id : walk.leaf_order) {
    auto const& [leaf, gradient] = walk.leaves.at(id);
    if (leaf->grad) {
      Tensor(leaf->grad).copy_(apply(ir::ops::add, {Tensor(leaf->grad), gradient}, ir::Attrs{}.with_num(1.0), at), at);
    } else {  // a fresh gradient is kept as it is unless another tensor shares its memory
      bool const own = !gradient.impl()->view && gradient.is_contiguous() && taken.insert(gradient.impl()->storage.get()).second;
      leaf->grad = (own ? gradient : clone(gradient, at)).detach().ref();
    }
  }
}

std::vector<Tensor> gradients(Tensor const& output, std::span<Tensor const> inputs, Tensor const& given, GradOptions options, At at) {
  GradMode const mode(options.create_graph);
  Tensor const seed = seed_for(output, given, at);
  Backward walk(static_cast<int>(options.create_graph ? Rank::autograd : Rank::capture), at);
  // An input that is the result of a call stands for a leaf: its gradient is what arrives there.
  std::vector<std::pair<TapeNode*, int>> wanted;
  for (auto const& input : inputs) {
    (void)input.meta();
    wanted.emplace_back(input.impl()->node.get(), input.impl()->result);
  }
  std::vector<Tensor> results(inputs.size());
  walk.run(output, seed, [&](TapeNode const& node, std::vector<Tensor> const& sums) {
    for (std::size_t k = 0; k < inputs.size(); ++k)
      if (wanted[k].first == &node && std::cmp_less(wanted[k].second, sums.size())) results[k] = sums[static_cast<std::size_t>(wanted[k].second)];
  });
  for (std::size_t k = 0; k < inputs.size(); ++k)
    if (auto const found = walk.leaves.find(inputs[k].impl()->id); !wanted[k].first && found != walk.leaves.end()) results[k] = found->second.second;
  return results;
}

}  // namespace tenon::tracer
