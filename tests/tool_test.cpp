// tenon-run as its user runs it: graphs and tensors in files, outputs in a file, one line for what is wrong.
#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/wait.h>
import std;
import tenon.base;
using namespace tenon;
using base::DType;
namespace fs = std::filesystem;

namespace {

fs::path build_folder() { return fs::canonical("/proc/self/exe").parent_path().parent_path(); }
std::string text_of(fs::path const& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

/// A folder for a test's files; it goes away with the object.
struct Folder {
  fs::path path;
  Folder() {
    std::string name = fs::temp_directory_path() / "tenon-tool-XXXXXX";
    REQUIRE(mkdtemp(name.data()));
    path = name;
  }
  ~Folder() { fs::remove_all(path); }
  Folder(Folder const&) = delete;
  Folder& operator=(Folder const&) = delete;
  std::string file(std::string const& name, std::string_view text) const {
    std::ofstream(path / name, std::ios::binary) << text;
    return path / name;
  }
  std::string operator/(std::string_view name) const { return path / name; }
};

struct Ran {
  int status;
  std::string output, errors;
};
Ran run(std::string const& arguments) {
  auto const program = build_folder() / "tools" / "tenon-run";
  if (!fs::exists(program)) REQUIRE(system(("ninja -C " + build_folder().string() + " modules/tenon-run >/dev/null").c_str()) == 0);
  Folder const folder;
  int const status = system(std::format("{} {} >{} 2>{} </dev/null", program.string(), arguments, folder / "out", folder / "err").c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text_of(folder / "out"), text_of(folder / "err")};
}

/// Elements of one dtype, kept.
struct Elements {
  DType dtype;
  base::Shape shape;
  std::vector<std::byte> bytes;
  Elements(DType type, base::Shape sizes, std::vector<double> const& values) : dtype(type), shape(std::move(sizes)) {
    bytes.resize(values.size() * static_cast<std::size_t>(base::bytes_of(type)));
    for (std::size_t k = 0; k < values.size(); ++k) base::store_real(type, bytes.data() + k * static_cast<std::size_t>(base::bytes_of(type)), values[k]);
  }
  base::FileTensor tensor() const { return {dtype, shape, bytes}; }
};
void save(std::string const& file, std::map<std::string, Elements> const& all) {
  std::map<std::string, base::FileTensor> tensors;
  for (auto const& [name, elements] : all) tensors[name] = elements.tensor();
  base::save_safetensors(file, tensors);
}
std::vector<double> reals(base::FileTensor const& tensor) {
  std::vector<double> values;
  auto const bytes = static_cast<std::size_t>(base::bytes_of(tensor.dtype));
  for (std::size_t at = 0; at < tensor.data.size(); at += bytes) values.push_back(base::load_real(tensor.dtype, tensor.data.data() + at));
  return values;
}
/// Status 1, nothing on stdout, one line on stderr that holds `what`.
void check_refused(std::string const& arguments, std::string_view what) {
  auto const ran = run(arguments);
  INFO(ran.errors);
  CHECK(ran.status == 1);
  CHECK(ran.output == "");
  CHECK(std::ranges::count(ran.errors, '\n') == 1);
  CHECK(ran.errors.starts_with("tenon-run: "));
  CHECK(ran.errors.find(what) != std::string::npos);
}

constexpr std::string_view linear = R"(graph layer(%0 x: f32[s0, 2], %1 w: f32[2, 2]) symbols(s0=2) {
  require s0 < 4
  %2 = matmul(%0, %1): f32[s0, 2]
  %3 = relu(%2): f32[s0, 2]
  return %3, %2
}
)";
}  // namespace

TEST_CASE("a graph of our own form is evaluated, inputs by name or by place, sizes by symbol") {
  Folder const folder;
  auto const graph = folder.file("layer.txt", linear);
  Elements const x(DType::f32, {3, 2}, {1, 2, 3, -4, 0.5, 0}), w(DType::f32, {2, 2}, {1, 0, -1, 2});
  std::tuple<std::string_view, std::string, std::string> const calls[] = {{"reference", "x", "w"}, {"reference", "0", "1"}, {"fusion", "x", "w"}};
  for (auto const& [backend, first, second] : calls) {
    save(folder / "in.safetensors", {{first, x}, {second, w}});
    auto const ran =
        run(std::format("{} --inputs {} --outputs {} --time 3 --backend {}", graph, folder / "in.safetensors", folder / "out.safetensors", backend));
    CHECK(ran.errors == "");
    CHECK(ran.status == 0);
    CHECK(ran.output.starts_with(std::format("layer: 2 nodes, median of 3 runs on {}: ", backend)));
    base::SafetensorsFile const out(folder / "out.safetensors");
    REQUIRE(out.tensors().size() == 2);
    CHECK(out.at("0").shape == base::Shape{3, 2});
    CHECK(reals(out.at("1")) == std::vector<double>{-1, 4, 7, -8, 0.5, 0});
    CHECK(reals(out.at("0")) == std::vector<double>{0, 4, 7, 0, 0.5, 0});
  }
}

TEST_CASE("FX texts are evaluated with the layers that --module names") {
  Folder const folder;
  auto const graph = folder.file("fx.txt", R"(graph():
    %x : [num_users=1] = placeholder[target=x]
    %fc1 : [num_users=1] = call_module[target=fc1](args = (%x,), kwargs = {})
    %relu : [num_users=1] = call_function[target=torch.relu](args = (%fc1,), kwargs = {})
    return relu)");
  auto const code = folder.file("fx.py", "def forward(self, x):\n    fc1 = self.fc1(x);  x = None\n    relu = torch.relu(fc1);  fc1 = None\n    return relu\n");
  save(folder / "in.safetensors",
       {{"0", {DType::f64, {1, 2}, {3, 4}}}, {"fc1.weight", {DType::f64, {2, 2}, {1, 2, -3, 0}}}, {"fc1.bias", {DType::f64, {2}, {0.5, 0.25}}}});
  for (auto const& text : {graph, code}) {
    auto const ran =
        run(std::format("{} --inputs {} --outputs {} --module 'fc1=Linear(in_features=2, out_features=2)'", text, folder / "in.safetensors", folder / "out"));
    CHECK(ran.errors == "");
    CHECK(reals(base::SafetensorsFile(folder / "out").at("0")) == std::vector<double>{11.5, 0});
  }
  check_refused(std::format("{} --inputs {} --outputs {}", graph, folder / "in.safetensors", folder / "out"),
                "fx.txt: fx: node fc1 (fc1): the surroundings do not say what this module is");
}

TEST_CASE("every dtype goes in and comes out with its bits") {
  Folder const folder;
  for (int k = 0; k < base::dtype_count; ++k) {
    auto const dtype = static_cast<DType>(k);
    std::string const name(base::info(dtype).name);
    auto const graph = folder.file("clone.txt", std::format("graph g(%0 x: {0}[4]) {{\n  %1 = clone(%0): {0}[4]\n  return %1\n}}\n", name));
    Elements const x(dtype, {4}, {0, 1, -1.5, 1e9});
    save(folder / "in", {{"x", x}});
    auto const ran = run(std::format("{} --inputs {} --outputs {}", graph, folder / "in", folder / "out"));
    CHECK_MESSAGE(ran.status == 0, name << ": " << ran.errors);
    base::SafetensorsFile const out(folder / "out");
    CHECK(out.at("0").dtype == dtype);
    CHECK_MESSAGE(std::ranges::equal(out.at("0").data, x.bytes), name);
  }
}

TEST_CASE("inputs that a graph wants in other strides are arranged so") {
  Folder const folder;
  auto const graph = folder.file("strides.txt", "graph g(%0 x: f32[2, 3] strides [1, 2]) {\n  %1 = clone(%0): f32[2, 3] strides [1, 2]\n  return %1\n}\n");
  save(folder / "in", {{"x", {DType::f32, {2, 3}, {1, 2, 3, 4, 5, 6}}}});
  auto ran = run(std::format("{} --inputs {} --outputs {}", graph, folder / "in", folder / "out"));
  if (ran.errors.find("is recorded") != std::string::npos) {  // clone makes a row-major copy
    folder.file("strides.txt", "graph g(%0 x: f32[2, 3] strides [1, 2]) {\n  %1 = clone(%0): f32[2, 3]\n  return %1\n}\n");
    ran = run(std::format("{} --inputs {} --outputs {}", graph, folder / "in", folder / "out"));
  }
  CHECK(ran.errors == "");
  CHECK(reals(base::SafetensorsFile(folder / "out").at("0")) == std::vector<double>{1, 2, 3, 4, 5, 6});
}

TEST_CASE("--print converts") {
  Folder const folder;
  auto const graph = folder.file(
      "g.txt", "graph g(%0 x: f32[2, 2]) {\n  %1 = transpose(%0, dim0=0, dim1=1): f32[2, 2] strides [1, 2]\n  %2 = add(%0, %1): f32[2, 2]\n  return %2\n}\n");
  std::pair<std::string_view, std::string_view> const rows[] = {
      {"own", "%2 = add(%0, %1): f32[2, 2]\n"},
      {"fx", "%add : f32[2, 2] [num_users=1] = call_function[target=operator.add](args = (%x, %getattr_1), kwargs = {})\n"},
      {"fx_code", "    add : \"f32[2, 2]\" = x + getattr_1;  x = getattr_1 = None\n"},
      {"aten", "call_function[target=torch.ops.aten.permute.default](args = (%x, [1, 0]), kwargs = {})\n"},
      {"dot", "digraph \"g\" {\n"},
  };
  for (auto const& [form, part] : rows) {
    auto const ran = run(std::format("{} --print {}", graph, form));
    CHECK(ran.errors == "");
    CHECK_MESSAGE(ran.output.find(part) != std::string::npos, ran.output);
    if (form == "dot") continue;
    auto const again = run(std::format("{} --print own", folder.file("again.txt", ran.output)));  // each is read again
    CHECK_MESSAGE(again.errors == "", form);
    CHECK(again.output.find("add(%0, %1): f32[2, 2]") != std::string::npos);
  }
  CHECK(run(graph).output == text_of(graph));
  auto const svg = run(std::format("{} --print svg", graph));
  CHECK((svg.output.find("<svg") != std::string::npos || svg.errors.find("dot is not installed") != std::string::npos));
}

TEST_CASE("what does not fit is refused in one line") {
  Folder const folder;
  auto const graph = folder.file("layer.txt", linear);
  Elements const w(DType::f32, {2, 2}, {1, 0, -1, 2});
  auto const with = [&](std::map<std::string, Elements> const& tensors, std::string_view what) {
    save(folder / "in", tensors);
    check_refused(std::format("{} --inputs {} --outputs {}", graph, folder / "in", folder / "out"), what);
  };
  with({{"x", {DType::f64, {3, 2}, {1, 2, 3, 4, 5, 6}}}, {"w", w}}, "in: tensor \"x\" is f64[3, 2], but input 0 of graph layer is f32[s0, 2]");
  with({{"x", {DType::f32, {2, 3}, {1, 2, 3, 4, 5, 6}}}, {"w", w}}, "in: tensor \"x\" is f32[2, 3], but input 0 of graph layer is f32[s0, 2]");
  with({{"x", {DType::f32, {4}, {1, 2, 3, 4}}}, {"w", w}}, "in: tensor \"x\" is f32[4], but input 0");
  with({{"x", {DType::f32, {4, 2}, {1, 2, 3, 4, 5, 6, 7, 8}}}, {"w", w}}, "in: the graph needs s0 < 4, but these are 4 and 4");
  with({{"x", {DType::f32, {1, 2}, {1, 2}}}}, "in: no tensor \"w\" or \"1\" for input 1 of graph layer; there are: x");
  check_refused(std::format("{} --outputs {}", graph, folder / "out"), "no tensor \"x\" or \"0\" for input 0 of graph layer; there are: none");
  check_refused(folder / "nothing.txt", "nothing.txt: can't be read");
  check_refused(folder.path.string(), "is a folder, not a graph");
  check_refused(folder.file("bad.txt", "graph g() {\n  %0 = tahn(): f32[]\n}"), "bad.txt: graph text: line 2, column 8: unknown op tahn");
  check_refused(folder.file("bad.txt", "hello"), "bad.txt: graph text: it begins like none of the forms");
  check_refused(folder.file("bad.txt", "graph g(%0: f32[2]) {\n  %1 = relu(%0): f32[3]\n  return %1\n}"),
                "bad.txt: verify: g: node 0 (relu) makes f32[2], f32[3] is recorded");
  check_refused(std::format("{} --inputs {}", graph, folder / "nothing"), "nothing: ");
  check_refused(std::format("{} --module x", graph), "--module: \"x\" is not PATH=KIND");
  for (std::string const wrong : {"", "--backend gpu", "--print pdf", "--time 0", "--bogus"}) {
    auto const ran = run((wrong.empty() ? "" : graph + " ") + wrong);
    CHECK(ran.status == 2);
    CHECK(ran.errors != "");
  }
}
