/// What the readers of StableHLO and HLO share: a place in a text, names of dtypes, and elements of constants.
module tenon.ir:hlo_text;
import std;
import tenon.base;
import :hlo;

namespace tenon::ir::hlo {

/// What a text may hold at most: bytes, regions or brackets in one another, dims of a tensor, operations after inlining and unrolling.
inline constexpr std::size_t most_bytes = std::size_t{1} << 28;
inline constexpr int most_depth = 64, most_rank = 12, most_operations = 100'000;

/// A place in a text and what can be read there; every fault is an Error with line and column.
class Cursor {
 public:
  explicit Cursor(std::string_view text);
  std::size_t at() const { return at_; }
  void back(std::size_t at) { at_ = at; }
  [[noreturn]] void refuse(std::string_view what) const { refuse(at_, what); }
  [[noreturn]] void refuse(std::size_t at, std::string_view what) const;
  /// Line and column of a place, from 1.
  std::pair<int, int> place(std::size_t at) const;
  /// Behind blanks and comments.
  void skip_blanks();
  char peek();
  bool done() { return peek() == '\0'; }
  bool accept(std::string_view token);
  void expect(std::string_view token);
  /// A whole word: letters, digits, '_', '.', '$' and '-' between letters.
  std::string_view word();
  std::string_view peek_word();
  bool accept_word(std::string_view wish);
  std::int64_t integer();
  std::string quoted();
  /// The text of a number, word or hexadecimal pattern: what stands up to a blank, comma or bracket.
  std::string_view token();
  /// Past one value of any form: up to a comma or closing bracket that is not its own, or to `end`.
  void skip_value(char end = '\0');
  /// Past values and the commas between them.
  void skip_values();
  /// Whether the very next character is `c`; the one behind a word that is next, blanks passed over.
  bool touches(char c) const { return at_ < text_.size() && text_[at_] == c; }
  char peek_behind(std::string_view word) const;
  /// Past the end of the line.
  void skip_line();

 private:
  std::string_view text_;
  std::size_t at_ = 0;
  std::vector<std::size_t> lines_;  // where each starts
};

/// The dtype of that name in MLIR ("i1", "f8E4M3FN") or HLO ("pred", "s32"); nothing if we have no such dtype.
std::optional<base::DType> element_type(std::string_view name);
/// Elements from their texts (one: for all); Error without a place.
Literal literal_of(Type const& type, std::span<std::string_view const> words);
/// Elements from the hexadecimal text of their bytes, little-endian.
Literal literal_of_bytes(Type const& type, std::string_view digits);
/// The number of elements; Error if the sizes are out of all proportion.
std::int64_t elements(Type const& type);
std::string to_string(Type const& type);
bool operator==(Type const& a, Type const& b);
/// Whether an item is in a list.
template <class List, class Item>
bool contains(List const& list, Item const& item) {
  return std::ranges::find(list, item) != std::ranges::end(list);
}

}  // namespace tenon::ir::hlo
