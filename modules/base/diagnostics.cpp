module;
#include <sys/ioctl.h>
#include <unistd.h>
module tenon.base;
import std;

namespace tenon::base {

void ensure(bool condition, std::string_view what, At at) {
  if (!condition) throw Bug(std::format("{} ({})", what, short_place(at)));
}

std::string short_place(At at) {
  std::string_view const file = at.file;
  return std::format("{}:{}:{}", file.substr(file.rfind('/') + 1), at.line, at.column);
}

namespace {

/// The named source file; a relative name counts from the build folder, which is the working folder or holds the program.
std::ifstream open_source(std::filesystem::path const& name) {
  std::ifstream file(name);
  if (file || name.is_absolute() || name.empty()) return file;
  std::error_code error;
  auto folder = std::filesystem::read_symlink("/proc/self/exe", error);
  while (!file && folder.has_relative_path()) {
    folder = folder.parent_path();
    file = std::ifstream(folder / name);
  }
  return file;
}

}  // namespace

std::string source_line(At at) {
  std::ifstream file = open_source(at.file);
  std::string line;
  for (std::uint32_t number = 0; number < at.line; ++number)
    if (!std::getline(file, line)) return {};
  return line;
}

std::string caret(At at, int indent) {
  std::string const line = source_line(at);
  std::size_t const first = line.find_first_not_of(" \t");
  if (first == std::string::npos) return {};
  std::size_t const column = std::clamp<std::size_t>(at.column ? at.column - 1 : 0, first, line.size());
  std::string below;
  for (char const byte : std::string_view(line).substr(first, column - first)) {
    bool const continues = (static_cast<unsigned char>(byte) & 0xC0) == 0x80;  // a column counts bytes, a terminal counts characters
    if (!continues) below += byte == '\t' ? '\t' : ' ';
  }
  return std::format("{0:{1}}{2}\n{0:{1}}{3}^\n", "", indent, std::string_view(line).substr(first), below);
}

namespace {

using Sink = std::function<void(std::string_view topic, std::string_view line)>;
using Topics = std::set<std::string, std::less<>>;

constexpr std::string_view erase_line = "\r\x1b[K";
constinit std::atomic<int> bars_drawn{0};

Topics topics_in(std::string_view list) {
  Topics topics;
  for (auto const part : std::views::split(list, ',')) {
    std::string_view topic(part.begin(), part.end());
    topic.remove_prefix(std::min(topic.find_first_not_of(' '), topic.size()));
    topic.remove_suffix(topic.size() - (topic.find_last_not_of(' ') + 1));
    if (!topic.empty()) topics.emplace(topic);
  }
  return topics;
}

struct Log {
  std::shared_mutex topics_mutex;
  Topics topics;
  std::atomic<bool> silent;
  std::recursive_mutex sink_mutex;  // recursive: a sink may log
  std::shared_ptr<Sink const> sink;

  Log() { name(std::getenv("TENON_LOG")); }
  void name(char const* list) {
    topics = topics_in(list ? list : "");
    silent = topics.empty();
  }
};

Log& the_log() {
  static Log& log = *new Log;  // never destroyed: other static objects may log from their destructors
  return log;
}

}  // namespace

bool log_enabled(std::string_view topic) {
  Log& log = the_log();
  if (log.silent.load(std::memory_order_relaxed)) return false;
  std::shared_lock const lock(log.topics_mutex);
  return log.topics.contains(topic) || log.topics.contains("all");
}

void set_log_topics(std::string_view topics) {
  Log& log = the_log();
  std::unique_lock const lock(log.topics_mutex);
  log.name(std::string(topics).c_str());
}

void set_log_sink(Sink sink) {
  Log& log = the_log();
  std::lock_guard const lock(log.sink_mutex);
  log.sink = sink ? std::make_shared<Sink const>(std::move(sink)) : nullptr;
}

void log_line(std::string_view topic, std::string_view text) {
  if (!log_enabled(topic)) return;
  std::string const line = std::format("[{}] {}", topic, text);
  Log& log = the_log();
  std::lock_guard const lock(log.sink_mutex);
  if (auto const sink = log.sink)  // a copy: the sink may replace itself
    (*sink)(topic, line);
  else
    std::cerr << std::format("{}{}\n", bars_drawn > 0 ? erase_line : "", line);
}

Progress::Progress(std::string label, std::int64_t total) : label_(std::move(label)), total_(total), shown_(::isatty(STDERR_FILENO) == 1) {
  if (shown_) ++bars_drawn;
}

Progress::~Progress() {
  if (!shown_) return;
  --bars_drawn;
  std::cerr << erase_line;
}

void Progress::advance(std::int64_t steps, std::string_view note) {
  done_ += steps;
  auto const now = std::chrono::steady_clock::now();
  if (!shown_ || now - drawn_ < std::chrono::milliseconds(100)) return;
  drawn_ = now;
  constexpr int cells = 24;
  double const part = total_ > 0 ? std::clamp(static_cast<double>(done_) / static_cast<double>(total_), 0.0, 1.0) : 1.0;
  int const full = static_cast<int>(part * cells);
  std::string text = std::format("{} [{:#<{}}{:.<{}}] {}/{} {}", label_, "", full, "", cells - full, done_, total_, note);
  winsize window{};
  std::size_t const width = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0 ? window.ws_col : 80;
  if (text.size() >= width) text.resize(width - 1);  // a bar that wraps could not be erased
  std::cerr << std::format("{}{}", erase_line, text);
}

}  // namespace tenon::base
