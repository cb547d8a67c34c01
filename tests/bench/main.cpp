// bench --serve: times one case at a time, as asked on stdin.
// bench [CASE...] [--json FILE]: runs the groups whose name holds one of the words, prints a table, and writes it as JSON.
#include <stdlib.h>
#include <time.h>

#include <nlohmann/json.hpp>
import std;
#include "bench.hpp"

namespace bench {

double thread_time() {
  ::timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

double nanoseconds(int turns, std::function<void()> const& body, int rounds) { return interleaved(turns, body, {}, rounds).first; }

std::pair<double, double> interleaved(int turns, std::function<void()> const& a, std::function<void()> const& b, int rounds) {
  std::pair best{std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
  auto const measure = [turns](std::function<void()> const& body, double& least) {
    if (!body) return;
    double const start = thread_time();
    for (int turn = 0; turn < turns; ++turn) body();
    least = std::min(least, (thread_time() - start) / turns);
  };
  for (int round = 0; round < rounds; ++round) measure(a, best.first), measure(b, best.second);
  return best;
}

}  // namespace bench

// Answers "case NAME" lines as scripts/peer/serve.py does.
static int serve() {
  std::cout << nlohmann::json{{"cases", bench::fusion_cases()}, {"small", std::getenv("TENON_BENCH_SMALL") != nullptr}}.dump() << std::endl;
  for (std::string line; std::getline(std::cin, line) && line != "quit";) {
    auto const name = line.starts_with("case ") ? line.substr(5) : line;
    auto const round = bench::fusion_round(name);
    nlohmann::json row{{"case", name}};
    if (round)
      row.update({{"ms", round->ms}, {"plain_ms", round->plain_ms}, {"bytes", round->bytes}, {"flops", round->flops}});
    else
      row["error"] = "no case of that name";
    std::cout << row.dump() << std::endl;
  }
  return 0;
}

int main(int argc, char** argv) {
  ::setenv("TENON_CACHE", "none", 1);  // nothing that another run chose or compiled
  std::vector<std::string_view> wanted;
  std::string json_file;
  for (int k = 1; k < argc; ++k) {
    std::string_view const word = argv[k];
    if (word == "--serve") return serve();
    if (word == "--json" && k + 1 < argc)
      json_file = argv[++k];
    else
      wanted.push_back(word);
  }
  auto rows = nlohmann::ordered_json::array();
  for (auto const& group : bench::all()) {
    auto const asked = [&](std::string_view word) { return group.name.find(word) != std::string_view::npos; };
    if (!wanted.empty() && std::ranges::none_of(wanted, asked)) continue;
    for (auto const& figure : group.run()) {
      nlohmann::ordered_json row{{"case", std::format("{}.{}", group.name, figure.name)}, {figure.unit, figure.value}};
      if (figure.peer > 0) row["ratio"] = figure.peer / figure.value;
      if (figure.goal > 0) row["goal"] = figure.goal;
      std::cout << std::format("{:44} {:10.1f} {}{}{}\n", row["case"].get<std::string>(), figure.value, figure.unit,
                               figure.peer > 0 ? std::format("   {:.2f} x", figure.peer / figure.value) : "",
                               figure.goal > 0 ? std::format("   goal {} {}", figure.goal, figure.unit) : "");
      rows.push_back(std::move(row));
    }
  }
  if (!json_file.empty() && !(std::ofstream(json_file) << rows.dump(1) << "\n")) {
    std::cerr << "bench: cannot write " << json_file << "\n";
    return 1;
  }
  return 0;
}
