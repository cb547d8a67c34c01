export module tenon.ir:rule;
import std;
import tenon.base;
import :sym;
import :op;

export namespace tenon::ir {

/// Where rules of ops write their calls: a tape, a graph or eager execution.
struct Emit {
  virtual ~Emit() = default;
  /// Calls an op; returns its first result's id, the others follow it.
  virtual int op(OpDef const& op, std::span<Input const> inputs, Attrs attrs) = 0;
  virtual Meta const& meta(int value) = 0;
};

/// A value being computed by a rule: reads like mathematics, writes into `emit`.
struct Var {
  Emit* emit = nullptr;
  Input input{};
  Var() = default;
  inline Var(Emit& to, int value) : emit(&to), input{value, {}} {}
  inline Var(Emit* to, Input in) : emit(to), input(in) {}
  template <class T>
    requires std::is_arithmetic_v<T>
  Var(T number) : input{-1, Scalar(number)} {}
  inline Var(Dim number) : input{-1, Scalar(number)} {}
  inline explicit operator bool() const { return input.value >= 0 || input.scalar.kind != ScalarKind::none; }
  inline bool is_tensor() const { return input.value >= 0; }
  inline Meta const& meta() const { return emit->meta(input.value); }
  inline int rank() const { return meta().rank(); }
  inline Dim size(int dim) const { return meta().sizes[static_cast<std::size_t>(dim < 0 ? dim + rank() : dim)]; }
};
/// Calls an op on the emitter of the first tensor among `inputs`.
Var call(OpDef const& op, std::initializer_list<Var> inputs, Attrs attrs = {});
/// Calls an op without tensor operands, or with ones of `emit`.
Var create(Emit& emit, OpDef const& op, Attrs attrs);
/// A number as an operand.
Var num(Scalar number);
/// Zeros of the sizes, dtype and device of `x`.
Var zeros_like(Var x);
Var operator+(Var a, Var b);
Var operator-(Var a, Var b);
Var operator*(Var a, Var b);
Var operator/(Var a, Var b);
Var operator-(Var a);

/// One call for a rule: inputs, results, and per result the incoming gradient (empty Var: none); the rule fills `grads`.
struct Vjp {
  Attrs const& attrs;
  std::span<Var const> in, out, cotangents;
  std::span<bool const> wanted;
  std::vector<Var> grads;
  inline Var g(int k = 0) const { return cotangents[static_cast<std::size_t>(k)]; }
  inline Var x(int k = 0) const { return in[static_cast<std::size_t>(k)]; }
  inline Var y(int k = 0) const { return out[static_cast<std::size_t>(k)]; }
  inline bool wants(int k) const { return wanted[static_cast<std::size_t>(k)]; }
  inline Var& grad(int k) { return grads[static_cast<std::size_t>(k)]; }
};

/// What inference may read and must fill: one Meta a result; `meta` of an operand is null where a number stands.
struct Inference {
  OpDef const& op;
  Attrs const& attrs;
  std::span<Meta const* const> in;
  std::span<Scalar const> scalars;
  std::vector<Meta> out{};
  inline Meta const& x(int k = 0) const { return *in[static_cast<std::size_t>(k)]; }
};

/// Elements in memory: `data` points at the element of index 0.
struct Strided {
  std::byte* data = nullptr;
  base::DType dtype = base::DType::f32;
  base::Shape sizes{}, strides{};
  inline std::byte* at(std::int64_t offset) const { return data + offset * base::bytes_of(dtype); }
  inline double real(std::int64_t offset) const { return base::load_real(dtype, at(offset)); }
  inline std::int64_t whole(std::int64_t offset) const { return base::load_whole(dtype, at(offset)); }
  inline void set(std::int64_t offset, double value) const { base::store_real(dtype, at(offset), value); }
  inline void set_whole(std::int64_t offset, std::int64_t value) const { base::store_whole(dtype, at(offset), value); }
};
/// A call on memory; `scalars[k]` holds the number where operand k's data is not a tensor; symbolic attributes are plain here.
struct Kernel {
  OpDef const& op;
  Attrs const& attrs;
  std::span<Strided const> in;
  std::span<Scalar const> scalars;
  std::span<Strided> out;
};

/// A view's geometry: the rule turns the parent's sizes, strides and offset into its own; false if only a copy can do it.
struct View {
  Attrs const& attrs;
  base::DType dtype;
  Dims sizes, strides;
  Dim offset{};
};

/// Calls f(offsets) for every index of `sizes` in row-major order, with the element offset of each operand by its strides.
template <std::size_t N, class F>
void walk(base::Shape const& sizes, std::array<base::Shape const*, N> const& strides, F f) {
  if (std::ranges::find(sizes, 0) != sizes.end()) return;
  base::Shape index(sizes.size(), 0);
  std::array<std::int64_t, N> offsets{};
  for (;;) {
    f(offsets);
    std::size_t d = sizes.size();
    for (; d-- > 0;) {
      if (++index[d] < sizes[d]) {
        for (std::size_t k = 0; k < N; ++k) offsets[k] += (*strides[k])[d];
        break;
      }
      for (std::size_t k = 0; k < N; ++k) offsets[k] -= (*strides[k])[d] * (sizes[d] - 1);
      index[d] = 0;
    }
    if (d == std::size_t(-1)) return;
  }
}

/// A composite op's body: `in` and `attrs` to `out`.
struct Body {
  Attrs const& attrs;
  std::span<Var const> in;
  std::vector<Var> out{};
  Var x(int k = 0) const { return in[static_cast<std::size_t>(k)]; }
};

}  // namespace tenon::ir

namespace tenon::ir {  // for the rows
/// A number as a 0-d tensor of the dtype and device of `like`; its value in this run, which must then be its value in every run.
Var lifted(Var number, Var like);
double pinned(Scalar const& number);
/// A where; and a loss as its attribute none|mean|sum says.
Var choose(Var condition, Var yes, Var no), reduced(Var loss, Dim how);
/// `x` as another dtype; small floats and whole numbers as f32.
Var cast(Var x, base::DType type);
Var widened(Var x);
/// Runs `body` on the widened operand and rounds its result back to the operand's dtype.
template <class F>
Var in_wide(Var x, F body) {
  return cast(body(widened(x)), base::is_real(x.meta().dtype) ? x.meta().dtype : base::DType::f32);
}
/// Operands as tensors; all at least f32; `settle` rounds a result to their type; `differentiate_body` fills grads through the op's body.
Var tensor_of(Body const& body, int k);
std::vector<Var> wide_operands(Body const& body);
void settle(Body& body, Var result), differentiate_body(OpDef const& op, Vjp& vjp);
/// Attributes of amax and of sum, mean, prod (which end in a dtype); of ops with one dim.
Attrs over(std::span<Dim const> dims, bool keep), summed(std::span<Dim const> dims, bool keep), at_dim(std::int64_t dim);
}  // namespace tenon::ir
