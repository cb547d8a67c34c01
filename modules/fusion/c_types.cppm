/// How values are spelled in C, and how reductions combine them.
module tenon.fusion:c_types;
import std;
import tenon.base;
import tenon.ir;
import :loop;

namespace tenon::fusion {
using base::DType;
using ir::Monoid;

// How a dtype lies in memory and in a variable.
struct Spelling {
  std::string_view memory, value, from, to;  // `from` and `to` convert between the two
};
inline constexpr Spelling spellings[base::dtype_count] = {
    {"double", "double", "", ""},
    {"float", "float", "", ""},
    {"unsigned short", "float", "tn_from_f16", "tn_to_f16"},
    {"unsigned short", "float", "tn_from_bf16", "tn_to_bf16"},
    {"unsigned char", "float", "tn_from_f8e4m3", "tn_to_f8e4m3"},
    {"unsigned char", "float", "tn_from_f8e5m2", "tn_to_f8e5m2"},
    {"tn_i64", "tn_i64", "", "(tn_i64)"},
    {"int", "int", "", "(int)"},
    {"short", "short", "", "(short)"},
    {"signed char", "signed char", "", "(signed char)"},
    {"unsigned char", "unsigned char", "", "(unsigned char)"},
    {"unsigned char", "int", "0 != ", "0 != "},
};
inline Spelling const& spelling(DType type) { return spellings[static_cast<std::size_t>(type)]; }

// How a monoid combines partial values of one class of types: the accumulator, its start, what enters and what leaves.
struct Combine {
  Monoid monoid;
  char type;  // f float, d double, i whole
  std::string_view holder, start, entry, exit;
  bool adds;
};
inline constexpr Combine combines[] = {
    {Monoid::sum, 'f', "float", "0", "", "", true},
    {Monoid::sum, 'd', "double", "0", "", "", true},
    {Monoid::sum, 'i', "tn_i64", "0", "(tn_i64)", "", true},
    {Monoid::prod, 'f', "float", "1", "", "", true},
    {Monoid::prod, 'd', "double", "1", "", "", true},
    {Monoid::prod, 'i', "tn_i64", "1", "(tn_i64)", "", true},
    {Monoid::max, 'f', "int", "(-2147483647 - 1)", "tn_key", "tn_unkey", false},
    {Monoid::max, 'd', "tn_i64", "(-9223372036854775807LL - 1)", "tn_key_d", "tn_unkey_d", false},
    {Monoid::max, 'i', "tn_i64", "(-9223372036854775807LL - 1)", "(tn_i64)", "", false},
    {Monoid::min, 'f', "int", "2147483647", "tn_key_min", "tn_unkey", false},
    {Monoid::min, 'd', "tn_i64", "9223372036854775807LL", "tn_key_min_d", "tn_unkey_d", false},
    {Monoid::min, 'i', "tn_i64", "9223372036854775807LL", "(tn_i64)", "", false},
};
inline Combine const& combine_of(Step const& step) {
  char const type = step.dtype == DType::f64 ? 'd' : base::is_real(step.dtype) ? 'f' : 'i';
  for (auto const& combine : combines)
    if (combine.monoid == step.combine && combine.type == type) return combine;
  base::ensure(false, "no such reduction");
  return combines[0];
}

}  // namespace tenon::fusion
