#pragma once
// A compiled function beside the body that it was made of. Include behind doctest and `import std; import tenon.base; import tenon.ir; import tenon.tracer;`:
// it includes nothing but bits.hpp.
#include "bits.hpp"

namespace support {
using tenon::tracer::Tensor;

/// All that can be seen of a tensor, each element by its bits.
inline std::string exactly(Tensor const& x) {
  if (!x.defined()) return "undefined";
  auto text = std::format("{} strides {}{}:", tenon::ir::to_string(x.meta()), tenon::base::to_string(x.strides()), x.requires_grad() ? " grad" : "");
  for (auto const element : bits(x.host())) text += std::format(" {:x}", element);
  return text;
}
/// The same of every tensor, number, flag, enum and text in a value.
template <class T>
std::string exactly(T const& value) {
  std::string text;
  auto visit = [&](tenon::tracer::Path const& path, auto& leaf) {
    using Leaf = std::remove_cvref_t<decltype(leaf)>;
    text += path.text() + " = ";
    if constexpr (std::is_same_v<Leaf, Tensor>)
      text += exactly(leaf);
    else if constexpr (std::is_same_v<Leaf, tenon::tracer::Length>)
      text += std::to_string(leaf.items);
    else if constexpr (std::is_enum_v<Leaf>)
      text += std::to_string(static_cast<std::int64_t>(leaf));
    else
      text += std::format("{}", leaf);
    text += '\n';
  };
  tenon::tracer::each_leaf(value, {}, visit);
  return text;
}
/// Whether two tensors lie at the same place of the same memory, and whether in the same memory at all.
inline bool same_place(Tensor const& a, Tensor const& b) { return a.impl()->storage == b.impl()->storage && a.impl()->offset == b.impl()->offset; }
inline bool same_memory(Tensor const& a, Tensor const& b) { return a.impl()->storage == b.impl()->storage; }

template <class Compiled>
int graphs(Compiled const& compiled) {
  return tenon::tracer::describe(compiled.state()).graphs;
}
/// The guards of one graph, a line each.
inline std::string guards_of(tenon::tracer::Explanation const& report, std::size_t graph = 0) {
  std::string text;
  for (auto const& guard : report.parts.at(graph).guards) text += guard.text + '\n';
  return text;
}
/// The text of the last recompile's reason; empty if there was none.
template <class Compiled>
std::string last_reason(Compiled const& compiled) {
  auto const report = tenon::tracer::describe(compiled.state());
  return report.recompiles.empty() ? std::string() : report.recompiles.back().reason.text;
}

/// A body and its compiled form: a call runs both, compares what they give exactly, and says how many graphs there are.
template <class F>
struct Twin {
  F body;
  tenon::tracer::Compiled<F> fast;
  explicit Twin(F fn, tenon::tracer::Options options = {}) : body(fn), fast(tenon::tracer::compile(fn, std::move(options))) {}
  template <class... Args>
  int operator()(Args&&... args) {
    auto const want = std::invoke(body, args...);
    auto const got = fast(args...);
    CHECK(exactly(got) == exactly(want));
    return graphs(fast);
  }
  std::string reason() const { return last_reason(fast); }
};

}  // namespace support
