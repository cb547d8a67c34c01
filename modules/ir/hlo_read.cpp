// Modules, computations and instructions of HLO's text; HLO's words become StableHLO's.
module tenon.ir;
import std;
import tenon.base;
import :hlo_reader;

namespace tenon::ir::hlo {
using List = std::vector<std::int64_t>;
using Matrix = std::vector<List>;

namespace {
struct Word {
  std::string_view hlo, stable;
};
constexpr Word renamed[] = {{"dot", "dot_general"},
                            {"broadcast", "broadcast_in_dim"},
                            {"fusion", "call"},
                            {"copy", "optimization_barrier"},
                            {"opt-barrier", "optimization_barrier"},
                            {"topk", "chlo.top_k"},
                            {"erf", "chlo.erf"},
                            {"acos", "chlo.acos"},
                            {"acosh", "chlo.acosh"},
                            {"asin", "chlo.asin"},
                            {"asinh", "chlo.asinh"},
                            {"atanh", "chlo.atanh"},
                            {"sinh", "chlo.sinh"},
                            {"cosh", "chlo.cosh"}};

enum class Form { numbers, number, dim, flag, word, text, called };
struct Rule {
  std::string_view opcode, key, name;  // of any operation if it has no opcode
  Form form;
};
constexpr Rule rules[] = {{"broadcast", "dimensions", "broadcast_dimensions", Form::numbers},
                          {"transpose", "dimensions", "permutation", Form::numbers},
                          {"concatenate", "dimensions", "dimension", Form::dim},
                          {"sort", "dimensions", "dimension", Form::dim},
                          {"", "dimensions", "dimensions", Form::numbers},
                          {"", "lhs_batch_dims", "lhs_batching_dimensions", Form::numbers},
                          {"", "rhs_batch_dims", "rhs_batching_dimensions", Form::numbers},
                          {"", "lhs_contracting_dims", "lhs_contracting_dimensions", Form::numbers},
                          {"", "rhs_contracting_dims", "rhs_contracting_dimensions", Form::numbers},
                          {"", "dynamic_slice_sizes", "slice_sizes", Form::numbers},
                          {"", "offset_dims", "offset_dims", Form::numbers},
                          {"", "collapsed_slice_dims", "collapsed_slice_dims", Form::numbers},
                          {"", "operand_batching_dims", "operand_batching_dims", Form::numbers},
                          {"", "start_indices_batching_dims", "start_indices_batching_dims", Form::numbers},
                          {"", "start_index_map", "start_index_map", Form::numbers},
                          {"", "slice_sizes", "slice_sizes", Form::numbers},
                          {"", "update_window_dims", "update_window_dims", Form::numbers},
                          {"", "inserted_window_dims", "inserted_window_dims", Form::numbers},
                          {"", "input_batching_dims", "input_batching_dims", Form::numbers},
                          {"", "scatter_indices_batching_dims", "scatter_indices_batching_dims", Form::numbers},
                          {"", "scatter_dims_to_operand_dims", "scatter_dims_to_operand_dims", Form::numbers},
                          {"", "index_vector_dim", "index_vector_dim", Form::number},
                          {"", "iota_dimension", "iota_dimension", Form::number},
                          {"", "feature_group_count", "feature_group_count", Form::number},
                          {"", "batch_group_count", "batch_group_count", Form::number},
                          {"", "exponent_bits", "exponent_bits", Form::number},
                          {"", "mantissa_bits", "mantissa_bits", Form::number},
                          {"", "k", "k", Form::number},
                          {"", "largest", "largest", Form::flag},
                          {"", "is_stable", "is_stable", Form::flag},
                          {"", "direction", "comparison_direction", Form::word},
                          {"", "type", "compare_type", Form::word},
                          {"", "custom_call_target", "call_target_name", Form::text},
                          {"", "to_apply", "", Form::called},
                          {"", "calls", "", Form::called},
                          {"", "condition", "", Form::called},
                          {"", "body", "", Form::called},
                          {"", "select", "", Form::called},
                          {"", "scatter", "", Form::called},
                          {"", "true_computation", "", Form::called},
                          {"", "false_computation", "", Form::called},
                          {"", "branch_computations", "", Form::called}};
// The attributes that name an operation's regions, in the order of its regions.
struct Regions {
  std::string_view opcode;
  std::array<std::string_view, 2> keys;
};
constexpr Regions region_keys[] = {{"while", {"condition", "body"}}, {"select-and-scatter", {"select", "scatter"}}, {"", {"to_apply", ""}}};
std::string own_name(std::string_view name) { return name == "main" ? "%main" : std::string(name); }
}  // namespace

Module read_hlo(std::string_view text) { return HloReader(text).module(); }

Module HloReader::module() {
  if (!in_.accept_word("HloModule")) in_.refuse("expected HloModule");
  module_.name = in_.word();
  in_.skip_line();
  bool entered = false;
  while (!in_.done()) {
    auto const word = in_.peek_word();
    if (word == "FileNames" || word == "FunctionNames" || word == "FileLocations" || word == "StackFrames") {
      for (in_.skip_line(); std::isdigit(static_cast<unsigned char>(in_.peek()));) in_.skip_line();
      continue;
    }
    bool const entry = in_.accept_word("ENTRY");
    if (entry && entered) in_.refuse("a second entry");
    entered = entered || entry;
    computation(entry);
  }
  if (!entered) in_.refuse("there is no ENTRY");
  return std::move(module_);
}

std::string HloReader::name() {
  in_.accept("%");
  return std::string(in_.word());
}

Type HloReader::type() {
  in_.skip_blanks();
  auto const start = in_.at();
  if (in_.peek() == '(') in_.refuse("a tuple within a tuple is not supported");
  auto const word = in_.word();
  auto const dtype = element_type(word);
  if (!dtype) in_.refuse(start, std::format("elements of type {} are not supported", word));
  Type type{*dtype, {}};
  in_.expect("[");
  if (!in_.accept("]")) {
    do {
      if (in_.peek() == '<' || in_.peek() == '?') in_.refuse(start, "a dynamic size is not supported");
      type.sizes.push_back(in_.integer());
    } while (in_.accept(","));
    in_.expect("]");
  }
  if (in_.touches('{')) in_.expect("{"), in_.skip_values(), in_.expect("}");  // how it lies in memory
  try {
    elements(type);
  } catch (base::Error const& error) {
    in_.refuse(start, error.what());
  }
  return type;
}
Bundle<Type> HloReader::types() {
  if (!in_.accept("(")) return {{type()}, false};
  Bundle<Type> bundle{{}, true};
  if (in_.accept(")")) return bundle;
  do bundle.items.push_back(type());
  while (in_.accept(","));
  in_.expect(")");
  return bundle;
}
int HloReader::value(Type const& type) {
  types_.push_back(type);
  return static_cast<int>(types_.size()) - 1;
}

void HloReader::computation(bool entry) {
  made_ = {};
  types_.clear(), names_.clear(), parameters_.clear();
  in_.skip_blanks();
  auto const start = in_.at();
  auto const called = name();
  if (computations_.contains(called)) in_.refuse(start, std::format("computation {} is there twice", called));
  if (in_.accept("(")) in_.skip_values(), in_.expect(")");
  if (in_.accept("->")) types();
  in_.expect("{");
  rooted_ = false;
  while (!in_.accept("}")) {
    instruction();
  }
  if (!rooted_) in_.refuse(start, std::format("computation {} has no ROOT", called));
  if (in_.accept(",")) in_.skip_line();
  std::int64_t next = 0;
  for (auto const& [number, parameter] : parameters_) {
    if (number != next++) in_.refuse(start, std::format("computation {} lacks parameter {}", called, next - 1));
    for (std::size_t k = 0; k < parameter.values.size(); ++k) {
      made_.parameters.push_back(parameter.values[k]);
      made_.types.push_back(parameter.types.items[k]);
      made_.names.push_back(parameter.types.tuple ? std::format("{}.{}", parameter.name, k) : parameter.name);
    }
  }
  made_.name = entry ? "main" : own_name(called);
  module_.functions.push_back(made_);
  computations_.emplace(called, Computation{std::move(made_), static_cast<int>(types_.size()), in_.place(start).first});
}

void HloReader::instruction() {
  bool const root = in_.accept_word("ROOT");
  Instruction made;
  in_.skip_blanks();
  auto const start = in_.at();
  std::tie(made.op.line, made.op.column) = in_.place(start);
  auto const named = name();
  if (names_.contains(named)) in_.refuse(start, std::format("{} is made twice", named));
  in_.expect("=");
  made.types = types();
  made.opcode = in_.word();
  auto const found = std::ranges::find(renamed, made.opcode, &Word::hlo);
  made.op.name = found == std::end(renamed) ? made.opcode : std::string(found->stable);
  std::ranges::replace(made.op.name, '-', '_');
  in_.expect("(");
  if (made.opcode == "constant")
    constant(made);
  else if (made.opcode == "parameter")
    made.index = in_.integer();
  else if (in_.peek() != ')')
    operands(made);
  in_.expect(")");
  while (in_.accept(",")) {
    std::string const key(in_.word());
    in_.expect("=");
    attribute(made, key);
  }
  Bundle<int> bundle;
  try {
    bundle = finish(made);
  } catch (base::Error const& error) {
    if (std::string_view(error.what()).starts_with("line ")) throw;
    in_.refuse(start, error.what());
  }
  if (made.opcode == "parameter") parameters_[made.index].name = named;
  if (root && rooted_) in_.refuse(start, "a second ROOT");
  if (root) made_.returns = bundle.items, rooted_ = true;
  names_[named] = std::move(bundle);
}

void HloReader::constant(Instruction& made) {
  in_.skip_blanks();
  auto const start = in_.at();
  if (made.types.tuple) in_.refuse("a constant tuple is not supported");
  std::vector<std::string_view> words;
  bool const listed = in_.peek() == '{';
  for (int depth = 0; in_.peek() != ')';) {
    if (in_.accept("{")) {
      if (++depth > most_rank) in_.refuse("too many brackets in one another");
    } else if (in_.accept("}")) {
      if (--depth < 0) in_.refuse("a bracket closes that was not open");
    } else if (!in_.accept(",")) {
      if (in_.peek() == '(') in_.refuse("complex elements are not supported");
      words.push_back(in_.token());
      if (words.back() == "...") in_.refuse(start, "the constant's elements were left out of the text");
    }
  }
  auto const& type = made.types.items[0];
  try {
    if (listed != !type.sizes.empty()) base::fail("{} has {}", to_string(type), listed ? "no list of elements" : "a list of elements");
    if (listed && std::cmp_not_equal(words.size(), elements(type)))
      base::fail("{} elements given, {} needed by {}", words.size(), elements(type), to_string(type));
    made.op.attributes.emplace_back("value", literal_of(type, words));
  } catch (base::Error const& error) {
    in_.refuse(start, error.what());
  }
}

void HloReader::operands(Instruction& made) {
  do {
    if (in_.peek() == '(') {
      types();
    } else if (in_.peek() != '%' && in_.peek_behind(in_.peek_word()) == '[') {
      type();
    }
    in_.skip_blanks();
    auto const start = in_.at();
    auto const used = name();
    auto const found = names_.find(used);
    if (found == names_.end()) in_.refuse(start, std::format("{} is not made yet", used));
    made.operands.push_back(found->second);
  } while (in_.accept(","));
}

void HloReader::attribute(Instruction& made, std::string const& key) {
  Op& op = made.op;
  auto const put = [&](std::string_view name, Attribute attribute) { op.attributes.emplace_back(std::string(name), std::move(attribute)); };
  if (key == "window") return window(made);
  if (key == "dim_labels") return dim_labels(op);
  if (key == "slice") return slice(op);
  if (key == "padding") return padding(op);
  if (key == "index" && made.opcode == "get-tuple-element") return void(made.index = in_.integer());
  auto const rule = std::ranges::find_if(rules, [&](Rule const& r) { return r.key == key && (r.opcode.empty() || r.opcode == made.opcode); });
  if (rule == std::end(rules)) return in_.skip_value('\n');
  switch (rule->form) {
    case Form::numbers:
      return put(rule->name, braced());
    case Form::dim: {
      auto const dims = braced();
      if (dims.size() != 1) in_.refuse(std::format("{} has {} dims, not 1", op.name, dims.size()));
      return put(rule->name, dims[0]);
    }
    case Form::number:
      return put(rule->name, in_.integer());
    case Form::flag:
      return put(rule->name, in_.word() == "true");
    case Form::word:
      return put(rule->name, std::string(in_.word()));
    case Form::text:
      return put(rule->name, in_.quoted());
    case Form::called: {
      bool const several = in_.accept("{");
      do made.called.emplace(key, name());
      while (several && in_.accept(","));
      if (several) in_.expect("}");
    }
  }
}

Bundle<int> HloReader::take(Instruction& made) {
  Bundle<int> bundle{{}, made.types.tuple};
  for (auto const& of : made.types.items) bundle.items.push_back(value(of));
  made.op.results = bundle.items;
  made.op.types = made.types.items;
  return bundle;
}

// The instruction's values; its operation joins the computation, unless it only names what is there.
Bundle<int> HloReader::finish(Instruction& made) {
  if (made.opcode == "parameter") {
    if (parameters_.contains(made.index)) base::fail("parameter {} is there twice", made.index);
    auto bundle = take(made);
    parameters_[made.index] = {{}, made.types, bundle.items};
    return bundle;
  }
  if (made.opcode == "get-tuple-element") {
    if (made.operands.size() != 1 || !made.operands[0].tuple) base::fail("get-tuple-element needs a tuple");
    auto const& items = made.operands[0].items;
    if (made.index < 0 || std::cmp_greater_equal(made.index, items.size())) base::fail("the tuple of {} has no element {}", items.size(), made.index);
    return {{items[static_cast<std::size_t>(made.index)]}, false};
  }
  if (made.opcode == "tuple") {
    Bundle<int> bundle{{}, true};
    for (auto const& operand : made.operands) {
      if (operand.tuple) base::fail("a tuple within a tuple is not supported");
      bundle.items.push_back(operand.items[0]);
    }
    return bundle;
  }
  for (auto const& operand : made.operands) made.op.operands.insert(made.op.operands.end(), operand.items.begin(), operand.items.end());
  regions(made);
  auto bundle = take(made);
  made_.ops.push_back(std::move(made.op));
  return bundle;
}

void HloReader::regions(Instruction& made) {
  Op& op = made.op;
  auto const named = [&](std::string_view key) -> std::string const& {
    auto const found = made.called.find(key);
    if (found == made.called.end()) base::fail("{} lacks {}", made.opcode, key);
    return found->second;
  };
  if (op.name == "call") {
    auto const& callee = named(made.opcode == "fusion" ? "calls" : "to_apply");
    if (!computations_.contains(callee)) base::fail("computation {} is not there yet", callee);
    op.attributes.emplace_back("callee", own_name(callee));
  } else if (made.opcode == "conditional") {  // a branch's parameter is the operand of its own
    std::vector<std::string> branches;
    bool const flag = made.called.contains("true_computation");
    if (flag) branches = {named("true_computation"), named("false_computation")};
    for (auto [at, end] = made.called.equal_range("branch_computations"); at != end; ++at) branches.push_back(at->second);
    if (branches.empty() || made.operands.size() != branches.size() + 1) base::fail("{} operands for {} branches", made.operands.size(), branches.size());
    op.name = flag || types_[static_cast<std::size_t>(made.operands[0].items.at(0))].dtype == base::DType::boolean ? "if" : "case";
    op.operands.resize(1);
    for (std::size_t k = 0; k < branches.size(); ++k) op.regions.push_back(instance(branches[k], made.operands[k + 1].items));
  } else if (!made.called.empty()) {
    auto const keys = std::ranges::find_if(region_keys, [&](Regions const& r) { return r.opcode.empty() || r.opcode == made.opcode; });
    for (auto key : keys->keys)
      if (!key.empty()) op.regions.push_back(instance(named(key), std::nullopt));
  }
}

namespace {
// The function with its values renumbered; counts operations.
Function renumbered(Function const& from, std::span<int const> to, std::int64_t& count) {
  auto const move = [&](std::vector<int> numbers) {
    for (int& n : numbers) n = to[static_cast<std::size_t>(n)];
    return numbers;
  };
  Function copy{from.name, move(from.parameters), from.types, {}, {}, move(from.returns)};
  for (auto const& op : from.ops) {
    if (++count > most_operations) base::fail("more than {} operations in regions", most_operations);
    Op next{op.name, move(op.operands), move(op.results), op.types, op.attributes, {}, op.line, op.column};
    for (auto const& region : op.regions) next.regions.push_back(renumbered(region, to, count));
    copy.ops.push_back(std::move(next));
  }
  return copy;
}
}  // namespace

// A computation as a region: with values of this computation's own, its parameters those that are given.
Function HloReader::instance(std::string const& called, std::optional<std::vector<int>> const& given) {
  auto const found = computations_.find(called);
  if (found == computations_.end()) base::fail("computation {} is not there yet", called);
  auto const& [function, values, line] = found->second;
  copied_ += values;
  if (copied_ > 4 * most_operations) base::fail("regions hold more than {} values", 4 * most_operations);
  std::vector<int> to;
  for (int v = 0; v < values; ++v) to.push_back(value({}));
  if (given) {
    if (given->size() != function.parameters.size()) base::fail("{} values given, {} taken by {}", given->size(), function.parameters.size(), called);
    for (std::size_t k = 0; k < given->size(); ++k) to[static_cast<std::size_t>(function.parameters[k])] = (*given)[k];
  }
  auto region = renumbered(function, to, copied_);
  if (given) region.parameters.clear(), region.types.clear();
  return region;
}

}  // namespace tenon::ir::hlo
