// Losses, as bodies over the core.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir::ops {
using base::DType;
using base::fail;
namespace {
enum class Reduce { none, mean, sum };
Var reduced(Var loss, Reduce how) { return ir::reduced(loss, Dim(static_cast<int>(how))); }

int class_dim(Var logp) { return logp.rank() == 1 ? 0 : 1; }
// Weights [C] along the class dim.
Var per_class(Var weight, Var logp) {
  Dims sizes;
  for (int d = 0; d < logp.rank(); ++d) sizes.push_back(d == class_dim(logp) ? logp.size(d) : Dim(1));
  return call(reshape, {widened(weight)}, Attrs{}.with(sizes));
}
// Negative log likelihood of `target` under log probabilities with classes in dim 1 (dim 0 without a batch), by weight, without ignored ones.
Var picked_loss(Var logp, Var target, Var weight, Dim ignore, Reduce how, double smoothing) {
  int const classes = class_dim(logp);
  if (target.rank() != logp.rank() - 1) fail("target {} does not fit input {}", to_string(target.meta()), to_string(logp.meta()));
  for (int d = 0; d < target.rank(); ++d)
    if (!same(target.size(d), logp.size(d < classes ? d : d + 1)))
      fail("target size {} and input size {} differ ({}, {})", target.size(d).value, logp.size(d < classes ? d : d + 1).value, to_string(target.meta()),
           to_string(logp.meta()));
  Var const kept = call(ne, {target, Var(ignore)});
  Var const safe = choose(kept, target, Var(0));
  Var const index = call(unsqueeze, {safe}, at_dim(classes));
  auto const at_target = [&](Var x) { return call(squeeze, {call(gather, {x, index}, at_dim(classes))}, Attrs{}.with(Dims{Dim(classes)})); };
  Var const zero = Var(0.0);
  Var const weights = weight ? per_class(weight, logp) : Var();
  Var const share = weight ? at_target(call(expand, {weights}, Attrs{}.with(logp.meta().sizes))) : Var();
  Var loss = -at_target(logp);
  if (weight) loss = loss * share;
  if (smoothing != 0) {
    Var const even = -call(sum, {weight ? logp * weights : logp}, summed(Dims{Dim(classes)}, false)) / Var(logp.size(classes));
    loss = loss * (1 - smoothing) + even * smoothing;
  }
  loss = choose(kept, loss, zero);
  if (how != Reduce::mean) return reduced(loss, how);
  Var const count = weight ? choose(kept, share, zero) : cast(kept, logp.meta().dtype);
  return call(sum, {loss}, summed({}, false)) / call(sum, {count}, summed({}, false));
}
// The same for a distribution over the classes as target; without a batch there is nothing to average over.
Var expected_loss(Var logp, Var target, Var weight, Reduce how, double smoothing) {
  Dim const classes = class_dim(logp);
  Var shares = widened(target);
  if (smoothing != 0) shares = shares * (1 - smoothing) + Var(smoothing) / Var(logp.size(static_cast<int>(classes.value)));
  Var loss = logp * shares;
  if (weight) loss = loss * per_class(weight, logp);
  return reduced(-call(sum, {loss}, summed(Dims{classes}, false)), how);
}
void cross_entropy_body(Body& body) {
  AttrReader reader{body.attrs};
  Dim const ignore = reader.number();
  auto const how = static_cast<Reduce>(reader.number().value);
  double const smoothing = pinned(body.attrs.nums[0]);
  auto const &x = body.x(0).meta(), &target = body.x(1).meta();
  if (!base::is_real(x.dtype) || x.rank() == 0) fail("the input must be floating with a dim of classes, not {}", to_string(x));
  bool const distribution = base::is_real(target.dtype);
  bool fits = !distribution || target.rank() == x.rank();
  for (std::size_t d = 0; distribution && fits && d < x.sizes.size(); ++d) fits = same(x.sizes[d], target.sizes[d]);
  if (!fits || target.dtype == DType::boolean)
    fail("the target must hold class indices, or probabilities of the input's sizes: {} for {}", to_string(target), to_string(x));
  body.out.push_back(in_wide(body.x(), [&](Var wide) {
    Var const logp = call(log_softmax, {wide}, at_dim(class_dim(wide)).with(Dim(absent)));
    return distribution ? expected_loss(logp, body.x(1), body.x(2), how, smoothing) : picked_loss(logp, body.x(1), body.x(2), ignore, how, smoothing);
  }));
}
void nll_loss_body(Body& body) {
  AttrReader reader{body.attrs};
  Dim const ignore = reader.number();
  body.out.push_back(picked_loss(body.x(0), body.x(1), body.x(2), ignore, static_cast<Reduce>(reader.number().value), 0));
}

// Rows of scores (one without a batch), and what their class or classes are held against.
Var as_rows(Var x) { return x.rank() >= 2 ? x : shaped(x, x.rank() == 1 ? Dims{Dim(1), x.size(0)} : Dims{Dim(1), Dim(1)}); }
Var above(Var margin) { return call(relu, {margin}); }
void need_scores(Var x) {
  bool const good = base::is_real(x.meta().dtype) && x.rank() <= 2 && (x.rank() == 0 || !same(x.size(-1), 0));
  if (!good) fail("the input must be floating, of rank 1 or 2 and with classes, not {}", to_string(x.meta()));
}
void need_indices(Var target) {
  if (target.meta().dtype != DType::i64 && target.meta().dtype != DType::i32) fail("the target must hold class indices, not {}", to_string(target.meta()));
}
void multi_margin_body(Body& body) {  // floats: margin; p and the reduction as integers
  Var const x = body.x(0), target = body.x(1), weight = body.x(2);
  auto const p = body.attrs.ints[0].value;
  if (p != 1 && p != 2) fail("p must be 1 or 2, not {}", p);
  need_scores(x), need_indices(target);
  if (target.rank() > 1 || !same(product(target.meta().sizes), x.rank() < 2 ? Dim(1) : x.size(0)))
    fail("target {} does not fit input {}", to_string(target.meta()), to_string(x.meta()));
  body.out.push_back(in_wide(x, [&](Var wide) {
    Var const rows = as_rows(wide), index = shaped(cast(target, DType::i64), Dims{rows.size(0), Dim(1)});
    if (weight && (weight.rank() != 1 || !same(weight.size(0), rows.size(1))))
      fail("the weight must have {} elements, not {}", rows.size(1).value, to_string(weight.meta()));
    Var gap = above(rows - call(gather, {rows, index}, at_dim(1)) + num(body.attrs.nums[0]));
    if (p == 2) gap = gap * gap;
    if (weight) gap = gap * shaped(call(index_select, {widened(weight), shaped(index, Dims{rows.size(0)})}, at_dim(0)), Dims{rows.size(0), Dim(1)});
    Var const others = choose(call(eq, {counting(index, rows.size(1)), index}), 0.0, gap);
    Var const loss = call(sum, {others}, summed(Dims{Dim(1)}, false)) / Var(rows.size(1));
    return reduced(x.rank() < 2 ? shaped(loss, {}) : loss, static_cast<Reduce>(body.attrs.ints[1].value));
  }));
}
void multilabel_margin_body(Body& body) {  // the labels of a row stand before its first -1
  Var const x = body.x(0), target = body.x(1);
  need_scores(x), need_indices(target);
  bool fits = x.rank() == target.rank();
  for (int d = 0; fits && d < x.rank(); ++d) fits = same(x.size(d), target.size(d));
  if (!fits) fail("target {} does not fit input {}", to_string(target.meta()), to_string(x.meta()));
  body.out.push_back(in_wide(x, [&](Var wide) {
    Var const rows = as_rows(wide), labels = as_rows(cast(target, DType::i64)), zero = zeros_like(labels);
    Var const ended = call(cumsum, {cast(call(lt, {labels, 0}), DType::i64)}, at_dim(1).with(Dim(absent)));
    Var const given = call(eq, {ended, 0}), index = choose(given, labels, 0);
    Var const is_label = call(gt, {call(scatter_add, {zero, index, cast(given, DType::i64)}, at_dim(1)), 0});
    Var const gap = above(Var(1.0) - call(unsqueeze, {call(gather, {rows, index}, at_dim(1))}, at_dim(2)) + call(unsqueeze, {rows}, at_dim(1)));
    Var const counts = call(logical_and, {call(unsqueeze, {given}, at_dim(2)), call(unsqueeze, {call(logical_not, {is_label})}, at_dim(1))});
    Var const loss = call(sum, {choose(counts, gap, 0.0)}, summed(Dims{Dim(1), Dim(2)}, false)) / Var(rows.size(1));
    return reduced(x.rank() < 2 ? shaped(loss, {}) : loss, static_cast<Reduce>(body.attrs.ints[0].value));
  }));
}

// Without a reduction the batch can be cut; a mean need not be one of equal parts (weights, ignored targets), so all dims stay whole.
std::string loss_equation(Attrs const& attrs, std::span<Meta const* const> in) {
  int const rank = in[0]->rank();
  std::size_t const classes = rank == 1 ? 0 : 1;
  bool const reduces = attrs.ints[1].value != 0, distribution = in[1]->rank() == rank;
  std::string input, target, result;
  for (std::size_t d = 0; std::cmp_less(d, rank); ++d) {
    std::string const name = letters(1, static_cast<int>(d)) + (reduces || d == classes ? "!" : "");
    input += name;
    if (d != classes || distribution) target += name;
    if (d != classes && !reduces) result += name;
  }
  return input + "," + target + (in.size() > 2 && in[2] ? "," + letters(1, static_cast<int>(classes)) + "!" : "") + "->" + result;
}
}  // namespace

// clang-format off
constinit const OpDef cross_entropy{.name = "cross_entropy", .kind = Kind::reduction,
    .signature = "Tensor input, Tensor target, Tensor? weight=None, int ignore_index=-100, none|mean|sum reduction=mean, fixed label_smoothing=0", .equation = {.build = loss_equation},
    .terms = "---", .mono = "...", .precision = Precision::wide, .cost = 14, .decompose = cross_entropy_body};
constinit const OpDef nll_loss{.name = "nll_loss", .kind = Kind::reduction,
    .signature = "Tensor input, Tensor target, Tensor? weight=None, int ignore_index=-100, none|mean|sum reduction=mean", .equation = {.build = loss_equation}, .terms = "---",
    .mono = "...", .precision = Precision::wide, .cost = 2, .decompose = nll_loss_body};
constinit const OpDef mse_loss{.name = "mse_loss", .kind = Kind::reduction, .signature = "Tensor input, Tensor target, none|mean|sum reduction=mean",
    .equation = {.build = [](Attrs const& attrs, std::span<Meta const* const> in) {
      if (attrs.ints[0].value == 0) return std::string("...");
      auto const whole = [](Meta const* x) {
        std::string marked;
        for (char c : letters(x->rank())) marked += {c, '!'};
        return marked;
      };
      return whole(in[0]) + "," + whole(in[1]) + "->";
    }},
    .terms = "--", .mono = "..", .precision = Precision::wide, .cost = 3,
    .decompose = [](Body& b) {
      Var const difference = b.x(0) - b.x(1);
      b.out.push_back(reduced(difference * difference, static_cast<Reduce>(b.attrs.ints[0].value)));
    }};
constinit const OpDef multi_margin_loss{.name = "multi_margin_loss", .kind = Kind::reduction,
    .signature = "Tensor input, Tensor target, int p=1, float margin=1, Tensor? weight=None, none|mean|sum reduction=mean", .terms = "---", .mono = "...", .types = Types::real,
    .precision = Precision::wide, .cost = 6, .decompose = multi_margin_body};
constinit const OpDef multilabel_margin_loss{.name = "multilabel_margin_loss", .kind = Kind::reduction,
    .signature = "Tensor input, Tensor target, none|mean|sum reduction=mean", .terms = "--", .mono = "..", .types = Types::real, .precision = Precision::wide, .cost = 6,
    .decompose = multilabel_margin_body};

namespace {
constexpr std::array rows{&cross_entropy, &nll_loss, &mse_loss, &multi_margin_loss, &multilabel_margin_loss};
}
// clang-format on
std::span<OpDef const* const> loss_rows() { return rows; }

}  // namespace tenon::ir::ops
