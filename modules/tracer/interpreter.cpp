module tenon.tracer;
import std;
import tenon.base;
import tenon.ir;
import :session;

namespace tenon::tracer {

Interpreter& tape();  // autograd.cpp

std::vector<ir::Meta> inferred(Call const& call) {
  std::vector<ir::Meta const*> in;
  std::vector<Scalar> scalars;
  for (auto const& operand : call.operands) {
    in.push_back(operand.impl ? operand.impl->meta.get() : nullptr);
    scalars.push_back(operand.scalar);
  }
  return ir::infer(call.op, in, scalars, call.attrs);
}

namespace {
thread_local std::array<Interpreter*, 5> active{};  // by rank; autograd and eager are always there

struct Eager final : Interpreter {
  void bind(Call const& call, int, std::span<Tensor> results) override {
    auto const& op = call.op;
    if (is_write(op)) {
      Impl& target = *call.operands[0].impl;
      (void)inferred(call);
      Impl const& source = *call.operands[1].impl;
      // Overlapping memory is read whole before it is written.
      bool const overlaps =
          source.storage == target.storage && (source.offset != target.offset || ir::values(source.meta->strides) != ir::values(target.meta->strides));
      Tensor const copy = overlaps ? allocate(ir::contiguous_meta(source.meta->dtype, source.meta->device, source.meta->sizes)) : Tensor();
      if (overlaps) copy_elements(memory_of(source), memory_of(*copy.impl()));
      copy_elements(overlaps ? memory_of(*copy.impl()) : memory_of(source), memory_of(target));
      ++target.storage->version;
      results[0] = Tensor(Ref<Impl>(&target));
      return;
    }
    if (op.geometry)
      if (auto view = view_of(*call.operands[0].impl, op, call.attrs)) return void(results[0] = std::move(*view));
    if (!ir::has_kernel(op)) {
      if (!op.decompose) base::fail("{}: has neither a kernel nor a body", op.name);
      (void)(op.measured ? measured(call) : inferred(call));
      return void(std::ranges::move(run_body(call, static_cast<int>(Rank::eager)), results.begin()));
    }
    auto metas = op.measured ? measured(call) : inferred(call);
    auto const [in, scalars] = memory(call);
    std::vector<ir::Strided> out;
    for (std::size_t k = 0; k < metas.size(); ++k) {
      results[k] = allocate(std::move(metas[k]));
      out.push_back(memory_of(*results[k].impl()));
    }
    ir::evaluate(op, in, scalars, call.attrs, out);
  }
  static std::pair<std::vector<ir::Strided>, std::vector<Scalar>> memory(Call const& call) {
    std::pair<std::vector<ir::Strided>, std::vector<Scalar>> operands;
    for (auto const& operand : call.operands) {
      operands.first.push_back(operand.impl ? memory_of(*operand.impl) : ir::Strided{});
      operands.second.push_back(operand.scalar);
    }
    return operands;
  }
  static std::vector<ir::Meta> measured(Call const& call) {
    auto const tensor = std::ranges::find_if(call.operands, [](Operand const& operand) { return operand.impl != nullptr; });
    auto const [in, scalars] = memory(call);
    return ir::measure(call.op, in, scalars, call.attrs, tensor == call.operands.end() ? base::Device{} : tensor->impl->meta->device);
  }
} eager;
}  // namespace

namespace {
// Its results share memory, so every interpreter must see the views that it is made of; or only its body knows how many there are.
bool runs_as_body(ir::OpDef const& op) { return op.results == 0 || (op.kind == ir::Kind::view && !op.geometry); }
}  // namespace

Active::Active(Rank rank, Interpreter* interpreter) : rank_(rank), outer_(std::exchange(active[static_cast<std::size_t>(rank)], interpreter)) {}
Active::~Active() { active[static_cast<std::size_t>(rank_)] = outer_; }

void dispatch(Call const& call, int from, std::span<Tensor> results) {
  for (int rank = from; rank > 0; --rank) {
    if (rank == static_cast<int>(Rank::autograd) && grad_enabled()) return tape().bind(call, rank - 1, results);
    if (auto* interpreter = active[static_cast<std::size_t>(rank)]) return interpreter->bind(call, rank - 1, results);
  }
  eager.bind(call, -1, results);
}

namespace {
// An operand that is neither a tensor nor a number stands for an optional one that is not given; elsewhere it is an undefined tensor.
void check_given(ir::OpDef const& op, std::size_t operand) {
  auto const& signature = ir::signature(op);
  std::size_t place = 0;
  for (auto const& parameter : signature.parameters) {
    bool const many = parameter.type == ir::Parameter::Type::tensors;
    if (!many && parameter.type != ir::Parameter::Type::tensor) continue;
    if (place++ != operand && !many) continue;
    if (!parameter.optional) base::fail("{}: operand '{}' is an undefined tensor", op.name, parameter.name);
    return;
  }
}
void check_given(ir::OpDef const& op, std::span<Arg const> operands) {
  for (std::size_t k = 0; k < operands.size(); ++k)
    if (!operands[k].impl && operands[k].scalar.kind == ir::ScalarKind::none) check_given(op, k);
}
}  // namespace

Tensor apply(ir::OpDef const& op, std::span<Arg const> operands, ir::Attrs const& attrs, At at) {
  constexpr int top = static_cast<int>(Rank::autocast);
  check_given(op, operands);
  Call const call{op, operands, attrs, at};
  if (runs_as_body(op)) return std::move(run_body(call, top)[0]);
  Tensor result;
  dispatch(call, top, {&result, 1});
  return result;
}

std::vector<Tensor> apply_all(ir::OpDef const& op, std::span<Arg const> operands, ir::Attrs const& attrs, At at) {
  constexpr int top = static_cast<int>(Rank::autocast);
  check_given(op, operands);
  Call const call{op, operands, attrs, at};
  if (runs_as_body(op)) return run_body(call, top);
  std::vector<Tensor> results(op.results);
  dispatch(call, top, results);
  return results;
}

ir::MetaRef DispatchEmit::seen(Tensor const& tensor) const {
  auto* session = Session::current();
  return session ? session->meta_of(*tensor.impl(), at) : tensor.impl()->meta;
}
ir::Var DispatchEmit::add(Tensor const& tensor) {
  values.push_back(tensor);
  metas.push_back(seen(tensor));
  return {*this, static_cast<int>(values.size()) - 1};
}
ir::Var DispatchEmit::add(ir::MetaRef meta) {
  values.emplace_back();
  metas.push_back(std::move(meta));
  return {*this, static_cast<int>(values.size()) - 1};
}
int DispatchEmit::op(ir::OpDef const& op, std::span<ir::Input const> inputs, ir::Attrs attrs) {
  base::InlineVector<Operand, 4> list;
  for (auto const& input : inputs) {
    Impl* impl = nullptr;
    if (input.value >= 0) {
      impl = values[static_cast<std::size_t>(input.value)].impl();
      if (!impl) throw base::Bug(std::format("a rule reads an operand that its row's `saves` does not name (in a call of {})", op.name));
    }
    list.push_back({impl, input.scalar});
  }
  Call const call{op, list, attrs, at};
  auto const first = static_cast<int>(values.size());
  if (runs_as_body(op)) {
    for (auto const& result : run_body(call, from)) (void)add(result);
    return first;
  }
  values.resize(values.size() + op.results);
  dispatch(call, from, std::span(values).last(op.results));
  for (auto const& result : std::span(values).last(op.results)) metas.push_back(seen(result));
  return first;
}

std::vector<Tensor> run_body(Call const& call, int from) {
  DispatchEmit emit(from, call.at);
  std::vector<ir::Var> in;
  for (auto const& operand : call.operands)
    in.push_back(operand.impl ? emit.add(Tensor(Ref<Impl>(operand.impl))) : ir::Var(nullptr, ir::Input{-1, operand.scalar}));
  ir::Body body{call.attrs, in};
  call.op.decompose(body);
  std::vector<Tensor> results;
  for (auto const& out : body.out) results.push_back(emit.tensor(out));
  return results;
}

std::optional<Tensor> view_of(Impl& parent, ir::OpDef const& op, ir::Attrs const& attrs) {
  ir::Attrs numbers = attrs;  // memory is about this run: no expressions
  for (auto& number : numbers.ints) number = Dim(number.value);
  ir::View view{numbers, parent.meta->dtype, parent.meta->sizes, parent.meta->strides, 0};
  if (!op.geometry(view)) return std::nullopt;
  auto meta = base::make_ref<ir::Meta>();
  meta->dtype = parent.meta->dtype;
  meta->device = parent.meta->device;
  meta->sizes = std::move(view.sizes);
  meta->strides = std::move(view.strides);
  auto impl = base::make_ref<Impl>(fresh_id(), ir::MetaRef(meta), parent.offset + view.offset.value, parent.storage);
  impl->view = true;
  return Tensor(std::move(impl));
}

void copy_elements(ir::Strided const& from, ir::Strided const& to) {
  base::Shape strides(to.sizes.size(), 0);
  std::size_t const lead = to.sizes.size() - from.sizes.size();
  for (std::size_t d = 0; d < from.sizes.size(); ++d)
    if (from.sizes[d] != 1) strides[lead + d] = from.strides[d];
  if (from.dtype == to.dtype) {
    auto const bytes = static_cast<std::size_t>(base::bytes_of(to.dtype));
    if (from.sizes == to.sizes && base::is_contiguous(to.sizes, to.strides) && base::is_contiguous(from.sizes, from.strides)) {
      std::memmove(to.data, from.data, static_cast<std::size_t>(base::numel(to.sizes)) * bytes);
      return;
    }
    ir::walk<2>(to.sizes, {&strides, &to.strides}, [&](auto const& at) { std::memmove(to.at(at[1]), from.at(at[0]), bytes); });
  } else if (base::is_real(from.dtype)) {
    ir::walk<2>(to.sizes, {&strides, &to.strides}, [&](auto const& at) { to.set(at[1], from.real(at[0])); });
  } else {
    ir::walk<2>(to.sizes, {&strides, &to.strides}, [&](auto const& at) { to.set_whole(at[1], from.whole(at[0])); });
  }
}

}  // namespace tenon::tracer
