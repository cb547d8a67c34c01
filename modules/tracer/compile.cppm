export module tenon.tracer:compile;
import std;
import tenon.base;
import tenon.ir;
import tenon.guards;
import :tensor;
import :interpreter;
import :ops;
import :segment;

export namespace tenon::tracer {

/// What a function was captured as: graphs, breaks, guards, recompiles and times, as data and as text.
struct Explanation {
  int graphs = 0, ops = 0;
  std::vector<int> ops_per_graph;
  std::vector<Break> breaks;
  std::vector<std::string> guards, graph_texts;
  std::vector<Recompile> recompiles;
  std::int64_t calls = 0, launches = 0, replayed_ops = 0, recorded_ops = 0, eager_calls = 0;
  double record_seconds = 0, compile_seconds = 0, launch_seconds = 0;
  std::string name;
};
Explanation describe(State& state);
std::string to_string(Explanation const& explanation);
std::ostream& operator<<(std::ostream& out, Explanation const& explanation);

/// Says, while a layer's call runs, that the ops of this thread are the layer's: a recording then names it by the path of its tensors.
struct ModuleScope {
  using First = std::pair<Impl*, std::string>;  ///< the layer's first tensor and that tensor's path inside it
  template <HasFields Layer>
  explicit ModuleScope(Layer const& from) : ModuleScope(&from, first_of<Layer>) {}
  ModuleScope(void const* from, First (*first)(void const*));
  ModuleScope(ModuleScope const&) = delete;
  ~ModuleScope();
  /// The layer that runs on this thread, the inner one first; null if none does.
  static ModuleScope const* innermost();
  template <class Layer>
  static First first_of(void const* from) {
    for (auto const& [name, tensor] : named_tensors(*static_cast<Layer const*>(from)))
      if (tensor.defined()) return {tensor.impl(), name};
    return {};
  }
  void const* layer;
  First (*first_tensor)(void const* layer);
  ModuleScope const* outer;
  mutable std::string_view path{};  ///< as the recording `reader` found it
  mutable void const* reader = nullptr;
};

/// Ends the current segment on purpose; nothing outside a capture.
void graph_break(std::string_view why = "graph_break() was called", At at = At::current());
/// Runs an effect on the host (printing, logging) in its place among the ops: a break, named as such.
void host_effect(std::function<void()> const& effect, At at = At::current());

/// A function whose ops are captured as graphs on first use and replayed on later calls; copies share what was captured.
template <class F>
class Compiled {
 public:
  Compiled(F fn, Options options) : fn_(std::move(fn)), state_(base::make_ref<State>()) { state_->options = std::move(options); }
  /// Runs the function; inside another compiled function it is simply called, and its ops become part of that capture.
  template <class... Args>
  auto operator()(Args&&... args) const -> std::invoke_result_t<F&, Args&...> {
    using Result = std::invoke_result_t<F&, Args&...>;
    if (Session::current()) return std::invoke(fn_, args...);
    auto const each = [&](auto& visit) {
      [[maybe_unused]] std::int64_t index = 0;
      Path const all{nullptr, "args"};
      (each_leaf(args, Path{&all, {}, index++}, visit), ...);
    };
    Arguments arguments;
    auto gather = [&](Path const&, auto& leaf) {
      using Leaf = std::remove_cvref_t<decltype(leaf)>;
      if constexpr (std::is_same_v<Leaf, Tensor>) {
        if (leaf.defined()) arguments.tensors.push_back({leaf.impl(), leaf.impl()->id});
      } else if constexpr (std::is_same_v<Leaf, bool>) {
        arguments.values.push_back({leaf ? "true" : "false"});
      } else if constexpr (std::is_same_v<Leaf, Length>) {
        arguments.values.push_back({"length", leaf.items});
      } else if constexpr (std::is_enum_v<Leaf>) {
        arguments.values.push_back({{}, static_cast<std::int64_t>(leaf)});
      } else if constexpr (!std::is_arithmetic_v<Leaf>) {
        arguments.values.push_back({std::string(std::string_view(leaf))});
      }
    };
    each(gather);
    auto const names = [&each](bool tensors) {
      std::vector<std::string> list;
      auto name = [&](Path const& path, auto& leaf) {
        using Leaf = std::remove_cvref_t<decltype(leaf)>;
        if constexpr (std::is_same_v<Leaf, Tensor>) {
          if (tensors && leaf.defined()) list.push_back(path.text());
        } else if constexpr (std::is_same_v<Leaf, bool> || !std::is_arithmetic_v<Leaf>) {
          if (!tensors) list.push_back(path.text());
        }
      };
      each(name);
      return list;
    };
    arguments.names = std::ref(names);
    if constexpr (HasFields<F>) arguments.own = {&fn_, [](void const* fn) { return named_tensors(*static_cast<F const*>(fn)); }};
    Session session(*state_, std::move(arguments));
    auto const run = [&]() -> Result {
      try {
        return std::invoke(fn_, args...);
      } catch (...) {
        session.abandon();
        throw;
      }
    };
    if constexpr (std::is_void_v<Result>) {
      run();
      session.finish();
    } else {
      Result result = run();
      session.finish();
      return static_cast<Result>(result);
    }
  }
  F const& function() const { return fn_; }
  State& state() const { return *state_; }

 private:
  mutable F fn_;
  base::Ref<State> state_;
};

/// Compiles a function, lambda or callable object; `options` as in Options.
template <class F>
Compiled<std::decay_t<F>> compile(F&& fn, Options options = {}) {
  return {std::forward<F>(fn), std::move(options)};
}

/// explain(f)(args…) runs f once under a fresh capture and says what became of it; explain(compiled)(args…) reports all its calls so far.
template <class F>
auto explain(F&& fn, Options options = {}) {
  return [compiled = compile(std::forward<F>(fn), std::move(options))](auto&&... args) {
    (void)compiled(args...);
    return describe(compiled.state());
  };
}
template <class F>
auto explain(Compiled<F> compiled) {
  return [compiled](auto&&... args) {
    (void)compiled(args...);
    return describe(compiled.state());
  };
}

/// The same function returning (loss, gradients of every tensor of its first argument).
template <class F>
auto value_and_grad(F fn) {
  return [fn](auto&& first, auto&&... rest) -> std::pair<Tensor, std::vector<Tensor>> {
    auto leaves = tensors_of(first);
    std::vector<bool> was;
    for (auto& leaf : leaves) {
      was.push_back(leaf.requires_grad());
      if (!was.back()) leaf.set_requires_grad();
    }
    Tensor loss = fn(first, rest...);
    auto grads = gradients(loss, leaves);
    for (std::size_t k = 0; k < leaves.size(); ++k)
      if (!was[k]) leaves[k].set_requires_grad(false);
    return {std::move(loss), std::move(grads)};
  };
}

}  // namespace tenon::tracer
