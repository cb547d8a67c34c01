// FX graphs in our ops: each call by the rows of the table, layers by what their module says.
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
using Type = Parameter::Type;

namespace {
// Why a spelling does not fit a call; thrown inside this file only.
struct Misfit {
  std::string why;
};
[[noreturn]] void misfit(std::string why) { throw Misfit{std::move(why)}; }

struct Importer {
  FxGraph const& fx;
  FxSurroundings const& surroundings;
  Graph graph{};
  std::vector<std::vector<int>> made{};  ///< values of each node, then those of parameters that layers read
  std::vector<char> tuple{};             ///< whether a node is a tuple of its values
  std::map<std::string, int, std::less<>> attributes{};
  std::int64_t random_calls = 0;

  [[noreturn]] static void refuse(FxNode const& node, std::string_view what) { base::fail("fx: node {} ({}): {}", node.name, node.target, what); }

  // -- inputs --
  std::optional<Meta> given(std::string const& name) const {
    auto const found = surroundings.tensors.find(name);
    return found == surroundings.tensors.end() ? std::nullopt : std::optional(found->second);
  }
  int placeholder(FxNode const& node, std::size_t number) {
    auto meta = given(node.target);
    if (!meta) meta = given(node.name);
    if (!meta) meta = given(std::to_string(number));
    if (!meta && !node.type.empty()) meta = fx::type_of(node.type);
    if (!meta) refuse(node, "neither the text nor its surroundings say its dtype and sizes");
    return graph.input(std::move(*meta), node.target);
  }
  std::optional<int> attribute(std::string const& path) {
    if (auto const known = attributes.find(path); known != attributes.end()) return known->second;
    auto meta = given(path);
    if (!meta) return std::nullopt;
    int const value = graph.input(std::move(*meta), path);
    attributes.emplace(path, value);
    return value;
  }

  // -- arguments --
  static Scalar number(FxArg const& arg, Parameter const& parameter, std::string_view wish) {
    if (arg.kind == ArgKind::whole) return arg.whole;
    if (arg.kind == ArgKind::real) return arg.real;
    if (arg.kind != ArgKind::boolean) misfit(std::format("{} must be {}", parameter.name, wish));
    return arg.whole != 0;
  }
  Input operand(FxArg const& arg, Parameter const& parameter) const {
    switch (arg.kind) {
      case ArgKind::node: {
        auto const place = static_cast<std::size_t>(arg.whole);
        if (tuple[place] || made[place].size() != 1) misfit(std::format("{} is a tuple, not a tensor", parameter.name));
        return {made[place][0], {}};
      }
      case ArgKind::none:
        if (parameter.optional) return {};
        [[fallthrough]];
      default:
        return {-1, number(arg, parameter, "a tensor or a number")};
    }
  }
  void operands(FxArg const& arg, Parameter const& parameter, std::vector<Input>& to) const {
    if (parameter.type == Type::tensor) return to.push_back(operand(arg, parameter));
    if (arg.kind == ArgKind::node) {
      for (int value : made[static_cast<std::size_t>(arg.whole)]) to.push_back({value, {}});
      return;
    }
    if (arg.kind != ArgKind::list && arg.kind != ArgKind::tuple) misfit(std::format("{} must be a list of tensors", parameter.name));
    for (auto const& item : arg.items) to.push_back(operand(item, parameter));
  }
  static Dim whole(FxArg const& arg, Parameter const& parameter) {
    if (arg.kind == ArgKind::none && parameter.optional) return absent;
    if (arg.kind != ArgKind::whole && arg.kind != ArgKind::boolean) misfit(std::format("{} must be a whole number", parameter.name));
    return arg.whole;
  }
  static void attribute(FxArg const& arg, Parameter const& parameter, Attrs& to) {
    switch (parameter.type) {
      case Type::wholes:
      case Type::sizes: {
        Dims dims;
        if (arg.kind == ArgKind::list || arg.kind == ArgKind::tuple)
          for (auto const& item : arg.items) dims.push_back(item.kind == ArgKind::none ? Dim(absent) : whole(item, parameter));
        else if (arg.kind != ArgKind::none)
          dims.push_back(whole(arg, parameter));
        to.with(dims);
        return;
      }
      case Type::real:
        to.with_num(arg.kind == ArgKind::none && parameter.optional ? Scalar() : number(arg, parameter, "a number"));
        return;
      case Type::reals: {
        auto const items = arg.kind == ArgKind::list || arg.kind == ArgKind::tuple ? arg.items
                           : arg.kind == ArgKind::none                             ? std::vector<FxArg>{}
                                                                                   : std::vector{arg};
        to.with(Dim(items.size()));
        for (auto const& item : items) to.with_num(number(item, parameter, "numbers"));
        return;
      }
      case Type::text:
        if (arg.kind != ArgKind::text) misfit(std::format("{} must be a string", parameter.name));
        to.with_text(arg.text);
        return;
      case Type::dtype:
        if (arg.kind == ArgKind::none && parameter.optional) return void(to.with(Dim(absent)));
        if (arg.kind != ArgKind::word || !arg.text.starts_with("torch.")) misfit(std::format("{} must be a dtype", parameter.name));
        to.with(base::dtype_of(arg.text.substr(6)));
        return;
      case Type::device: {
        constexpr std::string_view begin = "device(type='";
        if (arg.kind != ArgKind::word || !arg.text.starts_with(begin)) misfit(std::format("{} must be a device", parameter.name));
        std::string name;
        for (char c : arg.text.substr(begin.size()))
          if (fx::is_letter(c) || c == '=') name += c;
        if (auto const index = name.find("index="); index != std::string::npos) name.replace(index, 6, ":");
        to.with(base::device_of(name));
        return;
      }
      case Type::choice: {
        auto const found = std::ranges::find(parameter.choices, arg.text);
        auto const number = arg.kind == ArgKind::whole ? arg.whole : found - parameter.choices.begin();
        if ((arg.kind != ArgKind::whole && arg.kind != ArgKind::text) || number < 0 || number >= std::ssize(parameter.choices))
          misfit(std::format("{} has no choice {}", parameter.name, arg.kind == ArgKind::text ? arg.text : std::to_string(arg.whole)));
        to.with(Dim(number));
        return;
      }
      default:
        to.with(whole(arg, parameter));
    }
  }

  // -- calls --
  struct Matched {
    std::vector<Input> inputs{};
    Attrs attrs{};
  };
  Matched match(Spelling const& spelling, FxNode const& node) {
    auto const& parameters = signature(*spelling.op).parameters;
    std::vector<FxArg const*> chosen(parameters.size(), nullptr);
    std::vector<FxArg> owned;  // arguments that are made here
    owned.reserve(parameters.size() + 1);
    std::vector<char> used(node.kwargs.size(), 0);
    std::size_t next = 0;
    auto const keyword = [&](std::string_view name) -> FxArg const* {
      for (std::size_t k = 0; k < node.kwargs.size(); ++k)
        if (node.kwargs[k].first == name) return used[k] = 1, &node.kwargs[k].second;
      return nullptr;
    };
    auto const place = [&](std::size_t index, FxArg const& arg) {
      if (chosen[index]) misfit(std::format("{} is given twice", parameters[index].name));
      auto const type = parameters[index].type;
      bool const list = type == Type::wholes || type == Type::sizes;
      bool const spread = node.code == Code::call_method && list && index + 1 == parameters.size() && arg.kind == ArgKind::whole;  // x.permute(1, 0)
      chosen[index] = &arg;
      if (!spread || next >= node.args.size()) return;
      std::vector<FxArg> items{arg};
      while (next < node.args.size() && node.args[next].kind == ArgKind::whole) items.push_back(node.args[next++]);
      chosen[index] = &owned.emplace_back(FxArg::of_items(ArgKind::list, std::move(items)));
    };
    for (auto const& item : spelling.items) {
      auto const index = static_cast<std::size_t>(std::max(item.parameter, 0));
      if (item.kind == Item::Kind::fixed) {
        chosen[index] = &item.value;
      } else if (item.kind == Item::Kind::literal) {
        if (next < node.args.size() ? !fx::same(node.args[next++], item.value) : item.value.kind == ArgKind::text) misfit("another argument is expected");
      } else if (item.kind == Item::Kind::rest) {
        for (std::size_t k = 0; k < parameters.size() && next < node.args.size(); ++k)
          if (!chosen[k] && parameters[k].type != Type::counter) place(k, node.args[next++]);
        for (std::size_t k = 0; k < parameters.size(); ++k)
          if (auto const* arg = chosen[k] ? nullptr : keyword(parameters[k].name)) place(k, *arg);
      } else {
        FxArg const* arg = next < node.args.size() && !item.keyword ? &node.args[next++] : keyword(item.name);
        if (!arg && index == 0) arg = keyword("self");
        if (!arg && index == 0) arg = keyword("input");
        if (!arg) arg = keyword(parameters[index].name);
        if (!arg) continue;
        if (item.kind == Item::Kind::wrapped) {
          if ((arg->kind != ArgKind::list && arg->kind != ArgKind::tuple) || arg->items.size() != 1) misfit(std::format("{} must be a list of one", item.name));
          arg = &arg->items[0];
        }
        if (item.kind == Item::Kind::first && arg->kind != ArgKind::whole) misfit(std::format("{} must be one number", item.name));
        place(index, *arg);
      }
    }
    if (next < node.args.size()) misfit(std::format("{} arguments are too many", node.args.size()));
    for (std::size_t k = 0; k < used.size(); ++k)
      if (!used[k]) misfit(std::format("no argument is called {}", node.kwargs[k].first));

    Matched matched;
    Attrs const defaults = default_attrs(*spelling.op);
    AttrReader usual{defaults};
    bool const random = std::ranges::any_of(parameters, [](Parameter const& p) { return p.type == Type::counter; });
    for (std::size_t k = 0; k < parameters.size(); ++k) {
      auto const& parameter = parameters[k];
      bool const is_operand = parameter.type == Type::tensor || parameter.type == Type::tensors;
      if (!chosen[k] && !parameter.optional && parameter.fallback.empty()) misfit(std::format("{} is missing", parameter.name));
      if (is_operand) {
        if (chosen[k])
          operands(*chosen[k], parameter, matched.inputs);
        else
          matched.inputs.emplace_back();
        continue;
      }
      Attrs unused;
      copy_attribute(parameter, usual, chosen[k] ? unused : matched.attrs);
      if (chosen[k]) attribute(*chosen[k], parameter, matched.attrs);
    }
    if (random) set_stream(*spelling.op, matched.attrs);
    for (std::size_t k = 0; k < spelling.operands.size() && k < matched.inputs.size(); ++k)
      if (int const value = matched.inputs[k].value; std::isdigit(static_cast<unsigned char>(spelling.operands[k])) && value >= 0)
        if (graph.values[static_cast<std::size_t>(value)].meta->rank() != spelling.operands[k] - '0') misfit("the rank differs");
    return matched;
  }
  // PyTorch's random calls draw one after the other: each gets a stream of its own.
  void set_stream(OpDef const& op, Attrs& attrs) {
    AttrReader reader{attrs};
    Attrs fresh;
    fresh.text = attrs.text;
    for (auto const& parameter : signature(op).parameters) {
      if (parameter.type == Type::tensor || parameter.type == Type::tensors) continue;
      Attrs unused;
      bool const offset = parameter.type == Type::counter && parameter.name == "offset";
      copy_attribute(parameter, reader, offset ? unused : fresh);
      if (offset) fresh.with(Dim(random_calls));
    }
    ++random_calls;
    attrs = fresh;
  }
  void append(OpDef const& op, Matched matched, FxNode const& node) {
    int const first = graph.add(op, std::move(matched.inputs), std::move(matched.attrs), {});
    std::vector<int> values;
    for (int k = 0; k < graph.nodes.back().results; ++k) values.push_back(first + k);
    tuple.back() = fx::gives_tuple(op, static_cast<int>(values.size()));
    if (!tuple.back()) graph.values[static_cast<std::size_t>(first)].name = node.name;
    made.back() = std::move(values);
  }
  void function(FxNode const& node) {
    auto const candidates = fx::spellings(node.code, node.target);
    if (candidates.empty()) refuse(node, "no op has that target");
    std::string why;
    for (auto const* spelling : candidates) {
      try {
        return append(*spelling->op, match(*spelling, node), node);
      } catch (Misfit const& fault) {
        if (why.empty()) why = fault.why;
      }
    }
    refuse(node, why);
  }
  int call(OpDef const& op, int value, Attrs attrs) { return graph.add(op, {{value, {}}}, std::move(attrs), {}); }
  // x[2], x[:, 1:3], x[None, ..., 0], and an item of a tuple.
  void item(FxNode const& node) {
    if (node.args.size() != 2 || node.args[0].kind != ArgKind::node) refuse(node, "a value and an index are expected");
    auto const place = static_cast<std::size_t>(node.args[0].whole);
    auto const& index = node.args[1];
    if (tuple[place]) {
      auto const count = std::ssize(made[place]), wish = index.whole < 0 ? index.whole + count : index.whole;
      if (index.kind != ArgKind::whole || wish < 0 || wish >= count) refuse(node, std::format("the index must lie in a tuple of {}", count));
      made.back() = {made[place][static_cast<std::size_t>(wish)]};
      return;
    }
    if (index.kind == ArgKind::node) {
      FxNode as{.name = node.name, .target = "torch.ops.aten.index.Tensor"};
      as.args = {node.args[0], FxArg::of_items(ArgKind::list, {index})};
      return function(as);
    }
    int value = made[place][0];
    auto const items = index.kind == ArgKind::tuple ? index.items : std::vector{index};
    auto const is_ellipsis = [](FxArg const& arg) { return arg.kind == ArgKind::word && arg.text == "Ellipsis"; };
    auto const taking = std::ranges::count_if(items, [&](FxArg const& arg) { return arg.kind == ArgKind::whole || arg.kind == ArgKind::slice; });
    std::int64_t dim = 0;
    for (auto const& one : items) {
      if (one.kind == ArgKind::none) {
        value = call(ops::unsqueeze, value, Attrs{}.with(Dim(dim++)));
      } else if (one.kind == ArgKind::whole) {
        value = call(ops::select, value, Attrs{}.with(Dim(dim)).with(Dim(one.whole)));
      } else if (one.kind == ArgKind::slice) {
        Attrs cut;
        cut.with(Dim(dim++));
        std::array<std::int64_t, 3> const usual{0, std::numeric_limits<std::int64_t>::max(), 1};
        for (std::size_t k = 0; k < 3; ++k) {
          if (one.items[k].kind != ArgKind::whole && one.items[k].kind != ArgKind::none) refuse(node, "a slice takes whole numbers");
          cut.with(Dim(one.items[k].kind == ArgKind::none ? usual[k] : one.items[k].whole));
        }
        if (cut.ints[1].value != 0 || cut.ints[2].value != usual[1] || cut.ints[3].value != 1) value = call(ops::slice, value, cut);
      } else if (is_ellipsis(one)) {
        dim += graph.values[static_cast<std::size_t>(made[place][0])].meta->rank() - taking;
        if (dim < 0) refuse(node, "too many indices");
      } else {
        refuse(node, "an index must be a whole number, a slice, None, ... or a tensor");
      }
    }
    made.back() = {value};
  }
  // A layer is the function that its module says, reading the parameters under its path.
  void layer(FxNode const& node) {
    auto const found = surroundings.modules.find(node.target);
    if (found == surroundings.modules.end()) refuse(node, "the surroundings do not say what this module is");
    auto const [kind, given_arguments] = fx::Reader(found->second).call();
    auto const* row = fx::module_row(kind);
    if (!row) refuse(node, std::format("no module is called {}", kind));
    FxNode as{.name = node.name, .target = std::string(row->target), .args = node.args, .kwargs = node.kwargs};
    for (auto name : fx::parts(row->parameters)) {
      bool const optional = name.ends_with('?');
      name.remove_suffix(optional);
      auto const value = attribute(std::format("{}.{}", node.target, name));
      if (!value && !optional) refuse(node, std::format("the surroundings do not say the dtype and sizes of {}.{}", node.target, name));
      if (!value) continue;
      as.kwargs.emplace_back(name, FxArg::of_node(made.size()));
      made.insert(made.end(), {*value});
      tuple.push_back(0);
    }
    auto const by_place = fx::parts(row->arguments), ignored = fx::parts(row->ignored);
    for (auto const& [key, arg] : given_arguments) {
      std::string_view name = key;
      if (std::size_t place = 0; std::from_chars(key.data(), key.data() + key.size(), place).ec == std::errc{})
        name = place < by_place.size() ? by_place[place] : "?";
      if (name == "-" || std::ranges::find(ignored, name) != ignored.end()) continue;
      if (std::ranges::find(by_place, name) == by_place.end()) refuse(node, std::format("{} has no argument {}", kind, key));
      as.kwargs.emplace_back(name, arg);
    }
    made.emplace_back();
    tuple.push_back(0);
    function(as);
  }
  void result(FxArg const& arg, FxNode const& node) {
    if (arg.kind == ArgKind::node) {
      for (int value : made[static_cast<std::size_t>(arg.whole)]) graph.outputs.push_back(value);
    } else if (arg.kind == ArgKind::tuple || arg.kind == ArgKind::list) {
      for (auto const& one : arg.items) result(one, node);
    } else if (arg.kind != ArgKind::none) {
      refuse(node, "only tensors can be returned");
    }
  }
  Graph run() {
    made.resize(fx.nodes.size());
    tuple.resize(fx.nodes.size(), 0);
    std::size_t inputs = 0;
    for (std::size_t n = 0; n < fx.nodes.size(); ++n) {
      auto const& node = fx.nodes[n];
      made.emplace_back();
      tuple.push_back(0);
      try {
        switch (node.code) {
          case Code::placeholder:
            made.back() = {placeholder(node, inputs++)};
            break;
          case Code::get_attr: {
            auto const value = attribute(node.target);
            if (!value && node.type.empty()) refuse(node, "neither the text nor its surroundings say its dtype and sizes");
            made.back() = {value ? *value : attributes.emplace(node.target, graph.input(fx::type_of(node.type), node.target)).first->second};
            break;
          }
          case Code::call_module:
            layer(node);
            break;
          case Code::output:
            for (auto const& arg : node.args) result(arg, node);
            break;
          default:
            node.target == "operator.getitem" ? item(node) : function(node);
        }
      } catch (base::Error const& error) {
        if (std::string_view(error.what()).starts_with("fx: ")) throw;
        refuse(node, error.what());
      }
      made[n] = std::move(made.back());
      tuple[n] = tuple.back();
      made.resize(fx.nodes.size());
      tuple.resize(fx.nodes.size());
    }
    return std::move(graph);
  }
};
}  // namespace

Graph from_fx(FxGraph const& fx, FxSurroundings const& surroundings) { return Importer{fx, surroundings}.run(); }

}  // namespace tenon::ir
