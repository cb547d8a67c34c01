#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>
import std;
import tenon.base;
#include "caught.hpp"
using namespace tenon::base;

namespace {

using namespace std::string_literals;
using support::caught;
namespace fs = std::filesystem;

/// A folder of this process that is gone afterwards.
struct Folder {
  fs::path path = fs::temp_directory_path() / std::format("tenon-safetensors-{}", ::getpid());
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
};

void write(fs::path const& path, std::string const& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

std::string read(fs::path const& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A file of this header, its true length before it.
std::string with_header(std::string const& header, std::string const& data = {}) {
  std::uint64_t const length = header.size();
  return std::string(reinterpret_cast<char const*>(&length), 8) + header + data;
}

FileTensor tensor(DType dtype, Shape shape, std::string const& bytes) { return {dtype, std::move(shape), std::as_bytes(std::span(bytes))}; }

std::string text_of(FileTensor const& tensor) { return {reinterpret_cast<char const*>(tensor.data.data()), tensor.data.size()}; }

/// Written by Python's safetensors 0.8.0 with PyTorch 2.15.0 from an i64 scalar, an empty f32, an f32, a bf16 and a bool tensor.
std::string const written_by_python =
    "\x50\x01\0\0\0\0\0\0"s
    R"({"__metadata__":{"by":"python","format":"pt"},"step":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
    R"("none":{"dtype":"F32","shape":[0,3],"data_offsets":[8,8]},"w":{"dtype":"F32","shape":[2,2],"data_offsets":[8,24]},)"
    R"("h":{"dtype":"BF16","shape":[2],"data_offsets":[24,28]},"mask":{"dtype":"BOOL","shape":[3],"data_offsets":[28,31]}}      )"
    "\xf9\xff\xff\xff\xff\xff\xff\xff\x00\x00\x80\x3f\x00\x00\x20\xc0\x00\x00\x00\x3f\x00\xe0\x7f\x47\xc0\x3f\x00\x80\x01\x00\x01"s;

}  // namespace

TEST_CASE("tensors of every dtype, empty ones and scalars come back as they were saved") {
  Folder const folder;
  std::mt19937 random(5);
  std::map<std::string, std::string> bytes;
  std::map<std::string, FileTensor> tensors;
  auto const add = [&](std::string const& name, DType dtype, Shape shape) {
    std::string& data = bytes[name];
    for (std::int64_t i = numel(shape) * bytes_of(dtype); i > 0; --i) data += static_cast<char>(random());
    tensors[name] = tensor(dtype, std::move(shape), data);
  };
  for (int i = 0; i < dtype_count; ++i) {
    auto const dtype = static_cast<DType>(i);
    std::string const name(info(dtype).name);
    add(name, dtype, {3, 5});
    add(name + ".scalar", dtype, {});
    add(name + ".empty", dtype, {0, 4});
  }
  add("", DType::u8, {1});
  add("quote \" slash \\ newline \n snow ☃", DType::f32, {2, 1, 2});
  std::map<std::string, std::string> const metadata{{"step", "12"}, {"who", "☃ \"x\"\n"}, {"", ""}};
  fs::path const path = folder.path / "all.safetensors";
  save_safetensors(path, tensors, metadata);

  SafetensorsFile const file(path);
  CHECK(file.metadata() == metadata);
  REQUIRE(file.tensors().size() == tensors.size());
  for (auto const& [name, saved] : tensors) {
    FileTensor const& loaded = file.at(name);
    CHECK(loaded.dtype == saved.dtype);
    CHECK(loaded.shape == saved.shape);
    CHECK(text_of(loaded) == bytes[name]);
  }
  CHECK(caught([&] { file.at("w"); }) == std::format("safetensors: {}: TensorNotFound: no tensor \"w\" among {}", path.string(), tensors.size()));
}

TEST_CASE("a file is written byte for byte as the format says") {
  Folder const folder;
  std::string const ones(2, '\1'), half("\0\x3c", 2), wide(16, 'w');
  fs::path const path = folder.path / "exact.safetensors";
  save_safetensors(
      path,
      {{"b", tensor(DType::u8, {2}, ones)}, {"z", tensor(DType::f64, {2}, wide)}, {"a", tensor(DType::i8, {1, 2}, ones)}, {"h", tensor(DType::f16, {}, half)}},
      {{"k", "v"}});
  std::string header =
      R"({"__metadata__":{"k":"v"},"z":{"dtype":"F64","shape":[2],"data_offsets":[0,16]},"h":{"dtype":"F16","shape":[],"data_offsets":[16,18]},)"
      R"("a":{"dtype":"I8","shape":[1,2],"data_offsets":[18,20]},"b":{"dtype":"U8","shape":[2],"data_offsets":[20,22]}})";
  while (header.size() % 8 != 0) header += ' ';
  CHECK(read(path) == with_header(header, wide + half + ones + ones));
  save_safetensors(path, {});
  CHECK(read(path) == with_header("{}      "));
  CHECK(SafetensorsFile(path).tensors().empty());
}

TEST_CASE("a file of Python's safetensors is read, and written again with the same bytes") {
  Folder const folder;
  fs::path const path = folder.path / "python.safetensors", again = folder.path / "again.safetensors";
  write(path, written_by_python);
  SafetensorsFile file(path);
  CHECK(file.metadata() == std::map<std::string, std::string>{{"by", "python"}, {"format", "pt"}});
  CHECK(file.tensors().size() == 5);
  CHECK(load_whole(DType::i64, file.at("step").data.data()) == -7);
  CHECK(file.at("step").shape.empty());
  CHECK(file.at("none").shape == Shape{0, 3});
  std::vector<double> values;
  for (std::size_t i = 0; i < 4; ++i) values.push_back(load_real(DType::f32, file.at("w").data.data() + 4 * i));
  CHECK(values == std::vector<double>{1.0, -2.5, 0.5, 65504.0});
  CHECK(load_real(DType::bf16, file.at("h").data.data()) == 1.5);
  CHECK(std::signbit(load_real(DType::bf16, file.at("h").data.data() + 2)));
  CHECK(text_of(file.at("mask")) == "\1\0\1"s);
  save_safetensors(again, file.tensors(), file.metadata());
  CHECK(read(again) == written_by_python);
}

TEST_CASE("a file object moves with its memory, and a save may replace the file that it reads from") {
  Folder const folder;
  fs::path const path = folder.path / "moved.safetensors";
  write(path, written_by_python);
  SafetensorsFile first(path);
  SafetensorsFile second(std::move(first));
  CHECK(first.tensors().empty());
  save_safetensors(path, {{"h", second.at("h")}});
  CHECK(text_of(second.at("mask")) == "\1\0\1"s);
  second = SafetensorsFile(path);
  CHECK(second.tensors().size() == 1);
  CHECK(load_real(DType::bf16, second.at("h").data.data()) == 1.5);
}

TEST_CASE("every broken file is refused by the format's name for it") {
  Folder const folder;
  fs::path const path = folder.path / "broken.safetensors";
  auto const refusal = [&](std::string const& bytes) {
    write(path, bytes);
    std::string const text = caught([&] { SafetensorsFile{path}; });
    std::string const start = std::format("safetensors: {}: ", path.string());
    return text.starts_with(start) ? text.substr(start.size()) : text;
  };
  auto const one = [](std::string const& dtype, std::string const& shape, std::string const& offsets) {
    return std::format(R"({{"w":{{"dtype":"{}","shape":{},"data_offsets":{}}}}})", dtype, shape, offsets);
  };
  auto const length = [](std::uint64_t value) { return std::string(reinterpret_cast<char const*>(&value), 8); };
  std::string const good = one("F32", "[2]", "[0,8]"), data(8, '\0');
  std::string const entry = R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  REQUIRE(refusal(with_header(good, data)) == "nothing");
  REQUIRE(refusal(with_header(good + "   ", data)) == "nothing");
  REQUIRE(refusal(with_header(one("U8", "[0,4611686018427387904,4611686018427387904]", "[0,0]"))) == "nothing");

  struct Case {
    std::string bytes, expected;
  };
  Case const cases[]{
      {"", "HeaderTooSmall: 0 bytes, the length alone takes 8"},
      {"1234567", "HeaderTooSmall: 7 bytes, the length alone takes 8"},
      {length(100'000'001) + good, "HeaderTooLarge: header of 100000001 bytes, at most 100000000 are allowed"},
      {length(~0ull) + good, "HeaderTooLarge: header of 18446744073709551615 bytes, at most 100000000 are allowed"},
      {length(99'999'999) + good, std::format("InvalidHeaderLength: header of 99999999 bytes in a file of {}", 8 + good.size())},
      {length(1), "InvalidHeaderLength: header of 1 bytes in a file of 8"},
      {with_header("{\"\xff\":1}"), "InvalidHeader: byte 2 of 7 is not UTF-8"},
      {with_header("{\"\xed\xa0\x80\":1}"), "InvalidHeader: byte 2 of 9 is not UTF-8"},
      {with_header("{\"\xc0\xaf\":1}"), "InvalidHeader: byte 2 of 8 is not UTF-8"},
      {with_header("{\"\xf4\x90\x80\x80\":1}"), "InvalidHeader: byte 2 of 10 is not UTF-8"},
      {with_header("{\"\xe2\x98"), "InvalidHeader: byte 2 of 4 is not UTF-8"},
      {with_header(""), "InvalidHeaderDeserialization: the header starts with \"\", not {"},
      {with_header(" {}"), "InvalidHeaderDeserialization: the header starts with \" \", not {"},
      {with_header("\xef\xbb\xbf{}"), "InvalidHeaderDeserialization: the header starts with \"\\ufffd\", not {"},
      {with_header("[]"), "InvalidHeaderDeserialization: the header starts with \"[\", not {"},
      {with_header("{}\0{}"s), "InvalidHeaderDeserialization: byte 2 of 5 is NUL"},
      {with_header(good + "x", data), "InvalidHeaderDeserialization: [json.exception.parse_error.101]"},
      {with_header("{\"w\":"), "InvalidHeaderDeserialization: [json.exception.parse_error.101]"},
      {with_header("{\"w\":1e999}"), "InvalidHeaderDeserialization: [json.exception.out_of_range.406]"},
      {with_header("{\"w\":" + entry + ",\"w\":" + entry + "}", data), "InvalidHeaderDeserialization: duplicate key \"w\""},
      {with_header(R"({"w":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", data), "InvalidHeaderDeserialization: duplicate key \"dtype\""},
      {with_header(R"({"__metadata__":{"k":"1","\u006b":"2"}})"), "InvalidHeaderDeserialization: duplicate key \"k\""},
      {with_header(R"({"__metadata__":{},"__metadata__":{}})"), "InvalidHeaderDeserialization: duplicate key \"__metadata__\""},
      {with_header(R"({"__metadata__":{"k":1}})"), "InvalidHeaderDeserialization: __metadata__ of \"k\" is 1, not a string"},
      {with_header(R"({"__metadata__":[]})"), "InvalidHeaderDeserialization: __metadata__ is [], not an object"},
      {with_header(R"({"w":[{"x":[[]]}]})"), "InvalidHeaderDeserialization: nested 4 deep, the format needs 3"},
      {with_header(R"({"w":7})"), "InvalidHeaderDeserialization: \"w\" is 7, not an object"},
      {with_header(R"({"w":{"shape":[2],"data_offsets":[0,8]}})"), "InvalidHeaderDeserialization: \"w\" has no dtype"},
      {with_header(R"({"w":{"dtype":"F32","data_offsets":[0,8]}})"), "InvalidHeaderDeserialization: \"w\" has no shape"},
      {with_header(R"({"w":{"dtype":"F32","shape":[2]}})"), "InvalidHeaderDeserialization: \"w\" has no data_offsets"},
      {with_header(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"crc":1}})"), "InvalidHeaderDeserialization: \"w\" has an unknown field \"crc\""},
      {with_header(R"({"w":{"dtype":5,"shape":[2],"data_offsets":[0,8]}})"), "InvalidHeaderDeserialization: dtype of \"w\" is 5, not a string"},
      {with_header(one("F32", "2", "[0,8]")), "InvalidHeaderDeserialization: shape of \"w\" is 2, not an array"},
      {with_header(one("F32", "[2]", "[0,8,9]")), "InvalidHeaderDeserialization: data_offsets of \"w\" are [0,8,9], not two numbers"},
      {with_header(one("F32", "[-2]", "[0,8]")), "InvalidHeaderDeserialization: shape of \"w\" holds -2, not a whole number"},
      {with_header(one("F32", "[2.0]", "[0,8]")), "InvalidHeaderDeserialization: shape of \"w\" holds 2.0, not a whole number"},
      {with_header(one("F32", "[2]", "[0,\"8\"]")), "InvalidHeaderDeserialization: data_offsets of \"w\" holds \"8\", not a whole number"},
      {with_header(one("F32", "[2]", "[0,18446744073709551616]")), "InvalidHeaderDeserialization: data_offsets of \"w\" holds 1.84"},
      {with_header(one("f32", "[2]", "[0,8]"), data), "InvalidHeaderDeserialization: unknown dtype \"f32\" of \"w\""},
      {with_header(one("U16", "[4]", "[0,8]"), data), "UnsupportedDtype: dtype \"U16\" of \"w\" is in the format but not in Tenon"},
      {with_header(one("F4", "[16]", "[0,8]"), data), "UnsupportedDtype: dtype \"F4\" of \"w\" is in the format but not in Tenon"},
      {with_header(one("F4", "[15]", "[0,8]"), data), "MisalignedSlice: 15 elements of F4 in \"w\" are 60 bits, not whole bytes"},
      {with_header(one("F32", "[2]", "[1,9]"), data + "x"), "InvalidOffset: \"w\" lies at [1, 9], expected to begin at 0"},
      {with_header(one("F32", "[2]", "[0,0]"), data), "TensorInvalidInfo: \"w\" F32 [2] needs 8 bytes, its offsets give 0"},
      {with_header(one("F32", "[3]", "[0,8]"), data), "TensorInvalidInfo: \"w\" F32 [3] needs 12 bytes, its offsets give 8"},
      {with_header(one("F32", "[]", "[0,8]"), data), "TensorInvalidInfo: \"w\" F32 [] needs 4 bytes, its offsets give 8"},
      {with_header(one("F32", "[18446744073709551615]", "[0,8]"), data), "ValidationOverflow: size 18446744073709551615 of \"w\" is beyond 63 bits"},
      {with_header(one("U8", "[4294967296,4294967296]", "[0,8]"), data), "ValidationOverflow: elements of \"w\" [4294967296,4294967296] overflow 64 bits"},
      {with_header(one("F32", "[4611686018427387905]", "[0,4]"), data),
       "ValidationOverflow: 32 bits times 4611686018427387905 elements of \"w\" overflow 64 bits"},
      {with_header(one("F32", "[250000000000]", "[0,1000000000000]"), data), "MetadataIncompleteBuffer: \"w\" ends at byte 1000000000000 of 8 bytes of data"},
      {with_header(good, data + "x"), "MetadataIncompleteBuffer: tensors end at byte 8 of 9 bytes of data"},
      {with_header(good, data.substr(1)), "MetadataIncompleteBuffer: \"w\" ends at byte 8 of 7 bytes of data"},
      {with_header("{}", "x"), "MetadataIncompleteBuffer: tensors end at byte 0 of 1 bytes of data"},
      {with_header(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})", data.substr(2)),
       "InvalidOffset: \"b\" lies at [2, 6], expected to begin at 4"},
      {with_header(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[2],"data_offsets":[6,8]}})", data),
       "InvalidOffset: \"b\" lies at [6, 8], expected to begin at 4"},
      {with_header(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[2],"data_offsets":[4,2]}})", data),
       "InvalidOffset: \"b\" lies at [4, 2], expected to begin at 4"},
  };
  for (Case const& broken : cases) CHECK_MESSAGE(refusal(broken.bytes).starts_with(broken.expected), broken.expected << " but: " << refusal(broken.bytes));

  std::string const flood = refusal(with_header("{" + std::string(2'000'000, '[')));
  CHECK(flood.size() < 400);
  std::string const long_name = refusal(with_header("{\"" + std::string(1'000'000, 'n') + "\":7}"));
  CHECK(long_name.size() < 400);
}

TEST_CASE("what is no file is refused") {
  Folder const folder;
  std::string const missing = (folder.path / "missing").string(), pipe = (folder.path / "pipe").string();
  CHECK(caught([&] { SafetensorsFile{missing}; }) == std::format("safetensors: {}: IoError: cannot open: No such file or directory", missing));
  CHECK(caught([&] { SafetensorsFile{folder.path}; }) == std::format("safetensors: {}: IoError: not a regular file", folder.path.string()));
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(caught([&] { SafetensorsFile{pipe}; }) == std::format("safetensors: {}: IoError: not a regular file", pipe));
}

TEST_CASE("a save that fails leaves the old file and nothing beside it") {
  Folder const folder;
  fs::path const path = folder.path / "kept.safetensors";
  std::string const bytes(8, 'x');
  save_safetensors(path, {{"w", tensor(DType::f32, {2}, bytes)}});
  std::string const before = read(path);
  auto const refusal = [&](std::map<std::string, FileTensor> const& tensors, std::map<std::string, std::string> const& metadata = {}) {
    return caught([&] { save_safetensors(path, tensors, metadata); }).substr(std::format("safetensors: {}: ", path.string()).size());
  };
  CHECK(refusal({{"w", tensor(DType::f32, {3}, bytes)}}) == "TensorInvalidInfo: \"w\" F32 [3] needs 12 bytes, its data has 8");
  CHECK(refusal({{"__metadata__", tensor(DType::f32, {2}, bytes)}}) == "InvalidHeader: a tensor cannot be called __metadata__");
  CHECK(refusal({{"a\xff", tensor(DType::f32, {2}, bytes)}}) == "InvalidHeader: byte 1 of tensor name \"a\\ufffd\" is not UTF-8");
  CHECK(refusal({}, {{"k", "\x80"}}) == "InvalidHeader: byte 0 of metadata value \"\\ufffd\" is not UTF-8");
  CHECK(refusal({{std::string(100'000'001, 'n'), tensor(DType::f32, {2}, bytes)}}).starts_with("HeaderTooLarge: header of 1000000"));
  CHECK(refusal({{"w", tensor(DType::f32, {-1}, bytes)}}).starts_with("ValidationOverflow"));
  CHECK(read(path) == before);

  fs::path const taken = folder.path / "taken";
  fs::create_directories(taken / "inside");
  CHECK(caught([&] { save_safetensors(taken, {}); }) == std::format("safetensors: {}: IoError: cannot rename to: Is a directory", taken.string()));
  fs::path const nowhere = folder.path / "no" / "where";
  CHECK(caught([&] { save_safetensors(nowhere, {}); }) == std::format("safetensors: {}: IoError: cannot create: No such file or directory", nowhere.string()));
  std::set<std::string> names;
  for (auto const& entry : fs::directory_iterator(folder.path)) names.insert(entry.path().filename().string());
  CHECK(names == std::set<std::string>{"kept.safetensors", "taken"});
}

TEST_CASE("a reader sees the old or the new file while another thread saves") {
  Folder const folder;
  fs::path const path = folder.path / "shared.safetensors";
  std::string const first(40'000, 'a'), second(80'000, 'b');
  save_safetensors(path, {{"w", tensor(DType::u8, {40'000}, first)}});
  std::atomic<bool> done = false;
  std::jthread const writer([&] {
    for (int i = 0; i < 40; ++i) save_safetensors(path, {{"w", tensor(DType::u8, {i % 2 ? 40'000 : 80'000}, i % 2 ? first : second)}});
    done = true;
  });
  int torn = 0;
  while (!done) {
    SafetensorsFile const file(path);
    std::string const text = text_of(file.at("w"));
    torn += text != first && text != second;
  }
  CHECK(torn == 0);
}

TEST_CASE("twenty thousand mutations load consistently or are refused") {
  Folder const folder;
  fs::path const path = folder.path / "mutated.safetensors";
  std::mt19937_64 random(11);
  auto const below = [&](std::size_t limit) { return static_cast<std::size_t>(random() % limit); };
  std::size_t const header_end = 336 + 8;
  std::string const alphabet = "0123456789[]{},:\"FIU_ \\-.e";
  int loaded = 0, refused = 0, wrong = 0;
  std::map<std::string, int> names;
  for (int trial = 0; trial < 20'000; ++trial) {
    std::string bytes = written_by_python;
    for (std::size_t times = 1 + (below(3) == 0 ? below(8) : 0); times > 0 && !bytes.empty(); --times) {
      std::size_t const at = below(below(4) ? std::min(header_end, bytes.size()) : bytes.size());
      switch (below(8)) {
        case 0:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
          break;
        case 1:
          bytes[at] = static_cast<char>(random());
          break;
        case 2:
          bytes[at] = alphabet[below(alphabet.size())];
          break;
        case 3:
          bytes.erase(at, 1 + below(4));
          break;
        case 4:
          bytes.insert(at, 1, alphabet[below(alphabet.size())]);
          break;
        case 5:
          bytes.resize(below(bytes.size() + 1));
          break;
        case 6:
          bytes.insert(at, bytes.substr(below(bytes.size()), below(40)));
          break;
        case 7:
          bytes += std::string(below(9), static_cast<char>(random()));
          break;
      }
      // Every other time the length is mended, so that what lies behind the first check is reached.
      if (trial % 2 == 0 && bytes.size() >= 8) {
        std::uint64_t const length = bytes.rfind('}') == std::string::npos || bytes.rfind('}') < 8 ? 0 : bytes.rfind('}') + 1 - 8;
        bytes.replace(0, 8, reinterpret_cast<char const*>(&length), 8);
      }
    }
    write(path, bytes);
    try {
      SafetensorsFile const file(path);
      std::uint64_t length = 0;
      std::memcpy(&length, bytes.data(), 8);
      std::string_view const data = std::string_view(bytes).substr(8 + length);
      std::size_t total = 0;
      for (auto const& [name, tensor] : file.tensors()) {
        total += tensor.data.size();
        wrong += tensor.data.size() != static_cast<std::size_t>(numel(tensor.shape) * bytes_of(tensor.dtype));
        wrong += data.find(text_of(tensor)) == std::string_view::npos;
      }
      wrong += total != data.size();
      ++loaded;
    } catch (Error const& error) {
      std::string const text = error.what();
      std::size_t const start = std::format("safetensors: {}: ", path.string()).size();
      ++names[text.substr(start, text.find(':', start) - start)];
      ++refused;
    }
  }
  std::string counts;
  for (auto const& [name, count] : names) counts += std::format(", {} {}", name, count);
  MESSAGE(loaded << " loaded, " << refused << " refused" << counts);
  CHECK(wrong == 0);
  CHECK(loaded + refused == 20'000);
  CHECK(loaded > 100);
  CHECK(names.size() >= 8);
}
