// What capture costs beside the work itself: a backend that computes nothing stands in for the graph.
import std;
import tenon.base;
import tenon.ir;
import tenon.guards;
import tenon.tracer;
#include "bench.hpp"
using namespace tenon;
using namespace tenon::tracer;

namespace {
using bench::Figure;
using bench::nanoseconds;

// Results of the right sizes, never written.
Runner idle(ir::Graph const& graph) {
  std::vector<ir::MetaRef> metas;
  for (int output : graph.outputs) metas.push_back(graph.values[static_cast<std::size_t>(output)].meta);
  return [metas](std::span<ir::Strided const>, ir::Bindings const&) {
    ir::Evaluated done;
    for (auto const& meta : metas) {
      auto const sizes = ir::values(meta->sizes);
      done.storage.push_back(base::make_ref<base::Buffer>(base::numel(sizes) * base::bytes_of(meta->dtype)));
      done.outputs.push_back({done.storage.back()->data(), meta->dtype, sizes, base::contiguous_strides(sizes)});
    }
    return done;
  };
}

// What an idle backend costs by itself, to be taken from a whole call.
Runner last_runner;
Runner remembered(ir::Graph const& graph) { return last_runner = idle(graph); }

template <class Step>
auto chain(int length, Step step) {
  return [length, step](Tensor const& x) {
    Tensor y = x;
    for (int k = 0; k < length; ++k) y = step(y);
    return y;
  };
}
// An op's price: a long chain less a short one.
template <class Step>
double per_op(Tensor const& x, Step step) {
  auto const longer = compile(chain(300, step), {.backend = idle}), shorter = compile(chain(100, step), {.backend = idle});
  auto const [a, b] = bench::interleaved(20, [&] { (void)longer(x); }, [&] { (void)shorter(x); });
  return (a - b) / 200;
}
// As above, of y * w and what backward adds for it: the gradient of a chain's end to its start.
double per_gradient(Tensor const& x, Tensor const& w) {
  auto const walk = [&w](int length) {
    return [&w, length](Tensor const& start) {
      Tensor y = start;
      for (int k = 0; k < length; ++k) y = y * w;
      return gradients(y, std::array{start}, ones({4}))[0];
    };
  };
  auto const longer = compile(walk(300), {.backend = idle}), shorter = compile(walk(100), {.backend = idle});
  auto const [a, b] = bench::interleaved(20, [&] { (void)longer(x); }, [&] { (void)shorter(x); });
  return (a - b) / 200;
}
template <class Step>
double per_recorded_op(Tensor const& x, Step step) {
  auto const once = [&](int length) { (void)compile(chain(length, step), {.backend = idle})(x); };
  auto const [a, b] = bench::interleaved(5, [&] { once(300); }, [&] { once(100); });
  return (a - b) / 200;
}
}  // namespace

std::vector<Figure> bench::capture_figures() {
  auto const add = [](Tensor const& x) { return x + 1.0; };
  auto const both = [](Tensor const& x) { return x + x; };
  auto const view = [](Tensor const& x) { return transpose(x, 0, 1); };
  auto const square = ones({2, 2});
  auto const plain = ones({4});
  auto leaf = ones({4});
  leaf.set_requires_grad();
  std::vector<Figure> list;
  list.push_back({"replay x + 1", per_op(plain, add), "ns", 0, 50});
  list.push_back({"replay x + x", per_op(plain, both), "ns", 0, 50});
  list.push_back({"replay transpose", per_op(square, view), "ns", 0, 0});
  list.push_back({"replay x + 1 with tape", per_op(leaf, add), "ns", 0, 120});
  auto weight = ones({4});
  weight.set_requires_grad();
  list.push_back({"replay y * w forward and backward", per_gradient(leaf, weight), "ns", 0, 0});
  list.push_back({"record x + 1", per_recorded_op(plain, add), "ns", 0, 1000});
  list.push_back({"record x + 1 with tape", per_recorded_op(leaf, add), "ns", 0, 0});
  auto const one = compile(add, {.backend = remembered});
  (void)one(plain);
  auto const memory = plain.host();
  auto const [call, backend] = bench::interleaved(2000, [&] { (void)one(plain); }, [&] { (void)last_runner({&memory, 1}, {}); });
  list.push_back({"one op hit over its backend", call - backend, "ns", 0, 300});
  list.push_back({"the idle backend by itself", backend, "ns", 0, 0});

  auto const first = [](std::vector<Tensor> const& all) { return all[0] + 1.0; };
  std::vector<Tensor> many, others;
  for (int k = 0; k < 150; ++k) many.push_back(ones({4, 4})), others.push_back(ones({4, 4}));
  auto const wide = compile(first, {.backend = idle});
  std::vector<Tensor> single{many[0]};
  auto const narrow = compile(first, {.backend = idle});
  auto const [all, alone] = bench::interleaved(200, [&] { (void)wide(many); }, [&] { (void)narrow(single); });
  list.push_back({"guards of 150 unchanged tensors", all - alone, "ns", 0, 200});
  bool turn = false;
  auto const swapped = nanoseconds(200, [&] { (void)wide((turn = !turn) ? many : others); });
  list.push_back({"guards of 150 other tensors", swapped - alone, "ns", 0, 1000});
  auto const all_used = [](std::vector<Tensor> const& list) {
    Tensor sum = list[0];
    for (std::size_t k = 1; k < list.size(); ++k) sum = sum + list[k];
    return sum;
  };
  auto const deep = compile(all_used, {.backend = idle});
  list.push_back({"hit with 150 tensors, 149 ops", nanoseconds(100, [&] { (void)deep(many); }), "ns", 0, 0});
  return list;
}
