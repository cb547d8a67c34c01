// FX's two texts of a graph, as torch.fx prints them, and the comparison up to names.
module tenon.ir;
import std;
import tenon.base;
import :fx;

namespace tenon::ir {
using Code = FxNode::Code;
using ArgKind = FxArg::Kind;

namespace {
constexpr std::array<std::string_view, 6> codes{"placeholder", "get_attr", "call_function", "call_method", "call_module", "output"};

bool is_identifier(std::string_view text) {
  auto const letter = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  return !text.empty() && !std::isdigit(static_cast<unsigned char>(text[0])) && std::ranges::all_of(text, letter);
}

// Whether the printed graph shows a string bare and still means that string.
bool bare(std::string_view text) {
  constexpr std::array<std::string_view, 8> taken{"None", "True", "False", "inf", "nan", "-inf", "Ellipsis", "..."};
  if (text.empty() || std::ranges::find(taken, text) != taken.end()) return false;
  auto const word = text.substr(text[0] == '-' ? 1 : 0);
  if (word.starts_with("torch.") || word.starts_with("math.")) return false;
  if (std::string_view(" %'\",").find(text[0]) != std::string_view::npos || text.back() == ' ' || text.back() == ',') return false;
  if (text.find(", ") != std::string_view::npos) return false;  // a comma inside is harmless, as in "ij,jk->ik"
  if (std::ranges::all_of(text, [](char c) { return std::string_view("0123456789.eE+-").find(c) != std::string_view::npos; })) return false;
  return std::ranges::all_of(
      text, [](char c) { return std::string_view("()[]{}").find(c) == std::string_view::npos && static_cast<unsigned char>(c) >= ' ' && c != 127; });
}

// "device(type='cuda', index=0)" → "cuda:0"; other words stay.
std::string graph_word(std::string_view word) {
  constexpr std::string_view begin = "device(type='", index = "', index=";
  if (!word.starts_with(begin)) return std::string(word);
  auto const rest = word.substr(begin.size());
  auto const type = rest.substr(0, rest.find('\''));
  auto const at = rest.find(index);
  if (at == std::string_view::npos) return std::string(type);
  auto const number = rest.substr(at + index.size());
  return std::format("{}:{}", type, number.substr(0, number.find(')')));
}

std::string items_text(FxGraph const& graph, FxArg const& arg, auto const& one) {
  std::string text = arg.kind == ArgKind::list ? "[" : arg.kind == ArgKind::tuple ? "(" : "slice(";
  for (std::size_t k = 0; k < arg.items.size(); ++k) text += (k ? ", " : "") + one(graph, arg.items[k]);
  if (arg.kind == ArgKind::tuple && arg.items.size() == 1) text += ",";
  return text + (arg.kind == ArgKind::list ? "]" : ")");
}
std::string atom_text(FxArg const& arg) {
  switch (arg.kind) {
    case ArgKind::boolean:
      return arg.whole ? "True" : "False";
    case ArgKind::whole:
      return std::to_string(arg.whole);
    case ArgKind::real:
      return fx::python(arg.real);
    default:
      return "None";
  }
}
std::string graph_text(FxGraph const& graph, FxArg const& arg) {
  switch (arg.kind) {
    case ArgKind::node:
      return "%" + graph.nodes[static_cast<std::size_t>(arg.whole)].name;
    case ArgKind::text:
      return bare(arg.text) ? arg.text : fx::python(arg.text);
    case ArgKind::word:
      return graph_word(arg.text);
    case ArgKind::list:
    case ArgKind::tuple:
    case ArgKind::slice:
      return items_text(graph, arg, graph_text);
    default:
      return atom_text(arg);
  }
}

// Which nodes read each node, counted once each; and which values are last read by each node, in the order of its arguments.
struct Uses {
  std::vector<int> users;
  std::vector<std::vector<std::size_t>> last;
  explicit Uses(FxGraph const& graph) : users(graph.nodes.size(), 0), last(graph.nodes.size()) {
    std::vector<std::size_t> seen(graph.nodes.size(), graph.nodes.size());
    for (std::size_t n = graph.nodes.size(); n-- > 0;) {
      auto const note = [&](std::size_t used) {
        if (seen[used] == n) return;
        seen[used] = n;
        if (users[used]++ == 0) last[n].push_back(used);
      };
      for (auto const& arg : graph.nodes[n].args) fx::each_node(arg, note);
      for (auto const& [key, arg] : graph.nodes[n].kwargs) fx::each_node(arg, note);
    }
  }
};

std::string path_text(std::string path, std::string_view target) {
  for (auto const part : std::views::split(target, '.')) {
    std::string_view const name(part.begin(), part.end());
    path = is_identifier(name) ? std::format("{}.{}", path, name) : std::format("getattr({}, \"{}\")", path, name);
  }
  return path;
}
std::string call_arguments(FxGraph const& graph, FxNode const& node, std::size_t from) {
  std::string text;
  for (std::size_t k = from; k < node.args.size(); ++k) text += (text.empty() ? "" : ", ") + fx::code_text(graph, node.args[k]);
  for (auto const& [key, arg] : node.kwargs) text += (text.empty() ? "" : ", ") + key + " = " + fx::code_text(graph, arg);
  return text;
}
// The right side of a node's assignment.
std::string expression(FxGraph const& graph, FxNode const& node) {
  auto const arg = [&](std::size_t k) { return fx::code_text(graph, node.args[k]); };
  bool const plain = node.kwargs.empty();
  switch (node.code) {
    case Code::get_attr:
      return path_text("self", node.target);
    case Code::call_module:
      return std::format("{}({})", path_text("self", node.target), call_arguments(graph, node, 0));
    case Code::call_method:
      return node.args.empty() ? std::format("{}({})", node.target, call_arguments(graph, node, 0))
                               : std::format("{}({})", path_text(arg(0), node.target), call_arguments(graph, node, 1));
    default:
      if (plain && (node.args.size() == 1 || node.args.size() == 2))
        if (auto const sign = fx::operator_sign(node.target, static_cast<int>(node.args.size())); !sign.empty()) {
          if (node.args.size() == 1) return std::format("{}{}", sign, arg(0));
          return std::format("{} {} {}", arg(0), sign, arg(1));
        }
      if (plain && node.args.size() == 2 && node.target == "operator.getitem") return std::format("{}[{}]", arg(0), arg(1));
      if (plain && node.args.size() == 2 && node.target == "builtins.getattr" && node.args[1].kind == ArgKind::text && is_identifier(node.args[1].text))
        return std::format("{}.{}", arg(0), node.args[1].text);
      constexpr std::string_view builtins = "builtins.";
      std::string_view const target = node.target;
      return std::format("{}({})", target.starts_with(builtins) ? target.substr(builtins.size()) : target, call_arguments(graph, node, 0));
  }
}
bool is_in_place(FxNode const& node) {
  return node.code == Code::call_function && node.args.size() == 2 && node.kwargs.empty() && fx::operator_sign(node.target, 2).size() > 1 &&
         node.target.starts_with("operator.i") && fx::operator_sign(node.target, 2).ends_with('=');
}
// A Python type stands as it is, our types in quotes.
std::string annotation(std::string_view type) {
  return std::ranges::all_of(std::views::split(type, '.'), [](auto part) { return is_identifier(std::string_view(part.begin(), part.end())); })
             ? std::string(type)
             : std::format("\"{}\"", type);
}
}  // namespace

bool fx::same(FxArg const& x, FxArg const& y) {
  return x.kind == y.kind && x.whole == y.whole && x.text == y.text && std::bit_cast<std::uint64_t>(x.real) == std::bit_cast<std::uint64_t>(y.real) &&
         std::ranges::equal(x.items, y.items, same);
}

void fx::each_node(FxArg const& arg, std::function<void(std::size_t)> const& f) {
  if (arg.kind == ArgKind::node) f(static_cast<std::size_t>(arg.whole));
  for (auto const& item : arg.items) each_node(item, f);
}

std::string fx::code_text(FxGraph const& graph, FxArg const& arg) {
  switch (arg.kind) {
    case ArgKind::node:
      return graph.nodes[static_cast<std::size_t>(arg.whole)].name;
    case ArgKind::text:
      return python(arg.text);
    case ArgKind::word:
      return arg.text;
    case ArgKind::list:
    case ArgKind::tuple:
    case ArgKind::slice:
      return items_text(graph, arg, code_text);
    default:
      return atom_text(arg);
  }
}

// Python's repr: the shortest digits that read back, positional from 1e-4 up to 1e16.
std::string fx::python(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  std::array<char, 40> buffer{};
  double const size = std::fabs(number);
  bool const positional = size == 0 || (size >= 1e-4 && size < 1e16);
  auto const format = positional ? std::chars_format::fixed : std::chars_format::scientific;
  std::string text(buffer.data(), std::to_chars(buffer.data(), buffer.data() + buffer.size(), number, format).ptr);
  if (positional && text.find('.') == std::string::npos) text += ".0";
  return text;
}
std::string fx::python(std::string_view text) {
  char const quote = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string result(1, quote);
  for (char c : text) {
    auto const byte = static_cast<unsigned char>(c);
    if (c == quote || c == '\\')
      result += {'\\', c};
    else if (c == '\n' || c == '\t' || c == '\r')
      result += {'\\', c == '\n' ? 'n' : c == '\t' ? 't' : 'r'};
    else if (byte < ' ' || byte == 127)
      result += std::format("\\x{:02x}", byte);
    else
      result += c;
  }
  return result + quote;
}

std::string to_string(FxGraph const& graph) {
  Uses const uses(graph);
  std::string text = "graph():";
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    auto const& node = graph.nodes[n];
    if (node.code == Code::output) {
      text += "\n    return " + (node.args.empty() ? "None" : fx::code_text(graph, node.args[0]));
      continue;
    }
    text += std::format("\n    %{} : {}{}[num_users={}] = {}[target={}]", node.name, node.type, node.type.empty() ? "" : " ", uses.users[n],
                        codes[static_cast<std::size_t>(node.code)], node.target);
    if (node.code == Code::placeholder && !node.args.empty()) text += "(default=" + graph_text(graph, node.args[0]) + ")";
    if (node.code == Code::placeholder || node.code == Code::get_attr) continue;
    std::string keywords;
    for (auto const& [key, arg] : node.kwargs) keywords += (keywords.empty() ? "" : ", ") + key + ": " + graph_text(graph, arg);
    text += std::format("(args = {}, kwargs = {{{}}})", graph_text(graph, FxArg::of_items(ArgKind::tuple, node.args)), keywords);
  }
  return text;
}

std::string to_code(FxGraph const& graph) {
  Uses const uses(graph);
  std::string text = "\n\n\ndef forward(self", renamed;
  for (auto const& node : graph.nodes) {
    if (node.code != Code::placeholder) continue;
    text += ", " + node.target;
    if (!node.type.empty()) text += " : " + annotation(node.type);
    if (!node.args.empty()) text += " = " + fx::code_text(graph, node.args[0]);
    auto const raw = node.target.substr(std::min(node.target.find_first_not_of('*'), node.target.size()));
    if (raw != node.name) renamed += std::format("    {} = {}\n", node.name, raw);
  }
  text += "):\n" + renamed;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    auto const& node = graph.nodes[n];
    if (node.code == Code::placeholder) continue;
    if (node.code == Code::output) {
      text += "    return " + (node.args.empty() ? "None" : fx::code_text(graph, node.args[0])) + "\n";
      continue;
    }
    std::string const type = node.type.empty() ? "" : " : " + annotation(node.type), made = expression(graph, node);
    bool const in_place = is_in_place(node);  // "x += y;  iadd = x"
    text += in_place ? std::format("    {};  {}{} = {}", made, node.name, type, fx::code_text(graph, node.args[0]))
                     : std::format("    {}{} = {}", node.name, type, made);
    std::string freed;
    for (auto const value : uses.last[n]) freed += graph.nodes[value].name + " = ";
    if (uses.users[n] == 0) freed += node.name + " = ";
    text += freed.empty() ? "\n" : ";  " + freed + "None\n";
  }
  return text + "    ";
}

std::string difference(FxGraph const& a, FxGraph const& b) {
  auto const shown = [](FxGraph const& graph, std::size_t n) {
    if (n >= graph.nodes.size()) return std::string("nothing");
    auto const& node = graph.nodes[n];
    std::string text = std::format("{} {}", codes[static_cast<std::size_t>(node.code)], node.code == Code::placeholder ? "" : node.target);
    text += graph_text(graph, FxArg::of_items(ArgKind::tuple, node.args));
    for (auto const& [key, arg] : node.kwargs) text += std::format(" {}={}", key, graph_text(graph, arg));
    return text;
  };
  for (std::size_t n = 0; n < std::max(a.nodes.size(), b.nodes.size()); ++n) {
    bool equal = n < a.nodes.size() && n < b.nodes.size();
    if (equal) {
      auto const &x = a.nodes[n], &y = b.nodes[n];
      equal = x.code == y.code && (x.code == Code::placeholder || x.target == y.target) && std::ranges::equal(x.args, y.args, fx::same) &&
              std::ranges::equal(x.kwargs, y.kwargs, [&](auto const& p, auto const& q) { return p.first == q.first && fx::same(p.second, q.second); });
    }
    if (!equal) return std::format("node {}: {} and {}", n, shown(a, n), shown(b, n));
  }
  return {};
}

}  // namespace tenon::ir
