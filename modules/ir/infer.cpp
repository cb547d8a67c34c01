module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir {
using base::DType;
using base::fail;

namespace {
std::string operands_text(Inference const& call) {
  std::string text;
  for (std::size_t k = 0; k < call.in.size(); ++k) {
    if (k) text += ", ";
    text += call.in[k] ? to_string(*call.in[k]) : Symbols().to_string(call.scalars[k]);
  }
  return text;
}

// The PyTorch order: tensors with dims, then 0-d tensors, then numbers; a later group counts only when its category is higher.
std::optional<DType> combine(std::optional<DType> higher, std::optional<DType> lower) {
  if (!higher) return lower;
  if (!lower || base::is_real(*higher)) return higher;
  if (*higher == DType::boolean || base::is_real(*lower)) return base::promote(*higher, *lower);
  return higher;
}
DType dtype_of(Scalar const& scalar) {
  return scalar.kind == ScalarKind::boolean ? DType::boolean : scalar.kind == ScalarKind::whole ? DType::i64 : default_dtype();
}

thread_local DType wanted_default = DType::f32;

// The parameter that operand `place` stands for: "other".
std::string operand_name(OpDef const& op, std::size_t place) {
  std::size_t at = 0;
  for (auto const& parameter : signature(op).parameters) {
    if (parameter.type == Parameter::Type::tensors) return std::format("{}[{}]", parameter.name, place - at);
    if (parameter.type == Parameter::Type::tensor && at++ == place) return std::string(parameter.name);
  }
  return std::format("operand {}", place);
}
base::Device common_device(Inference const& call) {
  Meta const* first = nullptr;
  auto const operand = [&](Meta const& meta) {  // "other f32[3]"
    auto const place = static_cast<std::size_t>(std::ranges::find(call.in, &meta) - call.in.begin());
    Meta plain = meta;
    plain.device = {};
    return std::format("{} {}", operand_name(call.op, place), to_string(plain));
  };
  for (auto const* meta : call.in) {
    if (!meta) continue;
    bool const free_number = meta->rank() == 0 && meta->device.kind == base::Device::Kind::cpu;
    if (!first || (first->rank() == 0 && first->device.kind == base::Device::Kind::cpu && !free_number))
      first = meta;
    else if (meta->device != first->device && !free_number)
      fail("{}: operands on different devices: {} on {} and {} on {}; move one of them with to()", call.op.name, operand(*first),
           base::to_string(first->device), operand(*meta), base::to_string(meta->device));
  }
  return first ? first->device : base::Device{};
}

Dims broadcast_sizes(Inference const& call) {
  std::size_t rank = 0;
  for (auto const* meta : call.in)
    if (meta) rank = std::max(rank, meta->sizes.size());
  Dims sizes;
  sizes.resize(rank, Dim(1));
  for (auto const* meta : call.in) {
    if (!meta) continue;
    std::size_t const lead = rank - meta->sizes.size();
    for (std::size_t d = 0; d < meta->sizes.size(); ++d) {
      Dim& size = sizes[lead + d];
      Dim const other = meta->sizes[d];
      if (same(other, 1)) continue;
      if (same(size, 1))
        size = other;
      else if (!same(size, other))
        fail("{}: sizes {} and {} do not broadcast at dim {} of ({})", call.op.name, size.value, other.value, lead + d, operands_text(call));
    }
  }
  return sizes;
}

Dims equation_sizes(Inference const& call) {
  std::vector<Meta const*> metas;
  std::ranges::copy_if(call.in, std::back_inserter(metas), [](Meta const* meta) { return meta != nullptr; });
  auto const equation = parse_equation(equation_of(call.op, call.attrs, call.in));
  if (equation.results.size() != 1) throw base::Bug(std::format("{}: only one result is inferred from an equation", call.op.name));
  std::map<std::string, Dim> bound;
  for (std::size_t k = 0; k < metas.size(); ++k) {
    auto const& factors = equation.operands.at(k);
    if (factors.size() != metas[k]->sizes.size())
      fail("{}: operand {} must have rank {}, not {}: ({})", call.op.name, k, factors.size(), metas[k]->rank(), operands_text(call));
    for (std::size_t d = 0; d < factors.size(); ++d) {
      auto const [at, fresh] = bound.try_emplace(factors[d].letters, metas[k]->sizes[d]);
      if (!fresh && !same(at->second, metas[k]->sizes[d]))
        fail("{}: dim {} differs: {} and {} in ({})", call.op.name, factors[d].letters, at->second.value, metas[k]->sizes[d].value, operands_text(call));
    }
  }
  Dims sizes;
  for (auto const& factor : equation.results[0]) {
    if (factor.letters.empty()) {
      sizes.push_back(1);
      continue;
    }
    auto const found = bound.find(factor.letters);
    if (found == bound.end()) throw base::Bug(std::format("{}: size of new dim {} needs an infer rule", call.op.name, factor.letters));
    sizes.push_back(found->second);
  }
  return sizes;
}

void infer_view(Inference& call) {
  View view{call.attrs, call.x().dtype, call.x().sizes, call.x().strides, 0};
  if (!call.op.geometry(view)) {
    call.out.push_back(contiguous_meta(view.dtype, call.x().device, view.sizes));
    return;
  }
  Meta meta;
  meta.dtype = view.dtype;
  meta.device = call.x().device;
  meta.sizes = view.sizes;
  meta.strides = view.strides;
  call.out.push_back(std::move(meta));
}

void infer_body(Inference& call) {
  struct Shapes final : Emit {
    std::deque<Meta> metas;  // references stay valid while it grows
    int op(OpDef const& op, std::span<Input const> inputs, Attrs attrs) override {
      std::vector<Meta const*> in;
      std::vector<Scalar> scalars;
      for (auto const& input : inputs) {
        in.push_back(input.value < 0 ? nullptr : &metas[static_cast<std::size_t>(input.value)]);
        scalars.push_back(input.scalar);
      }
      int const first = static_cast<int>(metas.size());
      auto results = infer(op, in, scalars, attrs);
      for (auto& meta : results) metas.push_back(std::move(meta));
      return first;
    }
    Meta const& meta(int value) override { return metas[static_cast<std::size_t>(value)]; }
  } shapes;
  std::vector<Var> in;
  for (std::size_t k = 0; k < call.in.size(); ++k) {
    if (call.in[k]) {
      shapes.metas.push_back(*call.in[k]);
      in.emplace_back(shapes, static_cast<int>(shapes.metas.size()) - 1);
    } else {
      in.emplace_back(nullptr, Input{-1, call.scalars[k]});
    }
  }
  Body body{call.attrs, in};
  call.op.decompose(body);
  for (auto const& out : body.out) call.out.push_back(out.meta());
}
}  // namespace

namespace {
constexpr int most_dims = 52;  // an equation has no more letters

void check_operands(Inference const& call) {
  auto const& op = call.op;
  auto const& parameters = signature(op);
  if (auto const fault = attribute_fault(op, call.attrs); !fault.empty()) fail("{}: {}", op.name, fault);
  if (!parameters.variadic && std::cmp_not_equal(call.in.size(), parameters.operands))
    fail("{}: takes {} operands, not {}", op.name, parameters.operands, call.in.size());
  for (auto const* meta : call.in)
    if (meta && meta->rank() > most_dims) fail("{}: an operand has {} dims, more than {}", op.name, meta->rank(), most_dims);
  if (parameters.variadic && call.in.empty()) fail("{}: needs at least one tensor", op.name);
  auto const need_tensor = [&](std::size_t k, std::string_view name) {
    if (!call.in[k]) fail("{}: operand {} ({}) must be a tensor", op.name, k, name);
  };
  // A number may stand where broadcasting is all that asks for the operand, as long as one tensor is left.
  bool const numbers = op.kind == Kind::pointwise && std::ranges::any_of(call.in, [](Meta const* meta) { return meta != nullptr; });
  std::size_t operand = 0;
  for (auto const& parameter : parameters.parameters) {
    if (parameter.type == Parameter::Type::tensors)
      for (std::size_t k = 0; k < call.in.size(); ++k) need_tensor(k, parameter.name);
    if (parameter.type != Parameter::Type::tensor) continue;
    bool const given = call.in[operand] || call.scalars[operand].kind != ScalarKind::none;
    if (!given && !parameter.optional) fail("{}: operand {} ({}) is missing", op.name, operand, parameter.name);
    if (given && (!numbers || (operand == 0 && op.infer))) need_tensor(operand, parameter.name);
    ++operand;
  }
}
}  // namespace

namespace {
// A rule that forgets an attribute would read what lies behind the last one.
void check_attributes(OpDef const& op, Attrs const& attrs) {
  std::size_t ints = 0, nums = 0;
  bool complete = true;
  for (auto const& parameter : signature(op).parameters) switch (parameter.type) {
      case Parameter::Type::tensor:
      case Parameter::Type::tensors:
      case Parameter::Type::text:
        break;
      case Parameter::Type::real:
        ++nums;
        break;
      case Parameter::Type::reals:
        complete = complete && ints < attrs.ints.size();
        if (complete) nums += static_cast<std::size_t>(attrs.ints[ints++].value);
        break;
      case Parameter::Type::wholes:
      case Parameter::Type::sizes:
        complete = complete && ints < attrs.ints.size();
        if (complete) ints += 1 + static_cast<std::size_t>(attrs.ints[ints].value);
        break;
      default:
        ++ints;
    }
  if (complete && ints == attrs.ints.size() && nums == attrs.nums.size()) return;
  throw base::Bug(std::format("a call of {} does not give every attribute", op.name));
}
}  // namespace

namespace {
template <class F>
auto named(OpDef const& op, F act) try {
  return act();
} catch (base::Error const& error) {  // what a body or a helper refuses names the op that was called
  std::string_view const text = error.what();
  if (text.starts_with(op.name) && text.substr(op.name.size()).starts_with(':')) throw;
  fail("{}: {}", op.name, text);
}
bool depends_on_elements(Meta const& meta) {
  return std::ranges::any_of(meta.sizes, [](Dim size) { return size.value == absent; });
}
void check_size(Meta const& meta) {
  std::int64_t count = 1;
  bool good = true;
  for (auto size : meta.sizes) good = good && size.value >= 0 && !__builtin_mul_overflow(count, size.value, &count);
  if (good && count <= std::numeric_limits<std::int64_t>::max() / 16) return;
  if (base::numel(values(meta.sizes)) > std::numeric_limits<std::int64_t>::max() / 16) fail("a result {} is too large", base::to_string(values(meta.sizes)));
}
// The results as the row has them: a size that depends on elements is `absent`.
std::vector<Meta> inferred(OpDef const& op, std::span<Meta const* const> in, std::span<Scalar const> scalars, Attrs const& attrs) {
  Inference call{op, attrs, in, scalars, {}};
  check_operands(call);
  check_attributes(op, attrs);
  auto const device = op.kind == Kind::host ? base::Device{} : common_device(call);  // copy_ moves between devices
  if (op.infer)
    op.infer(call);
  else if (op.geometry)
    infer_view(call);
  else if (op.decompose && !op.element.real)
    infer_body(call);
  else
    call.out.push_back(contiguous_meta(result_type(call), device, op.kind == Kind::pointwise ? broadcast_sizes(call) : equation_sizes(call)));
  return std::move(call.out);
}
}  // namespace

DType default_dtype() { return wanted_default; }
void set_default_dtype(DType dtype) {
  if (!base::is_real(dtype)) fail("the default dtype must be floating, not {}", base::info(dtype).name);
  wanted_default = dtype;
}

std::vector<Meta> infer(OpDef const& op, std::span<Meta const* const> in, std::span<Scalar const> scalars, Attrs const& attrs) {
  return named(op, [&] {
    auto results = inferred(op, in, scalars, attrs);
    for (auto const& meta : results) {
      if (depends_on_elements(meta)) fail("the size of its result depends on elements, so no graph can hold it");
      check_size(meta);
    }
    return results;
  });
}

DType result_type(Inference const& call) {
  switch (call.op.types) {
    case Types::boolean:
      return DType::boolean;
    case Types::index:
      return DType::i64;
    case Types::first:
      return call.x().dtype;
    case Types::custom:
      base::ensure(false, std::format("{}: a custom result type needs an infer rule", call.op.name));
      break;
    case Types::promote:
    case Types::real:
      break;
  }
  base::InlineVector<DType, 4> dtypes;
  base::InlineVector<int, 4> ranks;
  for (auto const* meta : call.in) {
    dtypes.push_back(meta ? meta->dtype : DType::f32);
    ranks.push_back(meta ? meta->rank() : -1);
  }
  auto const type = common_type(dtypes, ranks, call.scalars);
  return call.op.types == Types::real && !base::is_real(type) ? default_dtype() : type;
}

DType common_type(std::span<DType const> dtypes, std::span<int const> ranks, std::span<Scalar const> scalars) {
  std::array<std::optional<DType>, 3> groups;
  for (std::size_t k = 0; k < ranks.size(); ++k) {
    if (ranks[k] < 0 && scalars[k].kind == ScalarKind::none) continue;
    auto& group = groups[ranks[k] < 0 ? 2 : ranks[k] == 0 ? 1 : 0];
    DType const type = ranks[k] < 0 ? dtype_of(scalars[k]) : dtypes[k];
    group = group ? base::promote(*group, type) : type;
  }
  return combine(groups[0], combine(groups[1], groups[2])).value_or(default_dtype());
}

std::vector<Meta> measure(OpDef const& op, std::span<Strided const> in, std::span<Scalar const> scalars, Attrs const& attrs, base::Device device) {
  std::vector<Meta> metas(in.size());
  std::vector<Meta const*> pointers(in.size());
  for (std::size_t k = 0; k < in.size(); ++k) {
    if (!in[k].data) continue;
    metas[k] = contiguous_meta(in[k].dtype, device, Dims(std::vector<Dim>(in[k].sizes.begin(), in[k].sizes.end())));
    pointers[k] = &metas[k];
  }
  return named(op, [&] {
    auto results = inferred(op, pointers, scalars, attrs);
    if (std::ranges::any_of(results, depends_on_elements)) {
      base::ensure(op.measured != nullptr, std::format("{} leaves sizes open and does not measure them", op.name));
      std::vector<Dims> sizes;
      for (auto const& meta : results) sizes.push_back(meta.sizes);
      op.measured({op, attrs, in, scalars, {}}, sizes);
      for (std::size_t k = 0; k < results.size(); ++k) results[k] = contiguous_meta(results[k].dtype, results[k].device, sizes[k]);
    }
    for (auto const& meta : results) check_size(meta);
    return results;
  });
}

}  // namespace tenon::ir
