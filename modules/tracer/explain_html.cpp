// The report as a page: no script, no network; every text of the user's is escaped.
module;
#include <errno.h>
module tenon.tracer;
import std;
import tenon.base;
import tenon.ir;
import tenon.guards;

namespace tenon::tracer {

namespace {
std::string escaped(std::string_view text) {
  std::string out;
  for (char const c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

constexpr std::string_view style = R"(
:root { color-scheme: light dark; --ink: #1d2430; --soft: #5b6575; --page: #fbfaf7; --card: #ffffff; --line: #d9d6cd; --graph: #1f6f5c; --break: #b3541e; --warn: #8c2f39; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e4dd; --soft: #a2a8b3; --page: #16191e; --card: #1f242b; --line: #39404a; --graph: #63c2a6; --break: #eb9a62; --warn: #ef8a94; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1.2rem; background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 0 0 .4rem; }
p { margin: .3rem 0; overflow-wrap: anywhere; }
code, pre { font: 13px/1.45 ui-monospace, monospace; }
pre { margin: .5rem 0 0; overflow-x: auto; }
article { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .8rem 1rem; margin: .7rem 0; }
.soft { color: var(--soft); }
.figures { display: flex; flex-wrap: wrap; gap: .4rem 1.6rem; margin: .8rem 0; padding: 0; list-style: none; }
.figures b { font-size: 1.3rem; font-variant-numeric: tabular-nums; display: block; }
.flow ol { list-style: none; margin: 0; padding: 0; }
.flow li { display: flex; flex-wrap: wrap; align-items: center; gap: .4rem; padding: .3rem 0; border-bottom: 1px solid var(--line); }
.chip { border: 1.5px solid var(--line); border-radius: 6px; padding: .1rem .5rem; overflow-wrap: anywhere; max-width: 100%; color: inherit; text-decoration: none; }
.chip.graph { border-color: var(--graph); color: var(--graph); }
.chip.break { border-color: var(--break); color: var(--break); }
.error { color: var(--warn); }
.bar { width: 100%; height: 14px; display: block; }
.key { display: inline-block; width: .7em; height: .7em; margin-right: .35em; }
a { color: var(--graph); }
.drawing { overflow-x: auto; }
.drawing svg { max-width: none; height: auto; }
.drawing svg text { fill: var(--ink); }
.drawing svg path, .drawing svg polygon, .drawing svg polyline { stroke: var(--ink); fill: none; }
.drawing svg .graph > polygon { stroke: none; }
.drawing svg .edge polygon { fill: var(--ink); }
ul { margin: .3rem 0; padding-left: 1.1rem; }
li { overflow-wrap: anywhere; }
)";

std::string plural(std::size_t count, std::string_view what) { return std::format("{} {}{}", count, what, count == 1 ? "" : "s"); }
std::string source_of(At at) {
  auto const lines = base::caret(at, 0);
  return lines.empty() ? "" : std::format("<pre>{}</pre>", escaped(lines));
}
std::string figure(std::int64_t count, std::string_view what) { return std::format("<li><b>{}</b>{}</li>", count, what); }

// Where the time went, as one bar of three parts.
std::string bar(Explanation const& report) {
  struct Share {
    std::string_view name, colour;
    double seconds;
  };
  std::array const shares{Share{"recording", "var(--graph)", report.record_seconds}, Share{"lowering", "var(--break)", report.compile_seconds},
                          Share{"running", "var(--soft)", report.launch_seconds}};
  double const total = std::max(report.record_seconds + report.compile_seconds + report.launch_seconds, 1e-12);
  std::string text = "<svg class=\"bar\" role=\"img\" aria-label=\"where the time went\" viewBox=\"0 0 600 14\" preserveAspectRatio=\"none\">";
  std::string legend = "<p class=\"soft\">";
  double x = 0;
  for (auto const& [name, colour, seconds] : shares) {
    double const width = 600 * seconds / total;
    text += std::format("<rect x=\"{:.1f}\" y=\"0\" width=\"{:.1f}\" height=\"14\" style=\"fill:{}\"/>", x, width, colour);
    legend += std::format("<span class=\"key\" style=\"background:{}\"></span>{} {:.3f} ms &ensp;", colour, name, seconds * 1e3);
    x += width;
  }
  return text + "</svg>" + legend + "</p>";
}

// The number of a break among those of the report, counted from 1; 0 for the function's begin or end.
std::size_t number_of(Explanation const& report, Break const& cause) {
  if (cause.kind == BreakKind::returned) return 0;
  auto const found = std::ranges::find_if(report.breaks, [&](Break const& known) {
    return known.kind == cause.kind && known.at.line == cause.at.line && known.at.column == cause.at.column && std::string_view(known.at.file) == cause.at.file;
  });
  return found == report.breaks.end() ? 0 : static_cast<std::size_t>(found - report.breaks.begin()) + 1;
}
std::string chip(Explanation const& report, Break const& cause, std::string_view otherwise) {
  auto const number = number_of(report, cause);
  if (number == 0) return std::format("<span class=\"chip\">{}</span>", otherwise);
  return std::format("<a class=\"chip break\" href=\"#break{0}\">break {0} at {1}</a>", number, escaped(base::short_place(cause.at)));
}
std::string flow(Explanation const& report) {
  if (report.parts.empty()) return "<p>No op was captured.</p>";
  std::string text = "<ol>";
  for (std::size_t k = 0; k < report.parts.size(); ++k) {
    auto const& part = report.parts[k];
    text += std::format("<li>{} → <a class=\"chip graph\" href=\"#graph{}\">graph {}: {}</a> → {}</li>\n", chip(report, part.from, "the function begins"),
                        k + 1, k + 1, plural(part.ops.size(), "op"), chip(report, part.to, "it returns"));
  }
  return text + "</ol>";
}

// The drawing of a graph by Graphviz, its ids made unique in the page; a listing where dot is missing or the graph is too large to be read as one.
std::string drawing(ir::Graph const& graph, std::size_t number) {
  constexpr std::size_t most = 200;
  auto const listing = [&](std::string_view why) {
    return std::format("<p class=\"soft\">Not drawn: {}.</p><pre>{}</pre>", escaped(why), escaped(ir::to_string(graph)));
  };
  if (graph.nodes.size() > most) return listing(std::format("it has {} nodes, more than {}", graph.nodes.size(), most));
  std::string svg;
  try {
    svg = ir::to_svg(ir::to_dot(graph));
  } catch (base::Error const& error) {
    return listing(error.what());
  }
  svg.erase(0, std::min(svg.find("<svg"), svg.size()));  // a page holds no XML prolog
  std::string text;
  constexpr std::string_view id = " id=\"";
  for (std::size_t at = 0; at < svg.size();) {
    auto const next = std::min(svg.find(id, at), svg.size());
    text.append(svg, at, next - at);
    if (next < svg.size()) text += std::format("{}g{}-", id, number);
    at = next + (next < svg.size() ? id.size() : 0);
  }
  return std::format("<div class=\"drawing\">{}</div><details><summary>as text</summary><pre>{}</pre></details>", text, escaped(ir::to_string(graph)));
}

std::string graphs(Explanation const& report) {
  std::string text;
  for (std::size_t k = 0; k < report.parts.size(); ++k) {
    auto const& part = report.parts[k];
    text += std::format("<article id=\"graph{}\"><h3>Graph {}: {}</h3>", k + 1, k + 1, plural(part.ops.size(), "op"));
    text += std::format("<p class=\"soft\">Recorded in {:.3f} ms, lowered in {:.3f} ms.</p><p><code>", part.record_seconds * 1e3, part.lower_seconds * 1e3);
    for (std::size_t n = 0; n < part.ops.size(); ++n) text += (n > 0 ? ", " : "") + escaped(part.ops[n]);
    text += "</code></p>" + drawing(part.graph, k + 1) + "<p>Guards:</p><ul>";
    for (auto const& guard : part.guards)
      text += std::format("<li><code>{}</code> <span class=\"soft\">{}</span></li>", escaped(guard.text), escaped(guard.place));
    text += "</ul></article>\n";
  }
  return text.empty() ? "<p>None.</p>" : text;
}

std::string breaks(Explanation const& report) {
  std::string text;
  for (std::size_t k = 0; k < report.breaks.size(); ++k) {
    auto const& cause = report.breaks[k];
    text += std::format("<article id=\"break{}\"><h3>Break {} at {}, met {}</h3><p>{}</p>{}<p>Hint: {}</p></article>\n", k + 1, k + 1,
                        escaped(base::short_place(cause.at)), plural(static_cast<std::size_t>(cause.times), "time"), escaped(cause.reason), source_of(cause.at),
                        escaped(cause.hint));
  }
  return text.empty() ? "<p>None.</p>" : text;
}

std::string recompiles(Explanation const& report) {
  std::string text;
  for (auto const& recompile : report.recompiles)
    text += std::format("<article><h3>{}</h3><p>{}</p><p>A hit with: <b>{}</b></p>{}</article>\n",
                        recompile.graph > 0 ? std::format("It gave <a href=\"#graph{0}\">graph {0}</a>", recompile.graph) : "No op follows",
                        escaped(recompile.reason.text), escaped(recompile.counterfactual), source_of(recompile.at));
  for (auto const& limit : report.limits)
    text += std::format("<article><h3 class=\"error\">Limit at {}</h3><p>New states ran eagerly, {} so far. The last one differed in: {}</p>{}</article>\n",
                        escaped(base::short_place(limit.at)), plural(static_cast<std::size_t>(limit.calls), "time"), escaped(limit.reason.text),
                        source_of(limit.at));
  return text.empty() ? "<p>None.</p>" : text;
}
}  // namespace

std::string to_html(Explanation const& report) {
  auto const name = escaped(report.name);
  std::string text = std::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>{}: what was captured</title>\n<style>{}</style>\n</head>\n<body>\n<header><h1>{}</h1>\n",
      name, style, name);
  if (!report.error.empty()) text += std::format("<p class=\"error\">The call threw: {}</p>\n", escaped(report.error));
  text += "<ul class=\"figures\">" + figure(report.graphs, "graphs") + figure(std::ssize(report.breaks), "breaks") + figure(report.ops, "ops") +
          figure(std::ssize(report.recompiles), "recompiles") + figure(report.calls, "calls") + figure(report.hits, "hits") +
          figure(report.launches, "launches") + figure(report.eager_calls, "run eagerly") + "</ul>" + bar(report) + "</header>\n";
  auto const section = [&](std::string_view id, std::string_view title, std::string const& body) {
    text += std::format("<section id=\"{0}\" class=\"{0}\"><h2>{1}</h2>\n{2}</section>\n", id, title, body);
  };
  section("flow", "Flow", flow(report));
  section("breaks", "Breaks", breaks(report));
  section("recompiles", "Recompiles", recompiles(report));
  section("graphs", "Graphs", graphs(report));
  return text + "</body>\n</html>\n";
}

void save_html(Explanation const& report, std::filesystem::path const& file) {
  auto const page = to_html(report);
  errno = 0;
  std::ofstream stream(file, std::ios::binary);
  if (!(stream << page).flush()) base::fail("explain: {} can't be written: {}", file.string(), std::generic_category().message(errno ? errno : EIO));
}

}  // namespace tenon::tracer
