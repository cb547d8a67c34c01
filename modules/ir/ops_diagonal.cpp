// Rows about diagonals: the view, its gradient (which writes a diagonal into zeros), and bodies over the two.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir::ops {
using base::fail;
namespace {
struct Plane {
  Dim offset;
  std::size_t row, column;
};
Plane plane_of(AttrReader& reader, int rank) {
  Dim const offset = reader.number(), row = reader.number(), column = reader.number();
  if (rank < 2) fail("diagonal: needs a rank of at least 2, not {}", rank);
  Plane const plane{offset, static_cast<std::size_t>(base::wrap_dim("diagonal", row.value, rank)),
                    static_cast<std::size_t>(base::wrap_dim("diagonal", column.value, rank))};
  if (plane.row == plane.column) fail("diagonal: dim {} is named twice", plane.row);
  return plane;
}
void to_diagonal(View& view, Plane const& plane) {  // the dims of the plane go, the diagonal is the last one
  auto const [offset, row, column] = plane;
  bool const above = offset.value >= 0;
  Dim const rows = above ? view.sizes[row] : view.sizes[row] + offset, columns = above ? view.sizes[column] - offset : view.sizes[column];
  Dim const shorter = less(rows, columns) ? rows : columns, count = less(shorter, 0) ? Dim(0) : shorter;
  if (!same(count, 0)) view.offset = view.offset + (above ? offset * view.strides[column] : (Dim(0) - offset) * view.strides[row]);
  Dims sizes, strides;
  for (std::size_t d = 0; d < view.sizes.size(); ++d)
    if (d != row && d != column) sizes.push_back(view.sizes[d]), strides.push_back(view.strides[d]);
  sizes.push_back(count), strides.push_back(view.strides[row] + view.strides[column]);
  view.sizes = sizes, view.strides = strides;
}
bool diagonal_geometry(View& view) {
  AttrReader reader{view.attrs};
  to_diagonal(view, plane_of(reader, static_cast<int>(view.sizes.size())));
  return true;
}
std::string plane_equation(Plane const& plane, int rank, bool back) {
  std::string wide, narrow_side;
  for (int d = 0; d < rank; ++d) {
    bool const in_plane = std::cmp_equal(d, plane.row) || std::cmp_equal(d, plane.column);
    wide += letters(1, d) + (in_plane ? "!" : "");
    if (!in_plane) narrow_side += letters(1, d);
  }
  narrow_side += letters(1, rank) + "!";
  return back ? narrow_side + "->" + wide : wide + "->" + narrow_side;
}
struct Target {
  Meta parent;
  View view;
};
Target target_of(Attrs const& attrs, base::DType dtype, base::Device device) {
  AttrReader reader{attrs};
  Dims const sizes(reader.list());
  auto parent = contiguous_meta(dtype, device, sizes);
  View view{attrs, dtype, parent.sizes, parent.strides, 0};
  to_diagonal(view, plane_of(reader, static_cast<int>(sizes.size())));
  return {std::move(parent), std::move(view)};
}
void evaluate_diagonal_grad(Kernel const& kernel) {
  auto const &g = kernel.in[0], &y = kernel.out[0];
  auto const target = target_of(kernel.attrs, y.dtype, {});
  auto const bytes = static_cast<std::size_t>(base::bytes_of(y.dtype));
  std::memset(y.data, 0, static_cast<std::size_t>(base::numel(y.sizes)) * bytes);
  auto const strides = values(target.view.strides);
  walk<2>(g.sizes, {&g.strides, &strides}, [&](auto const& at) { std::memcpy(y.at(target.view.offset.value + at[1]), g.at(at[0]), bytes); });
}
Attrs plane_attrs(Dim offset, Dim row, Dim column) { return Attrs{}.with(offset).with(row).with(column); }
Var written(Var diagonal_values, Dims const& sizes, Dim offset, Dim row, Dim column) {
  return call(diagonal_grad, {diagonal_values}, Attrs{}.with(sizes).with(offset).with(row).with(column));
}
Var embedded(Var x, Dim offset, Dim first, Dim second) {
  if (x.rank() < 1) fail("a 0-d tensor is no diagonal");
  int const rank = x.rank() + 1;
  auto const row = base::wrap_dim("diag_embed", first.value, rank), column = base::wrap_dim("diag_embed", second.value, rank);
  if (row == column) fail("diag_embed: dim {} is named twice", row);
  Dim const size = x.size(-1) + (offset.value < 0 ? Dim(0) - offset : offset);
  Dims sizes;
  for (int d = 0, next = 0; d < rank; ++d) sizes.push_back(d == row || d == column ? size : x.size(next++));
  return written(x, sizes, offset, row, column);
}
}  // namespace

// clang-format off
constinit const OpDef diagonal{.name = "diagonal", .kind = Kind::view, .signature = "Tensor input, int offset=0, int dim1=0, int dim2=1",
    .equation = {.build = [](Attrs const& attrs, std::span<Meta const* const> in) {
      AttrReader reader{attrs};
      return plane_equation(plane_of(reader, in[0]->rank()), in[0]->rank(), false);
    }},
    .terms = "a", .mono = "+", .copy = true, .types = Types::first, .cost = 0,
    .vjp = [](Vjp& v) { v.grad(0) = written(v.g(), v.x().meta().sizes, v.attrs.ints[0], v.attrs.ints[1], v.attrs.ints[2]); }, .geometry = diagonal_geometry};
constinit const OpDef diagonal_grad{.name = "diagonal_grad", .kind = Kind::gather, .signature = "Tensor grad, size[] sizes, int offset, int dim1, int dim2",
    .equation = {.build = [](Attrs const& attrs, std::span<Meta const* const> in) {
      AttrReader reader{attrs};
      reader.list();
      return plane_equation(plane_of(reader, in[0]->rank() + 1), in[0]->rank() + 1, true);
    }},
    .terms = "a", .mono = "+", .copy = true, .types = Types::first,
    .vjp = [](Vjp& v) {
      AttrReader reader{v.attrs};
      reader.list();
      Dim const offset = reader.number(), row = reader.number(), column = reader.number();
      v.grad(0) = call(diagonal, {v.g()}, plane_attrs(offset, row, column));
    },
    .infer = [](Inference& call) {
      auto const& g = call.x();
      auto target = target_of(call.attrs, g.dtype, g.device);
      bool fits = g.sizes.size() == target.view.sizes.size();
      for (std::size_t d = 0; fits && d < g.sizes.size(); ++d) fits = same(g.sizes[d], target.view.sizes[d]);
      if (!fits) fail("diagonal_grad: {} does not fit a diagonal of sizes {}", to_string(g), base::to_string(values(target.view.sizes)));
      call.out.push_back(std::move(target.parent));
    }, .evaluate = evaluate_diagonal_grad};
constinit const OpDef diag_embed{.name = "diag_embed", .kind = Kind::gather, .signature = "Tensor input, int offset=0, int dim1=-2, int dim2=-1", .terms = "a", .mono = "+",
    .copy = true, .decompose = [](Body& b) { b.out.push_back(embedded(b.x(), b.attrs.ints[0], b.attrs.ints[1], b.attrs.ints[2])); }};
constinit const OpDef diag{.name = "diag", .kind = Kind::gather, .signature = "Tensor input, int diagonal=0", .terms = "a", .mono = "+", .copy = true,
    .decompose = [](Body& b) {
      Dim const offset = b.attrs.ints[0];
      if (b.x().rank() != 1 && b.x().rank() != 2) fail("diag: needs rank 1 or 2, not {}", to_string(b.x().meta()));
      b.out.push_back(b.x().rank() == 1 ? embedded(b.x(), offset, 0, 1) : call(clone, {call(diagonal, {b.x()}, plane_attrs(offset, 0, 1))}));
    }};
constinit const OpDef trace{.name = "trace", .kind = Kind::reduction, .signature = "Tensor input", .terms = "a", .mono = "+",
    .decompose = [](Body& b) {
      if (b.x().rank() != 2) fail("trace: needs rank 2, not {}", to_string(b.x().meta()));
      b.out.push_back(call(sum, {call(diagonal, {b.x()}, plane_attrs(0, 0, 1))}, summed({}, false)));
    }};
constinit const OpDef diagonal_scatter{.name = "diagonal_scatter", .kind = Kind::gather, .signature = "Tensor input, Tensor src, int offset=0, int dim1=0, int dim2=1",
    .terms = "ab", .mono = "++", .copy = true, .decompose = [](Body& b) {
      Var const x = b.x(0), src = b.x(1);
      Dim const offset = b.attrs.ints[0], row = b.attrs.ints[1], column = b.attrs.ints[2];
      if (x.meta().dtype != src.meta().dtype) fail("diagonal_scatter: dtypes differ: {} and {}", to_string(x.meta()), to_string(src.meta()));
      Var const ones = create(*x.emit, full, Attrs{}.with(src.meta().sizes).with(base::DType::boolean).with(x.meta().device).with_num(1.0));
      auto const& sizes = x.meta().sizes;
      b.out.push_back(choose(written(ones, sizes, offset, row, column), written(src, sizes, offset, row, column), x));
    }};

namespace {
constexpr std::array rows{&diagonal, &diagonal_grad, &diag_embed, &diag, &trace, &diagonal_scatter};
}
// clang-format on
std::span<OpDef const* const> diagonal_rows() { return rows; }

}  // namespace tenon::ir::ops
