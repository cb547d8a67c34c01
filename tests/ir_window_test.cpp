// Windows against direct loops in f64, what they refuse, and what a convolution costs.
#include <doctest/doctest.h>
import std;
import tenon.base;
import tenon.ir;
#include "op_samples.hpp"
using namespace tenon;
using base::DType;
using support::Array;
using support::Call;

namespace {

int drawn(std::mt19937& random, int low, int high) { return std::uniform_int_distribution(low, high)(random); }
/// Small whole numbers, so that sums are exact.
Array numbers(base::Shape const& sizes, std::mt19937& random, DType dtype = DType::f64) {
  std::vector<double> values(static_cast<std::size_t>(base::numel(sizes)));
  for (auto& value : values) value = drawn(random, -9, 9);
  return support::array(dtype, sizes, values);
}
/// Offset of the element at `index` in row-major order.
std::int64_t flat(base::Shape const& sizes, base::Shape const& index) {
  std::int64_t at = 0;
  for (std::size_t d = 0; d < sizes.size(); ++d) at = at * sizes[d] + index[d];
  return at;
}
void each_index(base::Shape const& sizes, std::function<void(base::Shape const&)> const& visit) {
  if (base::numel(sizes) == 0) return;
  base::Shape index(sizes.size(), 0);
  for (bool more = true; more;) {
    visit(index);
    more = false;
    for (std::size_t d = sizes.size(); d-- > 0 && !more;) more = ++index[d] < sizes[d] || (index[d] = 0, false);
  }
}
ir::Dims dims_of(base::Shape const& list) { return ir::Dims(std::vector<ir::Dim>(list.begin(), list.end())); }

struct Geometry {
  base::Shape stride, low, high, dilation, input_dilation;
  std::int64_t groups;
};
/// The definition: every tap of the kernel meets the dilated, padded input.
std::vector<double> convolved(Array const& x, Array const& w, Geometry const& g, base::Shape const& result) {
  std::vector<double> y(static_cast<std::size_t>(base::numel(result)), 0.0);
  auto const &in = x.at.sizes, &kernel = w.at.sizes;
  std::size_t const dims = in.size() - 2;
  base::Shape const taps(kernel.begin() + 1, kernel.end());
  each_index(result, [&](base::Shape const& to) {
    double total = 0;
    each_index(taps, [&](base::Shape const& tap) {
      base::Shape from{to[0], to[1] / (result[1] / g.groups) * kernel[1] + tap[0]}, weight{to[1]};
      weight.insert(weight.end(), tap.begin(), tap.end());
      for (std::size_t d = 0; d < dims; ++d) {
        auto const at = to[d + 2] * g.stride[d] + tap[d + 1] * g.dilation[d] - g.low[d];
        if (at < 0 || at % g.input_dilation[d] != 0 || at / g.input_dilation[d] >= in[d + 2]) return;
        from.push_back(at / g.input_dilation[d]);
      }
      total += x.at.real(flat(in, from)) * w.at.real(flat(kernel, weight));
    });
    y[static_cast<std::size_t>(flat(result, to))] = total;
  });
  return y;
}
std::string refusal(std::string_view line) {
  std::mt19937 random(1);
  return support::caught([&] { support::graph_of(support::sample(line, random)); });
}
}  // namespace

TEST_CASE("convolution is its definition, whatever the geometry") {
  std::mt19937 random(11);
  int checked = 0, cropped = 0, dilated = 0;
  for (int turn = 0, turns = support::tier(60, 300, 3000); turn < turns; ++turn) {
    auto const dims = static_cast<std::size_t>(drawn(random, 0, 3));
    Geometry g{{}, {}, {}, {}, {}, drawn(random, 1, 3)};
    auto const channels = drawn(random, 1, 2), results = drawn(random, 1, 2);
    base::Shape in{drawn(random, 0, 2), g.groups * channels}, kernel{g.groups * results, channels}, out{in[0], kernel[0]};
    bool fits = true;
    for (std::size_t d = 0; d < dims; ++d) {
      in.push_back(drawn(random, 1, 6)), kernel.push_back(drawn(random, 1, 3));
      g.stride.push_back(drawn(random, 1, 3)), g.low.push_back(drawn(random, -2, 3)), g.high.push_back(drawn(random, -2, 3));
      g.dilation.push_back(drawn(random, 1, 3)), g.input_dilation.push_back(drawn(random, 1, 3));
      auto const room = (in[d + 2] - 1) * g.input_dilation[d] + g.low[d] + g.high[d] - (kernel[d + 2] - 1) * g.dilation[d];
      fits = fits && room >= 0;
      out.push_back(fits ? room / g.stride[d] + 1 : 0);
    }
    auto const attrs = ir::Attrs{}
                           .with(dims_of(g.stride))
                           .with(dims_of(g.low))
                           .with(dims_of(g.high))
                           .with(dims_of(g.dilation))
                           .with(dims_of(g.input_dilation))
                           .with(ir::Dim(g.groups));
    auto const x = numbers(in, random), w = numbers(kernel, random);
    Call const call{&ir::ops::convolution, {{x, {}}, {w, {}}}, attrs, "convolution"};
    if (!fits) {
      CHECK(support::says(support::caught([&] { support::graph_of(call); }), "does not fit an input of size"));
      continue;
    }
    auto const done = support::run(support::graph_of(call), support::inputs_of(call));
    CHECK(done.outputs[0].sizes == out);
    CHECK(support::reals(done.outputs[0]) == convolved(x, w, g, out));
    ++checked;
    cropped += std::ranges::any_of(g.low, [](auto n) { return n < 0; }), dilated += std::ranges::any_of(g.input_dilation, [](auto n) { return n > 1; });
  }
  CHECK(std::min({checked, cropped, dilated}) > 5);
}

TEST_CASE("a convolution larger than one block of its evaluator") {
  std::mt19937 random(12);
  auto const x = numbers({3, 40, 30, 31}, random), w = numbers({5, 40, 5, 4}, random);
  Geometry const g{{1, 2}, {2, 1}, {2, 0}, {1, 2}, {1, 1}, 1};
  auto const attrs = ir::Attrs{}.with(dims_of(g.stride)).with(dims_of(g.low)).with(dims_of(g.high)).with(dims_of(g.dilation)).with(dims_of(g.input_dilation));
  Call const call{&ir::ops::convolution, {{x, {}}, {w, {}}}, ir::Attrs(attrs).with(ir::Dim(1)), "convolution"};
  auto const done = support::run(support::graph_of(call), support::inputs_of(call));
  CHECK(done.outputs[0].sizes == base::Shape{3, 5, 30, 13});
  CHECK(support::reals(done.outputs[0]) == convolved(x, w, g, {3, 5, 30, 13}));
}

TEST_CASE("whole numbers convolve and compare beyond what a double holds") {
  std::int64_t const big = (std::int64_t{1} << 53) + 1;
  auto const x = support::array(DType::i64, {1, 1, 3}), w = support::array(DType::i64, {1, 1, 2});
  for (std::int64_t i = 0; i < 3; ++i) x.at.set_whole(i, big + i);
  w.at.set_whole(0, 1), w.at.set_whole(1, -1);
  Call const call{&ir::ops::convolution, {{x, {}}, {w, {}}}, ir::default_attrs(ir::ops::convolution), "convolution"};
  auto const done = support::run(support::graph_of(call), support::inputs_of(call));
  CHECK(done.outputs[0].whole(0) == -1);
  CHECK(done.outputs[0].whole(1) == -1);
  auto const* pool = ir::find_op("max_pool");
  auto attrs = ir::Attrs{}.with(dims_of({2})).with(dims_of({1})).with(dims_of({0})).with(dims_of({1})).with(ir::Dim(false));
  Call const most{pool, {{x, {}}}, attrs, "max_pool"};
  auto const largest = support::run(support::graph_of(most), support::inputs_of(most));
  CHECK(largest.outputs[0].whole(1) == big + 2);
  CHECK(largest.outputs[1].whole(1) == 2);
}

TEST_CASE("max_pool: the first of equal elements, the last NaN before all, infinity is a value") {
  double const nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  auto const x = support::array(DType::f64, {1, 2, 6}, std::array{1.0, 1.0, nan, nan, -inf, -inf, 0.0, 1.0, 7.0, 5.0, -inf, -inf});
  auto const attrs = ir::Attrs{}.with(dims_of({2, 2})).with(dims_of({2, 2})).with(dims_of({0, 0})).with(dims_of({1, 1})).with(ir::Dim(false));
  Call const call{ir::find_op("max_pool"), {{x, {}}}, attrs, "max_pool"};
  auto const done = support::run(support::graph_of(call), support::inputs_of(call));
  CHECK(support::reals(done.outputs[1]) == std::vector<double>{0, 3, 4});
  CHECK(done.outputs[0].real(0) == 1);
  CHECK(std::isnan(done.outputs[0].real(1)));
  CHECK(done.outputs[0].real(2) == -inf);
}

TEST_CASE("what windows refuse, in one line") {
  for (auto const& [line, words] : {
           std::pair{"conv1d(f64[1, 1, 4], f64[1, 1, 6], none)", "a kernel of size 6 with dilation 1 does not fit an input of size 4 with padding 0 and 0"},
           {"conv2d(f64[2, 3, 5, 4], f64[4, 2, 3, 2], none)", "conv2d: input has 3 channels, weight takes 2"},
           {"conv2d(f64[2, 3, 5, 4], f64[4, 3, 3, 2], f64[3])", "conv2d: the bias must be f64[4], not f64[3]"},
           {"conv2d(f64[2, 3, 5, 4], f32[4, 3, 3, 2], none)", "conv2d: dtypes differ: f64 and f32"},
           {"conv2d(f64[2, 4, 5, 4], f64[3, 2, 3, 2], none, groups=2)", "conv2d: 3 channels do not divide into 2 groups"},
           {"conv1d(f64[1, 1, 4], f64[1, 1, 2], none, stride=[2], pad=same)", "conv1d: padding \"same\" needs stride 1, not 2"},
           {"conv1d(f64[1, 1, 4], f64[1, 1, 2], none, padding=[4611686018427387904])", "overflows"},
           {"conv3d(f64[1, 1, 4, 4], f64[1, 1, 2, 2], none)",
            "conv3d: the input needs rank 5 (or 4 without a batch), the weight rank 5: f64[1, 1, 4, 4] and f64[1, 1, 2, 2]"},
           {"conv_transpose1d(f64[1, 1, 4], f64[1, 1, 2], none, stride=[2], output_padding=[2])",
            "conv_transpose1d: output_padding 2 must be less than stride 2 or dilation 1"},
           {"convolution(f64[1, 1, 4], f64[1, 1, 2], low=[1, 2])", "convolution: low takes one number or 1, not 2"},
           {"max_pool2d(f64[1, 2, 4], kernel_size=[2], padding=[2])", "max_pool2d: padding 2 is not between 0 and half of kernel size 2"},
           {"max_pool2d(f64[1, 2, 4], kernel_size=[])", "max_pool2d: kernel_size takes one number or 2, not 0"},
           {"max_pool1d(f64[4], kernel_size=[2])", "max_pool1d: needs rank 2 or 3, not f64[4]"},
           {"avg_pool1d(f64[2, 0, 4], kernel_size=[2])", "avg_pool1d: dim 1 of f64[2, 0, 4] has no elements"},
           {"avg_pool1d(f64[2, 3], kernel_size=[1099511627776], padding=[549755813888])", "avg_pool1d: windows of 1099511627776 elements: at most 16777216"},
           {"avg_pool1d(i64[2, 3], kernel_size=[2])", "avg_pool1d: an average needs floating elements, not i64[2, 3]"},
           {"adaptive_avg_pool2d(f64[2, 3, 4], output_size=[1, 2, 3])", "adaptive_avg_pool2d: output_size takes one number or 2, not 3"},
           {"interpolate(f64[1, 1, 4])", "interpolate: needs either size or scale_factor"},
           {"interpolate(f64[1, 1, 4], size=[2], scale_factor=[2.0])", "interpolate: needs either size or scale_factor"},
           {"interpolate(f64[1, 1, 4], size=[2], mode=bilinear)", "interpolate: this mode resizes 2 to 2 dims, not 1 (f64[1, 1, 4])"},
           {"interpolate(f64[1, 1, 4], scale_factor=[0.1])", "interpolate: sizes must be at least 1: from 4 to 0"},
           {"grid_sample(f64[1, 1, 2, 2], f64[2, 1, 1, 2])", "grid_sample: grid f64[2, 1, 1, 2] does not fit input f64[1, 1, 2, 2]"},
           {"affine_grid(f64[1, 2, 3], size=[2, 1, 3, 3])", "affine_grid: theta must be [2, 2, 3], not f64[1, 2, 3]"},
           {"pad(f64[2, 3], pad=[3, 0], mode=reflect)", "pad: 3 and 0 are too much for size 3"},
           {"bilinear(f64[2, 3], f64[2, 4], f64[5, 4, 3], none)", "bilinear: inputs f64[2, 3] and f64[2, 4] do not fit the weight f64[5, 4, 3]"},
           {"embedding_bag(f64[5, 3], i64[4], none, none)", "embedding_bag: offsets go with indices of rank 1, which i64[4] lacks"},
           {"embedding_bag(f64[5, 3], i64[2, 2], none, none, max_norm=1.0)", "embedding_bag: max_norm writes into the weight, which no pure function does"},
           {"embedding_bag(f64[5, 3], i64[2, 2], none, f64[2, 2])", "embedding_bag: per_sample_weights need mode sum"},
           {"embedding_bag(f64[5, 3], i64[2, 2], none, none, padding_idx=5)", "embedding_bag: padding_idx 5 is out of range for 5 rows"},
       }) {
    auto const text = refusal(line);
    CHECK_MESSAGE(support::says(text, words), line << ": " << text);
    CHECK_MESSAGE(text.find('\n') == std::string::npos, line);
  }
}

TEST_CASE("a window where no element lies is an Error, and a huge one takes no time") {
  std::mt19937 random(1);
  auto const empty = support::sample("max_pool1d(f64[2, 2], kernel_size=[2], stride=[1], padding=[1], dilation=[3])", random);
  CHECK(support::caught([&] { support::run(support::graph_of(empty), support::inputs_of(empty)); }) ==
        "max_pool: window 0 along dim 1 has no element inside size 2");
  auto const huge = support::sample("max_pool1d(f64[2, 3], kernel_size=[1099511627776], stride=[1], padding=[549755813888])", random);
  auto const done = support::run(support::graph_of(huge), support::inputs_of(huge));
  CHECK(done.outputs[0].sizes == base::Shape{2, 4});
}

TEST_CASE("a convolution costs a multiplication and an addition a tap, its gradient's rows likewise") {
  std::mt19937 random(1);
  for (auto const& [line, flops] : {std::pair{"conv2d(f64[2, 3, 8, 9], f64[4, 3, 3, 2], none)", 2.0 * 2 * 4 * 6 * 8 * 3 * 3 * 2},
                                    {"convolution(f64[2, 4, 8], f64[6, 2, 3], groups=2)", 2.0 * 2 * 6 * 6 * 2 * 3}}) {
    auto const graph = support::graph_of(support::sample(line, random));
    auto const& node = graph.nodes[0];
    std::vector<ir::Meta const*> in;
    for (auto const& input : node.inputs) in.push_back(input.value < 0 ? nullptr : graph.values[static_cast<std::size_t>(input.value)].meta.get());
    auto const out = *graph.values[static_cast<std::size_t>(node.first)].meta;
    CHECK_MESSAGE(ir::cost(*node.op, in, std::array{out}, node.attrs).flops == flops, line);
  }
}
