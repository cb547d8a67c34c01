// Sums that follow a running value, one rule a line. The running maximum with a rescaled sum is Milakov & Gimelshein, "Online normalizer calculation for
// softmax" (2018); sums of squares around a mean are moved as in Chan, Golub & LeVeque, "Updating formulae and a pairwise algorithm for computing sample
// variances" (1979).
module;
#include "prelude.c"  // NOLINT(bugprone-suspicious-include): the functions that generated code calls
module tenon.fusion;
import std;
import tenon.base;
import tenon.ir;
import :online;

namespace tenon::fusion {
namespace ops = ir::ops;
using base::DType;
using ir::Monoid;

namespace {
std::size_t at(int i) { return static_cast<std::size_t>(i); }
bool is_op(Step const& step, ir::OpDef const& op) { return step.kind == Step::Kind::op && step.op == &op; }
bool is_number(Step const& step, double wish) {
  if (step.kind != Step::Kind::number || step.number.node >= 0) return false;
  return (step.number.kind == ir::ScalarKind::real ? step.number.real : static_cast<double>(step.number.whole)) == wish;
}

// What a sum's terms are made of: x and the pivot that is subtracted from it, and values that are to be known before.
struct Terms {
  int x = -1, pivot = -1;
  std::vector<int> others{};
};
// x - pivot.
bool difference(Kernel const& kernel, int step, Terms& terms) {
  auto const& s = kernel.steps[at(step)];
  if (!is_op(s, ops::sub) || s.attrs.nums.empty() || s.attrs.nums[0].node >= 0) return false;
  auto const& scale = s.attrs.nums[0];
  if ((scale.kind == ir::ScalarKind::real ? scale.real : static_cast<double>(scale.whole)) != 1) return false;
  terms.x = s.in[0], terms.pivot = s.in[1];
  auto const alike = [&](int k) { return kernel.steps[at(k)].dtype == s.dtype && kernel.steps[at(k)].kind != Step::Kind::number; };
  return alike(terms.x) && alike(terms.pivot);
}
// Ops that keep a factor of an operand a factor of theirs, and which operand that is. (A `where` is none: of a row of -inf it hides the NaN.)
constexpr std::pair<ir::OpDef const*, int> linear[] = {{&ops::mul, 0}, {&ops::mul, 1}, {&ops::div, 0}, {&ops::neg, 0}};
bool exponential(Kernel const& kernel, int step, Terms& terms) {
  auto const& s = kernel.steps[at(step)];
  if (s.kind != Step::Kind::op) return false;
  if (s.op == &ops::exp) return kernel.steps[at(s.in[0])].dtype == s.dtype && difference(kernel, s.in[0], terms);
  for (auto const& [op, place] : linear) {
    if (op != s.op) continue;
    Terms found;
    auto const in = s.in[at(place)];
    if (kernel.steps[at(in)].dtype != s.dtype || !exponential(kernel, in, found)) continue;
    for (int k = 0; std::cmp_less(k, s.in.size()); ++k)
      if (k != place) found.others.push_back(s.in[at(k)]);
    terms = std::move(found);
    return true;
  }
  return false;
}
bool squares(Kernel const& kernel, int step, Terms& terms) {
  auto const& s = kernel.steps[at(step)];
  bool const twice = is_op(s, ops::mul) && s.in[0] == s.in[1];
  return (twice || is_op(s, ops::square)) && kernel.steps[at(s.in[0])].dtype == s.dtype && difference(kernel, s.in[0], terms);
}

// The lead behind a pivot: itself, itself where it is finite and else 0, or a sum that is divided by the count of columns; -1: none.
int itself(Kernel const&, int pivot) { return pivot; }
int where_finite(Kernel const& kernel, int pivot) {
  auto const& s = kernel.steps[at(pivot)];
  if (!is_op(s, ops::where) || !is_number(kernel.steps[at(s.in[1])], 0)) return -1;
  auto const& infinite = kernel.steps[at(s.in[0])];
  if (!is_op(infinite, ops::eq) || !is_number(kernel.steps[at(infinite.in[1])], std::numeric_limits<double>::infinity())) return -1;
  auto const& size = kernel.steps[at(infinite.in[0])];
  return is_op(size, ops::abs) && size.in[0] == s.in[2] ? s.in[2] : -1;
}
int summed_mean(Kernel const& kernel, int pivot) {
  auto const& s = kernel.steps[at(pivot)];
  if (!is_op(s, ops::div)) return -1;
  auto const& count = kernel.steps[at(s.in[1])];
  if (count.kind != Step::Kind::number) return -1;
  auto const& columns = kernel.axes.back().size;
  bool const all = count.number.kind == ir::ScalarKind::whole ? ir::Dim(count.number.whole, count.number.node, count.number.owner) == columns
                                                              : columns.node < 0 && is_number(count, static_cast<double>(columns.value));
  return all ? s.in[0] : -1;
}

double as_it_is(double sum, double) { return sum; }

struct Rule : Following {
  bool (*terms)(Kernel const& kernel, int step, Terms& terms);
  int (*lead_of)(Kernel const& kernel, int pivot);
};
constexpr Rule rules[] = {
    {{"g e^(x - max x)", Monoid::max, tn_top, tn_exp_moved, tn_nan_at_ends, "tn_top", "tn_exp_moved", "tn_nan_at_ends"}, exponential, itself},
    {{"g e^(x - max x or 0)", Monoid::max, tn_finite_top, tn_exp_moved, as_it_is, "tn_finite_top", "tn_exp_moved", ""}, exponential, where_finite},
    {{"(x - mean x)^2", Monoid::sum, tn_mean, tn_squares_moved, as_it_is, "tn_mean", "tn_squares_moved", ""}, squares, summed_mean},
};
}  // namespace

std::optional<Carried> carried(Kernel const& kernel, int reduction) {
  auto const& steps = kernel.steps;
  auto const plain = [&](Step const& s) { return s.kind == Step::Kind::reduce && s.over == over_columns && (s.dtype == DType::f32 || s.dtype == DType::f64); };
  auto const& sum = steps[at(reduction)];
  if (!plain(sum) || sum.combine != Monoid::sum || kernel.axes.empty() || kernel.axes.back().role != Role::column) return std::nullopt;
  if (std::ranges::count(kernel.axes, Role::column, &Axis::role) != 1 || steps[at(sum.in[0])].dtype != sum.dtype) return std::nullopt;
  for (auto const& rule : rules) {
    Terms terms;
    if (!rule.terms(kernel, sum.in[0], terms)) continue;
    int const k = rule.lead_of(kernel, terms.pivot);
    if (k < 0) continue;
    auto const& lead = steps[at(k)];
    if (!plain(lead) || lead.combine != rule.lead || lead.with >= 0 || lead.in[0] != terms.x || lead.dtype != sum.dtype) continue;
    if (std::ranges::all_of(terms.others, [&](int other) { return steps[at(other)].pass < lead.pass; })) return Carried{&rule, k, terms.pivot};
  }
  return std::nullopt;
}

void carry_along(Kernel& kernel, bool all) {
  for (int k = 0; std::cmp_less(k, kernel.steps.size()); ++k) {
    auto& step = kernel.steps[at(k)];
    step.with = -1, step.pass = 0;
    for (auto const in : step.in) step.pass = std::max(step.pass, kernel.steps[at(in)].pass);
    for (int const in : {step.access.index, step.access.guard})
      if (in >= 0) step.pass = std::max(step.pass, kernel.steps[at(in)].pass);
    if (step.kind != Step::Kind::reduce || !(step.over & over_columns)) continue;
    ++step.pass;
    if (auto const found = all ? carried(kernel, k) : std::nullopt) step.with = found->lead, step.pass = kernel.steps[at(found->lead)].pass;
  }
}

bool carries(Kernel const& kernel) {
  return std::ranges::any_of(kernel.steps, [](Step const& step) { return step.with >= 0; });
}
int walk_of(Kernel const& kernel, Step const& reduction) {
  return reduction.with >= 0 ? kernel.steps[at(reduction.with)].pass - 1 : kernel.steps[at(reduction.in[0])].pass;
}
bool carries_in(Kernel const& kernel, int pass) {
  return std::ranges::any_of(kernel.steps, [&](Step const& step) { return step.with >= 0 && walk_of(kernel, step) == pass; });
}

}  // namespace tenon::fusion
