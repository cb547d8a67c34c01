/// Functions as libraries of C.
export module tenon:package;
import std;
import tenon.base;
import tenon.ir;
import tenon.tracer;
import tenon.fusion;

namespace tenon {
// What one call of a function tells of it: its graph, the elements of what it reads, where its results lie.
struct PackageRecording {
  fusion::PackageOptions options;
  std::vector<std::string> given;  // names of the arguments that are tensors
  ir::Graph graph{};
  std::vector<std::string> names{};  // of the graph's inputs
  std::vector<std::vector<std::byte>> elements{};
  std::vector<ir::Strided> weights{};
  std::vector<std::byte const*> results{};  // of the graph's outputs
  tracer::Backend backend();
  fusion::Package write(std::vector<tracer::Tensor> const& leaves);
};
// A function whose results are tensors of their own, row by row.
template <class F>
struct RowMajorResults {
  F function;
  template <class... Args>
  auto operator()(Args&... args) const {
    auto result = std::invoke(function, args...);
    tracer::each_tensor(result, [](tracer::Tensor& x) { x = tracer::clone(x); });
    return result;
  }
  static void fields(auto& self, auto&& field)
    requires tracer::HasFields<F>
  {
    F::fields(self.function, field);
  }
};
// An argument that lies row by row.
template <class T>
T row_major(T const& argument) {
  if constexpr (std::is_same_v<T, tracer::Tensor>)
    return argument.defined() && !argument.is_contiguous() ? tracer::clone(argument) : argument;
  else
    return argument;
}
}  // namespace tenon

export namespace tenon {
using fusion::Package;
using fusion::PackageOptions;

/// Writes a function, recorded on these arguments, as a library of C that needs nothing of Tenon (docs/package.md). Arguments that are tensors are the
/// inputs of its runs, with these sizes; tensors that it finds in other arguments or in itself are its weights; numbers are what they are here. Without
/// gradients. Error naming what can't be packaged: a break, a write into an input, an op for which there is no C.
template <class F, class... Args>
Package package(F const& function, PackageOptions options, Args const&... args) {
  tracer::NoGrad const off;
  PackageRecording recording{.options = std::move(options), .given = {}};
  std::int64_t k = 0;
  ((std::is_same_v<Args, tracer::Tensor> ? recording.given.push_back(std::format("args[{}]", k)) : void(), ++k), ...);
  auto const recorded = tracer::compile(RowMajorResults<F>{function},
                                        {.fullgraph = true, .dynamic = tracer::Dynamic::never, .backend = recording.backend(), .name = recording.options.name});
  std::tuple<Args...> copies{row_major(args)...};
  auto result = std::apply([&](auto&... each) { return recorded(each...); }, copies);
  return recording.write(tracer::tensors_of(result));
}
}  // namespace tenon
