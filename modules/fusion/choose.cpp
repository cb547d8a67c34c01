// Choices of tuning, applied.
module tenon.fusion;
import std;
import tenon.base;
import tenon.ir;
import :choose;
import :print_c;

namespace tenon::fusion {
using base::fail;

namespace {
constexpr std::string_view groupings[] = {"fused", "smaller", "one by one"};

// The forms that a choice may name.
constexpr std::pair<std::string_view, Form> forms[] = {{"row", Form::row}, {"split", Form::split}, {"online", Form::online}};
bool keeps(Kernel const& kernel) { return std::ranges::any_of(kernel.steps, &Step::keep); }
}  // namespace

std::span<std::string_view const> group_choices() { return groupings; }

void choose_groups(Choices const& choices, GroupOptions& options) {
  if (auto const found = choices.find("group"); found != choices.end()) {
    auto const which = std::ranges::find(groupings, found->second) - std::begin(groupings);
    if (which == std::ssize(groupings)) fail("choice \"group\": \"{}\" is none of fused, smaller, one by one", found->second);
    if (which == 1) options.max_steps = 12, options.max_buffers = 12;
    if (which == 2) options.fuse = false;
  }
  if (auto const found = choices.find("apart"); found != choices.end()) {
    std::istringstream text(found->second);
    for (int node; text >> node;) options.apart.push_back(node);
    if (!text.eof() || options.apart.empty()) fail("choice \"apart\": \"{}\" is no list of nodes", found->second);
    std::ranges::sort(options.apart);
  }
}

std::vector<std::string_view> variants_of(Kernel const& kernel) {
  std::vector<std::string_view> list;
  for (auto const& [name, form] : forms)
    if (form != kernel.schedule.form && can_walk(kernel, form)) list.push_back(name);
  if (keeps(kernel)) list.emplace_back("recompute");
  return list;
}

bool vary(Kernel& kernel, std::string_view variant) {
  if (variant == "recompute" && keeps(kernel)) {
    for (auto& step : kernel.steps) step.keep = false;
    return true;
  }
  for (auto const& [name, form] : forms)
    if (name == variant && can_walk(kernel, form)) return walk(kernel, form), true;
  return false;
}

void refuse_unused(Choices const& choices, std::set<std::string> const& used) {
  for (auto const& [name, value] : choices)
    if (name != "group" && name != "apart" && !used.contains(name)) fail("choice \"{}\": \"{}\": the plan has nothing of that name to choose", name, value);
}

}  // namespace tenon::fusion
