module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir {

std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + "\"";
}
std::string name_text(std::string_view text) {
  bool const plain = !text.empty() && std::ranges::all_of(text, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.'; });
  return plain ? std::string(text) : quoted(text);
}

namespace {
std::string operand_text(Graph const& graph, Input const& input) {
  return input.value >= 0 ? std::format("%{}", input.value) : graph.symbols.to_string(input.scalar);
}
std::string call_text(Graph const& graph, Node const& node) {
  std::string text = std::string(node.op->name) + "(";
  for (std::size_t k = 0; k < node.inputs.size(); ++k) text += (k ? ", " : "") + operand_text(graph, node.inputs[k]);
  auto const attributes = to_string(*node.op, node.attrs, &graph.symbols);
  return text + (attributes.empty() || node.inputs.empty() ? "" : ", ") + attributes + ")";
}
std::string meta_text(Graph const& graph, int value) { return to_string(*graph.values[static_cast<std::size_t>(value)].meta, &graph.symbols); }
std::string symbol_text(Symbols const& symbols, int number) {
  auto hint = symbols.symbol_at(number);
  hint.node = -1;
  return std::format("{}={}", symbols.names()[static_cast<std::size_t>(number)], symbols.to_string(hint));
}
std::string escaped(std::string_view text) {  // for a DOT label
  std::string result;
  for (char c : text) {
    if (c == '"' || c == '\\' || c == '{' || c == '}' || c == '<' || c == '>' || c == '|') result += '\\';
    result += c == '\n' ? ' ' : c;
  }
  return result;
}
}  // namespace

// graph NAME(%0 x: f32[2, s0], ...) symbols(s0=5, r0=0.5) {
//   require s0 == s1
//   %2 = matmul(%0, %1): f32[2, 4]  # "file.cpp" 12:9
//   return %2
// }
std::string to_string(Graph const& graph) {
  std::string text = "graph " + name_text(graph.name) + "(";
  for (std::size_t k = 0; k < graph.inputs.size(); ++k) {
    int const input = graph.inputs[k];
    auto const& name = graph.values[static_cast<std::size_t>(input)].name;
    text += std::format("{}%{}{}: {}", k ? ", " : "", input, name.empty() ? "" : " " + name_text(name), meta_text(graph, input));
  }
  text += ")";
  for (int number = 0; std::cmp_less(number, graph.symbols.names().size()); ++number)
    text += (number ? ", " : " symbols(") + symbol_text(graph.symbols, number);
  text += graph.symbols.names().empty() ? " {\n" : ") {\n";
  for (auto const& constraint : graph.symbols.constraints) text += "  require " + graph.symbols.to_string(constraint) + "\n";
  for (auto const& node : graph.nodes) {
    text += "  ";
    for (int k = 0; k < node.results; ++k) text += std::format("{}%{}", k ? ", " : "", node.first + k);
    text += " = " + call_text(graph, node) + ": ";
    for (int k = 0; k < node.results; ++k) text += (k ? ", " : "") + meta_text(graph, node.first + k);
    if (node.at.line) text += std::format("  # {} {}:{}", quoted(node.at.file), node.at.line, node.at.column);
    if (!node.module.empty()) text += std::format("  @ {}", name_text(node.module));
    text += "\n";
  }
  text += "  return";
  for (std::size_t k = 0; k < graph.outputs.size(); ++k) text += std::format("{} %{}", k ? "," : "", graph.outputs[k]);
  for (std::size_t k = 0; k < graph.mutated.size(); ++k)
    text += std::format("{} %{}", k ? "," : " into", graph.inputs[static_cast<std::size_t>(graph.mutated[k])]);
  return text + "\n}\n";
}

std::string to_dot(Graph const& graph) {
  std::string text = std::format("digraph \"{}\" {{\n  node [shape=record, fontname=\"monospace\", fontsize=10];\n", escaped(graph.name));
  for (int input : graph.inputs)
    text += std::format("  v{} [label=\"{}|{}\", style=rounded];\n", input, escaped(graph.values[static_cast<std::size_t>(input)].name),
                        escaped(meta_text(graph, input)));
  for (auto const& node : graph.nodes) {
    auto const place = node.at.line ? std::format("|{}", escaped(base::short_place(node.at))) : "";
    text += std::format("  v{} [label=\"{}|{}{}\"];\n", node.first, escaped(call_text(graph, node)), escaped(meta_text(graph, node.first)), place);
    for (auto const& input : node.inputs)
      if (input.value >= 0) {
        auto const& value = graph.values[static_cast<std::size_t>(input.value)];
        int const from = value.node < 0 ? input.value : graph.nodes[static_cast<std::size_t>(value.node)].first;
        text += std::format("  v{} -> v{};\n", from, node.first);
      }
  }
  for (std::size_t k = 0; k < graph.outputs.size(); ++k) {
    auto const& value = graph.values[static_cast<std::size_t>(graph.outputs[k])];
    int const from = value.node < 0 ? graph.outputs[k] : graph.nodes[static_cast<std::size_t>(value.node)].first;
    text += std::format("  out{} [label=\"output {}\", shape=plaintext];\n  v{} -> out{};\n", k, k, from, k);
  }
  return text + "}\n";
}

}  // namespace tenon::ir
