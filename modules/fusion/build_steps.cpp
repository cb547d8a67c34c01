// Steps of a loop nest. Each value is asked for at every point of the space through a chain of views; a load turns its chain into strides.
module tenon.fusion;
import std;
import tenon.base;
import tenon.ir;
import :builder;

namespace tenon::fusion {
namespace ops = ir::ops;
using base::DType;
using ir::Dim;
using ir::Dims;
using ir::Node;

namespace {
std::size_t at(int i) { return static_cast<std::size_t>(i); }
}  // namespace

Link const* Builder::link(ir::OpDef const* op, ir::Attrs attrs, Link const* next, std::pair<int, int> identity) {
  auto& known = interned_[{identity.first, identity.second, next}];
  if (!known) known = &links_.emplace_back(op, std::move(attrs), next);
  return known;
}

Link const* Builder::to_sizes(ir::OpDef const& op, Dims const& sizes, Link const* next) {
  for (auto const& known : links_)
    if (known.op == &op && known.next == next && known.attrs.ints.size() == sizes.size() + 1 &&
        std::equal(sizes.begin(), sizes.end(), known.attrs.ints.begin() + 1))
      return &known;
  return &links_.emplace_back(&op, ir::Attrs{}.with(std::span<Dim const>(sizes)), next);
}

Link const* Builder::embed(Dims const& from, Roles roles) {
  Dims ones;
  bool fewer = false;
  for (std::size_t d = 0; d < sizes_.size(); ++d) {
    bool const has = (roles & roles_of(roles_[d])) || is_one(sizes_[d]);
    ones.push_back(has ? sizes_[d] : Dim(1));
    fewer |= !has;
  }
  Link const* const last = fewer ? to_sizes(ops::expand, sizes_, nullptr) : nullptr;
  return equal(from, ones) ? last : to_sizes(ops::reshape, ones, last);
}

Dim Builder::elements(Roles roles) const {
  Dim n = 1;
  for (std::size_t d = 0; d < sizes_.size(); ++d)
    if (roles & roles_of(roles_[d])) n = n * sizes_[d];
  return n;
}

std::optional<Strides> Builder::layout(Dims sizes, Dims strides, Dim offset, DType dtype, Link const* chain) {
  for (; chain; chain = chain->next) {
    ir::View view{chain->attrs, dtype, std::move(sizes), std::move(strides), offset};
    if (!chain->op->geometry(view)) return std::nullopt;
    sizes = std::move(view.sizes), strides = std::move(view.strides), offset = view.offset;
  }
  if (strides.size() != sizes_.size()) return std::nullopt;
  for (std::size_t d = 0; d < sizes_.size(); ++d)
    if (is_one(sizes_[d])) strides[d] = 0;
  return Strides{std::move(strides), offset};
}

std::optional<Strides> Builder::row_major(int value, Link const* chain) {
  auto const& m = meta(value);
  return layout(m.sizes, ir::contiguous_meta(m.dtype, m.device, m.sizes).strides, 0, m.dtype, chain);
}

// The step that computes the same already, as through other views of a value; -1: none. Loads and numbers are looked for where they are made.
int Builder::known(Step const& step) const {
  auto const same_number = [](ir::Scalar const& a, ir::Scalar const& b) { return a.node == b.node && ir::same_value(a, b); };
  for (std::size_t k = 0; k < kernel_.steps.size(); ++k) {
    auto const& s = kernel_.steps[k];
    if (s.op == step.op && s.in == step.in && s.kind == step.kind && s.dtype == step.dtype && s.axis == step.axis && s.combine == step.combine &&
        s.over == step.over && s.attrs.ints == step.attrs.ints && std::ranges::equal(s.attrs.nums, step.attrs.nums, same_number))
      return static_cast<int>(k);
  }
  return -1;
}
int Builder::add(Step step) {
  bool const may_be_known = step.kind != Step::Kind::load && step.kind != Step::Kind::number;
  if (int const there = may_be_known ? known(step) : -1; there >= 0) return there;
  for (auto const in : step.in) reads(step, in);
  if (step.kind == Step::Kind::load) {
    for (std::size_t d = 0; d < sizes_.size(); ++d)
      if (!is_zero(step.access.strides[d])) step.level |= roles_of(roles_[d]);
    for (int const s : {step.access.index, step.access.guard})
      if (s >= 0) reads(step, s);
  }
  if (step.kind == Step::Kind::index) step.level = roles_of(roles_[at(step.axis)]);
  if (step.kind == Step::Kind::reduce) {
    step.level &= static_cast<Roles>(~step.over);
    step.pass += step.over & over_columns ? 1 : 0;
  }
  auto const known_late = [&](int in) { return in >= 0 && after_[at(in)]; };
  bool const late = std::ranges::any_of(step.in, known_late) || known_late(step.access.index) || known_late(step.access.guard);
  if (late && (step.kind == Step::Kind::reduce || (step.level & over_rows))) return refuse(Refusal::order);
  after_.push_back(late || (step.kind == Step::Kind::reduce && (step.over & over_rows)));
  kernel_.steps.push_back(std::move(step));
  return static_cast<int>(kernel_.steps.size()) - 1;
}

void Builder::reads(Step& step, int in) const {
  step.level |= kernel_.steps[at(in)].level;
  step.pass = std::max(step.pass, kernel_.steps[at(in)].pass);
}

int Builder::number(ir::Scalar scalar) {
  auto const dtype = scalar.kind == ir::ScalarKind::real ? DType::f32 : scalar.kind == ir::ScalarKind::boolean ? DType::boolean : DType::i64;
  for (std::size_t k = 0; k < kernel_.steps.size(); ++k)
    if (auto const& s = kernel_.steps[k]; s.kind == Step::Kind::number && ir::same_value(s.number, scalar) && s.number.node == scalar.node)
      return static_cast<int>(k);
  return add({.kind = Step::Kind::number, .dtype = dtype, .number = scalar});
}

int Builder::call(ir::OpDef const& op, DType dtype, std::initializer_list<int> in, ir::Attrs attrs) {
  Step step{.kind = Step::Kind::op, .dtype = dtype, .op = &op, .attrs = std::move(attrs)};
  for (int const s : in) {
    if (s < 0) return -1;
    step.in.push_back(s);
  }
  return add(std::move(step));
}

int Builder::buffer(int root) {
  auto const [found, fresh] = buffer_of_.try_emplace(root, static_cast<int>(roots_.size()));
  if (fresh) {
    roots_.push_back(root);
    kernel_.buffers.push_back({meta(root).dtype, false, graph_.values[at(root)].name});
  }
  return found->second;
}

int Builder::load(int value, Link const* chain) {
  auto const& place = analysis_.places[at(value)];
  auto const found = layout(meta(value).sizes, place.strides, place.offset, meta(value).dtype, chain);
  if (!found) return refuse(Refusal::index);
  return load(place.root, *found);
}

int Builder::load(int root, Strides const& found, Access extra, std::string_view by) {
  extra.buffer = buffer(root);
  extra.offset = found.offset, extra.strides = found.strides;
  for (std::size_t k = 0; k < kernel_.steps.size(); ++k) {
    auto const& s = kernel_.steps[k];
    if (s.kind == Step::Kind::load && s.access.buffer == extra.buffer && s.access.index == extra.index && s.access.guard == extra.guard &&
        s.access.offset == extra.offset && equal(s.access.strides, extra.strides) && s.access.index_stride == extra.index_stride &&
        s.access.index_size == extra.index_size)
      return static_cast<int>(k);
  }
  Step step{.kind = Step::Kind::load, .dtype = meta(root).dtype, .access = std::move(extra)};
  step.attrs.text = by;
  return add(std::move(step));
}

int Builder::coordinate(Dims const& sizes, std::size_t dim, Link const* chain) {
  Dims strides;
  for (std::size_t d = 0; d < sizes.size(); ++d) strides.push_back(d == dim ? 1 : 0);
  auto const found = layout(sizes, strides, 0, DType::i64, chain);
  return found ? linear(*found) : refuse(Refusal::index);
}

int Builder::linear(Strides const& found) {
  int sum = is_zero(found.offset) ? -1 : number(ir::Scalar(found.offset));
  for (std::size_t d = 0; d < sizes_.size(); ++d) {
    if (is_zero(found.strides[d])) continue;
    int term = -1;
    for (std::size_t k = 0; k < kernel_.steps.size() && term < 0; ++k)
      if (kernel_.steps[k].kind == Step::Kind::index && kernel_.steps[k].axis == static_cast<int>(d)) term = static_cast<int>(k);
    if (term < 0) term = add({.kind = Step::Kind::index, .dtype = DType::i64, .axis = static_cast<int>(d)});
    if (!is_one(found.strides[d])) term = call(ops::mul, DType::i64, {term, number(ir::Scalar(found.strides[d]))});
    sum = sum < 0 ? term : call(ops::add, DType::i64, {sum, term}, ir::Attrs{}.with_num(ir::Scalar(1)));
  }
  return sum < 0 ? number(ir::Scalar(0)) : sum;
}

int Builder::emit(int value, Link const* chain) {
  if (refusal_ != Refusal::none) return -1;
  if (kernel_.steps.size() > 4000) return refuse(Refusal::size);
  int const root = analysis_.places[at(value)].root;
  bool const constant = maker(root) >= 0 && inlined(graph_.nodes[at(maker(root))]);
  if (!constant && !inside(root)) {
    auto const [known, fresh] = memo_.try_emplace({value, chain}, -1);
    if (fresh) known->second = load(value, chain);
    return known->second;
  }
  while (value != root) {
    auto const& node = graph_.nodes[at(maker(value))];
    chain = link(node.op, node.attrs, chain, {maker(value), 0});
    value = node.inputs[0].value;
  }
  if (auto const known = memo_.find({value, chain}); known != memo_.end()) return known->second;
  int const step = compute(graph_.nodes[at(maker(value))], chain);
  memo_[{value, chain}] = step;
  return step;
}

int Builder::operand(ir::Input const& input, Dims const& sizes, Link const* chain) {
  if (input.value < 0) return number(input.scalar);
  return emit(input.value, equal(meta(input.value).sizes, sizes) ? chain : to_sizes(ops::expand, sizes, chain));
}

int Builder::cast(int step, DType dtype) {
  return step < 0 || kernel_.steps[at(step)].dtype == dtype ? step : call(ops::to, dtype, {step}, ir::Attrs{}.with(dtype));
}

// Stores a value that is read elsewhere: at every point, or once a row, a column or a batch index, whichever its elements are.
void Builder::output(int value) {
  for (Roles const roles : {over_all, static_cast<Roles>(over_batch | over_rows), static_cast<Roles>(over_batch | over_columns), over_batch}) {
    if (product(meta(value).sizes) != elements(roles)) continue;
    auto const steps = kernel_.steps.size();
    if (store(value, roles)) return;
    auto const why = std::exchange(refusal_, Refusal::none);
    if (why == Refusal::size || roles == over_batch) return void(refuse(why));
    kernel_.steps.resize(steps), after_.resize(steps);
    std::erase_if(memo_, [&](auto const& entry) { return entry.second < 0 || std::cmp_greater_equal(entry.second, steps); });
    last_ = why;
  }
  refuse(last_ == Refusal::none ? Refusal::space : last_);
}
bool Builder::store(int value, Roles roles) {
  auto const* const chain = embed(meta(value).sizes, roles);
  auto const found = row_major(value, chain);
  if (!found) return refuse(Refusal::index), false;
  int const step = emit(value, chain);
  if (step < 0) return false;
  if (after_[at(step)])  // known behind the last row, where no row is written any more
    for (std::size_t d = 0; d < sizes_.size(); ++d)
      if (roles_[d] == Role::row && !is_zero(found->strides[d])) return refuse(Refusal::order), false;
  int const to = buffer(value);
  kernel_.buffers[at(to)].written = true;
  kernel_.stores.push_back({step, {.buffer = to, .offset = found->offset, .strides = found->strides}});
  return true;
}

void Builder::finish() {
  keep_needed();
  order_axes();
  merge_axes();
}
void Builder::keep_needed() {
  auto& steps = kernel_.steps;
  std::vector<char> needed(steps.size(), 0);
  for (auto const& store : kernel_.stores) needed[at(store.step)] = 1;
  auto const each_read = [](Step& step, auto f) {
    for (auto& in : step.in) f(in);
    if (step.access.index >= 0) f(step.access.index);
    if (step.access.guard >= 0) f(step.access.guard);
  };
  for (std::size_t k = steps.size(); k-- > 0;)
    if (needed[k]) each_read(steps[k], [&](int in) { needed[at(in)] = 1; });
  std::vector<int> moved(steps.size(), -1);
  std::vector<Step> kept;
  for (std::size_t k = 0; k < steps.size(); ++k) {
    if (!needed[k]) continue;
    each_read(steps[k], [&](int& in) { in = moved[at(in)]; });
    moved[k] = static_cast<int>(kept.size());
    kept.push_back(std::move(steps[k]));
  }
  steps = std::move(kept);
  for (auto& store : kernel_.stores) store.step = moved[at(store.step)];
  std::vector<char> used(roots_.size(), 0);
  auto const each_access = [&](auto f) {
    for (auto& step : steps)
      if (step.kind == Step::Kind::load) f(step.access);
    for (auto& store : kernel_.stores) f(store.to);
  };
  each_access([&](Access& access) { used[at(access.buffer)] = 1; });
  std::vector<int> place(roots_.size(), -1), roots;
  std::vector<Argument> buffers;
  for (std::size_t b = 0; b < roots_.size(); ++b)
    if (used[b]) place[b] = static_cast<int>(roots.size()), roots.push_back(roots_[b]), buffers.push_back(std::move(kernel_.buffers[b]));
  each_access([&](Access& access) { access.buffer = place[at(access.buffer)]; });
  roots_ = std::move(roots), kernel_.buffers = std::move(buffers);
}
void Builder::order_axes() {
  std::vector<std::size_t> order;
  std::vector<int> axis_of(sizes_.size(), -1);
  for (auto const role : {Role::batch, Role::row, Role::column})
    for (std::size_t d = 0; d < sizes_.size(); ++d)
      if (roles_[d] == role && !is_one(sizes_[d])) axis_of[d] = static_cast<int>(order.size()), order.push_back(d), kernel_.axes.push_back({sizes_[d], role});
  auto const reorder = [&](Access& access) {
    Dims strides;
    for (auto const d : order) strides.push_back(access.strides[d]);
    access.strides = std::move(strides);
  };
  for (auto& step : kernel_.steps) {
    if (step.kind == Step::Kind::load) reorder(step.access);
    if (step.kind == Step::Kind::index) step.axis = axis_of[at(step.axis)];
  }
  for (auto& store : kernel_.stores) reorder(store.to);
}
void Builder::merge_axes() {
  auto& axes = kernel_.axes;
  for (std::size_t a = axes.size(); a-- > 1;) {
    auto const joins = [&](Access const& access) { return access.strides[a - 1] == access.strides[a] * axes[a].size; };
    bool good = axes[a].role == axes[a - 1].role;
    for (auto const& step : kernel_.steps) {
      if (step.kind == Step::Kind::load) good = good && joins(step.access);
      if (step.kind == Step::Kind::index) good = good && at(step.axis) != a && at(step.axis) != a - 1;
    }
    for (auto const& store : kernel_.stores) good = good && joins(store.to);
    if (!good) continue;
    auto const erase = [&](Access& access) {
      Dims strides;
      for (std::size_t k = 0; k < access.strides.size(); ++k)
        if (k != a - 1) strides.push_back(access.strides[k]);
      access.strides = std::move(strides);
    };
    axes[a].size = axes[a - 1].size * axes[a].size;
    axes.erase(axes.begin() + static_cast<std::ptrdiff_t>(a) - 1);
    for (auto& step : kernel_.steps) {
      if (step.kind == Step::Kind::load) erase(step.access);
      if (step.kind == Step::Kind::index && at(step.axis) > a - 1) --step.axis;
    }
    for (auto& store : kernel_.stores) erase(store.to);
  }
}

}  // namespace tenon::fusion
