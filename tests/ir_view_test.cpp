// A reshape keeps the memory exactly when some strides give the same elements: its geometry against a search.
#include <doctest/doctest.h>
import std;
import tenon.base;
import tenon.ir;
#include "ir_support.hpp"
using namespace tenon;
using base::numel;
using base::Shape;
using base::to_string;

namespace {

/// Offsets of a strided tensor's elements in row-major order, by counting through its indices.
std::vector<std::int64_t> offsets(Shape const& shape, Shape const& strides) {
  std::vector<std::int64_t> result;
  Shape index(shape.size(), 0);
  for (std::int64_t left = numel(shape); left > 0; --left) {
    result.push_back(std::inner_product(index.begin(), index.end(), strides.begin(), std::int64_t{0}));
    for (std::size_t dim = shape.size(); dim-- > 0 && ++index[dim] == shape[dim];) index[dim] = 0;
  }
  return result;
}

/// Strides that give these offsets for this shape, if any do: each stride can only be the offset of the dim's second index.
std::optional<Shape> strides_by_search(Shape const& shape, std::vector<std::int64_t> const& wanted) {
  if (wanted.empty()) return Shape(shape.size(), 0);
  Shape strides(shape.size(), 0);
  std::int64_t step = 1;
  for (std::size_t dim = shape.size(); dim-- > 0;) {
    if (shape[dim] > 1) strides[dim] = wanted[static_cast<std::size_t>(step)] - wanted[0];
    step *= shape[dim];
  }
  return offsets(shape, strides) == wanted ? std::optional(strides) : std::nullopt;
}

std::optional<Shape> strides_by_geometry(Shape const& from, Shape const& strides, Shape const& to) {
  auto const dims = [](Shape const& shape) { return ir::Dims(std::vector<ir::Dim>(shape.begin(), shape.end())); };
  ir::Attrs attrs;
  attrs.with(dims(to));
  ir::View view{attrs, base::DType::f32, dims(from), dims(strides), 0};
  return ir::ops::reshape.geometry(view) ? std::optional(ir::values(view.strides)) : std::nullopt;
}

}  // namespace

TEST_CASE("reshape is a view exactly when a search over element offsets finds strides") {
  std::mt19937 random(7);
  auto const below = [&](int limit) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(limit)); };
  int views = 0, copies = 0, empty = 0;
  for (int trial = 0; trial < 60'000; ++trial) {
    // Factors of one number in two groupings give shapes of equal numel; strides are row-major, permuted, spread out or broadcast.
    Shape factors, from, to;
    for (std::int64_t i = below(5); i > 0; --i) factors.push_back(std::array{1, 2, 2, 3, 4, 0}[static_cast<std::size_t>(below(trial % 8 == 0 ? 6 : 5))]);
    for (Shape* shape : {&from, &to}) {
      shape->clear();
      if (below(3) == 0) std::ranges::shuffle(factors, random);
      for (std::int64_t const factor : factors) {
        if (!shape->empty() && below(2))
          shape->back() *= factor;
        else
          shape->push_back(factor);
        if (below(6) == 0) shape->push_back(1);
      }
    }
    if (numel(from) != numel(to)) continue;  // one of the two dropped every factor of an empty list
    Shape order(from.size());
    std::iota(order.begin(), order.end(), 0);
    if (below(3) == 0) std::ranges::shuffle(order, random);
    Shape strides(from.size());
    std::int64_t step = 1 + below(2);
    for (std::size_t i = order.size(); i-- > 0;) {
      auto const dim = static_cast<std::size_t>(order[i]);
      strides[dim] = below(8) == 0 ? 0 : from[dim] == 1 ? below(9) : step;
      step *= std::max<std::int64_t>(from[dim], 1);
      if (below(8) == 0) step += below(3);
    }
    auto const wanted = offsets(from, strides);
    auto const expected = strides_by_search(to, wanted);
    auto const found = strides_by_geometry(from, strides, to);
    bool const agree = found.has_value() == expected.has_value() && (!found || (found->size() == to.size() && offsets(to, *found) == wanted));
    if (!agree) FAIL_CHECK("from " << to_string(from) << " " << to_string(strides) << " to " << to_string(to));
    ++(wanted.empty() ? empty : found ? views : copies);
  }
  MESSAGE(views << " views, " << copies << " copies, " << empty << " empty");
  CHECK(std::min({views, copies, empty}) > 500);
}

TEST_CASE("strides of a reshape by example") {
  CHECK(strides_by_geometry({2, 3, 4}, {12, 4, 1}, {6, 2, 2}) == Shape{4, 2, 1});
  CHECK(strides_by_geometry({3, 2}, {1, 3}, {6}) == std::nullopt);
  CHECK(strides_by_geometry({2, 3}, {0, 0}, {6}) == Shape{0});
  CHECK(strides_by_geometry({0, 3}, {3, 1}, {5, 0}) == Shape{1, 1});
}
