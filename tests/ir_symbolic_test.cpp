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

struct General {
  ir::Graph graph;
  std::vector<std::optional<ir::Meta>> metas;  ///< per operand, symbolic
  std::vector<Scalar> numbers;
  ir::Attrs attrs;
};

/// `shared`: equal sizes are one symbol, as a capture guesses; otherwise each is its own.
General generalised(Call const& call, bool shared) {
  General general;
  auto& symbols = general.graph.symbols;
  std::map<std::int64_t, Dim> known;
  auto const size_symbol = [&](Dim size) {
    if (size.value < 2) return size;
    if (!shared) return symbols.symbol(size.value);
    auto const [at, fresh] = known.try_emplace(size.value, Dim());
    if (fresh) at->second = symbols.symbol(size.value);
    return at->second;
  };
  auto const number_symbol = [&](Dim now) {
    bool const special = now.value < 0 || now.value == std::numeric_limits<std::int64_t>::max();
    if (special) return now;
    auto const found = known.find(now.value);
    return found != known.end() ? found->second : symbols.index_symbol(now.value);
  };
  std::vector<ir::Input> in;
  ir::Symbols::Scope const scope(&symbols);
  for (auto const& operand : call.operands) {
    general.numbers.push_back(operand.number);
    general.metas.emplace_back();
    if (operand.tensor) {
      ir::Dims sizes;
      for (auto size : operand.tensor->at.sizes) sizes.push_back(size_symbol(size));
      general.metas.back() = ir::contiguous_meta(operand.tensor->at.dtype, {}, sizes);
      in.push_back({general.graph.input(*general.metas.back()), {}});
      continue;
    }
    auto& number = general.numbers.back();
    if (number.kind == ir::ScalarKind::real) number = symbols.real_symbol(number.real);
    if (number.kind == ir::ScalarKind::whole) number = Scalar(number_symbol(number.whole));
    in.push_back({-1, number});
  }
  ir::AttrReader reader{call.attrs};
  for (auto const& parameter : ir::signature(*call.op).parameters) switch (parameter.type) {
      case Type::tensor:
      case Type::tensors:
        break;
      case Type::wholes:
        general.attrs.with(reader.list());
        break;
      case Type::sizes: {
        ir::Dims list;
        for (auto size : reader.list()) list.push_back(number_symbol(size));
        general.attrs.with(list);
        break;
      }
      case Type::size:
        general.attrs.with(number_symbol(reader.number()));
        break;
      case Type::real: {
        auto const number = reader.num();
        general.attrs.with_num(number.kind == ir::ScalarKind::real && !parameter.fixed ? symbols.real_symbol(number.real) : number);
        break;
      }
      case Type::text:
        general.attrs.text = call.attrs.text;
        break;
      default:
        general.attrs.with(reader.number());
    }
  int const first = general.graph.add(*call.op, in, general.attrs, {});
  for (int k = 0; k < general.graph.nodes.back().results; ++k) general.graph.outputs.push_back(first + k);
  return general;
}

ir::Bindings drawn(ir::Symbols const& symbols, std::mt19937& random) {
  ir::Bindings bindings;
  for (std::size_t number = 0; number < symbols.names().size(); ++number) {
    bool const size = symbols.names()[number][0] == 's';
    auto const hint = symbols.is_real_symbol(static_cast<int>(number)) ? 0 : symbols.whole_symbol(static_cast<int>(number)).value;
    bindings.whole.push_back(random() % 3 == 0 ? hint : size ? 2 + static_cast<std::int64_t>(random() % 5) : static_cast<std::int64_t>(random() % 8) - 2);
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

/// The call that the bindings make of it, with elements drawn anew.
Call bound(General const& general, Call const& call, ir::Bindings const& bindings, std::mt19937& random) {
  Call plain{call.op, {}, general.attrs, call.text};
  auto const& symbols = general.graph.symbols;
  for (std::size_t k = 0; k < call.operands.size(); ++k) {
    if (!general.metas[k]) {
      plain.operands.push_back({std::nullopt, symbols.evaluate(general.numbers[k], bindings)});
      continue;
    }
    base::Shape sizes;
    for (auto size : general.metas[k]->sizes) sizes.push_back(symbols.evaluate(size, bindings));
    auto tensor = support::array(general.metas[k]->dtype, sizes);
    for (std::int64_t i = 0; i < base::numel(sizes); ++i)
      tensor.at.set(i, base::is_real(tensor.at.dtype) ? std::uniform_real_distribution(0.3, 2.0)(random) : static_cast<double>(random() % 2));
    plain.operands.push_back({tensor, {}});
  }
  for (auto& dim : plain.attrs.ints) dim = symbols.evaluate(dim, bindings);
  for (auto& number : plain.attrs.nums) number = symbols.evaluate(number, bindings);
  return plain;
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

void check(Call const& call, bool shared, std::mt19937& random, int& compared) {
  auto const general = generalised(call, shared);
  ir::verify(general.graph);
  std::vector<int> wrt;
  for (std::size_t k = 0, input = 0; k < general.metas.size(); ++k)
    if (general.metas[k]) {
      if (general.metas[k]->dtype == DType::f64) wrt.push_back(static_cast<int>(input));
      ++input;
    }
  auto const forward = ir::decompose(general.graph);
  ir::verify(forward);
  bool const gradients = !wrt.empty() && (call.op->vjp || call.op->decompose) &&
                         general.graph.values[static_cast<std::size_t>(general.graph.outputs[0])].meta->dtype == DType::f64;
  std::optional<ir::Graph> backward;
  if (gradients) backward = ir::decompose(support::gradient_graph(general.graph, wrt));
  if (backward) ir::verify(*backward);
  for (int turn = 0; turn < 40; ++turn) {
    auto const bindings = drawn(general.graph.symbols, random);
    if (!allowed(forward.symbols, bindings)) continue;
    auto const plain = bound(general, call, bindings, random);
    std::string what = call.text + ":";
    for (std::size_t n = 0; n < general.graph.symbols.names().size(); ++n)
      what += general.graph.symbols.is_real_symbol(static_cast<int>(n)) ? std::format(" {}={:.3g}", general.graph.symbols.names()[n], bindings.real[n])
                                                                        : std::format(" {}={}", general.graph.symbols.names()[n], bindings.whole[n]);
    auto inputs = support::inputs_of(plain);
    if (!compare(what, outcome([&] { return ir::evaluate(forward, inputs, bindings); }),
                 outcome([&] { return support::run(support::graph_of(plain), inputs); })))
      return;
    ++compared;
    if (!backward || !allowed(backward->symbols, bindings)) continue;
    std::vector<support::Array> cotangents;
    auto const graph = support::graph_of(plain);
    for (int output : graph.outputs) {
      auto const& meta = *graph.values[static_cast<std::size_t>(output)].meta;
      cotangents.push_back(support::array(meta.dtype, ir::values(meta.sizes)));
      for (std::int64_t i = 0; i < base::numel(cotangents.back().at.sizes); ++i) cotangents.back().at.set(i, std::uniform_real_distribution(-1.0, 1.0)(random));
      inputs.push_back(cotangents.back().at);
    }
    if (!compare("gradient of " + what, outcome([&] { return ir::evaluate(*backward, inputs, bindings); }),
                 outcome([&] { return support::run(support::gradient_graph(graph, wrt), inputs); })))
      return;
  }
}
}  // namespace

TEST_CASE("a generalised call means what the plain calls mean that its constraints allow") {
  std::mt19937 random(4);
  int compared = 0;
  for (auto const* op : ir::all_ops()) {
    int const before = compared;
    for (auto const& call : support::samples(*op, random))
      for (bool const shared : {true, false}) try {
          check(call, shared, random, compared);
        } catch (std::exception const& error) {
          FAIL_CHECK(call.text << ": " << std::string(error.what()));
        }
    CHECK_MESSAGE(compared > before, std::string(op->name) << ": no values are allowed");
  }
  CHECK(compared > 5000);
}
