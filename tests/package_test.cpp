// Packages: what their libraries compute, refuse and survive.
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <stdlib.h>
import std;
import tenon;
#include "caught.hpp"

namespace ir = tenon::ir;
namespace base = tenon::base;
namespace fs = std::filesystem;
using namespace tenon::tracer;
using namespace tenon::nn;

namespace {

struct Folder {
  fs::path path;
  Folder() {
    std::string name = fs::temp_directory_path() / "tenon-package-XXXXXX";
    REQUIRE(mkdtemp(name.data()));
    path = name;
  }
  ~Folder() { fs::remove_all(path); }
  Folder(Folder const&) = delete;
  Folder& operator=(Folder const&) = delete;
};
std::string text_of(fs::path const& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A package's library as a C program sees it.
struct Library {
  void* handle;
  std::string name;
  explicit Library(tenon::Package const& package) : handle(dlopen(package.library.c_str(), RTLD_NOW | RTLD_LOCAL)), name(package.source.stem().string()) {
    REQUIRE_MESSAGE(handle, dlerror());
  }
  ~Library() { dlclose(handle); }
  Library(Library const&) = delete;
  Library& operator=(Library const&) = delete;
  template <class F>
  F* function(std::string const& what) const {
    return reinterpret_cast<F*>(dlsym(handle, (name + what).c_str()));
  }
  void* create(std::string const& weights) const { return function<void*(char const*)>("_create")(weights.c_str()); }
  int run(void* model, void const* const* inputs, void* const* outputs) const {
    return function<int(void*, void const* const*, void* const*)>("_run")(model, inputs, outputs);
  }
  void destroy(void* model) const { function<void(void*)>("_destroy")(model); }
  std::string error() const { return function<char const*()>("_error")(); }
};

template <class T>
std::vector<Tensor> leaves(T value) {
  return tensors_of(value);
}
// Packages a function, runs the library twice, and compares with the reference evaluator's results; returns the largest relative difference.
template <class F, class... Args>
double gap(F const& function, Args const&... args) {
  Folder const folder;
  NoGrad const off;
  auto const package = tenon::package(function, {.folder = folder.path, .name = "model"}, args...);
  auto expected = leaves(compile(function, {.backend = reference_backend})(args...));
  Library const library(package);
  void* const model = library.create(package.weights.string());
  REQUIRE_MESSAGE(model, library.error());
  std::vector<Tensor> given;
  auto const collect = [&](auto const& argument) {
    if constexpr (std::is_same_v<std::decay_t<decltype(argument)>, Tensor>) given.push_back(contiguous(argument));
  };
  (collect(args), ...);
  std::vector<void const*> inputs;
  for (auto const& x : given) inputs.push_back(x.host().data);
  double worst = 0;
  for (int again = 0; again < 2; ++again) {
    std::vector<std::vector<double>> memory;
    std::vector<void*> outputs;
    for (auto const& x : expected) outputs.push_back(memory.emplace_back(static_cast<std::size_t>(x.numel() + 1), -7.25).data());
    REQUIRE_MESSAGE(library.run(model, inputs.data(), outputs.data()) == 0, library.error());
    for (std::size_t k = 0; k < expected.size(); ++k) {
      auto const sizes = expected[k].shape();
      ir::Strided const actual{static_cast<std::byte*>(outputs[k]), expected[k].dtype(), sizes, base::contiguous_strides(sizes)};
      auto const values = expected[k].template to_vector<double>();
      double scale = 1e-30, distance = 0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        scale = std::max(scale, std::abs(values[i]));
        distance = std::max(distance, std::abs(values[i] - actual.real(static_cast<std::int64_t>(i))));
      }
      worst = std::max(worst, distance / scale);
      CHECK(memory[k].back() == -7.25);
    }
  }
  library.destroy(model);
  return worst;
}

struct Convolutional {
  Conv2d first{3, 6, 3, {.stride = {2}, .padding = {1}}}, grouped{6, 4, {3, 2}, {.padding = {2, 1}, .dilation = {2}, .groups = 2}};
  Linear last{16, 5};
  Tensor operator()(Tensor const& x) const {
    Tensor const y = max_pool2d(relu(first(x)), 2);
    return last(flatten(max_pool2d(grouped(y), {2, 3}, {2}, {1}), 1));
  }
  static void fields(auto& self, auto&& field) { field("first", self.first), field("grouped", self.grouped), field("last", self.last); }
};
struct Mlp {
  Linear fc1{20, 33}, fc2{33, 7};
  Tensor operator()(Tensor const& x) const { return softmax(fc2(gelu(fc1(x))), -1); }
  static void fields(auto& self, auto&& field) { field("fc1", self.fc1), field("fc2", self.fc2); }
};
}  // namespace

TEST_CASE("a package computes what its function does") {
  manual_seed(1);
  SUBCASE("an MLP, its weights fields of the function") {
    for (int const rows : {1, 2, 5, 64}) CHECK(gap(Mlp(), randn({rows, 20})) < 1e-6);
  }
  SUBCASE("a GPT: embeddings, norms, causal attention, a head tied to the embedding") {
    Gpt const gpt(GptConfig{.vocabulary = 50, .context = 24, .layers = 2, .heads = 2, .features = 32});
    CHECK(gap(gpt, randint(0, 50, {2, 17})) < 2e-5);
  }
  SUBCASE("convolutions with strides, padding, dilation and groups, and pools") { CHECK(gap(Convolutional(), randn({2, 3, 13, 12})) < 1e-5); }
  SUBCASE("a model as an argument, weights that are views, several results in an order of their own") {
    Tensor const w = transpose(randn({9, 4}), 0, 1);
    auto const f = [w](Mlp const& model, Tensor const& x, Tensor const& shift) {
      Tensor const y = model(x) + shift;
      return std::tuple(transpose(y, 0, 1), sum(y), x, matmul(slice(x, 1, 0, 4), w));
    };
    CHECK(gap(f, Mlp(), transpose(randn({20, 6}), 0, 1), randn(7)) < 1e-6);
  }
  SUBCASE("reductions in parts: columns of many rows, and few long rows") {
    auto const f = [](Tensor const& x, Tensor const& y) { return std::tuple(sum(x, {0}), amax(x * 2, {0}), sum(abs(y), {1})); };
    CHECK(gap(f, randn({3000, 70}), randn({2, 100000})) < 1e-5);
  }
  SUBCASE("whole numbers, places and running sums") {
    auto const f = [](Tensor const& x, Tensor const& n) {
      return std::tuple(argmax(x, 1), argmax(-x, 0), cumsum(x, 0), matmul(n, transpose(n, 0, 1)), gather(x, 1, n));
    };
    CHECK(gap(f, randn({5, 8}), randint(0, 8, {5, 3})) < 1e-6);
  }
  SUBCASE("many joined, means of windows") {
    auto const f = [](Tensor const& x, Tensor const& y) {
      return std::tuple(cat(std::array{x, y, x * 2, y, transpose(transpose(x, 2, 3), 2, 3), y + 1}, 1), avg_pool2d(x, 2, {2}, {1}));
    };
    CHECK(gap(f, randn({2, 3, 6, 4}), randn({2, 1, 6, 4})) < 1e-6);
  }
  SUBCASE("other dtypes") {
    for (auto const& [dtype, bound] : {std::pair(DType::f64, 1e-13), {DType::bf16, 2e-2}, {DType::f16, 4e-3}}) {
      INFO(base::info(dtype).name);
      auto const f = [w = to(randn({20, 11}), dtype)](Tensor const& x) { return softmax(matmul(tanh(x), w), -1); };
      CHECK(gap(f, to(randn({7, 20}), dtype)) < bound);
    }
  }
}

TEST_CASE("the library says what is wrong with its use") {
  Folder const folder;
  manual_seed(1);
  Tensor const table = randn({5, 3});
  auto const package = tenon::package([table](Tensor const& rows) { return embedding(table, rows) * 2; },
                                      {.folder = folder.path, .name = "rows", .inputs = {"which"}}, randint(0, 5, 4));
  Library const library(package);
  CHECK(library.create((folder.path / "none").string()) == nullptr);
  CHECK(library.error() == (folder.path / "none").string() + ": No such file or directory");
  CHECK(library.function<void*(char const*)>("_create")(nullptr) == nullptr);
  CHECK(library.error() == "rows_create: the path of the weights is null");
  void* const model = library.create(package.weights.string());
  REQUIRE(model);
  std::array<std::int64_t, 4> which{0, 4, 1, 2};
  std::array<float, 12> out{};
  void const* in[] = {which.data()};
  void* to[] = {out.data()};
  CHECK(library.run(model, in, to) == 0);
  auto const elements = table.to_vector<float>();
  for (std::size_t k = 0; k < 12; ++k) CHECK(out[k] == 2 * elements[static_cast<std::size_t>(which[k / 3]) * 3 + k % 3]);
  for (std::int64_t const bad : {std::int64_t{5}, std::int64_t{-1}, std::int64_t{-6}, std::numeric_limits<std::int64_t>::max()}) {
    which[2] = bad;
    CHECK(library.run(model, in, to) == -1);
    CHECK(library.error().starts_with(std::format("rows_run: index {} is out of range for size 5, in %", bad)));
  }
  which[2] = 1;
  CHECK(library.run(model, in, to) == 0);
  void const* nothing[] = {nullptr};
  CHECK(library.run(model, nothing, to) == -1);
  CHECK(library.error() == "rows_run: input 0, 'which', is null");
  void* nowhere[] = {nullptr};
  CHECK(library.run(model, in, nowhere) == -1);
  CHECK(library.error() == "rows_run: output 0, 'output0', is null");
  CHECK(library.run(nullptr, in, to) == -1);
  library.destroy(model);
  library.destroy(nullptr);
}

TEST_CASE("a file of weights that does not fit is refused in one line, and no file is a crash") {
  Folder const folder;
  manual_seed(1);
  auto const package = tenon::package(Mlp(), {.folder = folder.path}, randn({2, 20}));
  Library const library(package);
  auto const good = text_of(package.weights);
  auto const file = (folder.path / "w").string();
  auto const header = [&](std::string text, std::string const& data = std::string(4000, 'x')) {
    std::uint64_t const length = text.size();
    return std::string(reinterpret_cast<char const*>(&length), 8) + text + data;
  };
  auto const refused = [&](std::string const& bytes, std::string const& why) {
    std::ofstream(file, std::ios::binary) << bytes;
    void* const model = library.create(file);
    CHECK(model == nullptr);
    INFO(library.error());
    CHECK(library.error() == file + ": " + why);
  };
  refused("", "0 bytes are no safetensors file");
  refused(std::string(8, '\xff'), "a header of 18446744073709551615 bytes in a file of 8");
  refused(good.substr(0, 20), std::format("a header of {} bytes in a file of 20", *reinterpret_cast<std::uint64_t const*>(good.data())));
  refused(header("{}"), "there is no tensor 'fc1.weight'");
  refused(header("[]"), "the header is broken, 2 bytes before its end: { is expected");
  auto const one = [](std::string const& dtype, std::string const& shape, std::string const& offsets) {
    return std::format(R"({{"__metadata__": {{"a": "b"}}, "other": {{"dtype": "F4", "shape": [], "data_offsets": [1, 1]}},
      "fc1.w\u0065ight": {{"dtype": "{}", "shape": {}, "data_offsets": {}}}}})",
                       dtype, shape, offsets);
  };
  refused(header(one("F64", "[33, 20]", "[0, 5280]"), std::string(6000, 'x')), "tensor 'fc1.weight' is F64, F32 is needed");
  refused(header(one("F32", "[20, 33]", "[0, 2640]")), "tensor 'fc1.weight' has the shape [20, 33], [33, 20] is needed");
  refused(header(one("F32", "[33]", "[0, 132]")), "tensor 'fc1.weight' has the shape [33], [33, 20] is needed");
  refused(header(one("F32", "[33, 20]", "[0, 2636]")), "tensor 'fc1.weight' has 2636 bytes, its shape [33, 20] of F32 needs 2640");
  refused(header(one("F32", "[33, 20]", "[3990, 6630]")), "tensor 'fc1.weight': data_offsets [3990, 6630] do not lie in the file's 4000 bytes");
  refused(header(one("F32", "[33, 20]", "[0, 2640]")), "there is no tensor 'fc1.bias'");
  refused(header(one("F32", "[33, 99999999999999999999]", "[0, 2640]")).substr(0, 4200),
          "the header is broken, 32 bytes before its end: a smaller number is expected");

  // Mutated files: refused, or read as what they then are; never a crash (the suite runs under sanitizers too).
  std::mt19937 random(1);
  std::array<float, 40> in{};
  std::array<float, 14> out{};
  void const* inputs[] = {in.data()};
  void* outputs[] = {out.data()};
  int taken = 0;
  for (int k = 0; k < 2000; ++k) {
    auto bytes = good;
    auto const length = 8 + *reinterpret_cast<std::uint64_t const*>(good.data());
    for (int changes = 1 + k % 3; changes-- > 0;)
      bytes[random() % (k % 5 ? length : bytes.size())] = static_cast<char>(k % 2 ? random() : "0129{}[]\",:\\ "[random() % 13]);
    if (k % 4 == 0) bytes.resize(random() % bytes.size());
    std::ofstream(file, std::ios::binary) << bytes;
    void* const model = library.create(file);
    if (!model) {
      CHECK(library.error().starts_with(file + ": "));
      continue;
    }
    ++taken;
    CHECK(library.run(model, inputs, outputs) == 0);
    library.destroy(model);
  }
  CHECK(taken < 700);
}

TEST_CASE("what can't be packaged is an error that names it") {
  Folder const folder;
  auto const refused = [&](auto const& function, auto const&... args) {
    return support::caught([&] { tenon::package(function, {.folder = folder.path}, args...); });
  };
  Tensor const x = ones({2, 3});
  auto const random = refused([](Tensor const& a) { return rand(DimList(a.shape())) + a; }, x);
  INFO(random);
  CHECK(random.starts_with("package: rand at package_test.cpp:"));
  CHECK(random.ends_with(" draws random numbers; a package has no generator"));
  auto const sorted = refused(
      [](Tensor const& a) {
        Arg const operands[] = {a};
        return apply_all(ir::ops::sort, operands, ir::default_attrs(ir::ops::sort), At::current())[0];
      },
      x);
  INFO(sorted);
  CHECK(sorted.starts_with("package: there is no C for sort at package_test.cpp:"));
  CHECK(refused(
            [](Tensor const& a) {
              Tensor(a).add_(ones({2, 3}));
              return a * 2;
            },
            x) == "package: the function writes into 'args[0]'; a package only returns results");
  CHECK(refused([](Tensor const& a) { return sum(a) > 0 ? a : a * 2; }, x).find("fullgraph") != std::string::npos);
  CHECK(support::caught([&] { tenon::package([](Tensor const& a) { return a * 2; }, {.folder = folder.path, .name = "my model"}, x); }) ==
        "package: the name 'my model' can't be one of C's: letters, digits and _ are");
  CHECK(support::caught([&] { tenon::package([](Tensor const& a) { return a * 2; }, {.folder = folder.path, .inputs = {"a", "b"}}, x); }) ==
        "package: 2 names for 1 inputs");
  CHECK(x.to_vector<double>() == std::vector<double>(6, 1));
}

TEST_CASE("the source of a package compiles with whatever C compiler there is") {
  Folder const folder;
  auto const package = tenon::package(Mlp(), {.folder = folder.path}, randn({2, 20}));
  for (std::string const compiler : {"gcc", "clang-19"}) {
    if (std::system(("command -v " + compiler + " >/dev/null 2>&1").c_str()) != 0) continue;
    auto const line =
        std::format("cd {} && {} -std=gnu11 -O1 -Wall -Wno-unused -Werror -fPIC -shared model.c -o libother.so -lm 2>errors", folder.path.string(), compiler);
    CHECK_MESSAGE(std::system(line.c_str()) == 0, text_of(folder.path / "errors"));
  }
}
