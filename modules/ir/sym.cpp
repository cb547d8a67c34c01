module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir {
using base::ensure;
using base::fail;

namespace {
std::atomic<std::uint32_t> next_owner{1};

constexpr std::size_t largest_sum = 4096;  // terms

constexpr std::array relation_text{"==", "!=", "<", "<="};
constexpr std::array opposite{Relation::unequal, Relation::equal, Relation::less_equal, Relation::less};  // of (b, a) for the last two
}  // namespace

enum class Form : std::uint8_t { symbol, polynomial, floordiv, modulo };
struct Term {
  std::int64_t factor;
  std::vector<std::int32_t> atoms;  // sorted expression ids; empty: the constant term
  bool operator==(Term const&) const = default;
};
struct Expression {
  Form form;
  std::int64_t hint;
  std::vector<Term> terms{};  // polynomial: sorted by atoms, no zero factors
  Dim a{}, b{};               // floordiv, modulo
  int symbol = -1;
  std::int64_t least = -1;  // never falls below; negative: not known. Size symbols are at least 2
  double real = 0;          // a real symbol's value in this run
};

struct Symbols::Table {
  std::uint32_t id = next_owner++;
  std::vector<Expression> expressions;
  std::vector<std::int32_t> symbols;  // symbol number → expression
  std::vector<std::string> names;
  std::array<int, 3> counts{};                                 // of s, i, r
  std::unordered_multimap<std::size_t, std::int32_t> by_hash;  // of all but symbols
  std::map<std::string, int, std::less<>> numbers;             // symbols by name
  std::set<std::array<std::int64_t, 5>> kept;                  // the first `remembered` constraints
  std::size_t remembered = 0;

  static std::array<std::int64_t, 5> key(Constraint const& c) {
    auto const half = [](Dim d) { return d.node < 0 ? d.value : d.node; };
    return {half(c.a), half(c.b), c.a.node < 0, c.b.node < 0, static_cast<std::int64_t>(c.relation)};
  }
  void remember(std::span<Constraint const> constraints) {  // the list is open to others: start again when it was changed
    if (constraints.size() == remembered) return;
    kept.clear();
    for (auto const& c : constraints) kept.insert(key(c));
    remembered = constraints.size();
  }

  Expression const& at(Dim dim) const { return expressions[static_cast<std::size_t>(dim.node)]; }
  Dim own(Dim dim) const { return dim.owner == id && dim.node >= 0 ? dim : Dim(dim.value); }

  std::vector<Term> terms_of(Dim dim) const {
    if (dim.node < 0) return dim.value == 0 ? std::vector<Term>{} : std::vector<Term>{{dim.value, {}}};
    auto const& expression = at(dim);
    return expression.form == Form::polynomial ? expression.terms : std::vector<Term>{{1, {dim.node}}};
  }

  static std::size_t hash(Expression const& e) {
    std::size_t seed = static_cast<std::size_t>(e.form);
    auto const mix = [&](auto number) { seed = (seed ^ static_cast<std::size_t>(number)) * 0x9E3779B97F4A7C15u; };
    for (auto const& term : e.terms) {
      mix(term.factor);
      for (auto atom : term.atoms) mix(atom + 1);
    }
    for (auto const& dim : {e.a, e.b}) mix(dim.node < 0 ? dim.value : dim.node), mix(dim.node < 0);
    return seed;
  }
  Dim intern(Expression expression) {
    auto const key = hash(expression);
    auto const [first, last] = by_hash.equal_range(key);
    for (auto at = first; at != last; ++at) {
      auto const& e = expressions[static_cast<std::size_t>(at->second)];
      if (e.form == expression.form && e.terms == expression.terms && e.a == expression.a && e.b == expression.b) return {e.hint, at->second, id};
    }
    if (expression.form != Form::polynomial && expression.b.node < 0 && expression.b.value > 0) {
      std::int64_t const bound = expression.form == Form::modulo ? 0 : least(terms_of(expression.a)).value_or(-1);
      if (bound >= 0) expression.least = bound / expression.b.value;
    }
    by_hash.emplace(key, static_cast<std::int32_t>(expressions.size()));
    expressions.push_back(std::move(expression));
    return {expressions.back().hint, static_cast<std::int32_t>(expressions.size()) - 1, id};
  }

  // Sorted by atoms, equal ones added, without zeros.
  static std::vector<Term> merged(std::vector<Term> terms) {
    std::ranges::sort(terms, {}, &Term::atoms);
    std::vector<Term> result;
    for (auto& term : terms)
      if (!result.empty() && result.back().atoms == term.atoms)
        result.back().factor = plus(result.back().factor, term.factor);
      else
        result.push_back(std::move(term));
    std::erase_if(result, [](Term const& t) { return t.factor == 0; });
    return result;
  }
  static std::vector<Term> product(std::span<Term const> left, std::span<Term const> right) {
    if (left.size() * right.size() > largest_sum) fail("size arithmetic: a product of {} and {} terms is too large", left.size(), right.size());
    std::vector<Term> terms;
    for (auto const& x : left)
      for (auto const& y : right) {
        Term term{times(x.factor, y.factor), x.atoms};
        std::ranges::copy(y.atoms, std::back_inserter(term.atoms));
        std::ranges::sort(term.atoms);
        terms.push_back(std::move(term));
      }
    return merged(std::move(terms));
  }
  Dim polynomial(std::vector<Term> sum) {
    auto terms = merged(std::move(sum));
    if (terms.empty()) return 0;
    if (terms.size() == 1 && terms[0].atoms.empty()) return terms[0].factor;
    if (terms.size() == 1 && terms[0].factor == 1 && terms[0].atoms.size() == 1) {
      std::int32_t const atom = terms[0].atoms[0];
      return {expressions[static_cast<std::size_t>(atom)].hint, atom, id};
    }
    std::int64_t hint = 0;
    for (auto const& term : terms) {
      std::int64_t value = term.factor;
      for (auto atom : term.atoms) value = times(value, expressions[static_cast<std::size_t>(atom)].hint);
      hint = plus(hint, value);
    }
    return intern({.form = Form::polynomial, .hint = hint, .terms = std::move(terms)});
  }

  // a / b where every term of a divides by the constant or monomial b; nothing otherwise.
  std::optional<std::vector<Term>> divide(std::vector<Term> a, std::vector<Term> const& b) const {
    if (b.size() != 1 || b[0].factor == 0) return std::nullopt;
    for (auto& term : a) {
      if (term.factor % b[0].factor != 0) return std::nullopt;
      term.factor /= b[0].factor;
      for (auto atom : b[0].atoms) {
        auto const found = std::ranges::find(term.atoms, atom);
        if (found == term.atoms.end()) return std::nullopt;
        term.atoms.erase(found);
      }
    }
    return a;
  }

  // A bound that the sum never falls below, if one is known.
  std::optional<std::int64_t> least(std::span<Term const> terms) const {
    std::int64_t sum = 0;
    for (auto const& term : terms) {
      std::int64_t value = term.factor;
      if (value < 0 && !term.atoms.empty()) return std::nullopt;
      for (auto atom : term.atoms)
        if (auto const bound = expressions[static_cast<std::size_t>(atom)].least; bound < 0 || __builtin_mul_overflow(value, bound, &value))
          return std::nullopt;
      if (__builtin_add_overflow(sum, value, &sum)) return std::nullopt;
    }
    return sum;
  }
  // a - b as terms; nothing when it is too large to say.
  std::optional<std::vector<Term>> difference(Dim a, Dim b) const {
    auto terms = terms_of(a);
    for (auto& term : terms_of(b)) {
      if (__builtin_sub_overflow(std::int64_t{0}, term.factor, &term.factor)) return std::nullopt;
      terms.push_back(term);
    }
    try {
      return merged(std::move(terms));
    } catch (base::Error const&) {
      return std::nullopt;
    }
  }
  // Whether the relation is the same in every run.
  bool settled(Dim a, Relation relation, Dim b) const {
    auto const up = difference(b, a), down = difference(a, b);
    if (!up || !down) return false;
    auto const rise = least(*up), fall = least(*down);
    switch (relation) {
      case Relation::less:
        return (rise && *rise > 0) || (fall && *fall >= 0);
      case Relation::less_equal:
        return (rise && *rise >= 0) || (fall && *fall > 0);
      default:
        return (rise && *rise > 0) || (fall && *fall > 0) || up->empty();
    }
  }

  int new_symbol(char prefix, Scalar hint, std::string name = {}) {
    auto& count = counts[prefix == 's' ? 0 : prefix == 'i' ? 1 : 2];
    while (name.empty() || numbers.contains(name)) name = std::format("{}{}", prefix, count++);
    int const number = static_cast<int>(symbols.size());
    numbers.emplace(name, number);
    symbols.push_back(static_cast<std::int32_t>(expressions.size()));
    names.push_back(std::move(name));
    expressions.push_back({.form = Form::symbol, .hint = hint.whole, .symbol = number, .least = prefix == 's' ? 2 : -1, .real = hint.real});
    return number;
  }
  Dim bare(int number) const {
    auto const node = symbols[static_cast<std::size_t>(number)];
    return {expressions[static_cast<std::size_t>(node)].hint, node, id};
  }

  // Inside a term, whatever is neither a symbol nor a number stands in parentheses.
  std::string atom_text(Dim dim) const {
    auto const inner = text(dim);
    return dim.node < 0 || at(dim).form == Form::symbol ? inner : "(" + inner + ")";
  }
  std::string text(Dim dim) const {
    if (dim.owner != id || dim.node < 0) return std::to_string(dim.value);
    auto const& e = at(dim);
    if (e.form == Form::symbol) return names[static_cast<std::size_t>(e.symbol)];
    if (e.form != Form::polynomial) return atom_text(e.a) + (e.form == Form::floordiv ? "//" : " mod ") + atom_text(e.b);
    // In an order that does not depend on ids, which differ after parsing: symbols by number, then the rest by text; the constant last.
    using Word = std::pair<int, std::string>;
    std::vector<std::pair<std::vector<Word>, std::int64_t>> words;
    for (auto const& term : e.terms) {
      std::vector<Word> atoms;
      for (auto atom : term.atoms) {
        auto const& inner = expressions[static_cast<std::size_t>(atom)];
        atoms.emplace_back(inner.form == Form::symbol ? inner.symbol : std::numeric_limits<int>::max(), atom_text({0, atom, id}));
      }
      std::ranges::sort(atoms);
      words.emplace_back(std::move(atoms), term.factor);
    }
    std::ranges::sort(words, [](auto const& a, auto const& b) { return std::tuple(a.first.empty(), a.first) < std::tuple(b.first.empty(), b.first); });
    std::string sum;
    for (auto const& [atoms, whole] : words) {
      bool const minus = whole < 0 && !sum.empty() && whole != std::numeric_limits<std::int64_t>::min();
      std::int64_t const factor = minus ? -whole : whole;
      std::string word;
      for (auto const& [number, atom] : atoms) word += (word.empty() ? "" : "*") + atom;
      if (word.empty() || factor != 1) word += std::format("{}{}", word.empty() ? "" : "*", factor);
      sum += (sum.empty() ? "" : minus ? " - " : " + ") + word;
    }
    return sum;
  }
};

Symbols::Symbols() : table_(std::make_unique<Table>()) {}
Symbols::~Symbols() = default;
Symbols::Symbols(Symbols const& other) : constraints(other.constraints), event(other.event), table_(std::make_unique<Table>(*other.table_)) {}
Symbols::Symbols(Symbols&& other) noexcept = default;
Symbols& Symbols::operator=(Symbols other) noexcept {
  constraints = std::move(other.constraints);
  event = other.event;
  table_ = std::move(other.table_);
  return *this;
}

Dim Symbols::symbol(std::int64_t hint) {
  ensure(hint >= 2, "a size symbol needs a hint of at least 2");
  return table_->bare(table_->new_symbol('s', hint));
}
Dim Symbols::index_symbol(std::int64_t hint) { return table_->bare(table_->new_symbol('i', hint)); }
Scalar Symbols::real_symbol(double hint) { return symbol_at(table_->new_symbol('r', hint)); }
std::vector<std::string> const& Symbols::names() const { return table_->names; }
Dim Symbols::whole_symbol(int number) const { return table_->bare(number); }
bool Symbols::is_real_symbol(int number) const { return table_->names[static_cast<std::size_t>(number)][0] == 'r'; }
int Symbols::symbol_number(Dim dim) const { return dim.node >= 0 && dim.owner == table_->id ? table_->at(dim).symbol : -1; }
int Symbols::symbol_number(Scalar const& scalar) const { return symbol_number(Dim{0, scalar.node, scalar.owner}); }
Dim Symbols::own(Dim dim) const { return table_->own(dim); }

Dim Symbols::add(Dim a, Dim b) {
  a = own(a), b = own(b);
  if (a.node < 0 && b.node < 0) return plus(a.value, b.value);
  auto terms = table_->terms_of(a);
  std::ranges::copy(table_->terms_of(b), std::back_inserter(terms));
  return table_->polynomial(std::move(terms));
}
Dim Symbols::mul(Dim a, Dim b) {
  a = own(a), b = own(b);
  if (a.node < 0 && b.node < 0) return times(a.value, b.value);
  return table_->polynomial(Table::product(table_->terms_of(a), table_->terms_of(b)));
}
Dim Symbols::floordiv(Dim a, Dim b) {
  a = own(a), b = own(b);
  if (a.node < 0 && b.node < 0) return floor_quotient(a.value, b.value);
  if (auto exact = table_->divide(table_->terms_of(a), table_->terms_of(b))) return table_->polynomial(std::move(*exact));
  return table_->intern({.form = Form::floordiv, .hint = floor_quotient(a.value, b.value), .a = a, .b = b});
}
Dim Symbols::modulo(Dim a, Dim b) {
  a = own(a), b = own(b);
  if (a.node < 0 && b.node < 0) return floor_rest(a.value, b.value);
  if (table_->divide(table_->terms_of(a), table_->terms_of(b))) return 0;
  return table_->intern({.form = Form::modulo, .hint = floor_rest(a.value, b.value), .a = a, .b = b});
}

bool Symbols::decide(Dim a, Relation relation, Dim b, base::At at) {
  a = own(a), b = own(b);
  bool const truth = holds(a.value, relation, b.value);
  if (a.node < 0 && b.node < 0) return truth;
  if (table_->settled(a, relation, b)) return truth;
  Constraint kept{a, b, relation, event, at};
  if (!truth) {
    kept.relation = opposite[static_cast<std::size_t>(relation)];
    if (relation == Relation::less || relation == Relation::less_equal) std::swap(kept.a, kept.b);
  }
  table_->remember(constraints);
  if (table_->kept.insert(Table::key(kept)).second) constraints.push_back(kept), ++table_->remembered;
  return truth;
}

std::int64_t Symbols::evaluate(Dim dim, Bindings const& bindings) const {
  dim = own(dim);
  if (dim.node < 0) return dim.value;
  auto const& e = table_->at(dim);
  switch (e.form) {
    case Form::symbol: {
      auto const number = static_cast<std::size_t>(e.symbol);
      return number < bindings.whole.size() ? bindings.whole[number] : e.hint;
    }
    case Form::floordiv:
      return floor_quotient(evaluate(e.a, bindings), evaluate(e.b, bindings));
    case Form::modulo:
      return floor_rest(evaluate(e.a, bindings), evaluate(e.b, bindings));
    case Form::polynomial:
      break;
  }
  std::int64_t sum = 0;
  for (auto const& term : e.terms) {
    std::int64_t value = term.factor;
    for (auto atom : term.atoms) value = times(value, evaluate(Dim{0, atom, table_->id}, bindings));
    sum = plus(sum, value);
  }
  return sum;
}

Scalar Symbols::evaluate(Scalar scalar, Bindings const& bindings) const {
  if (scalar.node < 0 || scalar.owner != table_->id) return scalar;
  if (scalar.kind != ScalarKind::real) return Scalar(evaluate(Dim{scalar.whole, scalar.node, scalar.owner}, bindings));
  auto const number = static_cast<std::size_t>(symbol_number(scalar));
  return Scalar(number < bindings.real.size() ? bindings.real[number] : scalar.real);
}

bool Symbols::row_major(std::span<Dim const> sizes, std::span<Dim const> strides) const {
  std::vector<Term> stride{{1, {}}};
  for (std::size_t d = sizes.size(); d-- > 0;) {
    if (table_->terms_of(own(strides[d])) != stride) return false;
    if (sizes[d].value != 0) stride = Table::product(stride, table_->terms_of(own(sizes[d])));
  }
  return true;
}
std::string Symbols::to_string(Dim dim) const { return table_->text(dim); }
std::string Symbols::to_string(Scalar const& scalar) const {
  if (scalar.node >= 0 && scalar.owner == table_->id)
    return scalar.kind == ScalarKind::real ? table_->names[static_cast<std::size_t>(symbol_number(scalar))]
                                           : to_string(Dim{scalar.whole, scalar.node, scalar.owner});
  switch (scalar.kind) {
    case ScalarKind::none:
      return "none";
    case ScalarKind::boolean:
      return scalar.whole ? "true" : "false";
    case ScalarKind::whole:
      return std::to_string(scalar.whole);
    case ScalarKind::real:
      break;
  }
  auto text = std::format("{}", scalar.real);
  return text.find_first_of(".einf") == std::string::npos ? text + ".0" : text;
}
std::string Symbols::to_string(Constraint const& constraint) const {
  return std::format("{} {} {}", to_string(constraint.a), relation_text[static_cast<std::size_t>(constraint.relation)], to_string(constraint.b));
}

Scalar Symbols::symbol_at(int number) const {
  Dim const bare = table_->bare(number);
  if (!is_real_symbol(number)) return Scalar(bare);
  Scalar scalar(table_->at(bare).real);
  scalar.node = bare.node;
  scalar.owner = bare.owner;
  return scalar;
}
Scalar Symbols::named(std::string_view name, Scalar hint) {
  if (auto const found = table_->numbers.find(name); found != table_->numbers.end()) return symbol_at(found->second);
  if (name.empty() || (name[0] != 's' && name[0] != 'i' && name[0] != 'r')) fail("symbol names start with s, i or r: {}", name);
  if (name[0] == 's' && hint.whole < 2) fail("size symbol {} must be at least 2, not {}", name, hint.whole);
  return symbol_at(table_->new_symbol(name[0], hint, std::string(name)));
}

}  // namespace tenon::ir
