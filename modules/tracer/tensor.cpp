module tenon.tracer;
import std;
import tenon.base;
import tenon.ir;
import :session;

namespace tenon::tracer {
using base::ensure;
using base::fail;

namespace {
std::atomic<std::uint64_t> next_block{0};
thread_local std::uint64_t next_id = 0, block_end = 0;
}  // namespace

std::uint64_t fresh_id() {  // each thread takes a block at a time
  constexpr std::uint64_t block = 1 << 16;
  if (next_id == block_end) next_id = next_block.fetch_add(1, std::memory_order_relaxed) * block + 1, block_end = next_id + block - 1;
  return next_id++;
}

Impl::Impl(std::uint64_t identity, ir::MetaRef about, std::int64_t start, Ref<Storage> memory)
    : id(identity), meta(std::move(about)), offset(start), storage(std::move(memory)) {}
Impl::~Impl() = default;

Tensor allocate(ir::Meta meta) {
  for (auto& size : meta.sizes) size = Dim(size.value);  // a Dim that left its capture is a plain number
  for (auto& stride : meta.strides) stride = Dim(stride.value);
  auto storage = base::make_ref<Storage>();
  storage->buffer = base::make_ref<base::Buffer>(base::numel(ir::values(meta.sizes)) * base::bytes_of(meta.dtype));
  return Tensor(base::make_ref<Impl>(fresh_id(), ir::MetaRef(new ir::Meta(std::move(meta))), 0, std::move(storage)));
}

ir::Strided memory_of(Impl const& impl) {
  if (impl.storage->pending) fail("a tensor {} is read outside the compiled call that still has to compute it", ir::to_string(*impl.meta));
  return {impl.storage->buffer->data() + impl.offset * base::bytes_of(impl.meta->dtype), impl.meta->dtype, ir::values(impl.meta->sizes),
          ir::values(impl.meta->strides)};
}

ir::Meta const& Tensor::meta() const {
  if (!impl_) fail("an undefined tensor is used");
  return *impl_->meta;
}
namespace {
void sizes_read() {
  if (auto* session = Session::current()) session->sizes_read();
}
}  // namespace
base::Shape Tensor::shape() const {
  sizes_read();
  return ir::values(meta().sizes);
}
base::Shape Tensor::strides() const {
  sizes_read();
  return ir::values(meta().strides);
}
std::int64_t Tensor::size(int d) const {
  sizes_read();
  return meta().sizes[static_cast<std::size_t>(base::wrap_dim("size", d, rank()))].value;
}
Dim Tensor::dim(int d, At at) const {
  sizes_read();  // its value is there to read
  auto const place = static_cast<std::size_t>(base::wrap_dim("dim", d, rank()));
  if (auto* session = Session::current()) return session->meta_of(*impl_, at)->sizes[place];
  return meta().sizes[place].value;
}

ir::Strided Tensor::host(At at) const {
  (void)meta();
  if (auto* session = Session::current())
    session->make_readable(*impl_, {BreakKind::host_read, "the host reads the elements of a tensor", "return the tensor and read it after the call", at});
  return memory_of(*impl_);
}

Number Tensor::item(At at) const {
  if (numel() != 1) fail("item: a tensor of {} elements ({}) has no single one", numel(), ir::to_string(meta()));
  if (auto* session = Session::current()) {
    if (session->fullgraph()) return {0, reshape(*this, {}, at).ref(), at};  // stays a tensor until C++ asks for the number
    session->make_readable(*impl_, {BreakKind::item, "item() turns a tensor into a number of the host", "keep the value a tensor", at});
  }
  auto const memory = memory_of(*impl_);
  Scalar const exact = dtype() == DType::boolean ? Scalar(memory.whole(0) != 0) : base::is_real(dtype()) ? Scalar(memory.real(0)) : Scalar(memory.whole(0));
  return {exact.real, {}, at, exact};
}
Number::operator double() const {
  if (!lazy) return value;
  if (auto* session = Session::current())
    session->make_readable(*lazy, {BreakKind::item, "a number read by item() is used by the host", "keep the value a tensor", at});
  return memory_of(*lazy).real(0);
}
Tensor::operator bool() const {
  if (numel() != 1) fail("a tensor of {} elements ({}) is no condition", numel(), ir::to_string(meta()));
  if (auto* session = Session::current()) {
    auto const at = session->made_at(*impl_);
    session->make_readable(*impl_,
                           {BreakKind::condition, "a tensor is used as a condition of the host", "choose between values with where()", at.value_or(At{})});
  }
  return memory_of(*impl_).real(0) != 0;
}

std::string Tensor::to_string(At at) const {
  if (!impl_) return "undefined";
  auto const memory = host(at);
  std::string text;
  std::int64_t count = 0;
  ir::walk<1>(memory.sizes, {&memory.strides}, [&](auto const& offset) {
    if (++count > 1000) return;
    text += text.empty() ? "" : ", ";
    text += base::is_real(memory.dtype) ? std::format("{:.6g}", memory.real(offset[0])) : std::to_string(memory.whole(offset[0]));
  });
  return std::format("{} {{{}{}}}", ir::to_string(meta()), text, count > 1000 ? std::format(", … {} more", count - 1000) : "");
}

Tensor& Tensor::set_requires_grad(bool wanted) {
  if (wanted && !base::is_real(dtype())) fail("only floating tensors have gradients, not {}", ir::to_string(meta()));
  if (impl_->node) fail("requires_grad is set on leaves only, not on the result of a call at {}", base::short_place(impl_->node->at));
  impl_->requires_grad = wanted;
  return *this;
}
Tensor Tensor::detach() const {
  (void)meta();
  auto alias = base::make_ref<Impl>(impl_->id, impl_->meta, impl_->offset, impl_->storage);
  alias->view = impl_->view;
  return Tensor(std::move(alias));
}

Tensor& Tensor::copy_(Tensor const& source, At at) {
  apply(ir::ops::copy_, {*this, source}, {}, at);
  return *this;
}
Tensor& Tensor::add_(Tensor const& other, double alpha, At at) { return copy_(apply(ir::ops::add, {*this, other}, ir::Attrs{}.with_num(alpha), at), at); }
Tensor& Tensor::mul_(Tensor const& other, At at) { return copy_(apply(ir::ops::mul, {*this, other}, {}, at), at); }
Tensor& Tensor::mul_(double factor, At at) { return copy_(apply(ir::ops::mul, {*this, Arg(factor)}, {}, at), at); }
Tensor& Tensor::fill_(double value, At at) { return copy_(full({}, value, dtype(), at), at); }

Tensor& operator+=(Tensor& a, Arg b) { return a.copy_(apply(ir::ops::add, {a, b}, ir::Attrs{}.with_num(1.0), b.at), b.at); }
Tensor& operator-=(Tensor& a, Arg b) { return a.copy_(apply(ir::ops::sub, {a, b}, ir::Attrs{}.with_num(1.0), b.at), b.at); }
Tensor& operator*=(Tensor& a, Arg b) { return a.copy_(apply(ir::ops::mul, {a, b}, {}, b.at), b.at); }
Tensor& operator/=(Tensor& a, Arg b) { return a.copy_(apply(ir::ops::div, {a, b}, {}, b.at), b.at); }

Tensor& Tensor::resize_(DimList const& sizes, At at) {
  if (requires_grad()) fail("resize_: a tensor that needs a gradient can't be resized");
  if (auto* session = Session::current())
    session->split({BreakKind::resize, "resize_ changes the sizes of a tensor in place", "make a new tensor of the wanted sizes", at});
  auto meta = ir::contiguous_meta(dtype(), device(), sizes);
  auto const bytes = (impl_->offset + base::numel(ir::values(meta.sizes))) * base::bytes_of(dtype());
  auto& buffer = impl_->storage->buffer;
  if (bytes > buffer->bytes()) {
    auto larger = base::make_ref<base::Buffer>(bytes);
    std::memcpy(larger->data(), buffer->data(), static_cast<std::size_t>(buffer->bytes()));
    std::memset(larger->data() + buffer->bytes(), 0, static_cast<std::size_t>(bytes - buffer->bytes()));
    buffer = std::move(larger);
  }
  impl_->meta = ir::MetaRef(new ir::Meta(std::move(meta)));
  ++impl_->storage->version;
  return *this;
}

}  // namespace tenon::tracer
