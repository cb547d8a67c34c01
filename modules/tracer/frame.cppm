// Shared by the .cpp files of this folder alone: one run of a segment, and why a segment did not fit.
module tenon.tracer:frame;
import std;
import tenon.base;
import tenon.ir;
import :tensor;
import :interpreter;
import :segment;

namespace tenon::tracer {

/// The tensors and numbers of one run of a segment. Results that nobody held when the run ended stay, to be handed out again by the next one.
struct Frame {
  std::vector<Ref<Impl>> slots;
  struct ViewOf {  ///< the Meta that a view had of a parent with that Meta, and its offset there
    ir::MetaRef parent, meta;
    std::int64_t offset = 0;
  };
  std::vector<ViewOf> views;
  ir::Bindings bindings;
  std::size_t event = 0;            ///< events matched so far
  std::int32_t constraints = 0;     ///< constraints that held so far
  std::vector<ir::Strided> inputs;  ///< as the backend was given them last, and of which Metas
  std::vector<ir::MetaRef> input_metas;
  std::vector<std::int32_t> outputs, escaped;  ///< of a launch: roots that somebody holds, and all results that somebody holds
};
/// A matched event as it was called this time; whoever matches or records it anew adopts its results.
struct Replayed {
  ir::OpDef const* op;
  std::vector<Operand> operands;
  ir::Attrs attrs;
  std::vector<Ref<Impl>> results;
  At at;
  std::string_view module;
};
/// What did not fit, as numbers: the sentence is made when it is wanted.
struct Misfit {
  enum Kind : std::uint8_t { none, settings, value, count, tensor, proxy, twice, relation, stream, operand, whole, real, behind, ending } kind = none;
  Segment const* segment = nullptr;
  std::int32_t at = 0,
               place = 0;  ///< guard, constraint or event; which of its operands or attributes; of a tensor at the entry 1 if its requires_grad differs, else 2
  Impl const* impl = nullptr;
  Call const* call = nullptr;
  Break const* end = nullptr;
};

}  // namespace tenon::tracer
