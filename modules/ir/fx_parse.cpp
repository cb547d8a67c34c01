// The readers of FX's two texts of a graph: the printed one and generated code.
module tenon.ir;
import std;
import tenon.base;
import :fx;

namespace tenon::ir {
using Code = FxNode::Code;
using ArgKind = FxArg::Kind;

namespace {
constexpr std::pair<std::string_view, Code> codes[] = {{"placeholder", Code::placeholder},
                                                       {"get_attr", Code::get_attr},
                                                       {"call_function", Code::call_function},
                                                       {"call_method", Code::call_method},
                                                       {"call_module", Code::call_module}};
// Longest first, so that "**" is not read as "*".
constexpr std::array<std::string_view, 19> binary{"**", "//", "<<", ">>", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "&", "|", "^", "@", "<", ">"};

class GraphReader : fx::Reader {
 public:
  using fx::Reader::Reader;
  FxGraph graph() {
    while (skip_lines(), text_.substr(at_).starts_with("#") || starts_word("import") || starts_word("from")) skip_line();
    starts_word("graph") ? printed() : code();
    while (skip_lines(), text_.substr(at_).starts_with("#")) skip_line();
    if (at_ != text_.size()) refuse("expected the end");
    return std::move(graph_);
  }

 private:
  // Types and targets stand without escapes in both texts.
  void check(FxNode const& node, std::size_t start) {
    auto const control = [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '"' || c == '\\' || c == 127; };
    if (std::ranges::any_of(node.type, control)) refuse_at(start, std::format("the type of {} holds a quote or a control character", node.name));
    auto target = std::string_view(node.target);
    if (node.code == Code::placeholder) target.remove_prefix(std::min(target.find_first_not_of('*'), target.size()));
    bool const path = node.code != Code::placeholder;  // an input's target is a parameter of forward
    auto const odd = [&](char c) { return !fx::is_letter(c) && !(path && (c == '.' || c == '<' || c == '>')); };
    bool const gap = target.empty() || target.front() == '.' || target.back() == '.' || target.find("..") != std::string_view::npos;
    if (gap || std::ranges::any_of(target, odd)) refuse_at(start, std::format("no target is written {}", node.target));
  }
  void add(FxNode node, std::size_t start) {
    check(node, start);
    if (!names_.insert(node.name).second) refuse_at(start, std::format("{} is made twice", node.name));
    known_[node.name] = graph_.nodes.size();
    graph_.nodes.push_back(std::move(node));
  }
  void finish(FxArg result) {
    FxNode node{.code = Code::output, .name = "output", .target = "output"};
    node.args.push_back(std::move(result));
    graph_.nodes.push_back(std::move(node));
  }

  // -- "graph():" --
  void printed() {
    printed_ = true;
    expect("graph");
    expect("(");
    (void)line_until(")");
    (void)line_until(":");
    std::vector<std::pair<std::int64_t, std::size_t>> users;  // as the text says, and where
    while (skip_lines(), peek() == '%') printed_node(users);
    expect("return");
    printed_ = false;  // what is returned reads like code
    finish(value());
    std::vector<std::int64_t> real(graph_.nodes.size(), 0);
    std::vector<std::size_t> seen(graph_.nodes.size(), graph_.nodes.size());
    for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
      auto const note = [&](std::size_t used) { real[used] += std::exchange(seen[used], n) != n; };
      for (auto const& arg : graph_.nodes[n].args) fx::each_node(arg, note);
      for (auto const& [key, arg] : graph_.nodes[n].kwargs) fx::each_node(arg, note);
    }
    for (std::size_t n = 0; n < users.size(); ++n)
      if (users[n].first != real[n]) refuse_at(users[n].second, std::format("num_users is {}, but %{} has {}", users[n].first, graph_.nodes[n].name, real[n]));
  }
  void printed_node(std::vector<std::pair<std::int64_t, std::size_t>>& users) {
    std::size_t const start = at_;
    expect("%");
    FxNode node;
    node.name = name();
    expect(":");
    node.type = line_until("[");
    while (!node.type.empty() && text_.substr(at_).starts_with("num_users=") == false && text_.substr(at_).starts_with("#users=") == false)
      node.type += "[" + line_until("[");
    while (node.type.ends_with(' ')) node.type.pop_back();
    if (!accept("num_users=") && !accept("#users=")) refuse("expected \"num_users=\"");
    std::size_t const place = at_;
    auto const count = atom(line_until("]"));
    if (!count || count->kind != ArgKind::whole) refuse_at(place, "expected a number of users");
    users.emplace_back(count->whole, place);
    expect("=");
    std::size_t const word_at = (skip_spaces(), at_);
    auto const word = name();
    auto const found = std::ranges::find(codes, word, [](auto const& row) { return row.first; });
    if (found == std::end(codes)) refuse_at(word_at, std::format("no opcode is called {}", word));
    node.code = found->second;
    expect("[target=");
    node.target = line_until("]");
    if (node.target.empty()) refuse("expected a target");
    if (node.code == Code::placeholder) {
      if (accept("(default=")) node.args.push_back(value()), expect(")");
    } else if (node.code != Code::get_attr) {
      expect("(args = (");
      node.args = items(")", 0);
      expect(", kwargs = {");
      for (bool comma = true; !accept("}"); comma = accept(",")) {
        if (!comma) refuse("expected \",\" or \"}\"");
        std::size_t const key_at = (skip_spaces(), at_);
        auto key = name();
        expect(":");
        keyword(node, std::move(key), key_at);
      }
      expect(")");
    }
    add(std::move(node), start);
  }

  // -- "def forward(self, x):" --
  void code() {
    if (starts_word("class")) {
      skip_line();
      while (skip_lines(), text_.substr(at_).starts_with("#")) skip_line();
    }
    if (!starts_word("def")) refuse("expected \"graph():\", \"class\" or \"def\"");
    expect("def");
    (void)name();
    parameters();
    while (!ended_) statement();
  }
  void parameters() {
    expect("(");
    ++brackets_;
    for (bool comma = true; !accept(")"); comma = accept(",")) {
      if (!comma) refuse("expected \",\" or \")\"");
      std::size_t const start = (skip_spaces(), at_);
      std::string const stars = accept("**") ? "**" : accept("*") ? "*" : "";
      FxNode node{.code = Code::placeholder};
      node.name = name();
      node.target = stars + node.name;
      if (node.name == "self" && graph_.nodes.empty()) continue;
      if (accept(":")) node.type = annotation();
      if (accept("=")) node.args.push_back(value());
      add(std::move(node), start);
    }
    --brackets_;
    if (accept("->")) (void)annotation();
    expect(":");
  }
  // A type: quoted, or Python's, up to what ends it outside of brackets.
  std::string annotation() {
    if (peek() == '"' || peek() == '\'') return string();
    std::size_t const start = at_;
    int depth = 0;
    for (; at_ < text_.size() && text_[at_] != '\n'; ++at_) {
      char const c = text_[at_];
      if (depth == 0 && (c == ',' || c == ')' || c == '=' || c == ':' || c == ';')) break;
      depth += c == '[' || c == '(' ? 1 : c == ']' || c == ')' ? -1 : 0;
    }
    std::string type(text_.substr(start, at_ - start));
    while (type.ends_with(' ')) type.pop_back();
    if (type.empty()) refuse("expected a type");
    return type;
  }
  void end_of_statement() {
    if (peek() == '#') skip_line();
    if (at_ < text_.size() && !accept(";") && text_[at_] != '\n') refuse("expected the end of the line");
  }
  void statement() {
    while (skip_lines(), at_ < text_.size() && (text_[at_] == '#' || text_[at_] == ';')) text_[at_] == '#' ? skip_line() : void(++at_);
    std::size_t const start = at_;
    if (starts_word("return")) {
      expect("return");
      finish(peek() == '\n' || peek() == '\0' ? FxArg{} : value());
      ended_ = true;
      return end_of_statement();
    }
    auto const first = name();
    FxNode node;
    for (auto const sign : binary)
      if (text_.substr((skip_spaces(), at_)).starts_with(std::string(sign) + "=") && sign != "<" && sign != ">") {  // "x += y;  iadd = x"
        expect(std::string(sign) + "=");
        node.target = fx::operator_target(std::string(sign) + "=", 2);
        if (node.target.empty()) refuse("expected an assignment");
        node.args.push_back(reference(first, start));
        node.args.push_back(value());
        expect(";");
        node.name = name();
        expect("=");
        if (name() != first) refuse(std::format("expected \"{}\"", first));
        add(std::move(node), start);
        return end_of_statement();
      }
    std::string type;
    if (accept(":")) type = annotation();
    expect("=");
    std::size_t const right = (skip_spaces(), at_);
    if (starts_word("None") || frees()) return free(first, start, right);
    node = expression();
    if (node.name == "=") return rename(node, first, right);
    node.name = first;
    node.type = std::move(type);
    add(std::move(node), start);
    end_of_statement();
  }
  // "x = y = None" says that nobody reads x and y from here on.
  bool frees() {
    std::size_t at = at_;
    while (at < text_.size() && fx::is_letter(text_[at])) ++at;
    while (at < text_.size() && text_[at] == ' ') ++at;
    return at + 1 < text_.size() && at > at_ && text_[at] == '=' && text_[at + 1] != '=';
  }
  void free(std::string const& first, std::size_t start, std::size_t right) {
    at_ = right;
    for (auto [word, place] = std::pair(first, start);;) {
      (void)reference(word, place);
      known_.erase(word);
      skip_spaces();
      place = at_;
      word = name();
      if (word == "None") return end_of_statement();
      expect("=");
    }
  }
  // "x_1 = x" gives an input another name than its parameter has.
  void rename(FxNode const& node, std::string const& wish, std::size_t right) {
    auto const place = static_cast<std::size_t>(node.args[0].whole);
    auto& input = graph_.nodes[place];
    if (input.code != Code::placeholder || graph_.nodes.back().code != Code::placeholder)
      refuse_at(right, "expected a call: only an input may get another name, before the first call");
    known_.erase(input.name);
    if (!names_.insert(wish).second) refuse_at(right, std::format("{} is made twice", wish));
    known_[wish] = place;
    input.name = wish;
    end_of_statement();
  }

  // The right side of an assignment; a bare name comes back as a node called "=".
  FxNode expression() {
    std::size_t const start = (skip_spaces(), at_);
    char const c = peek();
    if ((c == '-' || c == '~' || c == '+') && at_ + 1 < text_.size() && (std::isalpha(static_cast<unsigned char>(text_[at_ + 1])) || text_[at_ + 1] == '_')) {
      FxNode node{.target = fx::operator_target(text_.substr(at_++, 1), 1)};
      node.args.push_back(value());
      return node;
    }
    bool const word = std::isalpha(static_cast<unsigned char>(c)) || c == '_';
    if (!word) return behind(value(), start);
    if (starts_word("self") || text_.substr(at_).starts_with("getattr(")) {
      bool const plain = starts_word("self");
      if (!plain) {
        std::size_t const inner = text_.find_first_not_of(' ', at_ + 8);
        std::string_view const from = inner == std::string_view::npos ? std::string_view{} : text_.substr(inner);
        if (!from.starts_with("self") && !from.starts_with("getattr(")) return call_of("builtins.getattr", 7);
      }
      FxNode node{.code = Code::get_attr, .target = path(0)};
      if (node.target.empty()) refuse_at(start, "expected an attribute of self");
      if (peek() == '(') node.code = Code::call_module, arguments(node);
      return node;
    }
    auto const first = name();
    if (!known_.contains(first)) {
      if (names_.contains(first)) (void)reference(first, start);  // refuses: it was freed
      at_ = start;
      auto target = dotted();
      if (peek() != '(') {  // a constant such as torch.float32, or a mistake
        at_ = start;
        return behind(value(), start);
      }
      if (target == "float" || target == "slice") return at_ = start, behind(value(), start);
      constexpr std::array<std::string_view, 12> builtins{"getattr", "abs", "bool", "divmod", "int", "isinstance", "len", "max", "min", "pow", "round", "sum"};
      if (std::ranges::find(builtins, target) != builtins.end()) target = "builtins." + target;
      FxNode node{.target = std::move(target)};
      arguments(node);
      return node;
    }
    auto base = reference(first, start);
    if (accept(".")) {
      auto member = dotted();
      FxNode node;
      if (peek() == '(') {
        node.code = Code::call_method;
        node.target = std::move(member);
        node.args.push_back(std::move(base));
        arguments(node);
      } else {
        if (member.find('.') != std::string::npos) refuse("expected one attribute");
        node.target = "builtins.getattr";
        node.args = {std::move(base), FxArg::of_text(member)};
      }
      return node;
    }
    if (peek() == '[') {
      ++at_;
      FxNode node{.target = "operator.getitem"};
      auto index = items("]", 0);
      if (index.empty()) refuse("expected an index");
      node.args.push_back(std::move(base));
      node.args.push_back(single_ ? std::move(index[0]) : FxArg::of_items(ArgKind::tuple, std::move(index)));
      return node;
    }
    return behind(std::move(base), start);
  }
  FxNode call_of(std::string target, std::size_t letters) {
    at_ += letters;
    FxNode node{.target = std::move(target)};
    arguments(node);
    return node;
  }
  // An operator and its right side, if there is one.
  FxNode behind(FxArg left, std::size_t start) {
    skip_spaces();
    for (auto const sign : binary)
      if (accept(sign)) {
        FxNode node{.target = fx::operator_target(sign, 2)};
        node.args.push_back(std::move(left));
        node.args.push_back(value());
        return node;
      }
    if (left.kind != ArgKind::node) refuse_at(start, "expected a call");
    FxNode node{.name = "="};
    node.args.push_back(std::move(left));
    return node;
  }
  // "self.blocks.fc1", or with getattr(self.blocks, "0") where a part is no name of Python.
  std::string path(int depth) {
    if (depth > 64) refuse("nested too deep");
    std::string text;
    if (accept("getattr(")) {
      text = path(depth + 1);
      expect(",");
      if (peek() != '"' && peek() != '\'') refuse("expected a string");
      text += (text.empty() ? "" : ".") + string();
      expect(")");
    } else if (!accept("self")) {
      refuse("expected \"self\"");
    }
    while (at_ < text_.size() && text_[at_] == '.') ++at_, text += (text.empty() ? "" : ".") + name();
    return text;
  }

  FxGraph graph_;
  bool ended_ = false;
};
}  // namespace

FxGraph parse_fx(std::string_view text) { return GraphReader(text).graph(); }

}  // namespace tenon::ir
