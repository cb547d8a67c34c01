// Rows that are bodies over the core: one meaning each, no kernel of their own. Small floats are computed in f32 inside and rounded once at the end.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir::ops {
using base::DType;
using base::fail;
namespace {
Attrs over(std::span<Dim const> dims, bool keep) { return Attrs{}.with(dims).with(Dim(keep)); }
Attrs summed(std::span<Dim const> dims, bool keep) { return over(dims, keep).with(Dim(absent)); }
Attrs dim(std::int64_t d) { return Attrs{}.with(Dim(d)); }
Var num(Scalar s) { return {nullptr, Input{-1, s}}; }
Var choose(Var condition, Var yes, Var no) { return call(where, {condition, yes, no}); }
bool small(Var x) { return x.meta().dtype != DType::f64 && x.meta().dtype != DType::f32 && base::is_real(x.meta().dtype); }
Var cast(Var x, DType type) { return x.meta().dtype == type ? x : call(to, {x}, Attrs{}.with(type)); }
Var widened(Var x) { return small(x) || !base::is_real(x.meta().dtype) ? cast(x, DType::f32) : x; }
// Runs `body` on a widened operand and rounds the result back to the operand's dtype.
template <class F>
Var in_wide(Var x, F body) {
  return cast(body(widened(x)), base::is_real(x.meta().dtype) ? x.meta().dtype : DType::f32);
}
DType wish_or(AttrReader& reader, DType fallback) {
  auto const wish = reader.number().value;
  return wish == absent ? fallback : static_cast<DType>(wish);
}

// x - max(x) along dim; the maximum of an all -inf row counts as 0 there, so that the row gives NaN only where PyTorch does.
Var shifted(Var x, std::span<Dim const> dims) {
  if (product(x.meta().sizes).value == 0) return x;
  return x - call(amax, {x}, over(dims, true));
}
Var softmax_body(Var x, Dim d) {
  Dims const dims{d};
  Var const e = call(exp, {shifted(x, dims)});
  return e / call(sum, {e}, summed(dims, true));
}
Var log_softmax_body(Var x, Dim d) {
  Dims const dims{d};
  Var const s = shifted(x, dims);
  return s - call(log, {call(sum, {call(exp, {s})}, summed(dims, true))});
}
template <Var (*rule)(Var, Dim)>
void along_dim(Body& body) {
  AttrReader reader{body.attrs};
  Dim const d = reader.number();
  base::wrap_dim("softmax", d.value, std::max(body.x().rank(), 1));
  auto const x = body.x();
  DType const type = wish_or(reader, base::is_real(x.meta().dtype) ? x.meta().dtype : DType::f32);
  body.out.push_back(cast(rule(widened(type == x.meta().dtype ? x : cast(x, type)), d), type));
}

Dims trailing(Var x, std::size_t count) {
  Dims dims;
  for (std::size_t d = 0; d < count; ++d) dims.push_back(Dim(x.rank()) - Dim(count - d));
  return dims;
}
void check_normalized(std::string_view op, Var x, std::span<Dim const> shape) {
  auto const& sizes = x.meta().sizes;
  bool fits = !shape.empty() && shape.size() <= sizes.size();
  for (std::size_t d = 0; fits && d < shape.size(); ++d) fits = same(sizes[sizes.size() - shape.size() + d], shape[d]);
  if (!fits) fail("{}: normalized_shape {} does not end the shape of {}", op, base::to_string(values(shape)), to_string(x.meta()));
}
Var scaled(Var y, Var weight, Var bias) {
  if (weight) y = y * widened(weight);
  return bias ? y + widened(bias) : y;
}
void layer_norm_body(Body& body) {
  AttrReader reader{body.attrs};
  auto const shape = reader.list();
  check_normalized("layer_norm", body.x(), shape);
  body.out.push_back(in_wide(body.x(), [&](Var x) {
    auto const dims = trailing(x, shape.size());
    Var const centered = x - call(mean, {x}, summed(dims, true));
    Var const variance = call(mean, {centered * centered}, summed(dims, true));
    return scaled(centered * call(rsqrt, {variance + num(body.attrs.nums[0])}), body.x(1), body.x(2));
  }));
}
void rms_norm_body(Body& body) {
  AttrReader reader{body.attrs};
  auto const shape = reader.list();
  check_normalized("rms_norm", body.x(), shape);
  Scalar const eps = body.attrs.nums[0];
  double const fallback =
      body.x().meta().dtype == DType::f64 ? std::numeric_limits<double>::epsilon() : static_cast<double>(std::numeric_limits<float>::epsilon());
  body.out.push_back(in_wide(body.x(), [&](Var x) {
    Var const power = call(mean, {x * x}, summed(trailing(x, shape.size()), true));
    return scaled(x * call(rsqrt, {power + num(eps.kind == ScalarKind::none ? Scalar(fallback) : eps)}), body.x(1), Var());
  }));
}
void batch_norm_body(Body& body) {  // statistics of this batch; channels are dim 1
  body.out.push_back(in_wide(body.x(), [&](Var x) {
    Dims dims{Dim(0)}, per_channel;
    for (int d = 2; d < x.rank(); ++d) dims.push_back(d);
    for (int d = 0; d < x.rank(); ++d) per_channel.push_back(d == 1 ? x.size(1) : Dim(1));
    Var const centered = x - call(mean, {x}, summed(dims, true));
    Var const variance = call(mean, {centered * centered}, summed(dims, true));
    auto const shaped = [&](Var v) { return v ? call(reshape, {v}, Attrs{}.with(per_channel)) : v; };
    return scaled(centered * call(rsqrt, {variance + num(body.attrs.nums[0])}), shaped(body.x(1)), shaped(body.x(2)));
  }));
}
Var variance(Body& body) {
  AttrReader reader{body.attrs};
  auto const dims = reader.list();
  bool const keep = reader.flag();
  return in_wide(body.x(), [&](Var x) {
    Var const centered = x - call(mean, {x}, summed(dims, true));
    auto const mask = dim_mask("var", dims, x.rank());
    Dim count = 1;
    for (std::size_t d = 0; d < mask.size(); ++d)
      if (mask[d]) count = count * x.meta().sizes[d];
    Scalar const correction = body.attrs.nums[0];
    Var const total = call(sum, {centered * centered}, summed(dims, keep));
    if (correction.real == std::floor(correction.real)) {
      Dim const freedom = count - Dim(static_cast<std::int64_t>(correction.real));
      return freedom.value > 0 ? total / Var(freedom) : total / Var(0.0);
    }
    return total / Var(std::max(0.0, static_cast<double>(count.value) - correction.real));
  });
}

enum class Reduce { none, mean, sum };
Var reduced(Var loss, Reduce how) { return how == Reduce::none ? loss : call(how == Reduce::mean ? mean : sum, {loss}, summed({}, false)); }

// Negative log likelihood of `target` under log probabilities with classes in dim 1 (dim 0 without a batch), by weight, without ignored ones.
Var picked_loss(Var logp, Var target, Var weight, Dim ignore, Reduce how, double smoothing) {
  int const classes = logp.rank() == 1 ? 0 : 1;
  if (target.rank() != logp.rank() - 1) fail("cross_entropy: target {} does not fit input {}", to_string(target.meta()), to_string(logp.meta()));
  for (int d = 0; d < target.rank(); ++d)
    if (!same(target.size(d), logp.size(d < classes ? d : d + 1)))
      fail("cross_entropy: target size {} and input size {} differ ({}, {})", target.size(d).value, logp.size(d < classes ? d : d + 1).value,
           to_string(target.meta()), to_string(logp.meta()));
  Var const kept = call(ne, {target, Var(ignore)});
  Var const safe = choose(kept, target, Var(0));
  Var const index = call(unsqueeze, {safe}, dim(classes));
  auto const at_target = [&](Var x) { return call(squeeze, {call(gather, {x, index}, dim(classes))}, Attrs{}.with(Dims{Dim(classes)})); };
  Var const zero = Var(0.0);
  Var per_class = weight;  // [C] over the class dim of logp
  if (weight && classes == 1) {
    Dims sizes;
    for (int d = 0; d < logp.rank(); ++d) sizes.push_back(d == 1 ? logp.size(1) : Dim(1));
    per_class = call(reshape, {weight}, Attrs{}.with(sizes));
  }
  Var const share = weight ? at_target(call(expand, {per_class}, Attrs{}.with(logp.meta().sizes))) : Var();
  Var loss = -at_target(logp);
  if (weight) loss = loss * share;
  if (smoothing != 0) {
    Var const even = -call(sum, {weight ? logp * per_class : logp}, summed(Dims{Dim(classes)}, false)) / Var(logp.size(classes));
    loss = loss * (1 - smoothing) + even * smoothing;
  }
  loss = choose(kept, loss, zero);
  if (how != Reduce::mean) return reduced(loss, how);
  Var const count = weight ? choose(kept, share, zero) : cast(kept, logp.meta().dtype);
  return call(sum, {loss}, summed({}, false)) / call(sum, {count}, summed({}, false));
}
void cross_entropy_body(Body& body) {
  AttrReader reader{body.attrs};
  Dim const ignore = reader.number();
  auto const how = static_cast<Reduce>(reader.number().value);
  double const smoothing = body.attrs.nums[0].real;
  Dim const classes = body.x().rank() == 1 ? 0 : 1;
  if (body.x(1).meta().dtype != DType::i64) fail("cross_entropy: the target must be i64, not {}", base::info(body.x(1).meta().dtype).name);
  body.out.push_back(in_wide(body.x(), [&](Var x) {
    return picked_loss(call(log_softmax, {x}, dim(classes.value).with(Dim(absent))), body.x(1), body.x(2), ignore, how, smoothing);
  }));
}
void nll_loss_body(Body& body) {
  AttrReader reader{body.attrs};
  Dim const ignore = reader.number();
  body.out.push_back(picked_loss(body.x(0), body.x(1), body.x(2), ignore, static_cast<Reduce>(reader.number().value), 0));
}

// dropout keeps an element when its uniform number is at least p, and scales by 1 / (1 - p).
void dropout_body(Body& body) {
  AttrReader reader{body.attrs};
  bool const training = reader.flag();
  Dim const seed = reader.number(), offset = reader.number();
  double const p = body.attrs.nums[0].real;
  if (!(p >= 0 && p <= 1)) fail("dropout: p must lie in [0, 1], not {}", p);
  auto const& meta = body.x().meta();
  if (!training) return void(body.out.push_back(call(clone, {body.x()})));
  Var const noise = create(*body.x().emit, rand, Attrs{}.with(meta.sizes).with(seed).with(offset).with(DType::f32).with(meta.device));
  Var const kept = call(ge, {noise, num(body.attrs.nums[0])});
  body.out.push_back(p == 1 ? body.x() * 0.0 : choose(kept, body.x() * (1 / (1 - p)), 0.0));
}

// softmax(q kᵀ scale + mask) v; Vaswani et al. 2017. enable_gqa repeats each key and value head for its group of query heads.
void attention_body(Body& body) {
  AttrReader reader{body.attrs};
  bool const causal = reader.flag(), grouped = reader.flag();
  Var const q = body.x(0);
  Var k = body.x(1), v = body.x(2), mask = body.x(3);
  if (body.attrs.nums[0].real != 0)
    fail("scaled_dot_product_attention: dropout_p must be 0 here, not {}: call dropout on the weights", body.attrs.nums[0].real);
  if (causal && mask) fail("scaled_dot_product_attention: attn_mask and is_causal exclude each other");
  auto const repeated = [&](Var x) {
    Dim const heads = q.size(-3), own = x.size(-3);
    if (heads.value % own.value != 0) fail("scaled_dot_product_attention: {} query heads do not divide into {} key heads", heads.value, own.value);
    Dims wide = x.meta().sizes, flat = x.meta().sizes;
    Dims five(std::span<Dim const>(wide).first(wide.size() - 2));
    five.push_back(heads / own), five.push_back(x.size(-2)), five.push_back(x.size(-1));
    flat[flat.size() - 3] = heads;
    return call(reshape, {call(expand, {call(unsqueeze, {x}, dim(-3))}, Attrs{}.with(five))}, Attrs{}.with(flat));
  };
  if (grouped) k = repeated(k), v = repeated(v);
  body.out.push_back(in_wide(q, [&](Var wide) {
    Scalar const scale = body.attrs.nums[1];
    Var const factor = scale.kind == ScalarKind::none ? Var(1 / std::sqrt(static_cast<double>(q.size(-1).value))) : num(scale);
    Var scores = call(matmul, {wide, call(transpose, {widened(k)}, Attrs{}.with(Dim(-2)).with(Dim(-1)))}) * factor;
    double const lowest = -std::numeric_limits<double>::infinity();
    if (causal) {
      auto const range = [&](Dim n) {
        return create(*q.emit, arange, Attrs{}.with(Dim(absent)).with(q.meta().device).with_num(0).with_num(Scalar(n)).with_num(1));
      };
      Var const allowed = call(ge, {call(unsqueeze, {range(q.size(-2))}, dim(1)), range(k.size(-2))});
      scores = choose(allowed, scores, lowest);
    }
    if (mask) scores = mask.meta().dtype == DType::boolean ? choose(mask, scores, lowest) : scores + widened(mask);
    return call(matmul, {call(softmax, {scores}, dim(-1).with(Dim(absent))), widened(v)});
  }));
}
std::string softmax_equation(Attrs const& attrs, std::span<Meta const* const> in) { return whole_dim_equation(attrs, in); }
std::string norm_equation(Attrs const& attrs, std::span<Meta const* const> in) {
  AttrReader reader{attrs};
  auto const count = reader.list().size();
  auto const all = letters(in[0]->rank());
  std::string marked, tail;
  for (std::size_t d = 0; d < all.size(); ++d) {
    marked += all[d];
    if (d + count >= all.size()) marked += '!', tail += {all[d], '!'};
  }
  std::string left = marked;
  for (std::size_t k = 1; k < in.size(); ++k) left += in[k] ? "," + tail : "";
  return left + "->" + marked;
}
std::string loss_equation(Attrs const&, std::span<Meta const* const> in) {
  auto const all = letters(in[0]->rank());
  std::string marked, target;
  for (std::size_t d = 0; d < all.size(); ++d) marked += {all[d], '!'};
  for (std::size_t d = 0; d < all.size(); ++d)
    if (d != (all.size() == 1 ? 0u : 1u)) target += {all[d], '!'};
  std::string const klass = std::string(1, all.size() == 1 ? all[0] : all[1]) + "!";
  return marked + "," + target + (in.size() > 2 && in[2] ? "," + klass : "") + "->";
}
}  // namespace

// clang-format off
constinit const OpDef linear{.name = "linear", .kind = Kind::contraction, .signature = "Tensor input, Tensor weight, Tensor? bias=None",
    .equation = {.build = [](Attrs const&, std::span<Meta const* const> in) {
      auto const lead = letters(in[0]->rank() - 1, 2);
      return lead + "a,ba" + (in.size() > 2 && in[2] ? ",b" : "") + "->" + lead + "b";
    }},
    .terms = "aab", .combine = Monoid::sum, .mono = "...", .precision = Precision::low,
    .decompose = [](Body& b) {
      Var const x = b.x(0), w = b.x(1);
      if (w.rank() != 2 || x.rank() < 1) fail("linear: input {} and weight {} need ranks of at least 1 and exactly 2", to_string(x.meta()), to_string(w.meta()));
      if (!same(x.size(-1), w.size(1))) fail("linear: input has {} features, weight takes {}", x.size(-1).value, w.size(1).value);
      Var const product = call(matmul, {x, call(transpose, {w}, Attrs{}.with(Dim(0)).with(Dim(1)))});
      b.out.push_back(b.x(2) ? product + b.x(2) : product);
    }};
template <int rank>
void exact_product(Body& b) {
  if (b.x(0).rank() != rank || b.x(1).rank() != rank) fail("{}: operands need rank {}: {} and {}", rank == 2 ? "mm" : "bmm", rank, to_string(b.x(0).meta()), to_string(b.x(1).meta()));
  if (rank == 3 && !same(b.x(0).size(0), b.x(1).size(0))) fail("bmm: batches differ: {} and {}", b.x(0).size(0).value, b.x(1).size(0).value);
  b.out.push_back(call(matmul, {b.x(0), b.x(1)}));
}
constinit const OpDef mm{.name = "mm", .kind = Kind::contraction, .signature = "Tensor input, Tensor mat2", .equation = {"ac,cb->ab"}, .terms = "aa", .combine = Monoid::sum,
    .mono = "..", .precision = Precision::low, .decompose = exact_product<2>};
constinit const OpDef bmm{.name = "bmm", .kind = Kind::contraction, .signature = "Tensor input, Tensor mat2", .equation = {"dac,dcb->dab"}, .terms = "aa",
    .combine = Monoid::sum, .mono = "..", .precision = Precision::low, .decompose = exact_product<3>};
constinit const OpDef addmm{.name = "addmm", .kind = Kind::contraction, .signature = "Tensor input, Tensor mat1, Tensor mat2, *, float beta=1, float alpha=1",
    .equation = {.build = [](Attrs const&, std::span<Meta const* const> in) {
      auto const& s = in[0]->sizes;
      std::string bias;
      if (s.size() == 2) bias += s[0].value == 1 ? '1' : 'a';
      if (!s.empty()) bias += s[s.size() - 1].value == 1 ? '1' : 'b';
      return bias + ",ac,cb->ab";
    }},
    .terms = "abb", .combine = Monoid::sum, .mono = "+..", .precision = Precision::low,
    .decompose = [](Body& b) {
      auto const times = [](Var x, Scalar s) { return s.node < 0 && s.real == 1 ? x : x * num(s); };
      Var const product = times(call(mm, {b.x(1), b.x(2)}), b.attrs.nums[1]);
      Scalar const beta = b.attrs.nums[0];
      b.out.push_back(beta.node < 0 && beta.real == 0 ? product : product + times(b.x(0), beta));
    }};
constinit const OpDef softmax{.name = "softmax", .kind = Kind::normalise, .signature = "Tensor input, int dim, dtype? dtype=None", .equation = {.build = softmax_equation},
    .terms = "-", .mono = ".", .types = Types::real, .precision = Precision::wide, .cost = 12,
    .vjp = [](Vjp& v) {
      Var const gy = v.g() * v.y();
      v.grad(0) = gy - v.y() * call(sum, {gy}, summed(Dims{v.attrs.ints[0]}, true));
    }, .saves = saves_result, .decompose = along_dim<softmax_body>};
constinit const OpDef log_softmax{.name = "log_softmax", .kind = Kind::normalise, .signature = "Tensor input, int dim, dtype? dtype=None", .equation = {.build = softmax_equation},
    .terms = "-", .mono = ".", .types = Types::real, .precision = Precision::wide, .cost = 12,
    .vjp = [](Vjp& v) { v.grad(0) = v.g() - call(exp, {v.y()}) * call(sum, {v.g()}, summed(Dims{v.attrs.ints[0]}, true)); }, .saves = saves_result,
    .decompose = along_dim<log_softmax_body>};
constinit const OpDef logsumexp{.name = "logsumexp", .kind = Kind::reduction, .signature = "Tensor input, int[] dim, bool keepdim=False", .equation = {.build = reduce_equation},
    .terms = "-", .combine = Monoid::lse, .mono = "+", .types = Types::real, .precision = Precision::wide, .cost = 12,
    .decompose = [](Body& b) {
      AttrReader reader{b.attrs};
      auto const dims = reader.list();
      bool const keep = reader.flag();
      b.out.push_back(in_wide(b.x(), [&](Var x) {
        Var const top = call(amax, {x}, over(dims, true));
        Var const finite = choose(call(eq, {call(abs, {top}), std::numeric_limits<double>::infinity()}), 0.0, top);
        Var const total = call(log, {call(sum, {call(exp, {x - finite})}, summed(dims, true))}) + finite;
        return keep ? total : call(squeeze, {total}, Attrs{}.with(dims));
      }));
    }};
constinit const OpDef var{.name = "var", .kind = Kind::reduction, .signature = "Tensor input, int[] dim=[], *, float correction=1, bool keepdim=False",
    .equation = {.build = reduce_equation}, .terms = "-", .mono = ".", .precision = Precision::wide, .cost = 4, .decompose = [](Body& b) { b.out.push_back(variance(b)); }};
constinit const OpDef stddev{.name = "std", .kind = Kind::reduction, .signature = "Tensor input, int[] dim=[], *, float correction=1, bool keepdim=False",
    .equation = {.build = reduce_equation}, .terms = "-", .mono = ".", .precision = Precision::wide, .cost = 4,
    .decompose = [](Body& b) { b.out.push_back(call(sqrt, {variance(b)})); }};
constinit const OpDef layer_norm{.name = "layer_norm", .kind = Kind::normalise,
    .signature = "Tensor input, int[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float eps=1e-05", .equation = {.build = norm_equation}, .terms = "---",
    .mono = "...", .precision = Precision::wide, .cost = 8, .decompose = layer_norm_body};
constinit const OpDef rms_norm{.name = "rms_norm", .kind = Kind::normalise, .signature = "Tensor input, int[] normalized_shape, Tensor? weight=None, float? eps=None",
    .equation = {.build = norm_equation}, .terms = "--", .mono = "..", .precision = Precision::wide, .cost = 5, .decompose = rms_norm_body};
constinit const OpDef batch_norm{.name = "batch_norm.train", .kind = Kind::normalise,
    .signature = "Tensor input, Tensor? weight=None, Tensor? bias=None, bool training=True, *, float eps=1e-05",
    .equation = {.build = [](Attrs const&, std::span<Meta const* const> in) {
      auto text = letters(in[0]->rank());
      std::string marked;
      for (std::size_t d = 0; d < text.size(); ++d) marked += d == 1 ? std::string(1, text[d]) : std::string{text[d], '!'};
      std::string left = marked;
      for (std::size_t k = 1; k < in.size(); ++k) left += in[k] ? std::string(",") + text[1] : "";
      return left + "->" + marked;
    }},
    .terms = "---", .mono = "...", .precision = Precision::wide, .cost = 8, .decompose = batch_norm_body};
constinit const OpDef cross_entropy{.name = "cross_entropy", .kind = Kind::reduction,
    .signature = "Tensor input, Tensor target, Tensor? weight=None, int ignore_index=-100, none|mean|sum reduction=mean, float label_smoothing=0", .equation = {.build = loss_equation},
    .terms = "---", .mono = "...", .precision = Precision::wide, .cost = 14, .decompose = cross_entropy_body};
constinit const OpDef nll_loss{.name = "nll_loss", .kind = Kind::reduction,
    .signature = "Tensor input, Tensor target, Tensor? weight=None, int ignore_index=-100, none|mean|sum reduction=mean", .equation = {.build = loss_equation}, .terms = "---",
    .mono = "...", .precision = Precision::wide, .cost = 2, .decompose = nll_loss_body};
constinit const OpDef mse_loss{.name = "mse_loss", .kind = Kind::reduction, .signature = "Tensor input, Tensor target, none|mean|sum reduction=mean",
    .equation = {.build = [](Attrs const& attrs, std::span<Meta const* const> in) {
      auto const all = letters(in[0]->rank());
      return all + "," + all + "->" + (attrs.ints[0].value == 0 ? all : "");
    }},
    .terms = "--", .mono = "..", .precision = Precision::wide, .cost = 3,
    .decompose = [](Body& b) {
      Var const difference = b.x(0) - b.x(1);
      b.out.push_back(reduced(difference * difference, static_cast<Reduce>(b.attrs.ints[0].value)));
    }};
constinit const OpDef dropout{.name = "dropout", .kind = Kind::random, .signature = "Tensor input, float p=0.5, bool training=True, *, counter seed=0, counter offset=0",
    .equation = {.build = [](Attrs const&, std::span<Meta const* const> in) {
      std::string marked;
      for (char c : letters(in[0]->rank())) marked += {c, '+'};
      return marked + "->" + marked;
    }},
    .terms = "a", .mono = "+", .types = Types::first, .cost = 42, .decompose = dropout_body};
constinit const OpDef stack{.name = "stack", .kind = Kind::gather, .signature = "Tensor[] tensors, int dim=0",
    .equation = {.build = [](Attrs const& attrs, std::span<Meta const* const> in) {
      std::string left, all = letters(in[0]->rank());
      for (std::size_t k = 0; k < in.size(); ++k) left += (k ? "," : "") + all;
      auto to = all;
      to.insert(static_cast<std::size_t>(base::wrap_dim("stack", attrs.ints[0].value, in[0]->rank() + 1)), letters(1, in[0]->rank()) + "!");
      return left + "->" + to;
    }},
    .terms = "*", .mono = "*", .copy = true,
    .decompose = [](Body& b) {
      std::vector<Input> parts;
      if (b.in.empty()) fail("stack: needs at least one tensor");
      int const d = base::wrap_dim("stack", b.attrs.ints[0].value, b.x().rank() + 1);
      for (auto const& x : b.in) {
        bool fits = x.rank() == b.x().rank();
        for (int i = 0; fits && i < x.rank(); ++i) fits = same(x.size(i), b.x().size(i));
        if (!fits) fail("stack: {} and {} have different sizes", to_string(b.x().meta()), to_string(x.meta()));
        parts.push_back(call(unsqueeze, {x}, dim(d)).input);
      }
      b.out.emplace_back(*b.x().emit, b.x().emit->op(cat, parts, dim(d)));
    }};
constinit const OpDef flatten{.name = "flatten", .kind = Kind::view, .signature = "Tensor input, int start_dim=0, int end_dim=-1", .terms = "a", .mono = "+", .copy = true,
    .cost = 0,
    .decompose = [](Body& b) {
      Var const x = b.x();
      int const rank = std::max(x.rank(), 1), first = base::wrap_dim("flatten", b.attrs.ints[0].value, rank), last = base::wrap_dim("flatten", b.attrs.ints[1].value, rank);
      if (first > last) fail("flatten: start_dim {} lies behind end_dim {}", first, last);
      Dims sizes;
      Dim merged = 1;
      for (int d = 0; d < x.rank(); ++d) {
        if (d < first || d > last) sizes.push_back(x.size(d));
        if (d >= first && d <= last) merged = merged * x.size(d);
        if (d == last) sizes.push_back(merged);
      }
      if (x.rank() == 0) sizes.push_back(1);
      b.out.push_back(call(reshape, {x}, Attrs{}.with(sizes)));
    }};
// b batch, h heads, q queries, k keys, d and v features
constinit const OpDef scaled_dot_product_attention{.name = "scaled_dot_product_attention", .kind = Kind::contraction,
    .signature = "Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0, bool is_causal=False, *, float? scale=None, bool enable_gqa=False",
    .equation = {.build = [](Attrs const& attrs, std::span<Meta const* const> in) {
      bool const grouped = attrs.ints[1].value != 0;
      auto lead = letters(in[0]->rank() - 2, 4);
      std::string heads = lead;
      if (grouped) heads = lead.substr(0, lead.size() - 1) + letters(1, 30) + "!", lead += "!";
      std::string mask;
      if (in.size() > 3 && in[3]) {
        for (int d = 0; d < in[3]->rank() - 2; ++d) mask += in[3]->sizes[static_cast<std::size_t>(d)].value == 1 ? '1' : lead[lead.size() - static_cast<std::size_t>(in[3]->rank() - 2 - d)];
        mask = "," + mask + "ac!";
      }
      return lead + "ad!," + heads + "c!d!," + heads + "c!b" + mask + "->" + lead + "ab";
    }},
    .terms = "--a-", .mono = "....", .precision = Precision::low, .cost = 2, .decompose = attention_body};
// clang-format on

}  // namespace tenon::ir::ops
