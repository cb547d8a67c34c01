export module tenon.base:diagnostics;
import std;

export namespace tenon::base {

/// A place in source text; as a last parameter `At at = At::current()` it is the caller's.
struct At {
  char const* file = "";
  std::uint32_t line = 0, column = 0;
  char const* function = "";
  static consteval At current(std::source_location here = std::source_location::current()) {
    return {here.file_name(), here.line(), here.column(), here.function_name()};
  }
};

/// The user's mistake, in one line that names what, where and both values.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Our own mistake: a broken invariant of the toolkit.
struct Bug : std::logic_error {
  using std::logic_error::logic_error;
};

/// Throws Error with the formatted text.
template <class... Args>
[[noreturn]] void fail(std::format_string<Args...> text, Args&&... args) {
  throw Error(std::format(text, std::forward<Args>(args)...));
}

/// Throws Bug naming `what` and the caller's place unless `condition` holds.
void ensure(bool condition, std::string_view what, At at = At::current());

/// "file.cpp:12:9" with the file's last path component only.
std::string short_place(At at);

/// Reads line `at.line` of the file that `at` names; empty when the file or line is gone.
std::string source_line(At at);

/// The source line without its own indentation and a caret under the column, each indented by `indent` spaces and ended by a newline; empty
/// without a source.
std::string caret(At at, int indent = 4);

/// Whether TENON_LOG (comma separated topics, "all" for each) or `set_log_topics` names this topic.
bool log_enabled(std::string_view topic);

/// Replaces the topics that TENON_LOG named, e.g. "recompiles,guards"; "" silences all.
void set_log_topics(std::string_view topics);

/// Sends every later log line ("[topic] text", one at a time) to `sink` instead of stderr; an empty function restores stderr.
void set_log_sink(std::function<void(std::string_view topic, std::string_view line)> sink);

/// Writes one "[topic] text" line to the sink if the topic is enabled; safe from several threads.
void log_line(std::string_view topic, std::string_view text);

/// Formats and logs; the arguments are formatted only if the topic is enabled.
template <class... Args>
void log(std::string_view topic, std::format_string<Args...> text, Args&&... args) {
  if (log_enabled(topic)) log_line(topic, std::format(text, std::forward<Args>(args)...));
}

/// A bar on stderr that is drawn only when stderr is a terminal and erased when it ends.
class Progress {
 public:
  /// `total` steps named `label`.
  Progress(std::string label, std::int64_t total);
  ~Progress();
  Progress(Progress const&) = delete;
  Progress& operator=(Progress const&) = delete;
  /// Moves on by `steps` and shows `note` behind the bar; redraws at most 10 times a second.
  void advance(std::int64_t steps = 1, std::string_view note = {});

 private:
  std::string label_;
  std::int64_t total_, done_ = 0;
  bool shown_;
  std::chrono::steady_clock::time_point drawn_{};
};

}  // namespace tenon::base
