#include <doctest/doctest.h>

import std;
import tenon.base;
import tenon.ir;
import tenon.guards;
import tenon.tracer;
import tenon.nn;
#include "caught.hpp"

using namespace tenon;
using namespace tenon::tracer;
using support::caught;

// B batch, T tokens, C features or channels, H W image.
namespace {
using Numbers = std::vector<double>;
Numbers numbers(Tensor const& x) { return x.to_vector<double>(); }
double largest_difference(Numbers const& a, Numbers const& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double worst = 0;
  for (std::size_t k = 0; k < a.size(); ++k) worst = std::max(worst, std::abs(a[k] - b[k]));
  return worst;
}
struct Spread {
  double mean = 0, deviation = 0, least = 0, most = 0;
};
Spread spread(Tensor const& x) {
  auto const all = numbers(x);
  Spread s{.least = std::ranges::min(all), .most = std::ranges::max(all)};
  for (double v : all) s.mean += v / static_cast<double>(all.size());
  for (double v : all) s.deviation += (v - s.mean) * (v - s.mean) / static_cast<double>(all.size());
  s.deviation = std::sqrt(s.deviation);
  return s;
}
// The model with every parameter in f64, drawn at a scale that makes each of them matter.
template <class Model>
Model in_f64(Model model) {
  NoGrad const off;
  auto visit = [](auto const&, auto& leaf) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(leaf)>, Tensor>)
      if (leaf.defined()) leaf = (randn(leaf.shape(), DType::f64) * 0.3).set_requires_grad();
  };
  each_leaf(model, {}, visit);
  return model;
}
// The largest difference between gradients and central differences, over `tries` elements of every parameter and of x where it is real.
template <class Model>
double gradient_error(Model& model, Tensor x, int tries = 6) {
  if (base::is_real(x.dtype())) x.set_requires_grad();
  auto list = nn::parameters(model);
  if (base::is_real(x.dtype())) list.push_back(x);
  manual_seed(5);
  Tensor const shape = model(x), weights = randn(shape.shape(), DType::f64);
  auto const loss = [&] { return sum(model(x) * weights); };
  loss().backward();
  double worst = 0;
  for (auto& parameter : list) {
    REQUIRE(parameter.grad().defined());
    auto const gradient = numbers(parameter.grad());
    NoGrad const off;
    Tensor const kept = clone(parameter);
    for (int k = 0; k < tries; ++k) {
      auto const place = static_cast<std::size_t>(k * 7919) % gradient.size();
      auto const at = [&](double step) {
        auto moved = numbers(kept);
        moved[place] += step;
        parameter.copy_(tensor(moved, DimList(kept.shape()), DType::f64));
        return static_cast<double>(loss().item());
      };
      double const expected = (at(1e-5) - at(-1e-5)) / 2e-5;
      worst = std::max(worst, std::abs(gradient[place] - expected) / std::max(1.0, std::abs(expected)));
    }
    parameter.copy_(kept);
  }
  return worst;
}
}  // namespace

TEST_CASE("Linear: default weights and the product") {
  manual_seed(1);
  nn::Linear const layer(25, 400);
  CHECK(layer.weight.shape() == base::Shape{400, 25});
  CHECK(layer.bias.shape() == base::Shape{400});
  for (Tensor const& parameter : {layer.weight, layer.bias}) {  // uniform in ±1/√25
    auto const s = spread(parameter);
    CHECK(s.least >= -0.2);
    CHECK(s.most <= 0.2);
    CHECK(s.most - s.least > 0.39);
    CHECK(std::abs(s.mean) < 0.02);
    CHECK(std::abs(s.deviation - 0.4 / std::sqrt(12.0)) < 0.01);
    CHECK(parameter.requires_grad());
  }
  nn::Linear small(2, 3);
  NoGrad const off;
  small.weight.copy_(reshape(tensor({1, 2, 3, 4, 5, 6}), {3, 2}));
  small.bias.copy_(tensor({10, 20, 30}));
  CHECK(numbers(small(reshape(tensor({1, 0, 0, 1}), {2, 2}))) == Numbers{11, 23, 35, 12, 24, 36});
  CHECK(small(ones({5, 4, 2})).shape() == base::Shape{5, 4, 3});
  nn::Linear bare(2, 3, false);
  CHECK_FALSE(bare.bias.defined());
  CHECK(nn::parameters(bare).size() == 1);
  CHECK(numbers(nn::Linear(0, 2)(ones({1, 0}))) == Numbers{0, 0});  // nothing to sum, and a bias of bound 0
  CHECK(caught([&] { (void)small(ones({2, 5})); }).find("linear") != std::string::npos);
  CHECK(caught([] { nn::Linear(3, -1); }) == "linear: the output size must be at least 0, not -1");
}

TEST_CASE("Conv2d: against loops, for strides, paddings, dilations and groups") {
  manual_seed(2);
  std::int64_t const B = 2, C = 4, out = 6, H = 7, W = 6, kh = 3, kw = 2;
  struct Setting {
    std::int64_t stride, padding, dilation;
    int groups;
  };
  for (auto const [stride, padding, dilation, groups] : {Setting{1, 0, 1, 1}, {2, 1, 1, 2}, {1, 2, 2, 1}, {3, 1, 1, 2}}) {
    nn::Conv2d const layer(C, out, {kh, kw}, {.stride = stride, .padding = padding, .dilation = dilation, .groups = groups});
    std::int64_t const depth = C / groups;
    CHECK(layer.weight.shape() == base::Shape{out, depth, kh, kw});
    double const bound = 1 / std::sqrt(static_cast<double>(depth * kh * kw));
    for (Tensor const& parameter : {layer.weight, layer.bias}) {
      CHECK(spread(parameter).least >= -bound);
      CHECK(spread(parameter).most <= bound);
      CHECK(parameter.requires_grad());
    }
    CHECK(spread(layer.weight).most > 0.8 * bound);
    Tensor const image = randn({B, C, H, W});
    auto const x = numbers(image), w = numbers(layer.weight), b = numbers(layer.bias);
    std::int64_t const oh = (H + 2 * padding - dilation * (kh - 1) - 1) / stride + 1, ow = (W + 2 * padding - dilation * (kw - 1) - 1) / stride + 1;
    Numbers expected;
    for (std::int64_t n = 0; n < B; ++n)
      for (std::int64_t o = 0; o < out; ++o)
        for (std::int64_t i = 0; i < oh; ++i)
          for (std::int64_t j = 0; j < ow; ++j) {
            double total = b[static_cast<std::size_t>(o)];
            for (std::int64_t c = 0; c < depth; ++c)
              for (std::int64_t u = 0; u < kh; ++u)
                for (std::int64_t v = 0; v < kw; ++v) {
                  std::int64_t const y = i * stride - padding + u * dilation, z = j * stride - padding + v * dilation, from = o / (out / groups) * depth + c;
                  if (y < 0 || y >= H || z < 0 || z >= W) continue;
                  total += x[static_cast<std::size_t>(((n * C + from) * H + y) * W + z)] * w[static_cast<std::size_t>(((o * depth + c) * kh + u) * kw + v)];
                }
            expected.push_back(total);
          }
    Tensor const result = layer(image);
    CHECK(result.shape() == base::Shape{B, out, oh, ow});
    CHECK(largest_difference(numbers(result), expected) < 2e-5);
  }
  CHECK(nn::Conv2d(1, 2, 5).weight.shape() == base::Shape{2, 1, 5, 5});
  CHECK(caught([] { nn::Conv2d(3, 4, 1, {.groups = 2}); }) == "conv2d: 3 input and 4 output channels are not both divisible by 2 groups");
  CHECK(caught([] { nn::Conv2d(3, 4, {1, 2, 3}); }) == "conv2d: a kernel has one size or two, not 3");
  CHECK(caught([] { nn::Conv2d(3, 4, {1, 0}); }) == "conv2d: the kernel must be at least 1, not 0");
}

TEST_CASE("Embedding: rows by index, and gradients that count them") {
  manual_seed(3);
  nn::Embedding layer(50, 80);
  CHECK(std::abs(spread(layer.weight).mean) < 0.05);
  CHECK(std::abs(spread(layer.weight).deviation - 1) < 0.05);
  Tensor const indices = index_tensor(std::array<std::int64_t, 4>{7, 0, 7, 49}, {2, 2}), rows = layer(indices);
  CHECK(rows.shape() == base::Shape{2, 2, 80});
  CHECK(numbers(select(select(rows, 0, 1), 0, 1)) == numbers(select(layer.weight, 0, 49)));
  sum(rows).backward();
  auto const counts = numbers(sum(layer.weight.grad(), {1}));
  for (std::size_t k = 0; k < counts.size(); ++k) CHECK(counts[k] == (k == 7 ? 160 : k == 0 || k == 49 ? 80 : 0));
  CHECK(caught([&] { (void)layer(index_tensor(std::array<std::int64_t, 1>{50}, {1})); }).find("50") != std::string::npos);
}

TEST_CASE("LayerNorm: mean 0, variance 1, scaled and shifted") {
  nn::LayerNorm layer(4, 1e-3);
  CHECK(numbers(layer.weight) == Numbers{1, 1, 1, 1});
  CHECK(numbers(layer.bias) == Numbers{0, 0, 0, 0});
  double const scale = 1 / std::sqrt(1.25 + 1e-3);  // of 1, 2, 3, 4
  Tensor const x = tensor({1, 2, 3, 4});
  CHECK(largest_difference(numbers(layer(x)), {-1.5 * scale, -0.5 * scale, 0.5 * scale, 1.5 * scale}) < 1e-6);
  NoGrad const off;
  layer.weight.copy_(tensor({1, 2, 3, 4}));
  layer.bias.fill_(10);
  CHECK(largest_difference(numbers(layer(x)), {10 - 1.5 * scale, 10 - scale, 10 + 1.5 * scale, 10 + 6 * scale}) < 2e-6);
  CHECK(caught([&] { (void)layer(ones({2, 3})); }).find("layer_norm") != std::string::npos);
}

TEST_CASE("gradients of every layer agree with central differences in f64") {
  manual_seed(4);
  auto linear = in_f64(nn::Linear(3, 4));
  CHECK(gradient_error(linear, randn({2, 3}, DType::f64)) < 1e-7);
  auto conv = in_f64(nn::Conv2d(2, 4, {3, 2}, {.stride = 2, .padding = 1, .groups = 2}));
  CHECK(gradient_error(conv, randn({2, 2, 5, 5}, DType::f64)) < 1e-7);
  auto norm = in_f64(nn::LayerNorm(5));
  CHECK(gradient_error(norm, randn({3, 5}, DType::f64)) < 1e-7);
  auto embedding = in_f64(nn::Embedding(5, 3));
  CHECK(gradient_error(embedding, index_tensor(std::array<std::int64_t, 3>{4, 0, 4}, {3})) < 1e-7);
  nn::GptConfig const config{.vocabulary = 7, .context = 4, .layers = 2, .heads = 2, .features = 6};
  auto block = in_f64(nn::GptBlock(config));
  CHECK(gradient_error(block, randn({2, 3, 6}, DType::f64)) < 1e-6);
  auto gpt = in_f64(nn::Gpt(config));
  CHECK(gradient_error(gpt, index_tensor(std::array<std::int64_t, 6>{1, 2, 3, 6, 0, 2}, {2, 3})) < 1e-6);
}

TEST_CASE("Gpt: names, first weights, causality, errors") {
  manual_seed(6);
  nn::Gpt model({.vocabulary = 20, .context = 8, .layers = 1, .heads = 2, .features = 16});
  std::string names;
  for (auto const& [name, parameter] : nn::named_parameters(model)) {
    names += std::format("{} {}\n", name, ir::to_string(parameter.meta()));
    CHECK(parameter.requires_grad());
    auto const s = spread(parameter);
    bool const norm = name.find("norm") != std::string::npos;
    if (name.ends_with("bias")) CHECK((s.least == 0 && s.most == 0));
    if (name.ends_with("weight") && norm) CHECK((s.least == 1 && s.most == 1));
    if (name.ends_with("weight") && !norm) CHECK(std::abs(s.deviation - 0.02) < 0.004);
  }
  CHECK(names ==
        "tokens.weight f32[20, 16]\npositions.weight f32[8, 16]\nblocks[0].norm1.weight f32[16]\nblocks[0].norm1.bias f32[16]\n"
        "blocks[0].qkv.weight f32[48, 16]\nblocks[0].qkv.bias f32[48]\nblocks[0].projection.weight f32[16, 16]\nblocks[0].projection.bias f32[16]\n"
        "blocks[0].norm2.weight f32[16]\nblocks[0].norm2.bias f32[16]\nblocks[0].up.weight f32[64, 16]\nblocks[0].up.bias f32[64]\n"
        "blocks[0].down.weight f32[16, 64]\nblocks[0].down.bias f32[16]\nnorm.weight f32[16]\nnorm.bias f32[16]\n");
  std::vector<std::int64_t> text{3, 1, 4, 1, 5, 9};
  auto const logits = [&] { return model(index_tensor(text, {1, 6})); };
  Tensor const before = logits();
  CHECK(before.shape() == base::Shape{1, 6, 20});
  text[4] = 2;
  Tensor const after = logits();
  for (int t = 0; t < 6; ++t) CHECK((numbers(select(before, 1, t)) == numbers(select(after, 1, t))) == (t < 4));
  CHECK(caught([&] { (void)model(ones({3})); }) == "gpt: indices must be [batch, tokens], not f32[3]");
  CHECK(caught([&] { (void)model(zeros({1, 9}, DType::i64)); }) == "gpt: 9 tokens exceed the context of 8");
  CHECK(caught([] { nn::Gpt({.heads = 5, .features = 32}); }) == "gpt: 32 features are not divisible by 5 heads");
  CHECK(caught([] { nn::Gpt({.vocabulary = 0}); }) == "gpt: vocabulary must be at least 1, not 0");
}

TEST_CASE("a tensor that two paths name is one parameter") {
  std::vector<nn::Linear> layers{nn::Linear(2, 2), nn::Linear(2, 2)};
  layers[1].weight = layers[0].weight;
  std::string names;
  for (auto const& [name, parameter] : nn::named_parameters(layers)) names += name + " ";
  CHECK(names == "[0].weight [0].bias [1].bias ");
}

TEST_CASE("captured layers keep their sizes symbolic: one recompile for all batches and lengths") {
  manual_seed(7);
  nn::Gpt model({.vocabulary = 20, .context = 8, .layers = 2, .heads = 2, .features = 16});
  auto const fast = compile([&](Tensor const& indices) { return model(indices); }, {.fullgraph = true});
  for (auto const& [B, T] : {std::pair(3, 5), {3, 5}, {4, 7}, {2, 3}, {5, 8}, {6, 2}}) {
    Tensor const indices = randint(0, 20, {B, T});
    CHECK(numbers(fast(indices)) == numbers(model(indices)));
  }
  CHECK(describe(fast.state()).graphs == 2);
  nn::Conv2d const conv(2, 3, 3, {.padding = 1});
  nn::Linear const head(108, 4);
  auto const image = [&](Tensor const& x) { return head(flatten(relu(conv(x)), 1)); };
  auto const fast_image = compile(image, {.fullgraph = true});
  for (int B : {8, 8, 5, 3, 7}) {
    Tensor const x = randn({B, 2, 6, 6});
    CHECK(numbers(fast_image(x)) == numbers(image(x)));
  }
  CHECK(describe(fast_image.state()).graphs == 2);
}
