#pragma once
// Golden files: behaviour measured elsewhere. Include before any import.
// A test case that reads them has "golden" in its name and ends with a Tally.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace golden {

/// The file of that name in the folder that TENON_GOLDEN names, else in tests/golden of the source tree.
inline std::filesystem::path file(std::string const& name) {
  char const* const folder = std::getenv("TENON_GOLDEN");
  return (folder && *folder ? std::filesystem::path(folder) : std::filesystem::path(TENON_SOURCE_ROOT) / "tests" / "golden") / name;
}

/// The value of `key` in the JSON file `name`; nothing, and a line that says so, when the file or the key is absent. An ordered_json keeps the order
/// of members.
template <class Json = nlohmann::json>
std::optional<Json> load(std::string const& name, std::string const& key) {
  std::ifstream stream(file(name));
  if (!stream) {
    std::cout << "golden: no " << name << ", skipped\n";
    return std::nullopt;
  }
  auto json = Json::parse(stream);
  if (!json.contains(key)) {
    std::cout << "golden: no " << key << " in " << name << ", skipped\n";
    return std::nullopt;
  }
  return std::move(json[key]);
}

/// Counts the cases of one golden key, prints "NAME: checked N, skipped M" at its end and fails if N = 0.
struct Tally {
  std::string name;
  int checked = 0, skipped = 0;
  ~Tally() {
    std::cout << name << ": checked " << checked << ", skipped " << skipped << '\n';
    CHECK_MESSAGE(checked > 0, name);
  }
};

}  // namespace golden
