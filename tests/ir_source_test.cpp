// An op's `source` is what code generators write: compiled by the system's C compiler, it gives what the op's element function gives.
#include <dlfcn.h>
#include <doctest/doctest.h>
import std;
import tenon.base;
import tenon.ir;
#include "op_samples.hpp"
using namespace tenon;

namespace {

/// "{0}" as x[0], "{a1}" as a[1].
std::string as_c(std::string_view source) {
  std::string text;
  for (std::size_t at = 0; at < source.size(); ++at) {
    if (source[at] != '{') {
      text += source[at];
      continue;
    }
    auto const end = source.find('}', at);
    bool const attribute = source[at + 1] == 'a';
    auto const number = source.substr(at + 1 + attribute, end - at - 1 - attribute);
    text += std::format("{}[{}]", attribute ? 'a' : 'x', number);
    at = end;
  }
  return text;
}

struct Folder {
  std::filesystem::path path = std::filesystem::temp_directory_path() / std::format("tenon_ir_source_{}", std::random_device{}());
  Folder() { std::filesystem::create_directories(path); }
  ~Folder() { std::filesystem::remove_all(path); }
};
}  // namespace

TEST_CASE("the source of an element, compiled, is the element function") {
  if (std::system("cc --version > /dev/null 2>&1") != 0) {
    std::cout << "SKIP: the source of an element, compiled, is the element function: no cc on this machine\n";
    return;
  }
  std::vector<ir::OpDef const*> ops;
  std::string text = "#include <math.h>\n";
  for (auto const* op : ir::all_ops()) {
    if (!op->element.real) continue;
    CHECK_MESSAGE(!op->source.empty(), std::string(op->name) << " has an element but no source");
    text += std::format("double element_{}(double const* x, double const* a) {{ (void)x, (void)a; return {}; }}\n", ops.size(), as_c(op->source));
    ops.push_back(op);
  }
  Folder const folder;
  std::ofstream(folder.path / "elements.c") << text;
  auto const library = (folder.path / "elements.so").string();
  auto const command = std::format("cc -O1 -ffp-contract=off -shared -fPIC -o '{}' '{}' -lm", library, (folder.path / "elements.c").string());
  REQUIRE(std::system(command.c_str()) == 0);
  void* const handle = dlopen(library.c_str(), RTLD_NOW);
  REQUIRE(handle != nullptr);
  std::mt19937 random(51);
  constexpr double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  constexpr std::array special{0.0, -0.0, 1.0, -1.0, 0.5, -2.5, inf, -inf, nan, 1e300, -1e300, 1e-300};
  for (std::size_t k = 0; k < ops.size(); ++k) {
    auto* const compiled = reinterpret_cast<double (*)(double const*, double const*)>(dlsym(handle, std::format("element_{}", k).c_str()));
    REQUIRE((compiled != nullptr));
    int faults = 0;
    for (auto const& call : support::samples(*ops[k], random)) {
      auto const a = ir::element_attributes(*ops[k], call.attrs);
      for (int turn = 0; turn < 3000 && faults < 3; ++turn) {
        std::array<double, 3> x{};
        for (auto& v : x) v = turn % 2 ? special[random() % special.size()] : std::uniform_real_distribution(-4.0, 4.0)(random);
        double const ours = ops[k]->element.real(x.data(), a.data()), theirs = compiled(x.data(), a.data());
        bool const same = ours == theirs || (std::isnan(ours) && std::isnan(theirs)) || std::fabs(ours - theirs) <= 1e-14 * std::fabs(ours) + 1e-300;
        if (!same) FAIL_CHECK(++faults << ": " << call.text << " at " << x[0] << ", " << x[1] << ", " << x[2] << ": element " << ours << ", source " << theirs);
      }
    }
  }
  dlclose(handle);
}
