// Losses that compare inputs with targets element by element or row by row, as bodies over the core: at least f32 inside, rounded once.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir::ops {
using base::fail;
namespace {
/// Letters of operands that stretch to each other; all dims stay whole if `whole`, and then no dim is left.
std::string stretched(std::span<Meta const* const> in, bool whole) {
  std::size_t rank = 0;
  for (auto const* x : in) rank = x ? std::max(rank, x->sizes.size()) : rank;
  std::vector<bool> many(rank, false);
  for (auto const* x : in)
    for (std::size_t d = 0; x && d < x->sizes.size(); ++d)
      if (x->sizes[d].value != 1) many[rank - x->sizes.size() + d] = true;
  auto const all = letters(static_cast<int>(rank));
  std::string text;
  for (std::size_t k = 0; k < in.size(); ++k) {
    auto const* x = in[k];
    if (!x) continue;
    text += k ? "," : "";
    for (std::size_t d = 0; d < x->sizes.size(); ++d) {
      auto const at = rank - x->sizes.size() + d;
      text += x->sizes[d].value == 1 && many[at] ? "1" : std::string(1, all[at]) + (whole ? "!" : "");
    }
  }
  return text + "->" + (whole ? "" : all);
}
template <std::size_t reduction>
std::string loss_equation(Attrs const& attrs, std::span<Meta const* const> in) {
  return stretched(in, attrs.ints[reduction].value != 0);
}
/// Losses of rows: the last dim of the first `rows` operands is whole and gone; the others have one number a row.
template <std::size_t reduction, std::size_t rows>
std::string row_equation(Attrs const& attrs, std::span<Meta const* const> in) {
  bool const whole = attrs.ints[reduction].value != 0;
  std::string text, result;
  for (std::size_t k = 0; k < in.size(); ++k) {
    text += k ? "," : "";
    auto const all = letters(in[k]->rank());
    for (std::size_t d = 0; d < all.size(); ++d) {
      bool const gone = k < rows && d + 1 == all.size();
      text += std::string(1, gone ? 'z' : all[d]) + (gone || whole ? "!" : "");
      if (k == 0 && !gone && !whole) result += all[d];
    }
  }
  return text + "->" + result;
}
void same_sizes(Body const& body, std::string_view op) {
  for (auto const& x : body.in) {
    bool fits = x.rank() == body.x().rank();
    for (int d = 0; fits && d < x.rank(); ++d) fits = same(x.size(d), body.x().size(d));
    if (!fits) fail("{}: sizes differ: {} and {}", op, to_string(body.x().meta()), to_string(x.meta()));
  }
}
void same_ranks(Body const& body, std::string_view op) {
  for (auto const& x : body.in)
    if (x.rank() != body.x().rank()) fail("{}: ranks differ: {} and {}", op, to_string(body.x().meta()), to_string(x.meta()));
}
Var at_least(Var x, double low) { return call(clamp, {x}, Attrs{}.with_num(low).with_num(Scalar())); }
Dim choice(Body const& body, std::size_t at = 0) { return body.attrs.ints[at]; }

void smooth_l1_body(Body& body) {  // a parabola below beta, straight above
  double const beta = pinned(body.attrs.nums[0]);
  if (!(beta >= 0)) fail("smooth_l1_loss: beta must not be negative: {}", beta);
  auto const x = wide_operands(body);
  Var const gap = call(abs, {x[0] - x[1]});
  settle(body, reduced(beta == 0 ? gap : choose(call(lt, {gap, beta}), gap * gap * (0.5 / beta), gap - 0.5 * beta), choice(body)));
}
void huber_body(Body& body) {
  double const delta = pinned(body.attrs.nums[0]);
  if (!(delta > 0)) fail("huber_loss: delta must be positive: {}", delta);
  auto const x = wide_operands(body);
  Var const gap = call(abs, {x[0] - x[1]});
  settle(body, reduced(choose(call(le, {gap, delta}), gap * gap * 0.5, (gap - 0.5 * delta) * delta), choice(body)));
}
// log x, at least -100 as in PyTorch; where x is 0 it is flat.
Var floored_log(Var x) {
  Var const none = call(eq, {x, 0.0});
  return choose(none, -100.0, at_least(call(log, {choose(none, 1.0, x)}), -100));
}
Var weighted(Var loss, Var weight) { return weight ? loss * weight : loss; }
void binary_cross_entropy_body(Body& body) {
  auto const x = wide_operands(body);
  Var const t = x[1], loss = -(t * floored_log(x[0]) + (Var(1.0) - t) * floored_log(Var(1.0) - x[0]));
  settle(body, reduced(weighted(loss, x[2]), choice(body)));
}
void binary_cross_entropy_with_logits_body(Body& body) {
  auto const x = wide_operands(body);
  Var const t = x[1], missed = call(logsigmoid, {x[0]});
  Var const loss = (Var(1.0) - t) * x[0] - (x[3] ? missed * ((x[3] - 1.0) * t + 1.0) : missed);
  settle(body, reduced(weighted(loss, x[2]), choice(body)));
}
void kl_div_body(Body& body) {
  auto const x = wide_operands(body);
  Var const t = x[1], loss = choice(body, 1).value ? call(exp, {t}) * (t - x[0]) : call(xlogy, {t, t}) - t * x[0];
  auto const how = choice(body).value;
  if (how < 3) return settle(body, reduced(loss, how));
  if (x[0].rank() == 0) fail("kl_div: batchmean needs a batch");
  settle(body, reduced(loss, 2) / Var(x[0].size(0)));
}
void poisson_nll_body(Body& body) {  // with Stirling's formula for log t! where t > 1, if full
  auto const x = wide_operands(body);
  Var loss = choice(body, 0).value ? call(exp, {x[0]}) - x[1] * x[0] : x[0] - x[1] * call(log, {x[0] + num(body.attrs.nums[0])});
  if (choice(body, 1).value) {
    Var const big = call(gt, {x[1], 1.0}), t = choose(big, x[1], 1.0);
    loss = loss + choose(big, t * call(log, {t}) - t + call(log, {t * (2 * std::numbers::pi)}) * 0.5, 0.0);
  }
  settle(body, reduced(loss, choice(body, 2)));
}
void gaussian_nll_body(Body& body) {  // a variance for each element, or for each row
  auto x = wide_operands(body);
  Var variance = x[2];
  if (variance.rank() + 1 == x[0].rank()) variance = call(unsqueeze, {variance}, at_dim(-1));
  bool fits = variance.rank() == x[0].rank();
  for (int d = 0; fits && d < variance.rank(); ++d) fits = same(variance.size(d), x[0].size(d)) || (d + 1 == variance.rank() && same(variance.size(d), 1));
  if (!fits) fail("gaussian_nll_loss: variances {} do not fit the input {}", to_string(x[2].meta()), to_string(x[0].meta()));
  variance = call(clamp, {variance}, Attrs{}.with_num(body.attrs.nums[0]).with_num(Scalar()));
  Var const gap = x[0] - x[1], loss = (call(log, {variance}) + gap * gap / variance) * 0.5;
  settle(body, reduced(choice(body, 0).value ? loss + 0.5 * std::log(2 * std::numbers::pi) : loss, choice(body, 1)));
}
void hinge_embedding_body(Body& body) {
  auto const x = wide_operands(body);
  Var const apart = at_least(num(body.attrs.nums[0]) - x[0], 0);
  settle(body, reduced(choose(call(eq, {x[1], 1.0}), 0.0, apart) + choose(call(eq, {x[1], -1.0}), 0.0, x[0]), choice(body)));
}
void cosine_embedding_body(Body& body) {
  auto const x = wide_operands(body);
  Dims const last{Dim(-1)};
  if (x[0].rank() != x[2].rank() + 1 || x[1].rank() != x[0].rank() || x[2].rank() > 1)
    fail("cosine_embedding_loss: a target for each row, not {} for {} and {}", to_string(x[2].meta()), to_string(x[0].meta()), to_string(x[1].meta()));
  for (int d = 0; d < x[0].rank(); ++d)
    if (!same(x[0].size(d), x[1].size(d)) || (d == 0 && x[2].rank() == 1 && !same(x[2].size(0), x[0].size(0))))
      fail("cosine_embedding_loss: sizes differ: {}, {} and {}", to_string(x[0].meta()), to_string(x[1].meta()), to_string(x[2].meta()));
  auto const total = [&](Var y) { return call(sum, {y}, summed(last, false)); };
  Var const cosine = total(x[0] * x[1]) / call(sqrt, {(total(x[0] * x[0]) + 1e-12) * (total(x[1] * x[1]) + 1e-12)});
  Var const apart = at_least(cosine - num(body.attrs.nums[0]), 0);
  settle(body, reduced(choose(call(eq, {x[2], 1.0}), Var(1.0) - cosine, choose(call(eq, {x[2], -1.0}), apart, 0.0)), choice(body)));
}
void triplet_margin_body(Body& body) {  // floats: margin, p, eps
  same_ranks(body, "triplet_margin_loss");
  double const margin = pinned(body.attrs.nums[0]);
  if (!(margin > 0)) fail("triplet_margin_loss: margin must be positive: {}", margin);
  same_sizes(body, "triplet_margin_loss");
  if (body.x().rank() == 0) fail("triplet_margin_loss: needs rows, not {}", to_string(body.x().meta()));
  auto const x = wide_operands(body);
  auto const distance = [&](Var a, Var b) { return call(pairwise_distance, {a, b}, at_dim(0).with_num(body.attrs.nums[1]).with_num(body.attrs.nums[2])); };
  Var far = distance(x[0], x[2]);
  if (choice(body, 0).value) far = call(minimum, {far, distance(x[1], x[2])});
  settle(body, reduced(at_least(distance(x[0], x[1]) - far + margin, 0), choice(body, 1)));
}
}  // namespace

// clang-format off
constinit const OpDef l1_loss{.name = "l1_loss", .kind = Kind::reduction, .signature = "Tensor input, Tensor target, none|mean|sum reduction=mean",
    .equation = {.build = loss_equation<0>}, .terms = "--", .mono = "..", .types = Types::real, .precision = Precision::wide, .cost = 3,
    .decompose = [](Body& b) {
      auto const x = wide_operands(b);
      settle(b, reduced(call(abs, {x[0] - x[1]}), choice(b)));
    }};
constinit const OpDef smooth_l1_loss{.name = "smooth_l1_loss", .kind = Kind::reduction, .signature = "Tensor input, Tensor target, none|mean|sum reduction=mean, fixed beta=1",
    .equation = {.build = loss_equation<0>}, .terms = "--", .mono = "..", .types = Types::real, .precision = Precision::wide, .cost = 6, .decompose = smooth_l1_body};
constinit const OpDef huber_loss{.name = "huber_loss", .kind = Kind::reduction, .signature = "Tensor input, Tensor target, none|mean|sum reduction=mean, fixed delta=1",
    .equation = {.build = loss_equation<0>}, .terms = "--", .mono = "..", .types = Types::real, .precision = Precision::wide, .cost = 6, .decompose = huber_body};
constinit const OpDef binary_cross_entropy{.name = "binary_cross_entropy", .kind = Kind::reduction,
    .signature = "Tensor input, Tensor target, Tensor? weight=None, none|mean|sum reduction=mean", .equation = {.build = loss_equation<0>}, .terms = "---", .mono = "...",
    .types = Types::real, .precision = Precision::wide, .cost = 24, .decompose = binary_cross_entropy_body};
constinit const OpDef binary_cross_entropy_with_logits{.name = "binary_cross_entropy_with_logits", .kind = Kind::reduction,
    .signature = "Tensor input, Tensor target, Tensor? weight=None, none|mean|sum reduction=mean, Tensor? pos_weight=None", .equation = {.build = loss_equation<0>},
    .terms = "----", .mono = "....", .types = Types::real, .precision = Precision::wide, .cost = 22, .decompose = binary_cross_entropy_with_logits_body};
constinit const OpDef kl_div{.name = "kl_div", .kind = Kind::reduction, .signature = "Tensor input, Tensor target, none|mean|sum|batchmean reduction=mean, bool log_target=False",
    .equation = {.build = loss_equation<0>}, .terms = "--", .mono = "..", .types = Types::real, .precision = Precision::wide, .cost = 12, .decompose = kl_div_body};
constinit const OpDef poisson_nll_loss{.name = "poisson_nll_loss", .kind = Kind::reduction,
    .signature = "Tensor input, Tensor target, bool log_input=True, bool full=False, float eps=1e-08, none|mean|sum reduction=mean", .equation = {.build = loss_equation<2>},
    .terms = "--", .mono = "..", .types = Types::real, .precision = Precision::wide, .cost = 12, .decompose = poisson_nll_body};
constinit const OpDef gaussian_nll_loss{.name = "gaussian_nll_loss", .kind = Kind::reduction,
    .signature = "Tensor input, Tensor target, Tensor var, bool full=False, float eps=1e-06, none|mean|sum reduction=mean",
    .equation = {.build = [](Attrs const& attrs, std::span<Meta const* const> in) {
      if (in[2]->rank() >= in[0]->rank()) return loss_equation<1>(attrs, in);
      Meta rows = *in[2];
      rows.sizes.push_back(1);  // written out for the letters, then dropped
      auto text = loss_equation<1>(attrs, std::array<Meta const*, 3>{in[0], in[1], &rows});
      auto const arrow = text.find("->");
      auto const last = text.find_last_not_of('!', arrow - 1);
      return text.erase(last, arrow - last);
    }},
    .terms = "---", .mono = "...", .types = Types::real, .precision = Precision::wide, .cost = 14, .decompose = gaussian_nll_body};
constinit const OpDef hinge_embedding_loss{.name = "hinge_embedding_loss", .kind = Kind::reduction,
    .signature = "Tensor input, Tensor target, float margin=1, none|mean|sum reduction=mean", .equation = {.build = loss_equation<0>}, .terms = "--", .mono = "..",
    .types = Types::real, .precision = Precision::wide, .cost = 6, .decompose = hinge_embedding_body};
constinit const OpDef margin_ranking_loss{.name = "margin_ranking_loss", .kind = Kind::reduction,
    .signature = "Tensor input1, Tensor input2, Tensor target, float margin=0, none|mean|sum reduction=mean", .equation = {.build = loss_equation<0>}, .terms = "---",
    .mono = "...", .types = Types::real, .precision = Precision::wide, .cost = 4,
    .decompose = [](Body& b) {
      same_ranks(b, "margin_ranking_loss");
      auto const x = wide_operands(b);
      settle(b, reduced(at_least(x[2] * (x[1] - x[0]) + num(b.attrs.nums[0]), 0), choice(b)));
    }};
constinit const OpDef soft_margin_loss{.name = "soft_margin_loss", .kind = Kind::reduction, .signature = "Tensor input, Tensor target, none|mean|sum reduction=mean",
    .equation = {.build = loss_equation<0>}, .terms = "--", .mono = "..", .types = Types::real, .precision = Precision::wide, .cost = 20,
    .decompose = [](Body& b) {
      auto const x = wide_operands(b);
      settle(b, reduced(-call(logsigmoid, {x[0] * x[1]}), choice(b)));
    }};
constinit const OpDef cosine_embedding_loss{.name = "cosine_embedding_loss", .kind = Kind::reduction,
    .signature = "Tensor input1, Tensor input2, Tensor target, float margin=0, none|mean|sum reduction=mean", .equation = {.build = row_equation<0, 2>}, .terms = "---",
    .mono = "...", .types = Types::real, .precision = Precision::wide, .cost = 8, .decompose = cosine_embedding_body};
constinit const OpDef triplet_margin_loss{.name = "triplet_margin_loss", .kind = Kind::reduction,
    .signature = "Tensor anchor, Tensor positive, Tensor negative, fixed margin=1, fixed p=2, float eps=1e-06, bool swap=False, none|mean|sum reduction=mean",
    .equation = {.build = row_equation<1, 3>}, .terms = "---", .mono = "...", .types = Types::real, .precision = Precision::wide, .cost = 12,
    .decompose = triplet_margin_body};

namespace {
constexpr std::array rows{
    &l1_loss, &smooth_l1_loss, &huber_loss, &binary_cross_entropy, &binary_cross_entropy_with_logits, &kl_div, &poisson_nll_loss, &gaussian_nll_loss,
    &hinge_embedding_loss, &margin_ranking_loss, &soft_margin_loss, &cosine_embedding_loss, &triplet_margin_loss};
}
// clang-format on
std::span<OpDef const* const> pair_loss_rows() { return rows; }

}  // namespace tenon::ir::ops
