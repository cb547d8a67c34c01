// What every sample does around its lesson. It includes nothing: put it behind `import std;`.
#pragma once

/// A heading between two parts of the prose.
inline void heading(std::string_view text) { std::cout << "\n== " << text << " ==\n"; }

/// Runs a lesson, whose prose goes to std::cout; its status. `json` is what stood behind "--json": absent without it, empty if the rows of
/// claims are to be printed instead of the prose, else the file that gets them (a lesson on one module makes no claims: it writes []). An
/// error is one line on stderr and status 1.
inline int run_lesson(std::string_view name, std::optional<std::string> const& json, std::function<void()> const& body) try {
  std::streambuf* const terminal = std::cout.rdbuf();
  if (json && json->empty()) std::cout.rdbuf(nullptr);
  struct Restore {
    std::streambuf* buffer;
    ~Restore() { std::cout.rdbuf(buffer); }
  };
  {
    Restore const restore{terminal};
    body();
  }
  if (!json) return 0;
  std::string_view const rows = "[]\n";
  if (json->empty()) return std::cout << rows, 0;
  std::ofstream file(*json);
  if (!(file << rows).flush()) throw std::runtime_error(*json + " can't be written");
  return 0;
} catch (std::exception const& error) {
  std::cerr << name << ": " << error.what() << '\n';
  return 1;
}

/// The same for a sample whose only option is --json[=FILE].
inline int run_lesson(std::string_view name, int argc, char** argv, std::function<void()> const& body) {
  std::optional<std::string> json;
  for (std::string_view const argument : std::span(argv, static_cast<std::size_t>(argc)).subspan(1)) {
    if (argument != "--json" && !argument.starts_with("--json=")) {
      std::cerr << "usage: " << name << " [--json[=FILE]]\n";
      return 2;
    }
    json = argument.substr(std::min(argument.size(), std::string_view("--json=").size()));
  }
  return run_lesson(name, json, body);
}
