import std;
#include "bench.hpp"

namespace bench {
std::span<Group const> all() {
  static constexpr std::array groups{Group{"capture", capture_figures}, Group{"fusion", fusion_figures}, Group{"rows", rows_figures}};
  return groups;
}
}  // namespace bench
