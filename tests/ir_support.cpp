#include <cstdlib>
import std;
import tenon.base;
import tenon.ir;
#include "ir_support.hpp"
using namespace tenon;
using base::DType;
using ir::Strided;

namespace support {

Array array(DType dtype, base::Shape sizes, std::span<double const> values) {
  auto const count = base::numel(sizes);
  Array result{base::make_ref<base::Buffer>(count * base::bytes_of(dtype)), {}};
  result.at = {result.storage->data(), dtype, sizes, base::contiguous_strides(sizes)};
  std::memset(result.at.data, 0, static_cast<std::size_t>(result.storage->bytes()));
  for (std::size_t i = 0; i < values.size(); ++i) result.at.set(static_cast<std::int64_t>(i), values[i]);
  return result;
}

Array converted(Strided const& x, DType dtype) {
  auto result = array(dtype, x.sizes);
  ir::walk<2>(x.sizes, {&x.strides, &result.at.strides}, [&](auto const& at) {
    if (base::is_real(x.dtype))
      result.at.set(at[1], x.real(at[0]));
    else
      result.at.set_whole(at[1], x.whole(at[0]));
  });
  return result;
}

Array restrided(Strided const& x, std::mt19937& random) {
  std::size_t const rank = x.sizes.size();
  std::vector<std::size_t> order(rank);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::shuffle(order, random);
  base::Shape strides(rank, 0);
  std::int64_t stride = 1 + static_cast<std::int64_t>(random() % 2);
  std::int64_t lead = static_cast<std::int64_t>(random() % 3), least = 0;
  for (auto d : order) {
    bool const backwards = random() % 4 == 0;  // negative strides too
    strides[d] = backwards ? -stride : stride;
    if (x.sizes[d] == 1) strides[d] = 17;
    if (backwards && x.sizes[d] > 1) least += (x.sizes[d] - 1) * stride;
    stride *= std::max<std::int64_t>(x.sizes[d], 1) + static_cast<std::int64_t>(random() % 2);
  }
  Array result{base::make_ref<base::Buffer>((stride + least + lead + 2) * base::bytes_of(x.dtype)), {}};
  std::memset(result.storage->data(), 0x55, static_cast<std::size_t>(result.storage->bytes()));
  result.at = {result.storage->data() + (lead + least) * base::bytes_of(x.dtype), x.dtype, x.sizes, strides};
  ir::walk<2>(x.sizes, {&x.strides, &strides},
              [&](auto const& at) { std::memcpy(result.at.at(at[1]), x.at(at[0]), static_cast<std::size_t>(base::bytes_of(x.dtype))); });
  return result;
}

std::vector<double> reals(Strided const& x) {
  std::vector<double> result;
  ir::walk<1>(x.sizes, {&x.strides}, [&](auto const& at) { result.push_back(x.real(at[0])); });
  return result;
}

ir::Meta meta_of(Strided const& x) {
  ir::Meta meta;
  meta.dtype = x.dtype;
  for (auto size : x.sizes) meta.sizes.push_back(size);
  for (auto stride : x.strides) meta.strides.push_back(stride);
  return meta;
}

double distance(std::span<double const> a, std::span<double const> b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    double const gap = std::fabs(a[i] - b[i]);
    worst = std::max(worst, std::isnan(gap) ? std::numeric_limits<double>::infinity() : gap);
  }
  return worst;
}
double scale_of(std::span<double const> x) {
  double scale = 1;
  for (double v : x)
    if (std::isfinite(v)) scale = std::max(scale, std::fabs(v));
  return scale;
}

ir::Graph graph_of(Call const& call) {
  ir::Graph graph;
  std::vector<ir::Input> in;
  for (auto const& operand : call.operands)
    in.push_back(operand.tensor ? ir::Input{graph.input(meta_of(operand.tensor->at)), {}} : ir::Input{-1, operand.number});
  int const first = graph.add(*call.op, std::move(in), call.attrs, {});
  for (int k = 0; k < graph.nodes.back().results; ++k) graph.outputs.push_back(first + k);
  return graph;
}
std::vector<Strided> inputs_of(Call const& call) {
  std::vector<Strided> inputs;
  for (auto const& operand : call.operands)
    if (operand.tensor) inputs.push_back(operand.tensor->at);
  return inputs;
}

ir::Graph gradient_graph(ir::Graph const& graph, std::span<int const> wrt) {
  ir::Graph weighted = graph;
  int loss = -1;
  for (int output : graph.outputs) {
    auto const meta = weighted.values[static_cast<std::size_t>(output)].meta;
    if (!base::is_real(meta->dtype)) continue;
    int const cotangent = weighted.input(ir::contiguous_meta(meta->dtype, meta->device, meta->sizes));
    int const product = weighted.add(ir::ops::mul, {{output, {}}, {cotangent, {}}}, {}, {});
    int const sum = weighted.add(ir::ops::sum, {{product, {}}}, ir::default_attrs(ir::ops::sum), {});
    loss = loss < 0 ? sum : weighted.add(ir::ops::add, {{loss, {}}, {sum, {}}}, ir::default_attrs(ir::ops::add), {});
  }
  weighted.outputs = {loss};
  return ir::with_gradients(weighted, wrt);
}

ir::Evaluated run(ir::Graph const& graph, std::span<Strided const> inputs) { return ir::evaluate(ir::decompose(graph), inputs); }

namespace {
// Evaluates each call as it is written.
struct AtOnceEmit final : ir::Emit {
  std::deque<Array> values;  // references stay valid while it grows
  std::deque<ir::Meta> metas;
  int add(Array array) {
    metas.push_back(meta_of(array.at));
    values.push_back(std::move(array));
    return static_cast<int>(values.size()) - 1;
  }
  ir::Meta const& meta(int value) override { return metas[static_cast<std::size_t>(value)]; }
  int op(ir::OpDef const& op, std::span<ir::Input const> inputs, ir::Attrs attrs) override {
    std::vector<Strided> in, out;
    std::vector<ir::Scalar> scalars;
    std::vector<ir::Var> vars;
    for (auto const& input : inputs) {
      in.push_back(input.value < 0 ? Strided{} : values[static_cast<std::size_t>(input.value)].at);
      scalars.push_back(input.scalar);
      vars.emplace_back(input.value < 0 ? nullptr : this, input);
    }
    if (!ir::has_kernel(op)) {
      if (op.measured) (void)ir::measure(op, in, scalars, attrs, {});
      ir::Body body{attrs, vars};
      op.decompose(body);
      int const first = static_cast<int>(values.size());
      for (auto const& y : body.out) {
        auto const array = values[static_cast<std::size_t>(y.input.value)];
        (void)add(array);
      }
      return first;
    }
    std::vector<Array> results;
    for (auto const& meta : ir::measure(op, in, scalars, attrs, {})) {
      results.push_back(array(meta.dtype, ir::values(meta.sizes)));
      out.push_back(results.back().at);
    }
    ir::evaluate(op, in, scalars, attrs, out);
    int const first = static_cast<int>(values.size());
    for (auto& result : results) (void)add(std::move(result));
    return first;
  }
};
}  // namespace

AtOnce run_at_once(Call const& call, std::span<Array const> cotangents, std::span<int const> wrt) {
  AtOnceEmit emit;
  std::vector<ir::Input> inputs;
  std::vector<ir::Var> in, out, g;
  std::vector<std::size_t> tensors;
  for (auto const& operand : call.operands) {
    if (operand.tensor) tensors.push_back(inputs.size());
    inputs.push_back(operand.tensor ? ir::Input{emit.add(*operand.tensor), {}} : ir::Input{-1, operand.number});
    in.emplace_back(operand.tensor ? &emit : nullptr, inputs.back());
  }
  int const first = emit.op(*call.op, inputs, call.attrs), count = static_cast<int>(emit.values.size()) - first;
  AtOnce done;
  std::size_t next = 0;
  for (int k = 0; k < count; ++k) {
    done.results.push_back(emit.values[static_cast<std::size_t>(first + k)]);
    out.emplace_back(emit, first + k);
  }
  if (wrt.empty()) return done;
  for (auto const& y : out) {
    bool const real = base::is_real(y.meta().dtype) && next < cotangents.size();
    g.push_back(real ? ir::Var(emit, emit.add(cotangents[next])) : ir::Var());
    next += real;
  }
  auto wanted = std::make_unique<bool[]>(in.size());
  for (int k : wrt) wanted[tensors.at(static_cast<std::size_t>(k))] = true;
  ir::Vjp vjp{call.attrs, in, out, g, {wanted.get(), in.size()}, {}};
  ir::differentiate(*call.op, vjp);
  for (int k : wrt) {
    auto const place = tensors[static_cast<std::size_t>(k)];
    auto const& grad = vjp.grads[place];
    done.gradients.push_back(grad ? emit.values[static_cast<std::size_t>(grad.input.value)]
                                  : array(emit.meta(inputs[place].value).dtype, call.operands[place].tensor->at.sizes));
  }
  return done;
}

int tier(int quick, int usual, int full) {
  char const* const name = std::getenv("TENON_TIER");
  std::string_view const which = name ? name : "";
  return which == "quick" ? quick : which == "full" ? full : usual;
}

}  // namespace support
