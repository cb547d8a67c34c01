// The reader of our own text form: recursive descent over one buffer; every fault names line and column.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir {
namespace {
using Type = Parameter::Type;

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Graph graph() {
    word("graph");
    graph_.name = any_name();
    std::size_t const header = at_;  // symbols follow the inputs that use them: read them first
    skip_parentheses();
    if (peek_word("symbols")) symbols();
    std::size_t const body = at_;
    at_ = header;
    inputs();
    at_ = body;
    expect("{");
    while (peek_word("require")) require();
    while (peek() == '%') node();
    word("return");
    if (peek() == '%') do
        graph_.outputs.push_back(known_value());
      while (accept(","));
    if (accept("into")) do {
        auto const place = std::ranges::find(graph_.inputs, known_value()) - graph_.inputs.begin();
        if (std::cmp_equal(place, graph_.inputs.size()) || graph_.mutated.size() == graph_.outputs.size()) refuse("expected an input, one an output");
        graph_.mutated.push_back(static_cast<int>(place));
      } while (accept(","));
    expect("}");
    skip_spaces();
    if (at_ != text_.size()) refuse("expected the end");
    for (std::size_t v = 0; v < graph_.values.size(); ++v)
      if (!graph_.values[v].meta) refuse(std::format("%{} is never made", v));
    return std::move(graph_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    auto const before = text_.substr(0, std::min(at_, text_.size()));
    auto const line = std::ranges::count(before, '\n') + 1;
    auto const newline = before.rfind('\n');
    base::fail("graph text: line {}, column {}: {}", line, before.size() - (newline == std::string_view::npos ? 0 : newline + 1) + 1, what);
  }
  // Runs a step that may throw Error about the word at `start`.
  template <class F>
  auto about(std::size_t start, F step) try {
    return step();
  } catch (base::Error const& error) {
    at_ = start;
    refuse(error.what());
  }
  void skip_spaces() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) ++at_;
  }
  char peek() {
    skip_spaces();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool accept(std::string_view token) {
    skip_spaces();
    if (!text_.substr(at_).starts_with(token)) return false;
    at_ += token.size();
    return true;
  }
  void expect(std::string_view token) {
    if (!accept(token)) refuse(std::format("expected \"{}\"", token));
  }
  static bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.'; }
  std::string_view name() {
    skip_spaces();
    std::size_t const start = at_;
    while (at_ < text_.size() && is_name(text_[at_])) ++at_;
    if (at_ == start) refuse("expected a name");
    return text_.substr(start, at_ - start);
  }
  std::string any_name() { return peek() == '"' ? quoted() : std::string(name()); }
  bool peek_word(std::string_view wish) {
    skip_spaces();
    return text_.substr(at_).starts_with(wish) && (at_ + wish.size() >= text_.size() || !is_name(text_[at_ + wish.size()]));
  }
  void word(std::string_view wish) {
    if (!peek_word(wish)) refuse(std::format("expected \"{}\"", wish));
    at_ += wish.size();
  }
  std::int64_t integer() {
    skip_spaces();
    std::int64_t number = 0;
    auto const [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), number);
    if (error != std::errc{}) refuse("expected an integer");
    at_ = static_cast<std::size_t>(end - text_.data());
    return number;
  }
  std::string quoted() {
    expect("\"");
    std::string result;
    while (at_ < text_.size() && text_[at_] != '"') {
      if (text_[at_] == '\\' && at_ + 1 < text_.size()) ++at_;
      result += text_[at_++];
    }
    if (at_ == text_.size()) refuse("expected a closing quote");
    ++at_;
    return result;
  }
  void skip_parentheses() {
    expect("(");
    for (int depth = 1; depth > 0;) {
      if (at_ >= text_.size()) refuse("expected \")\"");
      char const c = text_[at_];
      depth += c == '(' ? 1 : c == ')' ? -1 : 0;
      c == '"' ? void(quoted()) : void(++at_);
    }
  }
  int value_id() {
    expect("%");
    auto const id = integer();
    if (id < 0 || std::cmp_greater_equal(id, text_.size())) refuse(std::format("%{} is out of range", id));
    return static_cast<int>(id);
  }
  int known_value() {
    int const id = value_id();
    if (std::cmp_greater_equal(id, graph_.values.size()) || !graph_.values[static_cast<std::size_t>(id)].meta) refuse(std::format("%{} is not made yet", id));
    return id;
  }
  Value& fresh_value(int id) {
    if (std::cmp_greater_equal(id, graph_.values.size())) graph_.values.resize(static_cast<std::size_t>(id) + 1);
    auto& value = graph_.values[static_cast<std::size_t>(id)];
    if (value.meta) refuse(std::format("%{} is made twice", id));
    return value;
  }

  Dim sum() try { return read_size(graph_.symbols, text_, at_, false); } catch (base::Error const& error) {
    refuse(error.what());
  }
  Dim optional_dim() {
    if (peek_word("none")) return word("none"), Dim(absent);
    if (peek_word("max")) return word("max"), Dim(std::numeric_limits<std::int64_t>::max());
    return sum();
  }
  template <class F>
  void listed(F item) {
    expect("[");
    if (accept("]")) return;
    do item();
    while (accept(","));
    expect("]");
  }
  Dims dims() {
    Dims list;
    listed([&] { list.push_back(optional_dim()); });
    return list;
  }
  // A number as an operand or a float attribute: "1.5", "2", "true", "none", "inf", "r0", "s0*2".
  Scalar scalar() {
    skip_spaces();
    std::size_t const start = at_;
    for (auto const& [text, value] : {std::pair{"none", Scalar()},
                                      {"true", Scalar(true)},
                                      {"false", Scalar(false)},
                                      {"inf", Scalar(std::numeric_limits<double>::infinity())},
                                      {"nan", Scalar(std::numeric_limits<double>::quiet_NaN())}})
      if (peek_word(text)) return word(text), value;
    if (accept("-inf")) return Scalar(-std::numeric_limits<double>::infinity());
    if (accept("-nan")) return Scalar(-std::numeric_limits<double>::quiet_NaN());
    if (peek() == 'r') {
      auto const symbol = name();
      if (std::ranges::find(graph_.symbols.names(), symbol) == graph_.symbols.names().end()) refuse(std::format("unknown symbol {}", symbol));
      return graph_.symbols.named(symbol, Scalar(0.0));
    }
    auto const word_end = text_.find_first_of(",)] \n", at_);
    auto const digits = text_.substr(at_, word_end == std::string_view::npos ? word_end : word_end - at_);
    if (digits.find_first_of(".e") != std::string_view::npos && !digits.empty() && !std::isalpha(static_cast<unsigned char>(digits[0]))) {
      std::string const copy(digits);
      char* stop = nullptr;
      double const number = std::strtod(copy.c_str(), &stop);
      if (stop != copy.c_str() + copy.size()) refuse("expected a number");
      at_ = start + digits.size();
      return Scalar(number);
    }
    return Scalar(sum());
  }

  Meta meta() {
    auto const type = dtype();
    std::size_t const start = at_;
    Dims const sizes = dims();
    for (auto size : sizes)
      if (size.value < 0) refuse(std::format("size {} is negative", size.value));
    Symbols::Scope const scope(&graph_.symbols);
    auto result = about(start, [&] { return contiguous_meta(type, {}, sizes); });
    if (peek_word("strides")) {
      word("strides");
      result.strides = dims();
      if (result.strides.size() != sizes.size()) refuse(std::format("{} strides for {} sizes", result.strides.size(), sizes.size()));
    }
    if (peek_word("on")) {
      word("on");
      result.device = device();
    }
    return result;
  }
  base::DType dtype() {
    skip_spaces();
    std::size_t const start = at_;
    auto const text = name();
    return about(start, [&] { return base::dtype_of(text); });
  }
  base::Device device() {
    skip_spaces();
    std::size_t const start = at_;
    std::string text(name());
    if (accept(":")) text += ":" + std::to_string(integer());
    return about(start, [&] { return base::device_of(text); });
  }

  void symbols() {
    word("symbols");
    expect("(");
    do {
      skip_spaces();
      std::size_t const start = at_;
      auto const symbol = name();
      expect("=");
      Scalar const hint = symbol[0] == 'r' ? scalar() : Scalar(integer());
      bool const twice = std::ranges::find(graph_.symbols.names(), symbol) != graph_.symbols.names().end();
      about(start, [&] { return twice ? base::fail("symbol {} is named twice", symbol), hint : graph_.symbols.named(symbol, hint); });
    } while (accept(","));
    expect(")");
  }
  void inputs() {
    expect("(");
    if (accept(")")) return;
    do {
      int const id = value_id();
      auto& value = fresh_value(id);
      std::string const label = peek() == ':' ? std::string() : any_name();
      expect(":");
      auto read = meta();
      value = {MetaRef(new Meta(std::move(read))), -1, static_cast<int>(graph_.inputs.size()), label};
      graph_.inputs.push_back(id);
    } while (accept(","));
    expect(")");
  }
  void require() {
    word("require");
    Constraint constraint;
    constraint.a = sum();
    bool found = false;
    for (auto const& [text, relation] : {std::pair{"==", Relation::equal}, {"!=", Relation::unequal}, {"<=", Relation::less_equal}, {"<", Relation::less}})
      if (!found && accept(text)) constraint.relation = relation, found = true;
    if (!found) refuse("expected a relation");
    constraint.b = sum();
    graph_.symbols.constraints.push_back(constraint);
  }

  void attribute(Parameter const& parameter, Attrs& attrs) {
    switch (parameter.type) {
      case Type::wholes:
      case Type::sizes:
        attrs.with(dims());
        return;
      case Type::real:
        attrs.with_num(scalar());
        return;
      case Type::reals:
        attrs.with(Dim(0));
        listed([&] { attrs.with_num(scalar()), ++attrs.ints.back().value; });
        return;
      case Type::text:
        attrs.with_text(quoted());
        return;
      case Type::device:
        attrs.with(device());
        return;
      case Type::flag: {
        bool const yes = peek_word("true");
        word(yes ? "true" : "false");
        attrs.with(Dim(yes));
        return;
      }
      case Type::dtype:
        attrs.with(peek_word("none") ? (word("none"), Dim(absent)) : Dim(static_cast<int>(dtype())));
        return;
      case Type::choice: {
        auto const wish = name();
        auto const found = std::ranges::find(parameter.choices, wish);
        if (found == parameter.choices.end()) refuse(std::format("{} is not a choice of {}", wish, parameter.name));
        attrs.with(Dim(found - parameter.choices.begin()));
        return;
      }
      default:
        attrs.with(optional_dim());
    }
  }
  void node() {
    Node node{};
    std::vector<int> results;
    do {
      results.push_back(value_id());
      fresh_value(results.back());
      if (results.back() != results[0] + std::ssize(results) - 1) refuse("results of one node are numbered in a row");
    } while (accept(","));
    expect("=");
    std::size_t const place = at_;
    auto const op_name = name();
    node.op = find_op(op_name);
    if (!node.op) {
      at_ = place + 1;
      refuse(std::format("unknown op {}", op_name));
    }
    expect("(");
    auto const& known = signature(*node.op);
    std::map<std::string_view, std::size_t> given;  // attribute → where its value starts
    if (!accept(")")) {
      do {
        skip_spaces();
        std::size_t const start = at_;
        if (std::isalpha(static_cast<unsigned char>(peek()))) {
          auto const key = name();
          if (accept("=") && text_[at_] != '=') {
            if (!given.emplace(key, at_).second) refuse(std::format("{} is given twice", key));
            skip_value();
            continue;
          }
          at_ = start;
        }
        if (!given.empty()) refuse("an operand stands behind an attribute");
        node.inputs.push_back(peek() == '%' ? Input{known_value(), {}} : Input{-1, scalar()});
      } while (accept(","));
      expect(")");
    }
    if (!known.variadic && std::cmp_not_equal(node.inputs.size(), known.operands))
      refuse(std::format("{} takes {} operands, not {}", op_name, known.operands, node.inputs.size()));
    std::size_t const after = at_;
    Attrs const defaults = default_attrs(*node.op);
    AttrReader usual{defaults};
    for (auto const& parameter : known.parameters) {
      if (parameter.type == Type::tensor || parameter.type == Type::tensors) continue;
      auto const found = given.find(parameter.name);
      if (found == given.end() && parameter.fallback.empty()) refuse(std::format("{} needs {}", op_name, parameter.name));
      Attrs unused;
      if (found == given.end()) {
        copy_attribute(parameter, usual, node.attrs);
      } else {
        copy_attribute(parameter, usual, unused);
        at_ = found->second;
        attribute(parameter, node.attrs);
        given.erase(found);
      }
    }
    at_ = after;
    if (!given.empty()) at_ = given.begin()->second, refuse(std::format("{} has no attribute {}", op_name, given.begin()->first));
    expect(":");
    node.first = results[0], node.results = static_cast<int>(results.size());
    for (std::size_t k = 0; k < results.size(); ++k) {
      if (k) expect(",");
      auto read = meta();
      fresh_value(results[k]) = {MetaRef(new Meta(std::move(read))), static_cast<int>(graph_.nodes.size()), static_cast<int>(k), {}};
    }
    if (accept("#")) {
      node.at.file = intern(quoted()).data(), node.at.line = static_cast<std::uint32_t>(integer());
      expect(":");
      node.at.column = static_cast<std::uint32_t>(integer());
    }
    if (accept("@")) node.module = intern(any_name());
    graph_.nodes.push_back(std::move(node));
  }
  void skip_value() {  // to the comma or parenthesis behind an attribute's value
    int depth = 0;
    for (; at_ < text_.size(); ++at_) {
      char const c = text_[at_];
      if (c == '"') {
        quoted();
        --at_;
      } else if (c == '[' || c == '(') {
        ++depth;
      } else if (c == ']' || (c == ')' && depth > 0)) {
        --depth;
      } else if (depth == 0 && (c == ',' || c == ')')) {
        return;
      }
    }
    refuse("expected \")\"");
  }

  std::string_view text_;
  std::size_t at_ = 0;
  Graph graph_;
};
}  // namespace

Graph parse_graph(std::string_view text) { return Parser(text).graph(); }

}  // namespace tenon::ir
