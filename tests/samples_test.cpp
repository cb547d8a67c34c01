// The tour with good and bad input, and the program of the README: each is run as its user runs it.
#include <doctest/doctest.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <regex>
#include <string>

namespace {

namespace fs = std::filesystem;

fs::path build_folder() { return fs::canonical("/proc/self/exe").parent_path().parent_path(); }
std::string text_of(fs::path const& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A folder for this program's files; it goes away with the object.
struct Folder {
  fs::path path;
  Folder() {
    std::string name = fs::temp_directory_path() / "tenon-samples-XXXXXX";
    REQUIRE(mkdtemp(name.data()));
    path = name;
  }
  ~Folder() { fs::remove_all(path); }
  Folder(Folder const&) = delete;
  Folder& operator=(Folder const&) = delete;
  std::string file(std::string const& name, std::string const& text) const {
    std::ofstream(path / name) << text;
    return path / name;
  }
};

struct Ran {
  int status;
  std::string output, errors;
};
Ran run(std::string const& command) {
  Folder const folder;
  int const status = system((command + " >" + (folder.path / "out").string() + " 2>" + (folder.path / "err").string() + " </dev/null").c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text_of(folder.path / "out"), text_of(folder.path / "err")};
}
Ran sample(std::string const& name, std::string const& arguments) {
  auto const program = build_folder() / "samples" / name;
  if (!fs::exists(program)) REQUIRE(run("ninja -C " + build_folder().string() + " samples/" + name).status == 0);
  return run(program.string() + " " + arguments);
}
Ran tour(std::string const& arguments) { return sample("s0_tour", arguments); }

// One line, which begins with the sample's name and holds `what`; nothing was printed before, and the status is 1.
void check_refused(Ran const& ran, std::string const& what) {
  CHECK(ran.status == 1);
  CHECK(ran.output == "");
  CHECK(std::ranges::count(ran.errors, '\n') == 1);
  CHECK(ran.errors.starts_with("s0_tour: "));
  INFO(ran.errors);
  CHECK(ran.errors.find(what) != std::string::npos);
}

std::string row(int columns, std::string const& last = "3") {
  std::string text;
  for (int k = 1; k < columns; ++k) text += std::to_string(k % 17) + ",";
  return text + last + "\n";
}
std::string rows(int count, std::string const& row) {
  std::string text;
  for (int k = 0; k < count; ++k) text += row;
  return text;
}

// The text between the n-th "```LANGUAGE" line and the next "```".
std::string block(std::string const& page, std::string const& language, std::size_t from = 0) {
  auto const start = page.find("\n```" + language + "\n", from);
  REQUIRE(start != std::string::npos);
  auto const begin = page.find('\n', start + 1) + 1;
  return page.substr(begin, page.find("\n```", begin) + 1 - begin);
}
// What differs from run to run is dropped: milliseconds, and the folder of a source.
std::string comparable(std::string const& text) {
  return std::regex_replace(std::regex_replace(text, std::regex("[0-9.]+ ms"), "… ms"), std::regex("\"[^\"\n]*/"), "\"");
}

}  // namespace

TEST_CASE("the tour trains, compares and explains") {
  Folder const folder;
  auto const ran = tour("--json=" + (folder.path / "rows.json").string());
  INFO(ran.output);
  CHECK(ran.errors == "");
  CHECK(ran.status == 0);
  for (std::string const part :
       {"the first 20 losses differ by", "with 29 rows: 2 captures\n", "recompiled: tensor 'args[1]' size mismatch at dim 0: expected 64, actual 29\n",
        "# \"../samples/s0_tour.cpp\" ", "args[1] is f32[s0, 64]", "      if (sum(y) > 10) return sigmoid(y) * 10;\n                   ^\n"})
    CHECK_MESSAGE(ran.output.find(part) != std::string::npos, part);
  CHECK(text_of(folder.path / "rows.json") == "[]\n");
}

TEST_CASE("--json alone prints the rows only and leaves the next word to the text") {
  auto const ran = tour("--json LICENSE");
  CHECK(ran.status == 0);
  CHECK(ran.output == "[]\n");
  check_refused(tour("--json no/such/text"), "no/such/text: can't be read");
}

TEST_CASE("bad data is refused in one line") {
  Folder const folder;
  auto const refused = [&](std::string const& text, std::string const& what) {
    auto const file = folder.file("bad.csv", text);
    check_refused(tour("--data " + file), file + ": " + what);
  };
  refused(rows(200, row(65)) + row(40), "line 201, column 41: expected 65 fields as in line 1, found 40");
  refused(rows(200, row(65)) + row(66), "line 201, column 66: expected 65 fields as in line 1, found 66");
  refused(row(65) + "1,2,x7," + row(62), "line 2, column 3: expected a number, found 'x7'");
  refused(row(65) + "1,2,," + row(62), "line 2, column 3: expected a number, found nothing");
  refused("", "line 1, column 1: expected a number, found the end of the file");
  refused(rows(200, row(17)), "a row must have 65 columns (64 pixels and the digit), not 17");
  refused(rows(50, row(65)), "50 rows are too few: four fifths of them must fill one batch of 64");
  refused(rows(199, row(65)) + row(65, "12"), "line 200, column 65: a digit must be 0 to 9, not 12");
  refused(rows(199, row(65)) + row(65, "2.5"), "line 200, column 65: a digit must be 0 to 9, not 2.5");
  check_refused(tour("--data no/such/file.csv"), "no/such/file.csv: can't be read: No such file or directory");
  check_refused(tour("--data " + folder.path.string()), "is a folder, not a file");
}

TEST_CASE("an unknown dtype, an unreadable text and an unwritable file are refused in one line") {
  Folder const folder;
  check_refused(tour("--dtype f33"), "unknown dtype 'f33'");
  check_refused(tour("no/such/text"), "no/such/text: can't be read: No such file or directory");
  check_refused(tour(folder.file("empty.txt", "")), "empty.txt: the file is empty");
  check_refused(tour("--json --dtype i64"), "only floating tensors have gradients");
}

TEST_CASE("the lesson on graphs gives its claims") {
  Folder const folder;
  auto const file = (folder.path / "rows.json").string();
  auto const ran = sample("s2_1_graph", "--json=" + file);
  CHECK(ran.errors == "");
  CHECK(ran.status == 0);
  for (std::string const part :
       {"x + x.T + 1.0: the same 6 nodes as PyTorch's", "the MLP in ATen: the same 12 nodes as PyTorch's", "in 2 places",
        "with fullgraph: by_element: fullgraph: ", "100 batches of 16 through a process of its own: the largest difference from the compiled function is "})
    CHECK_MESSAGE(ran.output.find(part) != std::string::npos, part);
  auto const rows = text_of(file);
  for (std::string const part : {"[{\"id\": \"2.1.a\", \"sample\": \"s2_1_graph\", ", "\"verdict\": \"reproduced\", ", "{\"id\": \"2.1.b\", ",
                                 "{\"id\": \"2.1.c\", ", "\"verdict\": \"reproduced with a difference\", "})
    CHECK_MESSAGE(rows.find(part) != std::string::npos, rows);
  CHECK(sample("s2_1_graph", "--json").output.starts_with("[{\"id\": \"2.1.a\""));
  CHECK(sample("s2_1_graph", "more").status == 2);
}

TEST_CASE("the lesson on explain gives its claims") {
  Folder const folder;
  auto const file = (folder.path / "rows.json").string();
  auto const ran = sample("s2_3_explain", "--json=" + file);
  CHECK(ran.errors == "");
  CHECK(ran.status == 0);
  for (std::string const part : {"13 calls, 12 texts as argument: ", "with fullgraph, 5 calls: 1 graph, 0 breaks, 0 recompiles, 4 hits, 5 different results",
                                 "    a hit with: ", "alternating, 6 calls: 2 graphs, 4 hits, 0 run eagerly\n",
                                 "a hit with: one device: to(args[0], device_of(\"cpu\"))", "  y.resize_({2});\n"})
    CHECK_MESSAGE(ran.output.find(part) != std::string::npos, part);
  auto const rows = text_of(file);
  for (std::string const part :
       {"{\"id\": \"2.3.a\", \"sample\": \"s2_3_explain\", ", "{\"id\": \"2.3.b\", ", "\"verdict\": \"contradicted\", ", "{\"id\": \"2.3.e\", "})
    CHECK_MESSAGE(rows.find(part) != std::string::npos, rows);
}

TEST_CASE("the lesson on static graphs gives its claims, and the same output twice") {
  Folder const folder;
  auto const file = (folder.path / "rows.json").string();
  auto const ran = sample("s1_static_graph", "--json=" + file);
  CHECK(ran.errors == "");
  CHECK(ran.status == 0);
  for (std::string const part : {"programs that differ                              0\n", "Lines that differ between the two: 0"})
    CHECK_MESSAGE(ran.output.find(part) != std::string::npos, ran.output);
  auto const rows = text_of(file);
  for (std::string const part : {"[{\"id\": \"1.a\", \"sample\": \"s1_static_graph\", ", "builds 2 graphs in the first two steps and none after",
                                 "{\"id\": \"1.b\", ", "{\"id\": \"1.e\", ", "{\"id\": \"1.g\", ", "4 of 4 errors equal, 0 differences", "{\"id\": \"1.h\", ",
                                 "300 random programs, 1500 calls", ": 0 programs differ", "\"verdict\": \"reproduced\", "})
    CHECK_MESSAGE(rows.find(part) != std::string::npos, rows);
  auto const second_half = [](std::string const& text) {
    return text.substr(text.find("== the model's code stays"), text.find("== verdicts") - text.find("== the model's code stays"));
  };
  CHECK(second_half(sample("s1_static_graph", "").output) == second_half(ran.output));
}

TEST_CASE("the lesson on settings gives its claims, and the same ones twice") {
  Folder const folder;
  auto const file = (folder.path / "rows.json").string();
  auto const ran = sample("s2_2_modes", "--json=" + file);
  CHECK(ran.errors == "");
  CHECK(ran.status == 0);
  for (std::string const part :
       {"by_element: fullgraph: a tensor is used as a condition of the host at s2_2_modes.cpp:", "    if (sum(x) > 0) return relu(x);\n                 ^\n",
        "without fullgraph 1, and its text is the same\n", "dropout, the generator runs on                 100       100\n",
        "  never                1       2       3       4   as PyTorch\n", "  always               1       2       3       3       3   as PyTorch\n"})
    CHECK_MESSAGE(ran.output.find(part) != std::string::npos, ran.output);
  auto const rows = text_of(file);
  for (std::string const part : {"[{\"id\": \"2.2.a\", \"sample\": \"s2_2_modes\", ", "{\"id\": \"2.2.b\", ", "{\"id\": \"2.2.c\", ",
                                 "4 graphs with false, 2 automatically, 1 with true", "\"verdict\": \"reproduced with a difference\", "})
    CHECK_MESSAGE(rows.find(part) != std::string::npos, rows);
  auto const same = [](std::string const& text) {  // but for what is about times: the row on modes, and what dynamic sizes cost
    return std::regex_replace(text.substr(std::min(text.find("{\"id\": \"2.2.b\""), text.size())),
                              std::regex("\"seconds\": [0-9.]+|its one recording costs [^\"]*"), "");
  };
  CHECK(same(sample("s2_2_modes", "--json").output) == same(rows));
}

TEST_CASE("the lesson on the cache gives its claims") {
  Folder const folder;
  auto const file = (folder.path / "rows.json").string();
  auto const ran = sample("s2_5_cache", "--json=" + file);
  CHECK(ran.errors == "");
  CHECK(ran.status == 0);
  for (std::string const part : {"order of independent calls: the same key\n", "another key: graph, inputs\n", "objects handed to the loader: 1,",
                                 "restored by the prefix, 2 of 3 compilations are hits", "none                60       0 %"})
    CHECK_MESSAGE(ran.output.find(part) != std::string::npos, ran.output);
  auto const rows = text_of(file);
  for (std::string const part :
       {"[{\"id\": \"2.5.a\", \"sample\": \"s2_5_cache\", ", "{\"id\": \"2.5.b\", ", "{\"id\": \"2.5.c\", ", "nothing (0 of 3), the key (3 of 3)"})
    CHECK_MESSAGE(rows.find(part) != std::string::npos, rows);
}

TEST_CASE("the experiment on fusion shows every station") {
  auto const ran = sample("m_fusion", "");
  CHECK(ran.errors == "");
  CHECK(ran.status == 0);
  for (std::string const part : {"7 calls become ", "one needs the whole result of a reduction of the other at every point\n", "  pass 2:\n",
                                 "void tn_kernel0(", "lower bound ", "fused, interpreted "})
    CHECK_MESSAGE(ran.output.find(part) != std::string::npos, part);
}

TEST_CASE("an option that does not exist is a usage error") {
  auto const ran = tour("--bogus");
  CHECK(ran.status == 2);
  CHECK(ran.errors.find("--bogus") != std::string::npos);
  CHECK(tour("--help").status == 0);
}

TEST_CASE("the program of the README gives the output of the README") {
  if (build_folder() != fs::canonical(".") / "build") {
    std::cout << "SKIP: the program of the README gives the output of the README: scripts/try.sh uses the folder build, this is another one\n";
    return;
  }
  std::string const page = text_of("README.md");
  Folder const folder;
  auto const ran = run("scripts/try.sh " + folder.file("hello.cpp", block(page, "cpp")));
  INFO(ran.errors);
  CHECK(ran.status == 0);
  CHECK(comparable(ran.output) == comparable(block(page, "text", page.find("\n```cpp\n"))));
}
