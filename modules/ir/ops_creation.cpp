// Rows without operands. Random elements depend on (seed, offset, index of the element) alone: Philox4x32-10, see base.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir::ops {
using base::DType;
using base::fail;
namespace {
Dims checked_sizes(std::string_view op, std::span<Dim const> sizes) {
  for (std::size_t d = 0; d < sizes.size(); ++d)
    if (less(sizes[d], 0)) fail("{}: size {} at {} is negative", op, sizes[d].value, d);
  return Dims(sizes);
}
void infer_sized(Inference& call) {  // size[] first, dtype and device last
  AttrReader reader{call.attrs};
  auto const sizes = checked_sizes(call.op.name, reader.list());
  reader.at = call.attrs.ints.size() - 2;
  DType const dtype = reader.dtype();
  call.out.push_back(contiguous_meta(dtype, reader.device(), sizes));
}
void evaluate_full(Kernel const& kernel) {
  AttrReader reader{kernel.attrs};
  Scalar const value = reader.num();
  auto const& y = kernel.out[0];
  std::int64_t const n = base::numel(y.sizes), first = base::is_contiguous(y.sizes, y.strides) ? std::min<std::int64_t>(n, 1) : n;
  for (std::int64_t i = 0; i < first; ++i)
    if (value.kind == ScalarKind::real)
      y.set(i, value.real);
    else
      y.set_whole(i, value.whole);
  for (std::int64_t done = first, each = base::bytes_of(y.dtype); done < n; done *= 2)  // what is there already, once more
    std::memcpy(y.data + done * each, y.data, static_cast<std::size_t>(std::min(done, n - done) * each));
}

std::string_view next_word(std::string_view& rest) {
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  auto const word = rest.substr(0, rest.find(' '));
  return rest.remove_prefix(word.size()), word;
}
std::int64_t whole_in(std::string_view word) {
  std::int64_t number{};
  auto const [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc{} || end != word.data() + word.size()) fail("constant: '{}' is no whole number", word);
  return number;
}
double real_in(std::string const& word) {
  char* end = nullptr;
  double const number = std::strtod(word.c_str(), &end);
  if (end != word.c_str() + word.size()) fail("constant: '{}' is no number", word);
  return number;
}
void evaluate_constant(Kernel const& kernel) {
  auto const& y = kernel.out[0];
  std::string_view rest = kernel.attrs.text;
  std::int64_t const n = base::numel(y.sizes);
  for (std::int64_t i = 0; i < n; ++i) {
    auto const word = next_word(rest);
    if (word.empty()) fail("constant: {} elements given, {} needed", i, n);
    if (base::is_real(y.dtype))
      y.set(i, real_in(std::string(word)));
    else
      y.set_whole(i, whole_in(word));
  }
  if (!next_word(rest).empty()) fail("constant: more than {} elements given", n);
}

bool whole_numbers(std::span<Scalar const> numbers) {
  return std::ranges::all_of(numbers, [](Scalar const& s) { return s.kind != ScalarKind::real; });
}
void infer_arange(Inference& call) {
  std::span<Scalar const> const n = call.attrs.nums;
  AttrReader reader{call.attrs};
  auto const wish = reader.number();
  Dim count;
  if (whole_numbers(n)) {
    auto const dim = [](Scalar const& s) { return Dim(s.whole, s.node, s.owner); };
    Dim const start = dim(n[0]), end = dim(n[1]), step = dim(n[2]);
    bool const rising = less(0, step);
    if (!rising && !less(step, 0)) fail("arange: step is 0");
    if (rising ? less(end, start) : less(start, end)) fail("arange: {} to {} is not in the direction of step {}", start.value, end.value, step.value);
    count = (end - start + step - Dim(rising ? 1 : -1)) / step;
  } else {
    double const start = pinned(n[0]), end = pinned(n[1]), step = pinned(n[2]), exact = std::ceil((end - start) / step);
    if (step == 0) fail("arange: step is 0");
    if (!(exact >= 0 && exact < 9e15)) fail("arange: {} to {} has no count of steps of {}", start, end, step);
    count = static_cast<std::int64_t>(exact);
  }
  DType const dtype = wish.value != absent ? static_cast<DType>(wish.value) : whole_numbers(n) ? DType::i64 : default_dtype();
  call.out.push_back(contiguous_meta(dtype, reader.device(), Dims{count}));
}
void evaluate_arange(Kernel const& kernel) {
  std::span<Scalar const> const n = kernel.attrs.nums;
  auto const& y = kernel.out[0];
  for (std::int64_t i = 0; i < y.sizes[0]; ++i)
    if (whole_numbers(n))
      y.set_whole(i,
                  static_cast<std::int64_t>(static_cast<std::uint64_t>(n[0].whole) + static_cast<std::uint64_t>(i) * static_cast<std::uint64_t>(n[2].whole)));
    else
      y.set(i, n[0].real + static_cast<double>(i) * n[2].real);
}

struct Stream {
  std::uint64_t seed, offset;
};
Stream stream_of(AttrReader& reader) {
  auto const seed = static_cast<std::uint64_t>(reader.number().value);
  return {seed, static_cast<std::uint64_t>(reader.number().value)};
}
template <double (*element)(std::uint64_t, std::uint64_t, std::uint64_t)>
void evaluate_random(Kernel const& kernel) {
  AttrReader reader{kernel.attrs};
  reader.list();
  auto const stream = stream_of(reader);
  auto const& y = kernel.out[0];
  for (std::int64_t i = 0, n = base::numel(y.sizes); i < n; ++i) y.set(i, element(stream.seed, stream.offset, static_cast<std::uint64_t>(i)));
}
void evaluate_randint(Kernel const& kernel) {
  AttrReader reader{kernel.attrs};
  auto const low = reader.number().value, high = reader.number().value;
  reader.list();
  auto const stream = stream_of(reader);
  auto const& y = kernel.out[0];
  for (std::int64_t i = 0, n = base::numel(y.sizes); i < n; ++i)
    y.set_whole(i, low + static_cast<std::int64_t>(base::uniform(stream.seed, stream.offset, static_cast<std::uint64_t>(i)) * static_cast<double>(high - low)));
}
void infer_randint(Inference& call) {
  AttrReader reader{call.attrs};
  auto const low = reader.number().value, high = reader.number().value;
  if (low >= high) fail("randint: low {} must be below high {}", low, high);
  if (static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low) > (std::uint64_t{1} << 53))
    fail("randint: {} to {} are more than 2^53 numbers", low, high);
  auto const sizes = checked_sizes("randint", reader.list());
  stream_of(reader);
  DType const dtype = reader.dtype();
  call.out.push_back(contiguous_meta(dtype, reader.device(), sizes));
}
void evaluate_randperm(Kernel const& kernel) {  // Fisher-Yates
  AttrReader reader{kernel.attrs};
  auto const n = reader.number().value;
  auto const stream = stream_of(reader);
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  for (std::int64_t i = n - 1; i > 0; --i)
    std::swap(order[static_cast<std::size_t>(i)],
              order[static_cast<std::size_t>(base::uniform(stream.seed, stream.offset, static_cast<std::uint64_t>(i)) * static_cast<double>(i + 1))]);
  for (std::int64_t i = 0; i < n; ++i) kernel.out[0].set_whole(i, order[static_cast<std::size_t>(i)]);
}
std::string sized_equation(Attrs const& attrs, std::span<Meta const* const>) {
  AttrReader reader{attrs};
  auto const sizes = reader.list();
  return "->" + letters(static_cast<int>(sizes.size()));
}
std::string constant_equation(Attrs const& attrs, std::span<Meta const* const>) {  // all its elements stand in one text
  AttrReader reader{attrs};
  std::string text = "->";
  for (char c : letters(static_cast<int>(reader.list().size()))) text += {c, '!'};
  return text;
}
std::string random_equation(Attrs const& attrs, std::span<Meta const* const>) {  // each element needs its global index
  AttrReader reader{attrs};
  std::string text = "->";
  for (char c : letters(static_cast<int>(reader.list().size()))) text += {c, '+'};
  return text;
}
}  // namespace

// clang-format off
constinit const OpDef full{.name = "full", .kind = Kind::creation, .signature = "size[] size, float fill_value, *, dtype dtype=f32, device device=cpu",
    .equation = {.build = sized_equation}, .types = Types::custom, .source = "{a0}", .infer = infer_sized, .evaluate = evaluate_full};
constinit const OpDef constant{.name = "constant", .kind = Kind::creation,  // elements as words in row-major order, as to_chars writes them
    .signature = "str elements, size[] size, *, dtype dtype=f32, device device=cpu", .equation = {.build = constant_equation}, .types = Types::custom,
    .infer = infer_sized, .evaluate = evaluate_constant};
constinit const OpDef arange{.name = "arange", .kind = Kind::creation, .signature = "fixed start, fixed end, fixed step=1, *, dtype? dtype=None, device device=cpu",
    .equation = {"->a+"}, .types = Types::custom, .infer = infer_arange, .evaluate = evaluate_arange};
constinit const OpDef rand{.name = "rand", .kind = Kind::random, .signature = "size[] size, *, counter seed=0, counter offset=0, dtype dtype=f32, device device=cpu",
    .equation = {.build = random_equation}, .types = Types::custom, .cost = 40, .infer = infer_sized, .evaluate = evaluate_random<base::uniform>};
constinit const OpDef randn{.name = "randn", .kind = Kind::random, .signature = "size[] size, *, counter seed=0, counter offset=0, dtype dtype=f32, device device=cpu",
    .equation = {.build = random_equation}, .types = Types::custom, .cost = 60, .infer = infer_sized, .evaluate = evaluate_random<base::normal>};
constinit const OpDef randint{.name = "randint", .kind = Kind::random,
    .signature = "int low, int high, size[] size, *, counter seed=0, counter offset=0, dtype dtype=i64, device device=cpu",
    .equation = {.build = [](Attrs const& attrs, std::span<Meta const* const> in) {
      Attrs sizes;
      AttrReader reader{attrs, 2};
      return random_equation(sizes.with(reader.list()), in);
    }},
    .types = Types::custom, .cost = 40, .infer = infer_randint, .evaluate = evaluate_randint};
constinit const OpDef randperm{.name = "randperm", .kind = Kind::random, .signature = "size n, *, counter seed=0, counter offset=0, device device=cpu", .equation = {"->a!"},
    .types = Types::custom, .cost = 40,
    .infer = [](Inference& call) {
      if (less(call.attrs.ints[0], 0)) fail("randperm: size {} is negative", call.attrs.ints[0].value);
      AttrReader reader{call.attrs, 3};
      call.out.push_back(contiguous_meta(DType::i64, reader.device(), Dims{call.attrs.ints[0]}));
    }, .evaluate = evaluate_randperm};

namespace {
constexpr std::array rows{&full, &constant, &arange, &rand, &randn, &randint, &randperm};
}
// clang-format on
std::span<OpDef const* const> creation_rows() { return rows; }

}  // namespace tenon::ir::ops
