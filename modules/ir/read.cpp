// Which form a text has, and pictures.
module;
#include <stdlib.h>
#include <unistd.h>
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir {
using base::fail;

namespace {
constexpr std::pair<std::string_view, TextForm> beginnings[] = {
    {"def", TextForm::fx},
    {"class", TextForm::fx},
    {"import", TextForm::fx},
    {"from", TextForm::fx},
    {"module", TextForm::stablehlo},
    {"func.func", TextForm::stablehlo},
    {"\"builtin.module\"", TextForm::stablehlo},
    {"HloModule", TextForm::hlo},
};
}  // namespace

TextForm form_of(std::string_view text) {
  bool only_comments = true;
  while (only_comments) {  // of Python, of MLIR and its names of places
    text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
    only_comments = text.starts_with("#") || text.starts_with("//");
    if (only_comments) text.remove_prefix(std::min(text.find('\n'), text.size()));
  }
  for (auto const& [word, form] : beginnings)
    if (text.starts_with(word) && (text.size() == word.size() || std::isspace(static_cast<unsigned char>(text[word.size()])) || word.back() == '"'))
      return form;
  constexpr std::string_view graph = "graph";
  if (text.starts_with(graph)) {
    text.remove_prefix(graph.size());
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
    return text.starts_with("(") ? TextForm::fx : TextForm::own;
  }
  fail("graph text: it begins like none of the forms that are read (graph NAME(…), graph():, def forward(…), module, HloModule)");
}

Graph read_graph(std::string_view text, FxSurroundings const& surroundings) {
  switch (form_of(text)) {
    case TextForm::fx:
      return from_fx(parse_fx(text), surroundings);
    case TextForm::stablehlo:
      return parse_stablehlo(text);
    case TextForm::hlo:
      return parse_hlo(text);
    default:
      return parse_graph(text);
  }
}

std::string to_svg(std::string_view dot) {
  std::string folder = (std::filesystem::temp_directory_path() / "tenon-svg-XXXXXX").string();
  if (!mkdtemp(folder.data())) fail("to_svg: no folder can be made in {}", std::filesystem::temp_directory_path().string());
  struct Remove {
    std::filesystem::path path;
    ~Remove() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
  } const remove{folder};
  auto const in = remove.path / "graph.dot", out = remove.path / "graph.svg", errors = remove.path / "errors";
  std::ofstream(in, std::ios::binary) << dot;
  auto const quoted_path = [](std::filesystem::path const& path) {  // for the shell
    std::string text = "'";
    for (char c : path.string()) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return text + "'";
  };
  int const status = system(std::format("dot -Tsvg -o {} {} 2> {}", quoted_path(out), quoted_path(in), quoted_path(errors)).c_str());
  auto const text_of = [](std::filesystem::path const& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  if (status == 127 * 256) fail("to_svg: the program dot is not installed (it is part of Graphviz)");
  if (status != 0) fail("to_svg: dot failed with status {}: {}", status / 256, text_of(errors).substr(0, 200));
  return text_of(out);
}

}  // namespace tenon::ir
