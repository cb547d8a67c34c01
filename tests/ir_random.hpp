#pragma once
// Random graphs of real ops. Include behind `import std; import tenon.base; import tenon.ir;`.
#include "op_samples.hpp"

namespace support {

/// What a random graph holds besides calls.
struct Wish {
  int nodes = 12;
  bool symbols = false;                   ///< sizes and numbers become symbols
  bool strides = false;                   ///< inputs lie in other memory than row by row
  bool ornaments = false;                 ///< names, places, devices, strides
  std::vector<std::string_view> calls{};  ///< lines of the sample table to draw from; empty: all of them
};
struct RandomGraph {
  tenon::ir::Graph graph;
  std::vector<Array> inputs;  ///< sizes are this run's values of the symbols
  std::vector<tenon::ir::Strided> elements() const;
};
/// A graph of sample calls that read one another's results where dtype, device and sizes agree; some calls are repeated, some lead nowhere.
RandomGraph random_graph(std::mt19937& random, Wish const& wish);
/// The numbers of a test's random cases, each made from its number alone: those that TENON_SEEDS names ("17" or "5000-9999"), else [0, count).
std::vector<int> seeds(int count);

}  // namespace support
