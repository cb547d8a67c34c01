// Recording a function for a package.
module tenon;
import std;

namespace tenon {

tracer::Backend PackageRecording::backend() {
  return [this](ir::Graph const& recorded) -> tracer::Runner {
    if (!recorded.mutated.empty())
      fail("package: the function writes into '{}'; a package only returns results",
           recorded.values[static_cast<std::size_t>(recorded.inputs[static_cast<std::size_t>(recorded.mutated[0])])].name);
    graph = recorded;
    for (int const input : graph.inputs) names.push_back(graph.values[static_cast<std::size_t>(input)].name);
    return [this, run = fusion_backend()(recorded)](std::span<ir::Strided const> inputs, ir::Bindings const& bindings) {
      for (std::size_t k = 0; k < inputs.size(); ++k) {
        auto& weight = weights.emplace_back(ir::Strided{nullptr, inputs[k].dtype, inputs[k].sizes, base::contiguous_strides(inputs[k].sizes)});
        auto& bytes = elements.emplace_back();
        if (std::ranges::find(given, names[k]) != given.end()) continue;
        auto const size = static_cast<std::size_t>(base::bytes_of(weight.dtype));
        bytes.resize(std::max<std::size_t>(static_cast<std::size_t>(base::numel(weight.sizes)) * size, 1));
        std::byte* to = bytes.data();
        ir::walk<1>(weight.sizes, {&inputs[k].strides}, [&](auto const& at) { std::memcpy(to, inputs[k].at(at[0]), size), to += size; });
        weight.data = bytes.data();
      }
      auto done = run(inputs, bindings);
      for (std::size_t k = 0; k < done.outputs.size(); ++k) {  // each in memory of its own, by which its tensor is known
        auto& value = done.outputs[k];
        auto const size = static_cast<std::size_t>(base::bytes_of(value.dtype));
        auto memory = base::make_ref<base::Buffer>(std::max<std::int64_t>(base::numel(value.sizes) * base::bytes_of(value.dtype), 1));
        std::byte* to = memory->data();
        ir::walk<1>(value.sizes, {&value.strides}, [&](auto const& at) { std::memcpy(to, value.at(at[0]), size), to += size; });
        value.data = memory->data(), value.strides = base::contiguous_strides(value.sizes);
        results.push_back(value.data);
        done.storage[k] = std::move(memory);
      }
      return done;
    };
  };
}

Package PackageRecording::write(std::vector<Tensor> const& leaves) {
  std::vector<int> outputs;
  for (std::size_t k = 0; k < leaves.size(); ++k) {
    auto const* const storage = leaves[k].defined() ? leaves[k].impl()->storage.get() : nullptr;
    auto const found = std::ranges::find_if(results, [&](std::byte const* data) { return storage && storage->buffer && storage->buffer->data() == data; });
    if (found == results.end()) fail("package: result {} of the function is none of the tensors that it computed", k);
    outputs.push_back(graph.outputs[static_cast<std::size_t>(found - results.begin())]);
  }
  if (outputs.empty()) fail("package: the function returns no tensor");
  graph.outputs = outputs;
  // Inputs of runs in the order of the arguments; weights behind them.
  auto const rank = [&](std::size_t k) { return std::ranges::find(given, names[k]) - given.begin(); };
  std::vector<std::size_t> order(graph.inputs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, rank);
  std::vector<int> inputs;
  std::vector<ir::Strided> sorted;
  for (auto const k : order) {
    graph.values[static_cast<std::size_t>(graph.inputs[k])].index = static_cast<int>(inputs.size());
    inputs.push_back(graph.inputs[k]), sorted.push_back(weights[k]);
  }
  graph.inputs = inputs;
  return fusion::write_package(ir::eliminate_dead_code(graph), sorted, options);
}

}  // namespace tenon
