// Counterfactuals: the advice of a report, taken, makes the call a hit.
#include <doctest/doctest.h>

import std;
import tenon.base;
import tenon.ir;
import tenon.guards;
import tenon.tracer;
#include "caught.hpp"

using namespace tenon;
using namespace tenon::tracer;
using support::says;

namespace {
int line_of(std::string_view part) {  // in this file
  std::ifstream file(std::filesystem::path(TENON_SOURCE_ROOT) / "tests" / "tracer_counterfactual_test.cpp");
  std::string line;
  for (int number = 1; std::getline(file, line); ++number)
    if (says(line, part)) return number;
  return 0;
}
}  // namespace

TEST_CASE("a counterfactual names the setting, and with it the call is a hit") {
  auto const check = [](std::string_view what, auto const& plain, auto const& changed, std::string const& advice) {
    INFO(std::string(what));
    auto const report = describe(plain().state());
    REQUIRE(report.recompiles.size() == 1);
    CHECK(report.recompiles[0].counterfactual == advice);
    CHECK(describe(changed().state()).recompiles.empty());
  };
  auto const body = [](Tensor const& x) { return x * 2; };
  auto const run = [&](auto const& fn, Options options, auto const&... xs) {
    auto fast = compile(fn, std::move(options));
    ((void)fast(xs), ...);
    return fast;
  };
  Tensor const x = ones({4, 4}), turned = transpose(ones({4, 4}), 0, 1), wide = ones({4, 4}, DType::f64);
  check("dtype", [&] { return run(body, {}, x, wide); }, [&] { return run(body, {}, x, to(wide, DType::f32)); }, "one dtype: to(args[0], DType::f32)");
  check("stride", [&] { return run(body, {}, x, turned); }, [&] { return run(body, {}, x, contiguous(turned)); }, "contiguous(args[0])");
  Tensor leaf = ones({4, 4}).set_requires_grad(), other = ones({4, 4});
  check("no gradient", [&] { return run(body, {}, x, leaf); }, [&] { return run(body, {}, x, leaf.detach()); }, "args[0].detach() in every call");
  check(
      "gradient", [&] { return run(body, {}, leaf, other); }, [&] { return run(body, {}, leaf, Tensor(ones({4, 4})).set_requires_grad()); },
      "args[0].set_requires_grad() in every call");
  auto const modes = [&](bool second) {
    auto fast = compile(body);
    (void)fast(x);
    GradMode const mode(second);
    (void)fast(x);
    return fast;
  };
  check("grad mode", [&] { return modes(false); }, [&] { return modes(true); }, "one state of grad mode in every call: on");
  auto const marked = [](Tensor const& t, std::initializer_list<int> dims, std::int64_t most = 99) {
    Tensor const fresh = clone(t);
    for (int const d : dims) mark_dynamic(fresh, d, 2, most);
    return fresh;
  };
  check(
      "size", [&] { return run(body, {}, x, ones({6, 4})); }, [&] { return run(body, {}, marked(x, {0}), marked(ones({6, 4}), {0})); },
      "mark_dynamic(args[0], 0)");
  check(
      "never", [&] { return run(body, {.dynamic = Dynamic::never}, x, ones({6, 6})); },
      [&] { return run(body, {.dynamic = Dynamic::never}, marked(x, {0, 1}), marked(ones({6, 6}), {0, 1})); },
      "mark_dynamic(args[0], 0) and mark_dynamic(args[0], 1)");
  check(
      "a mark's range", [&] { return run(body, {}, marked(x, {0}, 8), marked(ones({9, 4}), {0}, 9)); },
      [&] { return run(body, {}, marked(x, {0}, 9), marked(ones({9, 4}), {0}, 9)); }, "a wider range in mark_dynamic(args[0], 0)");
  check(
      "a mark that comes late", [&] { return run(body, {}, x, marked(x, {1})); }, [&] { return run(body, {}, marked(x, {1}), marked(x, {1})); },
      "mark_dynamic(args[0], 1) before the first call");
  Tensor const there = to(x, base::device_of("sim:0"));
  check(
      "device", [&] { return run(body, {}, x, there); }, [&] { return run(body, {}, x, to(there, base::device_of("cpu"))); },
      "one device: to(args[0], device_of(\"cpu\"))");
  auto const plain_size = [](Tensor const& t) { return reshape(t, {t.size(0), 2, 2}) * 2; };
  auto const kept_size = [](Tensor const& t) { return reshape(t, {t.dim(0), 2, 2}) * 2; };
  auto const sized = describe(run(plain_size, {}, x, ones({6, 4})).state()).recompiles;
  REQUIRE(sized.size() == 1);
  CHECK(sized[0].counterfactual.starts_with(
      "mark_dynamic(args[0], 0) and dim(0) in place of size(0) for the number of reshape at tracer_counterfactual_test.cpp:"));
  CHECK(describe(run(kept_size, {}, marked(x, {0}), marked(ones({6, 4}), {0})).state()).recompiles.empty());
  CHECK(says(support::caught([&] { (void)run(plain_size, {}, marked(x, {0})); }), "was marked dynamic, but reshape at"));  // both are needed

  auto const scaled = [&](std::initializer_list<double> list) {
    auto fast = compile([](Tensor const& a, double s) { return a * s; });
    for (double const s : list) (void)fast(x, s);
    return fast;
  };
  auto const by_tensor = [&](std::initializer_list<double> list) {
    auto fast = compile([](Tensor const& a, Tensor const& s) { return a * s; });
    for (double const s : list) (void)fast(x, tensor({s}));
    return fast;
  };
  auto const place = std::format("tracer_counterfactual_test.cpp:{}:", line_of("(Tensor const& a, double s) { return"));
  auto const number = describe(scaled({2, 3}).state()).recompiles;
  REQUIRE(number.size() == 1);
  CHECK(number[0].counterfactual.starts_with("the number of mul at " + place));
  CHECK(number[0].counterfactual.ends_with(" as an element of a tensor argument"));
  CHECK(describe(by_tensor({2, 3, 4}).state()).recompiles.empty());

  auto const pure = [&](std::initializer_list<double> list) {
    auto fast = compile([](Tensor const& a, double s) { return a * s; }, {.pure = true});
    for (double const s : list) (void)fast(x, s);
    return describe(fast.state()).recompiles;
  };
  CHECK(pure({2.5, 3.5}).at(0).counterfactual == "args[1] as an element of a tensor argument");

  auto const flag = [&](std::initializer_list<bool> list) {
    auto fast = compile([](Tensor const& a, bool up) { return up ? a + 1 : a * 2; });
    for (bool const up : list) (void)fast(x, up);
    return fast;
  };
  auto const chosen = [&](std::initializer_list<bool> list) {
    auto fast = compile([](Tensor const& a, Tensor const& up) { return where(up > 0, a + 1, a * 2); });
    for (bool const up : list) (void)fast(x, tensor({up ? 1.0 : 0.0}));
    return fast;
  };
  check("flag", [&] { return flag({true, false}); }, [&] { return chosen({true, false}); }, "where() on args[1] as a tensor");

  bool up = true;
  auto const captured = [&] {
    auto fast = compile([&](Tensor const& a) { return up ? a + 1 : a * 2; });
    for (bool const now : {true, false}) up = now, (void)fast(x);
    return fast;
  };
  auto const branch = describe(captured().state()).recompiles;
  REQUIRE(branch.size() == 1);
  CHECK(branch[0].counterfactual.starts_with("where() in place of the host's choice before mul at tracer_counterfactual_test.cpp:"));

  auto const twice = [&](bool same) {
    auto fast = compile([](Tensor const& a, Tensor const& b) { return a + b; });
    (void)fast(x, same ? x : clone(x));
    (void)fast(x, other);
    return fast;
  };
  auto const alias = describe(twice(true).state()).recompiles;
  REQUIRE(alias.size() == 1);
  CHECK(alias[0].counterfactual.starts_with("clone() where add at "));
  CHECK(describe(twice(false).state()).recompiles.empty());
}

TEST_CASE("sizes behind a break: one option for all segments") {
  auto const body = [](Tensor const& x) {
    Tensor const y = x * 2;
    graph_break();
    return y + 1;
  };
  auto const run = [&](Options options) {
    auto fast = compile(body, std::move(options));
    for (int const n : {4, 6}) (void)fast(ones({n}));
    return describe(fast.state()).recompiles;
  };
  auto const list = run({});
  REQUIRE(list.size() == 2);
  CHECK(list[1].counterfactual == ".dynamic = Dynamic::always");
  CHECK(run({.dynamic = Dynamic::always}).empty());
}

TEST_CASE("many sizes at once: one option instead of many marks; equal sizes share a symbol") {
  auto const run = [](Dynamic dynamic, std::vector<std::array<int, 2>> const& calls) {
    auto fast = compile([](Tensor const& a, Tensor const& b) { return sum(a) + sum(b); }, {.dynamic = dynamic});
    for (auto const& [m, n] : calls) (void)fast(ones({m, n}), ones({n, 2 * m}));
    return describe(fast.state()).recompiles;
  };
  auto const many = run(Dynamic::automatic, {{4, 5}, {6, 7}});
  REQUIRE(many.size() == 1);
  CHECK(many[0].counterfactual == ".dynamic = Dynamic::always");
  CHECK(run(Dynamic::always, {{4, 5}, {6, 7}}).empty());
  auto const shared = run(Dynamic::always, {{4, 4}, {4, 6}});
  REQUIRE(shared.size() == 1);
  CHECK(shared[0].counterfactual == "mark_dynamic(args[0], 1) and mark_dynamic(args[1], 0)");
  auto fast = compile([](Tensor const& a, Tensor const& b) { return sum(a) + sum(b); }, {.dynamic = Dynamic::always});
  for (int const n : {4, 6}) {
    Tensor const a = ones({4, n}), b = ones({n, 8});
    mark_dynamic(a, 1);
    mark_dynamic(b, 0);
    (void)fast(a, b);
  }
  CHECK(describe(fast.state()).recompiles.empty());
}

TEST_CASE("where no setting helps the counterfactual says so, and none of the settings does") {
  auto const calls = [](auto const& fn, Options options, auto const&... xs) {
    auto fast = compile(fn, std::move(options));
    ((void)fast(xs), ...);
    return describe(fast.state()).recompiles;
  };
  auto const body = [](Tensor const& x) { return x * 2; };
  std::string const small = "none: sizes 0 and 1 always have graphs of their own";
  for (auto const dynamic : {Dynamic::automatic, Dynamic::always, Dynamic::never}) {
    auto const one = calls(body, {.dynamic = dynamic}, ones({4}), ones({1}));
    REQUIRE(one.size() == 1);
    CHECK(one[0].counterfactual == small);
    auto const rank = calls(body, {.dynamic = dynamic}, ones({4}), ones({4, 1}));
    REQUIRE(rank.size() == 1);
    CHECK(rank[0].counterfactual == "none: each rank has a graph of its own");
  }
  auto const text = compile([](Tensor const& x, std::string const& s) { return s == "a" ? x + 1 : x * 2; });
  for (std::string const s : {"a", "b"}) (void)text(ones({2}), s);
  CHECK(describe(text.state()).recompiles.at(0).counterfactual == "none: a text is compared by value, and each has a graph of its own");
  auto const list = compile([](std::vector<Tensor> const& xs) {
    Tensor total = xs[0];
    for (auto const& x : xs) total = total + x;
    return total;
  });
  for (std::size_t const n : {2, 3}) (void)list(std::vector<Tensor>(n, ones({2})));
  CHECK(describe(list.state()).recompiles.at(0).counterfactual == "none: each length of a container has a graph of its own");
  int turns = 2;
  auto const loop = compile([&](Tensor x) {
    for (int k = 0; k < turns; ++k) x = x + 1;
    return x;
  });
  (void)loop(ones({2}));
  turns = 3;
  (void)loop(ones({2}));
  CHECK(describe(loop.state()).recompiles.at(0).counterfactual == "none: each number of turns of a loop has a graph of its own");
  int dim = 0;
  auto const reduce = compile([&](Tensor const& x) { return sum(x, {dim}); });
  (void)reduce(ones({2, 2}));
  dim = 1;
  (void)reduce(ones({2, 2}));
  CHECK(says(describe(reduce.state()).recompiles.at(0).counterfactual, "none: this number of sum at "));
  auto const relation = compile([](Tensor const& x) { return ir::less(x.dim(0), 6) ? x + 1 : x * 2; }, {.dynamic = Dynamic::always});
  for (int const n : {4, 8}) (void)relation(ones({n}));
  CHECK(describe(relation.state()).recompiles.at(0).counterfactual.starts_with("none: "));
}

namespace {
// Random calls of one function of two tensors, a number and a flag, and what the advice of a report may change in them.
struct RandomCall {
  base::Shape a, b;
  DType dtype = DType::f32;
  bool turned = false, needs_grad = false, there = false, grad = true, same = false, up = true;
  double scale = 2;
};
struct Changes {
  Dynamic dynamic = Dynamic::automatic;
  std::set<std::pair<int, int>> marks;  // argument and dim
  std::set<int> contiguous, detached, with_grad, dtypes, devices;
  std::string dtype, device;
  std::optional<bool> grad;
  bool scale_in_tensor = false, flag_in_tensor = false, cloned = false;
};
// What the advice says, done; false if it is unknown.
bool take(std::string_view advice, Changes& changes) {
  auto const number = [&](std::string_view before) { return std::stoi(std::string(advice.substr(advice.find(before) + before.size()))); };
  int const argument = says(advice, "args[") ? number("args[") : -1;
  auto const quoted = [&](std::string_view before, std::string_view behind) {
    auto const from = advice.find(before) + before.size();
    return std::string(advice.substr(from, advice.find(behind, from) - from));
  };
  if (advice.starts_with("mark_dynamic(")) return changes.marks.insert({argument, number("], ")}), true;
  if (advice == ".dynamic = Dynamic::always") return changes.dynamic = Dynamic::always, true;
  if (advice.starts_with("contiguous(")) return changes.contiguous.insert(argument), true;
  if (advice.starts_with("one dtype: ")) return changes.dtypes.insert(argument), changes.dtype = quoted("DType::", ")"), true;
  if (advice.starts_with("one device: ")) return changes.devices.insert(argument), changes.device = quoted("\"", "\""), true;
  if (advice.ends_with("].detach() in every call")) return changes.detached.insert(argument), true;
  if (advice.ends_with("].set_requires_grad() in every call")) return changes.with_grad.insert(argument), true;
  if (advice.starts_with("one state of grad mode")) return changes.grad = advice.ends_with(": on"), true;
  if (advice.starts_with("the number of ")) return changes.scale_in_tensor = true;
  if (advice == "where() on args[3] as a tensor") return changes.flag_in_tensor = true;
  if (advice.starts_with("clone() where ")) return changes.cloned = true;
  return false;
}
template <class S, class U>
Tensor chosen(Tensor const& a, Tensor const& b, S const& scale, U const& up) {
  Tensor const first = sum(b * 3) - sum(a * scale);  // advice knows what stands before the place where two recordings part
  if constexpr (std::is_same_v<U, bool>)
    return up ? first + 1 : relu(first);
  else
    return where(up > 0, first + 1, relu(first));
}
// The calls one after the other, with the changes; whether the last one was a miss, and the report.
std::pair<bool, Explanation> made(std::vector<RandomCall> const& calls, Changes const& changes) {
  auto const run = [&]<class S, class U>(S, U) {
    auto const fast = compile(chosen<S, U>, {.dynamic = changes.dynamic, .recompile_limit = 64});
    std::int64_t hits = 0;
    for (auto const& call : calls) {
      hits = status(fast).hits;
      auto const tensor_for = [&](int argument, base::Shape const& shape) {
        Tensor x = ones(DimList(shape), changes.dtypes.contains(argument) ? base::dtype_of(changes.dtype) : call.dtype);
        if (call.turned && shape.size() == 2) x = transpose(contiguous(transpose(x, 0, 1)), 0, 1);
        if (changes.contiguous.contains(argument)) x = contiguous(x);
        if (call.there) x = to(x, base::device_of("sim:0"));
        if (changes.devices.contains(argument)) x = to(x, base::device_of(changes.device));
        if ((call.needs_grad && !changes.detached.contains(argument)) || changes.with_grad.contains(argument)) x.set_requires_grad();
        for (auto const& [of, dim] : changes.marks)
          if (of == argument && dim < x.rank() && x.size(dim) >= 2) mark_dynamic(x, dim);
        return x;
      };
      Tensor const a = tensor_for(0, call.a), b = call.same && !changes.cloned ? a : tensor_for(1, call.same ? call.a : call.b);
      GradMode const mode(changes.grad.value_or(call.grad));
      auto const as = [&]<class T>(double value, T) {
        if constexpr (std::is_same_v<T, Tensor>)
          return to(full({}, value, a.dtype()), a.device());
        else
          return static_cast<T>(value);
      };
      (void)fast(a, b, as(call.scale, S()), as(call.up ? 1 : 0, U()));
    }
    return std::pair(status(fast).hits == hits, describe(fast.state()));
  };
  if (changes.scale_in_tensor && changes.flag_in_tensor) return run(Tensor(), Tensor());
  if (changes.scale_in_tensor) return run(Tensor(), true);
  return changes.flag_in_tensor ? run(1.0, Tensor()) : run(1.0, true);
}
}  // namespace

TEST_CASE("random calls: every counterfactual that is given is known, and with it the last call is a hit") {
  std::mt19937 random(5);
  auto const one_of = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  int advised = 0, none = 0;
  std::map<std::string, int> kinds;
  char const* const tier = std::getenv("TENON_TIER");
  int const programs = tier && std::string_view(tier) == "full" ? 20000 : 600;
  for (int program = 0; program < programs; ++program) {
    RandomCall call{.a = {4, 6}, .b = {5, 3}};
    std::vector<RandomCall> calls{call};
    for (int const last = 1 + one_of(3); std::ssize(calls) <= last;) {
      for (int changes = 1 + one_of(2); changes > 0; --changes) switch (one_of(10)) {
          case 0:
          case 1:
            call.a[static_cast<std::size_t>(one_of(2))] = 1 + one_of(7);
            break;
          case 2:
            call.b[static_cast<std::size_t>(one_of(2))] = 1 + one_of(7);
            break;
          case 3:
            call.dtype = one_of(2) ? DType::f32 : DType::f64;
            break;
          case 4:
            call.turned = !call.turned;
            break;
          case 5:
            call.needs_grad = !call.needs_grad;
            break;
          case 6:
            call.there = !call.there;
            break;
          case 7:
            call.grad = !call.grad;
            break;
          case 8:
            call.scale = 2 + one_of(3);
            break;
          default:
            (one_of(2) ? call.same : call.up) ^= true;
        }
      calls.push_back(call);
    }
    auto const [missed, report] = made(calls, {});
    if (!missed || report.recompiles.empty()) continue;
    auto const advice = report.recompiles.back().counterfactual;
    INFO("program " << program << ": " << report.recompiles.back().reason.text << "; " << advice);
    if (advice.starts_with("none: ")) {
      ++none;
      Changes all{.dynamic = Dynamic::always, .marks = {{0, 0}, {0, 1}, {1, 0}, {1, 1}}};
      CHECK(made(calls, all).first);
      continue;
    }
    Changes changes;
    std::string_view left = advice;
    while (!left.empty()) {
      auto const end = std::min(left.find(" and "), left.size());
      CHECK(take(left.substr(0, end), changes));
      ++kinds[std::string(left.substr(0, std::min<std::size_t>(left.find_first_of("(:["), 14)))];
      left.remove_prefix(std::min(end + 5, left.size()));
    }
    std::string told;
    for (auto const& c : calls)
      told += std::format("\n  {} {} {} {}{}{}{}{}{} x{}", base::to_string(c.a), base::to_string(c.b), base::info(c.dtype).name, c.turned ? "turned " : "",
                          c.needs_grad ? "leaf " : "", c.there ? "sim " : "", c.grad ? "" : "nograd ", c.same ? "same " : "", c.up ? "" : "down ", c.scale);
    CHECK_MESSAGE(!made(calls, changes).first, told);
    ++advised;
  }
  std::cout << "counterfactuals: " << advised << " taken, " << none << " times none;";
  for (auto const& [kind, count] : kinds) std::cout << ' ' << kind << ' ' << count;
  std::cout << '\n';
  CHECK(advised > 200);
  CHECK(none > 20);
}
