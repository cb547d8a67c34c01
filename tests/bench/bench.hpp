#pragma once
// The harness of every benchmark. Include behind `import std;`: it includes nothing itself.

namespace bench {

/// One figure: what a case costs, beside what it is compared with (0: nothing) and the goal it is held to (0: none), in the same unit.
struct Figure {
  std::string name;
  double value = 0;
  std::string unit;  ///< "ns", "us", "ms", or a rate
  double peer = 0, goal = 0;
};

/// Processor time of this thread in nanoseconds: another program on the machine is not counted.
double thread_time();
/// Nanoseconds a turn of `body`, the least of `rounds` measurements of `turns` each: noise only adds.
double nanoseconds(int turns, std::function<void()> const& body, int rounds = 15);
/// Two bodies measured by turns, so that both meet the same machine.
std::pair<double, double> interleaved(int turns, std::function<void()> const& a, std::function<void()> const& b, int rounds = 15);

/// capture.cpp: what capture costs beside the work itself.
std::vector<Figure> capture_figures();
/// fusion.cpp: the cases of the peers' table through compiled functions; with TENON_BENCH_SMALL set at a 64th of their size.
std::vector<Figure> fusion_figures();
/// rows.cpp: long rows in each form that they can be walked in.
std::vector<Figure> rows_figures();
/// What one case costs now, in milliseconds: of ours, and of the plain loops beside it (0: none); nothing for an unknown name. Made once, timed at
/// each call, so that rounds with other programs can take turns.
struct Round {
  double ms = 0, plain_ms = 0, bytes = 0, flops = 0;
};
std::optional<Round> fusion_round(std::string_view name);
std::vector<std::string_view> fusion_cases();
/// plain_loops.cpp: the same work without fusion; empty where there is none.
std::function<void()> plain_loops(std::string_view name);

/// A named group of cases; `all` holds those of every file that is linked.
struct Group {
  std::string_view name;
  std::vector<Figure> (*run)();
};
std::span<Group const> all();

}  // namespace bench
