// The iteration space of a set of nodes: its dims, and which of them are batches, rows and columns.
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

Built Builder::run(bool finish) {
  choose_root();
  if (refusal_ == Refusal::none) choose_roles();
  for (int const n : nodes_) {
    if (refusal_ != Refusal::none) break;
    int const value = graph_.nodes[at(n)].first;
    if (needed_outside(n)) output(value);
  }
  if (refusal_ == Refusal::none && finish) this->finish();
  Built built{std::move(kernel_), refusal_, std::move(roots_)};
  for (std::size_t d = 0; d < sizes_.size(); ++d) (roles_[d] == Role::column ? built.columns : built.rows) *= sizes_[d].value;
  return built;
}

int Builder::refuse(Refusal why) {
  if (refusal_ == Refusal::none) refusal_ = why;
  return -1;
}

bool Builder::needed_outside(int n) const {
  int const value = graph_.nodes[at(n)].first;
  return analysis_.escapes[at(value)] || std::ranges::any_of(analysis_.readers[at(value)], [&](int reader) { return !member_[at(reader)]; }) ||
         (nodes_.size() == 1);
}

void Builder::choose_root() {
  auto const count = [](ir::Meta const& m) {
    double n = 1;
    for (auto const size : m.sizes) n *= static_cast<double>(size.value);
    return n;
  };
  double most = -1;
  int rank = -1;
  bool reduced = false;
  auto const offer = [&](ir::Meta const& m, bool reduces) {
    double const n = count(m);
    if (n < most || (n == most && (reduces ? 1 : 0) < (reduced ? 1 : 0)) || (n == most && reduces == reduced && m.rank() <= rank)) return;
    most = n, rank = m.rank(), reduced = reduces, sizes_ = m.sizes;
  };
  for (int const n : nodes_) {
    auto const& node = graph_.nodes[at(n)];
    bool const reduces = reduction_of(*node.op) != ir::Monoid::none;
    bool const copies = node.op->geometry != nullptr;  // in its operand's dims, which a view could not leave
    if (reduces || copies)
      offer(meta(node.inputs[0].value), reduces);
    else
      offer(meta(node.first), false);
  }
  plain_ = ir::contiguous_meta(DType::f32, {}, sizes_).strides;
  roles_.assign(sizes_.size(), Role::column);
  for (std::size_t d = 0; d + 1 < sizes_.size(); ++d) roles_[d] = Role::row;
}

std::optional<std::vector<char>> Builder::reduced_dims(Node const& node, std::vector<char> const& has) const {
  auto const& x = meta(node.inputs[0].value);
  std::array const in{&x};
  auto const equation = ir::parse_equation(ir::equation_of(*node.op, node.attrs, in));
  std::vector<char> gone;
  for (auto const& factor : equation.operands[0]) {
    bool stays = false;
    for (auto const& result : equation.results[0]) stays |= !factor.letters.empty() && result.letters == factor.letters;
    gone.push_back(!stays && !factor.letters.empty());
  }
  std::vector<char> mask(sizes_.size(), 0);
  std::size_t i = x.sizes.size(), d = sizes_.size();
  for (;;) {  // from the right, dims of both sides that cover the same elements
    while (d > 0 && (!has[d - 1] || is_one(sizes_[d - 1]))) --d;
    while (i > 0 && is_one(x.sizes[i - 1])) --i;
    if (i == 0 && d == 0) return mask;
    if (i == 0 || d == 0) return std::nullopt;
    std::size_t const i_end = i, d_end = d;
    Dim left = x.sizes[--i], right = sizes_[--d];
    while (left != right) {
      if (left.value < right.value && i > 0)
        left = x.sizes[--i] * left;
      else if (right.value < left.value && d > 0) {
        --d;
        if (has[d]) right = sizes_[d] * right;
      } else
        return std::nullopt;
    }
    for (std::size_t k = i; k < i_end; ++k)
      if (!is_one(x.sizes[k]) && gone[k] != gone[i_end - 1]) return std::nullopt;
    for (std::size_t k = d; k < d_end; ++k) mask[k] = has[k] && gone[i_end - 1];
  }
}

void Builder::choose_roles() {
  std::vector<char> const all(sizes_.size(), 1);
  std::vector<std::vector<char>> masks;
  for (int const n : nodes_) {
    auto const& node = graph_.nodes[at(n)];
    if (reduction_of(*node.op) == ir::Monoid::none) continue;
    if (product(meta(node.inputs[0].value).sizes) != product(sizes_)) continue;  // of what is left of rows: checked where it is met
    auto mask = reduced_dims(node, all);
    if (!mask) return void(refuse(Refusal::space));
    if (std::ranges::find(masks, *mask) == masks.end()) masks.push_back(std::move(*mask));
  }
  if (masks.empty()) return;
  auto const whole = [&](std::vector<char> const& mask) {
    for (std::size_t d = 0; d < mask.size(); ++d)
      if (!mask[d] && !is_one(sizes_[d])) return false;
    return true;
  };
  auto const last_gone = [&](std::vector<char> const& mask) {
    for (std::size_t d = mask.size(); d-- > 0;)
      if (!is_one(sizes_[d])) return mask[d] != 0;
    return true;
  };
  auto const* lead = &masks[0];
  for (auto const& mask : masks)  // sums along a row say what a row is; else sums over rows do; a sum of all fits either
    if (!whole(mask) && (whole(*lead) || (last_gone(mask) && !last_gone(*lead)))) lead = &mask;
  if (whole(*lead)) {
    std::ranges::fill(roles_, Role::column);
  } else if (last_gone(*lead)) {
    for (std::size_t d = 0; d < sizes_.size(); ++d) roles_[d] = (*lead)[d] ? Role::column : Role::row;
  } else {
    bool tail = true;
    for (std::size_t d = sizes_.size(); d-- > 0;) {
      tail = tail && !(*lead)[d];
      roles_[d] = (*lead)[d] ? Role::row : tail ? Role::column : Role::batch;
    }
  }
  // With sums along and over rows, what the second keeps beside columns is the batch.
  for (auto const& mask : masks) {
    if (whole(mask) || &mask == lead) continue;
    for (std::size_t d = 0; d < sizes_.size(); ++d)
      if (roles_[d] == Role::row && !mask[d]) roles_[d] = Role::batch;
  }
  for (auto const& mask : masks)
    if (over_of(mask) == 0) return void(refuse(Refusal::reduction));
}

Roles Builder::over_of(std::vector<char> const& mask) const {
  Roles gone = 0, stays = 0;
  for (std::size_t d = 0; d < mask.size(); ++d)
    if (!is_one(sizes_[d])) (mask[d] ? gone : stays) |= roles_of(roles_[d]);
  if (gone & stays) return 0;
  if (gone == 0) {  // all reduced dims have size 1
    for (std::size_t d = 0; d < mask.size(); ++d)
      if (mask[d]) gone |= roles_of(roles_[d]);
  }
  return gone & over_batch ? 0 : gone == 0 ? over_columns : gone;
}

std::vector<char> Builder::dims_with(Roles roles) const {
  std::vector<char> has;
  for (auto const role : roles_) has.push_back((roles & roles_of(role)) != 0);
  return has;
}

Built build(Analysis const& analysis, std::span<int const> nodes, std::vector<char> const& member, bool finish) {
  return Builder(analysis, nodes, member).run(finish);
}

}  // namespace tenon::fusion
