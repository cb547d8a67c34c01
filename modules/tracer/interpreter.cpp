module tenon.tracer;
import std;
import tenon.base;
import tenon.ir;
import :session;

namespace tenon::tracer {
using base::ensure;

Interpreter& tape();  // autograd.cpp

namespace {
thread_local std::array<Interpreter*, 5> active{};  // by rank; autograd and eager are always there

struct Eager final : Interpreter {
  void bind(Call const& call, int, std::span<Tensor> results) override {
    auto const& op = call.op;
    if (&op == &copy_row) {
      Impl& target = *call.operands[0].impl;
      check(call);
      Impl const& source = *call.operands[1].impl;
      // Overlapping memory is read whole before it is written.
      bool const overlaps = source.storage == target.storage && (source.offset != target.offset || ir::values(source.meta->strides) != ir::values(target.meta->strides));
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
      check(call);
      return run_body(call, static_cast<int>(Rank::eager), results);
    }
    auto metas = check(call);
    std::vector<ir::Strided> in, out;
    std::vector<Scalar> scalars;
    for (auto const& operand : call.operands) {
      in.push_back(operand.impl ? memory_of(*operand.impl) : ir::Strided{});
      scalars.push_back(operand.scalar);
    }
    for (std::size_t k = 0; k < metas.size(); ++k) {
      results[k] = allocate(std::move(metas[k]));
      out.push_back(memory_of(*results[k].impl()));
    }
    ir::evaluate(op, in, scalars, call.attrs, out);
  }
  static std::vector<ir::Meta> check(Call const& call) {
    std::vector<ir::Meta const*> in;
    std::vector<Scalar> scalars;
    for (auto const& operand : call.operands) {
      in.push_back(operand.impl ? operand.impl->meta.get() : nullptr);
      scalars.push_back(operand.scalar);
    }
    return ir::infer(call.op, in, scalars, call.attrs);
  }
} eager;
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

Tensor apply(ir::OpDef const& op, std::span<Arg const> operands, ir::Attrs const& attrs, At at) {
  constexpr int top = static_cast<int>(Rank::autocast);
  base::InlineVector<Operand, 4> list;
  for (auto const& arg : operands) list.push_back({arg.impl.get(), arg.scalar});
  Call const call{op, list, attrs, at};
  Tensor result;
  if (op.kind == ir::Kind::view && !op.geometry)  // its result shares memory, so every interpreter must see the views it is made of
    run_body(call, top, {&result, 1});
  else
    dispatch(call, top, {&result, 1});
  return result;
}

ir::Var DispatchEmit::add(Tensor const& tensor) {
  values.push_back(tensor);
  auto* session = Session::current();
  metas.push_back(session ? session->meta_of(*tensor.impl(), at) : tensor.impl()->meta);
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
      ensure(impl != nullptr, std::format("a rule reads an operand that its row's `saves` does not name (in a call of {})", op.name));
    }
    list.push_back({impl, input.scalar});
  }
  Tensor result;
  Call const call{op, list, attrs, at};
  if (op.kind == ir::Kind::view && !op.geometry)
    run_body(call, from, {&result, 1});
  else
    dispatch(call, from, {&result, 1});
  values.push_back(result);
  auto* session = Session::current();
  metas.push_back(session ? session->meta_of(*result.impl(), at) : result.impl()->meta);
  return static_cast<int>(values.size()) - 1;
}

void run_body(Call const& call, int from, std::span<Tensor> results) {
  DispatchEmit emit(from, call.at);
  std::vector<ir::Var> in;
  for (auto const& operand : call.operands)
    in.push_back(operand.impl ? emit.add(Tensor(Ref<Impl>(operand.impl))) : ir::Var(nullptr, ir::Input{-1, operand.scalar}));
  ir::Body body{call.attrs, in};
  call.op.decompose(body);
  for (std::size_t k = 0; k < results.size(); ++k) results[k] = emit.tensor(body.out[k]);
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
