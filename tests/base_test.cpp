#include <doctest/doctest.h>
#include <fcntl.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>
import std;
import tenon.base;
#include "caught.hpp"
using namespace tenon::base;
using support::caught;
using support::says;

namespace {

/// What `act` writes to stderr in a child process, with stderr a terminal of 60 columns or a pipe.
std::string stderr_of(bool terminal, std::function<void()> act) {
  int reader = -1, writer = -1;
  winsize window{.ws_row = 24, .ws_col = 60, .ws_xpixel = 0, .ws_ypixel = 0};
  if (terminal) {
    REQUIRE(::openpty(&reader, &writer, nullptr, nullptr, &window) == 0);
  } else {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    reader = ends[0], writer = ends[1];
  }
  std::cout.flush();  // the child would write what is buffered once more
  ::pid_t const child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::dup2(writer, STDERR_FILENO);
    act();
    ::_exit(0);
  }
  ::close(writer);
  std::string text;
  char buffer[4096];
  for (::ssize_t got = 0; (got = ::read(reader, buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<std::size_t>(got));
  ::close(reader);
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
  return text;
}

}  // namespace

TEST_CASE("numel counts, and refuses what is negative or overflows") {
  CHECK(numel(Shape{}) == 1);
  CHECK(numel(Shape{2, 3, 4}) == 24);
  CHECK(numel(Shape{2, 0, 4}) == 0);
  CHECK(numel(Shape{std::int64_t{1} << 40, std::int64_t{1} << 40, 0}) == 0);
  CHECK(numel(Shape{std::int64_t{1} << 62, 1}) == std::int64_t{1} << 62);
  CHECK(caught([] { numel(Shape{std::int64_t{1} << 62, 2}); }) == "numel: [4611686018427387904, 2] overflows 64 bits");
  CHECK(caught([] { numel(Shape{3, -1}); }) == "numel: negative size in [3, -1]");
}

TEST_CASE("contiguous strides are row-major and recognised") {
  CHECK(contiguous_strides(Shape{}) == Shape{});
  CHECK(contiguous_strides(Shape{2, 3, 4}) == Shape{12, 4, 1});
  CHECK(contiguous_strides(Shape{2, 0, 4}) == Shape{4, 4, 1});
  CHECK(says(caught([] { contiguous_strides(Shape{0, std::int64_t{1} << 40, std::int64_t{1} << 40}); }), "overflows"));
  CHECK(is_contiguous(Shape{2, 1, 3}, Shape{3, 99, 1}));
  CHECK(is_contiguous(Shape{0, 3}, Shape{5, 7}));
  CHECK(is_contiguous(Shape{}, Shape{}));
  CHECK_FALSE(is_contiguous(Shape{2, 3}, Shape{1, 2}));
  CHECK_FALSE(is_contiguous(Shape{2, 3}, Shape{4, 1}));
  CHECK_FALSE(is_contiguous(Shape{2}, Shape{0}));
}

TEST_CASE("broadcasting") {
  CHECK(broadcast("add", Shape{2, 1, 4}, Shape{3, 1}) == Shape{2, 3, 4});
  CHECK(broadcast("add", Shape{}, Shape{5}) == Shape{5});
  CHECK(broadcast("add", Shape{0}, Shape{1}) == Shape{0});
  CHECK(caught([] { broadcast("add", Shape{2, 3}, Shape{4}); }) == "add: shapes [2, 3] and [4] do not broadcast: 3 and 4 differ");
  CHECK(says(caught([] { broadcast("add", Shape{0}, Shape{2}); }), "[0] and [2]"));
}

TEST_CASE("dims and devices by name") {
  CHECK(wrap_dim("sum", -1, 3) == 2);
  CHECK(wrap_dim("sum", 0, 3) == 0);
  CHECK(caught([] { wrap_dim("sum", 3, 3); }) == "sum: dim 3 is out of range for rank 3");
  CHECK(caught([] { wrap_dim("sum", 0, 0); }) == "sum: dim 0 is out of range for rank 0");
  CHECK(to_string(Shape{2, 3}) == "[2, 3]");
  CHECK(to_string(Shape{}) == "[]");
  for (std::string const name : {"cpu", "cuda:0", "cuda:12", "sim:1"}) CHECK(to_string(device_of(name)) == name);
  CHECK(device_of("cuda") == Device{.kind = Device::Kind::cuda, .index = 0});
  for (std::string const name : {"", "tpu", "cpu:0", "cuda:", "cuda:-1", "cuda:1x", "cuda:128", "CPU"})
    CHECK(caught([&] { device_of(name); }) == std::format("device_of: unknown device '{}': cpu, cuda:N or sim:N", name));
}

TEST_CASE("an inline vector behaves as a vector, on either side of its inline room") {
  std::mt19937 random(3);
  InlineVector<int, 4> ours;
  std::vector<int> theirs;
  for (int step = 0; step < 20'000; ++step) {
    int const value = static_cast<int>(random() % 100);
    switch (random() % 7) {
      case 0:
        ours.clear(), theirs.clear();
        break;
      case 1:
        ours.resize(static_cast<std::size_t>(value % 12), value), theirs.resize(static_cast<std::size_t>(value % 12), value);
        break;
      case 2:
        ours = InlineVector<int, 4>(std::span<int const>(theirs));
        break;
      case 3: {
        auto copy = ours;
        ours = std::move(copy);
        break;
      }
      case 4: {
        InlineVector<int, 4> const moved(std::move(ours));
        ours = moved;
        break;
      }
      default:
        ours.push_back(value), theirs.push_back(value);
    }
    if (!std::ranges::equal(ours, theirs)) FAIL_CHECK(step);
  }
  InlineVector<int, 4> const two{5, 6};
  CHECK(two[1] == 6);
  CHECK_THROWS_WITH_AS((void)two[2], "item 2 of a list of 2", Bug);  // there is room for it, but nothing was put there
  ours.resize(9, 1);
  CHECK_THROWS_WITH_AS((void)ours[9], "item 9 of a list of 9", Bug);
}

TEST_CASE("the first Ref to an object counts as any other") {
  struct Counted : RefCounted {
    bool* gone;
    explicit Counted(bool* flag) : gone(flag) {}
    ~Counted() { *gone = true; }
  };
  bool gone = false;
  auto first = make_ref<Counted>(&gone);
  CHECK(first.use_count() == 1);
  auto second = first;
  CHECK(second.use_count() == 2);
  first = nullptr;
  CHECK_FALSE(gone);
  second = nullptr;
  CHECK(gone);
}

TEST_CASE("buffers are aligned and counted") {
  auto const before = memory_counters();
  reset_peak();
  {
    auto const small = make_ref<Buffer>(100);
    Ref<Buffer> const again = small;
    CHECK(small.use_count() == 2);
    CHECK(reinterpret_cast<std::uintptr_t>(small->data()) % 64 == 0);
    CHECK(memory_counters().live == before.live + 100);
    { Buffer const large(1 << 20); }
    Buffer const none(0);
    CHECK(none.bytes() == 0);
  }
  auto const after = memory_counters();
  CHECK(after.live == before.live);
  CHECK(after.peak == before.live + 100 + (1 << 20));
  CHECK(after.allocations == before.allocations + 3);
  reset_peak();
  CHECK(memory_counters().peak == before.live);
}

TEST_CASE("a buffer that cannot be had is an Error and is not counted") {
  auto const before = memory_counters();
  std::int64_t const huge = std::int64_t{1} << 60;
  CHECK(caught([&] { Buffer{huge}; }) == std::format("Buffer: no memory for {} bytes ({} are held already)", huge, before.live));
  CHECK(says(caught([] { Buffer{std::numeric_limits<std::int64_t>::max()}; }), "9223372036854775807 bytes"));
  CHECK(caught([] { Buffer{-1}; }) == "Buffer: a size of -1 bytes is negative");
  CHECK(memory_counters().live == before.live);
  CHECK(memory_counters().allocations == before.allocations);
}

TEST_CASE("counters and references hold under threads") {
  auto const before = memory_counters();
  reset_peak();
  constexpr int threads = 8, turns = 5'000;
  auto shared = make_ref<Buffer>(64);
  {
    std::vector<std::jthread> crew;
    for (int i = 0; i < threads; ++i)
      crew.emplace_back([&shared] {
        for (int turn = 0; turn < turns; ++turn) {
          Buffer const own(turn % 100);
          Ref<Buffer> const mine = shared;
          Ref<Buffer> moved = mine;
          moved = nullptr;
        }
      });
  }
  CHECK(shared.use_count() == 1);
  shared = nullptr;
  auto const after = memory_counters();
  CHECK(after.live == before.live);
  CHECK(after.allocations == before.allocations + threads * turns + 1);
  CHECK(after.peak >= before.live + 64 + 99);
  CHECK(after.peak <= before.live + 64 + threads * 99);
}

TEST_CASE("errors carry their text, bugs their place") {
  CHECK(caught([] { fail("matmul: inner dims differ: {} and {}", 3, 4); }) == "matmul: inner dims differ: 3 and 4");
  At const here = At::current();
  CHECK(short_place(here).starts_with(std::format("base_test.cpp:{}:", here.line)));
  CHECK_NOTHROW(ensure(true, "holds"));
  try {
    ensure(false, "sizes agree");
    FAIL("no Bug");
  } catch (Bug const& bug) {
    CHECK(std::string(bug.what()).starts_with(std::format("sizes agree (base_test.cpp:{}:", here.line + 4)));
  }
}

namespace {

/// A tab and two characters of more than one byte stand before the place.
At marked() {
  At const at = /*	é√ */ At::current();
  return at;
}

}  // namespace

TEST_CASE("a caret stands under its column") {
  At const at = marked();
  CHECK(source_line(at) == "  At const at = /*\té√ */ At::current();");
  std::string const two_lines = caret(at, 2);
  auto const end = two_lines.find('\n');
  CHECK(two_lines.substr(0, end) == "  At const at = /*\té√ */ At::current();");
  CHECK(two_lines.substr(end + 1) == "                  \t      ^\n");
  CHECK(caret(At{}).empty());
  CHECK(source_line(At{}).empty());
}

TEST_CASE("log topics choose what is written, and a sink takes it") {
  std::vector<std::pair<std::string, std::string>> lines;
  set_log_sink([&](std::string_view topic, std::string_view line) { lines.emplace_back(topic, line); });
  set_log_topics(" recompiles, guards ,");
  CHECK(log_enabled("guards"));
  CHECK(log_enabled("recompiles"));
  CHECK_FALSE(log_enabled("fusion"));
  log("guards", "{} guards", 3);
  log("fusion", "unseen {}", 4);
  log_line("fusion", "unseen");
  set_log_topics("all");
  log_line("fusion", "seen");
  set_log_topics("");
  CHECK_FALSE(log_enabled("guards"));
  log_line("guards", "unseen");
  CHECK(lines == std::vector<std::pair<std::string, std::string>>{{"guards", "[guards] 3 guards"}, {"fusion", "[fusion] seen"}});
  set_log_sink({});
}

TEST_CASE("lines of several threads do not mix") {
  std::vector<std::string> lines;  // the sink needs no lock of its own
  set_log_sink([&](std::string_view, std::string_view line) { lines.emplace_back(line); });
  set_log_topics("threads");
  {
    std::vector<std::jthread> crew;
    for (int i = 0; i < 4; ++i)
      crew.emplace_back([i] {
        for (int turn = 0; turn < 1'000; ++turn) log("threads", "{}:{}", i, turn);
        set_log_topics("threads,other");
      });
  }
  set_log_topics("");
  set_log_sink({});
  CHECK(lines.size() == 4'000);
  CHECK(std::set(lines.begin(), lines.end()).size() == 4'000);
}

TEST_CASE("a sink may log and may replace itself") {
  std::vector<std::string> lines;
  set_log_topics("outer,inner");
  set_log_sink([&](std::string_view topic, std::string_view line) {
    lines.emplace_back(line);
    if (topic == "outer") log_line("inner", "from the sink");
    if (topic == "inner") set_log_sink([&](std::string_view, std::string_view later) { lines.push_back("second " + std::string(later)); });
  });
  log_line("outer", "first");
  log_line("outer", "again");
  set_log_sink({});
  set_log_topics("");
  CHECK(lines == std::vector<std::string>{"[outer] first", "[inner] from the sink", "second [outer] again"});
}

TEST_CASE("without a sink a log line goes to stderr") {
  auto const text = stderr_of(false, [] {
    set_log_topics("guards");
    log_line("guards", "one");
    log_line("other", "two");
  });
  CHECK(text == "[guards] one\n");
}

TEST_CASE("TENON_LOG names the topics of a fresh process") {
  // This process has read its environment; a child that starts anew reads its own.
  std::string const program = std::filesystem::read_symlink("/proc/self/exe").string();
  ::setenv("TENON_LOG", "guards,fusion", 1);
  auto const text = stderr_of(false, [&] {
    ::dup2(::open("/dev/null", O_WRONLY), STDOUT_FILENO);
    ::execl(program.c_str(), program.c_str(), "--no-skip", "--test-case=log child", static_cast<char*>(nullptr));
  });
  ::unsetenv("TENON_LOG");
  CHECK(text == "[fusion] enabled by the environment\n");
}

TEST_CASE("log child" * doctest::skip()) {
  log_line("fusion", "enabled by the environment");
  log_line("recompiles", "not enabled");
}

TEST_CASE("a bar is drawn on a terminal only, fits its width and is erased") {
  auto const work = [] {
    set_log_topics("step");
    Progress progress("reading", 10);
    progress.advance(5, "halfway through a note that is far too long for a terminal of sixty columns");
    log_line("step", "a line");
    for (int i = 0; i < 5; ++i) progress.advance();  // within a tenth of a second: not drawn
  };
  CHECK(stderr_of(false, work) == "[step] a line\n");
  std::string const drawn = stderr_of(true, work);
  std::string const erase = "\r\x1b[K";
  std::string const bar = std::string("reading [############............] 5/10 halfway through a note that is far").substr(0, 59);
  CHECK(drawn == erase + bar + erase + "[step] a line\r\n" + erase);
  CHECK(says(stderr_of(true, [] { Progress("nothing to do", 0).advance(0); }), "0/0"));
}
