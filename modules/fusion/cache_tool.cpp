// tenon-cache: what lies in the compile cache, whether it is whole, why two keys differ, and how it gets smaller.
#include <CLI/CLI.hpp>

import std;
import tenon.base;
import tenon.fusion;
using namespace tenon;
using base::fail;

namespace {

std::string size_text(std::int64_t bytes) { return bytes < 10'000 ? std::format("{} B", bytes) : std::format("{} kB", (bytes + 500) / 1000); }
std::string time_text(std::int64_t when) { return when ? std::format("{:%F %T}", std::chrono::sys_seconds(std::chrono::seconds(when))) : std::string("?"); }

int list(std::string const& folder) {
  auto const all = fusion::list_entries(folder);
  std::int64_t total = 0;
  for (auto const& [file, bytes, entry, fault] : all) {
    total += bytes;
    std::cout << std::format("{}  {:>8}  {}  {:7.3f} s  {}{}\n", file.substr(0, 16), size_text(bytes), time_text(entry.when), entry.seconds,
                             entry.graph.empty() ? "-" : entry.graph, fault.empty() ? "" : "  BAD: " + fault);
    for (auto const& [name, value] : entry.facts) std::cout << std::format("{:18}{} = {}\n", "", name, value);
  }
  std::cout << std::format("{} entries, {} in {}\n", all.size(), size_text(total), folder);
  return 0;
}

int verify(std::string const& folder) {
  auto const all = fusion::list_entries(folder);
  std::size_t bad = 0;
  for (auto const& listed : all) {
    if (listed.fault.empty()) continue;
    ++bad;
    std::cout << std::format("{}: {}\n", listed.file, listed.fault);
  }
  std::cout << std::format("{} entries, {} bad\n", all.size(), bad);
  return bad ? 1 : 0;
}

// An entry by a path, or by the first digits of its name in the folder.
fusion::Listed entry_of(std::string const& folder, std::string const& which) {
  if (which.find('/') != std::string::npos || std::filesystem::is_regular_file(which)) return fusion::read_entry(which);
  std::vector<fusion::Listed> found;
  for (auto& listed : fusion::list_entries(folder))
    if (listed.file.starts_with(which)) found.push_back(std::move(listed));
  if (found.empty()) fail("{}: no entry of {} begins with it", which, folder);
  if (found.size() > 1) fail("{}: {} entries of {} begin with it", which, found.size(), folder);
  if (!found[0].fault.empty()) fail("{}: {}", found[0].file, found[0].fault);
  return std::move(found[0]);
}

int compare(std::string const& folder, std::string const& first, std::string const& second) {
  auto const a = entry_of(folder, first), b = entry_of(folder, second);
  auto const names = fusion::differences(a.entry.key, b.entry.key);
  auto const text_in = [](fusion::Key const& key, std::string_view name) -> std::string {
    for (auto const& part : key.parts)
      if (part.name == name) return std::format("{} {}", part.digest.substr(0, 16), part.text);
    return "has no such part";
  };
  for (auto const& part : a.entry.key.parts)
    if (std::ranges::find(names, part.name) == names.end()) std::cout << std::format("  {}: the same\n", part.name);
  for (auto const& name : names) std::cout << std::format("* {}:\n    {}\n    {}\n", name, text_in(a.entry.key, name), text_in(b.entry.key, name));
  std::cout << (names.empty() ? "the same key\n" : std::format("{} parts differ\n", names.size()));
  return 0;
}

int prune(std::string const& folder, fusion::PruneOptions const& options) {
  auto const gone = fusion::prune_entries(folder, options);
  for (auto const& name : gone) std::cout << name << '\n';
  std::cout << std::format("{} files removed from {}\n", gone.size(), folder);
  return 0;
}

// "90", "30m", "12h", "7d" as seconds.
double seconds_of(std::string const& text) {
  std::int64_t number = 0;
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view const unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  constexpr std::pair<std::string_view, int> units[] = {{"", 1}, {"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}};
  auto const found = std::ranges::find(units, unit, &std::pair<std::string_view, int>::first);
  if (error != std::errc{} || number < 0 || found == std::end(units)) fail("--older: \"{}\" is no time: 90, 30m, 12h or 7d", text);
  return static_cast<double>(number) * found->second;
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("Lists, checks, compares and prunes the entries of the compile cache.", "tenon-cache");
  std::string folder, first, second, older;
  std::int64_t most = -1;
  bool all = false;
  app.add_option("--folder", folder, "the folder of the cache; otherwise TENON_CACHE or the user's");
  app.require_subcommand(1);
  app.fallthrough();
  auto* const ls = app.add_subcommand("ls", "list entries: key, size, time, what the compilation took, graph");
  auto* const check = app.add_subcommand("verify", "check every entry; status 1 if one is bad");
  auto* const diff = app.add_subcommand("diff", "say in which parts the keys of two entries differ");
  diff->add_option("A", first, "the first digits of a key, or a file")->required();
  diff->add_option("B", second, "the first digits of a key, or a file")->required();
  auto* const cut = app.add_subcommand("prune", "remove entries");
  cut->add_option("--older", older, "those written longer ago than this: 90, 30m, 12h, 7d");
  cut->add_option("--max-bytes", most, "those used longest ago, until no more bytes than these are left")->check(CLI::NonNegativeNumber);
  cut->add_flag("--all", all, "every entry");
  try {
    app.parse(argc, argv);
  } catch (CLI::ParseError const& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    std::cerr << "tenon-cache: " << error.what() << '\n';
    return 2;
  }
  if (folder.empty()) folder = fusion::cache_folder();
  if (folder.empty()) fail("there is no cache: TENON_CACHE=none, or no home folder");
  if (*ls) return list(folder);
  if (*check) return verify(folder);
  if (*diff) return compare(folder, first, second);
  if (older.empty() && most < 0 && !all) fail("prune: --older, --max-bytes or --all must say what goes");
  fusion::PruneOptions options{.all = all};
  if (!older.empty()) options.older_seconds = seconds_of(older);
  if (most >= 0) options.most_bytes = most;
  return prune(folder, options);
} catch (std::exception const& error) {
  std::cerr << "tenon-cache: " << error.what() << '\n';
  return 1;
}
