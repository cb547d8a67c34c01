module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir {
using base::ensure;

namespace {
Attrs plain(Attrs attrs, Symbols const& symbols, Bindings const& bindings) {
  for (auto& dim : attrs.ints)
    if (dim.node >= 0) dim = symbols.evaluate(dim, bindings);
  for (auto& number : attrs.nums)
    if (number.node >= 0) number = symbols.evaluate(number, bindings);
  return attrs;
}
base::Shape plain(Dims const& dims, Symbols const& symbols, Bindings const& bindings) {
  base::Shape shape(dims.size());
  std::ranges::transform(dims, shape.begin(), [&](Dim d) { return symbols.evaluate(d, bindings); });
  return shape;
}
}  // namespace

Evaluated evaluate(Graph const& graph, std::span<Strided const> inputs, Bindings const& bindings) {
  ensure(inputs.size() == graph.inputs.size(), std::format("{}: {} inputs given, {} needed", graph.name, inputs.size(), graph.inputs.size()));
  std::vector<Strided> value(graph.values.size());
  std::vector<base::Ref<base::Buffer>> storage(graph.values.size());
  std::vector<std::size_t> last(graph.values.size(), 0);  // 1 + the last node that reads a value
  for (std::size_t n = 0; n < graph.nodes.size(); ++n)
    for (auto const& input : graph.nodes[n].inputs)
      if (input.value >= 0) last[static_cast<std::size_t>(input.value)] = n + 1;
  for (int output : graph.outputs) last[static_cast<std::size_t>(output)] = graph.nodes.size() + 1;
  for (std::size_t k = 0; k < inputs.size(); ++k) value[static_cast<std::size_t>(graph.inputs[k])] = inputs[k];
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    auto const& node = graph.nodes[n];
    std::vector<Strided> in, out;
    std::vector<Scalar> scalars;
    for (auto const& input : node.inputs) {
      in.push_back(input.value < 0 ? Strided{} : value[static_cast<std::size_t>(input.value)]);
      scalars.push_back(graph.symbols.evaluate(input.scalar, bindings));
    }
    Attrs const attrs = plain(node.attrs, graph.symbols, bindings);
    auto const first = static_cast<std::size_t>(node.first);
    if (node.op->geometry) {
      View view{attrs, in[0].dtype, {}, {}, 0};
      for (auto size : in[0].sizes) view.sizes.push_back(size);
      for (auto stride : in[0].strides) view.strides.push_back(stride);
      if (node.op->geometry(view)) {
        value[first] = {in[0].at(view.offset.value), in[0].dtype, values(view.sizes), values(view.strides)};
        storage[first] = storage[static_cast<std::size_t>(node.inputs[0].value)];
        if (writes(*node.op)) evaluate(*node.op, in, scalars, attrs, std::span(&value[first], 1));
        continue;
      }
    }
    for (int k = 0; k < node.results; ++k) {
      auto const& meta = *graph.values[first + static_cast<std::size_t>(k)].meta;
      Strided result{nullptr, meta.dtype, plain(meta.sizes, graph.symbols, bindings), {}};
      result.strides = base::contiguous_strides(result.sizes);
      auto& buffer = storage[first + static_cast<std::size_t>(k)];
      buffer = base::make_ref<base::Buffer>(base::numel(result.sizes) * base::bytes_of(meta.dtype));
      result.data = buffer->data();
      out.push_back(std::move(result));
    }
    evaluate(*node.op, in, scalars, attrs, out);
    std::ranges::move(out, value.begin() + node.first);
    for (auto const& input : node.inputs)
      if (input.value >= 0 && last[static_cast<std::size_t>(input.value)] == n + 1) storage[static_cast<std::size_t>(input.value)] = nullptr;
  }
  Evaluated done;
  for (int output : graph.outputs) {
    done.outputs.push_back(value[static_cast<std::size_t>(output)]);
    done.storage.push_back(storage[static_cast<std::size_t>(output)]);
  }
  return done;
}

}  // namespace tenon::ir
