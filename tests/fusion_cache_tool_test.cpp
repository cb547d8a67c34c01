// tenon-cache as its user runs it.
#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/wait.h>
import std;
import tenon.base;
import tenon.ir;
import tenon.fusion;
#include "cache_support.hpp"
#include "caught.hpp"
using namespace tenon;
using support::CacheFolder;
using support::says;
namespace fs = std::filesystem;

namespace {
struct Ran {
  int status;
  std::string output, errors;
};
Ran run(std::string const& arguments) {
  auto const build = fs::canonical("/proc/self/exe").parent_path().parent_path();
  auto const program = build / "tools" / "tenon-cache";
  if (!fs::exists(program)) REQUIRE(system(("ninja -C " + build.string() + " modules/tenon-cache >/dev/null").c_str()) == 0);
  std::string folder = fs::temp_directory_path() / "tenon-tool-XXXXXX";
  REQUIRE(mkdtemp(folder.data()));
  int const status = system(std::format("{} {} >{}/out 2>{}/err </dev/null", program.string(), arguments, folder, folder).c_str());
  Ran const ran{WIFEXITED(status) ? WEXITSTATUS(status) : -1, support::text_of(folder + "/out"), support::text_of(folder + "/err")};
  fs::remove_all(folder);
  return ran;
}
void check_refused(std::string const& arguments, std::string_view what, int status = 1) {
  auto const ran = run(arguments);
  INFO(ran.errors);
  CHECK(ran.status == status);
  CHECK(ran.output == "");
  CHECK(std::ranges::count(ran.errors, '\n') == 1);
  CHECK(ran.errors.starts_with("tenon-cache: "));
  CHECK(says(ran.errors, what));
}
// An entry of 2,000 bytes of object.
fusion::Key stored(std::string const& graph, std::string const& toolchain) {
  auto const key = fusion::key_of({fusion::key_part("graph", graph), fusion::key_part("toolchain", toolchain)});
  REQUIRE(fusion::store_entry({.key = key, .graph = graph, .object = std::vector<std::byte>(2000), .facts = {{"choice", "row"}}, .seconds = 0.125}));
  return key;
}
void make_older(fs::path const& file, std::chrono::hours by) {
  auto const then = std::time(nullptr) - by.count() * 3600;
  support::set_times(file, then, then);
}
}  // namespace

TEST_CASE("tenon-cache lists entries, with what is wrong with them") {
  CacheFolder const folder;
  CHECK(run("ls").output == std::format("0 entries, 0 B in {}\n", folder.path.string()));
  auto const key = stored("mlp", "cc 1");
  auto const ran = run("ls");
  CHECK(ran.status == 0);
  CHECK(ran.errors == "");
  CHECK(ran.output.starts_with(key.name.substr(0, 16) + "  "));
  for (std::string const part : {"   0.125 s  mlp\n", "choice = row\n", "1 entries, "}) CHECK_MESSAGE(says(ran.output, part), ran.output);
  support::Forged forged(folder);
  forged.bytes.back() ^= 1;
  forged.write();
  CHECK(says(run("ls").output, "-  BAD: wrong MAC"));
  setenv("TENON_CACHE", "none", 1);
  CHECK(says(run("ls --folder " + folder.path.string()).output, "1 entries, "));
  CHECK(says(run("--folder " + folder.path.string() + " ls").output, "1 entries, "));
}

TEST_CASE("tenon-cache verify exits with 1 on a bad entry and names it") {
  CacheFolder const folder;
  auto const key = stored("mlp", "cc 1"), other = stored("mlp", "cc 2");
  auto const good = run("verify");
  CHECK(good.status == 0);
  CHECK(good.output == "2 entries, 0 bad\n");
  support::Forged forged(folder);
  auto const name = forged.file.filename().string();
  forged.bytes[forged.object_at()] ^= 1;
  forged.write();
  auto const bad = run("verify");
  CHECK(bad.status == 1);
  CHECK(bad.output == name + ": damaged: its SHA-256 is another one\n2 entries, 1 bad\n");
  fs::rename(folder.path / (name == key.name ? other.name : key.name), forged.file);
  auto const moved = run("verify");
  CHECK(moved.status == 1);
  CHECK(says(moved.output, name + ": another key's entry: "));
  fs::permissions(folder.path, fs::perms::group_write, fs::perm_options::add);
  check_refused("verify", "has mode 720: others than its owner may use it");
}

TEST_CASE("tenon-cache diff says in which parts two keys differ") {
  CacheFolder const folder;
  auto const a = stored("mlp", "cc 1"), b = stored("mlp", "cc 2");
  auto const ran = run("diff " + a.name + " " + b.name.substr(0, 20));
  CHECK(ran.status == 0);
  CHECK(ran.output == std::format("  graph: the same\n* toolchain:\n    {} cc 1\n    {} cc 2\n1 parts differ\n", a.parts[1].digest.substr(0, 16),
                                  b.parts[1].digest.substr(0, 16)));
  CHECK(says(run("diff " + a.name + " " + a.name).output, "the same key\n"));
  CacheFolder const another_machine;  // another secret: its entries can be compared all the same, by their path
  auto const c = stored("cnn", "cc 1");
  auto const far = run(std::format("--folder {} diff {} {}", folder.path.string(), a.name, (another_machine.path / c.name).string()));
  CHECK(far.status == 0);
  CHECK(says(far.output, "* graph:\n"));
  CHECK(says(far.output, "  toolchain: the same\n"));
  check_refused("diff ffffffff0 " + c.name, "no entry of ");
  check_refused("diff " + c.name + " /no/such/file", "/no/such/file: No such file or directory");
  check_refused("diff " + c.name + " " + (another_machine.path / "secret").string(), "truncated: 32 bytes");
}

TEST_CASE("tenon-cache prune removes by age, by size, or all, and nothing else") {
  CacheFolder const folder;
  auto const file = [&](fusion::Key const& key) { return folder.path / key.name; };
  auto const old = stored("old", "cc"), middle = stored("middle", "cc"), young = stored("young", "cc");
  make_older(file(old), std::chrono::hours(50)), make_older(file(middle), std::chrono::hours(5));
  std::ofstream(folder.path / "notes.txt") << "mine";
  std::ofstream(folder.path / ".unfinished-0011") << "now being written";
  std::ofstream(folder.path / ".unfinished-2233") << "left";
  make_older(folder.path / ".unfinished-2233", std::chrono::hours(2));
  CHECK(run("prune --older 60h").output == std::format(".unfinished-2233\n1 files removed from {}\n", folder.path.string()));
  CHECK(run("prune --older 2d").output == std::format("{}\n1 files removed from {}\n", old.name, folder.path.string()));
  auto const bytes = fs::file_size(file(young));
  CHECK(run(std::format("prune --max-bytes {}", 2 * bytes + 100)).output.starts_with("0 files"));
  CHECK(run(std::format("prune --max-bytes {}", bytes + 10)).output.starts_with(middle.name + "\n1 files"));
  CHECK(fs::exists(file(young)));
  CHECK(run("prune --all").output.starts_with(young.name + "\n1 files"));
  CHECK(folder.entries().empty());
  for (auto const* name : {"notes.txt", ".unfinished-0011", "secret"}) CHECK(fs::exists(folder.path / name));
  check_refused("prune", "--older, --max-bytes or --all must say what goes");
  check_refused("prune --older 3w", "--older: \"3w\" is no time");
  check_refused("prune --max-bytes many", "", 2);
  check_refused("", "", 2);
  setenv("TENON_CACHE", "none", 1);
  check_refused("ls", "there is no cache");
}
