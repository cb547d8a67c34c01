// Rules of ops that pick and place elements by an index operand, and of sorting. Indices are taken to be in range: what lies beyond is an Error in
// Tenon and clamped or dropped by XLA.
module tenon.ir;
import std;
import tenon.base;
import :hlo;
import :hlo_raise;

namespace tenon::ir::hlo {
using base::DType;
namespace {
using I = std::int64_t;

bool none(Term x) { return contains(x.sizes(), 0); }
Term whole_index(Term index) { return base::is_real(index.dtype()) ? convert(index, DType::i64) : index; }  // an empty one may have any dtype
// Adds in what sums need, booleans by or.
Term added(Term x, std::size_t axis, Term index, Term updates, decltype(put) place_by) {
  DType const type = x.dtype();
  if (type == DType::boolean) return place_by(x, axis, index, updates, "or");
  return convert(place_by(convert(x, working(type)), axis, index, convert(updates, working(type)), "add"), type);
}

void embedding(Raising& r) { r.out = {taken(r.x(0), 0, whole_index(r.x(1)))}; }
void embedding_grad(Raising& r) {
  Term const zeros = r.to.number(0, r.result());
  r.out = {none(r.x(0)) ? zeros : added(zeros, 0, r.x(1), r.x(0), put)};
}

// Operand, index and source with at least one dim: a 0-d one is its only element.
Sizes at_least_one(Term x, std::size_t rank) { return x.rank() == 0 ? Sizes(rank, 1) : x.sizes(); }
void gather(Raising& r) {
  Term const x = r.x(0), index = r.x(1);
  if (x.rank() == 0) return void(r.out = {broadcast(x, r.result().sizes)});
  Term const places = reshaped(whole_index(index), at_least_one(index, x.rank()));
  r.out = {reshaped(taken_each(x, place(r.node.attrs.ints[0], x.rank()), places), r.result().sizes)};
}
template <bool adds>
void scatter(Raising& r) {
  if (none(r.x(1))) return void(r.out = {r.x(0)});
  Term const x = reshaped(r.x(0), at_least_one(r.x(0), 1)), index = reshaped(r.x(1), at_least_one(r.x(1), 1));
  Term source = reshaped(r.x(2), at_least_one(r.x(2), 1));
  for (std::size_t d = 0; d < source.rank(); ++d) source = cut(source, d, 0, index.sizes()[d]);
  auto const axis = place(r.node.attrs.ints[0], x.rank());
  r.out = {reshaped(adds ? added(x, axis, index, source, put_each) : put_each(x, axis, index, source, {}), r.result().sizes)};
}
void index_select(Raising& r) {
  Term const x = r.x(0), index = r.x(1);
  if (x.rank() == 0) return void(r.out = {x});
  r.out = {reshaped(taken(x, place(r.node.attrs.ints[0], x.rank()), whole_index(index)), r.result().sizes)};
}
void index_add(Raising& r) {
  Term const x = r.x(0), index = reshaped(r.x(1), at_least_one(r.x(1), 1));
  double const alpha = r.attrs().num().real;
  DType const type = x.dtype();
  Term source = r.x(2);
  if (alpha != 1 && type != DType::boolean) {
    Term const wide = convert(source, working(type));
    source = convert(wide * (base::is_real(type) ? Term(alpha) : Term(base::truncate(alpha))), type);
  }
  if (alpha != 1 && type == DType::boolean) source = source & r.to.number(base::truncate(alpha) != 0, source.type());
  if (none(index)) return void(r.out = {x});
  if (x.rank() > 0) return void(r.out = {added(x, place(r.node.attrs.ints[0], x.rank()), index, source, put)});
  r.out = {type == DType::boolean ? x | source : convert(convert(x, working(type)) + convert(source, working(type)), type)};
}

// NaN is larger than any number; equal ones stay in order.
void sort(Raising& r) {
  Term const x = r.x(0);
  if (x.rank() == 0) return void(r.out = {x, r.to.number(0, r.result(1))});
  auto const axis = place(r.node.attrs.ints[0], x.rank());
  bool const descending = r.node.attrs.ints[1].value != 0, real = base::is_real(x.dtype());
  auto const before = r.to.region({x.dtype(), x.dtype(), DType::i64, DType::i64}, [&](std::span<Term const> keys) {
    if (!real) return compare(descending ? "GT" : "LT", keys[0], keys[1]);
    Term const a = keys[descending ? 1 : 0], b = keys[descending ? 0 : 1];
    return compare("LT", a, b) | (compare("NE", b, b) & compare("EQ", a, a));
  });
  r.out = r.to.write("sort", std::array{x, r.to.counting(r.result(1), axis)}, {r.result(0), r.result(1)},
                     {{"dimension", static_cast<I>(axis)}, {"is_stable", true}}, {before});
}
}  // namespace

std::span<Rule const> index_rules() {
  static constexpr Rule rules[] = {
      // clang-format off
      {.op = "embedding", .write = embedding},
      {.op = "embedding_grad", .write = embedding_grad},
      {.op = "gather", .write = gather},
      {.op = "scatter_add", .write = scatter<true>},
      {.op = "scatter", .write = scatter<false>},
      {.op = "index_select", .write = index_select},
      {.op = "index_add", .write = index_add},
      {.op = "sort", .write = sort},
      // clang-format on
  };
  return rules;
}

}  // namespace tenon::ir::hlo
