export module tenon.tracer:compile;
import std;
import tenon.base;
import tenon.ir;
import tenon.guards;
import :tensor;
import :interpreter;
import :leaves;
import :ops;
import :segment;
import :state;
import :capture;

export namespace tenon::tracer {

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
    Session session(*state_);
    Arguments& arguments = session.arguments();
    auto gather = [&](Path const&, auto& leaf) {
      using Leaf = std::remove_cvref_t<decltype(leaf)>;
      if constexpr (std::is_same_v<Leaf, Tensor>) {
        arguments.tensors.push_back(leaf.defined() ? Arguments::Given{leaf.impl(), leaf.impl()->id, leaf.requires_grad()} : Arguments::Given{});
      } else if constexpr (std::is_same_v<Leaf, bool>) {
        arguments.values.push_back({leaf ? "true" : "false"});
      } else if constexpr (std::is_same_v<Leaf, Length>) {
        arguments.values.push_back({"length", leaf.items});
      } else if constexpr (std::is_enum_v<Leaf>) {
        arguments.values.push_back({{}, static_cast<std::int64_t>(leaf)});
      } else if constexpr (!std::is_arithmetic_v<Leaf>) {
        arguments.values.push_back({std::string(std::string_view(leaf))});
      } else if (state_->options.pure) {  // replay compares numbers where they are used
        if constexpr (std::is_integral_v<Leaf>)
          arguments.values.push_back({{}, static_cast<std::int64_t>(leaf)});
        else
          arguments.values.push_back({std::format("{}", leaf), std::bit_cast<std::int64_t>(static_cast<double>(leaf))});
      }
    };
    each(gather);
    auto const names = [&each, this](bool tensors) {
      std::vector<std::string> list;
      auto name = [&](Path const& path, auto& leaf) {
        using Leaf = std::remove_cvref_t<decltype(leaf)>;
        if constexpr (std::is_same_v<Leaf, Tensor>) {
          if (tensors) list.push_back(path.text());
        } else if (!tensors && (std::is_same_v<Leaf, bool> || !std::is_arithmetic_v<Leaf> || state_->options.pure)) {
          list.push_back(path.text());
        }
      };
      each(name);
      return list;
    };
    arguments.names = std::ref(names);
    if constexpr (HasFields<F>) arguments.own = {&fn_, [](void const* fn) { return named_tensors(*static_cast<F const*>(fn)); }};
    session.begin();
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
      constexpr bool repeatable = std::copy_constructible<Result> && !std::is_reference_v<Result> && knows_tensors<Result>();
      if constexpr (repeatable)
        if (state_->options.pure) return pure_call<Result>(session, run);
      Result result = run();
      session.finish();
      if constexpr (std::is_reference_v<Result>)
        return static_cast<Result>(result);
      else
        return result;
    }
  }
  F const& function() const { return fn_; }
  State& state() const { return *state_; }

 private:
  template <class Result>
  static Result pure_call(Session& session, auto const& run) {
    std::vector<Tensor> leaves;
    if (auto const kept = session.pure_result(leaves)) {
      Result result = *static_cast<Result const*>(kept.get());
      each_tensor(result, [&, next = std::size_t{0}](Tensor& leaf) mutable { leaf = std::move(leaves[next++]); });
      return result;
    }
    Result result = run();
    auto kept = std::make_shared<Result>(result);
    std::vector<Ref<Impl>> made;
    each_tensor(*kept, [&](Tensor& leaf) { made.push_back(std::exchange(leaf, Tensor()).ref()); });
    session.finish_pure(std::move(made), std::move(kept));
    return result;
  }

  mutable F fn_;
  base::Ref<State> state_;
};

/// Compiles a function, lambda or callable object; `options` as in Options.
template <class F>
Compiled<std::decay_t<F>> compile(F&& fn, Options options = {}) {
  return {std::forward<F>(fn), std::move(options)};
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
