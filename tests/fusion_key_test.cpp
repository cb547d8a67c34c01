// Keys of the compile cache: what leaves one as it is, and what changes it.
#include <doctest/doctest.h>
#include <stdlib.h>
import std;
import tenon.base;
import tenon.ir;
import tenon.device;
import tenon.fusion;
#include "caught.hpp"
#include "ir_random.hpp"
#include "ir_support.hpp"
using namespace tenon;
using support::says;
namespace fs = std::filesystem;

namespace {
std::size_t at(int i) { return static_cast<std::size_t>(i); }

// What is compiled, without the comments, which name places in the user's files.
std::string code_of(fusion::Program const& program) {
  std::string text;
  for (auto const line : program.source | std::views::split('\n'))
    if (auto const words = std::string_view(line.begin(), line.end()); !words.starts_with("//")) text.append(words) += '\n';
  return text;
}

// The same calls in another order and under other names. Random, host and collective calls keep theirs.
ir::Graph disguised(ir::Graph const& graph, std::mt19937& random) {
  ir::Graph made;
  made.name = "another name", made.symbols = graph.symbols, made.mutated = graph.mutated;
  std::vector<int> moved(graph.values.size(), -1);
  for (int const input : graph.inputs) {
    moved[at(input)] = static_cast<int>(made.values.size());
    made.inputs.push_back(moved[at(input)]);
    made.values.push_back(graph.values[at(input)]);
    made.values.back().name = std::format("in{}", random());
  }
  std::vector<int> left(graph.nodes.size());
  std::iota(left.begin(), left.end(), 0);
  auto const ordered = [&](int n) {
    auto const kind = graph.nodes[at(n)].op->kind;
    return kind == ir::Kind::random || kind == ir::Kind::host || kind == ir::Kind::collective;
  };
  while (!left.empty()) {
    std::vector<int> ready;
    bool first = true;
    for (int const n : left) {
      bool const may = std::ranges::all_of(graph.nodes[at(n)].inputs, [&](auto const& in) { return in.value < 0 || moved[at(in.value)] >= 0; });
      if (may && (!ordered(n) || first)) ready.push_back(n);
      if (ordered(n)) first = false;
    }
    int const n = ready[random() % ready.size()];
    std::erase(left, n);
    auto node = graph.nodes[at(n)];
    for (auto& input : node.inputs)
      if (input.value >= 0) input.value = moved[at(input.value)];
    int const from = std::exchange(node.first, static_cast<int>(made.values.size()));
    for (int k = 0; k < node.results; ++k) {
      moved[at(from + k)] = static_cast<int>(made.values.size());
      made.values.push_back(graph.values[at(from + k)]);
      made.values.back().node = static_cast<int>(made.nodes.size());
      made.values.back().name = std::format("v{}", random());
    }
    node.at = {"elsewhere.cpp", static_cast<std::uint32_t>(random() % 1000), 1, ""};
    node.module = "some.layer";
    made.nodes.push_back(std::move(node));
  }
  for (int const output : graph.outputs) made.outputs.push_back(moved[at(output)]);
  return made;
}

fusion::Key key(std::string const& text, fusion::LowerOptions const& options = {}) { return fusion::key_of(ir::parse_graph(text), options); }
std::string differing(fusion::Key const& a, fusion::Key const& b) {
  std::string text;
  for (auto const& name : fusion::differences(a, b)) text += (text.empty() ? "" : " ") + name;
  return text;
}

constexpr std::string_view base_text = R"(graph g(%0 x: f32[4, 6], %1 w: f32[6, 3], %2 old: f32[4, 3]) {
  %3 = matmul(%0, %1): f32[4, 3]
  %4 = relu(%3): f32[4, 3]
  %5 = sum(%4, dim=[1]): f32[4]
  %6 = mul(%2, 0.5): f32[4, 3]
  return %5, %6 into %2
}
)";
std::string changed(std::initializer_list<std::pair<std::string_view, std::string_view>> edits) {
  std::string text(base_text);
  for (auto const& [from, to] : edits) {
    auto const where = text.find(from);
    REQUIRE(where != std::string::npos);
    text.replace(where, from.size(), to);
  }
  return text;
}
}  // namespace

TEST_CASE("SHA-256 of known texts") {
  CHECK(fusion::to_hex(fusion::sha256("")) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(fusion::to_hex(fusion::sha256("abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST_CASE("names, places, order of independent calls and dead calls leave key, program and results as they are") {
  std::mt19937 random(20261130);
  for (int k = 0, count = support::tier(60, 300, 5000); k < count; ++k) {
    auto const made = support::random_graph(random, {.nodes = 5 + k % 25, .ornaments = k % 3 == 0});
    auto const other = disguised(made.graph, random);
    INFO((ir::to_string(made.graph)));
    INFO((ir::to_string(other)));
    auto const a = fusion::plan(made.graph), b = fusion::plan(other);
    CHECK(a.key == b.key);
    CHECK(code_of(a) == code_of(b));
    CHECK(a.launches.size() == b.launches.size());
    CHECK(fusion::canonical_text(fusion::canonical(made.graph)) == fusion::canonical_text(fusion::canonical(other)));
    if (k % 20) continue;
    auto const inputs = made.elements();
    auto const runner = fusion::runner(b);  // constants that are outputs lie in it
    auto const expected = support::run(made.graph, inputs), actual = runner(inputs, {});
    for (std::size_t out = 0; out < expected.outputs.size(); ++out) {
      auto const x = support::reals(actual.outputs[out]), y = support::reals(expected.outputs[out]);
      CHECK(support::distance(x, y) <= 2e-2 * support::scale_of(y));
    }
  }
}

TEST_CASE("a canonical graph is one, has the same calls and stays as it is") {
  std::mt19937 random(7);
  for (int k = 0; k < 100; ++k) {
    auto const graph = ir::eliminate_dead_code(support::random_graph(random, {.nodes = 5 + k % 25, .symbols = k % 2 == 0}).graph);
    auto const ordered = fusion::canonical(graph);
    INFO((ir::to_string(graph)));
    ir::verify(ordered);
    CHECK(ordered.nodes.size() == graph.nodes.size());
    CHECK(ir::equal(fusion::canonical(ordered), ordered));
  }
  ir::Graph chain;  // no recursion: it would run out of stack
  int value = chain.input(ir::contiguous_meta(base::DType::f32, {}, {4}));
  for (int k = 0; k < 200'000; ++k) value = chain.add(ir::ops::sin, {{value, {}}});
  chain.outputs = {value};
  CHECK(fusion::canonical(chain).nodes.size() == 200'000);
}

TEST_CASE("the calls of a backward pass run before what they free is no longer needed") {
  // Three layers and their updates, recorded as an optimizer does: all gradients, then the parameters from the first on. Depth first in that order
  // all of d1, d2 and d3 would live to the end.
  auto const graph = ir::parse_graph(R"(graph g(%0 w1: f32[4], %1 w2: f32[4], %2 w3: f32[4], %3 d3: f32[4]) {
  %4 = sin(%3): f32[4]
  %5 = sin(%4): f32[4]
  %6 = sin(%5): f32[4]
  %7 = add(%0, %6): f32[4]
  %8 = add(%1, %5): f32[4]
  %9 = add(%2, %4): f32[4]
  return %7, %8, %9 into %0, %1, %2
}
)");
  std::string order;
  for (auto const& node : fusion::canonical(graph).nodes) order += std::format("{} ", node.op->name);
  CHECK(order == "sin add sin add sin add ");
}

TEST_CASE("symbols are told apart by where they appear, not by name, hint or order of creation") {
  auto const text = [](std::string_view a, std::string_view b, int hint_a, int hint_b, bool swapped) {
    auto const one = std::format("{}={}", a, hint_a), two = std::format("{}={}", b, hint_b);
    return std::format(
        "graph g(%0: f32[{0}, {1}], %1: f32[{1}, {0}]) symbols({2}, {3}) {{\n  %2 = matmul(%0, %1): f32[{0}, {0}]\n  %3 = flatten(%2): f32[{0}*{0}]\n"
        "  %4 = cat(%3, %3): f32[{0}*{0}*2]\n  %5 = sum(%1, dim=[1]): f32[{1}]\n  %6 = cat(%4, %5): f32[{0}*{0}*2 + {1}]\n  return %6\n}}\n",
        a, b, swapped ? two : one, swapped ? one : two);
  };
  auto const first = key(text("s0", "s1", 5, 7, false));
  CHECK(key(text("s1", "s0", 5, 7, false)) == first);
  CHECK(key(text("s3", "s9", 11, 2, false)) == first);
  CHECK(key(text("s0", "s1", 5, 7, true)) == first);
  CHECK(key(text("s4", "s2", 3, 8, true)) == first);
  auto const square = "graph g(%0: f32[s0, s0], %1: f32[s0, s0]) symbols(s0=5) {\n  %2 = matmul(%0, %1): f32[s0, s0]\n  return %2\n}\n";
  auto const fixed = "graph g(%0: f32[5, 5], %1: f32[5, 5]) {\n  %2 = matmul(%0, %1): f32[5, 5]\n  return %2\n}\n";
  CHECK(differing(key(square), key(fixed)) == "graph inputs");
  auto const times = [](std::string_view number) {
    return std::format("graph g(%0: f32[4]) symbols(r0=0.5, r1=0.25) {{\n  %1 = mul(%0, {}): f32[4]\n  return %1\n}}\n", number);
  };
  CHECK(key(times("r0")) == key(times("r1")));
  CHECK(differing(key(times("r0")), key(times("0.5"))) == "graph");
}

TEST_CASE("any real difference changes the key, and it is known where") {
  auto const same = key(std::string(base_text));
  CHECK(key(changed({{"graph g(", "graph h("}, {"%0 x", "%0 y"}})) == same);
  auto const differs = [&](std::initializer_list<std::pair<std::string_view, std::string_view>> edits) { return differing(same, key(changed(edits))); };
  CHECK(differs({{"relu", "tanh"}}) == "graph");
  CHECK(differs({{"0.5", "0.25"}}) == "graph");
  CHECK(differs({{"0.5", "2"}}) == "graph");
  CHECK(differs({{"dim=[1]", "dim=[-1]"}}) == "graph");
  CHECK(differs({{"%5, %6 into %2", "%6, %5"}}) == "graph");
  CHECK(differs({{" into %2", ""}}) == "graph");
  CHECK(differs({{"%4 = relu(%3)", "%4 = relu(%2)"}}) == "graph");
  CHECK(differs({{"dim=[1]): f32[4]", "dim=[1], keepdim=true): f32[4, 1]"}}) == "graph");
  CHECK(differs({{"f32[4, 6]", "f32[4, 6] strides [1, 4]"}}) == "inputs");
  CHECK(differs({{"%2 old: f32[4, 3]", "%2 old: f64[4, 3]"}, {"0.5): f32[4, 3]", "0.5): f64[4, 3]"}}) == "graph inputs");
  CHECK(differing(same, key(std::string(base_text), {.group = {.fuse = false}})) == "options");
  CHECK(differing(same, key(std::string(base_text), {.group = {.max_steps = 95}})) == "options");
  CHECK(differing(same, key(std::string(base_text), {.in_place = false})) == "options");
  CHECK(differing(same, key(std::string(base_text), {.interpret = true})) == "options");
  auto more = fusion::with_part(same, fusion::key_part("extra", "1"));
  CHECK(differing(same, more) == "extra");
  CHECK(more.name != same.name);
}

TEST_CASE("an attribute that is a text has its length before it, so that no two graphs write the same") {
  auto const parts = [](std::string_view a, std::string_view b) { return fusion::key_of({fusion::key_part("x", a), fusion::key_part("y", b)}).name; };
  CHECK(parts("ab", "c") != parts("a", "bc"));
  CHECK(fusion::key_of({fusion::key_part("x y", "1")}).name != fusion::key_of({fusion::key_part("x", "1")}).name);
}

TEST_CASE("a user's op is part of the graph: another body of its element is another key") {
  auto const key_with = [](std::string_view source) {
    ir::OpDef const op{
        .name = "user.f", .kind = ir::Kind::pointwise, .signature = "Tensor input", .terms = "-", .mono = ".", .types = ir::Types::real, .source = source};
    ir::Graph graph;
    int const x = graph.input(ir::contiguous_meta(base::DType::f32, {}, {4}));
    graph.outputs = {graph.add(op, {{x, {}}})};
    return fusion::key_of(graph, {});
  };
  CHECK(key_with("({0} + 1)") == key_with("({0} + 1)"));
  CHECK(differing(key_with("({0} + 1)"), key_with("({0} + 2)")) == "graph");
}

TEST_CASE("the machine's parts name the compiler, its flags, the processor and the build") {
  auto const parts = fusion::parts_of_this_machine();
  REQUIRE(parts.size() == 4);
  REQUIRE(device::toolchain().has_value());
  CHECK(parts[0].text == device::toolchain()->identity);
  CHECK(says(parts[1].text, "-O3"));
  CHECK(parts[2].text == std::format("{} {}", device::name_of(device::cpu().isa), device::cpu().features));
  CHECK(parts[3].text == fusion::build_identity());
  CHECK(fusion::build_identity().size() == 64);
}

TEST_CASE("the identity of the build stays when the tree moves, and changes with a source, its name and the flags") {
  std::string root = fs::temp_directory_path() / "tenon-key-XXXXXX";
  REQUIRE(mkdtemp(root.data()));
  auto const identity = [&](std::string const& place, std::string const& flags, std::map<std::string, std::string> const& sources) {
    std::string command = std::format("python3 scripts/identity.py {}/header '{}'", root, flags);
    for (auto const& [name, text] : sources) {
      auto const file = fs::path(root) / place / name;
      fs::create_directories(file.parent_path());
      std::ofstream(file) << text;
      command += " " + file.string();
    }
    REQUIRE(system(command.c_str()) == 0);
    std::ifstream file(root + "/header");
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  auto const first = identity("one", "clang -O2", {{"ir/a.cpp", "int a;"}, {"fusion/b.cpp", "int b;"}});
  CHECK(first.starts_with("#define TENON_BUILD_IDENTITY \""));
  CHECK(identity("two/deeper", "clang -O2", {{"ir/a.cpp", "int a;"}, {"fusion/b.cpp", "int b;"}}) == first);
  CHECK(identity("three", "clang -O2", {{"ir/a.cpp", "int c;"}, {"fusion/b.cpp", "int b;"}}) != first);
  CHECK(identity("four", "clang -O2", {{"ir/c.cpp", "int a;"}, {"fusion/b.cpp", "int b;"}}) != first);
  CHECK(identity("one", "clang -O1", {{"ir/a.cpp", "int a;"}, {"fusion/b.cpp", "int b;"}}) != first);
  fs::remove_all(root);
}
