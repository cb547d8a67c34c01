/// Parts of a package's source that stand in package.c, and calls that use them.
module tenon.fusion:package_text;
import std;
import tenon.base;
import tenon.ir;
import :run;

namespace tenon::fusion {

/// The part of that name; with a dtype, as it is written for that one.
std::string package_part(std::string_view name);
std::string package_part(std::string_view name, base::DType dtype);

/// A text with words replaced, one after another.
std::string filled(std::string text, std::initializer_list<std::pair<std::string_view, std::string_view>> words);

/// A call as statements of C.
struct CallText {
  std::vector<std::pair<std::string_view, base::DType>> parts{};  ///< what must stand before, with a dtype each
  std::vector<std::string_view> plain_parts{};                    ///< and without one
  std::vector<std::string> lines{};
  std::int64_t work = 0;  ///< bytes that they use of "work"
};
/// `in` and `out` are pointers in C to where the operands begin; Error naming op and place if there is no C for it.
CallText call_text(ir::Node const& node, Prepared const& call, std::span<std::string const> in, std::span<std::string const> out);
/// A string literal of C.
std::string literal(std::string_view text);
/// "static const tn_i64 NAME[] = {1, 2};", of one 0 if there are none.
std::string list_text(std::string_view name, std::span<std::int64_t const> numbers);
/// A statement that copies strided elements (strides in elements) to row-major ones.
std::string dense_text(std::string_view dense, std::string_view strided, ir::Strided const& x);

}  // namespace tenon::fusion
