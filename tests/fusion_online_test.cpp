// Reductions that are carried along with another one of their row: rows computed by hand, what verify refuses, graphs whose forms are chosen.
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <stdlib.h>
import std;
import tenon.base;
import tenon.ir;
import tenon.device;
import tenon.fusion;
#include "ir_support.hpp"

namespace ir = tenon::ir;
namespace base = tenon::base;
namespace fusion = tenon::fusion;
using fusion::Form;
using support::Array;
using Numbers = std::vector<double>;

namespace {
constexpr double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
std::string_view name_of(Form form) { return form == Form::row ? "row" : form == Form::split ? "split" : "online"; }

// A choice of the form for every kernel that can have it.
fusion::Choices choices_of(ir::Graph const& graph, Form form) {
  auto const usual = fusion::plan(graph);
  fusion::Choices choices;
  for (std::size_t l = 0; l < usual.launches.size(); ++l) {
    auto const& launch = usual.launches[l];
    if (launch.node < 0 && fusion::can_walk(usual.kernels[static_cast<std::size_t>(launch.kernel)], form)) choices[std::format("kernel {}", l)] = name_of(form);
  }
  return choices;
}
int count_of(fusion::Program const& program, Form form) {
  return static_cast<int>(std::ranges::count_if(program.kernels, [&](auto const& kernel) { return kernel.schedule.form == form; }));
}
struct Threads {
  int before = tenon::device::threads();
  ~Threads() { tenon::device::set_threads(before); }
};

// Results in one form, compiled or interpreted, with any number of threads the same bits.
std::vector<Numbers> results(ir::Graph const& graph, std::span<ir::Strided const> in, Form form, bool interpret, std::int64_t grain = 1 << 13) {
  Threads const restore;
  auto const run = fusion::lower(graph, {.interpret = interpret, .grain = grain, .choices = choices_of(graph, form)});
  std::vector<Numbers> first;
  for (int const threads : {1, 2, 3, 5}) {
    tenon::device::set_threads(threads);
    auto const done = run(in, {});
    std::vector<Numbers> list;
    for (auto const& output : done.outputs) list.push_back(support::reals(output));
    if (threads == 1)
      first = std::move(list);
    else
      for (std::size_t k = 0; k < first.size(); ++k)
        CHECK(std::ranges::equal(first[k], list[k], [](double a, double b) { return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b); }));
  }
  return first;
}
bool near(double got, double want, double within) { return std::isnan(want) ? std::isnan(got) : got == want || std::fabs(got - want) <= within; }

constexpr int width = 5000;
// Element c of each row, and by hand: softmax of the last element, log of the sum of exponentials, variance.
struct Row {
  std::string_view what;
  double (*element)(int c);
  double softmax, lse, variance;
};
Row const rows[] = {
    {"zeros", [](int) { return 0.0; }, 1.0 / width, std::log(width), 0},
    {"nothing but -inf", [](int) { return -inf; }, nan, -inf, nan},
    {"-inf in front, two zeros behind", [](int c) { return c < width - 2 ? -inf : 0.0; }, 0.5, std::log(2.0), nan},
    {"-inf behind two numbers far below zero", [](int c) { return c == 0 || c == width - 1 ? -1000.0 : -inf; }, 0.5, -1000 + std::log(2.0), nan},
    {"an infinite element early", [](int c) { return c == 7 ? inf : 1.0; }, nan, inf, nan},
    {"an infinite element late", [](int c) { return c == width - 3 ? inf : -5.0; }, nan, inf, nan},
    {"both infinities", [](int c) { return c == 3      ? -inf
                                           : c == 4000 ? inf
                                                       : 2.0; }, nan, inf, nan},
    {"NaN in the first block", [](int c) { return c == 1 ? nan : 0.5; }, nan, nan, nan},
    {"NaN in the last block", [](int c) { return c == width - 1 ? nan : -inf; }, nan, nan, nan},
    {"the largest at the end", [](int c) { return c == width - 1 ? 200.0 : 0.0; }, 1, 200, 200.0 * 200 / width * (1 - 1.0 / width)},
    {"the largest at the start", [](int c) { return c == 0 ? 200.0 : 0.0; }, 0, 200, 200.0 * 200 / width * (1 - 1.0 / width)},
    {"a mean that moves", [](int c) { return c < width / 2 ? 0.0 : 10.0; }, 2 / (width * (1 + std::exp(-10.0))),
     10 + std::log(width / 2 * (1 + std::exp(-10.0))), 25},
    {"far from zero", [](int c) { return c % 2 ? 10001.0 : 9999.0; }, 2 / (width * (1 + std::exp(-2.0))), 10001 + std::log(width / 2 * (1 + std::exp(-2.0))),
     1},
    {"large and small", [](int c) { return c % 2 ? 3e15 : -3e15; }, 2.0 / width, 3e15, 9e30},
};
}  // namespace

TEST_CASE("online: rows computed by hand, in every form, compiled and interpreted") {
  auto const graph = ir::parse_graph(std::format(R"(graph rows(%0: f32[{0}, {1}]) {{
  %1 = softmax(%0, dim=1): f32[{0}, {1}]
  %2 = logsumexp(%0, dim=[1]): f32[{0}]
  %3 = var(%0, dim=[1], correction=0.0): f32[{0}]
  return %1, %2, %3
}}
)",
                                                 std::size(rows), width));
  Numbers elements;
  for (auto const& row : rows)
    for (int c = 0; c < width; ++c) elements.push_back(row.element(c));
  auto const x = support::array(base::DType::f32, {std::ssize(rows), width}, elements);
  std::array const in{x.at};
  for (auto const form : {Form::row, Form::split, Form::online}) {
    CHECK(count_of(fusion::plan(graph, {.choices = choices_of(graph, form)}), form) >= 1);
    for (bool const interpret : {false, true}) {
      auto const got = results(graph, in, form, interpret, 512);
      for (std::size_t r = 0; r < std::size(rows); ++r) {
        INFO(std::string(name_of(form)) << std::string(interpret ? " interpreted: " : ": ") << std::string(rows[r].what) << ": " << got[0][(r + 1) * width - 1]
                                        << " " << got[1][r] << " " << got[2][r]);
        CHECK(near(got[0][(r + 1) * width - 1], rows[r].softmax, 1e-5 * rows[r].softmax));
        CHECK(near(got[1][r], rows[r].lse, 1e-6 * std::fabs(rows[r].lse)));
        CHECK(near(got[2][r], rows[r].variance, width * 0x1p-24 * std::fabs(rows[r].variance)));
      }
    }
  }
}

TEST_CASE("online: norms, softmax and losses over long rows, each in the form that is chosen") {
  constexpr std::string_view bodies[] = {
      "  %3 = softmax(%0, dim=1): f32[R, C]\n  return %3\n",
      "  %3 = mul(%0, %1): f32[R, C]\n  %4 = log_softmax(%3, dim=1): f32[R, C]\n  %5 = tanh(%4): f32[R, C]\n  return %5\n",
      "  %3 = layer_norm(%0, %1, %2, normalized_shape=[C], eps=1e-05): f32[R, C]\n  %4 = gelu(%3): f32[R, C]\n  return %4, %3\n",
      "  %3 = gelu(%0): f32[R, C]\n  %4 = logsumexp(%3, dim=[1]): f32[R]\n  %5 = var(%3, dim=[1], correction=1.0): f32[R]\n  return %4, %5\n",
      "  %3 = layer_norm(%0, none, none, normalized_shape=[C], eps=1e-05): f32[R, C]\n  %4 = softmax(%3, dim=1): f32[R, C]\n  return %4\n",
      "  %3 = softmax(%0, dim=1): f32[R, C]\n  %4 = mul(%3, %1): f32[R, C]\n  %5 = sum(%4, dim=[1], keepdim=true): f32[R, 1]\n"
      "  %6 = sub(%4, %5): f32[R, C]\n  %7 = sum(%6, dim=[0]): f32[C]\n  return %7, %6\n",
      "  %3 = amax(%0, dim=[1], keepdim=true): f32[R, 1]\n  %4 = sub(%0, %3): f32[R, C]\n  %5 = exp(%4): f32[R, C]\n  %6 = mul(%5, %1): f32[R, C]\n"
      "  %7 = sum(%6, dim=[1]): f32[R]\n  %8 = sum(%5, dim=[1]): f32[R]\n  %9 = div(%7, %8): f32[R]\n  return %9\n",
      "  %3 = to(%0, dtype=f64): f64[R, C]\n  %4 = softmax(%3, dim=1): f64[R, C]\n  %5 = var(%3, dim=[1]): f64[R]\n  return %4, %5\n",
      "  %3 = to(%0, dtype=bf16): bf16[R, C]\n  %4 = softmax(%3, dim=1): bf16[R, C]\n  return %4\n",
  };
  std::mt19937 random(20261130);
  std::map<Form, int> forms;
  constexpr std::pair<int, int> sizes[] = {{1, 70001}, {3, 6000}, {40, 2311}};
  for (std::size_t k = 0; k < std::size(bodies); ++k)
    for (int turn = 0; turn < support::tier(1, 1, 3); ++turn) {
      auto const body = bodies[k];
      auto const [r, c] = sizes[(k + static_cast<std::size_t>(turn)) % 3];
      auto text = std::format("graph long(%0: f32[R, C], %1: f32[C], %2: f32[C]) {{\n{}}}\n", body);
      for (auto const& [letter, size] : {std::pair{"R", r}, {"C", c}})
        for (std::size_t at; (at = text.find(letter, 12)) != std::string::npos;) text.replace(at, 1, std::to_string(size));
      auto const graph = ir::parse_graph(text);
      Numbers x, w, b;
      for (int k = 0; k < r * c; ++k) x.push_back(std::normal_distribution<>(k % c / 2048, 3)(random));
      for (int k = 0; k < c; ++k) w.push_back(std::normal_distribution<>(1, 0.3)(random)), b.push_back(std::normal_distribution<>()(random));
      std::array const held{support::array(base::DType::f32, {r, c}, x), support::array(base::DType::f32, {c}, w), support::array(base::DType::f32, {c}, b)};
      std::array const in{held[0].at, held[1].at, held[2].at};
      auto const expected = support::run(graph, in);
      for (auto const form : {Form::row, Form::split, Form::online}) {
        forms[form] += count_of(fusion::plan(graph, {.choices = choices_of(graph, form)}), form);
        for (bool const interpret : {false, true}) {
          auto const got = results(graph, in, form, interpret, 500);
          for (std::size_t k = 0; k < got.size(); ++k) {
            auto const want = support::reals(expected.outputs[k]);
            auto const dtype = expected.outputs[k].dtype;
            double const bound = (dtype == base::DType::f64    ? 1e-10
                                  : dtype == base::DType::bf16 ? 1e-2
                                                               : 2e-5) *
                                 (k == 0 && dtype == base::DType::bf16 ? 0.01 : support::scale_of(want));
            INFO(std::string(name_of(form)) << std::string(interpret ? " interpreted" : "") << " output " << k << " differs by "
                                            << support::distance(got[k], want) << "\n"
                                            << text);
            CHECK(support::distance(got[k], want) <= bound);
          }
        }
      }
    }
  CHECK(forms[Form::split] >= 5);
  CHECK(forms[Form::online] >= 6);
}

TEST_CASE("online: one program for rows of any length, whatever form the hint chose") {
  Threads const restore;
  auto const graph = ir::parse_graph(R"(graph any(%0: f32[3, s0]) symbols(s0=4100) {
  %1 = softmax(%0, dim=1): f32[3, s0]
  %2 = logsumexp(%0, dim=[1]): f32[3]
  %3 = layer_norm(%0, none, none, normalized_shape=[s0], eps=1e-05): f32[3, s0]
  return %1, %2, %3
}
)");
  for (auto const form : {Form::split, Form::online}) {
    auto const choices = choices_of(graph, form);
    CHECK(count_of(fusion::plan(graph, {.choices = choices}), form) >= 1);
    for (bool const interpret : {false, true}) {
      auto const run = fusion::lower(graph, {.interpret = interpret, .grain = 100, .choices = choices});
      for (std::int64_t const size : {2, 63, 4100, 2048, 9000}) {
        Numbers values;
        for (std::int64_t k = 0; k < 3 * size; ++k) values.push_back(3 * std::sin(0.7 * static_cast<double>(k)) + (k % size > 2048 ? 8 : 0));
        auto const x = support::array(base::DType::f32, {3, size}, values);
        std::array const in{x.at};
        ir::Bindings const bindings{.whole = {size}, .real = {0}};
        auto const expected = ir::evaluate(ir::decompose(graph), in, bindings);
        for (int const threads : {1, 3}) {
          tenon::device::set_threads(threads);
          auto const done = run(in, bindings);
          for (std::size_t k = 0; k < 3; ++k) {
            auto const want = support::reals(expected.outputs[k]);
            INFO(std::string(name_of(form)) << " " << size << " columns, output " << k);
            CHECK(support::distance(support::reals(done.outputs[k]), want) <= (k == 0 ? 1e-5 * std::ranges::max(want) : 2e-5 * support::scale_of(want)));
          }
        }
      }
    }
  }
}

TEST_CASE("online: a row may be written where it was read, once all of it is known") {
  Threads const restore;
  auto graph = ir::parse_graph(R"(graph over(%0: f32[2, 90000], %1: f32[2, 1]) {
  %2 = softmax(%0, dim=1): f32[2, 90000]
  %3 = mul(%2, %1): f32[2, 90000]
  %4 = sum(%0, dim=[1], keepdim=true): f32[2, 1]
  %5 = add(%4, %1): f32[2, 1]
  return %3, %5
}
)");
  graph.mutated = {0, 1};  // the scale too, which the second pass still reads
  auto const program = fusion::plan(graph);
  CHECK(count_of(program, Form::split) == 1);
  CHECK(std::ranges::count(program.homes, fusion::Home::Kind::in_place, &fusion::Home::kind) == 1);
  Numbers values;
  for (int k = 0; k < 180000; ++k) values.push_back(5 * std::cos(0.01 * k));
  Numbers const scales{2, 3};
  auto const x = support::array(base::DType::f32, {2, 90000}, values), y = support::array(base::DType::f32, {2, 1}, scales);
  std::array const in{x.at, y.at};
  auto const expected = support::run(graph, in);
  auto const run = fusion::lower(graph, {});
  for (int const threads : {1, 2, 5}) {
    tenon::device::set_threads(threads);
    auto const a = support::converted(x.at, base::DType::f32), b = support::converted(y.at, base::DType::f32);
    std::array const given{a.at, b.at};
    auto const done = run(given, {});
    CHECK(done.outputs[0].data == a.at.data);
    for (std::size_t k = 0; k < 2; ++k) {
      auto const want = support::reals(expected.outputs[k]);
      CHECK(support::distance(support::reals(done.outputs[k]), want) <= (k == 0 ? 1e-5 * std::ranges::max(want) : 2e-5 * support::scale_of(want)));
    }
  }
}

TEST_CASE("online: the form that long rows get, as text") {
  auto const form_of = [](int r, int c) {
    auto const graph = ir::parse_graph(std::format("graph s(%0: f32[{0}, {1}]) {{\n  %1 = softmax(%0, dim=1): f32[{0}, {1}]\n  return %1\n}}\n", r, c));
    auto const program = fusion::plan(graph);
    CHECK(program.kernels.size() == 1);
    return program.kernels[0].schedule.form;
  };
  CHECK(form_of(256, 50304) == Form::row);  // rows that stay in the cache
  CHECK(form_of(64, 1'000'000) == Form::online);
  CHECK(form_of(8, 1'000'000) == Form::split);
  CHECK(form_of(1, 70'000) == Form::split);
  CHECK(form_of(1, 60'000) == Form::row);
  auto const graph = ir::parse_graph("graph s(%0: f32[64, 500000]) {\n  %1 = softmax(%0, dim=1): f32[64, 500000]\n  return %1\n}\n");
  auto kernel = fusion::plan(graph).kernels.at(0);
  kernel.origin.clear();
  CHECK(fusion::to_string(kernel) == R"(kernel tn_kernel0 online (i0 < 64 row, i1 < 500000 column) {
  pass 0:
    rows+columns v0: f32 = load b0[i0*500000 + i1]
  pass 1:
    rows         v1: f32 = max of v0 over columns
    rows+columns v2: f32 = sub(v0, v1)
    rows+columns v3: f32 = exp(v2)
    rows         v4: f32 = sum of v3 over columns, with v1
    rows         v5: f32 = reciprocal(v4)
    rows+columns v6: f32 = mul(v3, v5)
    store b1[i0*500000 + i1] = v6
}
)");
  fusion::walk(kernel, Form::row);  // and back
  CHECK(fusion::passes(kernel) == 3);
  CHECK(fusion::to_string(kernel).find("with") == std::string::npos);
}

TEST_CASE("online: what is no sum that moves with its lead is refused, in one line that names the step") {
  auto const kernel_of = [](std::string_view body) {
    auto const graph = ir::parse_graph(std::format("graph s(%0: f32[9, 300000], %1: f32[9, 300000]) {{\n{}}}\n", body));
    auto kernel = fusion::plan(graph).kernels.at(0);
    kernel.name = "k";
    return kernel;
  };
  auto const refusal = [](fusion::Kernel const& kernel) { return support::caught([&] { fusion::verify(kernel); }); };
  constexpr std::string_view good = R"(  %2 = amax(%0, dim=[1], keepdim=true): f32[9, 1]
  %3 = sub(%0, %2): f32[9, 300000]
  %4 = exp(%3): f32[9, 300000]
  %5 = sum(%4, dim=[1]): f32[9]
  return %5
)";
  auto const online = kernel_of(good);
  REQUIRE(online.schedule.form == Form::online);
  CHECK(refusal(online) == "nothing");
  auto const changed = [&](auto change) {
    auto kernel = online;
    change(kernel);
    return refusal(kernel);
  };
  CHECK(support::says(changed([](auto& k) { k.schedule.form = Form::row; }), "kernel k, v4: is carried along with v1 in a kernel of another form"));
  CHECK(support::says(changed([](auto& k) { k.steps[4].with = 0; }), "kernel k, v4: does not follow v0: no rule says how it moves with it"));
  CHECK(support::says(changed([](auto& k) { k.steps[4].combine = ir::Monoid::max; }), "kernel k, v4: does not follow v1"));
  CHECK(support::says(changed([](auto& k) { k.steps[2].attrs = ir::Attrs{}.with_num(2.0); }), "kernel k, v4: does not follow v1"));
  CHECK(support::says(changed([](auto& k) { k.steps[1].combine = ir::Monoid::min; }), "kernel k, v4: does not follow v1"));
  CHECK(support::says(changed([](auto& k) { k.steps[3].op = &ir::ops::expm1; }), "kernel k, v4: does not follow v1"));
  CHECK(support::says(changed([](auto& k) { k.steps[4].pass = 2; }), "kernel k, v4: belongs in pass 1, not 2"));
  CHECK(support::says(changed([](auto& k) { fusion::walk(k, Form::row), k.schedule.form = Form::online; }), "kernel k: online, and nothing is carried along"));
  CHECK(support::says(changed([](auto& k) { fusion::walk(k, Form::row), k.schedule.ahead = -1, k.schedule.form = Form::split; }),
                      "kernel k, v4: needs a walk of its own, and columns are cut once"));
  CHECK(support::says(changed([](auto& k) { fusion::walk(k, Form::split), k.steps[2].keep = true; }), "kernel k, v2: is kept, and columns are cut"));
  // What looks alike and is not: a maximum of something else, a factor that follows the maximum too, a mean of other elements or another count, a mask, which
  // may hide that a row is -inf alone.
  constexpr std::string_view others[] = {
      "  %2 = amax(%0, dim=[1], keepdim=true): f32[9, 1]\n  %3 = sub(%0, %2): f32[9, 300000]\n  %4 = exp(%3): f32[9, 300000]\n"
      "  %5 = gt(%1, 0.0): bool[9, 300000]\n  %6 = where(%5, %4, 0.0): f32[9, 300000]\n  %7 = sum(%6, dim=[1]): f32[9]\n  return %7\n",
      "  %2 = amax(%1, dim=[1], keepdim=true): f32[9, 1]\n  %3 = sub(%0, %2): f32[9, 300000]\n  %4 = exp(%3): f32[9, 300000]\n"
      "  %5 = sum(%4, dim=[1]): f32[9]\n  return %5\n",
      "  %2 = amax(%0, dim=[1], keepdim=true): f32[9, 1]\n  %3 = sub(%0, %2): f32[9, 300000]\n  %4 = exp(%3): f32[9, 300000]\n"
      "  %5 = mul(%4, %3): f32[9, 300000]\n  %6 = sum(%5, dim=[1]): f32[9]\n  return %6\n",
      "  %2 = amax(%0, dim=[1], keepdim=true): f32[9, 1]\n  %3 = sub(%0, %2, alpha=2.0): f32[9, 300000]\n  %4 = exp(%3): f32[9, 300000]\n"
      "  %5 = sum(%4, dim=[1]): f32[9]\n  return %5\n",
      "  %2 = sum(%0, dim=[1], keepdim=true): f32[9, 1]\n  %3 = div(%2, 299999): f32[9, 1]\n  %4 = sub(%0, %3): f32[9, 300000]\n"
      "  %5 = mul(%4, %4): f32[9, 300000]\n  %6 = sum(%5, dim=[1]): f32[9]\n  return %6\n",
      "  %2 = mean(%1, dim=[1], keepdim=true): f32[9, 1]\n  %3 = sub(%0, %2): f32[9, 300000]\n  %4 = mul(%3, %3): f32[9, 300000]\n"
      "  %5 = sum(%4, dim=[1]): f32[9]\n  return %5\n",
      "  %2 = mean(%0, dim=[1], keepdim=true): f32[9, 1]\n  %3 = sub(%0, %2): f32[9, 300000]\n  %4 = mul(%3, %1): f32[9, 300000]\n"
      "  %5 = sum(%4, dim=[1]): f32[9]\n  return %5\n",
  };
  for (auto const body : others) {
    INFO(body);
    auto const kernel = kernel_of(body);
    CHECK(kernel.schedule.form == Form::row);
    CHECK_FALSE(fusion::can_walk(kernel, Form::online));
    CHECK_FALSE(fusion::can_walk(kernel, Form::split));
  }
}

TEST_CASE("online: a package runs the second pass over chunks of a few long rows") {
  if (!tenon::device::toolchain()) {
    std::cout << "SKIP: a package of long rows: no C compiler on this machine\n";
    return;
  }
  auto const graph = ir::parse_graph(R"(graph norms(%0: f32[2, 70000]) {
  %1 = softmax(%0, dim=1): f32[2, 70000]
  %2 = layer_norm(%0, none, none, normalized_shape=[70000], eps=1e-05): f32[2, 70000]
  return %1, %2
}
)");
  CHECK(count_of(fusion::plan(graph), Form::split) >= 1);
  Numbers values;
  for (int k = 0; k < 140000; ++k) values.push_back(4 * std::sin(0.37 * k));
  auto const x = support::array(base::DType::f32, {2, 70000}, values);
  std::array const in{x.at};
  auto const expected = support::run(graph, in);
  std::string folder = std::filesystem::temp_directory_path() / "tenon-online-XXXXXX";
  REQUIRE(mkdtemp(folder.data()));
  std::array const weights{ir::Strided{nullptr, x.at.dtype, x.at.sizes, x.at.strides}};
  auto const package = fusion::write_package(graph, weights, {.folder = folder, .name = "norms"});
  void* const library = dlopen(package.library.c_str(), RTLD_NOW | RTLD_LOCAL);
  REQUIRE_MESSAGE(library, dlerror());
  void* const model = reinterpret_cast<void* (*)(char const*)>(dlsym(library, "norms_create"))(package.weights.c_str());
  REQUIRE(model);
  std::array const out{support::array(base::DType::f32, {2, 70000}), support::array(base::DType::f32, {2, 70000})};
  std::array<void const*, 1> const given{x.at.data};
  std::array<void*, 2> const into{out[0].at.data, out[1].at.data};
  CHECK(reinterpret_cast<int (*)(void*, void const* const*, void* const*)>(dlsym(library, "norms_run"))(model, given.data(), into.data()) == 0);
  for (std::size_t k = 0; k < 2; ++k) {
    auto const want = support::reals(expected.outputs[k]);
    CHECK(support::distance(support::reals(out[k].at), want) <= (k ? 2e-5 : 2e-5 * std::ranges::max(want)));
  }
  reinterpret_cast<void (*)(void*)>(dlsym(library, "norms_destroy"))(model);
  dlclose(library);
  std::filesystem::remove_all(folder);
}
