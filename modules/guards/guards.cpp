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
// The first thing that differs, and at which dim.
struct Difference {
  What what = What::nothing;
  int dim = -1;
};
Difference difference(TensorGuard const& guard, Meta const& actual, bool requires_grad, Symbols const& symbols, Bindings& bindings) {
  auto const& expected = *guard.expected;
  if (expected.dtype != actual.dtype) return {What::dtype};
  if (expected.device != actual.device) return {What::device};
  if (expected.sizes.size() != actual.sizes.size()) return {What::rank};
  if (guard.requires_grad != requires_grad) return {What::requires_grad};
  for (std::size_t d = 0; d < actual.sizes.size(); ++d)
    if (!agrees(expected.sizes[d], actual.sizes[d].value, symbols, bindings)) return {What::size, static_cast<int>(d)};
  for (std::size_t d = 0; d < actual.sizes.size(); ++d) {
    if (actual.sizes[d].value == 1) continue;
    Dim const stride = expected.strides[d];
    if (!agrees(stride, actual.strides[d].value, symbols, bindings)) return {What::stride, static_cast<int>(d)};
  }
  return {};
}
}  // namespace

bool holds(TensorGuard const& guard, ir::MetaRef const& actual, bool requires_grad, Symbols const& symbols, Bindings& bindings) {
  if (!guard.symbolic && actual.get() == guard.expected.get()) return guard.requires_grad == requires_grad;
  return difference(guard, *actual, requires_grad, symbols, bindings).what == What::nothing;
}

Mismatch mismatch(TensorGuard const& guard, Meta const& actual, bool requires_grad, Symbols const& symbols, Bindings bindings) {
  auto const& expected = *guard.expected;
  auto const [what, dim] = difference(guard, actual, requires_grad, symbols, bindings);
  Mismatch result{.what = what, .source = guard.source, .dim = dim};
  auto const say = [&](std::string_view name, auto const& want, auto const& have) {
    result.text =
        std::format("tensor '{}' {} mismatch{}: expected {}, actual {}", guard.source, name, dim >= 0 ? std::format(" at dim {}", dim) : "", want, have);
  };
  auto const number = [&](std::string_view name, Dim want, Dim have) {
    auto const bound = want.node >= 0 && symbols.symbol_number(want) < 0 ? std::format(" = {}", symbols.evaluate(want, bindings)) : std::string();
    auto const least = what == What::size && want.node >= 0 && have.value < 2 ? " of at least 2" : "";
    result.expected = want.value, result.actual = have.value;
    say(name, symbols.to_string(want) + bound + least, have.value);
  };
  auto const place = static_cast<std::size_t>(std::max(dim, 0));
  switch (what) {
    case What::dtype:
      say("dtype", base::info(expected.dtype).name, base::info(actual.dtype).name);
      break;
    case What::device:
      say("device", base::to_string(expected.device), base::to_string(actual.device));
      break;
    case What::rank:
      result.expected = expected.rank(), result.actual = actual.rank();
      say("rank", expected.rank(), actual.rank());
      break;
    case What::requires_grad:
      say("requires_grad", guard.requires_grad, requires_grad);
      break;
    case What::size:
      number("size", expected.sizes[place], actual.sizes[place]);
      break;
    case What::stride:
      number("stride", expected.strides[place], actual.strides[place]);
      break;
    default:
      break;
  }
  return result;
}

std::string to_string(Plain const& value) {
  if (value.number == ir::absent) return value.text;
  return value.text.empty() ? std::to_string(value.number) : std::format("{} {}", value.text, value.number);
}
Mismatch mismatch(ValueGuard const& guard, Plain const& actual) {
  if (guard.expected == actual) return {};
  return {What::value,
          guard.source,
          -1,
          guard.expected.number,
          actual.number,
          std::format("value '{}' mismatch: expected {}, actual {}", guard.source, to_string(guard.expected), to_string(actual))};
}

namespace {
std::string on(bool flag) { return flag ? "on" : "off"; }
std::string_view name_of(base::DType dtype) { return base::info(dtype).name; }
std::string to_string(Settings::Autocast const& state) { return state.enabled ? std::string(name_of(state.dtype)) : "off"; }
// Every setting by name, as text.
std::vector<std::pair<std::string, std::string>> listed(Settings const& settings) {
  std::vector<std::pair<std::string, std::string>> list{
      {"grad mode", on(settings.grad_enabled)}, {"deterministic", on(settings.deterministic)}, {"default dtype", std::string(name_of(settings.default_dtype))}};
  constexpr std::array kinds{"cpu", "cuda", "sim"};
  for (std::size_t k = 0; k < kinds.size(); ++k) list.emplace_back(std::format("autocast({})", kinds[k]), to_string(settings.autocast[k]));
  return list;
}
}  // namespace

Mismatch mismatch(Settings const& expected, Settings const& actual) {
  auto const want = listed(expected), have = listed(actual);
  for (std::size_t k = 0; k < want.size(); ++k)
    if (want[k].second != have[k].second)
      return {What::settings, want[k].first, -1, 0, 0, std::format("{} mismatch: expected {}, actual {}", want[k].first, want[k].second, have[k].second)};
  return {};
}

bool holds(ir::Constraint const& constraint, Symbols const& symbols, Bindings const& bindings) {
  auto const a = symbols.evaluate(constraint.a, bindings), b = symbols.evaluate(constraint.b, bindings);
  return ir::holds(a, constraint.relation, b);
}

std::string to_string(GuardSet const& guards, Symbols const& symbols) {
  std::string text;
  Settings const usual;
  auto const have = listed(guards.settings), others = listed(usual);
  for (std::size_t k = 0; k < have.size(); ++k)  // grad mode always, others where they are not as they are when a thread begins
    if (k == 0 || have[k] != others[k]) text += std::format("{} is {}\n", have[k].first, have[k].second);
  for (auto const& value : guards.values) text += std::format("{} == {}\n", value.source, to_string(value.expected));
  for (auto const& tensor : guards.tensors)
    text += std::format("{} is {}{}  # {}\n", tensor.source, ir::to_string(*tensor.expected, &symbols), tensor.requires_grad ? ", requires_grad" : "",
                        base::short_place(tensor.at));
  for (auto const& constraint : symbols.constraints) text += std::format("{}  # {}\n", symbols.to_string(constraint), base::short_place(constraint.at));
  return text;
}

}  // namespace tenon::guards
