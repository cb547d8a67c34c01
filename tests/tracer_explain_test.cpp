// explain, status and the log: what a compiled function says of itself.
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
  std::ifstream file(std::filesystem::path(TENON_SOURCE_ROOT) / "tests" / "tracer_explain_test.cpp");
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
  std::int64_t seen = 0;  // a reader of the log may ask for the report
  auto const asked = compile(two_ways);
  base::set_log_topics("all");
  base::set_log_sink([&](std::string_view, std::string_view) { seen += status(asked).breaks + describe(asked.state()).graphs; });
  (void)asked(ones({2}));
  (void)asked(ones({3}));
  base::set_log_sink({});
  base::set_log_topics("");
  CHECK(seen > 0);
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
      {"mixed device",
       [&] {
         Tensor const y = to(x, base::device_of("sim:0"));
         return explain([](Tensor const& a, Tensor const& b) { return a + to(b, base::device_of("cpu")); })(x, y);
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
