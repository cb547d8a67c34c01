// What a kernel means: every point by its definition, in double and i64, with a bound for what single precision may make of it.
import std;
import tenon.base;
import tenon.ir;
import tenon.fusion;
#include "fusion_random_kernel.hpp"

namespace support {
using namespace tenon;
using base::DType;
using fusion::Step;

namespace {
std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
constexpr double inf = std::numeric_limits<double>::infinity();

/// A value; `error` is how far another evaluation may lie, for whole numbers 0 or infinite, for bools 0 or 1.
struct Value {
  double real = 0, error = 0;
  std::int64_t whole = 0;
};
double apart(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b) ? 0 : inf;
  return a == b ? 0 : std::fabs(a - b);
}
double rounded(DType type, double value) {
  std::array<std::byte, 8> bytes{};
  base::store_real(type, bytes.data(), value);
  return base::load_real(type, bytes.data());
}
std::int64_t wrapped(DType type, std::int64_t value) {
  std::array<std::byte, 8> bytes{};
  base::store_whole(type, bytes.data(), value);
  return base::load_whole(type, bytes.data());
}
bool is_flag(DType type) { return type == DType::boolean; }

class Evaluator {
 public:
  explicit Evaluator(RandomKernel const& random) : random_(random), kernel_(random.kernel), tables_(kernel_.steps.size()) {
    for (auto const& axis : kernel_.axes) sizes_.push_back(size(axis.size));
  }
  std::vector<Expected> run() {
    std::vector<Expected> list;
    for (auto const& store : kernel_.stores)
      walk(step(store.step).level, std::vector<std::int64_t>(sizes_.size(), 0), [&](std::vector<std::int64_t> const& point) {
        list.push_back(expected(value(store.step, point), kernel_.buffers[at(store.to.buffer)].dtype));
        list.back().buffer = store.to.buffer;
        list.back().offset = place(store.to, point);
      });
    return list;
  }

 private:
  RandomKernel const& random_;
  fusion::Kernel const& kernel_;
  std::vector<std::int64_t> sizes_;
  std::vector<std::vector<std::optional<Value>>> tables_;  // per step, by the coordinates that it varies over

  Step const& step(int k) const { return kernel_.steps[at(k)]; }
  std::int64_t size(ir::Dim dim) const { return dim.node < 0 ? dim.value : random_.parameters[at(dim.node)]; }
  std::int64_t whole(ir::Scalar const& s) const { return s.node < 0 ? s.whole : random_.parameters[at(s.node)]; }
  double number(ir::Scalar const& s) const {
    if (s.kind == ir::ScalarKind::none) return std::numeric_limits<double>::quiet_NaN();
    if (s.kind != ir::ScalarKind::real) return static_cast<double>(whole(s));
    return s.node < 0 ? s.real : random_.real_parameters[at(s.node - 1000)];
  }
  template <class F>
  void walk(fusion::Roles roles, std::vector<std::int64_t> point, F f, std::size_t axis = 0) const {
    if (axis == sizes_.size()) return f(point);
    if (!(roles & fusion::roles_of(kernel_.axes[axis].role))) return walk(roles, std::move(point), f, axis + 1);
    for (point[axis] = 0; point[axis] < sizes_[axis]; ++point[axis]) walk(roles, point, f, axis + 1);
  }
  std::int64_t place(fusion::Access const& access, std::vector<std::int64_t> const& point) {
    std::int64_t offset = size(access.offset);
    for (std::size_t a = 0; a < sizes_.size(); ++a) offset += point[a] * size(access.strides[a]);
    if (access.index < 0) return offset;
    return offset + value(access.index, point).whole * size(access.index_stride);
  }
  Value value(int k, std::vector<std::int64_t> const& point) {
    std::int64_t index = 0, count = 1;
    for (std::size_t a = 0; a < point.size(); ++a)
      if (step(k).level & fusion::roles_of(kernel_.axes[a].role)) index = index * sizes_[a] + point[a], count *= sizes_[a];
    auto& table = tables_[at(k)];
    if (table.empty()) table.resize(at(count));
    if (!table[at(index)]) {
      auto const made = compute(k, point);
      table[at(index)] = made;
    }
    return *table[at(index)];
  }
  Value compute(int k, std::vector<std::int64_t> const& point) {
    auto const& s = step(k);
    switch (s.kind) {
      case Step::Kind::load: {
        double doubt = 0;
        if (s.access.guard >= 0) {
          auto const guard = value(s.access.guard, point);
          if (guard.real == 0) return {};
          doubt = guard.error > 0 ? inf : 0;
        }
        auto const type = kernel_.buffers[at(s.access.buffer)].dtype;
        auto const* const element = random_.buffers[at(s.access.buffer)].data() + place(s.access, point) * base::bytes_of(type);
        return {base::load_real(type, element), doubt, base::load_whole(type, element)};
      }
      case Step::Kind::number:
        return {number(s.number), 0, s.number.kind == ir::ScalarKind::real ? base::truncate(number(s.number)) : whole(s.number)};
      case Step::Kind::index:
        return {static_cast<double>(point[at(s.axis)]), 0, point[at(s.axis)]};
      case Step::Kind::op:
        return element(k, point);
      case Step::Kind::reduce:
        return reduction(k, point);
    }
    return {};
  }
  Value whole(DType type, std::int64_t value, double error) const {
    auto const kept = wrapped(type, value);
    return {static_cast<double>(kept), error, kept};
  }
  // The result of a formula at x as the dtype holds it: small floats as f32, but for a cast.
  double held(Step const& s, double result) const {
    if (is_flag(s.dtype)) return result != 0;
    if (!base::is_real(s.dtype)) return static_cast<double>(wrapped(s.dtype, base::truncate(result)));
    if (s.op == &ir::ops::to) return rounded(s.dtype, result);
    return s.dtype == DType::f64 ? result : static_cast<double>(static_cast<float>(result));
  }
  bool is_product(int k) const {
    auto const& s = step(k);
    if (s.kind != Step::Kind::op) return false;
    if (s.op == &ir::ops::where) return is_product(s.in[1]) || is_product(s.in[2]);
    return s.op == &ir::ops::mul || s.op == &ir::ops::square;
  }
  Value element(int k, std::vector<std::int64_t> const& point) {
    auto const& s = step(k);
    auto const compute = fusion::compute_type(kernel_, s);
    auto attributes = ir::element_attributes(*s.op, s.attrs);
    std::size_t real = 0;
    for (std::size_t i = 0; i < attributes.size() && real < s.attrs.nums.size(); ++i) attributes[i] = number(s.attrs.nums[real++]);
    std::vector<Value> in;
    for (auto const operand : s.in) in.push_back(value(operand, point));
    bool const sure = std::ranges::all_of(in, [](Value const& v) { return v.error == 0; });
    if (compute == DType::i64 && s.op->element.whole) {
      std::array<std::int64_t, 3> x{};
      for (std::size_t i = 0; i < in.size(); ++i) x[i] = in[i].whole;
      auto const result = s.op->element.whole(x.data(), attributes.data());
      if (is_flag(s.dtype)) return {static_cast<double>(result != 0), sure ? 0.0 : 1.0, result != 0};
      return whole(s.dtype, result, sure ? 0 : inf);
    }
    std::array<double, 3> x{};
    for (std::size_t i = 0; i < in.size(); ++i) {
      bool const is_whole = !base::is_real(step(s.in[i]).dtype) && step(s.in[i]).number.kind != ir::ScalarKind::real;
      x[i] = is_whole ? static_cast<double>(in[i].whole) : in[i].real;
      if (compute == DType::f32 && s.op != &ir::ops::to) x[i] = static_cast<double>(static_cast<float>(x[i]));
    }
    for (std::size_t i = 0; i < in.size(); ++i)  // a product that overflows is not infinite where it is contracted with this sum
      if (s.op->terms.find('b') != std::string_view::npos && std::isinf(x[i]) && is_product(s.in[i]))
        return open(s, s.op->element.real(x.data(), attributes.data()));
    auto const at_point = [&] { return held(s, s.op->element.real(x.data(), attributes.data())); };
    double const result = at_point(), last = compute == DType::f64 && s.dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
    double error = 0, operands = 0;
    for (std::size_t i = 0; i < in.size(); ++i) {
      operands += std::isfinite(x[i]) ? std::fabs(x[i]) : 0;
      if (in[i].error == 0) continue;
      if (!is_flag(step(s.in[i]).dtype) && !(std::isfinite(in[i].error) && in[i].error <= 0.01 * (1 + std::fabs(x[i]))))
        return open(s, result);                                                                                // too far for a line to tell
      if ((s.op == &ir::ops::sin || s.op == &ir::ops::cos) && !(in[i].error <= 0.01)) return open(s, result);  // a turn lies within
      double const here = x[i];
      double most = 0;
      for (double const there : {here - in[i].error, here + in[i].error, std::fabs(here) <= in[i].error ? 0.0 : here}) {
        x[i] = there;
        most = std::max(most, apart(at_point(), result));
      }
      x[i] = here;
      error += 1.5 * most;
    }
    if (is_flag(s.dtype)) return {result, error > 0 ? 1.0 : 0.0, static_cast<std::int64_t>(result)};
    if (!base::is_real(s.dtype)) return whole(s.dtype, base::truncate(result), error > 0 ? inf : 0);
    // What is added may be contracted, and gelu subtracts within: their errors are those of the operands.
    bool const adds = s.op->terms.find('b') != std::string_view::npos || s.op == &ir::ops::gelu;
    bool const copies = s.op == &ir::ops::to || s.op == &ir::ops::where || s.op == &ir::ops::masked_fill || s.op == &ir::ops::clamp;
    if (!copies && std::isfinite(result)) error += 4 * last * (std::fabs(result) + (adds ? operands : 0)) + (last == 0x1p-24 ? 0x1p-140 : 0x1p-1000);
    return {result, std::isnan(error) ? inf : error, base::truncate(result)};
  }
  Value open(Step const& s, double result) const {
    return {result, is_flag(s.dtype) ? 1.0 : inf, base::is_real(s.dtype) ? base::truncate(result) : static_cast<std::int64_t>(result)};
  }
  Value reduction(int k, std::vector<std::int64_t> const& point) {
    auto const& s = step(k);
    bool const real = base::is_real(s.dtype), product = s.combine == ir::Monoid::prod, sum = s.combine == ir::Monoid::sum;
    double total = product ? 1 : 0, error = 0, size = 0;
    std::uint64_t bits = product ? 1 : 0;
    std::int64_t n = 0;
    walk(s.over, point, [&](std::vector<std::int64_t> const& here) {
      auto const v = value(s.in[0], here);
      double const x = v.real;
      if (sum) {
        total += x, bits += static_cast<std::uint64_t>(v.whole), size += std::fabs(x), error += v.error;
      } else if (product) {
        error = error * std::fabs(x) + v.error * std::fabs(total), total *= x, bits *= static_cast<std::uint64_t>(v.whole);
      } else {
        bool const wins = n == 0 || std::isnan(x) || (s.combine == ir::Monoid::max ? x > total : x < total);
        if (wins && !std::isnan(total)) total = x;
        if (n == 0 || (s.combine == ir::Monoid::max) == (v.whole > static_cast<std::int64_t>(bits))) bits = static_cast<std::uint64_t>(v.whole);
        error = std::max(error, v.error);
      }
      ++n;
    });
    if (!real) {
      if (is_flag(s.dtype)) return {static_cast<double>(bits != 0), error > 0 ? 1.0 : 0.0, bits != 0};
      return whole(s.dtype, static_cast<std::int64_t>(bits), error > 0 ? inf : 0);
    }
    double const last = s.dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
    if (s.dtype != DType::f64) total = static_cast<double>(static_cast<float>(total));
    if (sum) error += last * static_cast<double>(n + 8) * size;
    if (product) error += last * static_cast<double>(n + 8) * std::fabs(total) + (n > 1 ? 0x1p-140 : 0);
    if (product && n > 64) error = inf;  // parts of it may leave the range where the whole does not
    if (sum && !std::isfinite(total) && std::isfinite(size)) error = inf;
    return {total, std::isnan(total) ? (std::isfinite(error) ? 0 : error) : std::isnan(error) ? inf : error, base::truncate(total)};
  }
  Expected expected(Value const& v, DType type) const {
    Expected e{.value = v.real, .whole = v.whole, .is_whole = !base::is_real(type), .open = false};
    if (e.is_whole) {
      e.open = v.error > 0;
      return e;
    }
    e.open = !std::isfinite(v.error);
    e.low = rounded(type, v.real - v.error), e.high = rounded(type, v.real + v.error);
    if (std::isnan(e.low) != std::isnan(e.high)) e.open = true;
    return e;
  }
};
}  // namespace

std::vector<Expected> reference(RandomKernel const& random) { return Evaluator(random).run(); }

std::string differences(RandomKernel const& random, std::vector<std::vector<std::byte>> const& buffers, std::int64_t* closed, std::int64_t* all) {
  std::string text;
  int faults = 0;
  std::vector<std::vector<char>> touched;
  for (auto const& buffer : buffers) touched.emplace_back(buffer.size(), 0);
  auto const say = [&](std::string const& line) {
    if (++faults <= 4) text += line + "\n";
  };
  for (auto const& e : reference(random)) {
    auto const type = random.kernel.buffers[at(e.buffer)].dtype;
    auto const* const element = buffers[at(e.buffer)].data() + e.offset * base::bytes_of(type);
    std::fill_n(touched[at(e.buffer)].begin() + e.offset * base::bytes_of(type), base::bytes_of(type), 1);
    if (all) ++*all;
    if (closed && !e.open && (e.is_whole || std::isnan(e.value) || e.high - e.low <= 2e-3 * (1 + std::fabs(e.value)) || e.high == e.low)) ++*closed;
    if (e.open) continue;
    if (e.is_whole) {
      auto const got = base::load_whole(type, element);
      if (got != e.whole) say(std::format("buffer {} at {} is {}, not {}", e.buffer, e.offset, got, e.whole));
      continue;
    }
    double const got = base::load_real(type, element);
    bool const fine = std::isnan(e.value) || std::isnan(e.low) ? std::isnan(got) : e.low <= got && got <= e.high;
    if (!fine) say(std::format("buffer {} at {} is {}, not {} ({} to {})", e.buffer, e.offset, got, e.value, e.low, e.high));
  }
  for (std::size_t b = 0; b < buffers.size(); ++b)
    for (std::size_t i = 0; i < buffers[b].size(); ++i)
      if (!touched[b][i] && buffers[b][i] != random.buffers[b][i]) say(std::format("buffer {} has byte {} written and no store goes there", b, i));
  return text;
}

}  // namespace support
