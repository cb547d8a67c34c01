// Long rows in each form that they can be walked in: all of them compiled, then run by turns.
import std;
import tenon.base;
import tenon.ir;
import tenon.device;
import tenon.fusion;
#include "bench.hpp"
using namespace tenon;

namespace {
struct Case {
  std::string_view name, body;  ///< a call on %0 [R, C]
  std::string_view result;
  int rows, columns;
};
constexpr std::string_view softmax = "softmax(%0, dim=1)", norm = "layer_norm(%0, none, none, normalized_shape=[C], eps=1e-05)", lse = "logsumexp(%0, dim=[1])",
                           loss = "cross_entropy(%0, %1, none)";
constexpr std::string_view all = "f32[R, C]", each = "f32[R]";
constexpr Case cases[] = {
    {"softmax", softmax, all, 256, 50304},    {"softmax", softmax, all, 64, 1'000'000}, {"softmax", softmax, all, 8, 4'000'000},
    {"softmax", softmax, all, 1, 16'000'000}, {"layer norm", norm, all, 8, 4'000'000},  {"layer norm", norm, all, 1, 16'000'000},
    {"logsumexp", lse, each, 64, 1'000'000},  {"logsumexp", lse, each, 1, 16'000'000},  {"cross-entropy", loss, "f32[]", 64, 1'000'000},
};

std::string filled(std::string_view words, Case const& of) {
  std::string text;
  for (char const c : words) text += c == 'R' ? std::to_string(of.rows) : c == 'C' ? std::to_string(of.columns) : std::string(1, c);
  return text;
}
ir::Strided given(auto& list, base::DType dtype, base::Shape const& sizes) {
  return {reinterpret_cast<std::byte*>(list.data()), dtype, sizes, base::contiguous_strides(sizes)};
}
// A choice of the form for every kernel that can have it; nothing if none can.
fusion::Choices choices_of(ir::Graph const& graph, fusion::Form form, std::string_view name) {
  auto const usual = fusion::plan(graph);
  fusion::Choices choices;
  for (std::size_t l = 0; l < usual.launches.size(); ++l)
    if (auto const k = usual.launches[l].kernel; k >= 0 && fusion::can_walk(usual.kernels[static_cast<std::size_t>(k)], form))
      choices[std::format("kernel {}", l)] = name;
  return choices;
}
}  // namespace

// Milliseconds of one thread's processor time, the least of nine runs by turns; beside each form how many times faster it is than `row`.
std::vector<bench::Figure> bench::rows_figures() {
  std::vector<Figure> list;
  auto const threads = device::threads();
  device::set_threads(1);
  for (auto const& of : cases) {
    bool const targeted = of.body == loss;
    auto const graph = ir::parse_graph(filled(targeted ? "graph rows(%0: f32[R, C], %1: i64[R]) {\n" : "graph rows(%0: f32[R, C]) {\n", of) +
                                       std::format("  %{0} = {1}: {2}\n  return %{0}\n}}\n", targeted ? 2 : 1, filled(of.body, of), filled(of.result, of)));
    std::vector<float> x(static_cast<std::size_t>(of.rows) * static_cast<std::size_t>(of.columns));
    std::mt19937 random(1);
    for (auto& value : x) value = static_cast<float>(random() % 10007) / 1000 - 5;
    std::vector<std::int64_t> targets(static_cast<std::size_t>(of.rows), 17);
    std::vector<ir::Strided> in{given(x, base::DType::f32, {of.rows, of.columns})};
    if (targeted) in.push_back(given(targets, base::DType::i64, {of.rows}));
    struct Way {
      std::string_view name;
      fusion::Runner run;
      double least = std::numeric_limits<double>::infinity();
    };
    std::vector<Way> ways;
    for (auto const& [form, name] : {std::pair{fusion::Form::row, "row"}, {fusion::Form::online, "online"}, {fusion::Form::split, "split"}})
      if (auto const choices = choices_of(graph, form, name); form == fusion::Form::row || !choices.empty())
        ways.push_back({name, fusion::lower(graph, {.choices = choices})});
    for (int round = 0; round < 9; ++round)
      for (auto& way : ways) {
        auto const start = thread_time();
        (void)way.run(in, {});
        way.least = std::min(way.least, (thread_time() - start) / 1e6);
      }
    for (auto const& way : ways)
      list.push_back({std::format("{} {} x {}, {}", of.name, of.rows, of.columns, way.name), way.least, "ms", &way == &ways[0] ? 0 : ways[0].least});
  }
  device::set_threads(threads);
  return list;
}
