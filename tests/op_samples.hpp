#pragma once
// Sample calls of every op, from which tests generate their cases. Include behind `import std; import tenon.base; import tenon.ir;`.
#include "ir_support.hpp"

namespace support {

/// The sample calls of an op, with operands drawn anew from `random`; empty if the table has none.
std::vector<Call> samples(tenon::ir::OpDef const& op, std::mt19937& random);
/// Those whose results' sizes depend on elements: no graph holds them.
std::vector<Call> measured_samples(tenon::ir::OpDef const& op, std::mt19937& random);
/// The call that a line of the table describes: "add(f64[2, 3], f64[3]{0.5..2}, alpha=2.0)". Behind a type stands the range of its elements.
Call sample(std::string_view line, std::mt19937& random);

/// The part of the table for splits, layouts, diagonals, indices, sorts and scans.
std::span<std::string_view const> view_lines();
/// The part for convolutions, pools, resizing, bags and collectives.
std::span<std::string_view const> window_lines();
/// For einsum, norms, several indices and rows that spell another one otherwise; and calls whose results' sizes depend on elements.
std::span<std::string_view const> form_lines(), measured_lines();

}  // namespace support
