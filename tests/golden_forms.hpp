#pragma once
// Golden calls as Python spells them, brought into the form that a row's signature takes. Include behind golden.hpp and the imports.
#include "ir_support.hpp"

namespace golden {

using Json = nlohmann::ordered_json;
/// The tensor that a key of the file names.
using ReadTensor = std::function<support::Array(Json const& key)>;

/// A call that no row's signature takes.
struct Unfit : std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// The row of a golden op: of the table, or one of the bodies that only golden files name; null if there is none.
tenon::ir::OpDef const* row_of(std::string_view name);
/// The call ("op", "args", "kwargs") with overloads and keywords that only Python has turned into what a row takes.
Json respelled(Json call, ReadTensor const& read);
/// The call of a row that a golden call is; Unfit if there is none.
support::Call call_of(Json const& golden, ReadTensor const& read);
/// The results of a respelled call as the golden call has them: a tuple for a matrix, none that was not asked for.
std::vector<support::Array> results_of(Json const& golden, std::vector<support::Array> results);

}  // namespace golden
