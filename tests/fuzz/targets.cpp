#include "../golden.hpp"
import std;
import tenon.base;
import tenon.ir;
#include "../ir_random.hpp"
#include "fuzz.hpp"
using namespace tenon;

namespace fuzz {
namespace {

[[noreturn]] void broken(std::string_view what, std::string_view a, std::string_view b) { throw std::logic_error(std::format("{}:\n{}\nand\n{}", what, a, b)); }

/// Whether `read` takes the text; an Error that does not begin with `start` and a place in the text escapes.
template <class F>
auto read(std::string_view start, F const& reader) -> std::optional<decltype(reader())> {
  try {
    return reader();
  } catch (base::Error const& error) {
    if (!std::string_view(error.what()).starts_with(start)) throw;
    return std::nullopt;
  }
}

bool run_own(std::string_view text) {
  auto const graph = read("graph text: line ", [&] { return ir::parse_graph(text); });
  if (!graph) return false;
  auto const printed = ir::to_string(*graph), again = ir::to_string(ir::parse_graph(printed));
  if (again != printed) broken("printed and read again", printed, again);
  ir::to_dot(*graph);
  try {
    ir::verify(*graph);
  } catch (base::Bug const&) {
    return true;  // the text is well formed, what it says is not so
  }
  ir::verify(ir::merge_common(ir::eliminate_dead_code(*graph)));
  return true;
}
bool run_fx(std::string_view text) {
  auto const graph = read("fx text: ", [&] { return ir::parse_fx(text); });
  if (!graph) return false;
  auto const printed = ir::to_string(*graph), code = ir::to_code(*graph);
  bool const is_code = text.find("graph") > text.find("def");
  if (auto const again = is_code ? ir::to_code(ir::parse_fx(code)) : ir::to_string(ir::parse_fx(printed)); again != (is_code ? code : printed))
    broken("printed and read again", is_code ? code : printed, again);
  if (auto const made = read("fx: ", [&] { return ir::from_fx(*graph); })) {
    ir::verify(*made);
    auto const exported = ir::to_fx(*made, {.types = true});
    if (auto const gap = ir::difference(ir::parse_fx(ir::to_code(exported)), exported); !gap.empty()) broken("code differs", gap, code);
  }
  return true;
}
bool run_foreign(std::string_view start, ir::Graph (*parse)(std::string_view), std::string_view text) {
  auto const graph = read(start, [&] { return parse(text); });
  if (!graph) return false;
  ir::verify(*graph);
  ir::to_string(*graph);
  return true;
}
bool run_stablehlo(std::string_view text) { return run_foreign("", ir::parse_stablehlo, text); }
bool run_hlo(std::string_view text) { return run_foreign("", ir::parse_hlo, text); }

std::vector<std::string> printed(std::string (*print)(ir::Graph const&), bool symbols) {
  std::mt19937 random(22);
  std::vector<std::string> texts;
  for (int k = 0; k < 64; ++k) {
    auto const made =
        support::random_graph(random, {.nodes = 1 + static_cast<int>(random() % 5), .symbols = symbols && k % 2 == 0, .ornaments = symbols && k % 3 != 0});
    try {
      texts.push_back(print(made.graph));
    } catch (base::Error const&) {  // an op without that form
    }
  }
  return texts;
}
// Every text of these keys in a golden file, whatever stands around it.
void golden_texts(std::string const& file, std::string const& key, std::vector<std::string>& to) {
  std::ifstream stream(golden::file(file));
  if (!stream) return;
  auto const collect = [&](auto const& self, nlohmann::json const& value) -> void {
    for (auto const& [name, item] : value.items()) {
      if (item.is_string() && name == key) to.push_back(item.template get<std::string>());
      if (item.is_structured()) self(self, item);
    }
  };
  collect(collect, nlohmann::json::parse(stream));
}
std::vector<std::string> own_seeds() { return printed(ir::to_string, true); }
std::vector<std::string> fx_seeds() {
  auto texts = printed([](ir::Graph const& graph) { return ir::to_string(ir::to_fx(graph, {.types = true})); }, false);
  std::ranges::move(printed([](ir::Graph const& graph) { return ir::to_string(ir::to_fx(graph, {.style = ir::FxStyle::aten, .types = true})); }, false),
                    std::back_inserter(texts));
  golden_texts("compile.json", "graph", texts);
  return texts;
}
std::vector<std::string> fx_code_seeds() {
  auto texts = printed([](ir::Graph const& graph) { return ir::to_code(ir::to_fx(graph, {.types = true})); }, false);
  golden_texts("compile.json", "code", texts);
  return texts;
}
std::vector<std::string> stablehlo_seeds() {
  auto texts = printed(ir::to_stablehlo, false);
  golden_texts("stablehlo.json", "text", texts);
  golden_texts("xla.json", "stablehlo_text", texts);
  texts.emplace_back(
      "module @m {\n  func.func public @main(%arg0: tensor<2xf32>) -> tensor<2xf32> {\n    %0 = stablehlo.add %arg0, %arg0 : tensor<2xf32>\n    return %0 : "
      "tensor<2xf32>\n  }\n}\n");
  return texts;
}
std::vector<std::string> hlo_seeds() {
  auto texts = printed(ir::to_hlo, false);
  golden_texts("xla.json", "hlo_text", texts);
  golden_texts("xla.json", "hlo", texts);
  texts.emplace_back(
      "HloModule m\n\nENTRY %main (a: f32[2]) -> f32[2] {\n  %a = f32[2]{0} parameter(0)\n  ROOT %b = f32[2]{0} add(f32[2]{0} %a, f32[2]{0} %a)\n}\n");
  return texts;
}

constexpr std::string_view own_words[] = {
    "%", "%0", "%1", "(",  ")",     "[",  "]",     "{",    "}",   ",",    ":",   "=",   "\"",  "\\",  "#",       "-",  "0",     "1",  "-1",
    "2", "s0", "i0", "r0", "s0*s0", "//", " mod ", "none", "max", "true", "inf", "nan", "f64", "i64", "strides", "on", "cuda:", "\n", "4611686018427387904"};
constexpr std::string_view fx_words[] = {"%",
                                         "%x",
                                         "(",
                                         ")",
                                         "[",
                                         "]",
                                         "{",
                                         "}",
                                         ",",
                                         ":",
                                         "=",
                                         "'",
                                         "\"",
                                         "\\",
                                         "#",
                                         "-",
                                         "0",
                                         "1",
                                         "-1",
                                         "1e-05",
                                         "inf",
                                         "None",
                                         "True",
                                         "slice(",
                                         "torch.float32",
                                         "device(type='cpu')",
                                         "[num_users=",
                                         "placeholder",
                                         "get_attr",
                                         "call_function",
                                         "call_method",
                                         "call_module",
                                         "[target=",
                                         "args = (",
                                         "kwargs = {",
                                         "return ",
                                         "self.",
                                         "getattr(self.a, \"0\")",
                                         ";  x = None",
                                         "\n",
                                         "\n    ",
                                         "operator.getitem",
                                         "torch.relu",
                                         "f32[2, 3]",
                                         "4611686018427387904",
                                         "Ellipsis"};
constexpr std::string_view foreign_words[] = {"%",
                                              "%0",
                                              "%arg0",
                                              "(",
                                              ")",
                                              "[",
                                              "]",
                                              "{",
                                              "}",
                                              "<",
                                              ">",
                                              ",",
                                              ":",
                                              "=",
                                              "\"",
                                              "@",
                                              "#",
                                              "-",
                                              "0",
                                              "1",
                                              "-1",
                                              "x",
                                              "tensor<2x3xf32>",
                                              "dense<",
                                              "true",
                                              "array<i64: 0>",
                                              "->",
                                              "\n",
                                              "stablehlo.",
                                              "func.func",
                                              "return",
                                              "f32[2,3]{1,0}",
                                              "dimensions={0}",
                                              "to_apply=",
                                              "parameter(0)",
                                              "0x7FC00000",
                                              "4611686018427387904",
                                              "while",
                                              "inf",
                                              "e400"};
constexpr Target all[] = {{"own", run_own, own_seeds, own_words},
                          {"fx", run_fx, fx_seeds, fx_words},
                          {"fx_code", run_fx, fx_code_seeds, fx_words},
                          {"stablehlo", run_stablehlo, stablehlo_seeds, foreign_words},
                          {"hlo", run_hlo, hlo_seeds, foreign_words}};
}  // namespace

std::span<Target const> targets() { return all; }

std::string mutated(std::string text, std::span<std::string_view const> words, std::mt19937& random) {
  for (auto changes = 1 + random() % 4; changes > 0 && !text.empty(); --changes) {
    auto const at = random() % text.size(), length = std::min<std::size_t>(random() % 12, text.size() - at);
    switch (random() % 7) {
      case 0:
        text[at] = static_cast<char>(random() % 256);
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(random() % text.size(), text.substr(at, length));
        break;
      case 3:
        text.insert(at, words[random() % words.size()]);
        break;
      case 4:
        text.replace(at, 1 + random() % 3, words[random() % words.size()]);
        break;
      case 5:
        if (random() % 4 == 0) text.resize(at);
        break;
      default: {  // a digit, so that sizes, ids and dims disagree
        auto const digit = text.find_first_of("0123456789", at);
        if (digit != std::string::npos) text[digit] = static_cast<char>('0' + random() % 10);
      }
    }
  }
  return text;
}

}  // namespace fuzz
