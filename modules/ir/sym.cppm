export module tenon.ir:sym;
import std;
import tenon.base;

export namespace tenon::ir {

/// A size or index: its value in this run and, while a capture generalises it, the expression that gives it in every run.
///
/// `owner` names the Symbols that hold expression `node`; under any other Symbols a Dim is its plain value, so it may escape freely.
struct Dim {
  std::int64_t value = 0;
  std::int32_t node = -1;
  std::uint32_t owner = 0;
  constexpr Dim() = default;
  template <std::integral T>
  constexpr Dim(T number) : value(static_cast<std::int64_t>(number)) {}
  constexpr Dim(std::int64_t hint, std::int32_t expression, std::uint32_t symbols) : value(hint), node(expression), owner(symbols) {}
  bool operator==(Dim const&) const = default;
};

using Dims = base::InlineVector<Dim, 5>;

enum class ScalarKind : std::uint8_t { none, boolean, whole, real };

/// A number that stands where a tensor could (x * 1.5), or an attribute; `node` as in Dim when it varies between calls.
struct Scalar {
  ScalarKind kind = ScalarKind::none;
  std::int64_t whole = 0;
  double real = 0;
  std::int32_t node = -1;
  std::uint32_t owner = 0;
  constexpr Scalar() = default;
  constexpr Scalar(bool b) : kind(ScalarKind::boolean), whole(b), real(b) {}
  template <std::integral T>
    requires(!std::same_as<T, bool>)
  constexpr Scalar(T n) : kind(ScalarKind::whole), whole(static_cast<std::int64_t>(n)), real(static_cast<double>(n)) {}
  template <std::floating_point T>
  constexpr Scalar(T r) : kind(ScalarKind::real), real(static_cast<double>(r)) {}
  constexpr Scalar(Dim d) : kind(ScalarKind::whole), whole(d.value), real(static_cast<double>(d.value)), node(d.node), owner(d.owner) {}
};

/// Equal kind and value (NaN equals itself); expressions are not compared.
bool same_value(Scalar const& a, Scalar const& b);

enum class Relation : std::uint8_t { equal, unequal, less, less_equal };

/// A fact about sizes that a capture relied on: `a relation b`, first needed by event `event` at `at`.
struct Constraint {
  Dim a, b;
  Relation relation = Relation::equal;
  int event = 0;
  base::At at;
};

/// Values of a Symbols' free symbols in one call, by symbol number.
struct Bindings {
  std::vector<std::int64_t> whole;
  std::vector<double> real;
};

/// The expressions of one capture: hash-consed polynomials over symbols, floor divisions and remainders, so equal expressions have equal ids.
///
/// Whole symbols stand for sizes and are at least 2: sizes 0 and 1 are always constants.
class Symbols {
 public:
  Symbols();
  ~Symbols();
  Symbols(Symbols const& other);
  Symbols(Symbols&& other) noexcept;
  Symbols& operator=(Symbols other) noexcept;
  /// A new whole symbol "sK" with this run's value.
  Dim symbol(std::int64_t hint);
  /// A new real symbol "rK" with this run's value.
  Scalar real_symbol(double hint);
  /// A whole symbol that may take any value, for index attributes and numbers ("iK").
  Dim index_symbol(std::int64_t hint);
  /// a + b, a * b, floor(a / b), a mod b, as expressions.
  Dim add(Dim a, Dim b), mul(Dim a, Dim b), floordiv(Dim a, Dim b), modulo(Dim a, Dim b);
  /// Whether the relation holds in this run; a Constraint is kept if that could differ in another one.
  bool decide(Dim a, Relation relation, Dim b, base::At at);
  /// The Dim with foreign or stale expressions dropped to their plain value.
  Dim own(Dim dim) const;
  /// The value of an expression, or of a number, under `bindings`.
  std::int64_t evaluate(Dim dim, Bindings const& bindings) const;
  Scalar evaluate(Scalar scalar, Bindings const& bindings) const;
  /// Whether the strides are the row-major ones of the sizes, as expressions.
  bool row_major(std::span<Dim const> sizes, std::span<Dim const> strides) const;
  /// "s0*4 + 1", or the plain number.
  std::string to_string(Dim dim) const, to_string(Scalar const& scalar) const;
  /// "s0*4 == s1".
  std::string to_string(Constraint const& constraint) const;
  /// Reads what to_string prints, making symbols by name as they appear (sizes with 2 for a hint, others with 0); Error names the column.
  Dim parse(std::string_view text);
  /// The symbol named `name` ("s0", "i1", "r0"), made with `hint` if it is new.
  Scalar named(std::string_view name, Scalar hint);
  /// Names of the free symbols in order of creation.
  std::vector<std::string> const& names() const;
  /// The free symbol `number` with its hint; as a number, whole or real.
  Dim whole_symbol(int number) const;
  Scalar symbol_at(int number) const;
  /// The symbol number of a size or number that is a bare symbol, else -1.
  int symbol_number(Dim dim) const;
  int symbol_number(Scalar const& scalar) const;
  /// Whether symbol `number` is real.
  bool is_real_symbol(int number) const;

  std::vector<Constraint> constraints;
  int event = 0;  ///< stamped into each new constraint

  /// The Symbols whose expressions Dim arithmetic of this thread builds; none outside a capture.
  static Symbols* current();
  /// Makes `symbols` current for a scope.
  class Scope {
   public:
    explicit Scope(Symbols* symbols);
    ~Scope();
    Scope(Scope const&) = delete;
    Scope& operator=(Scope const&) = delete;

   private:
    Symbols* outer_;
  };

 private:
  struct Table;
  std::unique_ptr<Table> table_;
};

/// Arithmetic on sizes: plain numbers outside a capture, expressions of the current Symbols inside.
Dim operator+(Dim a, Dim b);
Dim operator-(Dim a, Dim b);
Dim operator*(Dim a, Dim b);
/// Floor division and remainder; the divisor must not be 0.
Dim operator/(Dim a, Dim b);
Dim operator%(Dim a, Dim b);
/// Whether a == b, a < b or a <= b in this run, kept as a constraint if that could differ in another one.
bool same(Dim a, Dim b, base::At at = base::At::current());
bool less(Dim a, Dim b, base::At at = base::At::current()), less_equal(Dim a, Dim b, base::At at = base::At::current());
/// Product of sizes, and their plain values.
Dim product(std::span<Dim const> sizes);
base::Shape values(std::span<Dim const> dims);
/// Whether the relation holds between two numbers.
bool holds(std::int64_t a, Relation relation, std::int64_t b);

}  // namespace tenon::ir

namespace tenon::ir {  // for sizes: Error on overflow and on division by 0
std::int64_t plus(std::int64_t a, std::int64_t b), times(std::int64_t a, std::int64_t b), floor_quotient(std::int64_t a, std::int64_t b),
    floor_rest(std::int64_t a, std::int64_t b);
}  // namespace tenon::ir
