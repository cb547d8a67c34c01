// Products of two tensors, as bodies over matmul and multiplication.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir::ops {
using base::fail;
extern OpDef const tensordot;

namespace {
void cross_body(Body& b) {
  Var const x = b.x(0), y = b.x(1);
  if (x.rank() != y.rank() || x.rank() == 0) fail("cross: needs equal ranks of at least 1: {} and {}", to_string(x.meta()), to_string(y.meta()));
  int dim = -1;
  if (b.attrs.ints[0].value != absent) dim = dim_of(x, b.attrs.ints[0]);
  for (int d = 0; dim < 0 && d < x.rank(); ++d)
    if (same(x.size(d), 3)) dim = d;
  if (dim < 0 || !same(x.size(dim), 3) || !same(y.size(dim), 3)) fail("cross: needs a dim of size 3 in {} and {}", to_string(x.meta()), to_string(y.meta()));
  auto const moved = [&](Var of, int by) { return call(roll, {of}, Attrs{}.with(std::array{Dim(-by)}).with(std::array{Dim(dim)})); };
  b.out.push_back(moved(x, 1) * moved(y, 2) - moved(x, 2) * moved(y, 1));
}
void tensordot_body(Body& b) {
  Var const x = b.x(0), y = b.x(1);
  auto const n = b.attrs.ints[0].value;
  if (n < 0 || n > x.rank() || n > y.rank()) fail("tensordot: {} dims of {} and {}", n, to_string(x.meta()), to_string(y.meta()));
  int const count = static_cast<int>(n), lead = x.rank() - count;
  Dim rows = 1, inner = 1, columns = 1;
  Dims sizes;
  for (int d = 0; d < lead; ++d) rows = rows * x.size(d), sizes.push_back(x.size(d));
  for (int d = 0; d < count; ++d) {
    if (!same(x.size(lead + d), y.size(d))) fail("tensordot: inner dims differ: {} and {}", x.size(lead + d).value, y.size(d).value);
    inner = inner * y.size(d);
  }
  for (int d = count; d < y.rank(); ++d) columns = columns * y.size(d), sizes.push_back(y.size(d));
  b.out.push_back(shaped(call(matmul, {shaped(x, std::array{rows, inner}), shaped(y, std::array{inner, columns})}), sizes));
}
// The dims of x that a list names, those of y that another does, each summed with its partner.
void lists_body(Body& b) {
  Var x = b.x(0), y = b.x(1);
  AttrReader reader{b.attrs};
  auto const left = reader.list(), right = reader.list();
  if (left.size() != right.size()) fail("tensordot: {} dims of one and {} of the other", left.size(), right.size());
  if (!left.empty() && (x.rank() == 0 || y.rank() == 0)) fail("tensordot: {} dims of {} and {}", left.size(), to_string(x.meta()), to_string(y.meta()));
  auto const order = [](Var of, std::span<Dim const> inner, bool last) {
    auto const mask = inner.empty() ? std::vector<bool>(static_cast<std::size_t>(of.rank()), false) : dim_mask("tensordot", inner, of.rank());
    Dims dims, named;
    for (int d = 0; d < of.rank(); ++d)
      if (!mask[static_cast<std::size_t>(d)]) dims.push_back(d);
    for (auto d : inner) named.push_back(dim_of(of, d));
    auto& all = last ? dims : named;
    for (auto d : last ? named : dims) all.push_back(d);
    return call(permute, {of}, Attrs{}.with(all));
  };
  auto const narrowed = [](Var of, std::span<Dim const> own, Var other, std::span<Dim const> theirs) {  // a size of 1 stands for all of its partner
    Dims dims;
    for (std::size_t k = 0; k < own.size(); ++k)
      if (same(other.size(dim_of(other, theirs[k])), 1) && !same(of.size(dim_of(of, own[k])), 1)) dims.push_back(own[k]);
    return dims.empty() ? of : cast(call(sum, {of}, summed(dims, true)), of.meta().dtype);
  };
  x = narrowed(x, left, b.x(1), right), y = narrowed(y, right, b.x(0), left);
  b.out.push_back(call(tensordot, {order(x, left, true), order(y, right, false)}, Attrs{}.with(Dim(left.size()))));
}
}  // namespace

// clang-format off
constinit const OpDef cross{.name = "cross", .kind = Kind::contraction, .signature = "Tensor input, Tensor other, int? dim=None", .terms = "aa", .mono = "..",
    .decompose = cross_body};
constinit const OpDef tensordot{.name = "tensordot", .kind = Kind::contraction, .signature = "Tensor a, Tensor b, int dims=2",
    .equation = {.build = [](Attrs const& attrs, std::span<Meta const* const> in) {
      int const n = static_cast<int>(attrs.ints[0].value), lead = in[0]->rank() - n, rest = in[1]->rank() - n;
      auto const left = letters(lead), inner = letters(n, lead), right = letters(rest, lead + n);
      return left + inner + "," + inner + right + "->" + left + right;
    }},
    .terms = "aa", .combine = Monoid::sum, .mono = "..", .precision = Precision::low, .decompose = tensordot_body};
constinit const OpDef tensordot_lists{.name = "tensordot.lists", .kind = Kind::contraction, .signature = "Tensor a, Tensor b, int[] dims_self, int[] dims_other",
    .equation = {.build = [](Attrs const& attrs, std::span<Meta const* const> in) {
      AttrReader reader{attrs};
      auto const left = reader.list(), right = reader.list();
      auto x = letters(in[0]->rank()), y = letters(in[1]->rank(), in[0]->rank()), result = x;
      std::string gone;
      for (std::size_t k = 0; k < left.size(); ++k) {
        auto const a = static_cast<std::size_t>(base::wrap_dim("equation", left[k].value, in[0]->rank())),
                   b = static_cast<std::size_t>(base::wrap_dim("equation", right[k].value, in[1]->rank()));
        std::erase(result, x[a]);
        auto const m = in[0]->sizes[a].value, n = in[1]->sizes[b].value;
        y[b] = n == 1 && m != 1 ? '1' : x[a];
        if (m == 1 && n != 1) y[b] = letters(1, in[0]->rank() + static_cast<int>(b))[0], x[a] = '1', gone += y[b];
      }
      for (char name : y)
        if (name != '1' && x.find(name) == std::string::npos && gone.find(name) == std::string::npos) result += name;
      return x + "," + y + "->" + result;
    }},
    .terms = "aa", .combine = Monoid::sum, .mono = "..", .precision = Precision::low, .decompose = lists_body};

namespace {
constexpr std::array rows{&cross, &tensordot, &tensordot_lists};
}
// clang-format on
std::span<OpDef const* const> product_rows() { return rows; }

}  // namespace tenon::ir::ops
