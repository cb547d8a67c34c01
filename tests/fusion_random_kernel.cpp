// Random kernels of the loop IR: their structure is legal by construction, and verify holds them to it.
import std;
import tenon.base;
import tenon.ir;
import tenon.fusion;
#include "fusion_random_kernel.hpp"

namespace support {
using namespace tenon;
using base::DType;
using fusion::Axis;
using fusion::Role;
using fusion::Roles;
using fusion::Step;

namespace {
std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
constexpr std::uint32_t owner = 7;  // of symbolic sizes, which no Symbols needs to hold

class Maker {
 public:
  Maker(std::mt19937& random, KernelOptions const& options) : random_(random), options_(options) {}
  RandomKernel run() {
    axes();
    for (int n = 2 + below(3); n-- > 0;) load(dtype());
    for (int n = options_.steps / 2 + below(options_.steps); n-- > 0;) {
      int const kind = below(12);
      if (kind == 0)
        load(dtype());
      else if (kind == 1 && options_.indirect)
        indirect_load();
      else if (kind == 2)
        coordinate();
      else if (kind <= 4)
        reduce();
      else if (kind == 5 && chance(30))
        exp_of_shifted();
      else if ((kind == 6 || kind == 7) && chance(options_.followers))
        follower();
      else
        op();
    }
    stores();
    bool const reduces = std::ranges::any_of(kernel_.steps, [](Step const& step) { return step.kind == Step::Kind::reduce; });
    for (auto& step : kernel_.steps)
      step.keep = reduces && fusion::passes(kernel_) > 1 && step.kind == Step::Kind::op && (step.level & fusion::over_columns) && below(4) == 0;
    bool const across = std::ranges::any_of(kernel_.steps, [](Step const& step) { return (step.over & fusion::over_rows) != 0; });
    bool const cut = reduces && !across && fusion::passes(kernel_) == 1 && chance(50);
    kernel_.schedule.form = cut ? fusion::Form::split : reduces ? fusion::Form::row : fusion::Form::pointwise;
    if (reduces && !cut && chance(50)) kernel_.schedule.ahead = below(fusion::passes(kernel_));
    for (auto const form : {chance(50) ? fusion::Form::online : fusion::Form::split, fusion::Form::split, fusion::Form::online}) {
      if (!reduces || !chance(options_.followers) || (form == fusion::Form::split && !fusion::can_walk(kernel_, form))) continue;
      auto other = kernel_;
      fusion::walk(other, form);  // online even where that saves no pass
      if (form == fusion::Form::online && std::ranges::all_of(other.steps, [](Step const& step) { return step.with < 0; })) continue;
      kernel_ = std::move(other);
      for (auto& step : kernel_.steps)  // more row buffers than pay
        step.keep |= form == fusion::Form::online && step.kind == Step::Kind::op && (step.level & fusion::over_columns) && below(4) == 0;
      break;
    }
    return std::move(made_);
  }

 private:
  std::mt19937& random_;
  KernelOptions const& options_;
  RandomKernel made_;
  fusion::Kernel& kernel_ = made_.kernel;
  std::vector<std::int64_t> sizes_;
  std::vector<char> after_, reduced_;  // per step: follows a reduction over rows; reads any reduction

  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  bool chance(int percent) { return below(100) < percent; }
  template <class T>
  T one_of(std::initializer_list<T> list) {
    return list.begin()[below(static_cast<int>(list.size()))];
  }
  Step const& step(int k) const { return kernel_.steps[at(k)]; }
  int count() const { return static_cast<int>(kernel_.steps.size()); }

  // A size that some callers give as a parameter; its hint is wrong on purpose.
  ir::Dim size(std::int64_t value) {
    if (!options_.symbolic || value < 2 || !chance(20)) return value;
    ir::Dim const dim(value + 1, static_cast<std::int32_t>(made_.parameters.size()), owner);
    made_.parameters.push_back(value);
    kernel_.parameters.push_back(dim);
    return dim;
  }
  ir::Scalar number(DType type) {
    if (!base::is_real(type)) return static_cast<std::int64_t>(below(7) - 3);
    double const value = (below(33) - 16) / 8.0;
    if (!options_.symbolic || !chance(15)) return value;
    ir::Scalar scalar(value + 1);
    scalar.node = static_cast<std::int32_t>(1000 + made_.real_parameters.size());
    scalar.owner = owner;
    made_.real_parameters.push_back(value);
    kernel_.real_parameters.push_back(scalar);
    return scalar;
  }
  DType dtype() {
    int const kind = below(10);
    if (kind >= 7 && options_.whole) return one_of({DType::i64, DType::i64, DType::i32, DType::i16, DType::i8, DType::u8, DType::boolean, DType::boolean});
    if (kind >= 5 && options_.small_floats) return one_of({DType::bf16, DType::bf16, DType::f16, DType::f8e4m3, DType::f8e5m2});
    return kind == 4 ? DType::f64 : DType::f32;
  }

  void axes() {
    int const batch = below(2), rows = below(3), columns = below(3);
    auto const add = [&](Role role) {
      auto const used = std::accumulate(sizes_.begin(), sizes_.end(), std::int64_t{1}, std::multiplies<>());
      auto n = one_of<std::int64_t>({1, 2, 3, 5, 8, 17, 33, 64, 130, 513, 1030, 2500});
      if (options_.empty && chance(2)) n = 0;
      if (n * used > options_.points) n = 2 + below(2);
      sizes_.push_back(n);
      kernel_.axes.push_back({size(n), role});
    };
    for (int k = 0; k < batch; ++k) add(Role::batch);
    for (int k = 0; k < rows; ++k) add(Role::row);
    for (int k = 0; k < columns || kernel_.axes.empty(); ++k) add(Role::column);
  }

  // -- memory -------------------------------------------------------------------------------------------------------------------------------
  // Strides over `axes` in a random order, now and then with gaps or backwards; the access gets them, the count of elements comes back.
  std::int64_t lay_out(std::vector<int> axes, fusion::Access& access, bool plain) {
    std::ranges::shuffle(axes, random_);
    if (chance(60)) std::ranges::sort(axes);
    access.strides.clear();
    for (std::size_t a = 0; a < sizes_.size(); ++a) access.strides.push_back(0);
    std::int64_t stride = !plain && chance(15) ? 2 : 1, offset = below(3);
    for (std::size_t k = axes.size(); k-- > 0;) {
      auto const n = sizes_[at(axes[k])];
      bool const back = !plain && n > 0 && chance(10);
      access.strides[at(axes[k])] = back ? ir::Dim(-stride) : size(stride);
      if (back) offset += (n - 1) * stride;
      stride *= std::max<std::int64_t>(n, 1);
    }
    access.offset = size(offset);
    return offset + stride;
  }
  int buffer(DType type, std::int64_t elements, bool written, std::int64_t below_size = 0) {
    made_.buffers.emplace_back(at(elements * base::bytes_of(type)));
    kernel_.buffers.push_back({type, written, ""});
    auto* const data = made_.buffers.back().data();
    constexpr double inf = std::numeric_limits<double>::infinity();
    bool const special = options_.specials && chance(10);
    for (std::int64_t i = 0; i < elements; ++i) {
      auto* const item = data + i * base::bytes_of(type);
      if (below_size)
        base::store_whole(type, item, static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(below_size)));
      else if (type == DType::boolean)
        base::store_whole(type, item, below(2));
      else if (!base::is_real(type))
        base::store_whole(type, item, below(11) - 5);
      else if (special && chance(2))
        base::store_real(type, item, one_of({inf, -inf, std::numeric_limits<double>::quiet_NaN(), -0.0, 1e30, 1e-40}));
      else
        base::store_real(type, item, std::uniform_real_distribution(-2.0, 2.0)(random_));
    }
    return static_cast<int>(kernel_.buffers.size()) - 1;
  }
  std::vector<int> some_axes() {
    std::vector<int> axes;
    for (int a = 0; std::cmp_less(a, sizes_.size()); ++a)
      if (chance(70)) axes.push_back(a);
    return axes;
  }
  Roles varies(fusion::Access const& access) const {
    Roles level = 0;
    for (std::size_t a = 0; a < access.strides.size(); ++a)
      if (access.strides[a].value != 0 || access.strides[a].node >= 0) level |= fusion::roles_of(kernel_.axes[a].role);
    for (int const k : {access.index, access.guard})
      if (k >= 0) level |= step(k).level;
    return level;
  }
  int add(Step made) {
    bool after = false, reduced = made.kind == Step::Kind::reduce;
    for (auto const in : made.in)
      made.level |= step(in).level, made.pass = std::max(made.pass, step(in).pass), after |= after_[at(in)] != 0, reduced |= reduced_[at(in)] != 0;
    if (made.kind == Step::Kind::load) {
      made.level |= varies(made.access);
      for (int const k : {made.access.index, made.access.guard})
        if (k >= 0) made.pass = std::max(made.pass, step(k).pass), reduced |= reduced_[at(k)] != 0;
    }
    if (made.kind == Step::Kind::index) made.level = fusion::roles_of(kernel_.axes[at(made.axis)].role);
    if (made.kind == Step::Kind::reduce) {
      made.level &= static_cast<Roles>(~made.over);
      made.pass += made.over & fusion::over_columns ? 1 : 0;
      after = (made.over & fusion::over_rows) != 0;
    }
    kernel_.steps.push_back(std::move(made));
    after_.push_back(after), reduced_.push_back(reduced);
    return count() - 1;
  }
  int load(DType type, std::vector<int> axes, std::int64_t below_size = 0) {
    Step made{.kind = Step::Kind::load, .dtype = type};
    auto const elements = lay_out(std::move(axes), made.access, false);
    made.access.buffer = buffer(type, elements + 1, false, below_size);
    return add(std::move(made));
  }
  int load(DType type) { return load(type, some_axes()); }
  int coordinate() { return add({.kind = Step::Kind::index, .dtype = DType::i64, .axis = below(static_cast<int>(sizes_.size()))}); }
  int constant(DType type, ir::Scalar scalar) { return add({.kind = Step::Kind::number, .dtype = type, .number = scalar}); }

  // Rows that an index selects, elements that a mask lets through, a shift whose guard keeps it inside.
  void indirect_load() {
    DType const type = dtype();
    Step made{.kind = Step::Kind::load, .dtype = type};
    int const kind = below(3);
    if (kind == 0) {
      std::int64_t const rows = 1 + below(9);
      int const index = load(one_of({DType::i64, DType::i32}), some_axes(), rows);
      auto const elements = lay_out(some_axes(), made.access, true);
      made.access.index = index;
      made.access.index_stride = size(elements);
      made.access.index_size = size(rows);
      made.access.buffer = buffer(type, elements * (rows + 1), false);
    } else if (kind == 1) {
      int const mask = load(DType::boolean);
      auto const elements = lay_out(some_axes(), made.access, false);
      made.access.guard = mask;
      made.access.buffer = buffer(type, elements + 1, false);
    } else {
      int const axis = below(static_cast<int>(sizes_.size()));
      std::vector<int> axes = some_axes();
      if (std::ranges::find(axes, axis) == axes.end()) axes.push_back(axis);
      auto const elements = lay_out(axes, made.access, true);
      auto const stride = made.access.strides[at(axis)];
      auto const plain = [&](ir::Dim dim) { return dim.node < 0 ? dim.value : made_.parameters[at(dim.node)]; };
      made.access.strides[at(axis)] = plain(stride);
      made.access.offset = plain(made.access.offset) - plain(stride);
      int const here = add({.kind = Step::Kind::index, .dtype = DType::i64, .axis = axis}), one = constant(DType::i64, 1);
      made.access.guard = add({.dtype = DType::boolean, .op = &ir::ops::ge, .in = {here, one}});
      made.access.buffer = buffer(type, elements + 1, false);
    }
    add(std::move(made));
  }

  // -- values -------------------------------------------------------------------------------------------------------------------------------
  // A step that may stand beside `other`: what follows a reduction over rows meets neither rows nor a row's reductions.
  bool together(int a, int b) const {
    for (auto const& [x, y] : {std::pair{a, b}, {b, a}})
      if (after_[at(x)] && ((step(y).level & fusion::over_rows) || (reduced_[at(y)] && !after_[at(y)]))) return false;
    return true;
  }
  int pick(std::function<bool(int)> const& fits) {
    for (int turn = 0; turn < 12; ++turn) {
      int const k = chance(60) ? std::max(0, count() - 1 - below(6)) : below(count());
      if (step(k).kind != Step::Kind::number && fits(k)) return k;
    }
    return -1;
  }
  bool is_f8(DType type) const { return type == DType::f8e4m3 || type == DType::f8e5m2; }
  int widened(int k) { return is_f8(step(k).dtype) ? add({.dtype = DType::f32, .op = &ir::ops::to, .in = {k}, .attrs = ir::Attrs{}.with(DType::f32)}) : k; }
  void op() {
    int const a = pick([](int) { return true; });
    if (a < 0) return;
    int const kind = below(14);
    DType const type = step(a).dtype;
    if (kind == 0) {
      DType const to = dtype();
      add({.dtype = to, .op = &ir::ops::to, .in = {a}, .attrs = ir::Attrs{}.with(to)});
    } else if (kind <= 5) {
      unary(a, type);
    } else {
      binary(a);
    }
  }
  void unary(int a, DType type) {
    using namespace ir::ops;
    if (type == DType::boolean) return void(add({.dtype = type, .op = &logical_not, .in = {a}}));
    if (!base::is_real(type) && chance(60)) {
      if (chance(20))
        return void(add({.dtype = type, .op = &clamp, .in = {a}, .attrs = ir::Attrs{}.with_num(-2).with_num(chance(50) ? ir::Scalar(3) : ir::Scalar{})}));
      auto const* const op = one_of({&ir::ops::neg, &ir::ops::abs, &square, &ir::ops::sign, &relu});
      return void(add({.dtype = type, .op = op, .in = {a}}));
    }
    DType const result = base::is_real(type) ? type : DType::f32;
    int const kind = below(6);
    if (kind == 0) return void(add({.dtype = result, .op = &gelu, .in = {a}, .attrs = ir::Attrs{}.with(below(2))}));
    if (kind == 1 && base::is_real(type)) {
      auto attrs = ir::Attrs{}.with_num(chance(70) ? ir::Scalar(-0.5) : ir::Scalar{}).with_num(chance(70) ? ir::Scalar(0.75) : ir::Scalar{});
      return void(add({.dtype = type, .op = &clamp, .in = {a}, .attrs = attrs}));
    }
    auto const* const op = one_of({&ir::ops::exp,  &ir::ops::tanh, &sigmoid,      &ir::ops::erf, &silu,           &ir::ops::expm1, &ir::ops::log1p,
                                   &ir::ops::sqrt, &reciprocal,    &ir::ops::sin, &ir::ops::neg, &ir::ops::abs,   &relu,           &square,
                                   &ir::ops::log,  &ir::ops::log2, &rsqrt,        &ir::ops::cos, &ir::ops::floor, &isnan});
    add({.dtype = op == &isnan ? DType::boolean : op->types == ir::Types::real ? result : type, .op = op, .in = {a}});
  }
  void binary(int a) {
    using namespace ir::ops;
    int b = pick([&](int k) { return together(a, k); });
    if (b < 0) return;
    int mask = -1;
    if (chance(20)) mask = pick([&](int k) { return step(k).dtype == DType::boolean && together(a, k) && together(b, k); });
    a = widened(a), b = widened(b);
    DType const type = base::promote(step(a).dtype, step(b).dtype);
    if (mask >= 0) {
      if (chance(30) && base::is_real(step(a).dtype))
        return void(add({.dtype = step(a).dtype, .op = &masked_fill, .in = {a, mask}, .attrs = ir::Attrs{}.with_num(number(DType::f32))}));
      return void(add({.dtype = type, .op = &where, .in = {mask, a, b}}));
    }
    if (type == DType::boolean) {
      auto const* const op = one_of({&logical_and, &logical_or, &eq, &ne, &maximum, &ir::ops::mul});
      return void(add({.dtype = DType::boolean, .op = op, .in = {a, b}}));
    }
    if (chance(20)) {  // a number in the place of an operand
      DType const kind = base::is_real(type) || chance(60) ? (base::is_real(type) ? type : DType::i64) : DType::f32;
      int const scalar = constant(kind, number(kind));
      (chance(50) ? a : b) = scalar;
    }
    DType const beside = step(a).kind == Step::Kind::number ? step(b).dtype : step(b).kind == Step::Kind::number ? step(a).dtype : type;
    bool const real_number = step(a).number.kind == ir::ScalarKind::real || step(b).number.kind == ir::ScalarKind::real;
    DType const result = base::is_real(beside) ? beside : real_number ? DType::f32 : beside == DType::boolean ? DType::i64 : beside;
    if (chance(20)) return void(add({.dtype = DType::boolean, .op = one_of({&eq, &ne, &lt, &le, &gt, &ge}), .in = {a, b}}));
    if (!base::is_real(result) && chance(40)) return void(add({.dtype = result, .op = one_of({&floor_divide, &remainder, &maximum, &minimum}), .in = {a, b}}));
    auto const* const op = one_of({&add_, &add_, &sub_, &mul_, &mul_, &maximum, &minimum, &div_});
    auto const attrs = op == &add_ || op == &sub_ ? ir::Attrs{}.with_num(chance(70)              ? ir::Scalar(1)
                                                                         : base::is_real(result) ? number(DType::f32)
                                                                                                 : ir::Scalar(2))
                                                  : ir::Attrs{};
    add({.dtype = op == &div_ && !base::is_real(result) ? DType::f32 : result, .op = op, .in = {a, b}, .attrs = attrs});
  }
  static constexpr ir::OpDef const &add_ = ir::ops::add, &sub_ = ir::ops::sub, &mul_ = ir::ops::mul, &div_ = ir::ops::div;

  Roles roles() const {
    Roles all = 0;
    for (auto const& axis : kernel_.axes) all |= fusion::roles_of(axis.role);
    return all;
  }
  // Empty reductions of maxima have no value; neither has a reduction behind one over rows.
  void reduce() {
    Roles const whole = roles();
    Roles over = chance(60) ? fusion::over_columns : chance(60) ? fusion::over_rows : fusion::over_rows | fusion::over_columns;
    over &= whole;
    if (!over) return;
    int const a = pick([&](int k) { return !after_[at(k)] && (step(k).level & over) == over; });
    if (a < 0) return;
    bool const empty = std::ranges::find(sizes_, 0) != sizes_.end();
    DType type = step(a).dtype;
    auto monoid = one_of({ir::Monoid::sum, ir::Monoid::sum, ir::Monoid::max, ir::Monoid::min, ir::Monoid::prod});
    if (empty && monoid != ir::Monoid::prod) monoid = ir::Monoid::sum;
    if (type == DType::boolean && (monoid == ir::Monoid::max || monoid == ir::Monoid::min) && !empty)
      ;
    else if (!base::is_real(type) && (monoid == ir::Monoid::sum || monoid == ir::Monoid::prod))
      type = DType::i64;
    add({.kind = Step::Kind::reduce, .dtype = type, .in = {a}, .combine = monoid, .over = over});
  }

  // exp(x - max(x)), as softmax has it.
  void exp_of_shifted() {
    int const x = pick([&](int k) { return !after_[at(k)] && step(k).dtype == DType::f32 && (step(k).level & fusion::over_columns); });
    if (x < 0 || std::ranges::find(sizes_, 0) != sizes_.end()) return;
    int const top = add({.kind = Step::Kind::reduce, .in = {x}, .combine = ir::Monoid::max, .over = fusion::over_columns});
    int const shifted = add({.op = &ir::ops::sub, .in = {x, top}, .attrs = ir::Attrs{}.with_num(1.0)});
    add({.op = &ir::ops::exp, .in = {shifted}});
  }

  // A sum that can be carried along: e^(x - max x), with 0 for an infinite maximum or not, times other values or not, or squares around a mean.
  void follower() {
    namespace ops = ir::ops;
    if (std::ranges::count(kernel_.axes, Role::column, &Axis::role) != 1) return;
    auto const is_point = [&](int k) {
      return !after_[at(k)] && (step(k).dtype == DType::f32 || step(k).dtype == DType::f64) && (step(k).level & fusion::over_columns);
    };
    int x = pick(is_point);
    if (x < 0) return;
    DType const type = step(x).dtype;
    auto const one = ir::Attrs{}.with_num(1.0);
    constexpr double inf = std::numeric_limits<double>::infinity();
    auto const op = [&](ir::OpDef const& row, std::initializer_list<int> in, ir::Attrs attrs = {}) {
      Step made{.dtype = type, .op = &row, .attrs = std::move(attrs)};
      for (int const k : in) made.in.push_back(k);
      return add(std::move(made));
    };
    auto const sum = [&](ir::Monoid monoid, int in) {
      return add({.kind = Step::Kind::reduce, .dtype = type, .in = {in}, .combine = monoid, .over = fusion::over_columns});
    };
    bool const empty = std::ranges::find(sizes_, 0) != sizes_.end();
    if (empty || chance(40)) {
      auto const count = kernel_.axes.back().size;
      int const mean = op(ops::div, {sum(ir::Monoid::sum, x), add({.kind = Step::Kind::number, .dtype = DType::i64, .number = ir::Scalar(count)})});
      int const centred = op(ops::sub, {x, mean}, one);
      return void(sum(ir::Monoid::sum, chance(50) ? op(ops::square, {centred}) : op(ops::mul, {centred, centred})));
    }
    if (options_.specials && chance(40)) {  // -inf in front of some column, perhaps of all
      int const column = add({.kind = Step::Kind::index, .dtype = DType::i64, .axis = static_cast<int>(sizes_.size()) - 1});
      int const edge = constant(DType::i64, static_cast<std::int64_t>(below(static_cast<int>(sizes_.back() + 3))));
      int const there = add({.dtype = DType::boolean, .op = &ops::ge, .in = {column, edge}});
      x = op(ops::where, {there, x, constant(type, -inf)});
    }
    int const top = sum(ir::Monoid::max, x);
    int pivot = top;
    if (chance(40)) {
      int const infinite = add({.dtype = DType::boolean, .op = &ops::eq, .in = {op(ops::abs, {top}), constant(type, inf)}});
      pivot = op(ops::where, {infinite, constant(type, 0.0), top});
    }
    int term = op(ops::exp, {op(ops::sub, {x, pivot}, one)});
    int const before = step(top).pass;
    auto const known = [&](int k) { return !after_[at(k)] && step(k).dtype == type && step(k).pass < before; };
    if (int const g = chance(50) ? pick(known) : -1; g >= 0) term = chance(50) ? op(ops::mul, {term, g}) : op(ops::mul, {g, term});
    if (chance(20)) term = op(ops::neg, {term});
    sum(ir::Monoid::sum, term);
  }

  // What nothing reads is stored, and some of the rest.
  void stores() {
    std::vector<char> read(at(count()), 0);
    for (auto const& s : kernel_.steps) {
      for (auto const in : s.in) read[at(in)] = 1;
      for (int const k : {s.access.index, s.access.guard})
        if (k >= 0) read[at(k)] = 1;
    }
    for (int k = 0; k < count(); ++k) {
      if (step(k).kind == Step::Kind::number || (read[at(k)] && !chance(15))) continue;
      fusion::Store store{.step = k};
      std::vector<int> axes;
      for (int a = 0; std::cmp_less(a, sizes_.size()); ++a)
        if (step(k).level & fusion::roles_of(kernel_.axes[at(a)].role)) axes.push_back(a);
      auto const elements = lay_out(axes, store.to, true);
      store.to.buffer = buffer(step(k).dtype, elements, true);
      std::ranges::fill(made_.buffers.back(), std::byte{0x5a});
      kernel_.stores.push_back(store);
    }
  }
};
}  // namespace

RandomKernel random_kernel(std::mt19937& random, KernelOptions const& options) { return Maker(random, options).run(); }

std::vector<std::byte*> addresses(std::vector<std::vector<std::byte>>& buffers) {
  std::vector<std::byte*> list;
  for (auto& buffer : buffers) list.push_back(buffer.data());
  return list;
}

}  // namespace support
