// A graph whose sizes and numbers are symbols means the same as the call made anew with any values that its constraints allow: shapes,
// results and gradients. Every size of at least 2, every number and every attribute that may vary becomes a symbol.
#include <doctest/doctest.h>
import std;
import tenon.base;
import tenon.ir;
#include "op_samples.hpp"
using namespace tenon;
using base::DType;
using ir::Dim;
using ir::Scalar;
using support::Call;
using Type = ir::Parameter::Type;

namespace {

/// How sizes become symbols: equal ones are one symbol, as a capture guesses; each its own; or each a symbol less 1 (a slice of something larger).
enum class Mode { shared, own, less_one };

struct Parts {
  ir::OpDef const* op = nullptr;
  std::vector<std::optional<ir::Meta>> metas;  ///< per operand; one larger in each dim where the call takes a slice
  std::vector<Scalar> numbers;
  ir::Attrs attrs;
  bool sliced = false;
};

/// Adds the call to the graph.
void build(ir::Graph& graph, Parts const& parts) {
  std::vector<ir::Input> in;
  for (std::size_t k = 0; k < parts.metas.size(); ++k)
    in.push_back({parts.metas[k] ? graph.input(*parts.metas[k]) : -1, parts.metas[k] ? Scalar() : parts.numbers[k]});
  for (std::size_t k = 0; parts.sliced && k < in.size(); ++k)
    for (int d = 0; parts.metas[k] && d < parts.metas[k]->rank(); ++d) {
      auto attrs = ir::default_attrs(ir::ops::slice);
      attrs.ints[0] = d, attrs.ints[1] = 1;
      in[k].value = graph.add(ir::ops::slice, {in[k]}, attrs, {});
    }
  int const first = graph.add(*parts.op, in, parts.attrs, {});
  for (int k = 0; k < graph.nodes.back().results; ++k) graph.outputs.push_back(first + k);
}

/// The parts with symbols of `symbols` in them.
Parts generalised(ir::Symbols& symbols, Call const& call, Mode mode) {
  Parts parts{call.op, {}, {}, {}, mode == Mode::less_one};
  std::map<std::int64_t, Dim> known;
  auto const size_symbol = [&](std::int64_t size) -> Dim {
    if (mode == Mode::less_one) return size ? symbols.symbol(size + 1) : Dim(1);
    if (size < 2 || mode == Mode::own) return size < 2 ? Dim(size) : symbols.symbol(size);
    auto const [at, fresh] = known.try_emplace(size, Dim());
    if (fresh) at->second = symbols.symbol(size);
    return at->second;
  };
  auto const number_symbol = [&](Dim now) {
    bool const special = now.value < 0 || now.value == std::numeric_limits<std::int64_t>::max();
    if (special) return now;
    auto const found = known.find(now.value);
    return found != known.end() ? found->second : symbols.index_symbol(now.value);
  };
  ir::Symbols::Scope const scope(&symbols);
  for (auto const& operand : call.operands) {
    parts.numbers.push_back(operand.number);
    parts.metas.emplace_back();
    auto& number = parts.numbers.back();
    if (number.kind == ir::ScalarKind::real) number = symbols.real_symbol(number.real);
    if (number.kind == ir::ScalarKind::whole) number = Scalar(number_symbol(number.whole));
    if (!operand.tensor) continue;
    ir::Dims sizes;
    for (auto size : operand.tensor->at.sizes) sizes.push_back(size_symbol(size));
    parts.metas.back() = ir::contiguous_meta(operand.tensor->at.dtype, {}, sizes);
  }
  ir::AttrReader reader{call.attrs};
  for (auto const& parameter : ir::signature(*call.op).parameters) switch (parameter.type) {
      case Type::tensor:
      case Type::tensors:
        break;
      case Type::wholes:
        parts.attrs.with(reader.list());
        break;
      case Type::sizes: {
        ir::Dims list;
        for (auto size : reader.list()) list.push_back(number_symbol(size));
        parts.attrs.with(list);
        break;
      }
      case Type::size:
        parts.attrs.with(number_symbol(reader.number()));
        break;
      case Type::reals:
        parts.attrs.with(reader.number());
        for (auto n = parts.attrs.ints.back().value; n-- > 0;) parts.attrs.with_num(reader.num());
        break;
      case Type::real: {
        auto const number = reader.num();
        parts.attrs.with_num(number.kind == ir::ScalarKind::real && !parameter.fixed ? symbols.real_symbol(number.real) : number);
        break;
      }
      case Type::text:
        parts.attrs.text = call.attrs.text;
        break;
      default:
        parts.attrs.with(reader.number());
    }
  return parts;
}

ir::Bindings drawn(ir::Symbols const& symbols, std::mt19937& random) {
  ir::Bindings bindings;
  unsigned const kept = random() % 2 ? 9 : 3;  // tenths of the symbols that keep this run's value
  for (std::size_t number = 0; number < symbols.names().size(); ++number) {
    bool const size = symbols.names()[number][0] == 's';
    auto const hint = symbols.is_real_symbol(static_cast<int>(number)) ? 0 : symbols.whole_symbol(static_cast<int>(number)).value;
    bindings.whole.push_back(random() % 10 < kept ? hint : size ? 2 + static_cast<std::int64_t>(random() % 5) : static_cast<std::int64_t>(random() % 8) - 2);
    bindings.real.push_back(std::uniform_real_distribution(-1.0, 1.5)(random));
  }
  return bindings;
}

bool allowed(ir::Symbols const& symbols, ir::Bindings const& bindings) {
  return std::ranges::all_of(symbols.constraints, [&](ir::Constraint const& c) {
    auto const a = symbols.evaluate(c.a, bindings), b = symbols.evaluate(c.b, bindings);
    switch (c.relation) {
      case ir::Relation::equal:
        return a == b;
      case ir::Relation::unequal:
        return a != b;
      case ir::Relation::less:
        return a < b;
      default:
        return a <= b;
    }
  });
}

/// The parts with the bindings' values in them.
Parts bound(ir::Symbols const& symbols, Parts parts, ir::Bindings const& bindings) {
  for (auto& number : parts.numbers) number = symbols.evaluate(number, bindings);
  for (auto& dim : parts.attrs.ints) dim = symbols.evaluate(dim, bindings);
  for (auto& number : parts.attrs.nums) number = symbols.evaluate(number, bindings);
  for (auto& meta : parts.metas) {
    if (!meta) continue;
    auto sizes = meta->sizes;
    for (auto& size : sizes) size = symbols.evaluate(size, bindings);
    meta = ir::contiguous_meta(meta->dtype, {}, sizes);
  }
  return parts;
}
support::Array elements(ir::Meta const& meta, std::mt19937& random) {
  auto x = support::array(meta.dtype, ir::values(meta.sizes));
  for (std::int64_t i = 0; i < base::numel(x.at.sizes); ++i)
    x.at.set(i, base::is_real(meta.dtype) ? std::uniform_real_distribution(0.3, 2.0)(random) : static_cast<double>(random() % 2));
  return x;
}

struct Outcome {
  std::string error = "nothing";
  std::vector<base::Shape> sizes;
  std::vector<std::vector<double>> values;
};
Outcome outcome(std::function<ir::Evaluated()> const& act) {
  Outcome result;
  result.error = support::caught([&] {
    for (auto const& y : act().outputs) result.sizes.push_back(y.sizes), result.values.push_back(support::reals(y));
  });
  return result;
}
bool compare(std::string const& what, Outcome const& symbolic, Outcome const& plain) {
  bool same = (symbolic.error == "nothing") == (plain.error == "nothing") && symbolic.sizes == plain.sizes;
  for (std::size_t k = 0; same && k < plain.values.size(); ++k)
    same = support::distance(symbolic.values[k], plain.values[k]) <= 1e-9 * support::scale_of(plain.values[k]);
  if (same) return true;
  std::string text;
  for (auto const* side : {&symbolic, &plain}) {
    text += std::format(" | {}", side->error);
    for (std::size_t k = 0; k < side->sizes.size(); ++k)
      text += std::format(" {} {}", base::to_string(side->sizes[k]), side->values[k].empty() ? 0.0 : side->values[k][0]);
  }
  FAIL_CHECK(what << text);
  return false;
}

void check(Call const& call, Mode mode, std::mt19937& random, int& compared) {
  ir::Graph symbolic;
  auto const parts = generalised(symbolic.symbols, call, mode);
  build(symbolic, parts);
  ir::verify(symbolic);
  auto const forward = ir::decompose(symbolic);
  ir::verify(forward);
  std::vector<int> wrt;
  for (std::size_t k = 0; k < symbolic.inputs.size(); ++k)
    if (symbolic.values[static_cast<std::size_t>(symbolic.inputs[k])].meta->dtype == DType::f64) wrt.push_back(static_cast<int>(k));
  auto const differentiated = [](ir::Graph const& graph, int output) { return base::is_real(graph.values[static_cast<std::size_t>(output)].meta->dtype); };
  bool const doubles =
      std::ranges::any_of(symbolic.outputs, [&](int output) { return symbolic.values[static_cast<std::size_t>(output)].meta->dtype == DType::f64; });
  std::optional<ir::Graph> backward;
  if (!wrt.empty() && (call.op->vjp || call.op->decompose) && !ir::writes(*call.op) && doubles)
    backward = ir::decompose(support::gradient_graph(symbolic, wrt));
  if (backward) ir::verify(*backward);
  auto const& symbols = symbolic.symbols;
  for (int turn = 0; turn < 40; ++turn) {
    auto const bindings = drawn(symbols, random);
    if (!allowed(forward.symbols, bindings)) continue;
    std::string what = std::format("{} (mode {}):", call.text, static_cast<int>(mode));
    for (std::size_t n = 0; n < symbols.names().size(); ++n)
      what += symbols.is_real_symbol(static_cast<int>(n)) ? std::format(" {}={:.3g}", symbols.names()[n], bindings.real[n])
                                                          : std::format(" {}={}", symbols.names()[n], bindings.whole[n]);
    auto const plain_parts = bound(symbols, parts, bindings);
    std::vector<support::Array> held;
    std::vector<ir::Strided> inputs;
    for (auto const& meta : plain_parts.metas)
      if (meta) held.push_back(elements(*meta, random)), inputs.push_back(held.back().at);
    ir::Graph plain;
    auto const run_plain = [&] {
      build(plain, plain_parts);
      return support::run(plain, inputs);
    };
    ++compared;
    if (!compare(what, outcome([&] { return ir::evaluate(forward, inputs, bindings); }), outcome(run_plain))) return;
    if (!backward || plain.outputs.empty() || !allowed(backward->symbols, bindings)) continue;
    for (int output : plain.outputs)
      if (differentiated(plain, output))
        held.push_back(elements(*plain.values[static_cast<std::size_t>(output)].meta, random)), inputs.push_back(held.back().at);
    auto const symbolic_gradient = outcome([&] { return ir::evaluate(*backward, inputs, bindings); });
    if (!compare("gradient of " + what, symbolic_gradient, outcome([&] { return support::run(support::gradient_graph(plain, wrt), inputs); }))) return;
  }
}
}  // namespace

TEST_CASE("a generalised call means what the plain calls mean that its constraints allow") {
  std::mt19937 random(4);
  int compared = 0;
  for (auto const* op : ir::all_ops()) {
    int const before = compared;
    auto const calls = support::samples(*op, random);
    if (calls.empty() && op->measured) continue;  // no graph holds one
    for (auto const& call : calls)
      for (auto const mode : {Mode::shared, Mode::own, Mode::less_one}) try {
          check(call, mode, random, compared);
        } catch (std::exception const& error) {
          FAIL_CHECK(call.text << ": " << std::string(error.what()));
        }
    CHECK_MESSAGE(compared > before, std::string(op->name) << ": no values are allowed");
  }
  CHECK(compared > 5000);
}
