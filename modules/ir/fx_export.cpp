// Our graphs in FX's form: names, folded layers, and the spelling of each call.
module tenon.ir;
import std;
import tenon.base;
import :fx;
import :table;

namespace tenon::ir {
using Code = FxNode::Code;
using ArgKind = FxArg::Kind;
using fx::Item;
using fx::Spelling;

namespace {
Value const& at(Graph const& graph, int value) { return graph.values[static_cast<std::size_t>(value)]; }

// -- what ATen's core lacks -------------------------------------------------------------------------------------------------------------------

struct Emitter final : Emit {
  Graph& graph;
  Node const* from = nullptr;
  explicit Emitter(Graph& to) : graph(to) {}
  int op(OpDef const& op, std::span<Input const> inputs, Attrs attrs) override {
    int const first = graph.add(op, {inputs.begin(), inputs.end()}, std::move(attrs), from->at);
    graph.nodes.back().module = from->module;
    return first;
  }
  Meta const& meta(int value) override { return *at(graph, value).meta; }
};
Var turned(Var weight) { return call(ops::permute, {weight}, Attrs{}.with(Dims{1, 0})); }
void transpose_as_permute(Body& body) {
  Dims order;
  for (int d = 0; d < body.x().rank(); ++d) order.push_back(d);
  if (order.empty()) return;
  AttrReader reader{body.attrs};
  auto const a = static_cast<std::size_t>(dim_of(body.x(), reader.number())), b = static_cast<std::size_t>(dim_of(body.x(), reader.number()));
  std::swap(order[a], order[b]);
  body.out.push_back(call(ops::permute, {body.x()}, Attrs{}.with(order)));
}
void linear_as_addmm(Body& body) {
  if (body.x().rank() != 2 || body.x(1).rank() != 2) return;
  bool const bias = body.in.size() > 2 && body.x(2);
  body.out.push_back(bias ? call(ops::addmm, {body.x(2), body.x(), turned(body.x(1))}, default_attrs(ops::addmm))
                          : call(ops::mm, {body.x(), turned(body.x(1))}));
}
// A row: an op, and its body in ATen's core; a body without a result leaves the call as it is.
constexpr std::pair<OpDef const*, void (*)(Body&)> core[] = {{&ops::transpose, transpose_as_permute}, {&ops::linear, linear_as_addmm}};

Graph lowered(Graph const& graph) {
  Graph to;
  to.name = graph.name;
  to.symbols = graph.symbols;
  std::vector<int> moved(graph.values.size(), -1);
  for (int input : graph.inputs) {
    moved[static_cast<std::size_t>(input)] = static_cast<int>(to.values.size());
    to.inputs.push_back(static_cast<int>(to.values.size()));
    to.values.push_back(at(graph, input));
  }
  Symbols::Scope const scope(&to.symbols);
  Emitter emit(to);
  for (auto const& node : graph.nodes) {
    auto inputs = node.inputs;
    for (auto& input : inputs)
      if (input.value >= 0) input.value = moved[static_cast<std::size_t>(input.value)];
    emit.from = &node;
    int first = -1;
    if (auto const row = std::ranges::find(core, node.op, [](auto const& entry) { return entry.first; }); row != std::end(core)) {
      std::vector<Var> in;
      for (auto const& input : inputs) in.emplace_back(input.value >= 0 ? &emit : nullptr, input);
      Body body{node.attrs, in};
      row->second(body);
      if (!body.out.empty()) first = body.out[0].input.value;
    }
    if (first < 0) {
      first = static_cast<int>(to.values.size());
      for (int k = 0; k < node.results; ++k) {
        to.values.push_back(at(graph, node.first + k));
        to.values.back().node = static_cast<int>(to.nodes.size());
      }
      Node fresh = node;
      fresh.inputs = std::move(inputs);
      fresh.first = first;
      to.nodes.push_back(std::move(fresh));
    }
    for (int k = 0; k < node.results; ++k) moved[static_cast<std::size_t>(node.first + k)] = first + k;
  }
  for (int output : graph.outputs) to.outputs.push_back(moved[static_cast<std::size_t>(output)]);
  return to;
}

// -- layers ---------------------------------------------------------------------------------------------------------------------------------------

// "args[0].blocks[1].fc1.weight" → "blocks.1.fc1.weight"; empty for an input that lies inside of nothing.
std::string parameter_path(std::string_view name) {
  bool inside = name.find('.') != std::string_view::npos;
  if (name.starts_with("args[")) {
    auto const end = name.find("].");
    if (end == std::string_view::npos || name.find('[', 5) < end) return {};
    name = name.substr(end + 2);
    inside = true;
  }
  std::string path;
  for (char c : name)
    if (c != ']') path += c == '[' ? '.' : c;
  return inside ? path : std::string{};
}
// Whether an input is a tensor of the layer at `path`; with several models among the arguments, a layer's path names its argument too.
bool lies_in(std::string_view name, std::string const& path) {
  auto const inner = parameter_path(name);
  if (inner.starts_with(path + ".")) return true;
  auto const argument = name.starts_with("args[") ? std::format("args.{}.{}", name.substr(5, name.find(']') - 5), inner) : inner;
  return argument.starts_with(path + ".");
}
// The path of a layer without the numbers of repeated calls ("fc1@1").
std::string plain(std::string_view path) {
  std::string text;
  for (std::size_t k = 0; k < path.size(); ++k) {
    if (path[k] == '@') {
      while (k + 1 < path.size() && path[k + 1] != '.') ++k;
      continue;
    }
    text += path[k];
  }
  return text;
}
/// Nodes first … last are one call of a layer that reads `inputs` and makes `result`.
struct LayerCall {
  std::size_t first = 0, last = 0;
  std::string path{};
  std::vector<Input> inputs{};
  int result = -1;
};
// Runs of nodes of one path that has no layers below it, and of which one value leaves.
std::vector<LayerCall> layer_calls(Graph const& graph) {
  std::vector<std::size_t> last_use(graph.values.size(), 0);  // node + 1; past the end for outputs
  for (std::size_t n = 0; n < graph.nodes.size(); ++n)
    for (auto const& input : graph.nodes[n].inputs)
      if (input.value >= 0) last_use[static_cast<std::size_t>(input.value)] = n + 1;
  for (int output : graph.outputs) last_use[static_cast<std::size_t>(output)] = graph.nodes.size() + 1;
  std::unordered_set<std::string> outer;
  std::unordered_map<std::string_view, int> runs;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    auto const path = graph.nodes[n].module;
    if (path.empty() || (n > 0 && graph.nodes[n - 1].module == path)) continue;
    ++runs[path];
    auto const text = plain(path);
    for (auto dot = text.find('.'); dot != std::string::npos; dot = text.find('.', dot + 1)) outer.insert(text.substr(0, dot));
  }
  std::vector<LayerCall> calls;
  for (std::size_t n = 0; n < graph.nodes.size();) {
    auto const path = graph.nodes[n].module;
    std::size_t end = n + 1;
    while (end < graph.nodes.size() && graph.nodes[end].module == path) ++end;
    LayerCall call{n, end - 1, plain(path)};
    int leaving = 0;
    std::set<int> seen;
    auto const made_inside = [&](int value) { return at(graph, value).node >= static_cast<int>(n) && at(graph, value).node < static_cast<int>(end); };
    for (std::size_t k = n; k < end; ++k) {
      auto const& node = graph.nodes[k];
      for (int r = node.first; r < node.first + node.results; ++r)
        if (last_use[static_cast<std::size_t>(r)] > end) ++leaving, call.result = r;
      for (auto const& input : node.inputs) {
        if (input.value < 0 || made_inside(input.value) || !seen.insert(input.value).second) continue;
        bool const own = at(graph, input.value).node < 0 && lies_in(at(graph, input.value).name, call.path);
        if (!own) call.inputs.push_back(input);
      }
    }
    if (!path.empty() && leaving == 1 && runs[path] == 1 && !outer.contains(call.path)) calls.push_back(std::move(call));
    n = end;
  }
  return calls;
}

// -- calls ----------------------------------------------------------------------------------------------------------------------------------------

struct Exporter {
  Graph const& graph;
  FxOptions const& options;
  bool aten = options.style == FxStyle::aten;
  FxGraph fx{};
  fx::Names names{};
  std::vector<std::int64_t> place = std::vector<std::int64_t>(graph.values.size(), -1);

  FxArg number(Dim dim) const {
    if (dim.value == absent) return {};
    return dim.node >= 0 ? FxArg::of_word(graph.symbols.to_string(dim)) : FxArg::of(dim.value);
  }
  FxArg number(Scalar const& scalar) const {
    if (scalar.node >= 0 && scalar.kind != ScalarKind::none) return FxArg::of_word(graph.symbols.to_string(scalar));
    if (scalar.kind == ScalarKind::real) return FxArg::of(scalar.real);
    if (scalar.kind == ScalarKind::whole) return FxArg::of(scalar.whole);
    return scalar.kind == ScalarKind::boolean ? FxArg::of(scalar.whole != 0) : FxArg{};
  }
  FxArg attribute(Parameter const& parameter, AttrReader& reader) const {
    using Type = Parameter::Type;
    switch (parameter.type) {
      case Type::wholes:
      case Type::sizes: {
        std::vector<FxArg> items;
        for (auto dim : reader.list()) items.push_back(number(dim));
        return FxArg::of_items(ArgKind::list, std::move(items));
      }
      case Type::real:
        return number(reader.num());
      case Type::reals: {
        std::vector<FxArg> items;
        for (auto left = reader.number().value; left > 0; --left) items.push_back(number(reader.num()));
        return FxArg::of_items(ArgKind::list, std::move(items));
      }
      case Type::text:
        return FxArg::of_text(reader.attrs.text);
      case Type::flag:
        return FxArg::of(reader.flag());
      case Type::dtype: {
        auto const dim = reader.number();
        return dim.value == absent ? FxArg{} : FxArg::of_word(std::format("torch.{}", base::info(static_cast<base::DType>(dim.value)).torch_name));
      }
      case Type::device: {
        auto const device = base::to_string(reader.device());
        auto const colon = device.find(':');
        return FxArg::of_word(colon == std::string::npos ? std::format("device(type='{}')", device)
                                                         : std::format("device(type='{}', index={})", device.substr(0, colon), device.substr(colon + 1)));
      }
      case Type::choice: {
        auto const choice = reader.number().value;
        if (aten && parameter.name == "reduction") return FxArg::of(choice);  // ATen numbers reductions as our choices stand
        return FxArg::of_text(parameter.choices[static_cast<std::size_t>(choice)]);
      }
      default:
        return number(reader.number());
    }
  }

  FxArg value(Input const& input) {
    if (input.value < 0) return number(input.scalar);
    auto const index = static_cast<std::size_t>(input.value);
    if (place[index] < 0) {  // a parameter, fetched where it is first read
      auto const path = parameter_path(graph.values[index].name);
      FxNode node{.code = Code::get_attr, .name = names.unique(path), .target = path};
      add(std::move(node), input.value);
    }
    return FxArg::of_node(static_cast<std::size_t>(place[index]));
  }
  void add(FxNode node, int value) {
    if (value >= 0) {
      place[static_cast<std::size_t>(value)] = std::ssize(fx.nodes);
      if (options.types) node.type = fx::type_text(*at(graph, value).meta, graph.symbols);
    }
    fx.nodes.push_back(std::move(node));
  }

  /// A call's arguments by parameter, and whether each is its default.
  struct Arguments {
    std::vector<FxArg> args{};
    std::vector<char> usual{};
  };
  Arguments arguments(Node const& node) {
    Arguments all;
    auto const& known = signature(*node.op);
    if (auto const fault = attribute_fault(*node.op, node.attrs); !fault.empty()) base::fail("fx: {}: {}", node.op->name, fault);
    Attrs const defaults = default_attrs(*node.op);
    AttrReader given{node.attrs}, usual{defaults};
    std::size_t operand = 0;
    for (auto const& parameter : known.parameters) {
      if (parameter.type == Parameter::Type::tensors) {
        std::vector<FxArg> items;
        for (; operand < node.inputs.size(); ++operand) items.push_back(value(node.inputs[operand]));
        all.args.push_back(FxArg::of_items(ArgKind::list, std::move(items)));
        all.usual.push_back(0);
      } else if (parameter.type == Parameter::Type::tensor) {
        all.args.push_back(operand < node.inputs.size() ? value(node.inputs[operand]) : FxArg{});
        all.usual.push_back(parameter.optional && all.args.back().kind == ArgKind::none);
        ++operand;
      } else {
        all.args.push_back(attribute(parameter, given));
        auto const common = attribute(parameter, usual);
        all.usual.push_back(parameter.type == Parameter::Type::counter || (!parameter.fallback.empty() && fx::same(all.args.back(), common)));
      }
    }
    return all;
  }
  bool operands_fit(Spelling const& spelling, Node const& node) const {
    for (std::size_t k = 0; k < spelling.operands.size() && k < node.inputs.size(); ++k) {
      char const wish = spelling.operands[k];
      bool const tensor = node.inputs[k].value >= 0;
      int const rank = tensor ? at(graph, node.inputs[k].value).meta->rank() : -1;
      if (wish != '.' && !(wish == 't' ? tensor : wish == 's' ? !tensor : rank == wish - '0')) return false;
    }
    return true;
  }
  std::optional<FxNode> express(Spelling const& spelling, Node const& node, Arguments const& of) const {
    if (spelling.reads_only || !operands_fit(spelling, node)) return std::nullopt;
    FxNode made{.code = spelling.code, .target = spelling.target};
    auto const& parameters = signature(*node.op).parameters;
    std::vector<char> covered(parameters.size(), 0);
    std::size_t needed = 0;  // positional arguments up to the last that is not a default
    bool rest = false;
    for (auto const& item : spelling.items) {
      rest = rest || item.kind == Item::Kind::rest;
      if (item.parameter < 0 && item.kind != Item::Kind::literal) continue;
      auto const index = static_cast<std::size_t>(std::max(item.parameter, 0));
      bool usual = false;
      FxArg arg = item.value;
      if (item.kind != Item::Kind::literal) {
        covered[index] = 1;
        usual = of.usual[index];
        auto const& real = of.args[index];
        if (item.kind == Item::Kind::fixed) {
          if (!fx::same(real, item.value)) return std::nullopt;
          continue;
        }
        if (item.kind == Item::Kind::first && real.items.size() != 1) return std::nullopt;
        arg = item.kind == Item::Kind::first ? real.items[0] : item.kind == Item::Kind::wrapped ? FxArg::of_items(ArgKind::list, {real}) : real;
      }
      if (item.keyword) {
        if (!usual) made.kwargs.emplace_back(item.name, std::move(arg));
        continue;
      }
      made.args.push_back(std::move(arg));
      if (!usual) needed = made.args.size();
    }
    for (std::size_t k = 0; k < parameters.size(); ++k) {
      if (covered[k] || of.usual[k]) continue;
      if (!rest) return std::nullopt;
      made.kwargs.emplace_back(parameters[k].name, of.args[k]);
    }
    made.args.resize(needed);
    return made;
  }

  void call(Node const& node) {
    auto const of = arguments(node);
    std::optional<FxNode> made;
    for (auto const& spelling : fx::spellings(*node.op))
      if (!made && spelling.aten == aten) made = express(spelling, node, of);
    base::ensure(made.has_value(), std::format("fx: no row of {} can express a call", node.op->name));
    auto target = std::string_view(made->target);
    if (target.starts_with("torch.ops.")) target = target.substr(0, target.rfind('.'));  // without the overload
    made->name = names.unique(target.substr(target.rfind('.') + 1));
    bool const one = !fx::gives_tuple(*node.op, node.results);
    add(std::move(*made), one ? node.first : -1);
    auto const tuple = fx.nodes.size() - 1;
    for (int k = 0; !one && k < node.results; ++k) {
      FxNode item{.target = "operator.getitem"};
      item.args = {FxArg::of_node(tuple), FxArg::of(std::int64_t{k})};
      item.name = names.unique("getitem");
      add(std::move(item), node.first + k);
    }
  }
  void inputs() {
    std::vector<int> order = graph.inputs;
    auto const path = [&](int input) { return parameter_path(at(graph, input).name); };
    if (aten) std::ranges::stable_partition(order, [&](int input) { return !path(input).empty(); });
    for (int input : order) {
      auto const inner = path(input);
      if (!inner.empty() && !aten && options.fold) continue;
      auto const& name = at(graph, input).name;
      FxNode node{.code = Code::placeholder};
      node.name = names.unique(!inner.empty() ? (aten ? "p_" : "") + inner : name.empty() ? std::format("arg{}_1", at(graph, input).index) : name);
      node.target = node.name;
      add(std::move(node), input);
    }
  }
  FxGraph run() {
    inputs();
    auto const layers = aten || !options.fold ? std::vector<LayerCall>{} : layer_calls(graph);
    auto layer = layers.begin();
    for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
      if (layer == layers.end() || layer->first != n) {
        call(graph.nodes[n]);
        continue;
      }
      FxNode node{.code = Code::call_module, .target = layer->path};
      for (auto const& input : layer->inputs) node.args.push_back(value(input));
      node.name = names.unique(layer->path);
      add(std::move(node), layer->result);
      n = (layer++)->last;
    }
    std::vector<FxArg> results;
    for (int output : graph.outputs) results.push_back(value({output, {}}));
    FxNode node{.code = Code::output, .name = "output", .target = "output"};
    node.args.push_back(results.size() == 1 && !aten ? std::move(results[0])
                        : results.empty() && !aten   ? FxArg{}
                                                     : FxArg::of_items(ArgKind::tuple, std::move(results)));
    fx.nodes.push_back(std::move(node));
    return std::move(fx);
  }
};
}  // namespace

FxGraph to_fx(Graph const& graph, FxOptions const& options) {
  if (options.style == FxStyle::functional) return Exporter{graph, options}.run();
  Graph const core_graph = lowered(graph);
  return Exporter{core_graph, options}.run();
}

}  // namespace tenon::ir
