// Library calls beside the reference evaluator on random operands.
#include <doctest/doctest.h>
import std;
import tenon.base;
import tenon.device;
import tenon.ir;
import tenon.fusion;
#include "ir_support.hpp"

using namespace tenon;
using base::DType;
using ir::Attrs;
using ir::Dim;
using ir::Strided;
namespace ops = ir::ops;

namespace {

struct Random {
  std::mt19937 bits;
  std::int64_t whole(std::int64_t low, std::int64_t high) { return std::uniform_int_distribution<std::int64_t>(low, high)(bits); }
  bool coin() { return whole(0, 1) == 1; }
  DType real() { return std::array{DType::f32, DType::f64, DType::bf16}[static_cast<std::size_t>(whole(0, 2))]; }
};
// Real elements in [-1, 1] laid out anyhow; whole ones in [0, below).
support::Array some(Random& random, DType dtype, base::Shape const& sizes, std::int64_t below = 10) {
  std::vector<double> values(static_cast<std::size_t>(base::numel(sizes)));
  for (double& value : values)
    value = base::is_real(dtype) ? std::uniform_real_distribution<double>(-1, 1)(random.bits) : static_cast<double>(random.whole(0, below - 1));
  auto const x = support::array(dtype, sizes, values);
  return random.coin() ? support::restrided(x.at, random.bits) : x;
}

// What the call gives by its fast function and by the evaluator, in f64 where the operands can be f64, as the largest difference over the size of the
// results; `terms`: what are summed.
void compare(ir::OpDef const& op, std::vector<support::Array> const& operands, Attrs const& attrs, double terms) {
  std::vector<Strided> in, wide;
  std::vector<support::Array> widened;
  std::vector<ir::Meta> metas;
  for (auto const& x : operands) {
    in.push_back(x.at), metas.push_back(support::meta_of(x.at));
    widened.push_back(base::is_real(x.at.dtype) ? support::converted(x.at, DType::f64) : x);
    wide.push_back(widened.back().at);
  }
  std::vector<ir::Meta const*> known;
  for (auto const& meta : metas) known.push_back(&meta);
  std::vector<ir::Scalar> const scalars(in.size());
  std::vector<support::Array> got, want;
  std::vector<Strided> fast, slow;
  for (auto const& meta : ir::infer(op, known, scalars, attrs)) {
    base::Shape sizes;
    for (auto const& size : meta.sizes) sizes.push_back(size.value);
    got.push_back(support::array(meta.dtype, sizes, std::vector<double>(static_cast<std::size_t>(base::numel(sizes)), 7)));  // memory is never fresh
    want.push_back(support::array(base::is_real(meta.dtype) ? DType::f64 : meta.dtype, sizes));
    fast.push_back(got.back().at), slow.push_back(want.back().at);
  }
  REQUIRE(fusion::has_library_call(op));
  fusion::library_call(op, in, scalars, attrs, fast);
  ir::evaluate(op, wide, scalars, attrs, slow);
  for (std::size_t k = 0; k < got.size(); ++k) {
    auto const x = support::reals(got[k].at), y = support::reals(want[k].at);
    double const eps = got[k].at.dtype == DType::f64 ? 0x1p-52 : got[k].at.dtype == DType::f32 ? 0x1p-23 : 0x1p-8 + terms * 0x1p-23;
    double const bound = base::is_real(got[k].at.dtype) ? eps * (got[k].at.dtype == DType::bf16 ? 1 : std::sqrt(terms) + 4) * support::scale_of(y) : 0;
    if (!(support::distance(x, y) <= bound))
      FAIL(std::format("{} {}: off by {}, not within {}", op.name, ir::to_string(metas[0]), support::distance(x, y), bound));
  }
}

}  // namespace

TEST_CASE("products of tensors of any rank are the evaluator's") {
  Random random{std::mt19937(1)};
  for (int turn = 0; turn < 150; ++turn) {
    auto const dtype = random.whole(0, 4) == 0 ? DType::i32 : random.real();
    auto const m = random.whole(0, 20), n = random.whole(1, 20), k = random.whole(0, 20);
    base::Shape a{m, k}, b{k, n};
    if (random.whole(0, 5) == 0) a.erase(a.begin());
    if (random.whole(0, 5) == 0) b.pop_back();
    for (auto dims = random.whole(0, 2); dims-- > 0;) {
      auto const size = random.whole(1, 3);
      if (a.size() > 1) a.insert(a.begin(), random.whole(0, 3) == 0 ? 1 : size);
      if (b.size() > 1 && random.coin()) b.insert(b.begin(), random.whole(0, 3) == 0 ? 1 : size);
      if (a.size() > 2 && b.size() > 2 && a[0] != b[0] && a[0] != 1 && b[0] != 1) b[0] = a[0];
    }
    if (a.size() > 2 && b.size() > 2)  // what lies below broadcasts too
      for (std::size_t d = 3; d <= std::min(a.size(), b.size()); ++d)
        if (auto &x = a[a.size() - d], &y = b[b.size() - d]; x != y && x != 1 && y != 1) y = x;
    CAPTURE(turn);
    compare(ops::matmul, {some(random, dtype, a), some(random, dtype, b)}, {}, static_cast<double>(k + 1));
  }
}

TEST_CASE("convolutions of any attributes are the evaluator's, and so are the calls of their gradients") {
  Random random{std::mt19937(2)};
  for (int turn = 0; turn < 250; ++turn) {
    auto const dims = random.whole(0, 9) == 0 ? 0 : random.whole(1, 3);
    auto const groups = random.coin() ? 1 : random.whole(1, 3), channels = random.whole(1, 5), results = groups * random.whole(1, 20);
    base::Shape x{random.whole(1, 3), groups * channels}, w{results, channels};
    std::array<std::vector<Dim>, 5> lists;  // stride, low, high, dilation, input dilation
    for (std::int64_t d = 0; d < dims; ++d) {
      auto const kernel = random.whole(1, 4), dilation = random.whole(1, 2), spread = random.coin() ? 1 : random.whole(1, 3);
      auto const low = random.whole(-1, 3), high = random.whole(-1, 3), reach = (kernel - 1) * dilation + 1;
      auto size = random.whole(1, dims == 1 ? 90 : dims == 2 ? 14 : 6);
      while ((size - 1) * spread + 1 + low + high < reach) ++size;
      x.push_back(size), w.push_back(kernel);
      std::array const values{random.whole(1, 3), low, high, dilation, spread};
      for (std::size_t k = 0; k < lists.size(); ++k) lists[k].push_back(values[k]);
    }
    Attrs attrs;
    for (auto const& list : lists) attrs.with(list);
    attrs.with(Dim(groups));
    double terms = static_cast<double>(channels);
    for (std::size_t d = 2; d < w.size(); ++d) terms *= static_cast<double>(w[d]);
    auto const dtype = random.real();
    CAPTURE(turn);
    compare(ops::convolution, {some(random, dtype, x), some(random, dtype, w)}, attrs, terms);
  }
  struct Large {
    base::Shape x, w;
    std::int64_t groups;
  };
  // The input as patches; more terms than a block of them, few places; so many taps that patches are filled along them, as for the weight's gradient.
  for (auto const& [x, w, groups] :
       {Large{{2, 6, 9, 11}, {4, 3, 1, 1}, 2}, Large{{3, 600, 3, 3}, {4, 600, 2, 2}, 1}, Large{{4, 5, 30, 30}, {6, 5, 28, 28}, 1}}) {
    Attrs attrs;
    for (int k = 0; k < 5; ++k) attrs.with(std::vector<Dim>{});
    attrs.with(Dim(groups));
    compare(ops::convolution, {some(random, DType::f32, x), some(random, DType::f32, w)}, attrs, 4000);
  }
}

TEST_CASE("sums and copies by index are the evaluator's") {
  Random random{std::mt19937(3)};
  int const threads = device::threads();
  for (int turn = 0; turn < 60; ++turn) {
    device::set_threads(turn % 2 ? threads : 3);
    auto const dtype = random.real(), whole = random.coin() ? DType::i64 : DType::i32;
    auto const rows = random.whole(1, 300), columns = random.whole(1, 400), count = random.whole(0, 60);
    base::Shape const places = random.coin() ? base::Shape{count} : base::Shape{count, 2};
    auto wide = places;
    wide.push_back(columns);
    CAPTURE(turn);
    double const terms = 100;
    compare(ops::embedding, {some(random, dtype, {rows, columns}), some(random, whole, places, rows)}, Attrs{}, terms);
    compare(ops::embedding_grad, {some(random, dtype, wide), some(random, whole, places, rows)}, Attrs{}.with(Dim(rows)), terms);

    base::Shape sizes;
    for (auto rank = random.whole(1, 3); rank-- > 0;) sizes.push_back(random.whole(1, 30));
    auto const axis = random.whole(0, std::ssize(sizes) - 1);
    auto const named = random.coin() ? axis : axis - std::ssize(sizes);
    auto source = sizes;
    source[static_cast<std::size_t>(axis)] = count;
    Attrs const add = Attrs{}.with(Dim(named)).with_num(random.coin() ? 1.0 : -0.5);
    compare(ops::index_add, {some(random, dtype, sizes), some(random, whole, {count}, sizes[static_cast<std::size_t>(axis)]), some(random, dtype, source)}, add,
            terms);
    auto index = sizes;
    for (auto& size : index) size = random.whole(1, size);
    index[static_cast<std::size_t>(axis)] = random.whole(1, 40);
    auto larger = index;
    for (auto& size : larger) size += random.whole(0, 2);
    compare(ops::scatter_add, {some(random, dtype, sizes), some(random, whole, index, sizes[static_cast<std::size_t>(axis)]), some(random, dtype, larger)},
            Attrs{}.with(Dim(named)), terms);
    auto long_sizes = sizes;
    long_sizes[static_cast<std::size_t>(axis)] = random.whole(1, 2000);
    compare(ops::cumsum, {some(random, random.whole(0, 4) == 0 ? DType::i32 : dtype, long_sizes)}, Attrs{}.with(Dim(named)).with(Dim(ir::absent)), terms);
  }
  device::set_threads(threads);
  auto const weight = support::array(DType::f32, {3, 2}), index = support::array(DType::i64, {2}, std::vector<double>{0, 3}),
             y = support::array(DType::f32, {2, 2});
  std::array const in{weight.at, index.at};
  std::array<ir::Scalar, 2> const scalars{};
  std::array out{y.at};
  CHECK(support::caught([&] { fusion::library_call(ops::embedding, in, scalars, {}, out); }) == "embedding: index 3 is out of range for size 3");
}

TEST_CASE("attention of tensors is the decomposed op's") {
  Random random{std::mt19937(4)};
  for (int turn = 0; turn < 60; ++turn) {
    base::Shape lead;
    for (auto dims = random.whole(0, 3); dims-- > 0;) lead.push_back(random.whole(1, 3));
    auto const with = [&](std::int64_t rows, std::int64_t columns) {
      auto sizes = lead;
      sizes.push_back(rows), sizes.push_back(columns);
      return sizes;
    };
    auto const Q = random.whole(1, 40), K = random.whole(1, 40), D = random.whole(1, 20), E = random.whole(1, 20);
    bool const causal = random.coin();
    auto const q = some(random, DType::f32, with(Q, D)), k = some(random, DType::f32, with(K, D)), v = some(random, DType::f32, with(K, E)),
               g = some(random, DType::f32, with(Q, E));
    ir::Scalar const scale = random.coin() ? ir::Scalar{} : ir::Scalar(0.7);
    auto const check = [&](ir::OpDef const& op, std::vector<support::Array> const& operands, Attrs const& attrs, std::vector<base::Shape> const& results) {
      support::Call call{.op = &op, .attrs = attrs};
      std::vector<Strided> in;
      for (auto const& x : operands) call.operands.push_back({.tensor = x}), in.push_back(x.at);
      if (&op == &ops::scaled_dot_product_attention) call.operands.push_back({});  // no mask
      auto const want = support::run(support::graph_of(call), in);
      std::vector<support::Array> got;
      std::vector<Strided> out;
      for (auto const& sizes : results) got.push_back(support::array(DType::f32, sizes)), out.push_back(got.back().at);
      std::vector<ir::Scalar> const scalars(call.operands.size());
      in.resize(call.operands.size());
      fusion::library_call(op, in, scalars, attrs, out);
      for (std::size_t r = 0; r < got.size(); ++r)
        REQUIRE(support::distance(support::reals(got[r].at), support::reals(want.outputs[r])) <= 2e-6 * support::scale_of(support::reals(want.outputs[r])));
    };
    CAPTURE(turn);
    check(ops::scaled_dot_product_attention, {q, k, v}, Attrs{}.with(Dim(causal)).with(Dim(false)).with_num(0.0).with_num(scale), {with(Q, E)});
    check(ops::scaled_dot_product_attention_grad, {g, q, k, v}, Attrs{}.with(Dim(causal)).with_num(scale), {with(Q, D), with(K, D), with(K, E)});
  }
}
