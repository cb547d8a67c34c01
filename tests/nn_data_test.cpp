#include <doctest/doctest.h>

import std;
import tenon.base;
import tenon.ir;
import tenon.guards;
import tenon.tracer;
import tenon.nn;
#include "caught.hpp"

using namespace tenon;
using namespace tenon::tracer;
using support::caught;

namespace {
using Numbers = std::vector<double>;
Numbers numbers(Tensor const& x) { return x.to_vector<double>(); }

// A folder that lives as long as a test case.
struct Folder {
  std::filesystem::path path;
  Folder() {
    static std::atomic<int> count{0};
    auto const now = std::chrono::steady_clock::now().time_since_epoch().count();
    path = std::filesystem::temp_directory_path() / std::format("tenon_nn_test_{}_{}", now, ++count);
    std::filesystem::create_directories(path);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::filesystem::path write(std::string_view name, std::string_view text) const {
    std::ofstream(path / name, std::ios::binary) << text;
    return path / name;
  }
};
// The message without the folder.
std::string csv_error(Folder const& folder, std::string_view text) {
  auto message = caught([&] { nn::read_csv(folder.write("x.csv", text)); });
  auto const at = message.find(folder.path.string() + "/");
  return at == std::string::npos ? message : message.erase(at, folder.path.string().size() + 1);
}

// All first columns of an epoch, in order.
Numbers epoch(nn::DataLoader& loader, std::int64_t number, std::vector<std::int64_t>* sizes = nullptr) {
  loader.start(number);
  Numbers rows;
  while (auto const batch = loader.next()) {
    auto const column = numbers((*batch)[0]);
    rows.insert(rows.end(), column.begin(), column.end());
    if (sizes) sizes->push_back((*batch)[0].size(0));
  }
  return rows;
}
Tensor counting(std::int64_t rows) { return arange(0, rows); }
}  // namespace

TEST_CASE("read_csv reads numbers as written") {
  Folder const folder;
  auto const table = nn::read_csv(folder.write("a.csv", "1,2.5,-3\r\n 4 ,\t5e-1,+6.\n7,.25,1E3\n\n \n"));
  CHECK(table.rows == 3);
  CHECK(table.columns == 3);
  CHECK(table.values == Numbers{1, 2.5, -3, 4, 0.5, 6, 7, 0.25, 1000});
  CHECK(nn::read_csv(folder.write("b.csv", "0.1")).values == Numbers{0.1});
}

TEST_CASE("read_csv names file, line, column and what was found") {
  Folder const folder;
  CHECK(csv_error(folder, "1,2\n3,x4\n") == "read_csv: x.csv: line 2, column 2: expected a number, found 'x4'");
  CHECK(csv_error(folder, "a,b\n1,2\n") == "read_csv: x.csv: line 1, column 1: expected a number, found 'a'");
  CHECK(csv_error(folder, "1,,2\n") == "read_csv: x.csv: line 1, column 2: expected a number, found nothing");
  CHECK(csv_error(folder, "1,2,\n") == "read_csv: x.csv: line 1, column 3: expected a number, found nothing");
  CHECK(csv_error(folder, "1,2,3\n4,5") == "read_csv: x.csv: line 2, column 3: expected 3 fields as in line 1, found 2");
  CHECK(csv_error(folder, "1,2\n4,5,6\n") == "read_csv: x.csv: line 2, column 3: expected 2 fields as in line 1, found 3");
  CHECK(csv_error(folder, "1\n\n2\n") == "read_csv: x.csv: line 2, column 1: expected a number, found an empty line");
  CHECK(csv_error(folder, "") == "read_csv: x.csv: line 1, column 1: expected a number, found the end of the file");
  for (auto const* const text : {"nan", "inf", "0x10", "1e999", "1 2", "--1", "1e", ".", "1.2.3", "\"1\""})
    CHECK(csv_error(folder, text) == std::format("read_csv: x.csv: line 1, column 1: expected a number, found '{}'", text));
  CHECK(csv_error(folder, std::string_view("1,\0\x01\xff", 5)) == "read_csv: x.csv: line 1, column 2: expected a number, found '\?\?\?'");
  CHECK(csv_error(folder, std::string(100, 'z')) == "read_csv: x.csv: line 1, column 1: expected a number, found '" + std::string(24, 'z') + "…'");
  CHECK(caught([&] { nn::read_csv(folder.path / "none"); }) ==
        std::format("read_csv: {}/none: can't be read: No such file or directory", folder.path.string()));
  CHECK(caught([&] { nn::read_csv(folder.path); }) == std::format("read_csv: {}: is a folder, not a file", folder.path.string()));
}

TEST_CASE("read_characters: bytes that occur, in order") {
  Folder const folder;
  auto const text = nn::read_characters(folder.write("t", "banana\n\xff"));
  CHECK(text.vocabulary == "\nabn\xff");
  CHECK(text.tokens == std::vector<std::int64_t>{2, 1, 3, 1, 3, 1, 0, 4});
  CHECK(caught([&] { nn::read_characters(folder.write("e", "")); }) == std::format("read_characters: {}/e: the file is empty", folder.path.string()));
  CHECK(caught([&] { nn::read_characters(folder.path / "none"); }) ==
        std::format("read_characters: {}/none: can't be read: No such file or directory", folder.path.string()));
}

TEST_CASE("an epoch holds each row once, in an order that depends on seed and epoch alone") {
  for (std::int64_t const rows : {0, 1, 2, 7, 64, 101})
    for (std::int64_t const batch : {1, 3, 64}) {
      std::vector<Numbers> orders;
      for (int const prefetch : {0, 1, 2, 5}) {
        nn::DataLoader loader({counting(rows)}, {.batch = batch, .seed = 9, .prefetch = prefetch});
        CHECK(loader.size() == (rows + batch - 1) / batch);
        (void)epoch(loader, 0);  // what ran before does not matter
        std::vector<std::int64_t> sizes;
        orders.push_back(epoch(loader, 3, &sizes));
        CHECK(std::ssize(sizes) == loader.size());
        for (std::size_t k = 0; k < sizes.size(); ++k) CHECK(sizes[k] == std::min(batch, rows - static_cast<std::int64_t>(k) * batch));
        CHECK_FALSE(loader.next());
        CHECK(orders.back() == orders.front());
      }
      Numbers sorted = orders[0];
      std::ranges::sort(sorted);
      CHECK(sorted == numbers(counting(rows)));
    }
  auto const order = [](std::uint64_t seed, std::int64_t number) {
    nn::DataLoader loader({counting(50)}, {.batch = 8, .seed = seed});
    return epoch(loader, number);
  };
  CHECK(order(1, 0) == order(1, 0));
  CHECK(order(1, 0) != order(1, 1));
  CHECK(order(1, 0) != order(2, 0));
  CHECK(order(1, 0) != order(1ull << 40 | 1, 0));
  CHECK(order(1, 0) != order(1, 1ll << 40));
  CHECK(order(1, 0) != numbers(counting(50)));
}

TEST_CASE("a shuffle has no favourites") {
  std::array<std::array<int, 4>, 4> where{};  // row, place
  nn::DataLoader loader({counting(4)}, {.batch = 4, .prefetch = 0});
  int const epochs = 4000;
  for (int number = 0; number < epochs; ++number) {
    auto const order = epoch(loader, number);
    for (std::size_t place = 0; place < 4; ++place) ++where[static_cast<std::size_t>(order[place])][place];
  }
  for (auto const& row : where)
    for (int const count : row) CHECK(std::abs(count - epochs / 4) < 150);  // more than 5 deviations of 27
}

TEST_CASE("rows stay together, whole batches on wish, any dtype and stride") {
  Tensor const x = reshape(arange(0, 30), {10, 3}), y = counting(10), bytes = to(reshape(arange(0, 20), {10, 2, 1}), DType::u8);
  Tensor const turned = transpose(reshape(arange(0, 20), {2, 10}), 0, 1);
  nn::DataLoader loader({y, x, bytes, turned}, {.batch = 4, .drop_last = true});
  CHECK(loader.size() == 2);
  loader.start(0);
  int batches = 0;
  for (; auto const batch = loader.next(); ++batches) {
    CHECK((*batch)[1].shape() == base::Shape{4, 3});
    CHECK((*batch)[2].shape() == base::Shape{4, 2, 1});
    CHECK((*batch)[2].dtype() == DType::u8);
    CHECK((*batch)[0].dtype() == DType::i64);
    auto const index = numbers((*batch)[0]), rows = numbers((*batch)[1]), small = numbers((*batch)[2]), columns = numbers((*batch)[3]);
    for (std::size_t k = 0; k < 4; ++k) {
      CHECK(rows[3 * k + 1] == 3 * index[k] + 1);
      CHECK(small[2 * k + 1] == 2 * index[k] + 1);
      CHECK(columns[2 * k + 1] == 10 + index[k]);
    }
  }
  CHECK(batches == 2);
  nn::DataLoader ordered({counting(5)}, {.batch = 2, .shuffle = false});
  CHECK(epoch(ordered, 7) == Numbers{0, 1, 2, 3, 4});
}

TEST_CASE("a loader may be left or started anew at any time") {
  for (int const prefetch : {0, 1, 3})
    for (int turn = 0; turn < 20; ++turn) {
      nn::DataLoader loader({counting(40)}, {.batch = 3, .seed = 4, .prefetch = prefetch});
      CHECK(caught([&] { (void)loader.next(); }) == "data loader: next() is called before start()");
      loader.start(0);
      for (int k = 0; k < turn % 5; ++k) CHECK(loader.next());
      Numbers const second = epoch(loader, 1);
      nn::DataLoader other({counting(40)}, {.batch = 3, .seed = 4, .prefetch = 0});
      CHECK(second == epoch(other, 1));
      loader.start(2);
      if (turn % 2) CHECK(loader.next());
    }
}

TEST_CASE("an error of the preparing thread reaches next()") {
  for (int const prefetch : {0, 2}) {
    Tensor x = counting(10), y = counting(10);
    nn::DataLoader loader({x, y}, {.batch = 4, .prefetch = prefetch});
    CHECK(epoch(loader, 0).size() == 10);
    y.resize_({4});
    loader.start(1);
    for (int k = 0; k < 2; ++k) CHECK(caught([&] { (void)loader.next(); }) == "data loader: tensor 1 is i64[4] now, it had 10 rows");
    y.resize_({10});
    CHECK(epoch(loader, 2).size() == 10);
  }
}

TEST_CASE("what a loader refuses") {
  CHECK(caught([] { nn::DataLoader({}, {}); }) == "data loader: no tensors are given");
  CHECK(caught([] { nn::DataLoader({counting(3), {}}, {}); }) == "data loader: tensor 1 is undefined");
  CHECK(caught([] { nn::DataLoader({full({}, 1.0)}, {}); }) == "data loader: tensor 0 is f32[], a scalar has no rows");
  CHECK(caught([] { nn::DataLoader({counting(3), counting(4)}, {}); }) == "data loader: tensor 1 has 4 rows, tensor 0 has 3");
  CHECK(caught([] { nn::DataLoader({counting(3)}, {.batch = 0}); }) == "data loader: the batch must have at least 1 row, not 0");
  CHECK(caught([] { nn::DataLoader({counting(3)}, {.prefetch = -1}); }) == "data loader: prefetch must not be negative, but is -1");
}

TEST_CASE("batches enter a captured function as its inputs, wherever they are drawn") {
  nn::DataLoader loader({counting(10)}, {.batch = 4, .seed = 1});
  auto const fast = compile([&] { return sum((*loader.next())[0] * 2); }, {.fullgraph = true});
  double total = 0;
  for (int number : {0, 1}) {
    loader.start(number);
    for (int k = 0; k < 3; ++k) total += fast().item();
  }
  CHECK(total == 2 * 90);
  CHECK(describe(fast.state()).graphs == 2);  // whole batches, then any
}
