export module tenon.tracer:scope;
import std;
import tenon.base;
import :tensor;
import :leaves;

export namespace tenon::tracer {

/// Says, while a layer's call runs, that the ops of this thread are the layer's: a recording then names it by the path of its tensors.
struct ModuleScope {
  using First = std::pair<Impl*, std::string>;  ///< the layer's first tensor and that tensor's path inside it
  template <HasFields Layer>
  explicit ModuleScope(Layer const& from) : ModuleScope(&from, first_of<Layer>) {}
  ModuleScope(void const* from, First (*first)(void const*));
  ModuleScope(ModuleScope const&) = delete;
  ~ModuleScope();
  /// The layer that runs on this thread, the inner one first; null if none does.
  static ModuleScope const* innermost();
  template <class Layer>
  static First first_of(void const* from) {
    for (auto const& [name, tensor] : named_tensors(*static_cast<Layer const*>(from)))
      if (tensor.defined()) return {tensor.impl(), name};
    return {};
  }
  void const* layer;
  First (*first_tensor)(void const* layer);
  ModuleScope const* outer;
  mutable std::string_view path{};  ///< as the recording `reader` found it
  mutable void const* reader = nullptr;
};

}  // namespace tenon::tracer
