module tenon.guards;
import std;
import tenon.base;
import tenon.ir;

namespace tenon::guards {
using ir::Bindings;
using ir::Dim;
using ir::Meta;
using ir::Scalar;
using ir::ScalarKind;
using ir::Symbols;

Bindings unbound(Symbols const& symbols) {
  Bindings bindings;
  bindings.whole.assign(symbols.names().size(), ir::absent);
  bindings.real.assign(symbols.names().size(), std::numeric_limits<double>::quiet_NaN());
  return bindings;
}

bool agrees(Dim expected, std::int64_t actual, Symbols const& symbols, Bindings& bindings) {
  if (expected.node < 0) return expected.value == actual;
  if (int const number = symbols.symbol_number(expected); number >= 0) {
    auto& bound = bindings.whole[static_cast<std::size_t>(number)];
    if (bound != ir::absent) return bound == actual;
    if (symbols.names()[static_cast<std::size_t>(number)][0] == 's' && actual < 2) return false;
    bound = actual;
    return true;
  }
  return symbols.evaluate(expected, bindings) == actual;
}

bool agrees(Scalar const& expected, Scalar const& actual, Symbols const& symbols, Bindings& bindings) {
  if (expected.node < 0) return same_value(expected, actual);
  if (expected.kind != actual.kind) return false;
  if (expected.kind != ScalarKind::real) return agrees(Dim(expected.whole, expected.node, expected.owner), actual.whole, symbols, bindings);
  bindings.real[static_cast<std::size_t>(symbols.symbol_number(expected))] = actual.real;  // a real symbol stands in one place only
  return true;
}

namespace {
// The first thing that differs: which (0 dtype, 1 device, 2 rank, 3 requires_grad, 4 size, 5 stride; -1 none) and at which dim.
struct Difference {
  int what = -1;
  std::size_t dim = 0;
};
Difference difference(TensorGuard const& guard, Meta const& actual, bool requires_grad, Symbols const& symbols, Bindings& bindings) {
  auto const& expected = *guard.expected;
  if (expected.dtype != actual.dtype) return {0};
  if (expected.device != actual.device) return {1};
  if (expected.sizes.size() != actual.sizes.size()) return {2};
  if (guard.requires_grad != requires_grad) return {3};
  for (std::size_t d = 0; d < actual.sizes.size(); ++d)
    if (!agrees(expected.sizes[d], actual.sizes[d].value, symbols, bindings)) return {4, d};
  for (std::size_t d = 0; d < actual.sizes.size(); ++d) {
    if (actual.sizes[d].value == 1) continue;
    Dim const stride = expected.strides[d];
    if ((stride.node >= 0 ? symbols.evaluate(stride, bindings) : stride.value) != actual.strides[d].value) return {5, d};
  }
  return {};
}
}  // namespace

bool holds(TensorGuard const& guard, ir::MetaRef const& actual, bool requires_grad, Symbols const& symbols, Bindings& bindings) {
  if (!guard.symbolic && actual.get() == guard.expected.get()) return guard.requires_grad == requires_grad;
  return difference(guard, *actual, requires_grad, symbols, bindings).what < 0;
}

std::string mismatch(TensorGuard const& guard, Meta const& actual, bool requires_grad, Symbols const& symbols, Bindings bindings) {
  auto const& expected = *guard.expected;
  auto const [what, dim] = difference(guard, actual, requires_grad, symbols, bindings);
  auto const text = [&](std::string_view name, auto const& want, auto const& have) {
    return std::format("tensor '{}' {} mismatch: expected {}, actual {}", guard.source, name, want, have);
  };
  switch (what) {
    case 0:
      return text("dtype", base::info(expected.dtype).name, base::info(actual.dtype).name);
    case 1:
      return text("device", base::to_string(expected.device), base::to_string(actual.device));
    case 2:
      return text("rank", expected.rank(), actual.rank());
    case 3:
      return text("requires_grad", guard.requires_grad, requires_grad);
    case 4: {
      Dim const want = expected.sizes[dim];
      auto const bound = want.node >= 0 && symbols.symbol_number(want) < 0 ? std::format(" = {}", symbols.evaluate(want, bindings)) : std::string();
      auto const least = want.node >= 0 && actual.sizes[dim].value < 2 ? " of at least 2" : "";
      return std::format("tensor '{}' size mismatch at dim {}: expected {}{}{}, actual {}", guard.source, dim, symbols.to_string(want), bound, least,
                         actual.sizes[dim].value);
    }
    case 5:
      return std::format("tensor '{}' stride mismatch at dim {}: expected {}, actual {}", guard.source, dim, symbols.to_string(expected.strides[dim]),
                         actual.strides[dim].value);
    default:
      return {};
  }
}

std::string to_string(Plain const& value) {
  if (value.number == ir::absent) return value.text;
  return value.text.empty() ? std::to_string(value.number) : std::format("{} {}", value.text, value.number);
}
std::string mismatch(ValueGuard const& guard, Plain const& actual) {
  if (guard.expected == actual) return {};
  return std::format("value '{}' mismatch: expected {}, actual {}", guard.source, to_string(guard.expected), to_string(actual));
}
std::string mismatch(ModeGuard const& expected, ModeGuard const& actual) {
  return expected == actual ? std::string() : std::format("grad mode mismatch: expected {}, actual {}", expected.grad_enabled, actual.grad_enabled);
}

bool holds(ir::Constraint const& constraint, Symbols const& symbols, Bindings const& bindings) {
  auto const a = symbols.evaluate(constraint.a, bindings), b = symbols.evaluate(constraint.b, bindings);
  return ir::holds(a, constraint.relation, b);
}

std::string to_string(GuardSet const& guards, Symbols const& symbols) {
  std::string text = std::format("grad mode is {}\n", guards.mode.grad_enabled ? "on" : "off");
  for (auto const& value : guards.values) text += std::format("{} == {}\n", value.source, to_string(value.expected));
  for (auto const& tensor : guards.tensors)
    text += std::format("{} is {}{}  # {}\n", tensor.source, ir::to_string(*tensor.expected, &symbols), tensor.requires_grad ? ", requires_grad" : "",
                        base::short_place(tensor.at));
  for (auto const& constraint : symbols.constraints) text += std::format("{}  # {}\n", symbols.to_string(constraint), base::short_place(constraint.at));
  return text;
}

}  // namespace tenon::guards
