/// Reductions that are carried along with another one of their row: which they are, and how what was summed follows it.
module tenon.fusion:online;
import std;
import tenon.base;
import tenon.ir;
import :loop;

namespace tenon::fusion {

/// How a sum over columns follows another reduction of its row, the lead. Its terms read one value of the row, the pivot, which the lead's value makes. In a
/// walk by blocks of columns lead and pivot are what the columns so far make them; where the pivot moves, what was summed around the old one moves as well.
/// All of it is in double, whatever the dtype, and by functions of the prelude, whose names stand beside them.
struct Following {
  std::string_view text;
  ir::Monoid lead;
  double (*pivot)(double lead, double count);
  /// A sum over `count` columns around `from`, around `to`; `lead` is theirs.
  double (*moved)(double sum, double lead, double count, double from, double to);
  /// What the sum is when the row is done, by the whole row's lead.
  double (*finished)(double sum, double lead);
  std::string_view pivot_name, moved_name, finished_name;
};
/// A reduction that can be carried along: by which rule, with which lead, and its pivot.
struct Carried {
  Following const* rule = nullptr;
  int lead = -1, pivot = -1;
};
/// Nothing if no rule fits.
std::optional<Carried> carried(Kernel const& kernel, int reduction);
/// Carries along all reductions that can be (or none), and places steps in their passes.
void carry_along(Kernel& kernel, bool all);
/// Whether any is.
bool carries(Kernel const& kernel);
/// The pass in whose walk over columns a reduction meets its operand.
int walk_of(Kernel const& kernel, Step const& reduction);
/// Whether reductions are carried along in a pass.
bool carries_in(Kernel const& kernel, int pass);

}  // namespace tenon::fusion
