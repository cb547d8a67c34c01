// Arithmetic on sizes: plain outside a capture, expressions of the current Symbols inside.
module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir {
using base::fail;

namespace {
thread_local Symbols* current_symbols = nullptr;
}

std::int64_t floor_quotient(std::int64_t a, std::int64_t b) {
  if (b == 0) fail("size arithmetic: {} divided by 0", a);
  std::int64_t const quotient = b == -1 ? static_cast<std::int64_t>(0 - static_cast<std::uint64_t>(a)) : a / b;
  return (b != -1 && a % b != 0 && (a < 0) != (b < 0)) ? quotient - 1 : quotient;
}
std::int64_t floor_rest(std::int64_t a, std::int64_t b) {
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

bool same_value(Scalar const& a, Scalar const& b) {
  if (a.kind != b.kind) return false;
  if (a.kind == ScalarKind::real) return a.real == b.real ? std::signbit(a.real) == std::signbit(b.real) : a.real != a.real && b.real != b.real;
  return a.whole == b.whole;
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
  return (a.node >= 0 || b.node >= 0) && current_symbols ? current_symbols->decide(a, relation, b, at) : holds(a.value, relation, b.value);
}
}  // namespace

Dim operator+(Dim a, Dim b) { return arithmetic(a, b, &Symbols::add, plus); }
Dim operator*(Dim a, Dim b) { return arithmetic(a, b, &Symbols::mul, times); }
Dim operator-(Dim a, Dim b) { return a + b * Dim(-1); }
Dim operator/(Dim a, Dim b) { return arithmetic(a, b, &Symbols::floordiv, floor_quotient); }
Dim operator%(Dim a, Dim b) { return arithmetic(a, b, &Symbols::modulo, floor_rest); }
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
