// Pattern rewriting: a pattern is a small graph whose inputs are wildcards; a match is found from its last output backwards.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir {
using base::fail;

bool commutative(OpDef const& op, Attrs const& attrs) {
  static std::set<OpDef const*> const table = [] {
    std::set<OpDef const*> rows;
    for (auto const name :
         {"add", "mul", "maximum", "minimum", "eq", "ne", "logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "hypot"})
      rows.insert(find_op(name));
    return rows;
  }();
  if (!table.contains(&op)) return false;
  return std::ranges::all_of(attrs.nums, [](Scalar const& s) { return s.node < 0 && same_value(s, Scalar(1.0)); });  // add's alpha
}

namespace {
constexpr std::size_t candidates = 256;  // users of one value that a further output of a pattern is looked for among

std::string wildcard(Graph const& pattern, std::size_t k) {
  auto const& name = pattern.values[static_cast<std::size_t>(pattern.inputs[k])].name;
  return name.empty() ? std::format("%{}", pattern.inputs[k]) : name;
}
bool equal_attrs(Node const& a, Node const& b, std::span<Carried const> carried) {
  AttrReader x{a.attrs}, y{b.attrs};
  for (auto const& parameter : signature(*a.op).parameters) {
    if (parameter.type == Parameter::Type::tensor || parameter.type == Parameter::Type::tensors) continue;
    Attrs left, right;
    copy_attribute(parameter, x, left), copy_attribute(parameter, y, right);
    bool const any =
        std::ranges::any_of(carried, [&](Carried const& c) { return c.from >= a.first && c.from < a.first + a.results && c.attribute == parameter.name; });
    if (any) continue;
    bool const nums = std::ranges::equal(left.nums, right.nums, [](Scalar const& p, Scalar const& q) { return p.node < 0 && q.node < 0 && same_value(p, q); });
    bool const ints = std::ranges::equal(left.ints, right.ints, [](Dim p, Dim q) { return p.node < 0 && q.node < 0 && p.value == q.value; });
    if (!nums || !ints || left.text != right.text) return false;
  }
  return true;
}

void check_rule(Rewrite const& rule) {
  auto const& pattern = rule.pattern;
  if (pattern.nodes.empty()) fail("rewrite: the pattern {} has no calls", name_text(pattern.name));
  need_no_writes(pattern, "rewrite"), need_no_writes(rule.replacement, "rewrite");
  std::vector<char> used(pattern.values.size(), 0);
  for (int output : pattern.outputs) {
    if (pattern.values[static_cast<std::size_t>(output)].node < 0) fail("rewrite: output %{} of the pattern is a wildcard", output);
    used[static_cast<std::size_t>(output)] = 1;
  }
  for (auto const& node : pattern.nodes | std::views::reverse) {
    bool live = false;
    for (int k = 0; k < node.results; ++k) live |= used[static_cast<std::size_t>(node.first + k)] != 0;
    if (!live) fail("rewrite: %{} = {} of the pattern leads to no output", node.first, node.op->name);
    for (auto const& input : node.inputs)
      if (input.value >= 0) used[static_cast<std::size_t>(input.value)] = 1;
  }
  std::set<std::string> names;
  for (std::size_t k = 0; k < pattern.inputs.size(); ++k) {
    auto const name = wildcard(pattern, k);
    if (!used[static_cast<std::size_t>(pattern.inputs[k])]) fail("rewrite: input {} of the pattern is not used", name);
    if (!names.insert(name).second) fail("rewrite: two inputs of the pattern are named {}", name);
  }
  for (std::size_t k = 0; k < rule.replacement.inputs.size(); ++k)
    if (auto const name = wildcard(rule.replacement, k); !names.contains(name)) fail("rewrite: the pattern has no input {} for the replacement", name);
  if (pattern.outputs.size() != rule.replacement.outputs.size())
    fail("rewrite: the pattern has {} outputs, the replacement {}", pattern.outputs.size(), rule.replacement.outputs.size());
  auto const node_of = [](Graph const& graph, int value) {
    return value >= 0 && std::cmp_less(value, graph.values.size()) ? graph.values[static_cast<std::size_t>(value)].node : -1;
  };
  auto const check = [&](Graph const& graph, int value, std::string_view attribute) {
    int const n = node_of(graph, value);
    if (n < 0) fail("rewrite: %{} of {} is no call", value, name_text(graph.name));
    auto const& op = *graph.nodes[static_cast<std::size_t>(n)].op;
    if (std::ranges::find(signature(op).parameters, attribute, &Parameter::name) == signature(op).parameters.end())
      fail("rewrite: {} has no attribute {}", op.name, attribute);
  };
  for (auto const& carried : rule.carried) {
    check(pattern, carried.from, carried.attribute);
    if (carried.to >= 0) check(rule.replacement, carried.to, carried.as.empty() ? carried.attribute : carried.as);
  }
}

// Finds a match whose last output is made by one node, trying both orders of commutative operands.
class Matcher {
 public:
  Matcher(Graph const& graph, Rewrite const& rule, std::vector<char> const& taken, std::vector<std::vector<int>> const& users)
      : graph_(graph), rule_(rule), pattern_(rule.pattern), taken_(taken), users_(users), node_(pattern_.nodes.size(), -1), bound_(pattern_.values.size()) {}

  bool at(int anchor) {
    std::ranges::fill(node_, -1), std::ranges::fill(bound_, std::nullopt);
    int const last = pattern_.outputs.back(), value = graph_.nodes[index(anchor)].first + pattern_.values[index(last)].index;
    return graph_.nodes[index(anchor)].results > pattern_.values[index(last)].index && solve({{Input{last, {}}, Input{value, {}}}});
  }
  Match match() const {
    Match found{.nodes = node_, .bindings = {}, .replaced = {}};
    for (std::size_t k = 0; k < pattern_.inputs.size(); ++k) found.bindings[wildcard(pattern_, k)] = *bound_[index(pattern_.inputs[k])];
    return found;
  }
  int value_of(int output) const { return graph_.nodes[index(node_[index(pattern_.values[index(output)].node)])].first + pattern_.values[index(output)].index; }

 private:
  using Todo = std::vector<std::pair<Input, Input>>;
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }

  bool solve(Todo todo) {
    while (!todo.empty()) {
      auto const [wish, got] = todo.back();
      todo.pop_back();
      if (wish.value < 0) {
        bool const number = got.value < 0 && wish.scalar.node < 0 && got.scalar.node < 0 && wish.scalar.kind == got.scalar.kind;
        if (!number || !same_value(wish.scalar, got.scalar)) return false;
        continue;
      }
      int const maker = pattern_.values[index(wish.value)].node;
      if (maker < 0) {
        if (!bind(wish.value, got)) return false;
        continue;
      }
      if (got.value < 0) return false;
      auto const& value = graph_.values[index(got.value)];
      if (value.node < 0 || value.index != pattern_.values[index(wish.value)].index) return false;
      if (node_[index(maker)] >= 0) {
        if (node_[index(maker)] != value.node) return false;
        continue;
      }
      auto const &ours = pattern_.nodes[index(maker)], &theirs = graph_.nodes[index(value.node)];
      if (taken_[index(value.node)] || ours.op != theirs.op || ours.inputs.size() != theirs.inputs.size() || ours.results != theirs.results) return false;
      if (std::ranges::find(node_, value.node) != node_.end() || !equal_attrs(ours, theirs, rule_.carried)) return false;
      node_[index(maker)] = value.node;
      if (ours.inputs.size() >= 2 && commutative(*ours.op, theirs.attrs)) {
        auto const nodes = node_;
        auto const bound = bound_;
        if (solve(with_operands(todo, ours, theirs, false))) return true;
        node_ = nodes, bound_ = bound;
        return solve(with_operands(todo, ours, theirs, true));
      }
      todo = with_operands(std::move(todo), ours, theirs, false);
    }
    return further_outputs();
  }
  static Todo with_operands(Todo todo, Node const& ours, Node const& theirs, bool swapped) {
    for (std::size_t k = ours.inputs.size(); k-- > 0;) todo.emplace_back(ours.inputs[k], theirs.inputs[swapped && k < 2 ? 1 - k : k]);
    return todo;
  }
  bool bind(int wildcard, Input const& got) {
    auto& bound = bound_[index(wildcard)];
    if (!bound) {
      bound = got;
      return true;
    }
    if (bound->value != got.value) return false;
    return got.value >= 0 || (bound->scalar.kind == got.scalar.kind && bound->scalar.node == got.scalar.node && same_value(bound->scalar, got.scalar));
  }
  // An output that the ones found do not lead to is looked for among the users of what is bound.
  bool further_outputs() {
    for (int output : pattern_.outputs) {
      int const maker = pattern_.values[index(output)].node;
      if (node_[index(maker)] >= 0) continue;
      return from_below(maker);
    }
    return accepted();
  }
  bool from_below(int maker) {  // the first node on the way up that reads a bound value
    for (int n = 0; n <= maker; ++n) {
      if (node_[index(n)] >= 0) continue;
      auto const& ours = pattern_.nodes[index(n)];
      for (auto const& input : ours.inputs) {
        int const known = input.value < 0 ? -1 : graph_value(input.value);
        if (known < 0) continue;
        auto const& list = users_[index(known)];
        auto& front = front_[index(known)];
        auto const gone = [&](std::size_t k) { return std::cmp_less(list[k], graph_.nodes.size()) && taken_[index(list[k])]; };
        while (front < list.size() && gone(front)) ++front;
        for (std::size_t k = front; k < std::min(list.size(), front + candidates); ++k) {
          int const user = list[k];
          if (std::cmp_equal(user, graph_.nodes.size()) || gone(k)) continue;
          auto const& theirs = graph_.nodes[index(user)];
          if (theirs.op != ours.op) continue;
          auto const nodes = node_;
          auto const bound = bound_;
          if (solve({{Input{ours.first, {}}, Input{theirs.first, {}}}})) return true;
          node_ = nodes, bound_ = bound;
        }
        return false;
      }
    }
    return false;
  }
  int graph_value(int value) const {
    if (bound_[index(value)]) return bound_[index(value)]->value;
    int const maker = pattern_.values[index(value)].node;
    return maker >= 0 && node_[index(maker)] >= 0 ? graph_.nodes[index(node_[index(maker)])].first + pattern_.values[index(value)].index : -1;
  }
  // What is not an output must not be read elsewhere.
  bool accepted() const {
    for (std::size_t n = 0; n < node_.size(); ++n) {
      auto const& node = graph_.nodes[index(node_[n])];
      for (int k = 0; k < node.results; ++k) {
        if (std::ranges::find(pattern_.outputs, pattern_.nodes[n].first + k) != pattern_.outputs.end()) continue;
        for (int user : users_[index(node.first + k)])
          if (std::ranges::find(node_, user) == node_.end()) return false;
      }
    }
    for (auto const& bound : bound_)  // what a match reads is not of its own making
      if (bound && bound->value >= 0 && std::ranges::find(node_, graph_.values[index(bound->value)].node) != node_.end()) return false;
    return !rule_.check || rule_.check(graph_, match());
  }

  Graph const& graph_;
  Rewrite const& rule_;
  Graph const& pattern_;
  std::vector<char> const& taken_;
  std::vector<std::vector<int>> const& users_;
  std::vector<int> node_;  // of each pattern node
  std::vector<std::optional<Input>> bound_;
  std::vector<std::size_t> front_ = std::vector<std::size_t>(graph_.values.size(), 0);  // of each list of users: what lies in front is taken
};

// A match with the place where its replacement stands: in front of node `before`.
struct Planned {
  Match match;
  std::vector<int> outputs;  // values of the graph
  int before = 0;
  bool made = false;
};

struct Plan {
  Graph const& graph;
  Rewrite const& rule;
  std::vector<char> taken = std::vector<char>(graph.nodes.size(), 0);
  std::vector<int> owner = std::vector<int>(graph.values.size(), -1);  // which planned match gives a value
  std::vector<int> owner_of_node = std::vector<int>(graph.nodes.size(), -1);
  std::vector<std::vector<int>> users = std::vector<std::vector<int>>(graph.values.size());
  std::vector<Planned> planned{};

  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  void find_all() {
    int const end = static_cast<int>(graph.nodes.size());
    for (int n = 0; n < end; ++n)
      for (auto const& input : graph.nodes[index(n)].inputs)
        if (input.value >= 0 && (users[index(input.value)].empty() || users[index(input.value)].back() != n)) users[index(input.value)].push_back(n);
    for (int output : graph.outputs) users[index(output)].push_back(end);
    auto const* last = rule.pattern.nodes[index(rule.pattern.values[index(rule.pattern.outputs.back())].node)].op;
    Matcher matcher(graph, rule, taken, users);
    for (int n = 0; n < end; ++n)
      if (graph.nodes[index(n)].op == last && !taken[index(n)] && matcher.at(n)) place(matcher);
  }
  // All bindings are made in front of the replacement, all other readers of its outputs stand behind it; else the match would tie a loop.
  // Of replacements at one place the earlier match comes first, so a match that an earlier one reads stands one node further in front.
  void place(Matcher const& matcher) {
    Planned next{matcher.match(), {}, 0, false};
    next.before = std::ranges::max(next.match.nodes);
    for (int output : rule.pattern.outputs) {
      next.outputs.push_back(matcher.value_of(output));
      for (int user : users[index(next.outputs.back())]) {
        if (std::ranges::find(next.match.nodes, user) != next.match.nodes.end()) continue;
        int const owned = std::cmp_less(user, graph.nodes.size()) ? owner_of_node[index(user)] : -1;
        next.before = std::min(next.before, owned >= 0 ? planned[index(owned)].before - 1 : user);
      }
    }
    if (next.before < 0) return;
    for (auto const& [_, input] : next.match.bindings) {
      if (input.value < 0) continue;
      int const made = owner[index(input.value)] >= 0 ? planned[index(owner[index(input.value)])].before : graph.values[index(input.value)].node + 1;
      if (made > next.before) return;
    }
    for (int n : next.match.nodes) taken[index(n)] = 1, owner_of_node[index(n)] = static_cast<int>(planned.size());
    for (int output : next.outputs) owner[index(output)] = static_cast<int>(planned.size());
    planned.push_back(std::move(next));
  }
};

struct Rewriter {
  Plan& plan;
  Rewrite const& rule;
  Rebuild rebuild{plan.graph};

  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  void need(Input const& input) {
    if (input.value >= 0 && plan.owner[index(input.value)] >= 0) make(plan.planned[index(plan.owner[index(input.value)])]);
  }
  Attrs carried(Node const& node, Match const& match) const {
    Attrs attrs;
    attrs.text = node.attrs.text;
    AttrReader own{node.attrs};
    for (auto const& parameter : signature(*node.op).parameters) {
      if (parameter.type == Parameter::Type::tensor || parameter.type == Parameter::Type::tensors) continue;
      auto const found = std::ranges::find_if(rule.carried, [&](Carried const& c) {
        return c.to >= node.first && c.to < node.first + node.results && (c.as.empty() ? c.attribute : c.as) == parameter.name;
      });
      Attrs unused;
      copy_attribute(parameter, own, found == rule.carried.end() ? attrs : unused);
      if (found == rule.carried.end()) continue;
      auto const& source = plan.graph.nodes[index(match.nodes[index(rule.pattern.values[index(found->from)].node)])];
      AttrReader theirs{source.attrs};
      for (auto const& other : signature(*source.op).parameters) {
        if (other.type == Parameter::Type::tensor || other.type == Parameter::Type::tensors) continue;
        copy_attribute(other, theirs, other.name == found->attribute ? attrs : unused);
      }
    }
    return attrs;
  }
  void make(Planned& planned) {
    if (std::exchange(planned.made, true)) return;
    for (auto const& [_, input] : planned.match.bindings) need(input);
    auto const& replacement = rule.replacement;
    auto const& anchor = plan.graph.nodes[index(planned.match.nodes.back())];
    std::vector<Input> value(replacement.values.size());
    for (std::size_t k = 0; k < replacement.inputs.size(); ++k) {
      auto input = planned.match.bindings.find(wildcard(replacement, k))->second;
      if (input.value >= 0) input.value = rebuild.at(input.value);
      value[index(replacement.inputs[k])] = input;
    }
    for (auto const& node : replacement.nodes) {
      auto in = node.inputs;
      for (auto& input : in)
        if (input.value >= 0) input = value[index(input.value)];
      planned.match.replaced.push_back(static_cast<int>(rebuild.to.nodes.size()));
      int const first = rebuild.to.add(*node.op, std::move(in), carried(node, planned.match), anchor.at);
      rebuild.to.nodes.back().module = anchor.module;
      for (int k = 0; k < node.results; ++k) value[index(node.first + k)] = {first + k, {}};
    }
    for (std::size_t k = 0; k < planned.outputs.size(); ++k) {
      auto const& made = value[index(replacement.outputs[k])];
      if (made.value < 0) fail("rewrite: output {} of the replacement is a number", k);
      auto const &old = *plan.graph.values[index(planned.outputs[k])].meta, &now = *rebuild.to.values[index(made.value)].meta;
      auto wish = now;
      wish.strides = old.strides;
      if (!same_meta(rebuild.to.symbols, old, wish))
        fail("rewrite: output {} was {} and would be {}", k, to_string(old, &plan.graph.symbols), to_string(now, &plan.graph.symbols));
      rebuild.at(planned.outputs[k]) = made.value;
    }
  }
};
}  // namespace

Rewritten rewrite(Graph const& graph, Rewrite const& rule) {
  check_rule(rule);
  need_no_writes(graph, "rewrite");
  Plan plan{graph, rule};
  plan.find_all();
  Rewriter rewriter{plan, rule};
  std::vector<std::vector<std::size_t>> due(graph.nodes.size() + 1);
  for (std::size_t k = 0; k < plan.planned.size(); ++k) due[static_cast<std::size_t>(plan.planned[k].before)].push_back(k);
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    for (auto const k : due[n]) rewriter.make(plan.planned[k]);
    if (!plan.taken[n]) rewriter.rebuild.copy(graph.nodes[n]);
  }
  Rewritten done{rewriter.rebuild.finish(), {}};
  for (auto& planned : plan.planned) done.matches.push_back(std::move(planned.match));
  return done;
}

double largest_difference(Graph const& a, Graph const& b, std::uint64_t seed) {
  if (a.inputs.size() != b.inputs.size() || a.outputs.size() != b.outputs.size())
    fail("largest_difference: {} inputs and {} outputs against {} and {}", a.inputs.size(), a.outputs.size(), b.inputs.size(), b.outputs.size());
  std::vector<base::Ref<base::Buffer>> storage;
  std::vector<Strided> inputs;
  for (std::size_t k = 0; k < a.inputs.size(); ++k) {
    auto const& meta = *a.values[static_cast<std::size_t>(a.inputs[k])].meta;
    Strided x{nullptr, meta.dtype, values(meta.sizes), values(meta.strides)};
    std::int64_t low = 0, high = 0;  // strides may be negative
    for (std::size_t d = 0; d < x.sizes.size(); ++d) (x.strides[d] < 0 ? low : high) += std::max<std::int64_t>(x.sizes[d] - 1, 0) * x.strides[d];
    storage.push_back(base::make_ref<base::Buffer>((high - low + 1) * base::bytes_of(meta.dtype)));
    x.data = storage.back()->data() - low * base::bytes_of(meta.dtype);
    std::uint64_t drawn = 0;
    walk<1>(x.sizes, {&x.strides}, [&](auto const& at) {
      double const number = base::uniform(seed, k, drawn++);
      base::is_real(x.dtype) ? x.set(at[0], 4 * number - 2) : x.set_whole(at[0], static_cast<std::int64_t>(number * (x.dtype == base::DType::boolean ? 2 : 5)));
    });
    inputs.push_back(std::move(x));
  }
  auto const ours = evaluate(decompose(a), inputs), theirs = evaluate(decompose(b), inputs);
  double worst = 0;
  for (std::size_t k = 0; k < ours.outputs.size(); ++k) {
    auto const &x = ours.outputs[k], &y = theirs.outputs[k];
    if (x.sizes != y.sizes || x.dtype != y.dtype) return std::numeric_limits<double>::infinity();
    walk<2>(x.sizes, {&x.strides, &y.strides}, [&](auto const& at) {
      double const p = x.real(at[0]), q = y.real(at[1]), gap = std::fabs(p - q);
      if (p != q && !(std::isnan(p) && std::isnan(q))) worst = std::max(worst, std::isnan(gap) ? std::numeric_limits<double>::infinity() : gap);
    });
  }
  return worst;
}

}  // namespace tenon::ir
