// The interpreter of loop nests, held to their meaning point by point.
#include <doctest/doctest.h>
import std;
import tenon.base;
import tenon.ir;
import tenon.device;
import tenon.fusion;
#include "fusion_random_kernel.hpp"
#include "ir_support.hpp"
using namespace tenon;

namespace {
std::vector<std::vector<std::byte>> interpreted(support::RandomKernel const& random) {
  auto buffers = random.buffers;
  fusion::interpret(random.kernel, support::addresses(buffers), random.parameters, random.real_parameters);
  return buffers;
}
struct Threads {
  int before = device::threads();
  ~Threads() { device::set_threads(before); }
};
}  // namespace

TEST_CASE("random kernels: the interpreter gives what they mean, the same bits with one thread and with several") {
  Threads const restore;
  int const count = support::tier(60, 300, 6000);
  std::int64_t closed = 0, all = 0;
  std::array<int, 8> levels{};
  int most_passes = 0, kept = 0, row_folds = 0, carried = 0;
  for (int seed = 0; seed < count; ++seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    auto const made = support::random_kernel(random, {.points = seed % 50 == 0 ? 60'000 : seed % 4 == 0 ? 4'000 : 600, .followers = seed % 2 ? 30 : 100});
    REQUIRE_NOTHROW(fusion::verify(made.kernel));
    device::set_threads(1);
    auto const one = interpreted(made);
    auto const wrong = support::differences(made, one, &closed, &all);
    if (!wrong.empty()) FAIL_CHECK("seed " << seed << ":\n" << wrong << fusion::to_string(made.kernel));
    device::set_threads(3);
    CHECK_MESSAGE((one == interpreted(made)), "seed " << seed << ": other bits with three threads\n" << fusion::to_string(made.kernel));
    for (auto const& store : made.kernel.stores) ++levels[made.kernel.steps[static_cast<std::size_t>(store.step)].level];
    most_passes = std::max(most_passes, fusion::passes(made.kernel));
    for (auto const& step : made.kernel.steps) {
      kept += step.keep;
      carried += step.with >= 0;
      row_folds += step.kind == fusion::Step::Kind::reduce && (step.over & fusion::over_rows);
    }
  }
  // The generator does reach what the test is about.
  CHECK(static_cast<double>(closed) > 0.7 * static_cast<double>(all));
  CHECK(most_passes >= 3);
  CHECK(kept > 0);
  CHECK(row_folds > 0);
  CHECK(carried > count / 20);
  CHECK(std::ranges::count(levels, 0) <= 1);
}

TEST_CASE("interpreter: hand-made kernels give numbers computed by hand") {
  using fusion::Step;
  auto const values = [](std::vector<std::byte> const& bytes) {
    std::vector<float> list(bytes.size() / sizeof(float));
    std::memcpy(list.data(), bytes.data(), bytes.size());
    return list;
  };
  auto const bytes_of = [](std::vector<float> const& list) {
    std::vector<std::byte> bytes(list.size() * sizeof(float));
    std::memcpy(bytes.data(), list.data(), bytes.size());
    return bytes;
  };
  constexpr auto point = static_cast<fusion::Roles>(fusion::over_rows | fusion::over_columns);
  // x - its row's mean, the largest of each column, and the sum of squares of all: [[1, 2, 6], [-3, 5, 4]].
  fusion::Kernel kernel;
  kernel.axes = {{2, fusion::Role::row}, {3, fusion::Role::column}};
  kernel.buffers = {{base::DType::f32, false, "x"}, {base::DType::f32, true, "centred"}, {base::DType::f32, true, "top"}, {base::DType::f32, true, "squares"}};
  auto const access = [](int buffer, ir::Dim row, ir::Dim column) { return fusion::Access{.buffer = buffer, .offset = 0, .strides = {row, column}}; };
  kernel.steps = {
      {.kind = Step::Kind::load, .level = point, .access = access(0, 3, 1)},
      {.kind = Step::Kind::reduce, .level = fusion::over_rows, .pass = 1, .in = {0}, .combine = ir::Monoid::sum, .over = fusion::over_columns},
      {.kind = Step::Kind::number, .number = 3.0},
      {.level = fusion::over_rows, .pass = 1, .op = &ir::ops::div, .in = {1, 2}},
      {.level = point, .pass = 1, .op = &ir::ops::sub, .in = {0, 3}, .attrs = ir::Attrs{}.with_num(1.0)},
      {.kind = Step::Kind::reduce, .level = fusion::over_columns, .in = {0}, .combine = ir::Monoid::max, .over = fusion::over_rows},
      {.level = point, .op = &ir::ops::square, .in = {0}},
      {.kind = Step::Kind::reduce, .pass = 1, .in = {6}, .combine = ir::Monoid::sum, .over = point},
      {.level = fusion::over_columns, .op = &ir::ops::neg, .in = {5}},
  };
  kernel.stores = {{4, access(1, 3, 1)}, {8, access(2, 0, 1)}, {7, access(3, 0, 0)}};
  kernel.schedule.form = fusion::Form::row;
  fusion::verify(kernel);
  std::vector<std::vector<std::byte>> buffers{bytes_of({1, 2, 6, -3, 5, 4}), std::vector<std::byte>(24), std::vector<std::byte>(12), std::vector<std::byte>(4)};
  fusion::interpret(kernel, support::addresses(buffers), {}, {});
  CHECK((values(buffers[1]) == std::vector<float>{-2, -1, 3, -5, 3, 2}));
  CHECK((values(buffers[2]) == std::vector<float>{-1, -5, -6}));
  CHECK((values(buffers[3]) == std::vector<float>{1 + 4 + 36 + 9 + 25 + 16}));

  // Rows of a table by index; one that is not there is an Error.
  fusion::Kernel gather;
  gather.name = "gather";
  gather.axes = {{3, fusion::Role::row}, {2, fusion::Role::column}};
  gather.buffers = {{base::DType::i64, false, "index"}, {base::DType::f32, false, "table"}, {base::DType::f32, true, "rows"}};
  auto from_table = access(1, 0, 1);
  from_table.index = 0, from_table.index_stride = 2, from_table.index_size = 4;
  gather.steps = {{.kind = Step::Kind::load, .dtype = base::DType::i64, .level = fusion::over_rows, .access = access(0, 1, 0)},
                  {.kind = Step::Kind::load, .level = point, .access = from_table}};
  gather.stores = {{1, access(2, 2, 1)}};
  fusion::verify(gather);
  std::array<std::int64_t, 3> index{2, 3, 0};
  std::vector<std::vector<std::byte>> memory{std::vector<std::byte>(24), bytes_of({0, 1, 10, 11, 20, 21, 30, 31}), std::vector<std::byte>(24)};
  std::memcpy(memory[0].data(), index.data(), 24);
  fusion::interpret(gather, support::addresses(memory), {}, {});
  CHECK((values(memory[2]) == std::vector<float>{20, 21, 30, 31, 0, 1}));
  for (std::int64_t const bad : {4, -1}) {
    index[1] = bad;
    std::memcpy(memory[0].data(), index.data(), 24);
    CHECK(support::caught([&] { fusion::interpret(gather, support::addresses(memory), {}, {}); }) ==
          std::format("index {} is out of range for size 4, in gather", bad));
  }
  gather.axes[0].size = ir::Dim(3, 5, 1);  // a size that is no parameter
  CHECK_THROWS_AS(fusion::interpret(gather, support::addresses(memory), {}, {}), base::Bug);
}
