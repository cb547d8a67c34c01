module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir {
using base::fail;

namespace {
struct Reader {
  std::string_view text;
  std::size_t at = 0;
  bool done() const { return at == text.size(); }
  char peek() const { return done() ? '\0' : text[at]; }
  [[noreturn]] void refuse(std::string_view what) const { fail("equation \"{}\": column {}: {}", text, at + 1, what); }
  void skip_spaces() {
    while (peek() == ' ') ++at;
  }
  static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

  Factor factor() {
    Factor factor;
    if (peek() == '1') {
      ++at;
    } else if (peek() == '(') {
      ++at;
      while (is_letter(peek())) factor.letters += text[at++];
      if (peek() != ')') refuse("expected a letter or ')'");
      ++at;
      if (factor.letters.size() < 2) refuse("a compound dim needs two letters");
    } else if (is_letter(peek())) {
      factor.letters = text[at++];
    } else {
      refuse("expected a letter, '1' or '('");
    }
    for (;; ++at) {
      bool* const mark = peek() == '!' ? &factor.whole : peek() == '?' ? &factor.selected : peek() == '+' ? &factor.positional : nullptr;
      if (!mark) return factor;
      if (*mark) refuse("the same mark twice");
      *mark = true;
    }
  }
  std::vector<std::vector<Factor>> side() {
    std::vector<std::vector<Factor>> list(1);
    for (skip_spaces(); !done() && peek() != '-'; skip_spaces()) {
      if (peek() == ',') {
        ++at;
        list.emplace_back();
      } else {
        list.back().push_back(factor());
      }
    }
    return list;
  }
};
}  // namespace

Equation parse_equation(std::string_view text) {
  Reader reader{text};
  Equation equation;
  equation.operands = reader.side();
  if (!text.substr(reader.at).starts_with("->")) reader.refuse("expected \"->\"");
  reader.at += 2;
  equation.results = reader.side();
  if (!reader.done()) reader.refuse("expected the end");
  return equation;
}

std::string letters(int n, int first) {
  constexpr std::string_view alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  if (first + n > static_cast<int>(alphabet.size())) fail("an equation has at most {} letters", alphabet.size());
  return std::string(alphabet.substr(static_cast<std::size_t>(first), static_cast<std::size_t>(n)));
}

std::vector<bool> dim_mask(std::string_view op, std::span<Dim const> dims, int rank) {
  std::vector<bool> mask(static_cast<std::size_t>(rank), dims.empty());
  for (auto dim : dims) {
    if (rank == 0 && (dim.value == 0 || dim.value == -1)) continue;
    auto const d = static_cast<std::size_t>(base::wrap_dim(op, dim.value, rank));
    if (mask[d]) fail("{}: dim {} is named twice", op, d);
    mask[d] = true;
  }
  return mask;
}

std::string reduce_equation(Attrs const& attrs, std::span<Meta const* const> in) {
  AttrReader reader{attrs};
  auto const mask = dim_mask("equation", reader.list(), in[0]->rank());
  bool const keep = reader.flag();
  auto const all = letters(in[0]->rank());
  std::string result;
  for (std::size_t d = 0; d < all.size(); ++d)
    if (!mask[d])
      result += all[d];
    else if (keep)
      result += '1';
  return all + "->" + result;
}

std::string whole_dim_equation(Attrs const& attrs, std::span<Meta const* const> in) {
  auto all = letters(in[0]->rank());
  if (in[0]->rank() > 0) all.insert(static_cast<std::size_t>(base::wrap_dim("equation", attrs.ints[0].value, in[0]->rank())) + 1, "!");
  return all + "->" + all;
}

std::string equation_of(OpDef const& op, Attrs const& attrs, std::span<Meta const* const> in) {
  if (op.equation.build) return op.equation.build(attrs, in);
  if (op.equation.text.empty() && op.kind == Kind::pointwise) return "...";
  return std::string(op.equation.text);
}

Cost cost(OpDef const& op, std::span<Meta const* const> in, std::span<Meta const> out, Attrs const& attrs) {
  if (op.kind == Kind::view) return {};
  Cost total;
  auto const elements = [](Meta const& meta) { return static_cast<double>(base::numel(values(meta.sizes))); };
  double read = 0, written = 0;
  for (auto const* meta : in) {
    if (!meta) continue;
    read = std::max(read, elements(*meta));
    total.bytes += op.value_free ? 0 : elements(*meta) * base::bytes_of(meta->dtype);
  }
  for (auto const& meta : out) {
    written += elements(meta);
    total.bytes += elements(meta) * base::bytes_of(meta.dtype);
  }
  double count = op.kind == Kind::pointwise || op.kind == Kind::gather || op.kind == Kind::creation || op.kind == Kind::random ? written : read;
  if (op.kind == Kind::contraction) {  // every letter's size once: multiply-add pairs
    auto const equation = parse_equation(equation_of(op, attrs, in));
    std::map<std::string, double> sizes;
    std::size_t operand = 0;
    auto const bind = [&](std::vector<Factor> const& factors, Meta const& meta) {
      for (std::size_t d = 0; d < factors.size() && d < meta.sizes.size(); ++d)
        if (!factors[d].letters.empty()) {
          double& size = sizes[factors[d].letters];
          size = std::max(size, static_cast<double>(meta.sizes[d].value));
        }
    };
    for (auto const* meta : in)
      if (meta && operand < equation.operands.size()) bind(equation.operands[operand++], *meta);
    for (std::size_t k = 0; k < out.size(); ++k) bind(equation.results[k], out[k]);
    count = 2;
    for (auto const& [letters, size] : sizes) count *= size;
  }
  total.flops = count * op.cost;
  return total;
}

}  // namespace tenon::ir
