// What every sample does around its lesson. It includes nothing: put it behind `import std;`.
#pragma once

/// A heading between two parts of the prose.
inline void heading(std::string_view text) { std::cout << "\n== " << text << " ==\n"; }

/// One row of the table of claims (docs/claims.md): what the article says, what was measured, and one of four verdicts.
struct Claim {
  std::string id, title, article, measured;
  std::string_view verdict;  ///< reproduced, reproduced with a difference, contradicted, not measurable here
  double seconds = 0;
};

/// Runs the parts of a lesson, each of which gives a claim, and prints the verdicts behind them.
inline std::vector<Claim> claims_of(std::initializer_list<Claim (*)()> parts) {
  std::vector<Claim> claims;
  for (auto const part : parts) {
    auto const start = std::chrono::steady_clock::now();
    claims.push_back(part());
    claims.back().seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  heading("verdicts");
  for (auto const& claim : claims) std::cout << std::format("{} {}: {}\n", claim.id, claim.verdict, claim.measured);
  return claims;
}

/// The rows as JSON.
inline std::string json_of(std::string_view sample, std::span<Claim const> claims) {
  auto const text = [](std::string_view words) {
    std::string quoted = "\"";
    for (char const c : words) {
      if (c == '"' || c == '\\') quoted += '\\';
      quoted += c == '\n' ? std::string("\\n") : std::string(1, c);
    }
    return quoted + "\"";
  };
  std::string rows;
  for (auto const& claim : claims)
    rows += std::format("{}{{\"id\": {}, \"sample\": {}, \"title\": {}, \"article\": {}, \"measured\": {}, \"verdict\": {}, \"seconds\": {:.3f}}}",
                        rows.empty() ? "" : ",\n ", text(claim.id), text(sample), text(claim.title), text(claim.article), text(claim.measured),
                        text(claim.verdict), claim.seconds);
  return "[" + rows + "]\n";
}

/// Runs a lesson, whose prose goes to std::cout and which returns its claims; its status. `json` is what stood behind "--json": absent without it,
/// empty if the rows of claims are to be printed instead of the prose, else the file that gets them. An error is one line on stderr and status 1.
inline int run_lesson(std::string_view name, std::optional<std::string> const& json, std::function<std::vector<Claim>()> const& body) try {
  std::streambuf* const terminal = std::cout.rdbuf();
  if (json && json->empty()) std::cout.rdbuf(nullptr);
  struct Restore {
    std::streambuf* buffer;
    ~Restore() { std::cout.rdbuf(buffer); }
  };
  std::string rows;
  {
    Restore const restore{terminal};
    rows = json_of(name, body());
  }
  if (!json) return 0;
  if (json->empty()) return std::cout << rows, 0;
  std::ofstream file(*json);
  if (!(file << rows).flush()) throw std::runtime_error(*json + " can't be written");
  return 0;
} catch (std::exception const& error) {
  std::cerr << name << ": " << error.what() << '\n';
  return 1;
}

/// A lesson on one module makes no claims: it writes [].
template <class Body>
  requires std::is_void_v<std::invoke_result_t<Body>>
int run_lesson(std::string_view name, std::optional<std::string> const& json, Body const& body) {
  return run_lesson(name, json, std::function<std::vector<Claim>()>([&] { return body(), std::vector<Claim>{}; }));
}

/// The same for a sample whose only option is --json[=FILE].
template <class Body>
int run_lesson(std::string_view name, int argc, char** argv, Body const& body) {
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
