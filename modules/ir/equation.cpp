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

namespace {
// Follows the dims of a body's values. Dims that some call ties together are one class; a class that a call marks, makes, drops or merges
// stays whole.
struct DimTrace final : Emit {
  struct Traced {
    Meta meta;
    std::vector<int> classes;
  };
  std::deque<Traced> values;
  std::vector<int> parent;
  std::vector<char> whole;

  int fresh(bool stays_whole) {
    parent.push_back(static_cast<int>(parent.size()));
    whole.push_back(stays_whole);
    return parent.back();
  }
  int root(int c) const {
    while (parent[static_cast<std::size_t>(c)] != c) c = parent[static_cast<std::size_t>(c)];
    return c;
  }
  char& mark(int c) { return whole[static_cast<std::size_t>(root(c))]; }
  int add(Meta meta) {
    Traced traced{std::move(meta), {}};
    for (int d = 0; d < traced.meta.rank(); ++d) traced.classes.push_back(fresh(false));
    values.push_back(std::move(traced));
    return static_cast<int>(values.size()) - 1;
  }
  void tie(std::map<std::string, int>& bound, std::string const& letter, int c, bool marked) {
    auto const [at, is_new] = bound.try_emplace(letter, c);
    char const either = marked || mark(at->second) || mark(c);
    parent[static_cast<std::size_t>(root(c))] = root(at->second);
    mark(c) = either;
  }
  // The equation of the call; "..." written out; one where every dim stays whole if nothing is known.
  Equation spelled(OpDef const& op, Attrs const& attrs, std::span<Meta const* const> in, std::span<Meta const> out) {
    auto const text = equation_of(op, attrs, in);
    if (!text.empty() && text != "...") return parse_equation(text);
    Equation equation;
    int next = out[0].rank();
    auto const factors = [&](Meta const& meta) {
      std::vector<Factor> list;
      for (int d = 0; d < meta.rank(); ++d) {
        int const at = out[0].rank() - meta.rank() + d;
        bool const spread = !text.empty() && meta.sizes[static_cast<std::size_t>(d)].value != out[0].sizes[static_cast<std::size_t>(at)].value;
        list.push_back({spread ? std::string() : letters(1, text.empty() ? next++ : at)});
        list.back().whole = text.empty();
      }
      return list;
    };
    for (auto const* meta : in)
      if (meta) equation.operands.push_back(factors(*meta));
    for (auto const& meta : out) equation.results.push_back(factors(meta));
    return equation;
  }
  int op(OpDef const& op, std::span<Input const> inputs, Attrs attrs) override {
    std::vector<Meta const*> in;
    std::vector<Scalar> scalars;
    std::vector<std::vector<int>> classes;
    for (auto const& input : inputs) {
      auto* const value = input.value < 0 ? nullptr : &values[static_cast<std::size_t>(input.value)];
      in.push_back(value ? &value->meta : nullptr);
      scalars.push_back(input.scalar);
      if (value) classes.push_back(value->classes);
    }
    auto results = infer(op, in, scalars, attrs);
    auto const equation = spelled(op, attrs, in, results);
    int const first = static_cast<int>(values.size());
    for (auto& meta : results) {
      add(std::move(meta));
      classes.push_back(values.back().classes);
    }
    std::vector<std::vector<Factor>> sides(equation.operands.begin(),
                                           equation.operands.begin() + static_cast<std::ptrdiff_t>(inputs.empty() ? 0 : classes.size() - results.size()));
    sides.insert(sides.end(), equation.results.begin(), equation.results.end());
    std::map<char, std::array<bool, 2>> seen;  // letter → in an operand, in a result
    std::set<char> marked;
    for (std::size_t k = 0; k < sides.size(); ++k)
      for (auto const& factor : sides[k])
        for (char letter : factor.letters) {
          seen[letter][k + results.size() >= sides.size()] = true;
          if (factor.letters.size() > 1 || factor.whole || factor.positional || factor.selected) marked.insert(letter);
        }
    std::map<std::string, int> bound;
    for (std::size_t k = 0; k < sides.size(); ++k)
      for (std::size_t d = 0; d < sides[k].size(); ++d) {
        auto const& name = sides[k][d].letters;
        if (name.empty()) continue;
        bool const stays = name.size() > 1 || marked.contains(name[0]) || !seen[name[0]][0] || !seen[name[0]][1];
        tie(bound, name, classes[k][d], stays);
      }
    return first;
  }
  Meta const& meta(int value) override { return values[static_cast<std::size_t>(value)].meta; }
};

std::string body_equation(OpDef const& op, Attrs const& attrs, std::span<Meta const* const> in) {
  DimTrace trace;
  std::vector<Var> vars;
  std::vector<int> operands, results;
  for (auto const* meta : in) {
    if (meta) operands.push_back(trace.add(*meta));
    vars.push_back(meta ? Var(trace, operands.back()) : Var());
  }
  Body body{attrs, vars};
  op.decompose(body);
  for (auto const& out : body.out) results.push_back(out.input.value);
  auto const count = [&](std::vector<int> const& list, int c) {  // values that hold the class once; -1: one holds it twice
    int n = 0;
    for (int value : list) {
      auto const& classes = trace.values[static_cast<std::size_t>(value)].classes;
      auto const times = std::ranges::count_if(classes, [&](int other) { return trace.root(other) == c; });
      if (times > 1) return -1;
      n += static_cast<int>(times);
    }
    return n;
  };
  std::map<int, int> names;
  auto const side = [&](std::vector<int> const& list) {
    std::string text;
    for (std::size_t k = 0; k < list.size(); ++k) {
      if (k) text += ',';
      auto const& value = trace.values[static_cast<std::size_t>(list[k])];
      for (std::size_t d = 0; d < value.classes.size(); ++d) {
        int const c = trace.root(value.classes[d]);
        bool const shared = count(operands, c) > 0 && count(results, c) == static_cast<int>(results.size());
        if (!shared && value.meta.sizes[d].value == 1) {
          text += '1';
          continue;
        }
        text += letters(1, names.try_emplace(c, static_cast<int>(names.size())).first->second);
        if (!shared || trace.mark(c)) text += '!';
      }
    }
    return text;
  };
  auto const left = side(operands);
  return left + "->" + side(results);
}
}  // namespace

std::string equation_of(OpDef const& op, Attrs const& attrs, std::span<Meta const* const> in) {
  if (op.equation.build) return op.equation.build(attrs, in);
  if (op.equation.text.empty() && op.kind == Kind::pointwise) return "...";
  if (op.equation.text.empty() && op.decompose && !op.element.real) return body_equation(op, attrs, in);
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
  if (op.kind == Kind::contraction) {  // every letter's size once: multiply-add pairs; not the dims of an image that windows move over
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
    auto const names = [](std::vector<std::vector<Factor>> const& side, std::string const& letters) {
      return std::ranges::count_if(side, [&](auto const& factors) { return std::ranges::find(factors, letters, &Factor::letters) != factors.end(); });
    };
    for (auto const& factor : equation.operands[0])
      if (factor.whole && names(equation.operands, factor.letters) + names(equation.results, factor.letters) == 1) sizes.erase(factor.letters);
    count = 2;
    for (auto const& [letters, size] : sizes) count *= size;
  }
  total.flops = count * op.cost;
  return total;
}

}  // namespace tenon::ir
