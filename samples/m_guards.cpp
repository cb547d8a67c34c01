// guards: what must hold before a captured graph may run again.
//
// Run it:  ninja -C build && ./build/samples/m_guards
//
// A graph was made for tensors that looked in a certain way. A guard is that look, written down; the module compares, says what differs, and
// keeps sizes open where a capture saw that they vary. It knows no tensor: a Meta (dtype, device, sizes, strides) is all that it asks for.
import std;
import tenon.base;
import tenon.ir;
import tenon.guards;
#include "lesson.h"
using namespace tenon::base;
using namespace tenon::guards;
using tenon::ir::Bindings;
using tenon::ir::contiguous_meta;
using tenon::ir::Dim;
using tenon::ir::Dims;
using tenon::ir::Meta;
using tenon::ir::MetaRef;
using tenon::ir::Relation;
using tenon::ir::Symbols;

namespace {

// 1. A guard on a tensor.
// Six things are compared, in this order, and the first that differs becomes the reason. Strides of dims of size 1 never matter: nobody steps
// along them. A reason names the tensor as the user wrote it, and both values.
void one_tensor() {
  heading("a tensor");
  TensorGuard const guard{.source = "args[0]", .expected = MetaRef(new Meta(contiguous_meta(DType::f32, {}, {64, 3}))), .requires_grad = false};
  Symbols const none;
  auto const try_with = [&](std::string_view what, Meta const& actual, bool requires_grad = false) {
    std::string const reason = mismatch(guard, actual, requires_grad, none, {}).text;
    std::cout << std::format("{:24} {}\n", what, reason.empty() ? "holds" : reason);
  };
  Meta transposed = contiguous_meta(DType::f32, {}, {64, 3});
  transposed.strides = Dims{1, 64};
  try_with("the same", contiguous_meta(DType::f32, {}, {64, 3}));
  try_with("another dtype", contiguous_meta(DType::f16, {}, {64, 3}));
  try_with("another device", contiguous_meta(DType::f32, device_of("cuda:1"), {64, 3}));
  try_with("another rank", contiguous_meta(DType::f32, {}, {64, 3, 1}));
  try_with("with a gradient", contiguous_meta(DType::f32, {}, {64, 3}), true);
  try_with("a shorter batch", contiguous_meta(DType::f32, {}, {29, 3}));
  try_with("transposed in memory", transposed);
}

// 2. Sizes that may vary.
// A size can be an expression. A bare symbol is bound by the first guard that meets it; every later one must agree. Sizes 0 and 1 never bind
// one, because code made for a general size broadcasts and reduces otherwise there.
void symbolic_sizes() {
  heading("symbols");
  Symbols symbols;
  Dim const batch = symbols.symbol(64);
  std::vector<TensorGuard> const pair{
      {.source = "x", .expected = MetaRef(new Meta(contiguous_meta(DType::f32, {}, {batch, 64}))), .symbolic = true},
      {.source = "twice", .expected = MetaRef(new Meta(contiguous_meta(DType::f32, {}, {symbols.mul(batch, 2)}))), .symbolic = true},
  };
  for (auto const& guard : pair) std::cout << std::format("{} is {}\n", guard.source, tenon::ir::to_string(*guard.expected, &symbols));
  for (auto const& [n, m] : {std::pair(64, 128), {29, 58}, {29, 64}, {1, 2}}) {
    Bindings bindings = unbound(symbols);
    std::string verdict = "hold";
    for (auto const& [guard, sizes] : {std::pair(&pair[0], Dims{n, 64}), {&pair[1], Dims{m}}}) {
      MetaRef const actual(new Meta(contiguous_meta(DType::f32, {}, sizes)));
      if (holds(*guard, actual, false, symbols, bindings)) continue;
      verdict = mismatch(*guard, *actual, false, symbols, bindings).text;
      break;
    }
    std::cout << std::format("x [{}, 64], twice [{}]: {}\n", n, m, verdict);
  }
}

// 3. Facts on sizes.
// While a graph is made, inference asks: are these two sizes equal? The answer is true of this call. Where it could differ in another call it
// is kept as a constraint, with the line that asked, and checked with each call's sizes.
void constraints() {
  heading("constraints");
  Symbols symbols;
  Dim const rows = symbols.symbol(6), columns = symbols.symbol(4);
  std::cout << std::boolalpha << "6 rows halved are less than 4 columns: " << symbols.decide(symbols.floordiv(rows, 2), Relation::less, columns, At::current())
            << '\n';
  std::cout << "a question about numbers alone adds none: " << symbols.decide(Dim(3), Relation::equal, Dim(3), At::current()) << '\n';
  for (auto const& constraint : symbols.constraints) {
    std::cout << "kept: " << symbols.to_string(constraint) << '\n';
    for (auto const& [r, c] : {std::pair(6, 4), {20, 11}, {20, 10}})
      std::cout << std::format("  with {} rows, {} columns: {}\n", r, c, holds(constraint, symbols, Bindings{{r, c}, {0, 0}}) ? "holds" : "does not hold");
  }
}

// 4. Settings of the thread.
// The same function on equal tensors is recorded in another way where gradients are off, or where autocast turns a matmul to bf16. So all settings
// are guarded together, and a mismatch names the first that differs. One exception: the dtype of autocast matters only where it is enabled, or a
// region that was left would make its graphs useless to those who never entered one.
void settings_of_the_thread() {
  heading("settings");
  auto const autocast = [](bool enabled, DType dtype) {
    Settings settings;
    settings.autocast[static_cast<std::size_t>(Device::Kind::cpu)] = {enabled, dtype};
    return settings;
  };
  auto const compare = [](std::string_view what, Settings const& recorded, Settings const& now) {
    std::string const reason = mismatch(recorded, now).text;
    std::cout << std::format("{:44} {}\n", what, reason.empty() ? "holds" : reason);
  };
  Settings const usual;
  compare("as recorded", usual, {});
  compare("without gradients", usual, {.grad_enabled = false});
  compare("only algorithms that repeat", usual, {.deterministic = true});
  compare("tensors are made as f64", usual, {.default_dtype = DType::f64});
  compare("autocast to bf16", usual, autocast(true, DType::bf16));
  compare("autocast to f16, recorded with bf16", autocast(true, DType::bf16), autocast(true, DType::f16));
  compare("autocast off, its dtype left at f16", usual, autocast(false, DType::f16));
}

// 5. A whole set.
// What is no tensor is compared by value, as text or as a number. Printed, each guard stands with the line that made it.
void whole_set() {
  heading("a set");
  Symbols symbols;
  GuardSet set;
  set.settings.deterministic = true;
  set.values.push_back({"args[1].reduction", {.text = "mean"}});
  set.values.push_back({"args[2]", {.text = "length", .number = 3}});
  set.tensors.push_back(
      {.source = "args[0]", .expected = MetaRef(new Meta(contiguous_meta(DType::f32, {}, {symbols.symbol(64), 10}))), .symbolic = true, .at = At::current()});
  set.tensors.push_back(
      {.source = "captured", .expected = MetaRef(new Meta(contiguous_meta(DType::f64, {}, {10}))), .requires_grad = true, .at = At::current()});
  std::cout << to_string(set, symbols);
  std::cout << "with \"sum\": " << mismatch(set.values[0], Plain{.text = "sum"}).text << '\n';
  std::cout << "with 4 items: " << mismatch(set.values[1], Plain{.text = "length", .number = 4}).text << '\n';
}

// 6. What it costs.
// A Meta is immutable and shared, so most guards are the compare of one pointer; all else is looked at only when that fails. The figures are
// nanoseconds a guard on this machine, processor time (std::clock counts microseconds), the median of nine runs.
void costs() {
  heading("cost of a guard");
  Symbols symbols;
  MetaRef const fixed(new Meta(contiguous_meta(DType::f32, {}, {64, 128}))), twin(new Meta(*fixed));
  TensorGuard const plain{.source = "w", .expected = fixed};
  TensorGuard const open{.source = "x", .expected = MetaRef(new Meta(contiguous_meta(DType::f32, {}, {symbols.symbol(64), 128}))), .symbolic = true};
  auto const measure = [&](std::string_view what, TensorGuard const& guard, MetaRef const& actual) {
    constexpr int times = 1'000'000;
    std::vector<double> runs;
    Bindings const fresh = unbound(symbols);
    Bindings bindings = fresh;
    for (int run = 0; run < 9; ++run) {
      int held = 0;
      std::clock_t const start = std::clock();
      for (int k = 0; k < times; ++k) held += holds(guard, actual, false, symbols, bindings);
      runs.push_back(static_cast<double>(std::clock() - start) * 1000 / times);
      ensure(held == times, "the guard that is measured holds");
    }
    std::ranges::sort(runs);
    std::cout << std::format("{:34} {:6.1f} ns\n", what, runs[runs.size() / 2]);
  };
  measure("the very Meta", plain, fixed);
  measure("an equal Meta, two sizes", plain, twin);
  measure("an equal Meta, one size a symbol", open, twin);
}

}  // namespace

int main(int argc, char** argv) {
  return run_lesson("m_guards", argc, argv, [] {
    one_tensor();
    symbolic_sizes();
    constraints();
    settings_of_the_thread();
    whole_set();
    costs();
  });
}
