#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace {

namespace fs = std::filesystem;

// This program is build/tests/build_checks_test; the scripts run from the source root, as scripts/test.sh runs this program.
fs::path build_folder() { return fs::canonical("/proc/self/exe").parent_path().parent_path(); }

struct Ran {
  int status;
  std::string output;
};

Ran python(std::string const& arguments) {
  std::string output;
  FILE* pipe = popen(("python3 " + arguments + " 2>&1").c_str(), "r");
  REQUIRE(pipe);
  for (int c; (c = fgetc(pipe)) != EOF;) output += static_cast<char>(c);
  int const status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, output};
}

std::string text_of(fs::path const& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A copy of `text` in which the first `from` is `to`, in a file that goes away with the object.
class Doctored {
 public:
  Doctored(std::string text, std::string const& from, std::string const& to) {
    auto const at = text.find(from);
    REQUIRE(at != std::string::npos);
    std::string name = fs::temp_directory_path() / "tenon-XXXXXX";
    REQUIRE(mkstemp(name.data()) >= 0);
    path_ = name;
    std::ofstream(path_) << text.replace(at, from.size(), to);
  }
  ~Doctored() { fs::remove(path_); }
  Doctored(Doctored const&) = delete;
  Doctored& operator=(Doctored const&) = delete;
  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

}  // namespace

TEST_CASE("the imports in the sources equal the layer table") {
  Ran const ran = python("scripts/modules.py --check");
  CHECK(ran.output == "");
  CHECK(ran.status == 0);
}

TEST_CASE("an import that the table does not allow is named") {
  Doctored const table(text_of("modules/meson.build"), "['base', ['std'],", "['base', [],");
  Ran const ran = python("scripts/modules.py --check --table " + table.path());
  CHECK(ran.status == 1);
  CHECK(ran.output.find("imports std, which the row 'base' does not allow") != std::string::npos);
}

TEST_CASE("a layer that the table lists and nothing imports is named") {
  Doctored const table(text_of("modules/meson.build"), "['base', ['std'],", "['std2', [], {}, [], []], ['base', ['std', 'std2'],");
  Ran const ran = python("scripts/modules.py --check --table " + table.path());
  CHECK(ran.status == 1);
  CHECK(ran.output.find("the row 'base' lists 'std2', which no unit of base imports") != std::string::npos);
}

TEST_CASE("a unit that the table names differently is named") {
  Doctored const table(text_of("modules/meson.build"), "'tenon.base:shape'", "'tenon.base:shapes'");
  Ran const ran = python("scripts/modules.py --check --table " + table.path());
  CHECK(ran.status == 1);
  CHECK(ran.output.find("base/shape.cppm declares tenon.base:shape") != std::string::npos);
}

TEST_CASE("the picture in docs has the arrows of the sources") {
  Ran const ran = python("scripts/modules.py --check-svg docs/modules.svg");
  CHECK(ran.output == "");
  CHECK(ran.status == 0);
}

TEST_CASE("interface units and the rest are compiled with the same language and macro flags") {
  Ran const ran = python("scripts/flags.py " + (build_folder() / "compile_commands.json").string());
  CHECK(ran.output == "");
  CHECK(ran.status == 0);
}

TEST_CASE("an interface unit compiled with another macro, dialect or sanitizer is named") {
  std::string const database = text_of(build_folder() / "compile_commands.json");
  for (std::string const flag : {"-DNDEBUG", "-D NDEBUG", "-fno-exceptions", "-fsanitize=memory", "-stdlib=libstdc++"}) {
    Doctored const doctored(database, "-x c++-module -c ../modules/base/shape.cppm", flag + " -x c++-module -c ../modules/base/shape.cppm");
    Ran const ran = python("scripts/flags.py " + doctored.path());
    CHECK(ran.status == 1);
    CHECK(ran.output.find("base/shape.cppm: has -") != std::string::npos);
  }
}

TEST_CASE("a database without interface units does not pass") {
  Doctored const doctored("[]", "[]", "[]");
  CHECK(python("scripts/flags.py " + doctored.path()).status == 1);
}
