// Calls of a package as plain C.
module tenon.fusion;
import std;
import tenon.base;
import tenon.ir;
import :c_types;
import :package_text;

namespace tenon::fusion {
namespace ops = ir::ops;
using base::DType;
using ir::Strided;

namespace {
#pragma clang diagnostic ignored "-Wc23-extensions"  // #embed
constexpr char all_parts[] = {
#embed "package.c"
    ,
#embed "package_calls.c"
};

std::string joined(std::span<std::int64_t const> numbers) {
  std::string text;
  for (auto const number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return text.empty() ? "0" : text;
}
std::int64_t aligned(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

// What a row of the table below writes into.
struct Writer {
  ir::Node const& node;
  Prepared const& call;
  std::span<std::string const> in, out;
  CallText& to;

  [[noreturn]] void refuse(std::string_view what) const {
    base::fail("package: there is no C for {}{}{}", node.op->name, what, node.at.line ? " at " + base::short_place(node.at) : "");
  }
  void need(std::string_view part, DType dtype) const { to.parts.emplace_back(part, dtype); }
  // The operand's elements row by row, copied into the work if they do not lie so.
  std::string dense(std::size_t k) const {
    auto const& x = call.in[k];
    if (base::is_contiguous(x.sizes, x.strides)) return in[k];
    auto const place = std::format("work + {}", to.work);
    to.lines.push_back(dense_text(place, in[k], x));
    to.work += aligned(base::numel(x.sizes) * base::bytes_of(x.dtype));
    return place;
  }
  std::string rest() const { return std::format("work + {}", to.work); }
};

// What a product needs of the work: a as numbers, and a panel of at most 32 columns.
std::int64_t product_work(std::int64_t m, std::int64_t k, DType dtype) {
  std::int64_t const bytes = dtype == DType::f64 ? 8 : 4;
  return aligned(m * k * bytes) + k * 128;
}

void matmul(Writer const& w) {
  auto const& y = w.call.out[0];
  if (y.dtype == DType::boolean) w.refuse(" of bool");
  bool const real = base::is_real(y.dtype);
  w.need(real ? "matmul" : "matmul of whole numbers", y.dtype);
  if (base::numel(y.sizes) == 0) return;
  auto const g = gemm_of(w.call.in[0], w.call.in[1], y);
  auto const bytes = base::bytes_of(y.dtype);
  std::array<std::string, 3> at{w.in[0], w.in[1], w.out[0]};
  std::array<std::span<std::int64_t const>, 3> const strides{std::span(g.a_batch.begin(), g.a_batch.end()), std::span(g.b_batch.begin(), g.b_batch.end()),
                                                             std::span(g.c_batch.begin(), g.c_batch.end())};
  std::string loops;
  for (std::size_t d = 0; d < g.batch.size(); ++d) {
    if (g.batch.data()[d] == 1) continue;
    loops += std::format("for (tn_i64 i{0} = 0; i{0} < {1}; ++i{0}) ", d, g.batch.data()[d]);
    for (std::size_t k = 0; k < 3; ++k)
      if (strides[k][d] != 0) at[k] += std::format(" + i{} * {}", d, strides[k][d] * bytes);
  }
  auto const memory = spelling(y.dtype).memory;
  w.to.lines.push_back(std::format("{0}tn_matmul_{1}({2}, {3}, {4}, (const {5} *)({6}), {7}, {8}, (const {5} *)({9}), {10}, {11}, ({5} *)({12}), {13}, {14});",
                                   loops, base::info(y.dtype).name, g.m, g.n, g.k, memory, at[0], g.a.row_stride, g.a.column_stride, at[1], g.b.row_stride,
                                   g.b.column_stride, at[2], g.c.row_stride, w.rest()));
  w.to.work += product_work(g.m, g.k, y.dtype);
}

void convolution(Writer const& w) {
  auto const &x = w.call.in[0], &weight = w.call.in[1], &y = w.call.out[0];
  if (!base::is_real(y.dtype)) w.refuse(std::format(" of {}", base::info(y.dtype).name));
  auto const dims = x.sizes.size() - 2;
  if (dims > 3) w.refuse(std::format(" over {} dims", dims));
  w.to.plain_parts.emplace_back("convolution shape");
  w.need("matmul", y.dtype), w.need("convolution", y.dtype);
  if (base::numel(y.sizes) == 0) return;
  auto const sweep = sweep_of(w.call.attrs, dims);
  auto const results = weight.sizes[0] / sweep.groups;
  auto const spatial = [&](base::Shape const& sizes) { return joined(std::span(sizes).subspan(2)); };
  auto const from = w.dense(0), by = w.dense(1);
  std::int64_t terms = weight.sizes[1];
  for (std::size_t d = 0; d < dims; ++d) terms *= weight.sizes[d + 2];
  w.to.lines.push_back(std::format("static const tn_window s = {{{}, {}, {}, {}, {}, {{{}}}, {{{}}}, {{{}}}, {{{}}}, {{{}}}, {{{}}}, {{{}}}}};", dims,
                                   x.sizes[0], sweep.groups, weight.sizes[1], results, spatial(x.sizes), spatial(weight.sizes), spatial(y.sizes),
                                   joined(sweep.stride), joined(sweep.low), joined(sweep.dilation), joined(sweep.input_dilation)));
  auto const memory = spelling(y.dtype).memory;
  w.to.lines.push_back(std::format("tn_convolution_{0}(&s, (const {1} *)({2}), (const {1} *)({3}), ({1} *)({4}), {5});", base::info(y.dtype).name, memory, from,
                                   by, w.out[0], w.rest()));
  w.to.work += aligned(terms * 256 * base::bytes_of(y.dtype)) + product_work(results, terms, y.dtype);
}

// A tensor as [outer, size, inner] about one dim.
std::array<std::int64_t, 3> about(Writer const& w, base::Shape const& sizes, std::int64_t dim) {
  std::array<std::int64_t, 3> a{1, 1, 1};
  if (sizes.empty()) return a;
  auto const axis = static_cast<std::size_t>(base::wrap_dim(w.node.op->name, dim, static_cast<int>(sizes.size())));
  for (std::size_t d = 0; d < sizes.size(); ++d) a[d < axis ? 0 : d == axis ? 1 : 2] *= sizes[d];
  return a;
}
void cumsum(Writer const& w) {
  auto const& y = w.call.out[0];
  if (!base::is_real(y.dtype) || w.call.in[0].dtype != y.dtype) w.refuse(std::format(" of {}", base::info(w.call.in[0].dtype).name));
  w.need("cumsum", y.dtype);
  auto const [outer, size, inner] = about(w, y.sizes, w.call.attrs.ints[0].value);
  auto const from = w.dense(0);
  w.to.lines.push_back(std::format("tn_cumsum_{0}({1}, {2}, {3}, (const {4} *)({5}), ({4} *)({6}));", base::info(y.dtype).name, outer, size, inner,
                                   spelling(y.dtype).memory, from, w.out[0]));
}

// Numbers are compared as they are, so bool has no C here.
std::string compared_dtype(Writer const& w) {
  auto const dtype = w.call.in[0].dtype;
  if (dtype == DType::boolean) w.refuse(" of bool");
  return std::string(base::info(dtype).name);
}
template <bool smallest>
void arg(Writer const& w) {
  auto const& x = w.call.in[0];
  auto const dtype = compared_dtype(w);
  w.need("arg", x.dtype);
  auto const dim = w.call.attrs.ints[0].value;
  auto const [outer, size, inner] = dim == ir::absent ? std::array<std::int64_t, 3>{1, base::numel(x.sizes), 1} : about(w, x.sizes, dim);
  if (size == 0) w.refuse(" of no elements");
  auto const from = w.dense(0);
  w.to.lines.push_back(std::format("tn_arg_{0}({1}, {2}, {3}, {4}, (const {5} *)({6}), (tn_i64 *)({7}));", dtype, outer, size, inner, smallest ? 1 : 0,
                                   spelling(x.dtype).memory, from, w.out[0]));
}
void max_pool(Writer const& w) {
  auto const &x = w.call.in[0], &y = w.call.out[0];
  auto const dtype = compared_dtype(w);
  ir::AttrReader reader{w.call.attrs};
  std::array<std::vector<std::int64_t>, 4> how;  // kernel, stride (as the kernel if absent), padding, dilation
  for (std::size_t k = 0; k < how.size(); ++k)
    for (auto const dim : reader.list()) how[k].push_back(dim.value);
  auto const dims = how[0].size(), lead = x.sizes.size() - dims;
  if (dims > 3) w.refuse(std::format(" over {} dims", dims));
  if (how[1].empty()) how[1] = how[0];
  for (std::size_t k = 1; k < how.size(); ++k)
    if (how[k].size() == 1) how[k].resize(dims, how[k][0]);
  w.to.plain_parts.emplace_back("convolution shape");
  w.need("max_pool", x.dtype);
  std::int64_t images = 1;
  for (std::size_t d = 0; d < lead; ++d) images *= x.sizes[d];
  auto const from = w.dense(0);
  w.to.lines.push_back(std::format("static const tn_window s = {{{}, {}, 1, 1, 1, {{{}}}, {{{}}}, {{{}}}, {{{}}}, {{{}}}, {{{}}}, {{1, 1, 1}}}};", dims, images,
                                   joined(std::span(x.sizes).subspan(lead)), joined(how[0]), joined(std::span(y.sizes).subspan(lead)), joined(how[1]),
                                   joined(how[2]), joined(how[3])));
  w.to.lines.push_back(std::format("if (tn_max_pool_{0}(&s, (const {1} *)({2}), ({1} *)({3}), (tn_i64 *)({4}))) return -1;", dtype, spelling(x.dtype).memory,
                                   from, w.out[0], w.out[1]));
}
// Elements in row-major order, whatever the sizes.
void copy(Writer const& w) { w.to.lines.push_back(dense_text(w.out[0], w.in[0], w.call.in[0])); }

void cat(Writer const& w) {
  auto const& y = w.call.out[0];
  auto const dim = w.call.attrs.ints[0].value;
  std::int64_t const bytes = base::bytes_of(y.dtype);
  auto const [outer, size, inner] = about(w, y.sizes, dim);
  std::int64_t from = 0;
  for (std::size_t k = 0; k < w.call.in.size(); ++k) {
    auto const& x = w.call.in[k];
    if (base::numel(x.sizes) == 0) continue;
    if (x.dtype != y.dtype || x.sizes.size() != y.sizes.size()) w.refuse(" of unlike operands");
    auto const length = about(w, x.sizes, dim)[1] * inner * bytes;
    auto const dense = w.dense(k);
    w.to.lines.push_back(std::format("for (tn_i64 o = 0; o < {0}; ++o) __builtin_memcpy({1} + o * {2} + {3}, {4} + o * {5}, {5});", outer, w.out[0],
                                     size * inner * bytes, from, dense, length));
    from += length;
  }
}

// A row: the op and what writes a call of it.
struct CallRow {
  std::string_view op;
  void (*write)(Writer const&);
};
constexpr CallRow rows[] = {
    {"matmul", matmul},     {"convolution", convolution},
    {"max_pool", max_pool}, {"cumsum", cumsum},
    {"argmax", arg<false>}, {"argmin", arg<true>},
    {"cat", cat},           {"clone", copy},
    {"reshape", copy},      {"flatten", copy},
};
}  // namespace

std::string package_part(std::string_view name) {
  auto const all = std::string_view(all_parts, sizeof all_parts);
  auto const line = std::format("//: {}\n", name);
  auto const at = all.find(line);
  base::ensure(at != std::string_view::npos, std::format("package.c has no part '{}'", name));
  auto const begin = at + line.size();
  return std::string(all.substr(begin, std::min(all.find("\n//: ", begin), all.size() - 1) + 1 - begin));
}
std::string package_part(std::string_view name, DType dtype) {
  auto const& how = spelling(dtype);
  return filled(package_part(name), {{"DTYPE", base::info(dtype).name}, {"ELEMENT", how.memory}, {"NUMBER", how.value}, {"LOAD", how.from}, {"STORE", how.to}});
}
std::string filled(std::string text, std::initializer_list<std::pair<std::string_view, std::string_view>> words) {
  for (auto const& [word, by] : words)
    for (std::size_t at = 0; (at = text.find(word, at)) != std::string::npos; at += by.size()) text.replace(at, word.size(), by);
  return text;
}

std::string literal(std::string_view text) {
  std::string made = "\"";
  for (char const c : text) {
    bool const plain = c != '"' && c != '\\' && c != '?' && static_cast<unsigned char>(c) >= ' ';
    made += plain ? std::string(1, c) : std::format("\\{:03o}", static_cast<unsigned char>(c));
  }
  return made + "\"";
}
std::string list_text(std::string_view name, std::span<std::int64_t const> numbers) {
  return std::format("static const tn_i64 {}[] = {{{}}};", name, joined(numbers));
}
std::string dense_text(std::string_view dense, std::string_view strided, Strided const& x) {
  auto strides = x.strides;
  int const bytes = base::bytes_of(x.dtype);
  for (auto& stride : strides) stride *= bytes;
  return std::format("{{ {} {} tn_walk({}, {}, {}, n, s, {}, 1); }}", list_text("n", x.sizes), list_text("s", strides), dense, strided, x.sizes.size(), bytes);
}

CallText call_text(ir::Node const& node, Prepared const& call, std::span<std::string const> in, std::span<std::string const> out) {
  CallText text;
  Writer const writer{.node = node, .call = call, .in = in, .out = out, .to = text};
  auto const* const row = std::ranges::find(rows, node.op->name, &CallRow::op);
  if (row == std::end(rows)) writer.refuse("");
  row->write(writer);
  return text;
}

}  // namespace tenon::fusion
