// einsum: sums of products over named dims, as a body of diagonals and matrix products from left to right.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir::ops {
using base::fail;
namespace {
// Labels: 0 to 51 the letters A-Z, a-z, in the order in which an implicit result has them; from 52 on the dims of "...", the last one first.
using Labels = std::vector<int>;
bool has(Labels const& labels, int label) { return std::ranges::find(labels, label) != labels.end(); }
constexpr int letter_count = 52, ellipsis = -1;
int label_of(char c) { return c >= 'A' && c <= 'Z' ? c - 'A' : c >= 'a' && c <= 'z' ? c - 'a' + 26 : -1; }

Labels side(std::string_view text, std::string_view whole) {
  Labels labels;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == ' ') continue;
    if (text.substr(i).starts_with("...")) {
      if (has(labels, ellipsis)) fail("einsum: \"{}\" has two ellipses in one operand", whole);
      labels.push_back(ellipsis), i += 2;
    } else if (int const label = label_of(text[i]); label >= 0) {
      labels.push_back(label);
    } else {
      fail("einsum: \"{}\": '{}' is no letter", whole, text[i]);
    }
  }
  return labels;
}

struct Subscripts {
  std::vector<Labels> operands;
  Labels result;
};
// The equation for operands of these ranks, "..." written out.
Subscripts subscripts(std::string_view text, std::span<int const> ranks) {
  auto const arrow = text.find("->");
  Subscripts found;
  for (auto const word : std::views::split(text.substr(0, arrow), ',')) found.operands.push_back(side(std::string_view(word.begin(), word.end()), text));
  if (found.operands.empty()) found.operands.emplace_back();
  if (found.operands.size() != ranks.size()) fail("einsum: \"{}\" names {} operands, not {}", text, found.operands.size(), ranks.size());
  int widest = 0;
  auto const spelled = [](Labels const& labels, int dims) {
    Labels list;
    for (int label : labels)
      if (label != ellipsis)
        list.push_back(label);
      else
        for (int d = dims; d-- > 0;) list.push_back(letter_count + d);
    return list;
  };
  std::map<int, int> uses;
  for (std::size_t k = 0; k < ranks.size(); ++k) {
    auto& labels = found.operands[k];
    bool const open = has(labels, ellipsis);
    int const dims = ranks[k] - static_cast<int>(labels.size()) + open;
    if (dims < 0 || (!open && dims > 0)) fail("einsum: \"{}\": operand {} has {} subscripts and rank {}", text, k, labels.size() - open, ranks[k]);
    widest = std::max(widest, open ? dims : 0);
    labels = spelled(labels, dims);
    for (int label : labels) ++uses[label];
  }
  if (arrow != std::string_view::npos) {
    found.result = spelled(side(text.substr(arrow + 2), text), widest);
  } else {
    for (int d = widest; d-- > 0;) found.result.push_back(letter_count + d);
    for (auto const& [label, count] : uses)
      if (label < letter_count && count == 1) found.result.push_back(label);
  }
  for (int label : found.result) {
    if (label < letter_count && !uses.contains(label)) fail("einsum: \"{}\": the result names a dim that no operand has", text);
    if (std::ranges::count(found.result, label) > 1) fail("einsum: \"{}\": the result names a dim twice", text);
  }
  return found;
}

struct Term {
  Var x;
  Labels labels;
};
std::size_t place(Labels const& labels, int label) { return static_cast<std::size_t>(std::ranges::find(labels, label) - labels.begin()); }
Term ordered(Term const& term, Labels const& order) {
  if (term.labels == order) return term;
  Dims dims;
  for (int label : order) dims.push_back(place(term.labels, label));
  return {call(permute, {term.x}, Attrs{}.with(dims)), order};
}
// Takes the diagonal of a label that stands twice.
Term without_repeats(Term term) {
  for (std::size_t d = 0; d < term.labels.size(); ++d) {
    auto const again = std::ranges::find(term.labels.begin() + static_cast<std::ptrdiff_t>(d) + 1, term.labels.end(), term.labels[d]);
    if (again == term.labels.end()) continue;
    auto const other = static_cast<std::size_t>(again - term.labels.begin());
    Dim const a = term.x.size(static_cast<int>(d)), b = term.x.size(static_cast<int>(other));
    if (!same(a, b)) fail("einsum: a subscript that stands twice in an operand has sizes {} and {}", a.value, b.value);
    term.x = call(diagonal, {term.x}, at_dim(0).with(Dim(d)).with(Dim(other)));
    int const label = term.labels[d];
    term.labels.erase(again);
    term.labels.erase(term.labels.begin() + static_cast<std::ptrdiff_t>(d));
    term.labels.push_back(label);
    return without_repeats(std::move(term));
  }
  return term;
}
// Sums what neither the result nor a later operand needs.
Term reduced_to(Term const& term, std::set<int> const& needed) {
  Dims dims;
  Labels left;
  for (std::size_t d = 0; d < term.labels.size(); ++d)
    if (needed.contains(term.labels[d]))
      left.push_back(term.labels[d]);
    else
      dims.push_back(d);
  if (dims.empty()) return term;
  auto const type = term.x.meta().dtype;
  return {cast(call(sum, {term.x}, summed(dims, false)), type), left};
}
// The product of two terms, summed over the labels that both have and nobody needs any more: one matrix product.
Term product_of(Term a, Term b, std::set<int> const& needed) {
  auto const both = [&](Labels const& x, Labels const& y) {
    auto all = needed;
    for (int label : y)
      if (has(x, label)) all.insert(label);
    return all;
  };
  a = reduced_to(a, both(a.labels, b.labels)), b = reduced_to(b, both(b.labels, a.labels));
  Labels batch, inner, rows, columns;
  for (int label : a.labels) (!has(b.labels, label) ? rows : needed.contains(label) ? batch : inner).push_back(label);
  for (int label : b.labels)
    if (!has(a.labels, label)) columns.push_back(label);
  auto const joined = [](Labels x, Labels const& y, Labels const& z) {
    x.insert(x.end(), y.begin(), y.end());
    x.insert(x.end(), z.begin(), z.end());
    return x;
  };
  Dims sizes;
  for (int label : batch) sizes.push_back(a.x.size(static_cast<int>(place(a.labels, label))));
  auto const with = [&](Dim r, Dim c) {
    Dims list = sizes;
    list.push_back(r), list.push_back(c);
    return list;
  };
  auto const size_of = [&](Term const& term, Labels const& labels, Dims* list) {
    Dim n = 1;
    for (int label : labels) {
      n = n * term.x.size(static_cast<int>(place(term.labels, label)));
      if (list) list->push_back(term.x.size(static_cast<int>(place(term.labels, label))));
    }
    return n;
  };
  Dims wide = sizes;
  Dim const r = size_of(a, rows, &wide), k = size_of(a, inner, nullptr), c = size_of(b, columns, &wide);
  Var const left = shaped(ordered(a, joined(batch, rows, inner)).x, with(r, k)), right = shaped(ordered(b, joined(batch, inner, columns)).x, with(k, c));
  return {shaped(call(matmul, {left, right}), wide), joined(batch, rows, columns)};
}

void einsum_body(Body& b) {
  std::vector<int> ranks;
  for (auto const& x : b.in) ranks.push_back(x.rank());
  auto const equation = subscripts(b.attrs.text, ranks);
  std::map<int, Dim> sizes;
  std::vector<Term> terms;
  for (std::size_t k = 0; k < b.in.size(); ++k) {
    terms.push_back(without_repeats({b.in[k], equation.operands[k]}));
    for (std::size_t d = 0; d < terms[k].labels.size(); ++d) {
      Dim const size = terms[k].x.size(static_cast<int>(d));
      auto const [known, fresh] = sizes.try_emplace(terms[k].labels[d], size);
      if (fresh || same(size, 1)) continue;
      if (same(known->second, 1))
        known->second = size;
      else if (!same(known->second, size))
        fail("einsum: \"{}\": sizes {} and {} of one subscript differ (operand {})", b.attrs.text, known->second.value, size.value, k);
    }
  }
  for (auto& term : terms) {  // a dim of 1 that others widen is dropped
    Dims kept;
    Labels labels;
    for (std::size_t d = 0; d < term.labels.size(); ++d) {
      Dim const size = term.x.size(static_cast<int>(d));
      if (same(size, 1) && !same(sizes.at(term.labels[d]), 1)) continue;
      kept.push_back(size), labels.push_back(term.labels[d]);
    }
    if (labels.size() < term.labels.size()) term = {shaped(term.x, kept), labels};
  }
  Term all = terms[0];
  for (std::size_t k = 1; k < terms.size(); ++k) {
    std::set<int> needed(equation.result.begin(), equation.result.end());
    for (std::size_t later = k + 1; later < terms.size(); ++later) needed.insert(terms[later].labels.begin(), terms[later].labels.end());
    all = product_of(std::move(all), terms[k], needed);
  }
  all = reduced_to(all, {equation.result.begin(), equation.result.end()});
  b.out.push_back(ordered(all, equation.result).x);
}

std::string einsum_equation(Attrs const& attrs, std::span<Meta const* const> in) {
  std::vector<int> ranks;
  for (auto const* x : in) ranks.push_back(x->rank());
  auto const equation = subscripts(attrs.text, ranks);
  std::map<int, std::int64_t> sizes;
  std::set<int> whole;  // a diagonal needs all of its dim
  for (std::size_t k = 0; k < in.size(); ++k)
    for (std::size_t d = 0; d < equation.operands[k].size(); ++d) {
      int const label = equation.operands[k][d];
      if (auto& size = sizes.try_emplace(label, 1).first->second; size == 1) size = in[k]->sizes[d].value;
      if (std::ranges::count(equation.operands[k], label) > 1) whole.insert(label);
    }
  std::map<int, std::string> names;
  auto const named = [&](int label) {
    auto const [at, fresh] = names.try_emplace(label, letters(1, static_cast<int>(names.size())));
    return at->second + (whole.contains(label) ? "!" : "");
  };
  std::string text;
  for (std::size_t k = 0; k < in.size(); ++k) {
    if (k) text += ',';
    for (std::size_t d = 0; d < equation.operands[k].size(); ++d) {
      int const label = equation.operands[k][d];
      text += in[k]->sizes[d].value == 1 && sizes.at(label) != 1 ? "1" : named(label);
    }
  }
  text += "->";
  for (int label : equation.result) text += named(label);
  return text;
}
}  // namespace

// clang-format off
constinit const OpDef einsum{.name = "einsum", .kind = Kind::contraction, .signature = "str equation, Tensor[] operands", .equation = {.build = einsum_equation}, .terms = "a*",
    .combine = Monoid::sum, .mono = ".*", .precision = Precision::low, .decompose = einsum_body};

namespace {
constexpr std::array rows{&einsum};
}
// clang-format on
std::span<OpDef const* const> einsum_rows() { return rows; }

}  // namespace tenon::ir::ops
