// Rows that are bodies over the core: one meaning each, no kernel of their own.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir::ops {
using base::DType;
using base::fail;
namespace {
// dropout keeps an element when its uniform number is at least p, and scales by 1 / (1 - p).
void dropout_body(Body& body) {
  AttrReader reader{body.attrs};
  bool const training = reader.flag();
  Dim const seed = reader.number(), offset = reader.number();
  double const p = pinned(body.attrs.nums[0]);
  if (!(p >= 0 && p <= 1)) fail("dropout: p must lie in [0, 1], not {}", p);
  auto const& meta = body.x().meta();
  if (!training) return void(body.out.push_back(call(clone, {body.x()})));
  Var const noise = create(*body.x().emit, rand, Attrs{}.with(meta.sizes).with(seed).with(offset).with(DType::f32).with(meta.device));
  Var const kept = call(ge, {noise, p});
  body.out.push_back(p == 1 ? body.x() * 0.0 : choose(kept, body.x() * (1 / (1 - p)), 0.0));
}

constexpr double lowest = -std::numeric_limits<double>::infinity();
Var attention_scale(Var q, Scalar const& scale) {
  Dim const features = q.size(-1).value;
  bool const usual = scale.kind == ScalarKind::none && same(q.size(-1), features);  // the number is for these features only
  return usual ? Var(1 / std::sqrt(static_cast<double>(features.value))) : num(scale);
}
// q kᵀ scale, with -inf where a causal query must not look; `q` as given, `wide` and `k` to compute with.
Var scaled_scores(Var q, Var wide, Var k, Scalar const& scale, bool causal) {
  Var const scores = call(matmul, {wide, call(transpose, {k}, Attrs{}.with(Dim(-2)).with(Dim(-1)))}) * attention_scale(q, scale);
  if (!causal) return scores;
  auto const range = [&](Dim n) {
    return create(*q.emit, arange, Attrs{}.with(Dim(absent)).with(q.meta().device).with_num(0).with_num(Scalar(n)).with_num(1));
  };
  return choose(call(ge, {call(unsqueeze, {range(q.size(-2))}, at_dim(1)), range(k.size(-2))}), scores, lowest);
}
// softmax(q kᵀ scale + mask) v; Vaswani et al. 2017. enable_gqa repeats each key and value head for its group of query heads.
void attention_body(Body& body) {
  AttrReader reader{body.attrs};
  bool const causal = reader.flag(), grouped = reader.flag();
  Var q = body.x(0), k = body.x(1), v = body.x(2), mask = body.x(3);
  if (std::min({q.rank(), k.rank(), v.rank()}) < (grouped ? 3 : 2))
    fail("query, key and value need a rank of at least {}: {}, {} and {}", grouped ? 3 : 2, to_string(q.meta()), to_string(k.meta()), to_string(v.meta()));
  for (int const rank = std::max({q.rank(), k.rank(), v.rank()}); Var * x : {&q, &k, &v})  // dims in front broadcast
    while (x->rank() < rank) *x = call(unsqueeze, {*x}, at_dim(0));
  if (double const p = pinned(body.attrs.nums[0]); p != 0)
    fail("scaled_dot_product_attention: dropout_p must be 0 here, not {}: call dropout on the weights", p);
  if (causal && mask) fail("scaled_dot_product_attention: attn_mask and is_causal exclude each other");
  auto const repeated = [&](Var x) {
    Dim const heads = q.size(-3), own = x.size(-3);
    if (same(own, 0) || !same(heads % own, 0)) fail("scaled_dot_product_attention: {} query heads do not divide into {} key heads", heads.value, own.value);
    Dims wide = x.meta().sizes, flat = x.meta().sizes;
    Dims five(std::span<Dim const>(wide).first(wide.size() - 2));
    five.push_back(heads / own), five.push_back(x.size(-2)), five.push_back(x.size(-1));
    flat[flat.size() - 3] = heads;
    return call(reshape, {call(expand, {call(unsqueeze, {x}, at_dim(-3))}, Attrs{}.with(five))}, Attrs{}.with(flat));
  };
  if (grouped) k = repeated(k), v = repeated(v);
  body.out.push_back(in_wide(q, [&](Var wide) {
    Var scores = scaled_scores(q, wide, widened(k), body.attrs.nums[1], causal);
    if (!mask) return call(matmul, {call(softmax, {scores}, at_dim(-1).with(Dim(absent))), widened(v)});
    scores = mask.meta().dtype == DType::boolean ? choose(mask, scores, lowest) : scores + widened(mask);
    Var const blind = call(all, {call(eq, {scores, lowest})}, over(Dims{-1}, true));  // rows that see no key give 0, not NaN, and so do their gradients
    Var const weights = choose(blind, 0.0, call(softmax, {choose(blind, 0.0, scores)}, at_dim(-1).with(Dim(absent))));
    return call(matmul, {weights, widened(v)});
  }));
}
bool same_batch(Vjp& v) {
  for (int k = 1; k < 3; ++k)
    if (v.x(k).rank() != v.x(0).rank()) return false;
  for (int d = 0; d + 2 < v.x(0).rank(); ++d)
    if (!same(v.x(0).size(d), v.x(1).size(d)) || !same(v.x(0).size(d), v.x(2).size(d))) return false;
  return true;
}
// With P = softmax(q kᵀ scale) and dS = P (dP - rowsum(dP P)): dq = dS k scale, dk = dSᵀ q scale, dv = Pᵀ g, dP = g vᵀ; no mask, equal batches.
void attention_grad_body(Body& body) {
  bool const causal = AttrReader{body.attrs}.flag();
  Var const g = widened(body.x(0)), q = widened(body.x(1)), k = widened(body.x(2)), v = widened(body.x(3));
  if (std::min({q.rank(), k.rank(), v.rank(), g.rank()}) < 2) fail("gradient, query, key and value need a rank of at least 2");
  auto const turned = [](Var x) { return call(transpose, {x}, Attrs{}.with(Dim(-2)).with(Dim(-1))); };
  Var const scores = scaled_scores(body.x(1), q, k, body.attrs.nums[0], causal), p = call(softmax, {scores}, at_dim(-1).with(Dim(absent)));
  Var const dp = call(matmul, {g, turned(v)});
  Var const ds = p * (dp - call(sum, {dp * p}, summed(Dims{-1}, true))) * attention_scale(body.x(1), body.attrs.nums[0]);
  body.out.push_back(cast(call(matmul, {ds, k}), body.x(1).meta().dtype));
  body.out.push_back(cast(call(matmul, {turned(ds), q}), body.x(2).meta().dtype));
  body.out.push_back(cast(call(matmul, {turned(p), g}), body.x(3).meta().dtype));
}
}  // namespace

// clang-format off
constinit const OpDef linear{.name = "linear", .kind = Kind::contraction, .signature = "Tensor input, Tensor weight, Tensor? bias=None",
    .equation = {.build = [](Attrs const&, std::span<Meta const* const> in) {
      auto const lead = letters(in[0]->rank() - 1, 2);
      std::string const columns = in[1]->rank() == 1 ? "" : "b";  // a vector of weights gives one number a row
      auto const bias = in.size() > 2 && in[2] ? "," + (in[2]->rank() == 0 ? "" : in[2]->sizes[0].value == 1 && in[1]->sizes[0].value != 1 ? "1" : columns) : "";
      return lead + "a," + columns + "a" + bias + "->" + lead + columns;
    }},
    .terms = "aab", .combine = Monoid::sum, .mono = "...", .precision = Precision::low,
    .decompose = [](Body& b) {
      Var const x = b.x(0), w = b.x(1);
      if (w.rank() < 1 || w.rank() > 2 || x.rank() < 1) fail("linear: input {} and weight {} need ranks of at least 1, and of 1 or 2", to_string(x.meta()), to_string(w.meta()));
      if (!same(x.size(-1), w.size(-1))) fail("linear: input has {} features, weight takes {}", x.size(-1).value, w.size(-1).value);
      if (b.x(2) && b.x(2).rank() >= w.rank()) fail("linear: bias {} does not fit weight {}", to_string(b.x(2).meta()), to_string(w.meta()));
      Var const product = call(matmul, {x, w.rank() == 1 ? w : call(transpose, {w}, Attrs{}.with(Dim(0)).with(Dim(1)))});
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
constinit const OpDef dropout{.name = "dropout", .kind = Kind::random, .signature = "Tensor input, fixed p=0.5, bool training=True, *, counter seed=0, counter offset=0",
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
        parts.push_back(call(unsqueeze, {x}, at_dim(d)).input);
      }
      b.out.emplace_back(*b.x().emit, b.x().emit->op(cat, parts, at_dim(d)));
    }};
// b batch, h heads, q queries, k keys, d and v features
constinit const OpDef scaled_dot_product_attention{.name = "scaled_dot_product_attention", .kind = Kind::contraction,
    .signature = "Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, fixed dropout_p=0, bool is_causal=False, *, float? scale=None, bool enable_gqa=False",
    .equation = {.build = [](Attrs const& attrs, std::span<Meta const* const> in) {
      bool const causal = attrs.ints[0].value != 0, grouped = attrs.ints[1].value != 0;
      int const batch = std::max({in[0]->rank(), in[1]->rank(), in[2]->rank()}) - 2;
      std::vector<std::string> lead;
      std::vector<std::int64_t> widest(static_cast<std::size_t>(batch), 1);
      for (int d = 0; d < batch; ++d) lead.push_back(letters(1, 4 + d) + (grouped && d == batch - 1 ? "!" : ""));
      auto const each = [&](std::size_t operand, auto f) {  // f(dim of the batch, size)
        auto const& own = in[operand]->sizes;
        for (std::size_t d = 0; d + 2 < own.size(); ++d) f(lead.size() + 2 - own.size() + d, own[d].value);
      };
      for (std::size_t operand = 0; operand < 3; ++operand)
        each(operand, [&](std::size_t d, std::int64_t size) { widest[d] = size != 1 ? size : widest[d]; });
      auto const front = [&](std::size_t operand) {
        std::string text;
        each(operand, [&](std::size_t d, std::int64_t size) {
          bool const heads = grouped && d + 1 == lead.size() && operand > 0;  // a group's heads stay together
          text += heads ? letters(1, 4 + batch) + "!" : size == 1 && widest[d] != 1 ? "1" : lead[d];
        });
        return text;
      };
      std::string all;
      for (auto const& name : lead) all += name;
      std::string const row = causal ? "a+" : "a";  // causal: the place of a query decides which keys it sees
      std::string mask;
      if (in.size() > 3 && in[3]) {
        auto names = lead;
        names.push_back(row), names.push_back("c!");
        auto const& sizes = in[3]->sizes;
        mask = ",";
        for (std::size_t d = 0; d < sizes.size(); ++d) mask += sizes[d].value == 1 ? "1" : names[names.size() - sizes.size() + d];
      }
      return front(0) + row + "d!," + front(1) + "c!d!," + front(2) + "c!b" + mask + "->" + all + row + "b";
    }},
    .terms = "--a-", .mono = "....", .precision = Precision::low, .cost = 2,
    .vjp = [](Vjp& v) {
      bool const causal = v.attrs.ints[0].value != 0, grouped = v.attrs.ints[1].value != 0;
      if (v.x(3) || grouped || !same_batch(v)) return differentiate_body(scaled_dot_product_attention, v);
      Attrs attrs = Attrs{}.with(Dim(causal)).with_num(v.attrs.nums[1]);
      Var const all = call(scaled_dot_product_attention_grad, {v.g(), v.x(0), v.x(1), v.x(2)}, attrs);
      for (int k = 0; k < 3; ++k)
        if (v.wants(k)) v.grad(k) = nth(all, k);
    }, .saves = 15, .decompose = attention_body};
constinit const OpDef scaled_dot_product_attention_grad{.name = "scaled_dot_product_attention_grad", .kind = Kind::contraction,
    .signature = "Tensor grad, Tensor query, Tensor key, Tensor value, bool is_causal=False, *, float? scale=None", .results = 3,
    .equation = {.build = [](Attrs const&, std::span<Meta const* const> in) {
      auto const lead = letters(in[1]->rank() - 2, 4);
      return lead + "a!b!," + lead + "a!d!," + lead + "c!d!," + lead + "c!b!->" + lead + "a!d!," + lead + "c!d!," + lead + "c!b!";
    }},
    .terms = "a---", .mono = "....", .precision = Precision::low, .cost = 3.5, .decompose = attention_grad_body};

namespace {
constexpr std::array rows{&linear, &mm, &bmm, &addmm, &dropout, &stack, &scaled_dot_product_attention, &scaled_dot_product_attention_grad};
}
// clang-format on
std::span<OpDef const* const> composite_rows() { return rows; }

}  // namespace tenon::ir::ops
