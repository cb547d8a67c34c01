// The reader of sizes and constraints as Symbols prints them.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir {
using base::fail;

namespace {
constexpr int max_depth = 64;

struct SizeReader {
  Symbols& symbols;
  std::string_view text;
  std::size_t& at;
  bool makes;  ///< unknown symbols are made

  void skip_spaces() {
    while (at < text.size() && (text[at] == ' ' || text[at] == '\n' || text[at] == '\t' || text[at] == '\r')) ++at;
  }
  char peek() {
    skip_spaces();
    return at < text.size() ? text[at] : '\0';
  }
  bool accept(std::string_view token) {
    skip_spaces();
    if (!text.substr(at).starts_with(token)) return false;
    at += token.size();
    return true;
  }
  Dim symbol() {
    std::size_t const start = at;
    while (at < text.size() && std::isalnum(static_cast<unsigned char>(text[at]))) ++at;
    auto const name = text.substr(start, at - start);
    bool const known = std::ranges::find(symbols.names(), name) != symbols.names().end();
    if ((!known && !makes) || name[0] == 'r') {
      at = start;
      fail("unknown size symbol {}", name);
    }
    auto const scalar = symbols.named(name, Scalar(name[0] == 's' ? 2 : 0));
    return {scalar.whole, scalar.node, scalar.owner};
  }
  Dim unit(int depth) {
    if (depth > max_depth) fail("nested too deep");
    if (accept("(")) {
      Dim const inner = sum(depth + 1);
      if (!accept(")")) fail("expected \")\"");
      return inner;
    }
    if (std::isalpha(static_cast<unsigned char>(peek()))) return symbol();
    std::int64_t number = 0;
    auto const [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), number);
    if (error != std::errc{}) fail("expected a whole number or a size symbol");
    at = static_cast<std::size_t>(end - text.data());
    return number;
  }
  Dim product(int depth) {
    for (Dim left = unit(depth);;) {
      if (accept("//"))
        left = symbols.floordiv(left, unit(depth));
      else if (accept("*"))
        left = symbols.mul(left, unit(depth));
      else if (accept("mod "))
        left = symbols.modulo(left, unit(depth));
      else
        return left;
    }
  }
  Dim sum(int depth) {
    for (Dim left = product(depth);;) {
      if (accept("+"))
        left = symbols.add(left, product(depth));
      else if (accept("- "))
        left = symbols.add(left, symbols.mul(product(depth), -1));
      else
        return left;
    }
  }
};
}  // namespace

Dim read_size(Symbols& symbols, std::string_view text, std::size_t& at, bool makes) { return SizeReader{symbols, text, at, makes}.sum(0); }

Dim Symbols::parse(std::string_view text) {
  std::size_t at = 0;
  try {
    Dim const dim = read_size(*this, text, at, true);
    if (at != text.size()) fail("expected the end");
    return dim;
  } catch (base::Error const& error) {
    fail("size \"{}\": column {}: {}", text, at + 1, error.what());
  }
}

}  // namespace tenon::ir
