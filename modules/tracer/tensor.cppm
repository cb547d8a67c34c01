export module tenon.tracer:tensor;
import std;
import tenon.base;
import tenon.ir;

export namespace tenon::tracer {
using base::At;
using base::DType;
using base::Ref;
using ir::Dim;
using ir::Dims;
using ir::Scalar;

class Session;
struct TapeNode;

/// Memory that tensors share; `pending` names the capture that will fill it, null once its elements are there.
struct Storage : base::RefCounted {
  Ref<base::Buffer> buffer;
  std::atomic<std::uint64_t> version{0};  ///< counts writes
  Session* pending = nullptr;
};

/// What its user says of a tensor's dims: see mark_dynamic and mark_static.
struct Marks : base::RefCounted {
  struct Mark {
    bool dynamic = false, fixed = false;
    std::int64_t min = 2, max = std::numeric_limits<std::int64_t>::max();
  };
  std::vector<Mark> dims;
};
/// What a Tensor handle points to; `id` is its identity, kept by detached aliases.
struct Impl : base::RefCounted {
  std::uint64_t id;
  ir::MetaRef meta;
  std::int64_t offset = 0;  ///< in elements, from the start of the storage
  Ref<Storage> storage;
  bool requires_grad = false;
  bool view = false;   ///< made by a view op
  Ref<TapeNode> node;  ///< the call that made it, when a gradient flows through it
  int result = 0;      ///< which result of that call
  Ref<Impl> grad;
  Ref<Marks const> marks;
  Impl(std::uint64_t identity, ir::MetaRef about, std::int64_t start, Ref<Storage> memory);
  ~Impl();
};

class Tensor;
/// A number read from a tensor: it converts to double at once, or, in a capture with fullgraph, only when C++ asks.
struct Number {
  double value = 0;
  Ref<Impl> lazy;
  At at;
  Scalar exact = 0.0;  ///< the same, whole or boolean where the tensor is
  operator double() const;
};

/// Dims or sizes in a call: one number or a list.
struct DimList : Dims {
  DimList() = default;
  DimList(std::initializer_list<Dim> list) : Dims(list) {}
  template <std::integral T>
  DimList(T dim) : Dims{Dim(dim)} {}
  DimList(Dims const& list) : Dims(list) {}
  DimList(base::Shape const& list) {
    for (auto size : list) push_back(size);
  }
};

/// A strided array of one dtype whose handles share memory, with PyTorch's semantics: views alias, in-place ops end in "_".
class Tensor {
 public:
  Tensor() = default;
  inline explicit Tensor(Ref<Impl> impl) : impl_(std::move(impl)) {}
  inline bool defined() const { return static_cast<bool>(impl_); }
  inline Impl* impl() const { return impl_.get(); }
  inline Ref<Impl> const& ref() const { return impl_; }

  ir::Meta const& meta() const;
  inline DType dtype() const { return meta().dtype; }
  base::Device device() const { return meta().device; }
  inline int rank() const { return meta().rank(); }
  base::Shape shape() const;
  base::Shape strides() const;
  std::int64_t numel() const { return base::numel(shape()); }
  bool is_contiguous() const { return base::is_contiguous(shape(), strides()); }
  /// The size of dim d (negative: from the end) as a plain number, or as a Dim that a capture keeps symbolic.
  std::int64_t size(int d) const;
  Dim dim(int d, At at = At::current()) const;

  /// The only element; Error unless there is one. Breaks a capture (see Number).
  Number item(At at = At::current()) const;
  /// Every element in row-major order as T. Breaks a capture.
  template <class T>
  std::vector<T> to_vector(At at = At::current()) const {
    auto const memory = host(at);
    std::vector<T> items;
    items.reserve(static_cast<std::size_t>(base::numel(memory.sizes)));
    ir::walk<1>(memory.sizes, {&memory.strides}, [&](auto const& offset) {
      if constexpr (std::is_integral_v<T>)
        items.push_back(static_cast<T>(memory.whole(offset[0])));
      else
        items.push_back(static_cast<T>(memory.real(offset[0])));
    });
    return items;
  }
  /// The elements in memory, for reading on the host. Breaks a capture.
  ir::Strided host(At at = At::current()) const;
  /// Whether the only element is not zero. Breaks a capture at the line that made the value.
  explicit operator bool() const;
  /// "f32[2] {1, 2}" with every element; for small tensors.
  std::string to_string(At at = At::current()) const;

  inline bool requires_grad() const { return impl_ && (impl_->requires_grad || impl_->node); }
  Tensor& set_requires_grad(bool wanted = true);
  /// The accumulated gradient; undefined if there is none.
  Tensor grad() const { return Tensor(impl_->grad); }
  void set_grad(Tensor const& grad) { impl_->grad = grad.impl_; }
  /// Adds d(this)/d(leaf) into the grad of every leaf; `this` must have one element unless `seed` is given.
  void backward(Tensor const& seed = {}, At at = At::current()) const;
  /// The same memory without history.
  Tensor detach() const;

  Tensor& copy_(Tensor const& source, At at = At::current());
  Tensor& add_(Tensor const& other, double alpha = 1, At at = At::current());
  Tensor& mul_(Tensor const& other, At at = At::current());
  Tensor& mul_(double factor, At at = At::current());
  Tensor& fill_(double value, At at = At::current());
  Tensor& zero_(At at = At::current()) { return fill_(0, at); }
  /// Changes the sizes in place, keeping the elements that fit; breaks a capture.
  Tensor& resize_(DimList const& sizes, At at = At::current());

 private:
  Ref<Impl> impl_;
};

/// Says that a compiled function shall keep this size open from its first graph on, for all sizes from `min` to `max`; a function that needs one size
/// is then an Error that names the line. Sizes 0 and 1 have graphs of their own whatever `min` is. Error for a size outside of the range.
void mark_dynamic(Tensor const& x, int dim, std::int64_t min = 2, std::int64_t max = std::numeric_limits<std::int64_t>::max());
/// Says that this size is never to become a symbol, whatever sizes were seen; mark_dynamic overrides it.
void mark_static(Tensor const& x, int dim);

/// create_graph records the backward too, for second derivatives.
struct GradOptions {
  bool create_graph = false;
};
/// d(output)/d(input) for each input, without touching any grad; undefined where output does not depend on it.
std::vector<Tensor> gradients(Tensor const& output, std::span<Tensor const> inputs, Tensor const& seed = {}, GradOptions options = {}, At at = At::current());

}  // namespace tenon::tracer
