// Shared by the .cpp files of this folder alone: what the tape keeps of a call, and how rules of ops call ops on tensors.
module tenon.tracer:tape;
import std;
import tenon.base;
import tenon.ir;
import :tensor;
import :interpreter;

namespace tenon::tracer {

/// The call behind a tensor that needs a gradient: what its rule reads, and where the gradients go.
struct TapeNode : base::RefCounted {
  struct Edge {          ///< one operand
    Ref<TapeNode> node;  ///< the call that made it,
    int result = 0;
    Ref<Impl> leaf;       ///< or the leaf that it is,
    bool wanted = false;  ///< or neither: no gradient flows there
    ir::MetaRef meta;     ///< null: a number
    Scalar scalar{};
    Ref<Impl> saved;  ///< a detached alias, where the rule reads the operand
    std::uint64_t version = 0;
  };
  ir::OpDef const* op = nullptr;
  ir::Attrs attrs;
  std::vector<Edge> edges;  ///< operands, then results; of a result: meta and, where the rule reads it, saved
  std::size_t operands = 0;
  inline std::span<Edge> inputs() { return std::span(edges).first(operands); }
  inline std::span<Edge> results() { return std::span(edges).subspan(operands); }
  std::uint64_t order = 0;  ///< calls made later have larger numbers
  At at;
  ~TapeNode();
};

/// Rules' calls, dispatched from rank `from`.
struct DispatchEmit final : ir::Emit {
  int from;
  At at;
  std::vector<Tensor> values{};
  std::vector<ir::MetaRef> metas{};
  DispatchEmit(int rank, At place) : from(rank), at(place) {}
  ir::Var add(Tensor const& tensor);
  ir::Var add(ir::MetaRef meta);  ///< a value whose elements the rule may not read
  int op(ir::OpDef const& op, std::span<ir::Input const> inputs, ir::Attrs attrs) override;
  ir::Meta const& meta(int value) override { return *metas[static_cast<std::size_t>(value)]; }
  inline Tensor const& tensor(ir::Var const& var) const { return values[static_cast<std::size_t>(var.input.value)]; }
};

}  // namespace tenon::tracer
