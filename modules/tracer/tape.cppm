// Shared by the .cpp files of this folder alone: what the tape keeps of a call, and how rules of ops call ops on tensors.
module tenon.tracer:tape;
import std;
import tenon.base;
import tenon.ir;
import :tensor;
import :interpreter;

namespace tenon::tracer {

/// The call behind a tensor that needs a gradient: what its rule reads, and where the gradients go. Of the nodes that nobody holds any more each
/// thread keeps some, whole, for its next calls.
struct TapeNode : base::RefCounted {
  struct Edge {          ///< an operand or a result
    Ref<TapeNode> node;  ///< of an operand: the call that made it,
    Ref<Impl> leaf;      ///< or the leaf that it is; neither: no gradient flows there
    ir::MetaRef meta;    ///< null: that of the result of `node`; a number has neither
    Ref<Storage> saved;  ///< where the rule reads the elements: their memory, with the identity and the place in it of a detached alias
    std::uint64_t id = 0;
    std::int64_t offset = 0;
    std::uint64_t version = 0;  ///< of that memory, when it was saved
    std::int32_t result = 0;    ///< which result: of `node`, or of the call itself
    bool view = false;
    Scalar scalar{};
    inline bool wanted() const { return node || leaf; }
  };
  ir::OpDef const* op = nullptr;
  std::uint64_t order = 0;  ///< larger than that of every call whose results are operands; on one thread, of every call before
  ir::Attrs attrs;
  At at;

  /// A node with that many empty edges.
  static Ref<TapeNode> make(ir::OpDef const& op, ir::Attrs const& attrs, At at, std::size_t operands, std::size_t results);
  inline std::span<Edge> inputs() { return edges().first(operands_); }
  inline std::span<Edge> results() { return edges().subspan(operands_); }
  /// What an edge knows of its tensor; null for a number.
  static inline ir::MetaRef const& meta(Edge const& edge) {
    return edge.meta || !edge.node ? edge.meta : edge.node->results()[static_cast<std::size_t>(edge.result)].meta;
  }
  static void operator delete(TapeNode* node, std::destroying_delete_t);

 private:
  struct Spares;
  inline std::span<Edge> edges() { return count_ > near_.size() ? std::span(far_) : std::span(near_).first(count_); }
  void clear();
  static constinit thread_local Spares spares;
  std::size_t operands_ = 0, count_ = 0;
  TapeNode* next_ = nullptr;  ///< of a node that nobody holds: in a list of such
  std::array<Edge, 4> near_;
  std::vector<Edge> far_;  ///< all of them, where they are more
};

/// Rules' calls, dispatched from rank `from`.
struct DispatchEmit final : ir::Emit {
  int from;
  At at;
  std::vector<Tensor> values{};
  std::vector<ir::MetaRef> metas{};
  DispatchEmit(int rank, At place) : from(rank), at(place) {}
  ir::Var add(Tensor const& tensor);
  ir::Var add(ir::MetaRef meta);                 ///< a value whose elements the rule may not read
  ir::MetaRef seen(Tensor const& tensor) const;  ///< what the rule may know of it
  int op(ir::OpDef const& op, std::span<ir::Input const> inputs, ir::Attrs attrs) override;
  ir::Meta const& meta(int value) override { return *metas[static_cast<std::size_t>(value)]; }
  inline Tensor const& tensor(ir::Var const& var) const { return values[static_cast<std::size_t>(var.input.value)]; }
};

}  // namespace tenon::tracer
