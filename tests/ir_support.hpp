#pragma once
// Tensors for tests of ir and above. Include behind `import std; import tenon.base; import tenon.ir;`: it includes no header of a library.
#include "caught.hpp"

namespace support {

/// Elements that own their memory.
struct Array {
  tenon::base::Ref<tenon::base::Buffer> storage;
  tenon::ir::Strided at;
};

/// Row-major elements, zeros unless `values` gives them in row-major order.
Array array(tenon::base::DType dtype, tenon::base::Shape sizes, std::span<double const> values = {});
/// A row-major copy as another dtype.
Array converted(tenon::ir::Strided const& x, tenon::base::DType dtype);
/// The same elements in other memory: dims in another order, every second element only, or sizes of 1 with odd strides.
Array restrided(tenon::ir::Strided const& x, std::mt19937& random);
/// Elements in row-major order.
std::vector<double> reals(tenon::ir::Strided const& x);
/// Dtype, device, sizes and strides.
tenon::ir::Meta meta_of(tenon::ir::Strided const& x);

/// The largest |a - b|, infinite where only one is NaN or infinities differ.
double distance(std::span<double const> a, std::span<double const> b);
/// max(1, the largest finite |x|).
double scale_of(std::span<double const> x);

/// An operand of a call: a tensor, a number, or (neither) one that is not given.
struct Operand {
  std::optional<Array> tensor;
  tenon::ir::Scalar number{};
};
/// One call of an op.
struct Call {
  tenon::ir::OpDef const* op = nullptr;
  std::vector<Operand> operands;
  tenon::ir::Attrs attrs;
  std::string text;  ///< how to name it in a message
};
/// A graph of that call: tensor operands are its inputs, in order.
tenon::ir::Graph graph_of(Call const& call);
/// Its inputs.
std::vector<tenon::ir::Strided> inputs_of(Call const& call);
/// Appends sum(outputs * cotangents) over the real outputs as output 0, each cotangent a new input, then the gradients of inputs `wrt`.
tenon::ir::Graph gradient_graph(tenon::ir::Graph const& graph, std::span<int const> wrt);
/// Evaluates after decomposing.
tenon::ir::Evaluated run(tenon::ir::Graph const& graph, std::span<tenon::ir::Strided const> inputs);

/// A call that was evaluated at once, as eager execution does: sizes that depend on elements are measured.
struct AtOnce {
  std::vector<Array> results, gradients;
};
/// Evaluates it, and the gradients of tensor operands `wrt` (counted among tensors) when there are cotangents: one a floating result.
AtOnce run_at_once(Call const& call, std::span<Array const> cotangents = {}, std::span<int const> wrt = {});

/// The test tier's count: quick, default or full, by TENON_TIER.
int tier(int quick, int usual, int full);

}  // namespace support
