#pragma once
// The golden op cases and programs, for any backend. Include behind `import std; import tenon.base; import tenon.ir;`.

namespace golden {

/// Evaluates a graph (composite ops and all) on its inputs.
using Run = std::function<tenon::ir::Evaluated(tenon::ir::Graph const&, std::span<tenon::ir::Strided const>)>;

/// Checks each case of FILE.json whose op the table knows: outputs, and gradients where there are some, in f32 and in f64.
///
/// Arguments bind to the row's signature by position or by PyTorch's keyword. A call that the signature can't take (another parameter, a tensor
/// where a number stands) is skipped, and each skipped op or call is printed with its reason. Failures are doctest's.
void check_ops(std::string const& file, Run const& run);

/// Checks each program of FILE.json that has a text of that key ("text": StableHLO, "hlo_text": HLO) against XLA's results; `name` is the tally's.
void check_programs(std::string const& name, std::string const& file, std::string const& key, Run const& run);

}  // namespace golden
