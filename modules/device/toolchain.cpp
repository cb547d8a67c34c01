module;
#include <unistd.h>
module tenon.device;
import std;
import tenon.base;
#include "child.hpp"

namespace tenon::device {
namespace {

using base::fail;
namespace fs = std::filesystem;

void append(std::vector<std::string>& words, std::span<std::string const> more) { words.insert(words.end(), more.begin(), more.end()); }

// Parts of a text between separators.
std::vector<std::string_view> parts_of(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t at = 0; at <= text.size();) {
    auto const end = std::min(text.find(separator, at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

// The program's path: as it is if it names a folder, else from PATH; empty if there is none.
std::string find_program(std::string const& name) {
  auto const runs = [](std::string const& path) {
    std::error_code none;
    return fs::is_regular_file(path, none) && access(path.c_str(), X_OK) == 0;
  };
  if (name.find('/') != std::string::npos) return runs(name) ? fs::absolute(name).string() : "";
  char const* const all = std::getenv("PATH");
  for (auto const folder : parts_of(all ? all : "/usr/local/bin:/usr/bin:/bin", ':'))
    if (folder.starts_with('/'))
      if (auto path = std::string(folder) + "/" + name; runs(path)) return path;
  return {};
}

// By its name where that says it, else by what it says of itself.
bool is_clang(std::string const& path) {
  auto const name = fs::canonical(path).filename().string();
  if (name.find("clang") != std::string::npos) return true;
  if (name.find("gcc") != std::string::npos) return false;
  return run_child({{path, "--version"}}).output.find("clang") != std::string::npos;
}

std::optional<Toolchain> found() {
  if (char const* const wish = std::getenv("TENON_CC"); wish && *wish) {
    if (std::string_view(wish) == "none") return {};
    if (find_program(wish).empty()) fail("TENON_CC: there is no program \"{}\"", wish);
    return toolchain_at(wish);
  }
  for (auto const* name : {"clang-19", "clang", "gcc", "cc"})
    if (!find_program(name).empty()) return toolchain_at(name);
  return {};
}

// The line that says what is wrong, without the folder that the source lay in.
std::string complaint(std::string const& output, std::string const& folder) {
  std::string_view first, wrong;
  for (auto const line : parts_of(output, '\n')) {
    if (first.empty()) first = line;
    if (wrong.empty() && (line.find("error:") != std::string::npos || line.find("undefined reference") != std::string::npos)) wrong = line;
  }
  std::string text(!wrong.empty() ? wrong : !first.empty() ? first : "it says nothing");
  for (std::size_t at; (at = text.find(folder + "/")) != std::string::npos;) text.erase(at, folder.size() + 1);
  return text;
}

std::vector<std::byte> bytes_of_file(std::string const& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return {};
  std::vector<std::byte> bytes(static_cast<std::size_t>(file.tellg()));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  return bytes;
}

void check(Ended const& ended, Command const& command, std::string const& folder) {
  if (ended.status == 0) return;
  if (ended.status > 128) fail("{}: ended by signal {}: {}", command.words[0], ended.status - 128, complaint(ended.output, folder));
  fail("{}: {}", command.words[0], complaint(ended.output, folder));
}

// Runs the commands, `most` at once.
void run_all(std::span<Command const> commands, std::size_t most, std::string const& folder) {
  std::deque<std::pair<Child, std::size_t>> running;
  std::exception_ptr error;
  auto const end_one = [&] {
    auto const [child, which] = running.front();
    running.pop_front();
    auto const ended = end_child(child);
    try {
      check(ended, commands[which], folder);
    } catch (...) {
      if (!error) error = std::current_exception();
    }
  };
  for (std::size_t k = 0; k < commands.size() && !error; ++k) {
    while (running.size() >= most) end_one();
    try {
      running.emplace_back(start_child(commands[k]), k);
    } catch (...) {
      error = std::current_exception();
    }
  }
  while (!running.empty()) end_one();
  if (error) std::rethrow_exception(error);
}

}  // namespace

Toolchain toolchain_at(std::string const& program) {
  auto const path = find_program(program);
  if (path.empty()) fail("there is no program \"{}\"", program);
  Toolchain made{.path = path, .identity = identify(path), .clang = is_clang(path), .linker = find_program("ld")};
  if (!made.linker.empty()) made.identity += "; " + identify(made.linker);
  return made;
}

std::optional<Toolchain> const& toolchain() {
  static std::optional<Toolchain> const here = found();
  return here;
}

std::vector<std::string> compile_flags(Toolchain const& with) {
  std::vector<std::string> flags{
      "-x", "c", "-std=gnu11", "-O3", "-fPIC", "-w", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fno-stack-protector", "-fno-ident"};
  auto const isa = cpu().isa;
  flags.emplace_back(isa == cpu().native ? "-march=native" : isa == Isa::avx2 ? "-march=x86-64-v3" : "-march=x86-64");
  if (isa == Isa::avx512) flags.emplace_back("-mprefer-vector-width=512");
  if (!with.clang) flags.emplace_back("-fno-semantic-interposition");
  // Clang 19 guesses that a stride known at run time is 1, and loses the check of that guess where a loop told to be vector code has many pointers.
  if (with.clang) flags.insert(flags.end(), {"-mllvm", "-enable-mem-access-versioning=0"});
  return flags;
}

Object compile(Toolchain const& with, std::span<std::string const> sources, std::span<std::string const> flags) {
  auto const start = std::chrono::steady_clock::now();
  TemporaryFolder const folder;
  std::vector<Command> commands;
  std::vector<std::string> made;
  for (std::size_t k = 0; k < sources.size(); ++k) {
    auto const stem = sources.size() == 1 ? folder.path + "/source" : std::format("{}/source{}", folder.path, k);
    std::ofstream file(stem + ".c", std::ios::binary);
    if (!(file << sources[k] << std::flush)) fail("{}.c: {} bytes can't be written", stem, sources[k].size());
    // -c alone: clang then compiles in the process that was started, where it would start another one beside a link.
    Command command{{with.path}};
    append(command.words, compile_flags(with));
    append(command.words, flags);
    append(command.words, std::array<std::string, 4>{"-c", stem + ".c", "-o", stem + ".o"});
    commands.push_back(std::move(command));
    made.push_back(stem + ".o");
  }
  run_all(commands, static_cast<std::size_t>(threads()), folder.path);

  auto const library = folder.path + "/library.so";
  auto const link = [&](std::vector<std::string> words, std::span<std::string const> last) {
    append(words, made);
    append(words, std::array<std::string, 2>{"-o", library});
    append(words, last);
    return Command{std::move(words)};
  };
  // The linker itself takes 5 ms where the compiler takes 40 to start it. Where it fails, the compiler knows better what it needs.
  bool linked = false;
  if (!with.linker.empty()) {
    std::array<std::string, 2> const math{"--as-needed", "-l:libm.so.6"};
    linked = run_child(link({with.linker, "-shared", "-z", "noexecstack"}, math)).status == 0;
  }
  if (!linked) {
    std::array<std::string, 1> const math{"-lm"};
    auto const command = link({with.path, "-shared"}, math);
    check(run_child(command), command, folder.path);
  }
  Object object{bytes_of_file(library), std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
  if (object.bytes.empty()) fail("{}: ended without a word and made no object", with.path);
  return object;
}

Object compile(Toolchain const& with, std::string_view source, std::span<std::string const> flags) {
  std::string const one(source);
  return compile(with, std::span(&one, 1), flags);
}

}  // namespace tenon::device
