// The walk over a module: functions are inlined, known numbers folded, every result checked against what the text says.
module tenon.ir;
import std;
import tenon.base;
import :hlo_lower;

namespace tenon::ir {

namespace {
template <class Read>
Graph parsed(std::string_view kind, Read read) try {
  return hlo::lower(read());
} catch (base::Error const& error) {
  base::fail("{} text: {}", kind, error.what());
}
}  // namespace

Graph parse_stablehlo(std::string_view text) {
  return parsed("StableHLO", [&] { return hlo::read_stablehlo(text); });
}
Graph parse_hlo(std::string_view text) {
  return parsed("HLO", [&] { return hlo::read_hlo(text); });
}

namespace hlo {
using base::DType;
using base::fail;

Graph lower(Module const& module) { return Lowering(module).run(); }

// -- numbers ------------------------------------------------------------------------------------------------------------------------------

std::int64_t wrapped(DType dtype, std::int64_t whole) {
  std::array<std::byte, 8> bytes{};
  base::store_whole(dtype, bytes.data(), whole);
  return base::load_whole(dtype, bytes.data());
}
Scalar scalar_of(DType dtype, double real, std::int64_t whole) {
  if (base::is_real(dtype)) return Scalar(real);
  return dtype == DType::boolean ? Scalar(whole != 0) : Scalar(whole);
}
bool is_number(Item const& item, double number) { return item.splat && item.splat->real == number; }
OpDef const& row(std::string_view name) {
  auto const* found = find_op(name);
  base::ensure(found != nullptr, std::format("a rule of StableHLO names an op that is not there: {}", name));
  return *found;
}

// -- what a rule reads --------------------------------------------------------------------------------------------------------------------

void Step::refuse(std::string_view what) const { fail("line {}, column {}: {}: {}", op.line, op.column, op.name, what); }
Item& Step::item(int k) const {
  if (k >= count()) refuse(std::format("{} operands, more are needed", count()));
  return *in[static_cast<std::size_t>(k)];
}
Var Step::x(int k) const { return to.tensor(item(k)); }
Var Step::number_or_tensor(int k) const {
  auto const& from = item(k);
  return from.splat && !from.made ? num(*from.splat) : x(k);
}
std::optional<std::int64_t> Step::known(int k) const {
  auto const& from = item(k);
  return from.splat && from.splat->kind != ScalarKind::real ? std::optional(from.splat->whole) : std::nullopt;
}
std::int64_t Step::whole(std::string_view key, std::optional<std::int64_t> fallback) const {
  auto const* found = op.find(key);
  if (!found && fallback) return *fallback;
  if (!found) refuse(std::format("{} is missing", key));
  if (auto const* number = std::get_if<std::int64_t>(found)) return *number;
  if (auto const* flag = std::get_if<bool>(found)) return *flag;
  refuse(std::format("{} must be a whole number", key));
}
std::vector<std::int64_t> Step::list(std::string_view key, std::optional<std::vector<std::int64_t>> fallback) const {
  auto const* found = op.find(key);
  if (!found && fallback) return *fallback;
  if (!found) refuse(std::format("{} is missing", key));
  auto const* numbers = std::get_if<std::vector<std::int64_t>>(found);
  if (!numbers) refuse(std::format("{} must be a list of whole numbers", key));
  if (fallback && numbers->size() != fallback->size() && !fallback->empty())
    refuse(std::format("{} has {} numbers, {} needed", key, numbers->size(), fallback->size()));
  return *numbers;
}
std::vector<std::vector<std::int64_t>> Step::matrix(std::string_view key, std::size_t rows) const {
  auto const* found = op.find(key);
  if (!found) return {rows, {0, 0}};
  auto const* numbers = std::get_if<std::vector<std::vector<std::int64_t>>>(found);
  if (!numbers && rows == 0) return {};
  if (!numbers || numbers->size() != rows || std::ranges::any_of(*numbers, [](auto const& line) { return line.size() != 2; }))
    refuse(std::format("{} needs {} pairs of numbers", key, rows));
  return *numbers;
}
std::string Step::text(std::string_view key, std::string_view fallback) const {
  auto const* found = op.find(key);
  auto const* words = found ? std::get_if<std::string>(found) : nullptr;
  return words ? *words : std::string(fallback);
}
std::vector<std::int64_t> Step::dims(std::string_view key, std::size_t rank, std::optional<std::vector<std::int64_t>> fallback) const {
  auto const found = list(key, fallback);
  std::vector<bool> seen(rank, false);
  for (auto d : found) {
    if (d < 0 || std::cmp_greater_equal(d, rank)) refuse(std::format("{} names dim {} of rank {}", key, d, rank));
    if (seen[static_cast<std::size_t>(d)]) refuse(std::format("{} names dim {} twice", key, d));
    seen[static_cast<std::size_t>(d)] = true;
  }
  return found;
}
Function const& Step::region(std::size_t k, std::size_t parameters) const {
  if (k >= op.regions.size()) refuse(std::format("region {} is missing", k));
  if (op.regions[k].parameters.size() != parameters) refuse(std::format("region {} takes {} values, not {}", k, op.regions[k].parameters.size(), parameters));
  return op.regions[k];
}

// -- emitting -----------------------------------------------------------------------------------------------------------------------------

int Lowering::op(OpDef const& op, std::span<Input const> inputs, Attrs attrs) {
  if (std::cmp_greater(graph_.nodes.size(), 8 * most_operations)) fail("the program needs more than {} calls", 8 * most_operations);
  base::At place{"hlo", 0, 0, ""};
  if (op_) place.line = static_cast<std::uint32_t>(op_->line), place.column = static_cast<std::uint32_t>(op_->column);
  return graph_.add(op, {inputs.begin(), inputs.end()}, std::move(attrs), place);
}
Var Lowering::filled(Type const& type, Scalar value) {
  Dims sizes;
  for (auto size : type.sizes) sizes.push_back(size);
  return create(*this, ops::full, Attrs{}.with(sizes).with(type.dtype).with(base::Device{}).with_num(value));
}
Var Lowering::tensor(Item& item) {
  if (!item.made) item.made = filled(item.type, *item.splat);
  return item.made;
}
Var Lowering::counting(std::int64_t n, DType dtype) {
  return create(*this, ops::arange, Attrs{}.with(dtype).with(base::Device{}).with_num(0).with_num(n).with_num(1));
}

// -- the walk -----------------------------------------------------------------------------------------------------------------------------

Item& Lowering::at(int value) {
  if (value < 0 || value > 64 * most_operations) fail("value {} is out of range", value);
  if (std::cmp_greater_equal(value, values_.size())) values_.resize(static_cast<std::size_t>(value) + 1);
  return values_[static_cast<std::size_t>(value)];
}

void Lowering::step(Op const& op) {
  if (++steps_ > most_operations) fail("line {}, column {}: more than {} operations after inlining and unrolling", op.line, op.column, most_operations);
  auto const* outer = std::exchange(op_, &op);
  Step step{*this, op, {}, {}, spread_};
  auto const* rule = find_rule(op.name);
  if (!rule) step.refuse("this operation is not supported");
  if (spread_ && !rule->pointwise) step.refuse("this operation is not supported within a region that combines elements");
  std::vector<Item> operands;  // values may move while a rule walks a region
  for (int value : op.operands) {
    auto const& item = at(value);
    if (!item.made && !item.splat) step.refuse("an operand is not made yet");
    operands.push_back(item);
  }
  for (auto& item : operands) step.in.push_back(&item);
  try {
    std::vector<std::int64_t> wholes;
    for (int k = 0; k < step.count() && step.known(k); ++k) wholes.push_back(*step.known(k));
    std::int64_t folded{};
    bool const whole = op.types.size() == 1 && !base::is_real(op.types[0].dtype) && std::cmp_equal(wholes.size(), operands.size()) && !wholes.empty();
    if (whole && rule->fold && rule->fold(step, wholes, folded)) {
      auto type = op.types[0];
      if (spread_) type.sizes = operands[0].type.sizes;
      step.give(Item{type, {}, scalar_of(type.dtype, 0, wrapped(type.dtype, folded))});
    } else {
      rule->lower(step);
    }
  } catch (base::Error const& error) {
    if (std::string_view(error.what()).starts_with("line ")) throw;
    step.refuse(error.what());
  }
  for (std::size_t k = 0; k < operands.size(); ++k)  // a number that became a tensor stays one
    if (auto& item = at(op.operands[k]); !item.made && item.type == operands[k].type) item.made = operands[k].made;
  if (step.out.size() != op.results.size()) step.refuse(std::format("{} results, {} expected", step.out.size(), op.results.size()));
  for (std::size_t k = 0; k < step.out.size(); ++k) {
    auto const& made = step.out[k].type;
    bool const fits = spread_ ? made.dtype == op.types[k].dtype : made == op.types[k];
    if (!fits) step.refuse(std::format("result {} is {}, not {}", k, to_string(made), to_string(op.types[k])));
    at(op.results[k]) = std::move(step.out[k]);
  }
  op_ = outer;
}

std::vector<Item> Lowering::walk(Function const& body, std::vector<Item> const& arguments) {
  if (arguments.size() != body.parameters.size()) fail("{} values given, {} taken", arguments.size(), body.parameters.size());
  if (++depth_ > 2 * most_depth) fail("calls and regions are deeper than {}", 2 * most_depth);
  for (std::size_t k = 0; k < arguments.size(); ++k) {
    if (!spread_ && !body.types.empty() && !(arguments[k].type == body.types[k]))
      fail("value {} is {}, not {}", k, to_string(arguments[k].type), to_string(body.types[k]));
    at(body.parameters[k]) = arguments[k];
  }
  for (auto const& op : body.ops) step(op);
  std::vector<Item> results;
  for (int value : body.returns) {
    if (!at(value).made && !at(value).splat) fail("a returned value is not made");
    results.push_back(at(value));
  }
  --depth_;
  return results;
}

std::vector<Item> Lowering::apply(Function const& region, std::vector<Item> const& arguments) {
  bool const outer = std::exchange(spread_, true);
  auto results = walk(region, arguments);
  spread_ = outer;
  return results;
}
std::vector<Var> Lowering::apply(Function const& region, std::span<Var const> arguments) {
  std::vector<Item> items;
  for (auto const& x : arguments) items.push_back({{x.meta().dtype, values(x.meta().sizes)}, x, {}});
  std::vector<Var> made;
  for (auto& item : apply(region, items)) made.push_back(tensor(item));
  return made;
}

std::vector<Item> Lowering::call(Step const& step, std::string_view callee) {
  auto const found = functions_.find(callee);
  if (found == functions_.end()) step.refuse(std::format("there is no function {}", callee));
  auto const& body = *found->second;
  if (contains(open_, &body)) step.refuse(std::format("function {} calls itself", callee));
  open_.push_back(&body);
  std::vector<Item> arguments;
  for (auto const* item : step.in) arguments.push_back(*item);
  auto outer = std::exchange(values_, {});
  auto results = walk(body, arguments);
  values_ = std::move(outer);
  open_.pop_back();
  return results;
}

Lowering::Lowering(Module const& module) : module_(module) {
  for (auto const& function : module.functions) functions_.emplace(function.name, &function);
}
Graph Lowering::run() {
  auto const found = functions_.find("main");
  if (found == functions_.end()) fail("there is no function main");
  auto const* main = found->second;
  graph_.name = module_.name.empty() ? "main" : module_.name;
  open_.push_back(main);
  std::vector<Item> arguments;
  for (std::size_t k = 0; k < main->types.size(); ++k) {
    Dims sizes;
    for (auto size : main->types[k].sizes) sizes.push_back(size);
    int const value = graph_.input(contiguous_meta(main->types[k].dtype, {}, sizes), k < main->names.size() ? main->names[k] : "");
    arguments.push_back({main->types[k], Var(*this, value), {}});
  }
  for (auto& item : walk(*main, arguments)) graph_.outputs.push_back(tensor(item).input.value);
  return eliminate_dead_code(graph_);
}

Rule const* find_rule(std::string_view name) {
  static auto const table = [] {
    std::unordered_map<std::string_view, Rule const*> made;
    for (auto const& rules :
         {pointwise_rules(), special_rules(), shape_rules(), reduce_rules(), index_rules(), sort_rules(), contraction_rules(), flow_rules()})
      for (auto const& rule : rules) made.emplace(rule.name, &rule);
    return made;
  }();
  auto const found = table.find(name);
  return found == table.end() ? nullptr : found->second;
}

}  // namespace hlo
}  // namespace tenon::ir
