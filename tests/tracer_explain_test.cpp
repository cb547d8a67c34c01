// explain, status and the log: what a compiled function says of itself, and whether the advice it gives is true.
#include "golden.hpp"

#include <sys/wait.h>

import std;
import tenon.base;
import tenon.ir;
import tenon.guards;
import tenon.tracer;
#include "caught.hpp"

using namespace tenon;
using namespace tenon::tracer;
using support::caught, support::says;

namespace {

Tensor two_ways(Tensor const& x) {
  Tensor const y = x + 1;
  if (sum(y) > 0) return y * 2;
  return y - 1;
}
int line_of(std::string_view part) {  // in this file
  std::ifstream file(std::source_location::current().file_name());
  if (!file) file.open(std::filesystem::path(TENON_SOURCE_ROOT) / "tests" / "tracer_explain_test.cpp");
  std::string line;
  for (int number = 1; std::getline(file, line); ++number)
    if (says(line, part)) return number;
  return 0;
}

// The lines of the log while `act` runs, with the topics named.
template <class F>
std::vector<std::string> logged(std::string_view topics, F const& act) {
  std::vector<std::string> lines;
  base::set_log_topics(topics);
  base::set_log_sink([&](std::string_view, std::string_view line) { lines.emplace_back(line); });
  act();
  base::set_log_sink({});
  base::set_log_topics("");
  return lines;
}

// A sequence of calls that recompiles at its last call, and the same calls with the advice taken.
struct Advised {
  std::vector<Recompile> without;
  std::size_t with = 0;
};
template <class F, class G>
Advised advised(F const& plain, G const& changed) {
  return {describe(plain().state()).recompiles, describe(changed().state()).recompiles.size()};
}

}  // namespace

TEST_CASE("a report holds graphs, ops, breaks, guards and counters as data") {
  auto const fast = compile(two_ways, {.name = "two_ways"});
  for (double const value : {1.0, 2.0, -3.0, 4.0}) (void)fast(full({3}, value));
  auto const report = describe(fast.state());
  CHECK(report.name == "two_ways");
  CHECK(report.graphs == 3);
  CHECK(report.parts.size() == 3);
  CHECK(report.parts[0].ops == std::vector<std::string>{"add", "sum", "gt"});
  CHECK(report.parts[1].ops == std::vector<std::string>{"mul"});
  CHECK(report.parts[2].ops == std::vector<std::string>{"sub"});
  CHECK(report.ops == 5);
  CHECK(report.parts[0].from.kind == BreakKind::returned);
  CHECK(report.parts[0].to.kind == BreakKind::condition);
  CHECK(report.parts[2].from.kind == BreakKind::condition);
  CHECK(report.parts[2].to.kind == BreakKind::returned);
  REQUIRE(report.breaks.size() == 1);
  CHECK(report.breaks[0].times == 4);
  CHECK(static_cast<int>(report.breaks[0].at.line) == line_of("if (sum(y) > 0) return"));
  CHECK(report.calls == 4);
  CHECK(report.hits == 2);  // the second and the last
  CHECK(report.launches == 8);
  CHECK(report.recorded_ops == 5);
  CHECK(report.replayed_ops == 4 * 4 - 5);
  CHECK(report.eager_calls == 0);
  CHECK(report.recompiles.size() == 1);
  CHECK(report.recompiles[0].graph == 3);
  double recorded = 0, lowered = 0;
  for (auto const& part : report.parts) {
    CHECK(part.record_seconds > 0);
    CHECK(part.lower_seconds > 0);
    recorded += part.record_seconds, lowered += part.lower_seconds;
  }
  CHECK(recorded <= report.record_seconds * 1.000001);
  CHECK(lowered <= report.compile_seconds * 1.000001);
  auto const& guard = report.parts[0].guards.back();
  CHECK(guard.text == "args[0] is f32[3]");
  CHECK(guard.place == std::format("tracer_explain_test.cpp:{}:24", line_of("Tensor const y = x + 1;")));
}

TEST_CASE("the text of a report shows the line of a break with a caret and the hint") {
  auto const text = to_string(explain(two_ways, {.name = "two_ways"})(ones({3})));
  CHECK(text.starts_with("two_ways: 2 graphs, 1 break, 4 ops, 0 recompiles in 1 call\n"));
  CHECK(says(text, "  break 1: a tensor is used as a condition of the host\n"));
  CHECK(says(text, "\n      if (sum(y) > 0) return y * 2;\n                   ^\n    hint: choose between values with where()\n"));
  CHECK(says(text, "  graph 2: 1 op; recorded in "));
}

TEST_CASE("a break that leaves no graph is a break, and a place that breaks often is one") {
  auto const fast = compile([](Tensor const& x) {
    for (int turn = 0; turn < 3; ++turn) graph_break("for a test");
    return x + 1;
  });
  for (int call = 0; call < 2; ++call) (void)fast(ones({2}));
  auto const report = describe(fast.state());
  CHECK(report.graphs == 1);
  REQUIRE(report.breaks.size() == 1);
  CHECK(report.breaks[0].times == 6);
  CHECK(says(to_string(report), ", met 6 times\n"));
}

TEST_CASE("explain of a function without ops, without a result, and of one that throws") {
  auto const none = explain([](Tensor const&) {}, {.name = "none"})(ones({2}));
  CHECK(none.graphs == 0);
  CHECK(none.breaks.empty());
  CHECK(to_string(none).starts_with("none: 0 graphs, 0 breaks, 0 ops, 0 recompiles in 1 call\n  no op was captured\n"));
  Tensor kept = ones({2});
  auto const writes = explain([&](Tensor const& x) { kept.add_(x); })(ones({2}));
  CHECK(writes.graphs == 1);
  CHECK(kept.to_vector<double>() == std::vector<double>{2, 2});
  auto const thrown = explain([](Tensor const& x) -> Tensor {
    Tensor const y = x + 1;
    if (sum(y) > 0) throw std::runtime_error("the body's own");
    return y;
  })(ones({2}));
  CHECK(thrown.error == "the body's own");
  CHECK(thrown.breaks.size() == 1);
  CHECK(thrown.graphs == 1);
  CHECK(says(to_string(thrown), "  the call threw: the body's own\n"));
  auto const whole = explain(two_ways, {.fullgraph = true, .name = "whole"})(ones({2}));
  CHECK(whole.error.starts_with("whole: fullgraph: a tensor is used as a condition of the host at "));
  CHECK(explain([](Tensor const&) { throw 7; })(ones({2})).error == "an exception that is no std::exception");
}

TEST_CASE("explain of a compiled function reports all its calls, this one included") {
  auto const fast = compile(two_ways);
  (void)fast(ones({3}));
  (void)fast(ones({3}));
  auto const report = explain(fast)(full({3}, -5.0));
  CHECK(report.calls == 3);
  CHECK(report.graphs == 3);
}

// -- counterfactuals: the advice, taken, makes the call a hit ---------------------------------------------------------------------------------

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
  check(
      "never", [&] { return run(body, {.dynamic = Dynamic::never}, x, ones({6, 6})); },
      [&] { return run(body, {.dynamic = Dynamic::always}, x, ones({6, 6})); }, ".dynamic = Dynamic::always");

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
  auto const place = std::format("tracer_explain_test.cpp:{}:", line_of("(Tensor const& a, double s) { return"));
  auto const number = describe(scaled({2, 3}).state()).recompiles;
  REQUIRE(number.size() == 1);
  CHECK(number[0].counterfactual.starts_with("the number of mul at " + place));
  CHECK(number[0].counterfactual.ends_with(" as an element of a tensor argument"));
  CHECK(describe(by_tensor({2, 3, 4}).state()).recompiles.empty());

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
  check("flag", [&] { return flag({true, false}); }, [&] { return chosen({true, false}); }, "args[1] as a tensor, and where() on it");

  bool up = true;
  auto const captured = [&] {
    auto fast = compile([&](Tensor const& a) { return up ? a + 1 : a * 2; });
    for (bool const now : {true, false}) up = now, (void)fast(x);
    return fast;
  };
  auto const branch = describe(captured().state()).recompiles;
  REQUIRE(branch.size() == 1);
  CHECK(branch[0].counterfactual.starts_with("where() in place of the host's choice before mul at tracer_explain_test.cpp:"));

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
  CHECK(shared[0].counterfactual.starts_with("a first call in which dim 1 of args[0] has a size that no other dim has"));
  CHECK(run(Dynamic::always, {{5, 7}, {4, 6}}).empty());
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

// -- status and the log -----------------------------------------------------------------------------------------------------------------------

TEST_CASE("status: not called, compiled, limited, eager, each with its reason and counters") {
  auto const with_text = [](Tensor const& x, std::string const& s) { return s == "a" ? x * 2 : x + static_cast<double>(s.size()); };
  auto const fast = compile(with_text, {.recompile_limit = 2, .name = "with_text"});
  CHECK(status(fast).standing == Standing::uncalled);
  CHECK(status(fast).reasons.size() == 1);
  (void)fast(ones({2}), std::string("a"));
  (void)fast(ones({2}), std::string("a"));
  auto const first = status(fast);
  CHECK(first.standing == Standing::compiled);
  CHECK(first.reasons.empty());
  CHECK(first.calls == 2);
  CHECK(first.hits == 1);
  CHECK(first.launches == 2);
  CHECK(to_string(first) == "with_text: compiled; 2 calls, 1 hit, 1 graph, 0 breaks, 0 recompiles, 2 launches, 0 eager\n");
  for (std::string const s : {"b", "bc", "cd", "d"}) (void)fast(ones({2}), s);
  CHECK(status(fast).standing == Standing::limited);
  (void)fast(ones({2}), std::string("a"));
  auto const last = status(fast);
  CHECK(last.standing == Standing::limited);
  CHECK(last.calls == 7);
  CHECK(last.graphs == 3);  // one for mul, two for add: the limit counts those that begin with the same call
  CHECK(last.hits == 2);
  CHECK(last.recompiles == 2);
  CHECK(last.eager_calls == 2);
  REQUIRE(last.reasons.size() == 1);
  CHECK(last.reasons[0] == std::format("at tracer_explain_test.cpp:{}:{} new states run eagerly since the limit of 2 was reached, 2 times so far; the last one "
                                       "differed in: value 'args[1]' mismatch: expected bc, actual d",
                                       line_of("x + static_cast<double>(s.size())"), 100));
  auto const report = describe(fast.state());
  REQUIRE(report.limits.size() == 1);
  CHECK(report.limits[0].calls == 2);
  CHECK(says(to_string(report), " new states run eagerly, 2 times so far; the last one differed in: value 'args[1]' mismatch: "));

  auto const none = compile([](Tensor const& x) { return x; });
  (void)none(ones({2}));
  CHECK(status(none).standing == Standing::eager);
  CHECK(status(none).reasons == std::vector<std::string>{"no call of it had an op that was captured"});
  auto const never = compile([](Tensor const& x) { return x + 1; }, {.recompile_limit = 0});
  (void)never(ones({2}));
  CHECK(status(never).standing == Standing::eager);
  CHECK(status(never).eager_calls == 1);
  CHECK(status(never).reasons.size() == 1);
}

TEST_CASE("TENON_LOG: recompiles with what would have been a hit, the limit, breaks, guards and graph as they happen") {
  auto const fast = compile([](Tensor const& x) { return x * 2; }, {.recompile_limit = 2, .name = "rows"});
  auto const call = [&](Tensor const& x) { return [&fast, x] { (void)fast(x); }; };
  auto const place = std::format("tracer_explain_test.cpp:{}:", line_of("{.recompile_limit = 2, .name = \"rows\"}"));
  auto const first = logged("guards,graph", call(ones({4})));
  REQUIRE(first.size() == 2);
  CHECK(first[0].starts_with("[guards] rows: segment 0\ngrad mode is on\nargs[0] is f32[4]  # " + place));
  CHECK(first[1].starts_with("[graph] rows: segment 0\ngraph rows(%0 \"args[0]\": f32[4]) {\n  %1 = mul(%0, 2): f32[4]"));
  CHECK(logged("recompiles,breaks,guards,graph", call(ones({4}))).empty());  // a hit
  auto const second = logged("recompiles", call(ones({6})));
  REQUIRE(second.size() == 1);
  CHECK(second[0] == "[recompiles] rows: recompiled: tensor 'args[0]' size mismatch at dim 0: expected 4, actual 6; a hit with: mark_dynamic(args[0], 0)");
  auto const third = logged("recompiles", call(ones({4}, DType::f64)));
  REQUIRE(third.size() == 1);
  CHECK(
      third[0].starts_with("[recompiles] rows: the recompile limit of 2 is reached, new states run eagerly; the last one differed in: tensor 'args[0]' dtype "
                           "mismatch: expected f32, actual f64"));
  CHECK(logged("recompiles", call(ones({4}, DType::f64))).empty());  // the limit is said once; status counts
  auto const breaking = compile(two_ways, {.name = "two_ways"});
  auto const broke = logged("breaks", [&] {
    (void)breaking(ones({2}));
    (void)breaking(ones({2}));
  });
  REQUIRE(broke.size() == 1);
  CHECK(broke[0] == std::format("[breaks] two_ways: a tensor is used as a condition of the host at tracer_explain_test.cpp:{}:16",
                                line_of("if (sum(y) > 0) return y * 2")));
  CHECK(logged("no such topic", [&] { (void)compile(two_ways)(ones({2})); }).empty());
}

// -- JSON and HTML ------------------------------------------------------------------------------------------------------------------------------

namespace {
Explanation rich_report(std::string name = "rich") {
  auto const fast = compile(two_ways, {.recompile_limit = 2, .name = std::move(name)});
  for (int const n : {3, 5, 7}) (void)fast(ones({n}));
  (void)fast(ones({3}, DType::f64));
  (void)fast(ones({3}, DType::f16));
  return describe(fast.state());
}
}  // namespace

TEST_CASE("the report as JSON holds what the data hold") {
  auto const report = rich_report();
  auto const json = nlohmann::json::parse(to_json(report));
  CHECK(json["name"] == report.name);
  CHECK(json["error"].is_null());
  CHECK(json["graphs"] == report.graphs);
  CHECK(json["ops"] == report.ops);
  CHECK(json["calls"] == report.calls);
  CHECK(json["hits"] == report.hits);
  CHECK(json["launches"] == report.launches);
  CHECK(json["recorded_ops"] == report.recorded_ops);
  CHECK(json["replayed_ops"] == report.replayed_ops);
  CHECK(json["eager_calls"] == report.eager_calls);
  CHECK(json["seconds"]["recording"] == report.record_seconds);
  CHECK(json["seconds"]["lowering"] == report.compile_seconds);
  CHECK(json["seconds"]["running"] == report.launch_seconds);
  REQUIRE(json["parts"].size() == report.parts.size());
  for (std::size_t k = 0; k < report.parts.size(); ++k) {
    auto const& part = json["parts"][k];
    CHECK(part["ops"] == report.parts[k].ops);
    CHECK(part["record_seconds"] == report.parts[k].record_seconds);
    CHECK(part["lower_seconds"] == report.parts[k].lower_seconds);
    CHECK(part["from"].is_null() == (report.parts[k].from.kind == BreakKind::returned));
    CHECK(part["to"].is_null() == (report.parts[k].to.kind == BreakKind::returned));
    REQUIRE(part["guards"].size() == report.parts[k].guards.size());
    CHECK(part["guards"].back()["text"] == report.parts[k].guards.back().text);
    CHECK(part["guards"].back()["place"] == report.parts[k].guards.back().place);
    CHECK(ir::equal(ir::parse_graph(part["graph"].get<std::string>()), report.parts[k].graph));
  }
  REQUIRE(json["breaks"].size() == 1);
  auto const& cause = json["breaks"][0];
  CHECK(cause["kind"] == "condition");
  CHECK(cause["reason"] == "a tensor is used as a condition of the host");
  CHECK(cause["hint"] == "choose between values with where()");
  CHECK(cause["times"] == 3);  // beyond the limit nothing breaks
  CHECK(cause["at"]["line"] == line_of("if (sum(y) > 0) return y * 2"));
  CHECK(cause["at"]["column"] == 16);
  CHECK(cause["at"]["source"] == "if (sum(y) > 0) return y * 2;\n             ^\n");
  REQUIRE(json["recompiles"].size() == report.recompiles.size());
  auto const& recompile = json["recompiles"][0];
  CHECK(recompile["reason"]["what"] == "size");
  CHECK(recompile["reason"]["source"] == "args[0]");
  CHECK(recompile["reason"]["dim"] == 0);
  CHECK(recompile["reason"]["expected"] == 3);
  CHECK(recompile["reason"]["actual"] == 5);
  CHECK(recompile["reason"]["text"] == "tensor 'args[0]' size mismatch at dim 0: expected 3, actual 5");
  CHECK(recompile["counterfactual"] == "mark_dynamic(args[0], 0)");
  CHECK(recompile["graph"] == 3);
  REQUIRE(json["limits"].size() == report.limits.size());
  REQUIRE(!json["limits"].empty());
  CHECK(json["limits"][0]["reason"]["what"] == "dtype");
  CHECK(json["limits"][0]["times"] == 2);
}

TEST_CASE("the page escapes what the user wrote, needs nothing from outside, and has every section") {
  auto const attack = std::string("<script>alert('x')</script>");
  auto const page = to_html(explain(
      [&](Tensor const& x) {
        Tensor const y = x + 1;
        graph_break(attack);
        return y * 2;
      },
      {.name = attack})(ones({2})));
  CHECK(!says(page, "<script"));
  CHECK(says(page, "<h1>&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;</h1>"));
  CHECK(says(page, "<p>&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;</p>"));
  CHECK(!says(page, "http-equiv"));
  for (std::string_view const outside : {"src=", "href=\"http", "url(", "@import"}) CHECK_MESSAGE(!says(page, outside), outside);
  for (std::string_view const part : {"id=\"flow\"", "id=\"breaks\"", "id=\"recompiles\"", "id=\"graphs\"", "id=\"break1\"", "id=\"graph2\"",
                                      "name=\"viewport\"", "prefers-color-scheme: dark", "the function begins", "it returns", "<svg class=\"bar\""})
    CHECK_MESSAGE(says(page, part), part);
  auto const rich = to_html(rich_report());
  for (std::string_view const part :
       {"mark_dynamic(args[0], 0)", "tensor &#39;args[0]&#39; size mismatch at dim 0: expected 3, actual 5", "Limit at tracer_explain_test.cpp:"})
    CHECK_MESSAGE(says(rich, part), part);
}

TEST_CASE("a page is written to its file, or an Error names the file") {
  auto const file = std::filesystem::temp_directory_path() / std::format("tenon-explain-{}.html", std::random_device{}());
  auto const report = rich_report();
  save_html(report, file);
  std::ifstream stream(file, std::ios::binary);
  CHECK(std::string(std::istreambuf_iterator<char>(stream), {}) == to_html(report));
  std::filesystem::remove(file);
  CHECK(caught([&] { save_html(report, "/no/such/folder/page.html"); }) == "explain: /no/such/folder/page.html can't be written: No such file or directory");
}

TEST_CASE("headless Chromium opens the page: every section and drawing is there, and nothing is logged as an error") {
  char const* const tier = std::getenv("TENON_TIER");
  if (!tier || std::string_view(tier) != "full") {
    std::cout << "SKIP: headless Chromium opens the page: only in the tier full (scripts/test.sh --full)\n";
    return;
  }
  std::string browser;
  for (std::string const name : {"chromium", "chromium-browser", "google-chrome"})
    if (browser.empty() && std::system(("command -v " + name + " >/dev/null 2>&1").c_str()) == 0) browser = name;
  if (browser.empty()) {
    std::cout << "SKIP: headless Chromium opens the page: no chromium or google-chrome on PATH (scripts/setup.sh --full installs it)\n";
    return;
  }
  auto const folder = std::filesystem::temp_directory_path() / std::format("tenon-page-{}", std::random_device{}());
  std::filesystem::create_directory(folder);
  auto const report = rich_report("<script>console.error('ran')</script>");
  save_html(report, folder / "page.html");
  auto const command = std::format(
      "timeout 120 {} --headless --no-sandbox --disable-gpu --user-data-dir={}/profile --window-size=390,844 --enable-logging=stderr --v=0 "
      "--dump-dom file://{}/page.html >{}/dom 2>{}/log </dev/null",
      browser, folder.string(), folder.string(), folder.string(), folder.string());
  int const done = std::system(command.c_str());
  auto const text_of = [&](char const* name) {
    std::ifstream stream(folder / name, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(stream), {});
  };
  auto const dom = text_of("dom"), log = text_of("log");
  CHECK(WEXITSTATUS(done) == 0);
  CHECK_MESSAGE(!says(log, "CONSOLE"), log);
  for (std::string_view const part : {"<section id=\"flow\"", "<section id=\"breaks\"", "<section id=\"recompiles\"", "<section id=\"graphs\"", "</html>",
                                      "&lt;script&gt;console.error", "mark_dynamic(args[0], 0)"})
    CHECK_MESSAGE(says(dom, part), part);
  std::size_t drawings = 0;
  for (auto at = dom.find("<svg"); at != std::string::npos; at = dom.find("<svg", at + 1)) ++drawings;
  bool const dot = std::system("command -v dot >/dev/null 2>&1") == 0;
  CHECK(drawings == 1 + (dot ? report.parts.size() : 0));
  std::filesystem::remove_all(folder);
}

// -- golden -------------------------------------------------------------------------------------------------------------------------------------

TEST_CASE("golden explain: graphs and breaks") {
  auto const cases = golden::load("compile.json", "explain");
  if (!cases) return;
  using Report = std::function<Explanation()>;
  Tensor const x = ones({3});
  std::map<std::string, Report> const reports{
      {"no break", [&] { return explain([](Tensor const& a) { return sum(relu(a + 1)); })(x); }},
      {"item", [&] { return explain([](Tensor const& a) { return a * sum(a).item() + 1; })(x); }},
      {"branch",
       [&] {
         return explain([](Tensor const& a) {
           if (sum(a) > 0) return a * 2;
           return a - 1;
         })(x);
       }},
      {"three",
       [&] {
         return explain([](Tensor const& a) {
           Tensor y = a + 1;
           graph_break();
           y = y * 2;
           graph_break();
           y = y - 3;
           graph_break();
           return relu(y);
         })(x);
       }},
      {"random", [&] { return explain([](Tensor const& a) { return a + randn({1}); })(x); }},
      {"print",
       [&] {
         return explain([](Tensor const& a) {
           Tensor const y = a + 1;
           host_effect([] {});
           return y * 2;
         })(x);
       }},
  };
  golden::Tally tally{"explain"};
  for (auto const& entry : *cases) {
    std::string const name = entry["name"];
    auto const found = reports.find(name);
    if (found == reports.end()) {
      std::cout << "  skipped: " << name << '\n';
      ++tally.skipped;
      continue;
    }
    auto const report = found->second();
    CHECK_MESSAGE(report.graphs == entry["graph_count"].get<int>(), name);
    CHECK_MESSAGE(std::ssize(report.breaks) == entry["graph_break_count"].get<std::int64_t>(), name);
    ++tally.checked;
  }
}
