// Random graphs as packages: what their libraries compute, against the reference evaluator.
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <stdlib.h>
import std;
import tenon.base;
import tenon.ir;
import tenon.device;
import tenon.fusion;
#include "ir_random.hpp"
#include "ir_support.hpp"
#include "reference.hpp"

namespace ir = tenon::ir;
namespace base = tenon::base;
namespace fusion = tenon::fusion;

TEST_CASE("random graphs as packages give the reference's values, or say which op has no C") {
  if (!tenon::device::toolchain()) {
    std::cout << "SKIP: random graphs as packages: no C compiler on this machine\n";
    return;
  }
  std::string folder = std::filesystem::temp_directory_path() / "tenon-package-XXXXXX";
  REQUIRE(mkdtemp(folder.data()));
  auto const seeds = support::seeds(support::tier(16, 40, 2000));
  int packaged = 0;
  for (int const k : seeds) {
    std::mt19937 random(20261201u + static_cast<unsigned>(k));
    auto const made = support::random_graph(random, {.nodes = 2 + k % 9, .strides = k % 2 == 1});
    INFO("seed " << k << ", alone: TENON_SEEDS=" << k << "\n" << ir::to_string(made.graph));
    auto const inputs = made.elements();
    support::Reference expected(made.graph, inputs);
    // Every second input is a weight; what does not lie row by row must be one.
    std::vector<ir::Strided> weights;
    std::vector<void const*> given;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      bool const stored = i % 2 == 0 || !base::is_contiguous(inputs[i].sizes, inputs[i].strides);
      weights.push_back(stored ? inputs[i] : ir::Strided{nullptr, inputs[i].dtype, inputs[i].sizes, inputs[i].strides});
      if (!stored) given.push_back(inputs[i].data);
    }
    fusion::Package package;
    auto const name = std::format("graph{}", k);
    if (auto const refusal = support::caught([&] { package = fusion::write_package(made.graph, weights, {.folder = folder, .name = name}); });
        refusal != "nothing") {
      INFO(refusal);
      CHECK((refusal.starts_with("package: there is no C for ") || refusal.ends_with(" draws random numbers; a package has no generator") ||
             refusal.ends_with("gathers from a dim of size 0")));
      continue;
    }
    ++packaged;
    void* const library = dlopen(package.library.c_str(), RTLD_NOW | RTLD_LOCAL);
    REQUIRE_MESSAGE(library, dlerror());
    auto const function = [&](std::string const& what) { return dlsym(library, (name + what).c_str()); };
    auto const error = reinterpret_cast<char const* (*)()>(function("_error"));
    void* const model = reinterpret_cast<void* (*)(char const*)>(function("_create"))(package.weights.c_str());
    REQUIRE_MESSAGE(model, error());
    std::vector<support::Array> results;
    std::vector<void*> outputs;
    for (auto const& y : expected.value().outputs) {
      results.push_back(support::array(y.dtype, y.sizes));
      outputs.push_back(results.back().at.data);
    }
    int const status = reinterpret_cast<int (*)(void*, void const* const*, void* const*)>(function("_run"))(model, given.data(), outputs.data());
    REQUIRE_MESSAGE(status == 0, error());
    for (std::size_t i = 0; i < results.size(); ++i) {
      INFO("output " << i);
      CHECK(expected.fault(i, results[i].at) == "");
    }
    reinterpret_cast<void (*)(void*)>(function("_destroy"))(model);
    dlclose(library);
  }
  CHECK((seeds.size() < 16 || 3 * packaged > std::ssize(seeds)));
  std::filesystem::remove_all(folder);
}
