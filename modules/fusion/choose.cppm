/// What tuning may choose, and how a plan applies it. A choice is a name and a value:
///   "group": "fused", "smaller" or "one by one"       how far nodes are fused
///   "apart": "3 17"                                   nodes of the primitive graph that join no group
///   "kernel L": "row", "split", "online", "recompute" how the kernel of launch L is walked
///   "gemm L": "blocks", "eigen", "openblas", "onednn" who computes the product of launch L
///   "rows L": "joined" or "apart"                     whether the kernel behind the product of launch L runs on its rows
module tenon.fusion:choose;
import std;
import :loop;
import :plan;
import :program;

namespace tenon::fusion {

/// The values of "group".
std::span<std::string_view const> group_choices();
/// Applies "group" and "apart"; Error naming one that is malformed.
void choose_groups(Choices const& choices, GroupOptions& options);
/// The variants that a scheduled kernel has besides what `schedule` made of it.
std::vector<std::string_view> variants_of(Kernel const& kernel);
/// Makes a scheduled kernel that variant; false if it has none of that name.
bool vary(Kernel& kernel, std::string_view variant);
/// Error naming the first choice, but for those two, that is not among the names.
void refuse_unused(Choices const& choices, std::set<std::string> const& used);

}  // namespace tenon::fusion
