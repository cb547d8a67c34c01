#pragma once
// What a random graph's results are held to. Include behind `import std; import tenon.base; import tenon.ir;`.
#include "ir_support.hpp"

namespace support {

/// The evaluator's results, and how far each element is decided by the inputs: where rounding elsewhere moves it, so may another order of operations.
class Reference {
 public:
  /// Keeps references to the graph and the inputs.
  Reference(tenon::ir::Graph const& graph, std::span<tenon::ir::Strided const> inputs, tenon::ir::Bindings bindings = {});

  tenon::ir::Evaluated const& value() const { return value_; }
  /// Empty if `actual` may stand for output k, else what is wrong: sizes, dtype, or a distance beyond the precision of the dtype at the tensor's scale, added
  /// to eight times what the last places of intermediate results move the element by.
  std::string fault(std::size_t k, tenon::ir::Strided const& actual);
  /// Whether some element was held to more than the precision of its dtype.
  bool shaky() const { return !spread_.empty(); }

 private:
  void find_spread();

  tenon::ir::Graph const& graph_;
  std::vector<tenon::ir::Strided> inputs_;
  tenon::ir::Bindings bindings_;
  tenon::ir::Evaluated value_;
  std::vector<std::vector<double>> spread_{};  // per output and element; empty as long as nobody needs it
};

}  // namespace support
