// The loops, compiled for each instruction set of x86-64 and chosen when the program runs.
module;
#pragma clang fp contract(fast)  // as compiled kernels have it
#include "prelude.c"
module tenon.fusion;
import std;
import tenon.base;
import tenon.ir;
import tenon.device;
import :blocks;

#pragma clang fp contract(fast)
namespace tenon::fusion {
using base::DType;
using ir::Monoid;

namespace {
namespace baseline {
#include "blocks_table.hpp"
}
#if defined(__x86_64__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
namespace avx2 {
#include "blocks_table.hpp"  // NOLINT(readability-duplicate-include): once for each instruction set
}
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl"))), apply_to = function)
namespace avx512 {
#include "blocks_table.hpp"  // NOLINT(readability-duplicate-include): once for each instruction set
}
#pragma clang attribute pop
#else
namespace avx2 = baseline;
namespace avx512 = baseline;
#endif
}  // namespace

Blocks const& blocks() {
  constexpr std::array sets{&baseline::set, &avx2::set, &avx512::set};
  return *sets[static_cast<std::size_t>(device::cpu().isa)];
}

BlockRow const* block_row(ir::OpDef const& op) {
  auto const& rows = blocks().rows;
  auto const row = std::ranges::find(rows, &op, &BlockRow::op);
  return row == rows.end() ? nullptr : &*row;
}

Total identity(Monoid combine) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  using whole = std::numeric_limits<std::int64_t>;
  switch (combine) {
    case Monoid::prod:
      return {1, 1};
    case Monoid::max:
      return {-inf, whole::min()};
    case Monoid::min:
      return {inf, whole::max()};
    default:
      return {0, 0};
  }
}

}  // namespace tenon::fusion
