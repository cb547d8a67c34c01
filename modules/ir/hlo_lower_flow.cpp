// Calls, loops that count, branches, and what only passes values on.
module tenon.ir;
import std;
import tenon.base;
import :hlo_lower;

namespace tenon::ir::hlo {

namespace {
std::vector<Item> arguments(Step const& step, std::size_t from = 0) {
  std::vector<Item> items;
  for (std::size_t k = from; k < step.in.size(); ++k) items.push_back(*step.in[k]);
  return items;
}
void call_function(Step& step) {
  auto callee = step.text("callee", step.text("decomposition"));
  if (callee.empty()) step.refuse("the function that is called is not named");
  step.out = step.to.call(step, callee);
}
// The condition is evaluated on known numbers: where it can't be, the loop does not count.
void while_loop(Step& step) {
  auto const &condition = step.region(0, step.in.size()), &body = step.region(1, step.in.size());
  auto carried = arguments(step);
  for (;;) {
    auto const go = step.to.walk(condition, carried);
    if (go.size() != 1 || go[0].type.dtype != base::DType::boolean || !go[0].type.sizes.empty()) step.refuse("the condition must give one boolean");
    if (!go[0].splat) step.refuse("the loop does not count up to a constant: only loops of a known number of rounds are supported");
    if (go[0].splat->whole == 0) break;
    carried = step.to.walk(body, carried);
    if (carried.size() != step.in.size()) step.refuse(std::format("the body gives {} values, {} are carried", carried.size(), step.in.size()));
  }
  step.out = std::move(carried);
}
// Of a known branch its values; else all branches are computed, which have no effects, and one is chosen element by element.
void branch(Step& step, std::span<Function const> branches, std::optional<std::int64_t> known) {
  if (known) {
    step.out = step.to.walk(branches[static_cast<std::size_t>(*known)], {});
    return;
  }
  std::vector<std::vector<Item>> made;
  for (auto const& region : branches) made.push_back(step.to.walk(region, {}));
  auto results = made.back();
  Var const index = step.x(0);
  bool const flag = step.type(0).dtype == base::DType::boolean;
  for (std::size_t k = made.size() - 1; k-- > 0;) {
    if (made[k].size() != results.size()) step.refuse(std::format("branches of {} and {} results", made[k].size(), results.size()));
    Var const is = flag ? index : call(ops::eq, {index, static_cast<std::int64_t>(k)});
    for (std::size_t r = 0; r < results.size(); ++r) {
      if (!(made[k][r].type == results[r].type)) step.refuse(std::format("branches give {} and {}", to_string(made[k][r].type), to_string(results[r].type)));
      results[r] = {results[r].type, choose(is, step.to.tensor(made[k][r]), step.to.tensor(results[r])), {}};
    }
  }
  step.out = std::move(results);
}
void case_of(Step& step) {
  auto const& branches = step.op.regions;
  if (branches.empty() || step.count() != 1 || !step.type(0).sizes.empty() || base::is_real(step.type(0).dtype))
    step.refuse("needs a whole scalar and a branch");
  auto known = step.known(0);
  auto const last = static_cast<std::int64_t>(branches.size()) - 1;
  if (known && (*known < 0 || *known > last)) known = last;
  branch(step, branches, known);
}
void if_else(Step& step) {
  if (step.op.regions.size() != 2 || step.count() != 1 || !step.type(0).sizes.empty() || step.type(0).dtype != base::DType::boolean)
    step.refuse("needs a boolean scalar and two branches");
  auto const known = step.known(0);
  branch(step, step.op.regions, known ? std::optional<std::int64_t>(*known ? 0 : 1) : std::nullopt);
}
void map(Step& step) {
  auto const& region = step.region(0, step.in.size());
  std::vector<Var> items;
  for (int k = 0; k < step.count(); ++k) items.push_back(step.x(k));
  for (auto const& x : step.to.apply(region, items)) {
    auto const sizes = values(x.meta().sizes);
    Dims wide;
    for (auto size : step.result().sizes) wide.push_back(size);
    step.give(sizes == step.result().sizes ? x : call(ops::expand, {x}, Attrs{}.with(wide)));
  }
}
void custom_call(Step& step) {  // marks of how a program is spread over devices change no value
  static constexpr std::string_view marks[] = {"Sharding",
                                               "SPMDFullToShardShape",
                                               "SPMDShardToFullShape",
                                               "annotate_device_placement",
                                               "xla.sdy.FuncResultSharding",
                                               "LayoutConstraint",
                                               "MoveToDevice",
                                               "MoveToHost"};
  auto const target = step.text("call_target_name");
  if (!contains(marks, target)) step.refuse(std::format("the target {} is not supported", target));
  step.out = arguments(step);
}
void pass(Step& step) { step.out = arguments(step); }

constexpr Rule rules[] = {
    {"call", call_function, {}, true}, {"composite", call_function, {}, true}, {"while", while_loop}, {"case", case_of}, {"if", if_else}, {"map", map},
    {"custom_call", custom_call},      {"sdy.sharding_constraint", pass}};
}  // namespace

std::span<Rule const> flow_rules() { return rules; }

}  // namespace tenon::ir::hlo
