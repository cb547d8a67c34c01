// The compile cache: what is found, what is refused before anything of it is loaded, and what many processes do to one entry.
#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
import std;
import tenon.base;
import tenon.ir;
import tenon.device;
import tenon.fusion;
#include "cache_support.hpp"
#include "caught.hpp"
#include "ir_support.hpp"
using namespace tenon;
using support::CacheFolder;
using support::Forged;
using support::says;
namespace fs = std::filesystem;
using Outcome = fusion::Receipt::Outcome;

namespace {

// relu(x) * 2 + 1 of -1 to 2: 1, 1, 3, 5.
ir::Graph small_graph(double factor = 2) {
  return ir::parse_graph(
      std::format("graph small(%0 x: f32[4]) {{\n  %1 = relu(%0): f32[4]\n  %2 = mul(%1, {:.1f}): f32[4]\n"
                  "  %3 = add(%2, 1.0): f32[4]\n  return %3\n}}\n",
                  factor));
}
std::vector<double> run(ir::Graph const& graph) {
  auto const x = support::array(base::DType::f32, {4}, std::array{-1.0, 0.0, 1.0, 2.0});
  std::array const inputs{x.at};
  return support::reals(fusion::lower(graph)(inputs, {}).outputs.at(0));
}
std::vector<double> const right{1, 1, 3, 5};

struct Did {
  std::vector<double> result;
  std::int64_t loaded;
  std::vector<fusion::Receipt> receipts;
};
Did lowered(ir::Graph const& graph = small_graph()) {
  auto const loaded = device::libraries_loaded();
  auto const last = support::receipts_so_far();
  auto result = run(graph);
  return {std::move(result), device::libraries_loaded() - loaded, support::receipts_since(last)};
}
void check_hit() {
  auto const did = lowered();
  CHECK(did.result == right);
  REQUIRE(did.receipts.size() == 1);
  CHECK_MESSAGE(did.receipts[0].outcome == Outcome::hit, fusion::to_string(did.receipts[0]));
}
// What is there is not used: said so, once, with this reason; compiled again (an object is loaded, the one that was made), right, and written anew.
void check_refused(std::string_view reason, Outcome then = Outcome::stored) {
  INFO(reason);
  auto const did = lowered();
  CHECK(did.result == right);
  CHECK(did.loaded == 1);
  std::string said;
  for (auto const& receipt : did.receipts) said += fusion::to_string(receipt) + "\n";
  REQUIRE_MESSAGE(did.receipts.size() == 2, said);
  CHECK(did.receipts[0].outcome == Outcome::refused);
  CHECK_MESSAGE(says(did.receipts[0].reason, reason), did.receipts[0].reason);
  CHECK(!did.receipts[0].key.parts.empty());
  CHECK_MESSAGE(did.receipts[1].outcome == then, fusion::to_string(did.receipts[1]));
  if (then == Outcome::stored) check_hit();
}
// Looks the key up alone: nothing may reach the loader.
void check_not_found(fusion::Key const& key, std::string_view reason) {
  auto const loaded = device::libraries_loaded();
  auto const last = support::receipts_so_far();
  CHECK(!fusion::find_entry(key));
  CHECK(device::libraries_loaded() == loaded);
  auto const now = support::receipts_since(last);
  REQUIRE(now.size() == 1);
  CHECK(now[0].outcome == Outcome::refused);
  CHECK_MESSAGE(says(now[0].reason, reason), now[0].reason);
}

}  // namespace

TEST_CASE("a second compilation is a hit, with the same result and a receipt that names the parts of the key") {
  CacheFolder const folder;
  auto const first = lowered(), second = lowered();
  CHECK(first.result == right);
  CHECK(second.result == right);
  REQUIRE(first.receipts.size() == 2);
  CHECK(first.receipts[0].outcome == Outcome::miss);
  CHECK(first.receipts[1].outcome == Outcome::stored);
  REQUIRE(second.receipts.size() == 1);
  auto const& hit = second.receipts[0];
  CHECK(hit.outcome == Outcome::hit);
  CHECK(hit.key == first.receipts[0].key);
  CHECK(hit.graph == "small");
  CHECK(hit.seconds > 0);
  std::vector<std::string> names;
  for (auto const& part : hit.key.parts) names.push_back(part.name);
  CHECK(names == std::vector<std::string>{"graph", "inputs", "options", "toolchain", "flags", "processor", "build", "source"});
  CHECK(fusion::to_string(hit).starts_with("hit " + hit.key.name.substr(0, 16) + " small, "));
  CHECK(fs::status(folder.path).permissions() == fs::perms::owner_all);
  for (auto const& file : fs::directory_iterator(folder.path)) CHECK(fs::status(file).permissions() == (fs::perms::owner_read | fs::perms::owner_write));
  CHECK(folder.entries() == std::vector<std::string>{hit.key.name});
  CHECK(lowered(small_graph(3)).result == std::vector<double>{1, 1, 4, 7});
  CHECK(folder.entries().size() == 2);
}

TEST_CASE("the entry of a key keeps the facts that its maker gave it") {
  CacheFolder const folder;
  auto const key = fusion::key_of(small_graph(), {});
  CHECK(!fusion::find_entry(key));
  CHECK(fusion::store_entry({.key = key, .graph = "small", .facts = {{"choice", "row, 8 threads"}, {"ü", ""}}, .seconds = 0.5}));
  auto const found = fusion::find_entry(key);
  REQUIRE(found.has_value());
  CHECK(found->facts == std::map<std::string, std::string>{{"choice", "row, 8 threads"}, {"ü", ""}});
  CHECK(found->object.empty());
  CHECK(found->seconds == 0.5);
  auto program = fusion::plan(small_graph());
  program.facts["choice"] = "column";
  fusion::runner(program);
  auto const listed = fusion::list_entries(folder.path);
  CHECK(std::ranges::count_if(listed, [](auto const& l) { return l.entry.facts == std::map<std::string, std::string>{{"choice", "column"}}; }) == 1);
}

TEST_CASE("what max_autotune chose is kept, and nothing is timed again") {
  CacheFolder const folder;
  fusion::LowerOptions const options{.mode = fusion::Mode::max_autotune, .tune_seconds = 0.05};
  auto const x = support::array(base::DType::f32, {4}, std::array{-1.0, 0.0, 1.0, 2.0});
  std::array const inputs{x.at};
  auto const tuned = [&] { return support::reals(fusion::lower(small_graph(), options)(inputs, {}).outputs.at(0)); };
  auto last = support::receipts_so_far();
  CHECK(tuned() == right);
  auto const first = support::receipts_since(last);
  REQUIRE(!first.empty());
  CHECK(first[0].outcome == Outcome::miss);
  CHECK(first[0].key.parts.back().name == "tuned for");
  last = support::receipts_so_far();
  auto const loaded = device::libraries_loaded();
  CHECK(tuned() == right);
  auto const second = support::receipts_since(last);
  REQUIRE(second.size() == 2);
  CHECK(second[0].outcome == Outcome::hit);
  CHECK(second[0].key == first[0].key);
  CHECK(second[1].outcome == Outcome::hit);
  CHECK(device::libraries_loaded() == loaded + 1);
  REQUIRE(fusion::store_entry({.key = first[0].key, .facts = {{"kernel 0", "no such variant"}}}));  // so it is these words that decide
  CHECK(says(support::caught(tuned), "choice \"kernel 0\": \"no such variant\" does not go with it"));
}

TEST_CASE("the interpreter neither asks the cache nor fills it") {
  CacheFolder const folder;
  auto const x = support::array(base::DType::f32, {4}, std::array{-1.0, 0.0, 1.0, 2.0});
  std::array const inputs{x.at};
  auto const last = support::receipts_so_far();
  CHECK(support::reals(fusion::lower(small_graph(), {.interpret = true})(inputs, {}).outputs.at(0)) == right);
  CHECK(support::receipts_since(last).empty());
  CHECK(folder.entries().empty());
}

TEST_CASE("a file with the right format that this test wrote by itself is a hit") {
  CacheFolder const folder;
  run(small_graph());
  Forged forged(folder);
  forged.sign().write();
  check_hit();
}

TEST_CASE("a wrong MAC is refused: another byte, another user's secret") {
  CacheFolder const folder;
  run(small_graph());
  Forged forged(folder);
  forged.bytes.back() ^= 1;
  forged.write();
  check_refused("wrong MAC");
  Forged other(folder);
  other.sign(std::string(32, 'x')).write();
  check_refused("wrong MAC");
}

TEST_CASE("an altered entry is refused: metadata or object, with and without a fitting SHA-256") {
  CacheFolder const folder;
  run(small_graph());
  for (bool const metadata : {true, false})
    for (bool const hashed : {false, true}) {
      Forged forged(folder);
      forged.bytes[metadata ? forged.bytes.find("\"seconds\":") + 11 : forged.object_at() + 100] ^= 1;
      if (hashed) forged.hash();
      forged.write();
      check_refused(hashed ? "wrong MAC" : "damaged");
    }
  for (std::string const& text : {"{}", "[1", "null", "{\"key\": 3}"}) {  // signed, so that the reader is reached
    Forged forged(folder);
    forged.set_metadata(text).sign().write();
    check_refused("its metadata can't be read");
  }
}

TEST_CASE("an entry of another toolchain, and one of another graph, are refused under this key's name") {
  CacheFolder const folder;
  run(small_graph());
  auto const key = fusion::receipts().back().key;
  auto parts = key.parts;
  parts[3] = fusion::key_part("toolchain", "/usr/bin/other");
  auto const other = fusion::key_of(parts);
  REQUIRE(fusion::differences(key, other) == std::vector<std::string>{"toolchain"});
  auto entry = *fusion::find_entry(key);
  entry.key = other;
  REQUIRE(fusion::store_entry(entry));
  fs::rename(folder.path / other.name, folder.path / key.name);
  check_refused("another key's entry: it differs in toolchain");

  run(small_graph(3));
  std::string name;
  for (auto const& file : folder.entries())
    if (file != key.name) name = file;
  fs::copy_file(folder.path / name, folder.path / key.name, fs::copy_options::overwrite_existing);
  check_refused("another key's entry: it differs in graph, source");
  fs::remove(folder.path / name);

  Forged forged(folder);  // a key that is not that of its parts
  forged.replace(parts[0].digest, std::string(64, '0')).sign().write();
  check_refused("its key is not that of its parts");
}

TEST_CASE("links, other kinds of files, other owners and other modes are refused") {
  CacheFolder const folder;
  run(small_graph());
  auto const file = folder.path / folder.entries().at(0);
  auto const aside = folder.path / "aside";
  fs::rename(file, aside), fs::create_symlink(aside, file);
  check_refused("is a symbolic link");
  fs::remove(aside), fs::create_hard_link(file, aside);
  check_refused("has 2 names: a hard link");
  fs::permissions(file, fs::perms::group_write, fs::perm_options::add);
  check_refused("has mode 620");
  fs::permissions(file, fs::perms::others_read, fs::perm_options::add);
  check_refused("has mode 604");
  fs::remove(file);
  REQUIRE(mkfifo(file.c_str(), 0600) == 0);
  check_refused("is no regular file");
  fs::remove(file), fs::create_directory(file);
  check_refused("is no regular file", Outcome::unstored);
  fs::remove(file);
  run(small_graph());
  if (geteuid() != 0 || chown(file.c_str(), 12345, 12345) != 0) {
    std::cout << "SKIP: links, other kinds of files, other owners and other modes are refused: only root can give a file away" << std::endl;
    return;
  }
  check_refused("belongs to user 12345");
  REQUIRE(chown(folder.path.c_str(), 12345, 12345) == 0);
  check_refused("belongs to user 12345", Outcome::unstored);
}

TEST_CASE("a folder that others may write to, or that is reached by a link, is neither read nor written") {
  CacheFolder const folder;
  run(small_graph());
  for (auto const mode : {fs::perms::group_write, fs::perms::others_write, fs::perms::group_read}) {
    fs::permissions(folder.path, fs::perms::owner_all | mode);
    check_refused("others than its owner may use it", Outcome::unstored);
  }
  fs::permissions(folder.path, fs::perms::owner_all);
  check_hit();
  auto const link = folder.path.string() + "-link";
  fs::create_directory_symlink(folder.path, link);
  setenv("TENON_CACHE", link.c_str(), 1);
  check_refused("is a link or no folder", Outcome::unstored);
  fs::remove(link);
}

TEST_CASE("a truncated, a longer and an oversized entry are refused") {
  CacheFolder const folder;
  run(small_graph());
  enum class From { start, object, end };
  using enum From;
  for (auto const& [from, by] : {std::pair(start, 0),
                                 {start, 1},
                                 {start, 7},
                                 {start, 8},
                                 {start, 23},
                                 {start, 24},
                                 {start, 25},
                                 {object, -1},
                                 {object, 0},
                                 {object, 1},
                                 {object, 99},
                                 {end, -65},
                                 {end, -64},
                                 {end, -63},
                                 {end, -33},
                                 {end, -32},
                                 {end, -1}}) {
    Forged forged(folder);  // entries differ in size: they say when they were made
    forged.bytes.resize((from == start ? 0 : from == object ? forged.object_at() : forged.bytes.size()) + static_cast<std::size_t>(by));
    forged.write();
    check_refused("truncated");
  }
  Forged longer(folder);
  longer.bytes += 'x';
  longer.write();
  check_refused("longer than it says");
  Forged lies(folder);
  lies.set_number(16, 8, std::uint64_t{1} << 62).sign().write();
  check_refused("too many");
  fs::resize_file(folder.path / folder.entries().at(0), (std::uintmax_t{64} << 20) + 1);
  check_refused("oversized: 67108865 bytes");
}

TEST_CASE("an unknown version is refused, whoever signed it") {
  CacheFolder const folder;
  run(small_graph());
  for (std::uint64_t const version : {0, 2, 1 << 30}) {
    Forged forged(folder);
    forged.set_number(8, 4, version).sign().write();
    check_refused(std::format("unknown version {}", version));
  }
  Forged forged(folder);
  forged.bytes[0] = 'E';
  forged.sign().write();
  check_refused("begins like no entry");
}

TEST_CASE("what is put in an entry's place after the check is not what is loaded") {
  CacheFolder const folder;
  run(small_graph());
  Forged bad(folder);
  for (auto at = bad.object_at(); at < bad.bytes.size() - 64; ++at) bad.bytes[at] = 'x';
  bad.sign();  // even with the right secret: it would be believed at the next look-up
  int replaced = 0;
  base::set_log_topics("cache");
  base::set_log_sink([&](std::string_view, std::string_view line) {  // a hit is logged when the entry is verified and not yet loaded
    if (says(line, "hit ")) bad.write(), ++replaced;
  });
  auto const did = lowered();
  base::set_log_sink({});
  base::set_log_topics("");
  CHECK(replaced == 1);
  CHECK(did.result == right);
  CHECK(did.loaded == 1);
  CHECK(did.receipts.size() == 1);
  auto const next = lowered();  // verified, and not loadable: said so, compiled
  CHECK(next.result == right);
  REQUIRE(next.receipts.size() == 3);
  CHECK(next.receipts[1].outcome == Outcome::refused);
  CHECK(says(next.receipts[1].reason, "can't be loaded"));
  CHECK(next.receipts[2].outcome == Outcome::stored);
}

TEST_CASE("without its secret, or with one that others may read, no entry is believed") {
  CacheFolder const folder;
  run(small_graph());
  auto const secret = folder.path / "secret";
  fs::remove(secret);
  check_refused("there is no secret");
  fs::resize_file(secret, 31);
  check_refused("has not 32 bytes", Outcome::unstored);
  fs::remove(secret);
  check_refused("there is no secret");
  fs::permissions(secret, fs::perms::group_read, fs::perm_options::add);
  check_refused("has mode 640", Outcome::unstored);
  fs::remove(secret), fs::create_symlink("/dev/zero", secret);
  check_refused("is a symbolic link", Outcome::unstored);
}

TEST_CASE("no flip of a byte is accepted, and no random file") {
  CacheFolder const folder;
  auto const key = fusion::key_of({fusion::key_part("a", "1"), fusion::key_part("b", "2")});
  REQUIRE(fusion::store_entry({.key = key, .object = std::vector<std::byte>(32, std::byte{7}), .facts = {{"k", "v"}}}));
  Forged const whole(folder);
  std::mt19937 random(3);
  for (std::size_t at = 0; at < whole.bytes.size(); ++at) {
    Forged forged(folder);
    forged.bytes = whole.bytes;
    forged.bytes[at] = static_cast<char>(forged.bytes[at] ^ std::uniform_int_distribution(1, 255)(random));
    forged.write();
    check_not_found(key, "");
  }
  for (int k = 0, count = support::tier(300, 2000, 100000); k < count; ++k) {  // signed again, so that the readers behind the MAC see it too
    Forged forged(folder);
    forged.bytes = whole.bytes;
    for (int flips = std::uniform_int_distribution(1, 8)(random); flips > 0; --flips) {
      auto const at = std::uniform_int_distribution<std::size_t>(0, forged.bytes.size() - 1)(random);
      int const kind = std::uniform_int_distribution(0, 3)(random);
      if (kind == 0 && forged.bytes.size() > 100) forged.bytes.erase(at, 1);
      if (kind == 1) forged.bytes.insert(at, 1, static_cast<char>(random()));
      if (kind >= 2) forged.bytes[at] = static_cast<char>(random());
    }
    forged.sign().write();
    auto const loaded = device::libraries_loaded();
    if (auto const found = fusion::find_entry(key)) CHECK(found->key.name == key.name);
    CHECK(device::libraries_loaded() == loaded);
  }
  Forged last(folder);
  last.bytes = whole.bytes;
  last.write();
  CHECK(fusion::find_entry(key).has_value());
}

TEST_CASE("a look-up changes nothing on disk") {
  CacheFolder const folder;
  fs::remove(folder.path);
  CHECK(!fusion::find_entry(fusion::key_of(small_graph(), {})));
  CHECK(!fs::exists(folder.path));
  run(small_graph());
  auto const state = [&] {
    std::string text;
    for (auto const& name : {std::string("."), std::string("secret"), folder.entries().at(0)}) {
      struct stat about{};
      REQUIRE(stat((folder.path / name).c_str(), &about) == 0);
      text += std::format("{} {} {} {}.{} {}.{}\n", about.st_ino, about.st_mode, about.st_size, about.st_mtim.tv_sec, about.st_mtim.tv_nsec,
                          about.st_ctim.tv_sec, about.st_ctim.tv_nsec);
    }
    return text;
  };
  auto const before = state();
  check_hit();
  CHECK(!fusion::find_entry(fusion::key_of(small_graph(5), {})));
  Forged(folder).write();
  auto const rewritten = state();
  CHECK(rewritten != before);
  check_hit();
  CHECK(state() == rewritten);
}

TEST_CASE("a cache that can't be used never breaks a compilation") {
  CacheFolder const folder;
  auto const file = folder.path / "file";
  std::ofstream(file) << "text";
  auto const unusable = [&](std::string const& place, std::string_view reason, Outcome first) {
    setenv("TENON_CACHE", place.c_str(), 1);
    INFO(place);
    auto const did = lowered();
    CHECK(did.result == right);
    REQUIRE(did.receipts.size() == 2);
    CHECK(did.receipts[0].outcome == first);
    CHECK(did.receipts[1].outcome == Outcome::unstored);
    CHECK_MESSAGE(says(did.receipts[1].reason, reason), did.receipts[1].reason);
  };
  unusable("none", "no cache", Outcome::miss);
  unusable(file, "is a link or no folder", Outcome::refused);
  unusable(file / "below", "is a link or no folder", Outcome::refused);
  unusable("/proc/self/tenon", "No such file or directory", Outcome::miss);
  auto const variables = {"HOME", "XDG_CACHE_HOME", "TENON_CACHE"};
  std::map<std::string, std::string> before;
  for (auto const* name : variables)
    if (char const* const text = std::getenv(name)) before[name] = text;
  for (auto const* name : variables) unsetenv(name);
  CHECK(fusion::cache_folder().empty());
  CHECK(lowered().result == right);
  setenv("HOME", "/home/me", 1);
  CHECK(fusion::cache_folder() == "/home/me/.cache/tenon");
  setenv("XDG_CACHE_HOME", "relative", 1);
  CHECK(fusion::cache_folder() == "/home/me/.cache/tenon");
  setenv("XDG_CACHE_HOME", "/var/tmp/xdg", 1);
  CHECK(fusion::cache_folder() == "/var/tmp/xdg/tenon");
  setenv("TENON_CACHE", "/var/tmp/own/", 1);
  CHECK(fusion::cache_folder() == "/var/tmp/own");
  for (auto const* name : variables) before.contains(name) ? setenv(name, before[name].c_str(), 1) : unsetenv(name);
}

TEST_CASE("receipts are bounded, and each is a line of JSON where TENON_CACHE_LOG says") {
  CacheFolder const folder;
  auto const log = (folder.path / "log").string();
  setenv("TENON_CACHE_LOG", log.c_str(), 1);
  auto const key = fusion::key_of({fusion::key_part("a", "1")});
  for (int k = 0; k < 300; ++k) CHECK(!fusion::find_entry(key, "some \"graph\""));
  unsetenv("TENON_CACHE_LOG");
  CHECK(fusion::receipts().size() == 256);
  CHECK(fusion::receipts().back().key == key);
  auto const text = support::text_of(log);
  CHECK(std::ranges::count(text, '\n') == 300);
  CHECK(says(text, "{\"bytes\":0,\"graph\":\"some \\\"graph\\\"\",\"key\":{\"name\":\"" + key.name + "\",\"parts\":[{\"digest\":"));
  CHECK(says(text, "\"outcome\":\"miss\",\"reason\":\"\",\"seconds\":"));
}

TEST_CASE("entries beyond TENON_CACHE_LIMIT go, those used longest ago first") {
  CacheFolder const folder;
  auto const key = [](std::string const& name) { return fusion::key_of({fusion::key_part("name", name)}); };
  auto const store = [&](std::string const& name) { return fusion::store_entry({.key = key(name), .object = std::vector<std::byte>(20'000)}); };
  auto const there = [&](std::string const& name) { return fs::exists(folder.path / key(name).name); };
  auto const now = std::time(nullptr);
  auto const age = [&](std::string const& name, int read, int written) { support::set_times(folder.path / key(name).name, now - read, now - written); };
  for (auto const* name : {"a", "b", "c", "d"}) CHECK(store(name));
  age("a", 7200, 9000), age("b", 90'000, 90'000), age("c", 7000, 90'000), age("d", 8000, 8000);
  CHECK(fusion::find_entry(key("a")).has_value());  // used now, though written before d
  CHECK(fusion::find_entry(key("c")).has_value());
  struct stat about{};
  REQUIRE(stat((folder.path / key("a").name).c_str(), &about) == 0);
  CHECK(about.st_atim.tv_sec >= now);
  CHECK(about.st_mtim.tv_sec == now - 9000);
  auto const bytes = static_cast<std::int64_t>(fs::file_size(folder.path / key("a").name));
  setenv("TENON_CACHE_LIMIT", std::to_string(5 * bytes + 100).c_str(), 1);
  CHECK(store("e"));  // five fit
  CHECK(folder.entries().size() == 5);
  std::ofstream(folder.path / "notes.txt") << "mine";
  CHECK(store("f"));  // six do not, and four are no more than seven eighths
  CHECK((!there("b") && !there("d")));
  for (auto const* name : {"a", "c", "e", "f"}) CHECK(there(name));
  setenv("TENON_CACHE_LIMIT", "1k", 1);
  CHECK(store("g"));
  CHECK(folder.entries() == std::vector{key("g").name});  // even alone it is more than that
  CHECK((fs::exists(folder.path / "notes.txt") && fs::exists(folder.path / "secret")));
  setenv("TENON_CACHE_LIMIT", "none", 1);
  for (auto const* name : {"a", "b", "c"}) CHECK(store(name));
  CHECK(folder.entries().size() == 4);
  for (auto const* wrong : {"many", "-1", "5 G", "2X", "99999999999999999999"}) {
    setenv("TENON_CACHE_LIMIT", wrong, 1);
    auto const last = support::receipts_so_far();
    CHECK(!store("h"));
    REQUIRE(support::receipts_since(last).size() == 1);
    CHECK(support::receipts_since(last)[0].reason == std::format("TENON_CACHE_LIMIT: \"{}\" is no size such as 500M or 2G, and not none", wrong));
  }
  unsetenv("TENON_CACHE_LIMIT");
}

// -- many processes ---------------------------------------------------------------------------------------------------------------------------

namespace {
int rounds() { return support::tier(10, 25, 200); }
}  // namespace

// Compiles one key again and again; in every 16th round (every round of the full tier) its entry is removed first. Besides, entries of 200 kB whose
// bytes are all alike are written and read, which would show a torn one. Where there is a limit of bytes, they are of several keys, so that each store
// removes some, and what was written may be gone when it is asked for.
TEST_CASE("a child compiles one key again and again" * doctest::skip()) {
  char const* const path = std::getenv("TENON_TEST_FOLDER");
  REQUIRE(path);
  setenv("TENON_CACHE", path, 1);
  bool const limited = std::getenv("TENON_CACHE_LIMIT") != nullptr;
  std::map<std::string_view, int> counts;
  for (int k = 0; k < rounds(); ++k) {
    auto const pattern = fusion::key_of({fusion::key_part("pattern", std::to_string(limited ? k % 8 : 1))});
    if ((k + getpid()) % support::tier(16, 16, 1) == 0) {
      std::error_code ignored;
      for (auto const& file : fs::directory_iterator(path, ignored))
        if (auto const name = file.path().filename().string(); name.size() == 64 && name != pattern.name) fs::remove(file, ignored);
    }
    auto const did = lowered();
    CHECK(did.result == right);
    for (auto const& receipt : did.receipts) ++counts[fusion::text_of(receipt.outcome)];
    auto const last = support::receipts_so_far();
    CHECK(fusion::store_entry({.key = pattern, .object = std::vector<std::byte>(200'000, static_cast<std::byte>(getpid() + k))}));
    auto const found = fusion::find_entry(pattern);
    CHECK(support::receipts_since(last).size() == 2);
    if (limited && !found) continue;
    REQUIRE(found.has_value());
    CHECK(found->object.size() == 200'000);
    CHECK(std::ranges::count(found->object, found->object[0]) == 200'000);
  }
  std::cout << std::format("hits {} misses {} refused {} stored {}", counts["hit"], counts["miss"], counts["refused"], counts["stored"]) << std::endl;
}

namespace {
// 16 processes compile one key at once, with this setting in their environment.
void check_processes(CacheFolder const& folder, std::string const& setting) {
  constexpr int processes = 16;
  auto const command = std::format("{} TENON_THREADS=1 TENON_TEST_FOLDER={} {} -tc='a child compiles one key*' --no-skip 2>&1", setting, folder.path.string(),
                                   fs::canonical("/proc/self/exe").string());
  std::vector<FILE*> children;
  for (int k = 0; k < processes; ++k) children.push_back(popen(command.c_str(), "r"));
  int hits = 0, misses = 0, refused = 0, stored = 0;
  for (FILE* child : children) {
    REQUIRE(child);
    std::string output;
    for (int c; (c = std::fgetc(child)) != EOF;) output += static_cast<char>(c);
    INFO(output);
    CHECK(pclose(child) == 0);
    auto const number = [&](std::string const& name) {
      auto const at = output.find(name + " ");
      REQUIRE(at != std::string::npos);
      return std::stoi(output.substr(at + name.size() + 1));
    };
    hits += number("hits"), misses += number("misses"), refused += number("refused"), stored += number("stored");
  }
  CHECK(hits + misses == processes * rounds());
  CHECK(refused == 0);
  CHECK(misses == stored);
  CHECK(misses > 0);
  for (auto const& listed : fusion::list_entries(folder.path)) CHECK_MESSAGE(listed.fault == "", listed.fault);
  for (auto const& file : fs::directory_iterator(folder.path)) CHECK(!file.path().filename().string().starts_with("."));
}
}  // namespace

TEST_CASE("16 processes that compile one key at once tear no entry and get no wrong result") {
  CacheFolder const folder;
  check_processes(folder, "");
  CHECK(folder.entries().size() <= 2);
}

TEST_CASE("16 processes that store more than the limit refuse nothing, tear nothing and keep within it") {
  CacheFolder const folder;
  constexpr std::int64_t limit = 500 << 10;
  check_processes(folder, "TENON_CACHE_LIMIT=500k");
  setenv("TENON_CACHE_LIMIT", "500k", 1);  // whoever stored last while another one made room left that to the next
  CHECK(fusion::store_entry({.key = fusion::key_of({fusion::key_part("pattern", "last")}), .object = std::vector<std::byte>(200'000)}));
  unsetenv("TENON_CACHE_LIMIT");
  std::int64_t total = 0;
  for (auto const& name : folder.entries()) total += static_cast<std::int64_t>(fs::file_size(folder.path / name));
  CHECK(total <= limit);
}
