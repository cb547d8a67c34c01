// embedding_bag: rows of a table, summed, averaged or compared bag by bag.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir::ops {
using base::DType;
using base::fail;
namespace {
enum class Mode : std::uint8_t { sum, mean, max };
struct Bags {
  Var weight, places, offsets, shares;  ///< shares: of each sample, none if all count alike
  Mode mode{};
  bool ends = false;  ///< the last offset is the end of the last bag
  Dim padding = absent;
};
Bags bags_of(Body const& b) {
  AttrReader reader{b.attrs};
  Bags bags{b.x(0), b.x(1), b.x(2), b.x(3)};
  if (reader.num().kind != ScalarKind::none) fail("max_norm writes into the weight, which no pure function does: scale its rows before the call");
  reader.num();
  if (reader.flag()) fail("scale_grad_by_freq is not supported");
  bags.mode = static_cast<Mode>(reader.number().value);
  reader.flag();  // a sparse gradient is another layout of the same numbers
  bags.ends = reader.flag();
  bags.padding = reader.number();
  auto const &weight = bags.weight.meta(), &places = bags.places.meta();
  if (weight.rank() != 2 || !base::is_real(weight.dtype)) fail("the weight needs rank 2 and floating elements, not {}", to_string(weight));
  if (places.dtype != DType::i64 && places.dtype != DType::i32) fail("indices must be i64 or i32, not {}", to_string(places));
  if (places.rank() != 1 && places.rank() != 2) fail("indices need rank 1 or 2, not {}", to_string(places));
  if (static_cast<bool>(bags.offsets) != (places.rank() == 1))
    fail("offsets go with indices of rank 1, which {} {}", to_string(places), places.rank() == 1 ? "lacks" : "has not");
  if (bags.offsets) {
    auto const& offsets = bags.offsets.meta();
    if (offsets.rank() != 1 || (offsets.dtype != DType::i64 && offsets.dtype != DType::i32))
      fail("offsets must be whole numbers of rank 1, not {}", to_string(offsets));
    if (bags.ends && less(offsets.sizes[0], 1)) fail("include_last_offset needs at least one offset");
  } else if (bags.ends) {
    fail("include_last_offset needs offsets");
  }
  if (bags.shares) {
    auto const& shares = bags.shares.meta();
    if (bags.mode != Mode::sum) fail("per_sample_weights need mode sum");
    bool fits = shares.rank() == places.rank() && shares.dtype == weight.dtype;
    for (std::size_t d = 0; fits && d < places.sizes.size(); ++d) fits = same(shares.sizes[d], places.sizes[d]);
    if (!fits) fail("per_sample_weights {} do not fit weight {} and indices {}", to_string(shares), to_string(weight), to_string(places));
  }
  if (bags.padding.value != absent) {
    Dim const rows = weight.sizes[0];
    if (less(bags.padding, Dim(0) - rows) || !less(bags.padding, rows)) fail("padding_idx {} is out of range for {} rows", bags.padding.value, rows.value);
    if (less(bags.padding, 0)) bags.padding = bags.padding + rows;
  }
  return bags;
}
Var inserted(Var x, int dim) { return call(unsqueeze, {x}, at_dim(dim)); }
Var summed_over(Var x, int dim) { return call(sum, {x}, summed(std::array{Dim(dim)}, false)); }

// members [bags, samples]: whether a sample counts in a bag; rows [samples, d] or [bags, samples, d].
Var largest(Var rows, Var members) {
  Var const lowest = Var(-std::numeric_limits<double>::infinity());
  Var const open = choose(inserted(members, -1), rows, lowest);
  Var const best = nth(call(max_dim, {open}, at_dim(1).with(Dim(false))), 0);
  Var const filled = call(any, {members}, over(std::array{Dim(1)}, true));
  return choose(filled, best, Var(0.0));  // an empty bag is zeros
}
void bag_body(Body& b) {
  auto const bags = bags_of(b);
  b.out.push_back(in_wide(bags.weight, [&](Var weight) {
    auto const type = weight.meta().dtype;
    Var const places = bags.places;
    bool const flat = places.rank() == 1;
    Dim const samples = places.size(-1), count = flat ? (bags.ends ? bags.offsets.size(0) - 1 : bags.offsets.size(0)) : places.size(0);
    if (same(samples, 0) || same(count, 0))
      return create(*weight.emit, full, Attrs{}.with(std::array{count, weight.size(1)}).with(type).with(weight.meta().device).with_num(0.0));
    Var rows = call(embedding, {weight, places});
    Var kept;  // samples that are no padding
    if (bags.padding.value != absent) kept = call(ne, {places, Var(bags.padding)});
    if (bags.shares) rows = rows * inserted(cast(bags.shares, type), -1);
    Var bag;  // of each sample: how many offsets lie at or before it, less 1
    if (flat) bag = summed_over(call(le, {inserted(bags.offsets, 1), counting(places, samples)}), 0) - Var(1);
    if (bags.mode == Mode::max) {
      Var members = flat ? call(eq, {inserted(bag, 0), inserted(counting(places, count), 1)}) : call(eq, {places, places});
      if (kept) members = call(logical_and, {members, kept});
      return largest(rows, members);
    }
    if (kept) rows = choose(inserted(kept, -1), rows, Var(0.0));
    Var const ones =
        kept ? cast(kept, type) : create(*weight.emit, full, Attrs{}.with(places.meta().sizes).with(type).with(weight.meta().device).with_num(1.0));
    auto const gathered = [&](Var x) {  // over the samples of each bag
      if (!flat) return summed_over(x, 1);
      Dims sizes = x.meta().sizes;
      sizes[0] = bags.ends ? count + 1 : count;  // what lies behind the end of the last bag goes into one that is dropped
      Var const zeros = create(*x.emit, full, Attrs{}.with(sizes).with(type).with(x.meta().device).with_num(0.0));
      Var const sums = call(index_add, {zeros, bag, x}, at_dim(0).with_num(1.0));
      return bags.ends ? cut(sums, 0, 0, count) : sums;
    };
    Var const sums = gathered(rows);
    if (bags.mode == Mode::sum) return sums;
    return sums / inserted(call(maximum, {gathered(ones), Var(1.0)}), 1);
  }));
}
}  // namespace

// clang-format off
constinit const OpDef embedding_bag{.name = "embedding_bag", .kind = Kind::gather,
    .signature = "Tensor weight, Tensor input, Tensor? offsets=None, float? max_norm=None, float norm_type=2, bool scale_grad_by_freq=False, sum|mean|max mode=mean, bool sparse=False, "
                 "Tensor? per_sample_weights=None, bool include_last_offset=False, int? padding_idx=None",
    .terms = "----", .mono = "....", .decompose = bag_body};

namespace {
constexpr std::array rows{&embedding_bag};
}
// clang-format on
std::span<OpDef const* const> bag_rows() { return rows; }

}  // namespace tenon::ir::ops
