#pragma once
// Elements compared exactly. Include behind `import std; import tenon.base; import tenon.ir;`: it includes nothing itself.

namespace support {

/// Elements as bits, every NaN alike.
inline std::vector<std::uint64_t> bits(tenon::ir::Strided const& x) {
  std::vector<std::uint64_t> all;
  tenon::ir::walk<1>(x.sizes, {&x.strides}, [&](auto const& at) {
    double const value = x.real(at[0]);
    all.push_back(std::isnan(value) ? 1 : tenon::base::is_real(x.dtype) ? std::bit_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(x.whole(at[0])));
  });
  return all;
}

}  // namespace support
