#include "golden.hpp"
import std;
import tenon.base;
import tenon.ir;
#include "golden_ops.hpp"
#include "ir_support.hpp"
using namespace tenon;
using base::DType;

TEST_CASE("golden ops") { golden::check_ops("ops", support::run); }
TEST_CASE("golden opinfo") { golden::check_ops("opinfo", support::run); }

TEST_CASE("golden type promotion") {
  auto const rows = golden::load("ops.json", "type_promotion");
  if (!rows) return;
  golden::Tally tally{.name = "golden type promotion"};
  for (auto const& row : *rows) {
    auto const a = ir::contiguous_meta(base::dtype_of(row[0].get<std::string>()), {}, {2}),
               b = ir::contiguous_meta(base::dtype_of(row[1].get<std::string>()), {}, {2});
    auto const result = ir::infer(ir::ops::add, std::array{&a, &b}, std::array<ir::Scalar, 2>{}, ir::default_attrs(ir::ops::add));
    CHECK_MESSAGE(base::info(result[0].dtype).torch_name == row[2].get<std::string>(), row.dump());
    ++tally.checked;
  }
}

TEST_CASE("golden scalar promotion") {
  auto const rows = golden::load("ops.json", "scalar_promotion");
  if (!rows) return;
  golden::Tally tally{.name = "golden scalar promotion"};
  std::map<std::string, ir::Scalar> const numbers{{"bool", true}, {"int", 2}, {"float", 1.5}};
  for (auto const& row : *rows) {
    auto const number = numbers.find(row[1].get<std::string>());
    if (number == numbers.end()) {
      std::cout << "golden scalar promotion: no number of kind " << row[1] << ", skipped\n";
      ++tally.skipped;
      continue;
    }
    auto const a = ir::contiguous_meta(base::dtype_of(row[0].get<std::string>()), {}, {2});
    auto const result = ir::infer(ir::ops::mul, std::array<ir::Meta const*, 2>{&a, nullptr}, std::array<ir::Scalar, 2>{ir::Scalar(), number->second}, {});
    CHECK_MESSAGE(base::info(result[0].dtype).torch_name == row[2].get<std::string>(), row.dump());
    ++tally.checked;
  }
}
