// FX text: PyTorch's own texts read and print the same, every sample call is spelt in FX and read back, and what is malformed is refused.
#include "golden.hpp"
import std;
import tenon.base;
import tenon.ir;
#include "ir_random.hpp"
using namespace tenon;
using base::DType;

namespace {

ir::Meta meta(base::DType dtype, ir::Dims const& sizes) { return ir::contiguous_meta(dtype, {}, sizes); }

/// FX's two texts of one graph.
void check_texts(ir::FxGraph const& graph) {
  auto const printed = ir::to_string(graph), code = ir::to_code(graph);
  CHECK(ir::to_string(ir::parse_fx(printed)) == printed);
  CHECK(ir::to_code(ir::parse_fx(code)) == code);
}

constexpr std::string_view example = R"(graph():
    %x : [num_users=2] = placeholder[target=x]
    %w : f32[3, 4] [num_users=1] = get_attr[target=blocks.0.w]
    %y : [num_users=1] = placeholder[target=y](default=1)
    %add : [num_users=2] = call_function[target=torch.add](args = (%x, %w), kwargs = {alpha: 1e-05})
    %clamp : [num_users=0] = call_method[target=clamp](args = (%add,), kwargs = {min: -inf, max: None})
    %getitem : [num_users=1] = call_function[target=operator.getitem](args = (%x, (slice(None, 2, None), -1, Ellipsis)), kwargs = {})
    %to : [num_users=1] = call_method[target=to](args = (%getitem, torch.bfloat16), kwargs = {device: cuda:1, text: a b, odd: 'it, is', none: 'None'})
    %neg : [num_users=1] = call_function[target=operator.neg](args = (%to,), kwargs = {})
    %layer : [num_users=1] = call_module[target=blocks.0.fc1](args = (%neg, [1, [2.5, True], ()]), kwargs = {})
    %iadd : [num_users=1] = call_function[target=operator.iadd](args = (%layer, %y), kwargs = {})
    return (iadd, [add]))";
constexpr std::string_view example_code = R"(


def forward(self, x, y = 1):
    w : "f32[3, 4]" = getattr(self.blocks, "0").w
    add = torch.add(x, w, alpha = 1e-05);  w = None
    clamp = add.clamp(min = -inf, max = None);  clamp = None
    getitem = x[(slice(None, 2, None), -1, Ellipsis)];  x = None
    to = getitem.to(torch.bfloat16, device = device(type='cuda', index=1), text = 'a b', odd = 'it, is', none = 'None');  getitem = None
    neg = -to;  to = None
    layer = getattr(self.blocks, "0").fc1(neg, [1, [2.5, True], ()]);  neg = None
    layer += y;  iadd = layer;  layer = y = None
    return (iadd, [add])
    )";

std::string changed(std::string_view text, std::string_view from, std::string_view to) {
  std::string copy(text);
  auto const at = copy.find(from);
  REQUIRE(at != std::string::npos);
  return copy.replace(at, from.size(), to);
}
}  // namespace

TEST_CASE("golden FX texts parse and print the same, and code and graph mean the same") {
  auto const texts = golden::load<nlohmann::ordered_json>("compile.json", "fx_text");
  if (!texts) return;
  golden::Tally tally{"compile.fx_text"};
  for (auto const& [name, entry] : texts->items()) {
    std::string const printed = entry["graph"];
    auto const graph = ir::parse_fx(printed);
    CHECK(ir::to_string(graph) == printed);
    if (entry.contains("code")) {
      std::string const code = entry["code"];
      auto const from_code = ir::parse_fx(code);
      CHECK(ir::to_code(from_code) == code);
      CHECK(ir::to_string(from_code) == printed);
      CHECK(ir::to_code(graph) == code);
      CHECK(ir::difference(from_code, graph) == "");
    }
    if (entry.contains("nodes")) {
      REQUIRE(entry["nodes"].size() == graph.nodes.size());
      constexpr std::array<std::string_view, 6> codes{"placeholder", "get_attr", "call_function", "call_method", "call_module", "output"};
      for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
        CHECK(std::string_view(codes[static_cast<std::size_t>(graph.nodes[n].code)]) == entry["nodes"][n][0].get<std::string>());
        CHECK(graph.nodes[n].name == entry["nodes"][n][1].get<std::string>());
      }
    }
    if (entry.contains("targets")) {
      std::vector<std::string> targets;
      for (auto const& node : graph.nodes)
        if (node.code == ir::FxNode::Code::call_function) targets.push_back(node.target.substr(std::string("torch.ops.").size()));
      CHECK(targets == entry["targets"].get<std::vector<std::string>>());
    }
    ++tally.checked;
  }
}

TEST_CASE("every kind of argument reads and prints in both texts") {
  auto const graph = ir::parse_fx(example);
  CHECK(ir::to_string(graph) == example);
  CHECK(ir::to_code(graph) == example_code);
  auto const back = ir::parse_fx(example_code);
  CHECK(ir::to_code(back) == example_code);
  // Code has its inputs first.
  CHECK(back.nodes[1].name == "y");
  check_texts(back);
}

TEST_CASE("the code of print_readable is read: types, comments, a class around it") {
  auto const graph = ir::parse_fx(R"py(class GraphModule(torch.nn.Module):
    def forward(self, L_x_: "f32[3, 4][4, 1]cpu", s0: "Sym(s0)"):
        l_x_ = L_x_

         # File: f.py:10 in fn, code: return torch.relu(x + x.T)
        t: "f32[4, 3][1, 4]cpu" = l_x_.t();  t = None
        add: "f32[3, 4][4, 1]cpu" = l_x_ + float('inf');  l_x_ = None
        return (add,)

)py");
  REQUIRE(graph.nodes.size() == 5);
  CHECK(graph.nodes[0].name == "l_x_");
  CHECK(graph.nodes[0].target == "L_x_");
  CHECK(graph.nodes[0].type == "f32[3, 4][4, 1]cpu");
  CHECK(graph.nodes[2].type == "f32[4, 3][1, 4]cpu");
  CHECK(graph.nodes[3].args[1].real == std::numeric_limits<double>::infinity());
  check_texts(graph);
}

TEST_CASE("numbers and strings are Python's") {
  std::pair<double, std::string_view> const numbers[] = {
      {1, "1.0"},     {1e-5, "1e-05"},    {0.0001, "0.0001"}, {1e16, "1e+16"}, {123456789012345680.0, "1.2345678901234568e+17"}, {1e15, "1000000000000000.0"},
      {-2.5, "-2.5"}, {5e-324, "5e-324"}, {-0.0, "-0.0"},     {0.1, "0.1"}};
  for (auto const& [number, text] : numbers) {
    ir::FxGraph graph;
    graph.nodes.push_back({.name = "f", .target = "torch.f"});
    graph.nodes[0].args = {ir::FxArg::of(number)};
    graph.nodes.push_back({.code = ir::FxNode::Code::output, .name = "output", .target = "output"});
    CHECK(support::says(ir::to_string(graph), std::format("(args = ({},)", text)));
    auto const again = ir::parse_fx(ir::to_string(graph)).nodes[0].args[0];
    CHECK(std::bit_cast<std::uint64_t>(again.real) == std::bit_cast<std::uint64_t>(number));
  }
  std::pair<std::string_view, std::string_view> const strings[] = {{"T", "'T'"},
                                                                   {"ij,jk->ik", "'ij,jk->ik'"},
                                                                   {"a, b", "'a, b'"},
                                                                   {"a,", "'a,'"},
                                                                   {"cuda:0", "'cuda:0'"},
                                                                   {"2d", "'2d'"},
                                                                   {"-1", "'-1'"},
                                                                   {"...", "'...'"},
                                                                   {"it's", "\"it's\""},
                                                                   {"a\"b'c", "'a\"b\\'c'"},
                                                                   {"\n\t\r\\\x01\x7f", "'\\n\\t\\r\\\\\\x01\\x7f'"},
                                                                   {"é", "'é'"},
                                                                   {"", "''"},
                                                                   {"%x", "'%x'"},
                                                                   {"torch.int", "'torch.int'"},
                                                                   {"1.5", "'1.5'"}};
  for (auto const& [text, repr] : strings) {
    ir::FxGraph graph;
    graph.nodes.push_back({.name = "f", .target = "torch.f"});
    graph.nodes[0].args = {ir::FxArg::of_text(text)};
    graph.nodes.push_back({.code = ir::FxNode::Code::output, .name = "output", .target = "output"});
    CHECK(support::says(ir::to_code(graph), std::format("torch.f({})", repr)));
    CHECK(ir::parse_fx(ir::to_code(graph)).nodes[0].args[0].text == text);
    auto const again = ir::parse_fx(ir::to_string(graph)).nodes[0].args[0];
    CHECK(again.kind == ir::FxArg::Kind::text);
    CHECK(again.text == text);
    if (text == "ij,jk->ik" || text == "cuda:0") CHECK(support::says(ir::to_string(graph), std::format("(args = ({},), ", text)));  // as PyTorch prints it
  }
  CHECK(ir::parse_fx("def f(x):\n  y = torch.f('\\u00e9\\x41')\n  return y\n").nodes[1].args[0].text == "éA");
}

TEST_CASE("a malformed FX text is an Error with line and column") {
  std::string const deep(100, '[');
  std::pair<std::string, std::string_view> const rows[] = {
      {"", "line 1, column 1: expected \"graph():\", \"class\" or \"def\""},
      {changed(example, "num_users=2", "num_users=3"), "line 2, column 21: num_users is 3, but %x has 2"},
      {changed(example, "num_users=2", "num_users=x"), "line 2, column 21: expected a number of users"},
      {changed(example, "= placeholder", "= placeholders"), "line 2, column 26: no opcode is called placeholders"},
      {changed(example, "(%x, %w)", "(%x, %q)"), "line 5, column 72: q is not made yet"},
      {changed(example, "target=y", "target=.y"), "line 4, column 5: no target is written .y"},
      {changed(example, "target=blocks.0.w", "target=blocks..w"), "line 3, column 5: no target is written blocks..w"},
      {changed(example, "f32[3, 4]", "\"f32\""), "line 3, column 5: the type of w holds a quote or a control character"},
      {changed(example, "%clamp :", "%add :"), "line 6, column 5: add is made twice"},
      {changed(example, "{alpha: 1e-05}", "{alpha: 1, alpha: 2}"), "line 5, column 97: alpha is given twice"},
      {changed(example, "1e-05", "99999999999999999999"), "99999999999999999999 does not fit 64 bits"},
      {changed(example, "[2.5, True]", deep), "nested too deep"},
      {changed(example, "(iadd, [add])", "(iadd, [nix])"), "line 12, column 20: nix is not made yet"},
      {changed(example, "slice(None, 2, None)", "slice()"), "a slice has 1 to 3 values"},
      {std::string(example) + " x", "expected the end"},
      {"graph():\n    %x : [num_users=0] = placeholder[target=x]\n", "line 3, column 1: expected \"return\""},
      {changed(example_code, "add = torch", "x = torch"), "x is made twice"},
      {changed(example_code, "-to;", "-getitem;"), "getitem was freed"},
      {changed(example_code, "-to;", "getitem.neg();"), "line 10, column 11: getitem was freed"},
      {changed(example_code, "-to;", "to;"), "line 10, column 11: expected a call"},
      {changed(example_code, "'None'", "'None"), "expected a closing quote"},
      {changed(example_code, "'a b'", "'\\q'"), "a bad escape"},
      {changed(example_code, "min = -inf", "min -inf"), "min is not made yet"},
      {changed(example_code, "min = -inf", "min = -inf, 3"), "an argument stands behind a keyword"},
      {changed(example_code, "add.clamp(", "add.clamp(x.y, "), "x.y is not made yet"},
      {changed(example_code, "return", "retur"), "expected \"=\""},
      {changed(example_code, "iadd = layer", "iadd = add"), "expected \"layer\""},
      {changed(example_code, "layer += y", "layer @@= y"), "expected"},
      {changed(example_code, "(self, x", "(self, x, x"), "x is made twice"},
      {changed(example_code, "getattr(self.blocks, \"0\").w", "self"), "expected an attribute of self"},
  };
  for (auto const& [text, error] : rows) {
    auto const said = support::caught([&] { ir::parse_fx(text); });
    CHECK_MESSAGE((said.starts_with("fx text: line ") && support::says(said, error)), said << "\n" << error);
  }
  CHECK(support::says(support::caught([] { ir::parse_fx("graph():" + std::string(std::size_t{1} << 26, ' ')); }), "bytes are more than 67108864"));
}

TEST_CASE("a graph of 100,000 nodes is printed and read in both texts") {
  ir::Graph graph;
  int value = graph.input(meta(DType::f32, {4}), "x");
  for (int k = 0; k < 100'000; ++k) value = graph.add(ir::ops::add, {{value, {}}, {-1, 1.0}}, ir::default_attrs(ir::ops::add), {});
  graph.outputs = {value};
  auto const fx = ir::to_fx(graph);
  REQUIRE(fx.nodes.size() == 100'002);
  CHECK(fx.nodes[100'000].name == "add_99999");
  CHECK(ir::difference(ir::parse_fx(ir::to_string(fx)), fx) == "");
  CHECK(ir::difference(ir::parse_fx(ir::to_code(fx)), fx) == "");
  auto const back = ir::from_fx(fx, {.tensors = {{"x", meta(DType::f32, {4})}}});
  CHECK(back.nodes.size() == 100'000);
}

TEST_CASE("every sample call is spelt in FX, in both styles, and read back as the same call") {
  std::mt19937 random(31);
  int count = 0;
  for (auto const* op : ir::all_ops()) {
    if (op->measured) continue;  // such a call stands in no graph
    for (auto const& call : support::samples(*op, random)) {
      auto const graph = support::graph_of(call);
      for (auto const style : {ir::FxStyle::functional, ir::FxStyle::aten}) {
        std::string shown;
        auto const why = support::caught([&] {
          auto const fx = ir::to_fx(graph, {.style = style, .types = true});
          shown = ir::to_string(fx);
          check_texts(fx);
          CHECK(ir::difference(ir::parse_fx(ir::to_code(fx)), fx) == "");
          auto const back = ir::from_fx(ir::parse_fx(shown));
          ir::verify(back);
          bool const same_op = back.nodes[0].op == graph.nodes[0].op;  // an overload may be read as the op that it spells
          if (same_op) CHECK(ir::difference(ir::to_fx(back, {.style = style, .types = true}), fx) == "");
          if (graph.nodes[0].op->kind == ir::Kind::random) return;
          auto const ours = support::run(graph, support::inputs_of(call)), theirs = support::run(back, support::inputs_of(call));
          REQUIRE(ours.outputs.size() == theirs.outputs.size());
          for (std::size_t k = 0; k < ours.outputs.size(); ++k)
            CHECK(support::distance(support::reals(ours.outputs[k]), support::reals(theirs.outputs[k])) <= 1e-12);
        });
        CHECK_MESSAGE(why == "nothing", call.text << "\n" << why << "\n" << shown);
        ++count;
      }
    }
  }
  std::cout << std::format("FX: {} calls spelt and read back\n", count);
  CHECK(count > 500);
}

TEST_CASE("an FX graph of modules and attributes is evaluated") {
  auto const graph = ir::parse_fx(R"(graph():
    %x : [num_users=1] = placeholder[target=x]
    %fc1 : [num_users=1] = call_module[target=fc1](args = (%x,), kwargs = {})
    %relu : [num_users=2] = call_module[target=act](args = (%fc1,), kwargs = {})
    %scale : [num_users=1] = get_attr[target=scale]
    %mul : [num_users=1] = call_function[target=operator.mul](args = (%relu, %scale), kwargs = {})
    %getitem : [num_users=1] = call_function[target=operator.getitem](args = (%relu, (slice(None, None, None), 0)), kwargs = {})
    return (mul, getitem))");
  ir::FxSurroundings around{.tensors = {{"0", meta(DType::f64, {2, 2})},
                                        {"fc1.weight", meta(DType::f64, {2, 2})},
                                        {"fc1.bias", meta(DType::f64, {2})},
                                        {"scale", meta(DType::f64, {})}},
                            .modules = {{"fc1", "Linear(in_features=2, out_features=2, bias=True)"}, {"act", "ReLU()"}}};
  auto const made = ir::from_fx(graph, around);
  std::vector<std::string> names;
  for (int input : made.inputs) names.push_back(made.values[static_cast<std::size_t>(input)].name);
  CHECK(names == std::vector<std::string>{"x", "fc1.weight", "fc1.bias", "scale"});
  auto const x = support::array(DType::f64, {2, 2}, std::array{1.0, 2.0, 3.0, 4.0}), w = support::array(DType::f64, {2, 2}, std::array{1.0, 0.0, -1.0, 1.0});
  auto const b = support::array(DType::f64, {2}, std::array{0.5, -2.0}), s = support::array(DType::f64, {}, std::array{10.0});
  auto const done = support::run(made, std::array{x.at, w.at, b.at, s.at});  // x Wᵀ + b = [[1.5, -1], [3.5, -1]]
  CHECK(support::reals(done.outputs[0]) == std::vector{15.0, 0.0, 35.0, 0.0});
  CHECK(support::reals(done.outputs[1]) == std::vector{1.5, 3.5});

  auto const refused = [&](ir::FxSurroundings const& with) { return support::caught([&] { ir::from_fx(graph, with); }); };
  CHECK(refused({}) == "fx: node x (x): neither the text nor its surroundings say its dtype and sizes");
  auto broken = around;
  broken.modules["act"] = "Relu()";
  CHECK(refused(broken) == "fx: node relu (act): no module is called Relu");
  broken = around;
  broken.modules["act"] = "ReLU(slope=2)";
  CHECK(refused(broken) == "fx: node relu (act): ReLU has no argument slope");
  broken = around;
  broken.tensors.erase("fc1.weight");
  CHECK(refused(broken) == "fx: node fc1 (fc1): the surroundings do not say the dtype and sizes of fc1.weight");
  broken = around;
  broken.tensors["fc1.weight"] = meta(DType::f64, {2, 3});
  CHECK(support::says(refused(broken), "fx: node fc1 (fc1): linear"));
}

TEST_CASE("calls as people write them mean what PyTorch means") {
  struct Row {
    std::string_view line;
    std::string_view call;
  };
  constexpr Row rows[] = {
      {"y = x.permute(1, 0)", "permute(%0, dims=[1, 0])"},
      {"y = x.view(-1, 2)", "reshape(%0, shape=[-1, 2])"},
      {"y = x.view([6])", "reshape(%0, shape=[6])"},
      {"y = x.mT", "transpose(%0, dim0=-2, dim1=-1)"},
      {"y = torch.sum(x, 1, True)", "sum(%0, dim=[1], keepdim=true)"},
      {"y = x.sum(dim = (0, 1))", "sum(%0, dim=[0, 1])"},
      {"y = torch.sum(input = x, dtype = torch.float64)", "sum(%0, dtype=f64)"},
      {"y = 1 - x", "sub(1, %0)"},
      {"y = x ** 2", "pow(%0, 2)"},
      {"y = x[..., 1]", "select(%0, dim=1, index=1)"},
      {"y = x[None]", "unsqueeze(%0, dim=0)"},
      {"y = x[0:2]", "slice(%0, end=2)"},
      {"y = torch.nn.functional.gelu(x, approximate = 'tanh')", "gelu(%0, approximate=tanh)"},
      {"y = torch.ops.aten.t.default(x)", "transpose(%0, dim0=0, dim1=1)"},
      {"y = torch.ops.aten.add.Scalar(x, 2)", "add(%0, 2)"},
      {"y = torch.ops.aten.sum.dim_IntList(x, [1])", "sum(%0, dim=[1])"},
      {"y = torch.cat([x, x], dim = 1)", "cat(%0, %0, dim=1)"},
      {"y = torch.clamp(x, min = 0)", "clamp(%0, min=0)"},
      {"y = torch.linalg.vector_norm(x, ord = 1)", "linalg.vector_norm(%0, ord=1)"},
      {"y = torch.ops.aten.linalg_vector_norm.default(x, 1)", "linalg.vector_norm(%0, ord=1)"},
      {"y = torch.where(x > 0, x, 0.0)", ""},
  };
  for (auto const& row : rows) {
    auto const code =
        std::format("def forward(self, x: \"f32[2, 3]\"):\n    {}\n    return y\n", row.line == "y = x[0:2]" ? "y = x[slice(0, 2, None)]" : row.line);
    std::string text;
    auto const why = support::caught([&] { text = ir::to_string(ir::read_graph(code)); });
    if (row.call.empty()) {
      CHECK(support::says(why, "fx text: line 2"));
      continue;
    }
    CHECK_MESSAGE(support::says(text, std::format("%1 = {}: ", row.call)), row.line << "\n" << why << "\n" << text);
  }
}

TEST_CASE("a text's form is known by its beginning") {
  CHECK(ir::form_of("graph g() {") == ir::TextForm::own);
  CHECK(ir::form_of("graph \"a b\"(%0: f32[]) {") == ir::TextForm::own);
  CHECK(ir::form_of(" graph():\n") == ir::TextForm::fx);
  CHECK(ir::form_of("\n\n\ndef forward(self):") == ir::TextForm::fx);
  CHECK(ir::form_of("# text\nclass M(torch.nn.Module):") == ir::TextForm::fx);
  CHECK(ir::form_of("module @jit_f {") == ir::TextForm::stablehlo);
  CHECK(ir::form_of("#loc = loc(unknown)\n// c\nfunc.func @main() {") == ir::TextForm::stablehlo);
  CHECK(ir::form_of("HloModule jit_f, entry") == ir::TextForm::hlo);
  for (std::string_view const text : {"", "grap", "modules", "definition", "#"})
    CHECK(support::says(support::caught([&] { ir::form_of(text); }), "begins like none"));
}

TEST_CASE("DOT becomes SVG where dot is installed") {
  ir::Graph graph;
  graph.outputs = {graph.add(ir::ops::relu, {{graph.input(meta(DType::f32, {2}), "x"), {}}}, {}, {})};
  std::string svg;
  auto const why = support::caught([&] { svg = ir::to_svg(ir::to_dot(graph)); });
  if (why == "to_svg: the program dot is not installed (it is part of Graphviz)") {
    std::cout << "SKIP: DOT becomes SVG where dot is installed: " << why << "\n";
    return;
  }
  CHECK(why == "nothing");
  CHECK(support::says(svg, "<svg"));
  CHECK(support::says(svg, "relu"));
  CHECK(support::says(support::caught([] { ir::to_svg("digraph {"); }), "to_svg: dot failed with status 1: "));
}
