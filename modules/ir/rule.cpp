module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir {
using base::ensure;

Var call(OpDef const& op, std::initializer_list<Var> inputs, Attrs attrs) {
  Emit* emit = nullptr;
  std::vector<Input> in;
  for (auto const& var : inputs) {
    if (var.emit && !emit) emit = var.emit;
    in.push_back(var.input);
  }
  ensure(emit != nullptr, "a rule's call needs a tensor operand");
  return {*emit, emit->op(op, in, std::move(attrs))};
}

Var create(Emit& emit, OpDef const& op, Attrs attrs) { return {emit, emit.op(op, {}, std::move(attrs))}; }
Var zeros_like(Var x) {
  auto const& meta = x.meta();
  return create(*x.emit, ops::full, Attrs{}.with(meta.sizes).with(meta.dtype).with(meta.device).with_num(0.0));
}

namespace {
Attrs const one_alpha = Attrs{}.with_num(1.0);
}

Var num(Scalar number) { return {nullptr, Input{-1, number}}; }
Var lifted(Var number, Var like) {
  auto const& meta = like.meta();
  return create(*like.emit, ops::full, Attrs{}.with(std::span<Dim const>{}).with(meta.dtype).with(meta.device).with_num(number.input.scalar));
}
double pinned(Scalar const& number) {
  bool const whole = number.kind != ScalarKind::real;
  ensure(whole || number.node < 0, "a float that its signature calls fixed varies");
  if (whole) same(Dim(number.whole, number.node, number.owner), number.whole);
  return number.real;
}
Var choose(Var condition, Var yes, Var no) { return call(ops::where, {condition, yes, no}); }
Var reduced(Var loss, Dim how) { return how.value == 0 ? loss : call(how.value == 1 ? ops::mean : ops::sum, {loss}, summed({}, false)); }
Var cast(Var x, base::DType type) { return x.meta().dtype == type ? x : call(ops::to, {x}, Attrs{}.with(type)); }
Var widened(Var x) {
  auto const type = x.meta().dtype;
  return type == base::DType::f64 || type == base::DType::f32 ? x : cast(x, base::DType::f32);
}
Attrs over(std::span<Dim const> dims, bool keep) { return Attrs{}.with(dims).with(Dim(keep)); }
Attrs summed(std::span<Dim const> dims, bool keep) { return over(dims, keep).with(Dim(absent)); }
Attrs at_dim(std::int64_t dim) { return Attrs{}.with(Dim(dim)); }

namespace {
Var first_tensor(Body const& body) {
  auto const found = std::ranges::find_if(body.in, &Var::is_tensor);
  ensure(found != body.in.end(), "a body needs a tensor operand");
  return *found;
}
Var as_tensor(Var number, Var like, base::DType type) {
  auto const& kind = number.input.scalar;
  return create(*like.emit, ops::full, Attrs{}.with(std::span<Dim const>{}).with(type).with(like.meta().device).with_num(kind));
}
base::DType promoted(Body const& body) {
  std::vector<base::DType> dtypes;
  std::vector<int> ranks;
  std::vector<Scalar> scalars;
  for (auto const& x : body.in) {
    dtypes.push_back(x.is_tensor() ? x.meta().dtype : base::DType::f32);
    ranks.push_back(x.is_tensor() ? x.rank() : -1);
    scalars.push_back(x.input.scalar);
  }
  auto const type = common_type(dtypes, ranks, scalars);
  return base::is_real(type) ? type : default_dtype();
}
}  // namespace
Var tensor_of(Body const& body, int k) {
  Var const x = body.x(k), like = first_tensor(body);
  if (x.is_tensor() || !x) return x;
  bool const real = x.input.scalar.kind == ScalarKind::real;
  return as_tensor(x, like, real && !base::is_real(like.meta().dtype) ? default_dtype() : like.meta().dtype);
}
std::vector<Var> wide_operands(Body const& body) {
  auto const type = promoted(body) == base::DType::f64 ? base::DType::f64 : base::DType::f32;
  std::vector<Var> wide;
  for (auto const& x : body.in) wide.push_back(x.is_tensor() ? cast(x, type) : x ? as_tensor(x, first_tensor(body), type) : x);
  return wide;
}
void settle(Body& body, Var result) { body.out.push_back(cast(result, promoted(body))); }
Var nth(Var first, int k) { return {*first.emit, first.input.value + k}; }
Var concat(std::span<Var const> parts, Dim dim) {
  ensure(!parts.empty(), "a rule's cat needs parts");
  std::vector<Input> inputs;
  for (auto const& part : parts) inputs.push_back(part.input);
  return {*parts[0].emit, parts[0].emit->op(ops::cat, inputs, Attrs{}.with(dim))};
}
Var shaped(Var x, std::span<Dim const> sizes) { return call(ops::reshape, {x}, Attrs{}.with(sizes)); }
Var cut(Var x, Dim dim, Dim start, Dim end) { return call(ops::slice, {x}, Attrs{}.with(dim).with(start).with(end).with(Dim(1))); }
Var counting(Var like, Dim n) {
  return create(*like.emit, ops::arange, Attrs{}.with(Dim(absent)).with(like.meta().device).with_num(0).with_num(Scalar(n)).with_num(1));
}
Dims spread(std::span<Dim const> list, std::size_t dims, std::string_view what, Dim usual) {
  if (list.size() > 1 && list.size() != dims) base::fail("{} takes one number or {}, not {}", what, dims, list.size());
  Dims full;
  for (std::size_t d = 0; d < dims; ++d) full.push_back(list.empty() ? usual : list[list.size() == 1 ? 0 : d]);
  return full;
}
Dims at_least_one(std::span<Dim const> list, std::size_t dims, std::string_view what) {
  auto full = spread(list, dims, what, 1);
  for (Dim const step : full)
    if (less(step, 1)) base::fail("{} must be at least 1, not {}", what, step.value);
  return full;
}
int dim_of(Var x, Dim dim) { return base::wrap_dim("dim", dim.value, std::max(x.rank(), 1)); }

Var operator+(Var a, Var b) { return a.is_tensor() ? call(ops::add, {a, b}, one_alpha) : call(ops::add, {b, a}, one_alpha); }
Var operator-(Var a, Var b) { return call(ops::sub, {a, b}, one_alpha); }
Var operator*(Var a, Var b) { return a.is_tensor() ? call(ops::mul, {a, b}) : call(ops::mul, {b, a}); }
Var operator/(Var a, Var b) { return call(ops::div, {a, b}); }
Var operator-(Var a) { return call(ops::neg, {a}); }

Var sum_to(Var x, Dims const& sizes) {
  auto const& from = x.meta().sizes;
  std::size_t const lead = from.size() - sizes.size();
  Dims dims;
  for (std::size_t d = 0; d < from.size(); ++d)
    if (d < lead || (same(sizes[d - lead], 1) && !same(from[d], 1))) dims.push_back(Dim(d));
  if (dims.empty()) return x;
  Var summed = call(ops::sum, {x}, Attrs{}.with(dims).with(Dim(true)).with(Dim(absent)));
  return lead == 0 ? summed : call(ops::reshape, {summed}, Attrs{}.with(sizes));
}

namespace {
bool derived_through_body(OpDef const& op) { return !op.vjp && op.decompose; }

// The body runs on a tape of (op, inputs, results), then the tape is walked back.
struct Recorder final : Emit {
  struct Entry {
    OpDef const* op;
    std::vector<Var> in, out;
    Attrs attrs;
  };
  Emit& below;
  std::vector<Entry> entries{};
  explicit Recorder(Emit& emit) : below(emit) {}
  int op(OpDef const& op, std::span<Input const> inputs, Attrs attrs) override {
    int const first = below.op(op, inputs, attrs);
    Entry entry{&op, {}, {}, std::move(attrs)};
    for (auto const& in : inputs) entry.in.emplace_back(&below, in);
    for (int k = 0, n = result_count(op, inputs, entry.attrs); k < n; ++k) entry.out.emplace_back(below, first + k);
    entries.push_back(std::move(entry));
    return first;
  }
  Meta const& meta(int value) override { return below.meta(value); }
  int result_count(OpDef const& op, std::span<Input const> inputs, Attrs const& attrs) {
    if (op.results > 0) return op.results;
    std::vector<Meta const*> in;
    std::vector<Scalar> scalars;
    for (auto const& input : inputs) in.push_back(input.value >= 0 ? &meta(input.value) : nullptr), scalars.push_back(input.scalar);
    return static_cast<int>(infer(op, in, scalars, attrs).size());
  }
};

}  // namespace

void differentiate_body(OpDef const& op, Vjp& vjp) {
  Emit* below = nullptr;
  for (auto const& in : vjp.in)
    if (in.emit) below = in.emit;
  ensure(below != nullptr, "a gradient needs a tensor operand");
  Recorder recorder(*below);
  std::vector<Var> in;
  std::map<int, Var> gradient;
  std::set<int> live;  // values that a wanted operand reaches
  for (std::size_t k = 0; k < vjp.in.size(); ++k) {
    in.emplace_back(vjp.in[k].is_tensor() ? &recorder : nullptr, vjp.in[k].input);
    if (vjp.wanted[k]) live.insert(vjp.in[k].input.value);
  }
  Body body{vjp.attrs, in};
  op.decompose(body);
  for (auto const& entry : recorder.entries)
    if (std::ranges::any_of(entry.in, [&](Var const& v) { return live.contains(v.input.value); }) && (entry.op->vjp || entry.op->decompose))
      for (auto const& out : entry.out)
        if (base::is_real(out.meta().dtype)) live.insert(out.input.value);
  auto const accumulate = [&](int value, Var g) {
    auto [at, fresh] = gradient.try_emplace(value, g);
    if (!fresh) at->second = at->second + g;
  };
  for (std::size_t k = 0; k < body.out.size(); ++k)
    if (vjp.cotangents[k]) accumulate(body.out[k].input.value, vjp.cotangents[k]);
  for (auto entry = recorder.entries.rbegin(); entry != recorder.entries.rend(); ++entry) {
    std::vector<Var> cotangents;
    for (auto const& out : entry->out) {
      auto const g = gradient.find(out.input.value);
      cotangents.push_back(g != gradient.end() && live.contains(out.input.value) ? g->second : Var());
    }
    if (std::ranges::none_of(cotangents, [](Var const& v) { return static_cast<bool>(v); })) continue;
    auto wanted = std::make_unique<bool[]>(entry->in.size());
    for (std::size_t k = 0; k < entry->in.size(); ++k) wanted[k] = live.contains(entry->in[k].input.value);
    Vjp inner{entry->attrs, entry->in, entry->out, cotangents, {wanted.get(), entry->in.size()}, {}};
    differentiate(*entry->op, inner);
    for (std::size_t k = 0; k < inner.grads.size(); ++k)
      if (wanted[k] && inner.grads[k]) accumulate(entry->in[k].input.value, inner.grads[k]);
  }
  for (std::size_t k = 0; k < vjp.in.size(); ++k)
    if (vjp.wanted[k])
      if (auto const g = gradient.find(vjp.in[k].input.value); g != gradient.end()) vjp.grads[k] = g->second;
}

void differentiate(OpDef const& op, Vjp& vjp) {
  vjp.grads.assign(vjp.in.size(), Var{});
  if (derived_through_body(op)) return differentiate_body(op, vjp);
  if (!op.vjp) return;
  op.vjp(vjp);
  for (std::size_t k = 0; k < vjp.grads.size(); ++k) {
    if (!vjp.grads[k] || !vjp.in[k].is_tensor()) continue;
    if (op.kind == Kind::pointwise) vjp.grads[k] = sum_to(vjp.grads[k], vjp.in[k].meta().sizes);
    if (vjp.grads[k].meta().dtype != vjp.in[k].meta().dtype) vjp.grads[k] = call(ops::to, {vjp.grads[k]}, Attrs{}.with(vjp.in[k].meta().dtype));
  }
}

}  // namespace tenon::ir
