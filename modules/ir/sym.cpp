module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir {
using base::ensure;
using base::fail;

namespace {
thread_local Symbols* current_symbols = nullptr;
std::atomic<std::uint32_t> next_owner{1};

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  if (b == 0) fail("size arithmetic: {} divided by 0", a);
  std::int64_t const quotient = b == -1 ? static_cast<std::int64_t>(0 - static_cast<std::uint64_t>(a)) : a / b;
  return (b != -1 && a % b != 0 && (a < 0) != (b < 0)) ? quotient - 1 : quotient;
}
std::int64_t floor_modulo(std::int64_t a, std::int64_t b) {
  if (b == 0) fail("size arithmetic: {} modulo 0", a);
  if (b == -1) return 0;
  std::int64_t const rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
std::int64_t plus(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) fail("size arithmetic: {} + {} overflows", a, b);
  return sum;
}
std::int64_t times(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) fail("size arithmetic: {} * {} overflows", a, b);
  return result;
}
bool holds(std::int64_t a, Relation relation, std::int64_t b) {
  switch (relation) {
    case Relation::equal:
      return a == b;
    case Relation::unequal:
      return a != b;
    case Relation::less:
      return a < b;
    case Relation::less_equal:
      return a <= b;
  }
  return false;
}
constexpr std::array relation_text{"==", "!=", "<", "<="};
constexpr std::array opposite{Relation::unequal, Relation::equal, Relation::less_equal, Relation::less};  // of (b, a) for the last two
}  // namespace

bool same_value(Scalar const& a, Scalar const& b) {
  if (a.kind != b.kind) return false;
  if (a.kind == ScalarKind::real) return a.real == b.real ? std::signbit(a.real) == std::signbit(b.real) : a.real != a.real && b.real != b.real;
  return a.whole == b.whole;
}

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
  bool size = false;  // a symbol of at least 2
};

struct Symbols::Table {
  std::uint32_t id = next_owner++;
  std::vector<Expression> expressions;
  std::vector<std::int32_t> symbols;  // symbol number → expression
  std::vector<std::string> names;
  std::array<int, 3> counts{};  // of s, i, r

  Expression const& at(Dim dim) const { return expressions[static_cast<std::size_t>(dim.node)]; }
  Dim own(Dim dim) const { return dim.owner == id && dim.node >= 0 ? dim : Dim(dim.value); }

  std::vector<Term> terms_of(Dim dim) const {
    if (dim.node < 0) return dim.value == 0 ? std::vector<Term>{} : std::vector<Term>{{dim.value, {}}};
    auto const& expression = at(dim);
    return expression.form == Form::polynomial ? expression.terms : std::vector<Term>{{1, {dim.node}}};
  }

  Dim intern(Expression expression) {
    for (std::size_t i = 0; i < expressions.size(); ++i) {
      auto const& e = expressions[i];
      if (e.form == expression.form && e.form != Form::symbol && e.terms == expression.terms && e.a == expression.a && e.b == expression.b)
        return {e.hint, static_cast<std::int32_t>(i), id};
    }
    expressions.push_back(std::move(expression));
    return {expressions.back().hint, static_cast<std::int32_t>(expressions.size()) - 1, id};
  }

  Dim polynomial(std::vector<Term> terms) {
    std::ranges::sort(terms, {}, &Term::atoms);
    std::vector<Term> merged;
    for (auto& term : terms) {
      if (!merged.empty() && merged.back().atoms == term.atoms)
        merged.back().factor = plus(merged.back().factor, term.factor);
      else
        merged.push_back(std::move(term));
    }
    std::erase_if(merged, [](Term const& t) { return t.factor == 0; });
    if (merged.empty()) return 0;
    if (merged.size() == 1 && merged[0].atoms.empty()) return merged[0].factor;
    if (merged.size() == 1 && merged[0].factor == 1 && merged[0].atoms.size() == 1) {
      std::int32_t const atom = merged[0].atoms[0];
      return {expressions[static_cast<std::size_t>(atom)].hint, atom, id};
    }
    std::int64_t hint = 0;
    for (auto const& term : merged) {
      std::int64_t value = term.factor;
      for (auto atom : term.atoms) value = times(value, expressions[static_cast<std::size_t>(atom)].hint);
      hint = plus(hint, value);
    }
    return intern({.form = Form::polynomial, .hint = hint, .terms = std::move(merged)});
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

  // A bound that the expression never falls below, if one is known.
  std::optional<std::int64_t> least(Dim dim) const {
    if (dim.node < 0) return dim.value;
    auto const& e = at(dim);
    if (e.form == Form::symbol) return e.size ? std::optional<std::int64_t>(2) : std::nullopt;
    if (e.form != Form::polynomial) return std::nullopt;
    std::int64_t sum = 0;
    for (auto const& term : e.terms) {
      std::int64_t value = term.factor;
      for (auto atom : term.atoms) {
        auto const bound = least({0, atom, id});
        if (!bound || *bound < 0 || __builtin_mul_overflow(value, *bound, &value)) return std::nullopt;
      }
      if ((term.factor < 0 && !term.atoms.empty()) || __builtin_add_overflow(sum, value, &sum)) return std::nullopt;
    }
    return sum;
  }

  int new_symbol(char prefix, std::int64_t hint, std::string name = {}) {
    auto const which = static_cast<std::size_t>(prefix == 's' ? 0 : prefix == 'i' ? 1 : 2);
    if (name.empty()) name = std::format("{}{}", prefix, counts[which]);
    ++counts[which];
    int const number = static_cast<int>(symbols.size());
    symbols.push_back(static_cast<std::int32_t>(expressions.size()));
    names.push_back(std::move(name));
    expressions.push_back({.form = Form::symbol, .hint = hint, .symbol = number, .size = prefix == 's'});
    return number;
  }
  Dim bare(int number) const {
    auto const node = symbols[static_cast<std::size_t>(number)];
    return {expressions[static_cast<std::size_t>(node)].hint, node, id};
  }

  std::string text(Dim dim, bool nested) const {
    if (dim.owner != id || dim.node < 0) return std::to_string(dim.value);
    auto const& e = at(dim);
    if (e.form == Form::symbol) return names[static_cast<std::size_t>(e.symbol)];
    if (e.form != Form::polynomial) return std::format("{}{}{}", text(e.a, true), e.form == Form::floordiv ? "//" : "%", text(e.b, true));
    std::string sum;
    for (auto const& term : e.terms) {
      std::string word;
      for (auto atom : term.atoms) {
        auto const& form = expressions[static_cast<std::size_t>(atom)].form;
        auto const inner = text({0, atom, id}, true);
        word += (word.empty() ? "" : "*") + (form == Form::symbol ? inner : "(" + inner + ")");
      }
      if (term.atoms.empty() || term.factor != 1) word += std::format("{}{}", word.empty() ? "" : "*", term.factor);
      sum += (sum.empty() ? "" : " + ") + word;
    }
    return nested ? "(" + sum + ")" : sum;
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
Scalar Symbols::real_symbol(double hint) {
  Scalar scalar(hint);
  scalar.node = table_->bare(table_->new_symbol('r', 0)).node;
  scalar.owner = table_->id;
  return scalar;
}
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
  std::vector<Term> terms;
  for (auto const& x : table_->terms_of(a))
    for (auto const& y : table_->terms_of(b)) {
      Term term{times(x.factor, y.factor), x.atoms};
      std::ranges::copy(y.atoms, std::back_inserter(term.atoms));
      std::ranges::sort(term.atoms);
      terms.push_back(std::move(term));
    }
  return table_->polynomial(std::move(terms));
}
Dim Symbols::floordiv(Dim a, Dim b) {
  a = own(a), b = own(b);
  if (a.node < 0 && b.node < 0) return floor_divide(a.value, b.value);
  if (auto exact = table_->divide(table_->terms_of(a), table_->terms_of(b))) return table_->polynomial(std::move(*exact));
  return table_->intern({.form = Form::floordiv, .hint = floor_divide(a.value, b.value), .a = a, .b = b});
}
Dim Symbols::modulo(Dim a, Dim b) {
  a = own(a), b = own(b);
  if (a.node < 0 && b.node < 0) return floor_modulo(a.value, b.value);
  if (table_->divide(table_->terms_of(a), table_->terms_of(b))) return 0;
  return table_->intern({.form = Form::modulo, .hint = floor_modulo(a.value, b.value), .a = a, .b = b});
}

bool Symbols::decide(Dim a, Relation relation, Dim b, base::At at) {
  a = own(a), b = own(b);
  bool const truth = holds(a.value, relation, b.value);
  if (a.node < 0 && b.node < 0) return truth;
  if (a == b) return truth;
  // Size symbols are at least 2, so what separates their sums and products from a smaller constant needs no guard.
  if (b.node < 0)
    if (auto const least = table_->least(a); least && (relation == Relation::less ? *least >= b.value : *least > b.value)) return truth;
  if (a.node < 0)
    if (auto const least = table_->least(b); least && (relation == Relation::less_equal ? *least >= a.value : *least > a.value)) return truth;
  Constraint kept{a, b, relation, event, at};
  if (!truth) {
    kept.relation = opposite[static_cast<std::size_t>(relation)];
    if (relation == Relation::less || relation == Relation::less_equal) std::swap(kept.a, kept.b);
  }
  for (auto const& c : constraints)
    if (c.a == kept.a && c.b == kept.b && c.relation == kept.relation) return truth;
  constraints.push_back(kept);
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
      return floor_divide(evaluate(e.a, bindings), evaluate(e.b, bindings));
    case Form::modulo:
      return floor_modulo(evaluate(e.a, bindings), evaluate(e.b, bindings));
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

std::string Symbols::to_string(Dim dim) const { return table_->text(dim, false); }
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

Scalar Symbols::named(std::string_view name, Scalar hint) {
  for (std::size_t i = 0; i < table_->names.size(); ++i)
    if (table_->names[i] == name) {
      if (name[0] != 'r') return Scalar(table_->bare(static_cast<int>(i)));
      hint.node = table_->bare(static_cast<int>(i)).node;
      hint.owner = table_->id;
      return hint;
    }
  if (name.empty() || (name[0] != 's' && name[0] != 'i' && name[0] != 'r')) fail("symbol names start with s, i or r: {}", name);
  int const number = table_->new_symbol(name[0], hint.whole, std::string(name));
  if (name[0] != 'r') return Scalar(table_->bare(number));
  hint.node = table_->bare(number).node;
  hint.owner = table_->id;
  return hint;
}

Symbols* Symbols::current() { return current_symbols; }
Symbols::Scope::Scope(Symbols* symbols) : outer_(std::exchange(current_symbols, symbols)) {}
Symbols::Scope::~Scope() { current_symbols = outer_; }

namespace {
template <class Symbolic, class Plain>
Dim arithmetic(Dim a, Dim b, Symbolic symbolic, Plain plain) {
  if ((a.node >= 0 || b.node >= 0) && current_symbols) return (current_symbols->*symbolic)(a, b);
  return Dim(plain(a.value, b.value));
}
bool decided(Dim a, Relation relation, Dim b, base::At at) {
  return current_symbols ? current_symbols->decide(a, relation, b, at) : holds(a.value, relation, b.value);
}
}  // namespace

Dim operator+(Dim a, Dim b) { return arithmetic(a, b, &Symbols::add, plus); }
Dim operator*(Dim a, Dim b) { return arithmetic(a, b, &Symbols::mul, times); }
Dim operator-(Dim a, Dim b) { return a + b * Dim(-1); }
Dim operator/(Dim a, Dim b) { return arithmetic(a, b, &Symbols::floordiv, floor_divide); }
Dim operator%(Dim a, Dim b) { return arithmetic(a, b, &Symbols::modulo, floor_modulo); }
bool same(Dim a, Dim b, base::At at) { return decided(a, Relation::equal, b, at); }
bool less(Dim a, Dim b, base::At at) { return decided(a, Relation::less, b, at); }
bool less_equal(Dim a, Dim b, base::At at) { return decided(a, Relation::less_equal, b, at); }
Dim product(std::span<Dim const> sizes) {
  Dim result = 1;
  for (auto size : sizes) result = result * size;
  return result;
}
base::Shape values(std::span<Dim const> dims) {
  base::Shape plain(dims.size());
  std::ranges::transform(dims, plain.begin(), &Dim::value);
  return plain;
}

}  // namespace tenon::ir
