// The source text of a row's element, read as C and written in StableHLO's operations: how an op without a rule of its own is exported.
module tenon.ir;
import std;
import tenon.base;
import :hlo;
import :hlo_raise;

namespace tenon::ir::hlo {
using base::DType;
using base::fail;
namespace {

/// A number that is known now, or a term.
struct Value {
  std::optional<double> known;
  Term term{};
  Value(double number) : known(number) {}
  Value(Term written) : term(written) {}
};

struct Source {
  std::string_view text;
  std::span<Term const> x;
  std::span<double const> a;
  std::size_t at = 0;
  int depth = 0;

  // -- words ------------------------------------------------------------------------------------------------------------------------------
  [[noreturn]] void misfit(std::string_view what) const { fail("{} at column {} of its source '{}'", what, at + 1, text); }
  void skip() {
    while (at < text.size() && text[at] == ' ') ++at;
  }
  bool take(std::string_view word) {
    skip();
    if (!text.substr(at).starts_with(word)) return false;
    return at += word.size(), true;
  }
  void need(std::string_view word) {
    if (!take(word)) misfit(std::format("expected '{}'", word));
  }
  std::size_t index() {
    std::size_t number = 0;
    auto const [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), number);
    if (error != std::errc{}) misfit("expected the number of an operand");
    return at = static_cast<std::size_t>(end - text.data()), number;
  }

  // -- values -----------------------------------------------------------------------------------------------------------------------------
  Type const& wide() const { return x[0].type(); }
  static bool is_bool(Value const& v) { return !v.known && v.term.dtype() == DType::boolean; }
  Term as_number(Value const& v) const { return v.known ? x[0].to->number(*v.known, wide()) : is_bool(v) ? convert(v.term, wide().dtype) : v.term; }
  Term as_truth(Value const& v) const {
    if (v.known) return x[0].to->number(*v.known != 0, {DType::boolean, wide().sizes});
    return is_bool(v) ? v.term : compare("NE", v.term, 0);
  }
  template <class Known, class Written>
  Value joined(Value const& a1, Value const& b1, Known known, Written written) const {
    if (a1.known && b1.known) return static_cast<double>(known(*a1.known, *b1.known));
    return written(as_number(a1), as_number(b1));
  }

  // -- grammar, the loosest first ---------------------------------------------------------------------------------------------------------
  Value choice() {
    if (++depth > 64) misfit("nested too deep");
    Value const condition = either();
    if (!take("?")) return --depth, condition;
    Value const yes = choice();
    need(":");
    Value const no = choice();
    --depth;
    if (condition.known) return *condition.known != 0 ? yes : no;
    return choose(condition.term.dtype() == DType::boolean ? condition.term : as_truth(condition), as_number(yes), as_number(no));
  }
  Value either() {
    Value left = both();
    while (take("||")) {
      Value const right = both();
      left = left.known && right.known ? Value(static_cast<double>(*left.known != 0 || *right.known != 0)) : Value(as_truth(left) | as_truth(right));
    }
    return left;
  }
  Value both() {
    Value left = comparison();
    while (take("&&")) {
      Value const right = comparison();
      left = left.known && right.known ? Value(static_cast<double>(*left.known != 0 && *right.known != 0)) : Value(as_truth(left) & as_truth(right));
    }
    return left;
  }
  Value comparison() {
    struct Sign {
      std::string_view text, direction;
      bool (*holds)(double, double);
    };
    static constexpr Sign signs[] = {
        {"<=", "LE", [](double p, double q) { return p <= q; }}, {">=", "GE", [](double p, double q) { return p >= q; }},
        {"==", "EQ", [](double p, double q) { return p == q; }}, {"!=", "NE", [](double p, double q) { return p != q; }},
        {"<", "LT", [](double p, double q) { return p < q; }},   {">", "GT", [](double p, double q) { return p > q; }},
    };
    Value left = sum();
    for (bool found = true; found;) {
      found = false;
      for (auto const& sign : signs) {
        if (!take(sign.text)) continue;
        left = joined(left, sum(), sign.holds, [&](Term p, Term q) { return compare(sign.direction, p, q); });
        found = true;
        break;
      }
    }
    return left;
  }
  Value sum() {
    Value left = product();
    for (;;) {
      if (take("+"))
        left = joined(left, product(), std::plus{}, [](Term p, Term q) { return p + q; });
      else if (take("-"))
        left = joined(left, product(), std::minus{}, [](Term p, Term q) { return p - q; });
      else
        return left;
    }
  }
  Value product() {
    Value left = sign();
    for (;;) {
      if (take("*"))
        left = joined(left, sign(), std::multiplies{}, [](Term p, Term q) { return p * q; });
      else if (take("/"))
        left = joined(left, sign(), std::divides{}, [](Term p, Term q) { return p / q; });
      else
        return left;
    }
  }
  Value sign() {
    if (take("-")) {
      Value const v = sign();
      return v.known ? Value(-*v.known) : Value(-as_number(v));
    }
    if (take("!")) {
      Value const v = sign();
      return v.known ? Value(static_cast<double>(*v.known == 0)) : Value(!as_truth(v));
    }
    return atom();
  }
  Value atom() {
    skip();
    if (take("(")) {
      Value const inner = choice();
      need(")");
      return inner;
    }
    if (take("{")) {
      bool const attribute = take("a");
      auto const k = index();
      need("}");
      if (k >= (attribute ? a.size() : x.size())) misfit("no such operand");
      return attribute ? Value(a[k]) : Value(x[k]);
    }
    if (at < text.size() && (std::isdigit(static_cast<unsigned char>(text[at])) || text[at] == '.')) {
      std::string const rest(text.substr(at));
      char* end = nullptr;
      double const number = std::strtod(rest.c_str(), &end);
      return at += static_cast<std::size_t>(end - rest.c_str()), number;
    }
    return called();
  }
  // Functions of C have the names of the ops that they are, but for two.
  Value called() {
    std::size_t const start = at;
    while (at < text.size() && (std::isalnum(static_cast<unsigned char>(text[at])) || text[at] == '_')) ++at;
    std::string_view name = text.substr(start, at - start);
    if (name == "fabs") name = "abs";
    if (name == "rint") name = "round";
    auto const rule = std::ranges::find(raised_pointwise(), name, &RaiseRule::op);
    if (name.empty() || rule == raised_pointwise().end()) at = start, misfit("no operation");
    need("(");
    std::vector<Term> operands;
    do operands.push_back(as_number(choice()));
    while (take(","));
    need(")");
    return rule->element(operands, {}, rule->word);
  }
};
}  // namespace

Term element_of_source(std::span<Term const> x, std::span<double const> a, std::string_view source) {
  Source reader{source, x, a};
  Value const value = reader.choice();
  reader.skip();
  if (reader.at != source.size()) reader.misfit("expected the end");
  return value.known || value.term.dtype() != DType::boolean ? reader.as_number(value) : value.term;
}

}  // namespace tenon::ir::hlo
