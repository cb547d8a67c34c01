// Operations of StableHLO as words that read like mathematics; each checks nothing: the rules give it what fits.
module tenon.ir;
import std;
import tenon.base;
import :hlo;
import :hlo_raise;

namespace tenon::ir::hlo {
using base::DType;

Type const& Term::type() const { return to->types[static_cast<std::size_t>(value)]; }

Term Writer::parameter(Type type, std::string name) {
  int const value = static_cast<int>(types.size());
  function->parameters.push_back(value);
  function->types.push_back(type);
  function->names.push_back(std::move(name));
  types.push_back(std::move(type));
  return {*this, value};
}

std::vector<Term> Writer::write(std::string_view name, std::span<Term const> operands, std::vector<Type> results, Attributes attributes,
                                std::vector<Function> regions) {
  Op op{std::string(name), {}, {}, std::move(results), std::move(attributes), std::move(regions)};
  for (auto const& operand : operands) op.operands.push_back(operand.value);
  std::vector<Term> written;
  for (auto const& type : op.types) {
    op.results.push_back(static_cast<int>(types.size()));
    written.emplace_back(*this, op.results.back());
    types.push_back(type);
  }
  function->ops.push_back(std::move(op));
  return written;
}
Term Writer::write(std::string_view name, std::initializer_list<Term> operands, Type result, Attributes attributes, std::vector<Function> regions) {
  return write(name, std::span(operands), {std::move(result)}, std::move(attributes), std::move(regions))[0];
}

Term Writer::literal(Literal literal) {
  Type type = literal.type;
  return write("constant", {}, std::move(type), {{"value", std::move(literal)}});
}
Term Writer::number(Scalar const& number, Type const& type) {
  std::array<std::byte, 8> element{};
  if (number.kind == ScalarKind::real)
    base::store_real(type.dtype, element.data(), number.real);
  else
    base::store_whole(type.dtype, element.data(), number.whole);
  auto& known = constants.try_emplace({type.dtype, std::bit_cast<std::uint64_t>(element), type.sizes}, -1).first->second;
  if (known >= 0) return {*this, known};
  Term made;
  if (!type.sizes.empty()) {
    made = spread(this->number(number, {type.dtype, {}}), type.sizes, {});
  } else if (base::is_real(type.dtype)) {
    made = literal({type, {base::load_real(type.dtype, element.data())}, {}});
  } else {
    made = literal({type, {}, {base::load_whole(type.dtype, element.data())}});
  }
  return known = made.value, made;
}
Term Writer::counting(Type type, std::size_t dim) { return write("iota", {}, std::move(type), {{"iota_dimension", static_cast<std::int64_t>(dim)}}); }

Function Writer::region(std::vector<DType> const& parameters, std::function<Term(std::span<Term const>)> const& body) {
  Function inner;
  auto* const outer = std::exchange(function, &inner);
  std::vector<Term> given;
  for (auto const dtype : parameters) given.push_back(parameter({dtype, {}}, {}));
  inner.returns = {body(given).value};
  function = outer;
  return inner;
}

namespace {
void match(Term& a, Term& b) {
  if (!a.to) a = b.to->number(a.number, b.type());
  if (!b.to) b = a.to->number(b.number, a.type());
}
Function operation(Writer& to, std::string_view name, DType dtype) {
  return to.region({dtype, dtype}, [&](std::span<Term const> x) { return name.empty() ? x[1] : binary(name, x[0], x[1]); });
}
Sizes without(Sizes sizes, std::size_t dim) { return sizes.erase(sizes.begin() + static_cast<std::ptrdiff_t>(dim)), sizes; }
}  // namespace

Term unary(std::string_view name, Term x) { return x.to->write(name, {x}, x.type()); }
Term binary(std::string_view name, Term a, Term b) {
  match(a, b);
  return a.to->write(name, {a, b}, a.type());
}
Term compare(std::string_view direction, Term a, Term b) {
  match(a, b);
  bool const natural = a.dtype() == DType::boolean || a.dtype() == DType::u8;
  return a.to->write("compare", {a, b}, {DType::boolean, a.sizes()},
                     {{"comparison_direction", std::string(direction)}, {"compare_type", base::is_real(a.dtype()) ? "FLOAT" : natural ? "UNSIGNED" : "SIGNED"}});
}
Term operator+(Term a, Term b) { return binary("add", a, b); }
Term operator-(Term a, Term b) { return binary("subtract", a, b); }
Term operator*(Term a, Term b) { return binary("multiply", a, b); }
Term operator/(Term a, Term b) { return binary("divide", a, b); }
Term operator-(Term a) { return unary("negate", a); }
Term operator&(Term a, Term b) { return binary("and", a, b); }
Term operator|(Term a, Term b) { return binary("or", a, b); }
Term operator^(Term a, Term b) { return binary("xor", a, b); }
Term operator!(Term a) { return unary("not", a); }
Term choose(Term condition, Term yes, Term no) {
  match(yes, no);
  return condition.to->write("select", {condition, yes, no}, yes.type());
}

Term convert(Term x, DType dtype) {
  if (x.dtype() == dtype) return x;
  if (dtype == DType::boolean) return compare("NE", x, 0);
  bool const narrows = base::is_real(x.dtype()) && !base::is_real(dtype) && dtype != DType::i64;
  if (narrows) x = convert(x, DType::i64);
  return x.to->write("convert", {x}, {dtype, x.sizes()});
}
Term reshaped(Term x, Sizes const& sizes) {  // of a reshape: of what that one read
  if (auto const found = x.to->reshapes.find(x.value); found != x.to->reshapes.end()) x.value = found->second;
  if (x.sizes() == sizes) return x;
  Term const y = x.to->write("reshape", {x}, {x.dtype(), sizes});
  x.to->reshapes[y.value] = x.value;
  return y;
}
Term permuted(Term x, Sizes const& order) {
  if (std::ranges::is_sorted(order)) return x;
  Sizes sizes;
  for (auto const d : order) sizes.push_back(x.sizes()[static_cast<std::size_t>(d)]);
  return x.to->write("transpose", {x}, {x.dtype(), std::move(sizes)}, {{"permutation", order}});
}
Term spread(Term x, Sizes const& sizes, Sizes const& dims) {
  return x.sizes() == sizes ? x : x.to->write("broadcast_in_dim", {x}, {x.dtype(), sizes}, {{"broadcast_dimensions", dims}});
}
Term broadcast(Term x, Sizes const& sizes) {  // sizes of 1 that grow are dropped first: HLO's broadcast only adds dims
  std::size_t const lead = sizes.size() - x.rank();
  Sizes kept, dims;
  for (std::size_t d = 0; d < x.rank(); ++d)
    if (x.sizes()[d] == sizes[lead + d]) kept.push_back(x.sizes()[d]), dims.push_back(static_cast<std::int64_t>(lead + d));
  return x.sizes() == sizes ? x : spread(reshaped(x, kept), sizes, dims);
}
Term reversed(Term x, Sizes const& dims) { return dims.empty() ? x : x.to->write("reverse", {x}, x.type(), {{"dimensions", dims}}); }
Term cut(Term x, std::size_t dim, std::int64_t start, std::int64_t limit, std::int64_t step) {
  Sizes starts(x.rank(), 0), limits = x.sizes(), steps(x.rank(), 1), sizes = x.sizes();
  starts[dim] = start, limits[dim] = limit, steps[dim] = step, sizes[dim] = limit > start ? (limit - start + step - 1) / step : 0;
  if (sizes == x.sizes()) return x;
  return x.to->write("slice", {x}, {x.dtype(), std::move(sizes)}, {{"start_indices", starts}, {"limit_indices", limits}, {"strides", steps}});
}
Term padded(Term x, Scalar fill, Sizes const& low, Sizes const& high, Sizes const& interior) {
  Sizes sizes = x.sizes();
  for (std::size_t d = 0; d < sizes.size(); ++d) sizes[d] += low[d] + high[d] + interior[d] * std::max<std::int64_t>(sizes[d] - 1, 0);
  bool const same = std::ranges::all_of(low, [](auto n) { return n == 0; }) && std::ranges::all_of(high, [](auto n) { return n == 0; });
  if (same && sizes == x.sizes()) return x;
  return x.to->write("pad", {x, x.to->number(fill, {x.dtype(), {}})}, {x.dtype(), std::move(sizes)},
                     {{"edge_padding_low", low}, {"edge_padding_high", high}, {"interior_padding", interior}});
}
Term padded(Term x, Scalar fill, std::size_t dim, std::int64_t low, std::int64_t high, std::int64_t interior) {
  Sizes lows(x.rank(), 0), highs = lows, between = lows;
  lows[dim] = low, highs[dim] = high, between[dim] = interior;
  return padded(x, fill, lows, highs, between);
}
Term joined(std::span<Term const> parts, std::size_t dim) {
  if (parts.size() == 1) return parts[0];
  Type type = parts[0].type();
  for (auto const& part : parts.subspan(1)) type.sizes[dim] += part.sizes()[dim];
  return parts[0].to->write("concatenate", parts, {type}, {{"dimension", static_cast<std::int64_t>(dim)}}, {})[0];
}
Term folded(std::string_view name, Term x, Sizes const& dims, Scalar init) {
  if (dims.empty()) return x;
  Type type{x.dtype(), {}};
  for (std::size_t d = 0; d < x.rank(); ++d)
    if (!contains(dims, static_cast<std::int64_t>(d))) type.sizes.push_back(x.sizes()[d]);
  Term const start = x.to->number(init, {x.dtype(), {}});
  return x.to->write("reduce", {x, start}, std::move(type), {{"dimensions", dims}}, {operation(*x.to, name, x.dtype())});
}

namespace {
// Rows: the dims of the index stand in the result in place of `axis`.
struct Rows {
  Sizes window, one, sizes;  ///< the other dims in the result; sizes of a row; sizes of the result
};
Rows rows_of(Term x, std::size_t axis, Term index) {
  Rows rows{{}, x.sizes(), without(x.sizes(), axis)};
  rows.one[axis] = 1;
  rows.sizes.insert(rows.sizes.begin() + static_cast<std::ptrdiff_t>(axis), index.sizes().begin(), index.sizes().end());
  for (std::size_t d = 0; d < rows.sizes.size(); ++d)
    if (d < axis || d >= axis + index.rank()) rows.window.push_back(static_cast<std::int64_t>(d));
  return rows;
}
Attributes gather_attributes(Sizes const& offset, Sizes const& places, std::size_t vector_dim, Sizes const& sizes) {
  return {{"offset_dims", offset},  {"collapsed_slice_dims", places}, {"operand_batching_dims", Sizes{}}, {"start_indices_batching_dims", Sizes{}},
          {"start_index_map", places}, {"index_vector_dim", static_cast<std::int64_t>(vector_dim)}, {"slice_sizes", sizes}};
}
Term scatter(Term x, Term index, Term updates, Sizes const& window, Sizes const& places, std::size_t vector_dim, std::string_view combine) {
  return x.to->write("scatter", {x, index, updates}, x.type(),
                     {{"update_window_dims", window}, {"inserted_window_dims", places}, {"input_batching_dims", Sizes{}},
                      {"scatter_indices_batching_dims", Sizes{}}, {"scatter_dims_to_operand_dims", places},
                      {"index_vector_dim", static_cast<std::int64_t>(vector_dim)}},
                     {operation(*x.to, combine, x.dtype())});
}
// The whole place of each element: its own coordinates but for `axis`, where the index stands.
Term coordinates(Term index, std::size_t axis) {
  Sizes sizes = index.sizes();
  sizes.push_back(1);
  std::vector<Term> parts;
  for (std::size_t d = 0; d < index.rank(); ++d) parts.push_back(reshaped(d == axis ? index : index.to->counting(index.type(), d), sizes));
  return joined(parts, index.rank());
}
}  // namespace

Term taken(Term x, std::size_t axis, Term index) {
  Rows rows = rows_of(x, axis, index);
  return x.to->write("gather", {x, index}, {x.dtype(), std::move(rows.sizes)},
                     gather_attributes(rows.window, {static_cast<std::int64_t>(axis)}, index.rank(), rows.one));
}
Term put(Term x, std::size_t axis, Term index, Term updates, std::string_view combine) {
  return scatter(x, index, updates, rows_of(x, axis, index).window, {static_cast<std::int64_t>(axis)}, index.rank(), combine);
}
Term taken_each(Term x, std::size_t axis, Term index) {
  return x.to->write("gather", {x, coordinates(index, axis)}, {x.dtype(), index.sizes()},
                     gather_attributes({}, counted(x.rank()), x.rank(), Sizes(x.rank(), 1)));
}
Term put_each(Term x, std::size_t axis, Term index, Term updates, std::string_view combine) {
  return scatter(x, coordinates(index, axis), updates, {}, counted(x.rank()), x.rank(), combine);
}

Sizes counted(std::size_t n) {
  Sizes dims(n);
  std::iota(dims.begin(), dims.end(), std::int64_t{0});
  return dims;
}
bool contains(Sizes const& list, std::int64_t number) { return std::ranges::find(list, number) != list.end(); }
std::size_t place(Dim dim, std::size_t rank) { return static_cast<std::size_t>(base::wrap_dim("dim", dim.value, std::max(static_cast<int>(rank), 1))); }
DType working(DType dtype) {
  if (dtype == DType::boolean) return DType::i64;
  return base::is_real(dtype) && dtype != DType::f64 ? DType::f32 : dtype;
}

}  // namespace tenon::ir::hlo
