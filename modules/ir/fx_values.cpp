// Places, names and values of FX's two texts; every fault names line and column.
module tenon.ir;
import std;
import tenon.base;
import :fx;

namespace tenon::ir {
using ArgKind = FxArg::Kind;

namespace {
constexpr std::size_t most_text = std::size_t{1} << 26;
constexpr int most_depth = 64;
constexpr std::size_t most_keywords = 256;

void append(std::string& to, std::uint32_t number, bool utf8) {
  if (!utf8 || number < 0x80) {
    to += static_cast<char>(number);
  } else if (number < 0x800) {
    to += static_cast<char>(0xc0 | number >> 6), to += static_cast<char>(0x80 | (number & 0x3f));
  } else {
    to += static_cast<char>(0xe0 | number >> 12), to += static_cast<char>(0x80 | (number >> 6 & 0x3f)), to += static_cast<char>(0x80 | (number & 0x3f));
  }
}
}  // namespace

bool fx::is_letter(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

fx::Reader::Reader(std::string_view text) : text_(text) {
  if (text.size() > most_text) base::fail("fx text: {} bytes are more than {}", text.size(), most_text);
}
// "Linear(in_features=3, bias=True)", or the name alone.
std::pair<std::string, std::vector<std::pair<std::string, FxArg>>> fx::Reader::call() {
  FxNode node;
  node.target = dotted();
  if (peek() == '(') arguments(node);
  skip_lines();
  if (at_ != text_.size()) refuse("expected the end");
  std::vector<std::pair<std::string, FxArg>> given;
  for (std::size_t k = 0; k < node.args.size(); ++k) given.emplace_back(std::to_string(k), std::move(node.args[k]));
  std::ranges::move(node.kwargs, std::back_inserter(given));
  return {node.target, std::move(given)};
}

void fx::Reader::refuse_at(std::size_t place, std::string_view what) {
  at_ = place;
  refuse(what);
}
void fx::Reader::refuse(std::string_view what) const {
  auto const before = text_.substr(0, std::min(at_, text_.size()));
  auto const line = std::ranges::count(before, '\n') + 1;
  auto const newline = before.rfind('\n');
  base::fail("fx text: line {}, column {}: {}", line, before.size() - (newline == std::string_view::npos ? 0 : newline + 1) + 1, what);
}
bool fx::Reader::starts_word(std::string_view word) {
  skip_lines();
  auto const text = text_.substr(at_);
  return text.starts_with(word) && (text.size() == word.size() || !is_letter(text[word.size()]));
}
// Spaces; inside brackets lines end anywhere.
void fx::Reader::skip_spaces() {
  while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\r' || (brackets_ > 0 && text_[at_] == '\n'))) ++at_;
}
void fx::Reader::skip_lines() {
  while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) ++at_;
}
void fx::Reader::skip_line() { at_ = std::min(text_.find('\n', at_), text_.size()); }
char fx::Reader::peek() {
  skip_spaces();
  return at_ < text_.size() ? text_[at_] : '\0';
}
bool fx::Reader::accept(std::string_view token) {
  skip_spaces();
  if (!text_.substr(at_).starts_with(token)) return false;
  at_ += token.size();
  return true;
}
void fx::Reader::expect(std::string_view token) {
  if (!accept(token)) refuse(std::format("expected \"{}\"", token));
}
std::string fx::Reader::name() {
  skip_spaces();
  std::size_t const start = at_;
  while (at_ < text_.size() && is_letter(text_[at_])) ++at_;
  if (at_ == start || std::isdigit(static_cast<unsigned char>(text_[start]))) refuse_at(start, "expected a name");
  return std::string(text_.substr(start, at_ - start));
}
std::string fx::Reader::dotted() {
  auto text = name();
  while (at_ + 1 < text_.size() && text_[at_] == '.' && is_letter(text_[at_ + 1])) ++at_, text += "." + name();
  return text;
}
std::string fx::Reader::line_until(std::string_view end) {
  skip_spaces();
  auto const stop = text_.find(end, at_);
  if (stop == std::string_view::npos || text_.substr(at_, stop - at_).find('\n') != std::string_view::npos)
    refuse(std::format("expected \"{}\" in this line", end));
  std::string const found(text_.substr(at_, stop - at_));
  at_ = stop + end.size();
  return found;
}

FxArg fx::Reader::reference(std::string const& name, std::size_t start) {
  auto const found = known_.find(name);
  if (found == known_.end()) refuse_at(start, name + (names_.contains(name) ? " was freed" : " is not made yet"));
  return FxArg::of_node(found->second);
}

std::string fx::Reader::string() {
  char const quote = text_[at_++];
  std::string result;
  for (;; ++at_) {
    if (at_ >= text_.size() || text_[at_] == '\n') refuse("expected a closing quote");
    char const c = text_[at_];
    if (c == quote) break;
    if (c != '\\') {
      result += c;
      continue;
    }
    if (++at_ >= text_.size()) refuse("expected a closing quote");
    constexpr std::string_view escapes = "\\'\"ntrabfv0", means{"\\'\"\n\t\r\a\b\f\v\0", 11};
    if (auto const known = escapes.find(text_[at_]); known != std::string_view::npos) {
      result += means[known];
    } else if (auto const digits = std::size_t(text_[at_] == 'x' ? 2 : text_[at_] == 'u' ? 4 : 0); digits > 0) {
      std::uint32_t number = 0;
      auto const hex = text_.substr(at_ + 1, digits);
      if (std::from_chars(hex.data(), hex.data() + hex.size(), number, 16).ptr != hex.data() + digits || hex.size() != digits) refuse("a bad escape");
      append(result, number, digits == 4);
      at_ += digits;
    } else {
      refuse("a bad escape");
    }
  }
  ++at_;
  return result;
}
// A number's or a constant's text; nothing if it is neither.
std::optional<FxArg> fx::Reader::atom(std::string_view text) const {
  constexpr double infinity = std::numeric_limits<double>::infinity(), none = std::numeric_limits<double>::quiet_NaN();
  static std::pair<std::string_view, FxArg> const constants[] = {{"None", {}},
                                                                 {"True", FxArg::of(true)},
                                                                 {"False", FxArg::of(false)},
                                                                 {"inf", FxArg::of(infinity)},
                                                                 {"-inf", FxArg::of(-infinity)},
                                                                 {"nan", FxArg::of(none)},
                                                                 {"torch.inf", FxArg::of(infinity)},
                                                                 {"-torch.inf", FxArg::of(-infinity)},
                                                                 {"torch.nan", FxArg::of(none)},
                                                                 {"math.inf", FxArg::of(infinity)},
                                                                 {"-math.inf", FxArg::of(-infinity)},
                                                                 {"math.nan", FxArg::of(none)},
                                                                 {"Ellipsis", FxArg::of_word("Ellipsis")},
                                                                 {"...", FxArg::of_word("Ellipsis")}};
  for (auto const& [word, value] : constants)
    if (text == word) return value;
  if (text.starts_with("torch.") && text.find('(') == std::string_view::npos) return FxArg::of_word(text);
  auto const digits = text.substr(text.starts_with('-') ? 1 : 0);
  if (digits.empty() || !(std::isdigit(static_cast<unsigned char>(digits[0])) || digits[0] == '.')) return std::nullopt;
  if (std::ranges::all_of(digits, [](char c) { return std::isdigit(static_cast<unsigned char>(c)); })) {
    std::int64_t number = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), number).ec != std::errc{}) refuse(std::format("{} does not fit 64 bits", text));
    return FxArg::of(number);
  }
  if (!std::ranges::all_of(digits,
                           [](char c) { return std::isdigit(static_cast<unsigned char>(c)) || std::string_view(".eE+-").find(c) != std::string_view::npos; }))
    return std::nullopt;
  std::string const copy(text);
  char* stop = nullptr;
  double const number = std::strtod(copy.c_str(), &stop);
  return stop == copy.c_str() + copy.size() ? std::optional(FxArg::of(number)) : std::nullopt;
}
std::vector<FxArg> fx::Reader::items(std::string_view close, int depth) {
  std::vector<FxArg> list;
  ++brackets_;
  bool comma = true;
  for (; !accept(close); comma = accept(",")) {
    if (!comma) refuse(std::format("expected \",\" or \"{}\"", close));
    list.push_back(value(depth + 1));
  }
  single_ = list.size() == 1 && !comma;
  --brackets_;
  return list;
}
FxArg fx::Reader::value(int depth) {
  if (depth > most_depth) refuse("nested too deep");
  char const c = peek();
  if (c == '[') return ++at_, FxArg::of_items(ArgKind::list, items("]", depth));
  if (c == '(') {
    ++at_;
    auto list = items(")", depth);
    if (single_) return std::move(list[0]);  // parentheses around one value
    return FxArg::of_items(ArgKind::tuple, std::move(list));
  }
  if (c == '\'' || c == '"') return FxArg::of_text(string());
  if (accept("slice(")) {
    auto list = items(")", depth);
    if (list.empty() || list.size() > 3) refuse("a slice has 1 to 3 values");
    if (list.size() == 1) list.insert(list.begin(), FxArg{});
    list.resize(3);
    return FxArg::of_items(ArgKind::slice, std::move(list));
  }
  if (accept("torch.device(") || accept("device(")) return device_call();
  return printed_ ? bare() : word();
}
FxArg fx::Reader::device_call() {
  std::string type, index;
  ++brackets_;
  do {
    if (accept("type") || accept("index")) {
      bool const is_type = text_.substr(0, at_).ends_with("type");
      expect("=");
      if (is_type) {
        if (peek() != '\'' && peek() != '"') refuse("expected a string");
        type = string();
      } else {
        auto const number = value();
        if (number.kind != ArgKind::whole) refuse("expected an index");
        index = std::to_string(number.whole);
      }
    } else if (peek() == '\'' || peek() == '"') {
      type = string();
    } else {
      refuse("expected a device");
    }
  } while (accept(","));
  expect(")");
  --brackets_;
  return device_word(type + (index.empty() ? "" : ":" + index));
}
FxArg fx::Reader::device_word(std::string const& text) const {
  auto const colon = text.find(':');
  auto const type = text.substr(0, colon);
  if (!std::ranges::all_of(type, is_letter)) refuse(std::format("no device is called {}", text));
  return FxArg::of_word(colon == std::string::npos ? std::format("device(type='{}')", type)
                                                   : std::format("device(type='{}', index={})", type, text.substr(colon + 1)));
}
FxArg fx::Reader::bare() {  // of a printed graph: a node, a number, or a string without quotes up to what must follow
  std::size_t const start = at_;
  if (accept("%")) return reference(name(), start);
  int depth = 0;
  for (; at_ < text_.size() && text_[at_] != '\n'; ++at_) {
    char const c = text_[at_];
    bool const in_text = c == ',' && at_ + 1 < text_.size() && std::string_view(" )]}\n").find(text_[at_ + 1]) == std::string_view::npos;  // "ij,jk->ik"
    if (depth == 0 && !in_text && (c == ',' || c == ')' || c == ']' || c == '}')) break;
    depth += c == '(' || c == '[' || c == '{' ? 1 : c == ')' || c == ']' || c == '}' ? -1 : 0;
  }
  auto text = text_.substr(start, at_ - start);
  while (text.ends_with(' ')) text.remove_suffix(1);
  if (text.empty()) refuse("expected a value");
  if (auto const known = atom(text)) return *known;
  return FxArg::of_text(text);
}
FxArg fx::Reader::word() {  // of code: a name of this function, a number or a constant
  std::size_t const start = at_;
  while (at_ < text_.size() && (is_letter(text_[at_]) || text_[at_] == '.' ||
                                ((text_[at_] == '-' || text_[at_] == '+') &&
                                 (at_ == start || ((text_[at_ - 1] | 32) == 'e' && !std::isalpha(static_cast<unsigned char>(text_[start])))))))
    ++at_;
  std::string const text(text_.substr(start, at_ - start));
  if (text == "float" && accept("(")) {
    auto const inner = peek() == '\'' || peek() == '"' ? atom(string()) : std::nullopt;
    if (!inner || inner->kind != ArgKind::real) refuse("expected 'inf' or 'nan'");
    expect(")");
    return *inner;
  }
  if (known_.contains(text)) return reference(text, start);
  if (auto const known = atom(text)) return *known;
  at_ = start;
  if (text.empty()) refuse("expected a value");
  return reference(text, start);
}
// "(a, b, key = c)" behind a call; the keyword `device` makes a device of a string.
void fx::Reader::arguments(FxNode& node) {
  expect("(");
  ++brackets_;
  for (bool comma = true; !accept(")"); comma = accept(",")) {
    if (!comma) refuse("expected \",\" or \")\"");
    std::size_t const start = (skip_spaces(), at_);
    if (at_ < text_.size() && (std::isalpha(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_')) {
      auto key = name();
      skip_spaces();
      if (text_.substr(at_).starts_with("=") && !text_.substr(at_).starts_with("==")) {
        ++at_;
        keyword(node, std::move(key), start);
        continue;
      }
      at_ = start;
    }
    if (!node.kwargs.empty()) refuse("an argument stands behind a keyword");
    node.args.push_back(value());
  }
  --brackets_;
}
void fx::Reader::keyword(FxNode& node, std::string key, std::size_t start) {
  if (node.kwargs.size() >= most_keywords) refuse(std::format("more than {} keywords", most_keywords));
  for (auto const& [other, arg] : node.kwargs)
    if (other == key) refuse_at(start, std::format("{} is given twice", key));
  auto given = value();
  if (key == "device" && given.kind == ArgKind::text) given = device_word(given.text);
  node.kwargs.emplace_back(std::move(key), std::move(given));
}

}  // namespace tenon::ir
