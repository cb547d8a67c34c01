module tenon.ir;
import std;
import tenon.base;
import :hlo_text;

namespace tenon::ir::hlo {
using base::DType;
using base::fail;

namespace {
bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '$'; }
constexpr std::string_view opening = "([{<", closing = ")]}>";
}  // namespace

Cursor::Cursor(std::string_view text) : text_(text), lines_{0} {
  if (text.size() > most_bytes) fail("the text has {} bytes, more than {}", text.size(), most_bytes);
  for (std::size_t i = 0; i < text.size(); ++i)
    if (text[i] == '\n') lines_.push_back(i + 1);
}
std::pair<int, int> Cursor::place(std::size_t at) const {
  auto const line = static_cast<std::size_t>(std::ranges::upper_bound(lines_, at) - lines_.begin());
  return {static_cast<int>(line), static_cast<int>(at - lines_[line - 1]) + 1};
}
void Cursor::refuse(std::size_t at, std::string_view what) const {
  auto const [line, column] = place(std::min(at, text_.size()));
  fail("line {}, column {}: {}", line, column, what);
}
void Cursor::skip_blanks() {
  while (at_ < text_.size()) {
    char const c = text_[at_];
    auto const rest = text_.substr(at_);
    if (c == ' ' || c == '\n' || c == '\t' || c == '\r')
      ++at_;
    else if (rest.starts_with("//"))
      at_ = std::min(text_.find('\n', at_), text_.size());
    else if (rest.starts_with("/*"))
      at_ = rest.find("*/") == std::string_view::npos ? text_.size() : at_ + rest.find("*/") + 2;
    else
      return;
  }
}
char Cursor::peek() {
  skip_blanks();
  return at_ < text_.size() ? text_[at_] : '\0';
}
bool Cursor::accept(std::string_view token) {
  skip_blanks();
  if (!text_.substr(at_).starts_with(token)) return false;
  at_ += token.size();
  return true;
}
void Cursor::expect(std::string_view token) {
  if (!accept(token)) refuse(std::format("expected \"{}\"", token));
}
std::string_view Cursor::peek_word() {
  skip_blanks();
  std::size_t end = at_;
  while (end < text_.size() && (is_word(text_[end]) || (text_[end] == '-' && end > at_ && end + 1 < text_.size() && is_word(text_[end + 1])))) ++end;
  return text_.substr(at_, end - at_);
}
std::string_view Cursor::word() {
  auto const found = peek_word();
  if (found.empty()) refuse("expected a name");
  at_ += found.size();
  return found;
}
bool Cursor::accept_word(std::string_view wish) {
  if (peek_word() != wish) return false;
  at_ += wish.size();
  return true;
}
std::int64_t Cursor::integer() {
  skip_blanks();
  std::int64_t number{};
  auto const [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), number);
  if (error != std::errc{}) refuse(error == std::errc::result_out_of_range ? "the number does not fit 64 bits" : "expected a whole number");
  at_ = static_cast<std::size_t>(end - text_.data());
  return number;
}
std::string Cursor::quoted() {
  expect("\"");
  std::string found;
  while (at_ < text_.size() && text_[at_] != '"') {
    if (text_[at_] == '\\') ++at_;
    if (at_ < text_.size()) found += text_[at_++];
  }
  if (at_ >= text_.size()) refuse("a string has no end");
  ++at_;
  return found;
}
std::string_view Cursor::token() {
  skip_blanks();
  std::size_t const end = std::min(text_.find_first_of(" \n\t\r,()[]{}<>\"", at_), text_.size());
  if (end == at_) refuse("expected a number");
  auto const found = text_.substr(at_, end - at_);
  at_ = end;
  return found;
}
void Cursor::skip_value(char end) {
  std::string open;
  for (;; ++at_) {
    if (open.empty() && end != '\0' && touches(end)) return;
    if (end == '\n' && (touches(' ') || touches('\t') || touches('\r'))) continue;
    char const c = peek();
    if (c == '\0') refuse("the text ends within a value");
    if (open.empty() && c == end) return;
    if (c == '"') {
      quoted();
      --at_;
    } else if (text_.substr(at_).starts_with("->") || text_.substr(at_).starts_with("<=")) {
      ++at_;
    } else if (auto const kind = opening.find(c); kind != std::string_view::npos) {
      open += closing[kind];
    } else if (closing.find(c) != std::string_view::npos) {
      if (open.empty()) return;
      if (open.back() != c) refuse(std::format("expected \"{}\"", open.back()));
      open.pop_back();
    } else if (c == ',' && open.empty()) {
      return;
    }
  }
}
void Cursor::skip_values() {
  do skip_value();
  while (accept(","));
}
char Cursor::peek_behind(std::string_view word) const {
  auto const behind = static_cast<std::size_t>(word.data() - text_.data()) + word.size();
  return behind < text_.size() ? text_[behind] : '\0';
}
void Cursor::skip_line() { at_ = std::min(text_.find('\n', at_), text_.size()); }

std::optional<DType> element_type(std::string_view name) {
  static constexpr std::pair<std::string_view, DType> names[] = {
      {"f64", DType::f64},         {"f32", DType::f32},       {"f16", DType::f16},       {"bf16", DType::bf16},  {"f8E4M3FN", DType::f8e4m3},
      {"f8e4m3fn", DType::f8e4m3}, {"f8E5M2", DType::f8e5m2}, {"f8e5m2", DType::f8e5m2}, {"i64", DType::i64},    {"s64", DType::i64},
      {"i32", DType::i32},         {"s32", DType::i32},       {"i16", DType::i16},       {"s16", DType::i16},    {"i8", DType::i8},
      {"s8", DType::i8},           {"ui8", DType::u8},        {"u8", DType::u8},         {"i1", DType::boolean}, {"pred", DType::boolean}};
  auto const found = std::ranges::find(names, name, [](auto const& row) { return row.first; });
  return found == std::end(names) ? std::nullopt : std::optional(found->second);
}
std::int64_t elements(Type const& type) {
  if (std::cmp_greater(type.sizes.size(), most_rank)) fail("rank {} exceeds {}", type.sizes.size(), most_rank);
  auto const n = base::numel(type.sizes);
  double span = 1;
  for (auto size : type.sizes) span *= static_cast<double>(std::max<std::int64_t>(size, 1));
  if (span > 0x1p40) fail("{} has more than 2^40 elements", to_string(type));
  return n;
}
std::string to_string(Type const& type) { return std::format("{}{}", base::info(type.dtype).name, base::to_string(type.sizes)); }
bool operator==(Type const& a, Type const& b) { return a.dtype == b.dtype && a.sizes == b.sizes; }

namespace {
// The value of a pattern of bits.
double real_of_bits(DType type, std::uint64_t bits) {
  std::array<std::byte, 8> bytes;
  std::memcpy(bytes.data(), &bits, 8);  // little-endian: the lower bytes are the element
  return base::load_real(type, bytes.data());
}
std::uint64_t bits_in(std::string_view digits) {
  std::uint64_t bits{};
  auto const [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), bits, 16);
  if (error != std::errc{} || end != digits.data() + digits.size()) fail("'0x{}' is no pattern of at most 64 bits", digits);
  return bits;
}
double rounded(DType type, double value) {
  std::array<std::byte, 8> bytes{};
  base::store_real(type, bytes.data(), value);
  return base::load_real(type, bytes.data());
}
double real_in(DType type, std::string_view word) {
  if (word.starts_with("0x")) {
    auto const bits = bits_in(word.substr(2));
    if (int const width = 8 * base::bytes_of(type); width < 64 && bits >> width) fail("'{}' has more bits than {}", word, base::info(type).name);
    return real_of_bits(type, bits);
  }
  std::string const text(word);
  char* end = nullptr;
  double const value = std::strtod(text.c_str(), &end);
  if (text.empty() || end != text.c_str() + text.size()) fail("'{}' is no number", word);
  return rounded(type, value);
}
std::int64_t whole_in(DType type, std::string_view word) {
  if (type == DType::boolean && (word == "true" || word == "false")) return word == "true";
  std::int64_t number{};
  auto const [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc{} || end != word.data() + word.size()) fail("'{}' is no whole number of 64 bits", word);
  std::array<std::byte, 8> bytes{};
  base::store_whole(type, bytes.data(), number);
  if (base::load_whole(type, bytes.data()) != number) fail("{} is no {}", number, base::info(type).name);
  return number;
}
}  // namespace

Literal literal_of(Type const& type, std::span<std::string_view const> words) {
  auto const n = elements(type);
  if (std::cmp_not_equal(words.size(), n) && words.size() != 1) fail("{} elements given, {} needed by {}", words.size(), n, to_string(type));
  Literal literal{type, {}, {}};
  for (auto word : words)
    if (base::is_real(type.dtype))
      literal.reals.push_back(real_in(type.dtype, word));
    else
      literal.wholes.push_back(whole_in(type.dtype, word));
  return literal;
}

Literal literal_of_bytes(Type const& type, std::string_view digits) {
  if (!digits.starts_with("0x") && !digits.starts_with("0X")) fail("elements in quotes must start with 0x");
  digits.remove_prefix(2);
  if (digits.size() % 2) fail("the last byte of the elements has one digit");
  auto const n = static_cast<std::size_t>(elements(type)), count = digits.size() / 2, width = static_cast<std::size_t>(base::bytes_of(type.dtype));
  bool const flags = type.dtype == DType::boolean, packed = flags && count != n && count == (n + 7) / 8, splat = !packed && count == width;
  if (!packed && !splat && (count % width || count / width != n)) fail("{} bytes of elements given, {} of {} bytes needed", count, n, width);
  auto const byte_at = [&](std::size_t i) { return bits_in(digits.substr(2 * i, 2)); };
  Literal literal{type, {}, {}};
  for (std::size_t i = 0; i < (splat ? 1 : n); ++i) {
    std::uint64_t bits = 0;
    if (packed)
      bits = byte_at(i / 8) >> (i % 8) & 1;
    else
      for (std::size_t b = 0; b < width; ++b) bits |= byte_at(i * width + b) << (8 * b);
    std::array<std::byte, 8> bytes;
    std::memcpy(bytes.data(), &bits, 8);
    if (base::is_real(type.dtype))
      literal.reals.push_back(base::load_real(type.dtype, bytes.data()));
    else
      literal.wholes.push_back(flags ? bits != 0 : base::load_whole(type.dtype, bytes.data()));
  }
  return literal;
}

}  // namespace tenon::ir::hlo
