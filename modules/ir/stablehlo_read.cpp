// Modules, functions and operations of StableHLO's text, in both its forms: stablehlo.add %a, %b and "stablehlo.add"(%a, %b).
module tenon.ir;
import std;
import tenon.base;
import :stablehlo;

namespace tenon::ir::hlo {
using List = std::vector<std::int64_t>;

namespace {
// Words of the short forms and the attributes that they stand for; an empty operation: any.
struct Word {
  std::string_view op, key, name, second;
};
constexpr Word words[] = {{"broadcast_in_dim", "dims", "broadcast_dimensions", {}},
                          {"transpose", "dims", "permutation", {}},
                          {"reverse", "dims", "dimensions", {}},
                          {"iota", "dim", "iota_dimension", {}},
                          {"concatenate", "dim", "dimension", {}},
                          {"sort", "dim", "dimension", {}},
                          {"pad", "low", "edge_padding_low", {}},
                          {"pad", "high", "edge_padding_high", {}},
                          {"pad", "interior", "interior_padding", {}},
                          {"dynamic_slice", "sizes", "slice_sizes", {}},
                          {"dot_general", "batching_dims", "lhs_batching_dimensions", "rhs_batching_dimensions"},
                          {"dot_general", "contracting_dims", "lhs_contracting_dimensions", "rhs_contracting_dimensions"},
                          {"convolution", "stride", "window_strides", {}},
                          {"convolution", "pad", "padding", {}},
                          {"convolution", "lhs_dilate", "lhs_dilation", {}},
                          {"convolution", "rhs_dilate", "rhs_dilation", {}},
                          {"convolution", "reverse", "window_reversal", {}},
                          {"", "dimensions", "dimensions", {}},
                          {"", "k", "k", {}},
                          {"", "largest", "largest", {}}};

std::string plain_name(std::string_view name) {
  if (name == "func.call") return "call";
  if (name.ends_with(".return")) return "return";
  return std::string(name.starts_with("stablehlo.") ? name.substr(10) : name);
}
}  // namespace

Module read_stablehlo(std::string_view text) { return StablehloReader(text).module(); }

Module StablehloReader::module() {
  auto const top = [&] {
    if (in_.accept("#")) return in_.skip_line();  // #loc = loc(..)
    auto const start = in_.at();
    auto const word = in_.word();
    if (word == "func.func") return function();
    if (word.starts_with("sdy.")) return in_.skip_line();
    in_.refuse(start, std::format("expected func.func, not '{}'", word));
  };
  while (in_.peek() == '#') in_.skip_line();
  if (in_.accept_word("module")) {
    if (in_.accept("@")) module_.name = in_.peek() == '"' ? in_.quoted() : std::string(in_.word());
    if (in_.accept_word("attributes")) in_.expect("{"), attributes(nullptr, "}");
    in_.expect("{");
    while (!in_.accept("}")) top();
    skip_location();
    while (in_.peek() == '#') in_.skip_line();
  } else {
    while (!in_.done()) top();
  }
  if (!in_.done()) in_.refuse("expected the end");
  return std::move(module_);
}

void StablehloReader::skip_location() {
  if (in_.accept("loc(")) {
    while (in_.peek() != ')') {
      in_.skip_value();
      if (!in_.accept(",")) break;
    }
    in_.expect(")");
  }
}

std::string StablehloReader::value_name() {
  in_.expect("%");
  return std::string(in_.word());
}
int StablehloReader::define(std::string const& name, Type const& type) {
  int const number = static_cast<int>(types_.size());
  auto const found = values_.find(name);
  undo_.emplace_back(name, found == values_.end() ? std::nullopt : std::optional(found->second));
  values_[name] = {number};
  types_.push_back(type);
  return number;
}
void StablehloReader::scoped(std::function<void()> const& inside) {
  if (++depth_ > most_depth) in_.refuse(std::format("more than {} regions in one another", most_depth));
  auto const before = undo_.size();
  inside();
  for (; undo_.size() > before; undo_.pop_back()) {
    auto& [name, hidden] = undo_.back();
    if (hidden)
      values_[name] = std::move(*hidden);
    else
      values_.erase(name);
  }
  --depth_;
}
int StablehloReader::use() {
  auto const start = in_.at();
  auto const name = value_name();
  auto const found = values_.find(name);
  if (found == values_.end()) in_.refuse(start, std::format("%{} is not made yet", name));
  std::int64_t const index = in_.accept("#") ? in_.integer() : 0;
  if (index < 0 || std::cmp_greater_equal(index, found->second.size())) in_.refuse(start, std::format("%{} has no result {}", name, index));
  return found->second[static_cast<std::size_t>(index)];
}
void StablehloReader::uses(std::vector<int>& into) {
  do into.push_back(use());
  while (in_.accept(","));
}
std::pair<int, Type> StablehloReader::parameter() {
  auto const name = value_name();
  in_.expect(":");
  auto const of = type();
  if (in_.accept("{")) attributes(nullptr, "}");
  skip_location();
  return {define(name, of), of};
}

void StablehloReader::function() {
  Function made;
  types_.clear(), values_.clear(), undo_.clear();
  if (!in_.accept_word("public")) in_.accept_word("private");
  auto const start = in_.at();
  in_.expect("@");
  made.name = in_.peek() == '"' ? in_.quoted() : std::string(in_.word());
  for (auto const& other : module_.functions)
    if (other.name == made.name) in_.refuse(start, std::format("function @{} is there twice", made.name));
  in_.expect("(");
  if (!in_.accept(")")) {
    do {
      auto const [number, of] = parameter();
      made.parameters.push_back(number), made.types.push_back(of);
      made.names.push_back(undo_.back().first);
    } while (in_.accept(","));
    in_.expect(")");
  }
  std::vector<Type> stated;
  if (in_.accept("->")) stated = types();
  if (in_.accept_word("attributes")) in_.expect("{"), attributes(nullptr, "}");
  in_.expect("{");
  scoped([&] { block(made); });
  bool fits = made.returns.size() == stated.size();
  for (std::size_t k = 0; fits && k < stated.size(); ++k) fits = types_[static_cast<std::size_t>(made.returns[k])] == stated[k];
  if (!fits) in_.refuse(start, std::format("function @{} returns other types than it states", made.name));
  skip_location();
  module_.functions.push_back(std::move(made));
}

void StablehloReader::region(Function& into) {
  in_.expect("{");
  scoped([&] {
    if (in_.accept("^")) {
      in_.word();
      if (in_.accept("(")) {
        do {
          auto const [number, of] = parameter();
          into.parameters.push_back(number), into.types.push_back(of);
        } while (in_.accept(","));
        in_.expect(")");
      }
      in_.expect(":");
    }
    block(into);
  });
}

void StablehloReader::block(Function& into) {
  for (;;) {
    if (in_.peek() == '^') in_.refuse("a region of several blocks is not supported");
    if (in_.peek() == '}') in_.refuse("the operations end without a return");
    operation(into);
    if (into.ops.back().name != "return") continue;
    into.returns = std::move(into.ops.back().operands);
    into.ops.pop_back();
    return in_.expect("}");
  }
}

void StablehloReader::operation(Function& into) {
  struct Result {
    std::string name;
    std::int64_t count;
  };
  std::vector<Result> results;
  std::size_t count = 0;
  in_.peek();
  Op op;
  std::tie(op.line, op.column) = in_.place(in_.at());
  if (in_.peek() == '%') {
    do {
      auto const name = value_name();
      std::int64_t const n = in_.accept(":") ? in_.integer() : 1;
      if (n < 1 || n > 4096) in_.refuse(std::format("{} results", n));
      results.push_back({name, n});
      count += static_cast<std::size_t>(n);
    } while (in_.accept(","));
    in_.expect("=");
  }
  if (in_.peek() == '"') {
    op.name = plain_name(in_.quoted());
    generic(op);
  } else {
    op.name = plain_name(in_.word());
    pieces(op);
  }
  if (op.name == "return" && count) in_.refuse("return has no results");
  bool const bare = op.name == "return" && op.operands.empty() && in_.peek() != ':';
  if (op.name == "constant" && !op.types.empty() && count != 1) in_.refuse("a constant has one result");
  if (!bare && op.types.empty()) types_of(op, count);
  if (op.name == "reduce" && op.regions.empty()) reducer(op);
  if (op.name == "while" && op.regions.size() != 2) while_loop(op);
  skip_location();
  std::size_t next = 0;
  for (auto const& [name, n] : results) {
    std::vector<int> made;
    for (std::int64_t k = 0; k < n; ++k) made.push_back(define(name, op.types[next++]));
    op.results.insert(op.results.end(), made.begin(), made.end());
    values_[name] = std::move(made);
  }
  into.ops.push_back(std::move(op));
}

void StablehloReader::types_of(Op& op, std::size_t results) {
  in_.expect(":");
  in_.peek();
  auto const start = in_.at();
  std::vector<Type> list = types();
  bool const arrow = in_.accept("->");
  if (!arrow)
    while (in_.accept(",")) list.push_back(type());
  auto const check = [&](std::size_t k, Type const& stated) {
    auto const& made = types_[static_cast<std::size_t>(op.operands[k])];
    if (!(made == stated)) in_.refuse(start, std::format("operand {} is {}, not {}", k, to_string(made), to_string(stated)));
  };
  if (arrow) {
    if (list.size() != op.operands.size()) in_.refuse(start, std::format("{} types for {} operands", list.size(), op.operands.size()));
    for (std::size_t k = 0; k < list.size(); ++k) check(k, list[k]);
    op.types = types();
  } else if (op.name == "return") {
    if (list.size() != op.operands.size()) in_.refuse(start, std::format("{} types for {} operands", list.size(), op.operands.size()));
    for (std::size_t k = 0; k < list.size(); ++k) check(k, list[k]);
  } else if (list.size() == results) {
    op.types = std::move(list);
  } else {  // select's types are those of its predicate and its result
    if (list.empty()) in_.refuse(start, "expected a type");
    op.types = {list.back()};
  }
  if (op.types.size() != results) in_.refuse(start, std::format("{} has {} results, {} named", op.name, op.types.size(), results));
}

void StablehloReader::generic(Op& op) {
  in_.expect("(");
  if (!in_.accept(")")) uses(op.operands), in_.expect(")");
  if (in_.accept("<{")) attributes(&op, "}"), in_.expect(">");
  if (in_.accept("(")) {
    do region(op.regions.emplace_back());
    while (in_.accept(","));
    in_.expect(")");
  }
  if (in_.accept("{")) attributes(&op, "}");
}

void StablehloReader::assigned(Op& op, std::string const& key) {
  if (op.name == "convolution" && key == "dim_numbers") return convolution_dims(op);
  if (op.name == "convolution" && key == "window") {
    in_.expect("{");
    do {
      auto const inner = std::string(in_.word());
      in_.expect("=");
      if (inner == "window") in_.refuse("a window within a window");
      assigned(op, inner);
    } while (in_.accept(","));
    return in_.expect("}");
  }
  if (op.name == "reduce_precision" && key == "format") {  // e5m10
    auto const format = in_.word();
    std::int64_t exponent{}, mantissa{};
    auto const [middle, fault] = std::from_chars(format.data() + 1, format.data() + format.size(), exponent);
    bool good = format.starts_with("e") && fault == std::errc{} && middle < format.data() + format.size() && *middle == 'm';
    if (good) good = std::from_chars(middle + 1, format.data() + format.size(), mantissa).ec == std::errc{};
    if (!good) in_.refuse(std::format("'{}' is no format of floats", format));
    op.attributes.emplace_back("exponent_bits", exponent);
    op.attributes.emplace_back("mantissa_bits", mantissa);
    return;
  }
  for (auto const& word : words) {
    if (word.key != key || (!word.op.empty() && word.op != op.name)) continue;
    value(op, std::string(word.name));
    if (!word.second.empty()) in_.expect("x"), value(op, std::string(word.second));
    return;
  }
  in_.skip_value(':');
}

// What stands between an operation's name and its types.
void StablehloReader::pieces(Op& op) {
  if (op.name == "constant") {
    if (in_.accept("{")) attributes(&op, "}");
    if (!in_.accept_word("dense")) in_.refuse(std::format("expected dense, not '{}'", in_.peek_word()));
    auto literal = dense();
    op.attributes.emplace_back("value", literal);
    op.types = {literal.type};
    return;
  }
  if (op.name == "while" && in_.accept("(")) {
    if (in_.accept(")")) return;
    auto& body = op.regions.emplace_back();
    do {
      body.names.push_back(value_name());
      in_.expect("=");
      op.operands.push_back(use());
    } while (in_.accept(","));
    return in_.expect(")");
  }
  std::vector<int> inits;
  for (;;) {
    char const c = in_.peek();
    if (c == ':' || c == '}' || c == '\0') break;
    if (c == '%') {
      op.operands.push_back(use());
    } else if (in_.accept("@")) {
      op.attributes.emplace_back(op.name == "custom_call" ? "call_target_name" : "callee", in_.peek() == '"' ? in_.quoted() : std::string(in_.word()));
    } else if (c == '"') {
      in_.quoted();
    } else if (in_.accept("{")) {
      attributes(&op, "}");
    } else if (c == '[' && op.name == "slice") {
      List start, limit, stride;
      in_.expect("[");
      if (!in_.accept("]")) {
        do {
          start.push_back(in_.integer()), in_.expect(":");
          limit.push_back(in_.integer()), stride.push_back(in_.accept(":") ? in_.integer() : 1);
        } while (in_.accept(","));
        in_.expect("]");
      }
      op.attributes.emplace_back("start_indices", start);
      op.attributes.emplace_back("limit_indices", limit);
      op.attributes.emplace_back("strides", stride);
    } else if (!in_.accept("(") && !in_.accept(")") && !in_.accept(",")) {
      auto const start = in_.at();
      std::string const word(in_.word());
      if (in_.accept("="))
        assigned(op, word);
      else if (op.name == "reduce" && word == "init")
        in_.expect(":"), inits.push_back(use());
      else if (op.name == "reduce" && word == "applies")
        applied(op, in_.word());
      else if (op.name == "compare" || op.name.ends_with("_compare"))
        op.attributes.emplace_back(op.find("comparison_direction") ? "compare_type" : "comparison_direction", word);
      else if (word != "across")
        in_.refuse(start, std::format("unexpected '{}' in {}", word, op.name));
    }
  }
  op.operands.insert(op.operands.end(), inits.begin(), inits.end());
}

// The region that "applies stablehlo.add" stands for; its types follow from the first operand.
void StablehloReader::applied(Op& op, std::string_view name) {
  if (op.operands.empty()) in_.refuse("a reduction without operands");
  Type const scalar{types_[static_cast<std::size_t>(op.operands[0])].dtype, {}};
  auto& body = op.regions.emplace_back();
  for (int k = 0; k < 3; ++k) types_.push_back(scalar);
  int const last = static_cast<int>(types_.size()) - 1;
  body.parameters = {last - 2, last - 1};
  body.types = {scalar, scalar};
  body.returns = {last};
  Op& inner = body.ops.emplace_back();
  inner.name = plain_name(name);
  inner.operands = body.parameters;
  inner.results = {last};
  inner.types = {scalar};
  inner.line = op.line, inner.column = op.column;
}

// reducer(%a: type, %b: type) (%c: type, %d: type) { .. }: the left operands come first, as in the long form.
void StablehloReader::reducer(Op& op) {
  if (!in_.accept_word("reducer")) in_.refuse("expected reducer");
  auto& body = op.regions.emplace_back();
  scoped([&] {
    std::vector<std::pair<int, Type>> left, right;
    while (in_.accept("(")) {
      left.push_back(parameter());
      in_.expect(",");
      right.push_back(parameter());
      in_.expect(")");
    }
    left.insert(left.end(), right.begin(), right.end());
    for (auto const& [number, of] : left) body.parameters.push_back(number), body.types.push_back(of);
    in_.expect("{");
    block(body);
  });
}

void StablehloReader::while_loop(Op& op) {
  auto const names = op.regions.empty() ? std::vector<std::string>{} : op.regions[0].names;
  if (names.size() != op.types.size()) in_.refuse(std::format("{} values for {} types", names.size(), op.types.size()));
  op.regions.assign(2, Function{});
  if (in_.accept_word("attributes")) in_.expect("{"), attributes(nullptr, "}");
  for (std::size_t k = 0; k < 2; ++k) {
    if (!in_.accept_word(k ? "do" : "cond")) in_.refuse(k ? "expected do" : "expected cond");
    in_.expect("{");
    scoped([&] {
      auto& body = op.regions[k];
      for (std::size_t v = 0; v < names.size(); ++v) body.parameters.push_back(define(names[v], op.types[v]));
      body.types = op.types;
      block(body);
    });
  }
}

}  // namespace tenon::ir::hlo
