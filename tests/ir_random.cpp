import std;
import tenon.base;
import tenon.ir;
#include "ir_random.hpp"
using namespace tenon;
using ir::Dim;
using ir::Scalar;
using Type = ir::Parameter::Type;

namespace support {
namespace {

constexpr std::array names{"", "", "x", "layer.0.weight", "two words", "a \"quoted\" one", "back\\slash", "%5: f32[2]", "return"};
constexpr std::array files{"model.cpp", "../a folder/model.cpp", "a \"quoted\".cpp", "c:\\model.cpp"};
constexpr std::array devices{base::Device{}, base::Device{base::Device::Kind::cuda, 1}, base::Device{base::Device::Kind::sim, 0}};

std::vector<Call> calls_of(std::span<std::string_view const> lines) {
  std::mt19937 random(11);
  std::vector<Call> calls;
  for (auto const line : lines) calls.push_back(sample(line, random));
  return calls;
}
std::vector<Call> const& all_calls() {
  static std::vector<Call> const calls = [] {
    std::mt19937 random(11);
    std::vector<Call> list;
    for (auto const* op : ir::all_ops())
      if (!ir::writes(*op))
        for (auto& call : samples(*op, random)) list.push_back(std::move(call));
    return list;
  }();
  return calls;
}

struct Builder {
  std::mt19937& random;
  Wish const& wish;
  RandomGraph made{};
  std::map<std::int64_t, Dim> known{};  // one symbol a size, mostly
  ir::Graph& graph = made.graph;

  bool chance(unsigned percent) { return random() % 100 < percent; }
  auto const& any(auto const& list) { return list[random() % list.size()]; }
  base::At place() {
    return wish.ornaments && chance(60)
               ? base::At{any(files), static_cast<std::uint32_t>(1 + random() % 500), static_cast<std::uint32_t>(1 + random() % 90), ""}
               : base::At{};
  }

  Dim size(std::int64_t value) {
    if (!wish.symbols || value < 2 || chance(20)) return value;
    if (chance(15)) return graph.symbols.symbol(value);
    auto const [at, fresh] = known.try_emplace(value, Dim());
    if (fresh) at->second = graph.symbols.symbol(value);
    return at->second;
  }
  Dim number(Dim now) {
    bool const special = now.value < 0 || now.value == std::numeric_limits<std::int64_t>::max();
    if (special || !wish.symbols || chance(50)) return now;
    auto const found = known.find(now.value);
    return found != known.end() ? found->second : graph.symbols.index_symbol(now.value);
  }
  Scalar number(Scalar now) {
    if (now.kind == ir::ScalarKind::whole) return Scalar(number(Dim(now.whole)));
    return now.kind == ir::ScalarKind::real && wish.symbols && chance(50) ? graph.symbols.real_symbol(now.real) : now;
  }
  ir::Attrs attributes(Call const& call, base::Device device) {
    ir::Attrs attrs;
    ir::AttrReader reader{call.attrs};
    for (auto const& parameter : ir::signature(*call.op).parameters) switch (parameter.type) {
        case Type::tensor:
        case Type::tensors:
          break;
        case Type::wholes:
          attrs.with(reader.list());
          break;
        case Type::sizes: {
          ir::Dims list;
          for (auto item : reader.list()) list.push_back(number(item));
          attrs.with(list);
          break;
        }
        case Type::size:
          attrs.with(number(reader.number()));
          break;
        case Type::reals:
          attrs.with(reader.number());
          for (auto n = attrs.ints.back().value; n-- > 0;) attrs.with_num(reader.num());
          break;
        case Type::real: {
          auto const now = reader.num();
          attrs.with_num(parameter.fixed ? now : number(now));
          break;
        }
        case Type::text:
          attrs.text = call.attrs.text;
          break;
        case Type::device:
          reader.number();
          attrs.with(device);
          break;
        default:
          attrs.with(reader.number());
      }
    return attrs;
  }

  // Indices and divisors keep their range only as inputs of their own.
  bool may_read(Call const& call, base::DType dtype) const {
    return base::is_real(dtype) || dtype == base::DType::boolean || (call.op->kind == ir::Kind::pointwise && call.operands.size() == 1);
  }
  int operand(Call const& call, Array const& x, base::Device device) {
    std::vector<int> fitting;
    for (int v = 0; std::cmp_less(v, graph.values.size()); ++v) {
      auto const& meta = *graph.values[static_cast<std::size_t>(v)].meta;
      if (meta.dtype == x.at.dtype && meta.device == device && ir::values(meta.sizes) == x.at.sizes) fitting.push_back(v);
    }
    if (!fitting.empty() && may_read(call, x.at.dtype) && chance(85)) return chance(50) ? fitting.back() : any(fitting);
    auto const held = (wish.ornaments || wish.strides) && chance(40) ? restrided(x.at, random) : x;
    auto meta = meta_of(held.at);
    ir::Dims sizes;
    for (auto n : x.at.sizes) sizes.push_back(size(n));
    ir::Symbols::Scope const scope(&graph.symbols);
    if (held.at.strides == base::contiguous_strides(held.at.sizes))
      meta = ir::contiguous_meta(x.at.dtype, device, sizes);
    else
      meta.sizes = sizes;
    meta.device = device;
    made.inputs.push_back(held);
    return graph.input(std::move(meta), wish.ornaments ? any(names) : "");
  }
  void call(Call const& call) {
    auto const device = wish.ornaments ? any(devices) : base::Device{};
    std::vector<ir::Input> in;
    for (auto const& x : call.operands) in.push_back(x.tensor ? ir::Input{operand(call, *x.tensor, device), {}} : ir::Input{-1, number(x.number)});
    auto attrs = attributes(call, device);
    graph.add(*call.op, std::move(in), std::move(attrs), place());
  }
  void repeat() {
    auto const node = any(graph.nodes);
    graph.add(*node.op, node.inputs, node.attrs, place());
  }
};
}  // namespace

std::vector<ir::Strided> RandomGraph::elements() const {
  std::vector<ir::Strided> list;
  for (auto const& input : inputs) list.push_back(input.at);
  return list;
}

RandomGraph random_graph(std::mt19937& random, Wish const& wish) {
  Builder builder{random, wish};
  auto const chosen = calls_of(wish.calls);
  auto const& calls = chosen.empty() ? all_calls() : chosen;
  auto& graph = builder.graph;
  if (wish.ornaments && builder.chance(50)) graph.name = builder.any(names);
  while (std::cmp_less(graph.nodes.size(), wish.nodes))
    if (!graph.nodes.empty() && builder.chance(15))
      builder.repeat();
    else
      builder.call(builder.any(calls));
  for (auto count = 1 + random() % 3; count > 0; --count) graph.outputs.push_back(static_cast<int>(random() % graph.values.size()));
  graph.outputs.push_back(static_cast<int>(graph.values.size()) - 1);
  return std::move(builder.made);
}

std::vector<int> seeds(int count) {
  int first = 0, last = count - 1;
  if (char const* const wish = std::getenv("TENON_SEEDS"); wish && *wish) {
    std::string_view const text = wish;
    auto const dash = std::min(text.find('-'), text.size());
    auto const read = [&](std::string_view digits) {
      int number = -1;
      auto const done = std::from_chars(digits.data(), digits.data() + digits.size(), number);
      if (done.ec != std::errc() || done.ptr != digits.data() + digits.size() || number < 0) base::fail("TENON_SEEDS: \"{}\" names no seeds", text);
      return number;
    };
    first = read(text.substr(0, dash)), last = dash == text.size() ? first : read(text.substr(dash + 1));
  }
  std::vector<int> list;
  for (int seed = first; seed <= last; ++seed) list.push_back(seed);
  return list;
}

}  // namespace support
