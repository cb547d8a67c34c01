module;
#include <range/v3/all.hpp>
module tenon.base;
import std;

namespace tenon::base {
namespace {

namespace views = ::ranges::views;
using Sizes = std::span<std::int64_t const>;

std::int64_t times(std::string_view what, std::int64_t a, std::int64_t b, Sizes shape) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) fail("{}: {} overflows 64 bits", what, to_string(shape));
  return product;
}

void check_sizes(std::string_view what, Sizes shape) {
  if (::ranges::any_of(shape, [](std::int64_t size) { return size < 0; })) fail("{}: negative size in {}", what, to_string(shape));
}

}  // namespace

std::int64_t numel(Sizes shape) {
  check_sizes("numel", shape);
  if (::ranges::contains(shape, 0)) return 0;
  return ::ranges::accumulate(shape, std::int64_t{1}, [&](std::int64_t product, std::int64_t size) { return times("numel", product, size, shape); });
}

Shape contiguous_strides(Sizes shape) {
  check_sizes("contiguous_strides", shape);
  Shape strides(shape.size(), 1);
  for (std::size_t i = shape.size(); i-- > 1;) strides[i - 1] = times("contiguous_strides", strides[i], std::max<std::int64_t>(shape[i], 1), shape);
  return strides;
}

bool is_contiguous(Sizes shape, Sizes strides) {
  if (::ranges::contains(shape, 0)) return true;
  std::int64_t expected = 1;
  for (auto const [size, stride] : views::zip(shape, strides) | views::reverse) {
    if (size == 1) continue;
    if (stride != expected) return false;
    expected *= size;
  }
  return true;
}

Shape broadcast(std::string_view what, Sizes a, Sizes b) {
  check_sizes(what, a);
  check_sizes(what, b);
  auto const size_at = [](Sizes shape, std::size_t from_back) { return from_back < shape.size() ? shape[shape.size() - 1 - from_back] : 1; };
  std::size_t const rank = std::max(a.size(), b.size());
  Shape result(rank);
  for (std::size_t i = 0; i < rank; ++i) {
    std::int64_t const left = size_at(a, i), right = size_at(b, i);
    if (left != right && left != 1 && right != 1)
      fail("{}: shapes {} and {} do not broadcast: {} and {} differ", what, to_string(a), to_string(b), left, right);
    result[rank - 1 - i] = left == 1 ? right : left;
  }
  return result;
}

int wrap_dim(std::string_view what, std::int64_t dim, int rank) {
  if (dim < -rank || dim >= rank) fail("{}: dim {} is out of range for rank {}", what, dim, rank);
  return static_cast<int>(dim < 0 ? dim + rank : dim);
}

std::string to_string(Sizes shape) {
  auto const words = shape | views::transform([](std::int64_t size) { return std::to_string(size); });
  return "[" + (words | views::join(std::string_view(", ")) | ::ranges::to<std::string>()) + "]";
}

namespace {

constexpr std::array<std::string_view, 3> kinds{"cpu", "cuda", "sim"};

}  // namespace

std::string to_string(Device device) {
  std::string_view const kind = kinds[static_cast<std::size_t>(device.kind)];
  return device.kind == Device::Kind::cpu ? std::string(kind) : std::format("{}:{}", kind, device.index);
}

Device device_of(std::string_view name) {
  auto const colon = name.find(':');
  auto const kind = ::ranges::find(kinds, name.substr(0, colon));
  std::string_view const digits = colon == std::string_view::npos ? "0" : name.substr(colon + 1);
  std::int8_t index = -1;
  auto const [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
  bool const whole = error == std::errc{} && end == digits.data() + digits.size() && index >= 0;
  if (kind == kinds.end() || !whole || (colon != std::string_view::npos && kind == kinds.begin()))
    fail("device_of: unknown device '{}': cpu, cuda:N or sim:N", name);
  return {.kind = static_cast<Device::Kind>(kind - kinds.begin()), .index = index};
}

void no_such_item(std::size_t index, std::size_t size) { throw Bug(std::format("item {} of a list of {}", index, size)); }

}  // namespace tenon::base
