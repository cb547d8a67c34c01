// Single steps of a loop nest as C.
module tenon.fusion;
import std;
import tenon.base;
import tenon.ir;
import :print_c;
import :c_types;
import :elements;

namespace tenon::fusion {

namespace {
std::size_t at(int i) { return static_cast<std::size_t>(i); }
}  // namespace

Elements::Elements(Kernel const& kernel) : kernel_(kernel), outer_(outer_axes(kernel)) {}

std::string Elements::dim(Dim d) const {
  if (d.node < 0) return std::to_string(d.value);
  auto const found = std::ranges::find(kernel_.parameters, d);
  base::ensure(found != kernel_.parameters.end(), "a size is no parameter");
  return std::format("n{}", found - kernel_.parameters.begin());
}
std::string Elements::number(ir::Scalar const& s, DType compute) const {
  if (s.node < 0) return number_text(s, compute);
  auto const type = std::string(spelling(compute).value);
  if (s.kind == ir::ScalarKind::whole) return "(" + type + ")" + dim(Dim(s.whole, s.node, s.owner));
  auto const found = std::ranges::find(kernel_.real_parameters, s.node, &ir::Scalar::node);
  base::ensure(found != kernel_.real_parameters.end(), "a number is no parameter");
  return std::format("({})q{}", type, found - kernel_.real_parameters.begin());
}
std::string Elements::product(int first, int last) const {
  std::string text;
  for (int a = first; a < last; ++a) text += (text.empty() ? "" : " * ") + dim(kernel_.axes[at(a)].size);
  return text.empty() ? "1" : text;
}
std::string Elements::place() const {
  std::string text;
  for (int a = outer_; a < axes(); ++a) text = text.empty() ? std::format("i{}", a) : std::format("({}) * {} + i{}", text, dim(kernel_.axes[at(a)].size), a);
  return text.empty() ? "0" : text;
}
std::string Elements::offset(Access const& access, int first, int last, bool constant) const {
  std::string text;
  auto const add = [&](std::string const& term) { text += (text.empty() ? "" : " + ") + term; };
  if (constant && !(access.offset.node < 0 && access.offset.value == 0)) add(dim(access.offset));
  for (int a = first; a < last; ++a) {
    auto const stride = access.strides[at(a)];
    if (stride.node < 0 && stride.value == 0) continue;
    add(stride.node < 0 && stride.value == 1 ? std::format("i{}", a) : std::format("i{} * {}", a, dim(stride)));
  }
  return text.empty() ? "0" : text;
}
void Elements::base_pointer(Access const& access, std::string const& name, bool read) {
  auto const& memory = spelling(kernel_.buffers[at(access.buffer)].dtype).memory;
  line(std::format("{0}{1} *{2} = ({0}{1} *)b[{3}] + ({4});", read ? "const " : "", memory, name, access.buffer, offset(access, 0, outer_, true)));
}
std::string Elements::element(Access const& access, std::string const& name) const {
  std::string where = offset(access, outer_, axes(), false);
  if (access.index >= 0) {
    auto const guard = access.guard >= 0 ? std::format("v{}", access.guard) : "1";
    where += std::format(" + tn_place({}, {}, {}, &bad) * {}", value(access.index, DType::i64), dim(access.index_size), guard, dim(access.index_stride));
  }
  return std::format("{}[{}]", name, where);
}
std::string Elements::converted(std::string_view by, std::string const& text) { return by.empty() ? text : std::format("{}({})", by, text); }
std::string Elements::value(int k, DType compute) const {
  auto const& s = step(k);
  if (s.kind == Step::Kind::number) return number(s.number, compute);
  auto const have = spelling(s.dtype).value, want = spelling(compute).value;
  return have == want ? std::format("v{}", k) : std::format("({})v{}", want, k);
}
bool Elements::is_exp_down(Step const& s) const {
  if (s.op != &ir::ops::exp || s.dtype != DType::f32) return false;
  auto const& x = step(s.in[0]);
  if (x.kind != Step::Kind::op || x.op != &ir::ops::sub || x.dtype != DType::f32 || x.attrs.nums.empty() || x.attrs.nums[0].node >= 0) return false;
  auto const& scale = x.attrs.nums[0];
  auto const& top = step(x.in[1]);
  return (scale.kind == ir::ScalarKind::real ? scale.real == 1 : scale.whole == 1) && top.kind == Step::Kind::reduce && top.combine == Monoid::max &&
         top.in[0] == x.in[0];
}
std::string Elements::expression(int k) const {
  auto const& s = step(k);
  auto const& own = spelling(s.dtype);
  switch (s.kind) {
    case Step::Kind::load: {
      auto const& how = spelling(kernel_.buffers[at(s.access.buffer)].dtype);
      auto const read = converted(how.from, element(s.access, std::format("p{}", k)));
      return s.access.guard >= 0 ? std::format("v{} ? {} : 0", s.access.guard, read) : read;
    }
    case Step::Kind::index:
      return std::format("i{}", s.axis);
    case Step::Kind::op: {
      auto const compute = compute_type(kernel_, s);
      std::vector<std::string> operands, attributes;
      for (auto const in : s.in) operands.push_back(value(in, compute));
      for (auto const& a : element_scalars(*s.op, s.attrs)) attributes.push_back(number(a, compute));
      auto const text = is_exp_down(s) ? std::format("tn_exp_down({})", operands[0]) : element_text(*s.op, attributes, operands, compute);
      if (s.op == &ir::ops::to && !base::is_real(s.dtype)) {
        if (s.dtype == DType::boolean) return std::format("({}) != 0", text);
        return compute == DType::i64 ? std::format("({})({})", own.value, text) : std::format("({})tn_whole({})", own.value, text);
      }
      if (s.op == &ir::ops::to && own.to.starts_with("tn_")) {  // one rounding, from what the operand is
        auto const& operand = step(s.in[0]);
        bool const whole = operand.kind != Step::Kind::number && !base::is_real(operand.dtype);
        auto const narrow = whole ? std::format("tn_odd_i64({})", value(s.in[0], DType::i64)) : compute == DType::f64 ? std::format("tn_odd({})", text) : text;
        return std::format("{}({}({}))", own.from, own.to, narrow);
      }
      return compute == s.dtype ? text : std::format("({})({})", own.value, text);
    }
    default:
      return "0";
  }
}
void Elements::define(int k) {
  if (step(k).kind == Step::Kind::number) return;
  line(std::format("{} v{} = {};", spelling(step(k).dtype).value, k, expression(k)));
}
void Elements::combine(Step const& s, std::string const& holder, std::string const& entry) {
  if (s.combine == Monoid::sum || s.combine == Monoid::prod) {  // only the sum may be reordered, so that it runs in vectors
    bool const sums = s.combine == Monoid::sum;
    line(base::is_real(s.dtype) ? std::format("{{ TN_REORDER {} {}= {}; }}", holder, sums ? "+" : "*", entry)
                                : std::format("{0} = {2}({0}, {1});", holder, entry, sums ? "tn_add_i64" : "tn_mul_i64"));
  } else {
    line(std::format("{{ {3} t = {1}; {0} = t {2} {0} ? t : {0}; }}", holder, entry, s.combine == Monoid::max ? ">" : "<", combine_of(s).holder));
  }
}
std::string Elements::entry(Step const& s) const {
  int const in = s.in[0];
  DType const type = s.dtype == DType::f64 ? DType::f64 : base::is_real(s.dtype) ? DType::f32 : DType::i64;
  auto const& how = combine_of(s);
  auto const text = value(in, type);
  return how.entry.starts_with("tn_") ? std::format("{}({})", how.entry, text) : text;
}
std::string Elements::left(Step const& s, std::string const& holder) const {
  auto const& how = combine_of(s);
  auto const text = how.exit.empty() ? holder : std::format("{}({})", how.exit, holder);
  return spelling(s.dtype).value == how.holder ? text : std::format("({}){}", spelling(s.dtype).value, text);
}
void Elements::store(Store const& s, std::string const& place) {
  auto const& how = spelling(kernel_.buffers[at(s.to.buffer)].dtype);
  DType const type = kernel_.buffers[at(s.to.buffer)].dtype;
  auto const text = value(s.step, base::is_real(type)                       ? (type == DType::f64 ? DType::f64 : DType::f32)
                                  : step(s.step).kind == Step::Kind::number ? DType::i64
                                                                            : step(s.step).dtype);
  line(std::format("{} = {};", place, converted(how.to, text)));
}

}  // namespace tenon::fusion
