#include <doctest/doctest.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
import std;
import tenon.base;
import tenon.device;
#include "caught.hpp"
using namespace tenon;
using namespace support;
namespace fs = std::filesystem;

namespace {

/// Sets the number of threads for a scope.
struct Threads {
  int const before = device::threads();
  explicit Threads(int count) { device::set_threads(count); }
  ~Threads() { device::set_threads(before); }
};

/// What this program writes and returns when it is started with an environment and one test case.
struct Ran {
  int status;
  std::string output;
};
Ran self(std::string const& environment, std::string const& test) {
  auto const command = std::format("{} {} -tc='{}' --no-skip 2>&1", environment, fs::canonical("/proc/self/exe").string(), test);
  FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe);
  std::string output;
  for (int c; (c = std::fgetc(pipe)) != EOF;) output += static_cast<char>(c);
  int const status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, output};
}

std::string flags_of_system() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("flags")) return line + " ";
  return {};
}

device::Toolchain const& compiler() {
  REQUIRE(device::toolchain().has_value());
  return *device::toolchain();
}

constexpr std::string_view twice = "long twice(long x) { return 2 * x; }";

}  // namespace

TEST_CASE("the processor has what the system says of it") {
  auto const flags = flags_of_system();
  auto const has = [&](std::string const& flag) { return says(flags, " " + flag + " "); };
  auto const native = has("avx512f") && has("avx512bw") && has("avx512dq") && has("avx512vl") ? device::Isa::avx512
                      : has("avx2") && has("fma") && has("bmi2")                              ? device::Isa::avx2
                                                                                              : device::Isa::baseline;
  auto const& cpu = device::cpu();
  CHECK(cpu.native == native);
  CHECK(cpu.amx_bf16 == has("amx_bf16"));
  CHECK(!cpu.name.empty());
  CHECK(cpu.features.size() == 8 * 9 - 1);
  CHECK(cpu.l1 >= 8 << 10);
  CHECK(cpu.l2 > cpu.l1);
  CHECK(cpu.l3 > cpu.l2);
}

TEST_CASE("a child prints what the environment made of it" * doctest::skip()) {
  std::cout << "isa " << device::name_of(device::cpu().isa) << " threads " << device::threads() << " compiler "
            << (device::toolchain() ? device::toolchain()->path : "none") << std::endl;
}

TEST_CASE("the environment lowers the instruction set and the threads, and names the compiler") {
  std::string const test = "a child prints*";
  CHECK(says(self("TENON_ISA=baseline TENON_THREADS=3 TENON_CC=none", test).output, "isa baseline threads 3 compiler none"));
  if (device::cpu().native >= device::Isa::avx2) CHECK(says(self("TENON_ISA=avx2", test).output, "isa avx2 "));
  if (device::cpu().native == device::Isa::avx512) CHECK(says(self("TENON_ISA=avx512", test).output, "isa avx512 "));
  auto const wrong = self("TENON_ISA=sse", test);
  CHECK(wrong.status != 0);
  CHECK(says(wrong.output, "TENON_ISA: \"sse\" is none of baseline, avx2 and avx512"));
  CHECK(says(self("TENON_THREADS=0", test).output, "TENON_THREADS: \"0\" is no whole number from 1 to 1024"));
  CHECK(says(self("TENON_THREADS=2x", test).output, "TENON_THREADS: \"2x\" is no whole number from 1 to 1024"));
  CHECK(says(self("TENON_CC=no-such-cc", test).output, "TENON_CC: there is no program \"no-such-cc\""));
  auto const one = self("taskset -c 0", test);
  if (one.status == 0) CHECK(says(one.output, " threads 1 "));
}

TEST_CASE("parallel calls every item once, on threads that it may use") {
  for (int const count : {1, 2, 3, 8}) {
    Threads const threads(count);
    CHECK(device::threads() == count);
    for (std::int64_t const items : {0, 1, 2, 3, 7, 64, 1000}) {
      std::vector<std::atomic<int>> calls(static_cast<std::size_t>(items));
      std::atomic<bool> good = true;
      for (int round = 0; round < 50; ++round)
        device::parallel(items, [&](std::int64_t item, int thread) {
          calls[static_cast<std::size_t>(item)].fetch_add(1, std::memory_order_relaxed);
          if (thread < 0 || thread >= count) good = false;
        });
      CHECK(good);
      CHECK(std::ranges::all_of(calls, [](auto const& n) { return n == 50; }));
    }
  }
}

TEST_CASE("each number of a thread is used by one thread at a time") {
  Threads const threads(4);
  std::array<std::atomic<int>, 4> inside{};
  std::atomic<bool> alone = true;
  for (int round = 0; round < 200; ++round)
    device::parallel(16, [&](std::int64_t, int thread) {
      if (inside[static_cast<std::size_t>(thread)].fetch_add(1) != 0) alone = false;
      for (int k = 0; k < 50; ++k) __builtin_ia32_pause();
      inside[static_cast<std::size_t>(thread)].fetch_sub(1);
    });
  CHECK(alone);
}

TEST_CASE("what one call wrote is seen by the next, also after the workers slept") {
  Threads const threads(3);
  std::vector<std::int64_t> sums(64, 0);
  for (int round = 0; round < 300; ++round) {
    device::parallel(64, [&](std::int64_t item, int) { sums[static_cast<std::size_t>(item)] += item + (item ? 0 : round); });
    device::parallel(64, [&](std::int64_t item, int) { sums[static_cast<std::size_t>(63 - item)] += 1; });
    if (round % 100 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
  }
  CHECK(sums[0] == 300 * 299 / 2 + 300);
  for (std::int64_t k = 1; k < 64; ++k) CHECK(sums[static_cast<std::size_t>(k)] == 300 * k + 300);
}

TEST_CASE("a call in a call runs on the thread that makes it") {
  Threads const threads(2);
  std::atomic<int> calls = 0;
  std::atomic<bool> same = true;
  device::parallel(8, [&](std::int64_t, int outer) {
    auto const here = std::this_thread::get_id();
    device::parallel(8, [&](std::int64_t, int inner) {
      ++calls;
      if (std::this_thread::get_id() != here || inner != outer) same = false;
    });
  });
  CHECK(calls == 64);
  CHECK(same);
}

TEST_CASE("callers at the same time all get their work done") {
  Threads const threads(2);
  std::array<std::int64_t, 4> sums{};
  {
    std::vector<std::jthread> callers;
    for (std::size_t who = 0; who < sums.size(); ++who)
      callers.emplace_back([&, who] {
        for (int round = 0; round < 500; ++round) {
          std::array<std::int64_t, 9> parts{};
          device::parallel(9, [&](std::int64_t item, int) { parts[static_cast<std::size_t>(item)] = item; });
          for (auto const part : parts) sums[who] += part;
        }
      });
  }
  for (auto const sum : sums) CHECK(sum == 500 * 36);
}

TEST_CASE("the first exception reaches the caller and the pool goes on") {
  for (int const count : {1, 4}) {
    Threads const threads(count);
    for (int round = 0; round < 50; ++round) {
      std::atomic<int> calls = 0;
      auto const text = caught([&] {
        device::parallel(1000, [&](std::int64_t item, int) {
          ++calls;
          if (item == 7) base::fail("item {} is bad", item);
        });
      });
      CHECK(text == "item 7 is bad");
      CHECK(calls >= 1);
      calls = 0;
      device::parallel(10, [&](std::int64_t, int) { ++calls; });
      CHECK(calls == 10);
    }
  }
}

TEST_CASE("a wrong number of threads is refused") {
  CHECK(caught([] { device::set_threads(0); }) == "set_threads: 0 is not from 1 to 1024");
  CHECK(caught([] { device::set_threads(1025); }) == "set_threads: 1025 is not from 1 to 1024");
  Threads const threads(2);
  CHECK(caught([] { device::parallel(2, [](std::int64_t, int) { device::set_threads(3); }); }) == "set_threads: called within parallel; 2 threads are at work");
}

TEST_CASE("a fork computes alone and ends") {
  Threads const threads(3);
  device::parallel(8, [](std::int64_t, int) {});
  pid_t const child = fork();
  if (child == 0) {
    std::atomic<int> calls = 0;
    device::parallel(100, [&](std::int64_t, int) { ++calls; });
    ::_exit(calls == 100 ? 7 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WEXITSTATUS(status) == 7);
}

TEST_CASE("C becomes a library whose functions run") {
  auto const before = device::libraries_loaded();
  auto const object = device::compile(compiler(), twice);
  CHECK(object.bytes.size() > 500);
  CHECK(object.seconds > 0);
  device::Library library(object.bytes, "twice");
  CHECK(device::libraries_loaded() == before + 1);
  auto const f = reinterpret_cast<long (*)(long)>(library.symbol("twice"));
  REQUIRE((f != nullptr));
  CHECK(f(21) == 42);
  CHECK(library.symbol("thrice") == nullptr);
  auto const copy = library;
  library = {};
  CHECK(!library);
  CHECK(f(4) == 8);  // the copy keeps it loaded
}

TEST_CASE("libraries loaded one after another are different ones") {
  std::vector<device::Library> all;
  for (int k = 0; k < 6; ++k) all.emplace_back(device::compile(compiler(), std::format("int which(void) {{ return {}; }}", k)).bytes, "which");
  for (int k = 0; k < 6; ++k) CHECK(reinterpret_cast<int (*)()>(all[static_cast<std::size_t>(k)].symbol("which"))() == k);
}

TEST_CASE("several sources become one library; functions of libm are found") {
  std::vector<std::string> const sources{"double erf(double); double f(double x) { return erf(x); }",
                                         "double f(double); double g(double x) { return 1 + f(x); }", "double h(double x) { return __builtin_exp(x); }"};
  device::Library const library(device::compile(compiler(), sources).bytes, "three");
  auto const call = [&](char const* name) { return reinterpret_cast<double (*)(double)>(library.symbol(name)); };
  CHECK(call("g")(0.0) == 1.0);
  CHECK(call("f")(0.5) == doctest::Approx(0.5204998778130465).epsilon(1e-15));
  CHECK(call("h")(1.0) == doctest::Approx(std::numbers::e).epsilon(1e-15));
}

TEST_CASE("every compiler that is here makes the same values, at every instruction set") {
  for (std::string const name : {"clang-19", "clang", "gcc", "cc"}) {
    if (system(("command -v " + name + " >/dev/null").c_str()) != 0) continue;
    auto const with = device::toolchain_at(name);
    device::Library const library(device::compile(with, "void scale(float* x, long n) { for (long i = 0; i < n; ++i) x[i] = x[i] * 3 + 1; }").bytes, name);
    std::vector<float> x(1003);
    std::iota(x.begin(), x.end(), 0.f);
    reinterpret_cast<void (*)(float*, long)>(library.symbol("scale"))(x.data(), 1003);
    bool right = true;
    for (std::size_t k = 0; k < x.size(); ++k) right = right && x[k] == static_cast<float>(3 * k + 1);
    CHECK(right);
    CHECK(says(with.identity, "bytes"));
  }
}

TEST_CASE("the compiler's first complaint is the error") {
  auto const text = caught([] { device::compile(compiler(), "int f(void) { return missing_name; }"); });
  CHECK(says(text, compiler().path + ": source.c:1:"));
  CHECK(says(text, "missing_name"));
  CHECK(!says(text, "\n"));
  CHECK(!says(text, fs::temp_directory_path().string() + "/tenon"));
  std::vector<std::string> const flags{"-DANSWER=42"};
  device::Library const library(device::compile(compiler(), "int f(void) { return ANSWER; }", flags).bytes, "flags");
  CHECK(reinterpret_cast<int (*)()>(library.symbol("f"))() == 42);
}

TEST_CASE("what is no library is refused with the loader's words") {
  auto bytes = device::compile(compiler(), twice).bytes;
  CHECK(says(caught([] { device::Library({}, "nothing"); }), "nothing: can't be loaded: "));
  bytes.resize(100);
  CHECK(says(caught([&] { device::Library(bytes, "torn"); }), "torn: can't be loaded: "));
}

TEST_CASE("loading leaves no descriptor and compiling no file behind") {
  auto const count = [] { return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator()); };
  auto const before = count();
  device::Library const library(device::compile(compiler(), twice).bytes, "twice");
  caught([] { device::compile(compiler(), "wrong"); });
  CHECK(count() == before);
}

TEST_CASE("a compiler is told from another by what it is") {
  auto const identity = compiler().identity;
  CHECK(identity == device::toolchain_at(compiler().path).identity);
  std::string folder = fs::temp_directory_path() / "tenon-device-XXXXXX";
  REQUIRE(mkdtemp(folder.data()));
  auto const script = folder + "/my-cc";
  auto const write = [&](std::string const& version) {
    std::ofstream(script) << "#!/bin/sh\necho gcc " << version << "\n";
    fs::permissions(script, fs::perms::owner_all);
    return device::toolchain_at(script);
  };
  auto const one = write("1.0"), two = write("2.0");
  CHECK(!one.clang);
  CHECK(one.identity != two.identity);
  CHECK(says(one.identity, "gcc 1.0"));
  CHECK(one.identity != identity);
  CHECK(caught([&] { device::compile(two, twice); }) == script + ": ended without a word and made no object");
  fs::remove_all(folder);
}
