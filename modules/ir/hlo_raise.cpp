// A graph in StableHLO's operations: each node by the rule of its op, composite ops by the rules of their bodies.
module tenon.ir;
import std;
import tenon.base;
import :hlo;
import :hlo_raise;

namespace tenon::ir::hlo {
using base::DType;
using base::fail;

namespace {
std::map<OpDef const*, RaiseRule const*> const& rules() {
  static auto const by_op = [] {
    std::map<OpDef const*, RaiseRule const*> map;
    for (auto const part : {raised_pointwise(), raised_shape(), raised_index(), raised_fold(), raised_window()})
      for (auto const& rule : part) {
        auto const* op = find_op(rule.op);
        base::ensure(op && map.emplace(op, &rule).second, std::format("{} is not one op with one rule", rule.op));
      }
    return map;
  }();
  return by_op;
}

void need_numbers(Graph const& graph) {
  auto const refuse = [](std::string_view where, auto const& what, Symbols const& symbols) {
    fail("{}: {} is symbolic: a foreign text has plain numbers only", where, symbols.to_string(what));
  };
  auto const known = [&](std::string_view where, auto const& numbers) {
    for (auto const& number : numbers)
      if (number.node >= 0 && graph.symbols.own(Dim(0, number.node, number.owner)).node >= 0) refuse(where, number, graph.symbols);
  };
  for (int const input : graph.inputs) known(std::format("input %{}", input), graph.values[static_cast<std::size_t>(input)].meta->sizes);
  for (auto const& node : graph.nodes) {
    known(node.op->name, node.attrs.ints);
    known(node.op->name, node.attrs.nums);
    for (auto const& input : node.inputs) known(node.op->name, std::span(&input.scalar, 1));
    for (int k = 0; k < node.results; ++k) known(node.op->name, graph.values[static_cast<std::size_t>(node.first + k)].meta->sizes);
  }
}

// Drops operations that nothing reads: rules write freely.
void drop_unread(Function& main, std::size_t values) {
  std::vector<char> read(values, 0);
  for (int const value : main.returns) read[static_cast<std::size_t>(value)] = 1;
  std::vector<Op> kept;
  for (auto& op : main.ops | std::views::reverse) {
    if (std::ranges::none_of(op.results, [&](int value) { return read[static_cast<std::size_t>(value)]; })) continue;
    for (int const operand : op.operands) read[static_cast<std::size_t>(operand)] = 1;
    kept.push_back(std::move(op));
  }
  std::ranges::reverse(kept);
  main.ops = std::move(kept);
}

Type type_of(Meta const& meta) { return {meta.dtype, values(meta.sizes)}; }

// Operands rounded to the dtype of the result (of comparisons: to their common one), as the evaluator reads them; then to what arithmetic runs in.
void write_elements(Raising& raising) {
  auto const& [node, rule] = std::tie(raising.node, raising.rule);
  Type const result = raising.result();
  DType compute = result.dtype;
  if (node.op->types == Types::boolean) {
    std::vector<DType> dtypes;
    std::vector<int> ranks;
    std::vector<Scalar> numbers;
    for (std::size_t k = 0; k < node.inputs.size(); ++k) {
      dtypes.push_back(raising.has(k) ? raising.meta(k).dtype : DType::f32);
      ranks.push_back(raising.has(k) ? raising.meta(k).rank() : -1);
      numbers.push_back(node.inputs[k].scalar);
    }
    compute = common_type(dtypes, ranks, numbers);
  }
  bool const whole = !base::is_real(compute);
  bool const numbers = std::ranges::any_of(node.inputs, [](Input const& input) { return input.value < 0; });  // a number is an f32 beside small floats
  DType const work = rule.plain && (whole || !numbers) ? compute : whole && !node.op->element.whole ? DType::f64 : working(compute);
  std::vector<Term> x;
  for (std::size_t k = 0; k < node.inputs.size(); ++k) {
    if (raising.has(k)) {
      bool const condition = std::cmp_equal(k, rule.condition);
      x.push_back(broadcast(condition ? convert(raising.x(k), DType::boolean) : convert(convert(raising.x(k), compute), work), result.sizes));
      continue;
    }
    Scalar number = node.inputs[k].scalar;
    if (whole && number.kind == ScalarKind::real && work != DType::f64) number = Scalar(base::truncate(number.real));
    x.push_back(raising.to.number(number, {work, result.sizes}));
  }
  auto const a = element_attributes(*node.op, node.attrs);
  raising.out.push_back(convert(rule.element(x, a, rule.word), result.dtype));
}
}  // namespace

Type Raising::result(std::size_t k) const { return type_of(*graph.values[static_cast<std::size_t>(node.first) + k].meta); }

Module raise(Graph const& source, bool chlo) {
  auto const& by_op = rules();
  need_numbers(source);
  need_no_writes(source, "export");
  auto const told = [](OpDef const& op) { return op.kind == Kind::pointwise && op.element.real && !op.source.empty(); };  // by its source
  Graph const graph = eliminate_dead_code(decompose(source, [&](OpDef const& op) { return by_op.contains(&op) || told(op); }));
  Module module{graph.name.empty() ? "graph" : graph.name, {}};
  auto& main = module.functions.emplace_back();
  main.name = "main";
  Writer writer{&main, chlo};
  std::vector<Term> values(graph.values.size());
  for (int const input : graph.inputs) {
    auto const& value = graph.values[static_cast<std::size_t>(input)];
    values[static_cast<std::size_t>(input)] = writer.parameter(type_of(*value.meta), value.name);
  }
  std::vector<char> read(graph.values.size(), 0);
  for (int const output : graph.outputs) read[static_cast<std::size_t>(output)] = 1;
  for (auto const& node : graph.nodes)
    for (auto const& input : node.inputs)
      if (input.value >= 0) read[static_cast<std::size_t>(input.value)] = 1;
  for (auto const& node : graph.nodes) {
    auto const found = by_op.find(node.op);
    RaiseRule const by_source{.op = node.op->name, .word = node.op->source, .element = element_of_source};
    RaiseRule const* const rule = found != by_op.end() ? found->second : told(*node.op) ? &by_source : nullptr;
    if (!rule) fail("{} has no form in StableHLO{}", node.op->name, node.op->measured ? ": the sizes of its results depend on elements" : "");
    Raising raising{writer, graph, node, *rule, values, read};
    bool empty = true;  // nothing to compute: zeros of those sizes say it
    for (int k = 0; k < node.results; ++k) empty = empty && contains(raising.result(static_cast<std::size_t>(k)).sizes, 0);
    if (empty) {
      for (int k = 0; k < node.results; ++k) raising.out.push_back(writer.number(0, raising.result(static_cast<std::size_t>(k))));
    } else {
      try {
        rule->element ? write_elements(raising) : rule->write(raising);
      } catch (base::Error const& error) {
        if (rule == &by_source) fail("{}: {}", node.op->name, error.what());
        throw;
      }
    }
    for (int k = 0; k < node.results; ++k) {
      if (!raising.used(static_cast<std::size_t>(k))) continue;
      auto const& made = values[static_cast<std::size_t>(node.first + k)] = raising.out[static_cast<std::size_t>(k)];
      Type const type = raising.result(static_cast<std::size_t>(k));
      base::ensure(made.dtype() == type.dtype && made.sizes() == type.sizes,
                   std::format("the rule of {} gives {}{}, not {}{}", node.op->name, base::info(made.dtype()).name, base::to_string(made.sizes()),
                               base::info(type.dtype).name, base::to_string(type.sizes)));
    }
  }
  for (int const output : graph.outputs) main.returns.push_back(values[static_cast<std::size_t>(output)].value);
  drop_unread(main, writer.types.size());
  return module;
}

}  // namespace tenon::ir::hlo

namespace tenon::ir {

std::string to_stablehlo(Graph const& graph) { return hlo::print_stablehlo(hlo::raise(graph)); }
std::string to_hlo(Graph const& graph) { return hlo::print_hlo(hlo::raise(graph, false)); }

}  // namespace tenon::ir
