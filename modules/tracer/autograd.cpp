module tenon.tracer;
import std;
import tenon.base;
import tenon.ir;
import :session;

namespace tenon::tracer {
using base::ensure;
using base::fail;

namespace {
thread_local constinit std::uint64_t clock_of_calls = 0;

bool needs_grad(Impl const* impl) { return impl && (impl->requires_grad || impl->node); }
bool saves(ir::OpDef const& op, std::size_t bit) { return (op.saves >> std::min<std::size_t>(bit, 31)) & 1u; }

// What is known of the tensor, and its memory if the rule reads it. A session is asked where it may have something to say.
void note(TapeNode::Edge& edge, Impl const& impl, bool saved, ir::MetaRef seen) {
  if (saved) {
    edge.saved = impl.storage;
    edge.id = impl.id;
    edge.offset = impl.offset;
    edge.version = impl.storage->version.load(std::memory_order_relaxed);
    edge.view = impl.view;
    seen = nullptr;  // the alias is a tensor of its own, which is looked at when it is read
  }
  if (seen)
    edge.meta = std::move(seen);
  else if (!edge.node || TapeNode::meta(edge) != impl.meta)
    edge.meta = impl.meta;
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
    dispatch(call, below, results);
    if (!op.vjp) return;
    if (write && !needs_grad(call.operands[1].impl)) {
      results[0].impl()->node = nullptr;
      return;
    }
    auto* session = Session::current();
    if (session && session->meta_is_own()) session = nullptr;
    auto node = TapeNode::make(op, call.attrs, call.at, call.operands.size(), results.size());
    auto const inputs = node->inputs(), outputs = node->results();
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      auto& edge = inputs[k];
      auto const& operand = call.operands[k];
      if (!operand.impl) {
        edge.scalar = operand.scalar;
        continue;
      }
      Impl& impl = *operand.impl;
      auto seen = session ? session->meta_of(impl, call.at) : ir::MetaRef();
      if (!(write && k == 0)) {
        edge.node = impl.node;
        edge.result = impl.result;
        if (!impl.node && impl.requires_grad) edge.leaf = Ref<Impl>(&impl);
        if (impl.node) clock_of_calls = std::max(clock_of_calls, impl.node->order);
      }
      note(edge, impl, saves(op, k), std::move(seen));
    }
    node->order = ++clock_of_calls;
    for (std::size_t k = 0; k < outputs.size(); ++k) {
      Impl& impl = *results[k].impl();
      auto& edge = outputs[k];
      note(edge, impl, saves(op, 16 + k), session ? session->meta_of(impl, call.at) : ir::MetaRef());
      edge.result = static_cast<int>(k);
      impl.result = static_cast<int>(k);
      if (!base::is_real(impl.meta->dtype)) continue;
      if (k + 1 < outputs.size())
        impl.node = node;
      else
        impl.node = std::move(node);
    }
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
  std::map<std::pair<std::uint64_t, TapeNode*>, std::pair<Ref<TapeNode>, std::vector<Tensor>>, std::greater<>> waiting{};
  std::unordered_map<std::uint64_t, std::pair<Ref<Impl>, Tensor>> leaves{};
  std::vector<std::uint64_t> leaf_order{};
  std::vector<ir::Var> in{}, out{}, cotangents{};  // of the call whose rule runs
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
      auto& [node, sums] = waiting[{edge.node->order, edge.node.get()}];
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
    auto const& meta = TapeNode::meta(edge);
    if (!meta) return {nullptr, ir::Input{-1, edge.scalar}};
    if (!edge.saved) return emit.add(meta);
    if (edge.saved->version != edge.version)
      fail("backward: a tensor {} that the gradient of {} at {} needs was written in place since", ir::to_string(*meta), node.op->name,
           base::short_place(node.at));
    bool const history = emit.from >= static_cast<int>(Rank::autograd);
    if (history && edge.leaf) return emit.add(Tensor(edge.leaf));
    auto alias = base::make_ref<Impl>(edge.id, meta, edge.offset, edge.saved);
    alias->view = edge.view;
    if (history && base::is_real(meta->dtype)) alias->node = maker;
    if (history) alias->result = edge.result;
    return emit.add(Tensor(std::move(alias)));
  }
  void step(TapeNode& node, std::vector<Tensor> const& gradients) {
    emit.at = node.at;
    emit.values.clear();
    emit.metas.clear();
    in.clear();
    out.clear();
    cotangents.clear();
    auto const inputs = node.inputs(), results = node.results();
    base::InlineVector<bool, 8> wanted;
    for (auto const& input : inputs) {
      in.push_back(read(input, node, input.node));
      wanted.push_back(input.wanted());
    }
    for (std::size_t k = 0; k < results.size(); ++k) {
      out.push_back(read(results[k], node, Ref<TapeNode>(&node)));
      cotangents.push_back(k < gradients.size() && gradients[k].defined() ? emit.add(gradients[k]) : ir::Var());
    }
    ir::Vjp vjp{node.attrs, in, out, cotangents, wanted, {}};
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
  return apply(ir::ops::full, std::span<Arg const>(), ir::Attrs{}.with(output.meta().sizes).with(output.dtype()).with(output.device()).with_num(1.0), at);
}
}  // namespace

// Nodes of this thread that nobody holds: those that still hold others, and those that are empty and wait for a call.
struct TapeNode::Spares {
  TapeNode *dying = nullptr, *empty = nullptr;
  bool busy = false;
  int room = -1;  // for so many more; negative: none has come yet
  static void destroy(TapeNode* node) {
    node->~TapeNode();
    ::operator delete(node);
  }
  void keep(TapeNode* node) {
    if (room < 0) {
      static thread_local struct AtExit {
        Spares& list;
        ~AtExit() {
          list.room = 0;  // what dies later goes at once
          while (list.empty) destroy(std::exchange(list.empty, list.empty->next_));
        }
      } const at_exit{*this};
      room = 1024;
    }
    if (room == 0) return destroy(node);
    --room;
    node->next_ = std::exchange(empty, node);
  }
  TapeNode* take() {
    if (!empty) return new TapeNode;
    ++room;
    return std::exchange(empty, empty->next_);
  }
};
constinit thread_local TapeNode::Spares TapeNode::spares{};

Ref<TapeNode> TapeNode::make(ir::OpDef const& op, ir::Attrs const& attrs, At at, std::size_t operands, std::size_t results) {
  auto node = Ref<TapeNode>::first(spares.take());
  node->op = &op;
  node->attrs = attrs;
  node->at = at;
  node->operands_ = operands;
  node->count_ = operands + results;
  if (node->count_ > node->near_.size()) node->far_.resize(node->count_);
  return node;
}
void TapeNode::clear() {
  for (auto& edge : edges()) {
    edge.node = nullptr;
    edge.leaf = nullptr;
    edge.meta = nullptr;
    edge.saved = nullptr;
  }
  far_.clear();
  count_ = operands_ = 0;
}
void TapeNode::operator delete(TapeNode* node, std::destroying_delete_t) {  // a long history is taken down in a loop, not by recursion
  auto& mine = spares;
  node->next_ = std::exchange(mine.dying, node);
  if (mine.busy) return;
  mine.busy = true;
  while (auto* const next = mine.dying) {
    mine.dying = next->next_;
    next->clear();
    mine.keep(next);
  }
  mine.busy = false;
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
