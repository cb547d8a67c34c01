// Rows that normalise along dims, as bodies over the core: small floats are computed in f32 inside and rounded once at the end.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir::ops {
using base::DType;
using base::fail;
namespace {
DType wish_or(AttrReader& reader, DType fallback) {
  auto const wish = reader.number().value;
  return wish == absent ? fallback : static_cast<DType>(wish);
}

// x - max(x) along dim, so that exp does not overflow; a row of -inf becomes NaN, as in PyTorch.
Var shifted(Var x, std::span<Dim const> dims) {
  if (same(product(x.meta().sizes), 0)) return x;
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
  DType const type = wish_or(reader, base::is_real(x.meta().dtype) ? x.meta().dtype : default_dtype());
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
    double const correction = pinned(body.attrs.nums[0]);
    Var const total = call(sum, {centered * centered}, summed(dims, keep));
    if (correction == std::floor(correction)) {
      Dim const freedom = count - Dim(base::truncate(correction));
      return less(Dim(0), freedom) ? total / Var(freedom) : total / Var(0.0);
    }
    return total / call(clamp, {lifted(Var(count), x) - correction}, Attrs{}.with_num(0.0).with_num(Scalar()));
  });
}

std::string statistic_equation(Attrs const& attrs, std::span<Meta const* const> in) {  // a vanishing dim must stay whole
  auto const plain = reduce_equation(attrs, in);
  auto const arrow = plain.find("->");
  std::string left;
  for (char c : plain.substr(0, arrow)) {
    left += c;
    if (plain.find(c, arrow) == std::string::npos) left += '!';
  }
  return left + plain.substr(arrow);
}
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
/// "a,b!,..." of norms by channel: dims from `dim` on stay whole, parameters lie along dim 1.
std::string channel_equation(std::span<Meta const* const> in, std::size_t dim) {
  auto const all = letters(in[0]->rank());
  std::string marked;
  for (std::size_t d = 0; d < all.size(); ++d) marked += std::string(1, all[d]) + (d >= dim ? "!" : "");
  auto left = marked;
  for (std::size_t k = 1; k < in.size(); ++k)
    if (in[k]) left += std::string(",") + all[1] + (dim <= 1 ? "!" : "");
  return left + "->" + marked;
}
Var along_channels(Var parameter, Var x) {
  if (parameter.rank() != 1 || !same(parameter.size(0), x.size(1)))
    fail("{} does not hold one number a channel of {}", to_string(parameter.meta()), to_string(x.meta()));
  Dims sizes;
  for (int d = 0; d < x.rank(); ++d) sizes.push_back(d == 1 ? x.size(1) : Dim(1));
  return call(reshape, {widened(parameter)}, Attrs{}.with(sizes));
}
Var shifted_and_scaled(Var y, Var weight, Var bias) {
  if (weight) y = y * along_channels(weight, y);
  return bias ? y + along_channels(bias, y) : y;
}
Var standardised(Var x, std::span<Dim const> dims, Scalar eps) {
  Var const centered = x - call(mean, {x}, summed(dims, true));
  return centered * call(rsqrt, {call(mean, {centered * centered}, summed(dims, true)) + num(eps)});
}
// Wu & He 2018.
void group_norm_body(Body& body) {
  Dim const groups = body.attrs.ints[0].value;
  if (body.x().rank() < 2) fail("group_norm: the input needs a batch and channels: {}", to_string(body.x().meta()));
  Dim const channels = body.x().size(1);
  if (groups.value <= 0 || !same(channels % groups, 0)) fail("group_norm: {} channels do not fall into {} groups", channels.value, groups.value);
  for (int d = 1; d < body.x().rank(); ++d)
    if (same(body.x().size(d), 0)) fail("group_norm: dim {} of {} is empty", d, to_string(body.x().meta()));
  body.out.push_back(in_wide(body.x(), [&](Var x) {
    Dims sizes{x.size(0), groups, channels / groups}, dims{Dim(2)};
    for (int d = 2; d < x.rank(); ++d) sizes.push_back(x.size(d)), dims.push_back(d + 1);
    Var const grouped = standardised(call(reshape, {x}, Attrs{}.with(sizes)), dims, body.attrs.nums[0]);
    return shifted_and_scaled(call(reshape, {grouped}, Attrs{}.with(x.meta().sizes)), body.x(1), body.x(2));
  }));
}
// Ulyanov et al. 2016. The caller updates running statistics; here they are only read, and only without those of the input.
void instance_norm_body(Body& body) {
  if (body.x().rank() < 3) fail("instance_norm: the input needs a batch, channels and more: {}", to_string(body.x().meta()));
  bool const own = body.attrs.ints[0].value != 0;
  if (!own && (!body.x(1) || !body.x(2))) fail("instance_norm: without the input's own statistics it needs running ones");
  body.out.push_back(in_wide(body.x(), [&](Var x) {
    Dims dims;
    for (int d = 2; d < x.rank(); ++d) dims.push_back(d);
    Scalar const eps = body.attrs.nums[1];
    Var const y = own ? standardised(x, dims, eps) : (x - along_channels(body.x(1), x)) * call(rsqrt, {along_channels(body.x(2), x) + num(eps)});
    return shifted_and_scaled(y, body.x(3), body.x(4));
  }));
}
}  // namespace

// clang-format off
constinit const OpDef softmax{.name = "softmax", .kind = Kind::normalise, .signature = "Tensor input, int dim, dtype? dtype=None", .equation = {.build = whole_dim_equation},
    .terms = "-", .mono = ".", .types = Types::real, .precision = Precision::wide, .cost = 12,
    .vjp = [](Vjp& v) {
      Var const y = widened(v.y()), gy = widened(v.g()) * y;
      v.grad(0) = gy - y * call(sum, {gy}, summed(Dims{v.attrs.ints[0]}, true));
    }, .saves = saves_result, .decompose = along_dim<softmax_body>};
constinit const OpDef log_softmax{.name = "log_softmax", .kind = Kind::normalise, .signature = "Tensor input, int dim, dtype? dtype=None", .equation = {.build = whole_dim_equation},
    .terms = "-", .mono = ".", .types = Types::real, .precision = Precision::wide, .cost = 12,
    .vjp = [](Vjp& v) {
      Var const g = widened(v.g());
      v.grad(0) = g - call(exp, {widened(v.y())}) * call(sum, {g}, summed(Dims{v.attrs.ints[0]}, true));
    }, .saves = saves_result,
    .decompose = along_dim<log_softmax_body>};
constinit const OpDef logsumexp{.name = "logsumexp", .kind = Kind::reduction, .signature = "Tensor input, int[] dim, bool keepdim=False", .equation = {.build = reduce_equation},
    .terms = "-", .combine = Monoid::lse, .mono = "+", .types = Types::real, .precision = Precision::wide, .cost = 12,
    .decompose = [](Body& b) {
      AttrReader reader{b.attrs};
      auto const dims = reader.list();
      bool const keep = reader.flag();
      b.out.push_back(in_wide(b.x(), [&](Var x) {
        auto const gone = dim_mask("logsumexp", dims, x.rank());
        bool empty = false;  // then there is no largest element, and the sum is 0
        for (int d = 0; d < x.rank(); ++d) empty |= gone[static_cast<std::size_t>(d)] && same(x.size(d), 0);
        Var const top = empty ? Var(0.0) : call(amax, {x}, over(dims, true));
        Var const finite = empty ? top : choose(call(eq, {call(abs, {top}), std::numeric_limits<double>::infinity()}), 0.0, top);
        Var const total = call(log, {call(sum, {call(exp, {x - finite})}, summed(dims, true))}) + finite;
        return keep ? total : call(squeeze, {total}, Attrs{}.with(dims));
      }));
    }};
constinit const OpDef var{.name = "var", .kind = Kind::reduction, .signature = "Tensor input, int[] dim=[], *, fixed correction=1, bool keepdim=False",
    .equation = {.build = statistic_equation}, .terms = "-", .mono = ".", .precision = Precision::wide, .cost = 4, .decompose = [](Body& b) { b.out.push_back(variance(b)); }};
constinit const OpDef stddev{.name = "std", .kind = Kind::reduction, .signature = "Tensor input, int[] dim=[], *, fixed correction=1, bool keepdim=False",
    .equation = {.build = statistic_equation}, .terms = "-", .mono = ".", .precision = Precision::wide, .cost = 4,
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
constinit const OpDef group_norm{.name = "group_norm", .kind = Kind::normalise,
    .signature = "Tensor input, int num_groups, Tensor? weight=None, Tensor? bias=None, float eps=1e-05",
    .equation = {.build = [](Attrs const&, std::span<Meta const* const> in) { return channel_equation(in, 1); }}, .terms = "---", .mono = "...", .precision = Precision::wide,
    .cost = 8, .decompose = group_norm_body};
constinit const OpDef instance_norm{.name = "instance_norm", .kind = Kind::normalise,
    .signature = "Tensor input, Tensor? running_mean=None, Tensor? running_var=None, Tensor? weight=None, Tensor? bias=None, bool use_input_stats=True, float momentum=0.1, "
                 "float eps=1e-05",
    .equation = {.build = [](Attrs const&, std::span<Meta const* const> in) { return channel_equation(in, 2); }}, .terms = "-----", .mono = ".....",
    .precision = Precision::wide, .cost = 8, .decompose = instance_norm_body};

namespace {
constexpr std::array rows{&softmax, &log_softmax, &logsumexp, &var, &stddev, &layer_norm, &rms_norm, &batch_norm, &group_norm, &instance_norm};
}
// clang-format on
std::span<OpDef const* const> norm_rows() { return rows; }

}  // namespace tenon::ir::ops
