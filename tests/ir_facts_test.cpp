// The facts of every row, tested on its sample calls: what the equation, terms, combine, mono, copy, joint and affine promise is what other
// modules shard, fuse and cast by. Linear facts are tested with small whole numbers, so that they hold exactly.
#include <doctest/doctest.h>
import std;
import tenon.base;
import tenon.ir;
#include "op_samples.hpp"
using namespace tenon;
using base::DType;
using base::Shape;
using ir::Monoid;
using ir::OpDef;
using support::Array;
using support::Call;

namespace {

void each_sample(std::function<void(Call const&, std::mt19937&)> const& check) {
  std::mt19937 random(2);
  for (auto const* op : ir::all_ops())
    for (auto const& call : support::samples(*op, random)) try {
        check(call, random);
      } catch (std::exception const& error) {
        FAIL_CHECK(call.text << ": " << std::string(error.what()));
      }
}

std::vector<Array> evaluated(Call const& call) {
  auto const graph = support::graph_of(call);
  auto const done = support::run(graph, support::inputs_of(call));
  std::vector<Array> results;
  for (auto const& y : done.outputs) results.push_back(support::converted(y, y.dtype));
  return results;
}

std::vector<ir::Meta> metas_of(Call const& call) {
  std::vector<ir::Meta> metas;
  for (auto const& operand : call.operands) metas.push_back(operand.tensor ? support::meta_of(operand.tensor->at) : ir::Meta());
  return metas;
}
struct Metas {
  std::vector<ir::Meta> held;
  std::vector<ir::Meta const*> in;
  explicit Metas(Call const& call) : held(metas_of(call)) {
    for (std::size_t k = 0; k < held.size(); ++k) in.push_back(call.operands[k].tensor ? &held[k] : nullptr);
  }
};
std::vector<std::size_t> tensors_of(Call const& call) {
  std::vector<std::size_t> list;
  for (std::size_t k = 0; k < call.operands.size(); ++k)
    if (call.operands[k].tensor) list.push_back(k);
  return list;
}

/// The mark of operand k in `terms` or `mono`; a last `*` stands for any number more of the one before it, and alone for operands that differ.
char mark(std::string_view marks, std::size_t k, char alone) {
  if (marks == "*") return alone;
  return marks.ends_with('*') ? marks[std::min(k, marks.size() - 2)] : marks[k];
}
char term(OpDef const& op, std::size_t k) { return mark(op.terms, k, static_cast<char>('a' + k)); }

/// Small whole numbers in place of the real operands; none is 0 where it may divide.
Call with_whole_numbers(Call call, std::mt19937& random) {
  for (std::size_t k = 0; k < call.operands.size(); ++k) {
    auto& operand = call.operands[k];
    if (!operand.tensor || !base::is_real(operand.tensor->at.dtype)) continue;
    auto fresh = support::array(operand.tensor->at.dtype, operand.tensor->at.sizes);
    for (std::int64_t i = 0; i < base::numel(fresh.at.sizes); ++i) {
      int const n = std::uniform_int_distribution(-4, 4)(random) * 2;
      fresh.at.set(i, n == 0 && term(*call.op, k) == '-' ? 2 : n);
    }
    operand.tensor = fresh;
  }
  return call;
}
/// Element by element.
Array combined(Array const& a, Array const& b, std::function<double(double, double)> const& f) {
  auto result = support::array(a.at.dtype, a.at.sizes);
  for (std::int64_t i = 0; i < base::numel(a.at.sizes); ++i) result.at.set(i, f(a.at.real(i), b.at.real(i)));
  return result;
}
Array zeros_of(Array const& x) { return support::array(x.at.dtype, x.at.sizes); }

bool alike(std::vector<Array> const& a, std::vector<Array> const& b, double tolerance = 1e-12) {
  if (a.size() != b.size()) return false;
  for (std::size_t k = 0; k < a.size(); ++k) {
    auto const x = support::reals(a[k].at), y = support::reals(b[k].at);
    if (a[k].at.sizes != b[k].at.sizes || !(support::distance(x, y) <= tolerance * support::scale_of(y))) return false;
  }
  return true;
}

double fold(Monoid monoid, double a, double b) {
  switch (monoid) {
    case Monoid::max:
      return std::max(a, b);
    case Monoid::min:
      return std::min(a, b);
    case Monoid::prod:
      return a * b;
    case Monoid::avg:
      return (a + b) / 2;
    case Monoid::lse:
      return std::log(std::exp(a) + std::exp(b));
    case Monoid::norm:
      return std::sqrt(a * a + b * b);
    default:
      return a + b;
  }
}

// -- one dim cut in two ---------------------------------------------------------------------------------------------------------------------

Array part(Array const& x, std::size_t dim, std::int64_t from, std::int64_t to) {
  auto view = x.at;
  view.data = view.at(from * view.strides[dim]);
  view.sizes[dim] = to - from;
  return support::converted(view, view.dtype);
}
Array joined(Array const& a, Array const& b, std::size_t dim) {
  auto sizes = a.at.sizes;
  sizes[dim] += b.at.sizes[dim];
  auto result = support::array(a.at.dtype, sizes);
  for (auto const& [piece, start] : {std::pair(a, std::int64_t{0}), std::pair(b, a.at.sizes[dim])}) {
    auto target = result.at;
    target.data = target.at(start * target.strides[dim]);
    ir::walk<2>(piece.at.sizes, {&piece.at.strides, &target.strides}, [&](auto const& at) { target.set(at[1], piece.at.real(at[0])); });
  }
  return result;
}
/// The call with its list of result sizes (its `size[]` attribute) replaced.
ir::Attrs with_sizes(Call const& call, Shape const& sizes) {
  ir::Attrs attrs;
  ir::AttrReader reader{call.attrs};
  using Type = ir::Parameter::Type;
  for (auto const& parameter : ir::signature(*call.op).parameters) switch (parameter.type) {
      case Type::tensor:
      case Type::tensors:
        break;
      case Type::sizes: {
        reader.list();
        ir::Dims list;
        for (auto size : sizes) list.push_back(size);
        attrs.with(list);
        break;
      }
      case Type::wholes:
        attrs.with(reader.list());
        break;
      case Type::real:
        attrs.with_num(reader.num());
        break;
      case Type::reals:
        attrs.with(reader.number());
        for (auto n = attrs.ints.back().value; n-- > 0;) attrs.with_num(reader.num());
        break;
      case Type::text:
        attrs.text = call.attrs.text;
        break;
      default:
        attrs.with(reader.number());
    }
  return attrs;
}

/// Where a letter stands in the factors: as the major letter of its dim; nothing if it does not.
std::optional<std::size_t> place_of(std::vector<ir::Factor> const& factors, char letter) {
  for (std::size_t d = 0; d < factors.size(); ++d)
    if (factors[d].letters.starts_with(letter)) return d;
  return std::nullopt;
}
bool occurs(std::vector<std::vector<ir::Factor>> const& side, auto const& wanted) {
  return std::ranges::any_of(side, [&](auto const& factors) { return std::ranges::any_of(factors, wanted); });
}

/// "..." written out: one letter a result dim, "1" where an operand is broadcast.
ir::Equation spelled(Call const& call, std::vector<ir::Meta> const& results) {
  Metas const metas(call);
  auto const text = ir::equation_of(*call.op, call.attrs, metas.in);
  if (text != "...") return ir::parse_equation(text);
  ir::Equation equation;
  auto const& out = results[0].sizes;
  auto const factors = [&](ir::Dims const& sizes) {
    std::vector<ir::Factor> list;
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      std::size_t const at = out.size() - sizes.size() + d;
      list.push_back({sizes[d].value == 1 && out[at].value != 1 ? std::string() : std::string(1, static_cast<char>('a' + at))});
    }
    return list;
  };
  for (auto const* meta : metas.in)
    if (meta) equation.operands.push_back(factors(meta->sizes));
  for (auto const& meta : results) equation.results.push_back(factors(meta.sizes));
  return equation;
}

std::vector<ir::Meta> results_of(Call const& call) {
  auto const graph = support::graph_of(call);
  std::vector<ir::Meta> results;
  for (int output : graph.outputs) results.push_back(*graph.values[static_cast<std::size_t>(output)].meta);
  return results;
}
}  // namespace

TEST_CASE("every equation binds each letter to one size") {
  each_sample([](Call const& call, std::mt19937&) {
    auto const results = results_of(call);
    Metas const metas(call);
    auto const text = ir::equation_of(*call.op, call.attrs, metas.in);
    CHECK_MESSAGE(!text.empty(), call.text);
    auto const equation = spelled(call, results);
    auto const tensors = tensors_of(call);
    if (!(equation.operands.size() == std::max<std::size_t>(tensors.size(), text.starts_with("->") ? 1 : 0)))
      throw std::runtime_error("does not fit its equation");
    if (!(equation.results.size() == results.size())) throw std::runtime_error("does not fit its equation");
    std::map<char, std::int64_t> sizes;
    auto const bind = [&](std::vector<ir::Factor> const& factors, ir::Meta const& meta) {
      if (!(factors.size() == meta.sizes.size())) throw std::runtime_error("does not fit its equation");
      for (std::size_t d = 0; d < factors.size(); ++d)
        if (factors[d].letters.size() == 1) {
          auto const [at, fresh] = sizes.try_emplace(factors[d].letters[0], meta.sizes[d].value);
          CHECK_MESSAGE(at->second == meta.sizes[d].value, call.text << " as " << text << ": letter " << factors[d].letters);
        } else if (factors[d].letters.empty()) {
          CHECK_MESSAGE(meta.sizes[d].value == 1, call.text << " as " << text << ": a 1 of size " << meta.sizes[d].value);
        }
    };
    auto const compound = [&](std::vector<ir::Factor> const& factors, ir::Meta const& meta) {
      for (std::size_t d = 0; d < factors.size(); ++d)
        if (factors[d].letters.size() > 1) {
          std::int64_t product = 1;
          for (char letter : factors[d].letters) product *= sizes.contains(letter) ? sizes[letter] : -1;
          CHECK_MESSAGE(product == meta.sizes[d].value, call.text << " as " << text << ": compound " << factors[d].letters);
        }
    };
    for (auto const& visit : {std::function(bind), std::function(compound)}) {
      for (std::size_t k = 0; k < tensors.size(); ++k) visit(equation.operands[k], metas.held[tensors[k]]);
      for (std::size_t k = 0; k < results.size(); ++k) visit(equation.results[k], results[k]);
    }
  });
}

TEST_CASE("terms and mono name every operand") {
  for (auto const* op : ir::all_ops()) {
    auto const& signature = ir::signature(*op);
    auto const operands = static_cast<std::size_t>(signature.operands);
    auto const names_all = [&](std::string_view marks) {  // the fixed ones, then the list
      if (!signature.variadic) return marks.size() == operands;
      return marks == "*" ? operands == 0 : marks.ends_with('*') && marks.size() == operands + 2;
    };
    CHECK_MESSAGE(names_all(op->terms), std::string(op->name) << ": terms " << op->terms);
    CHECK_MESSAGE(names_all(op->mono), std::string(op->name) << ": mono " << op->mono);
  }
}

TEST_CASE("operands of one letter are multiplied, letters are added") {
  each_sample([](Call const& sampled, std::mt19937& random) {
    auto const call = with_whole_numbers(sampled, random);
    std::set<char> letters;
    for (std::size_t k = 0; k < call.operands.size(); ++k)
      if (term(*call.op, k) != '-' && (call.operands[k].tensor || call.operands[k].number.kind != ir::ScalarKind::none)) letters.insert(term(*call.op, k));
    if (letters.empty() || std::ranges::any_of(results_of(call), [](ir::Meta const& y) { return !base::is_real(y.dtype); })) return;
    auto const only = [&](Call all, char letter) {  // the other terms at zero
      for (std::size_t k = 0; k < all.operands.size(); ++k) {
        if (term(*all.op, k) == letter || term(*all.op, k) == '-') continue;
        auto& operand = all.operands[k];
        if (operand.tensor)
          operand.tensor = zeros_of(*operand.tensor);
        else if (operand.number.kind != ir::ScalarKind::none)
          operand.number = 0.0;
      }
      return all;
    };
    auto const add = [](double a, double b) { return a + b; };
    std::vector<Array> sum;
    for (char letter : letters) {
      auto const alone = evaluated(only(call, letter));
      for (std::size_t k = 0; k < alone.size(); ++k)
        if (sum.size() <= k)
          sum.push_back(alone[k]);
        else
          sum[k] = combined(sum[k], alone[k], add);
    }
    CHECK_MESSAGE(alike(sum, evaluated(call)), call.text << ": its terms do not add up");
    for (auto k : tensors_of(call)) {
      if (term(*call.op, k) == '-' || !base::is_real(call.operands[k].tensor->at.dtype)) continue;
      auto const x = only(call, term(*call.op, k));
      auto y = x, both = x;
      y.operands[k].tensor = with_whole_numbers(call, random).operands[k].tensor;
      both.operands[k].tensor = combined(*x.operands[k].tensor, *y.operands[k].tensor, [](double a, double b) { return 2 * a - 3 * b; });
      auto const fx = evaluated(x), fy = evaluated(y);
      std::vector<Array> expected;
      for (std::size_t r = 0; r < fx.size(); ++r) expected.push_back(combined(fx[r], fy[r], [](double a, double b) { return 2 * a - 3 * b; }));
      CHECK_MESSAGE(alike(expected, evaluated(both)), call.text << ": operand " << k << " is not linear");
    }
  });
}

namespace {
/// A call with its equation, on which letters are cut.
struct Cuttable {
  Call const& call;
  std::vector<ir::Meta> results;
  ir::Equation equation;
  std::vector<std::size_t> tensors;
  std::vector<Array> whole;
  explicit Cuttable(Call const& from)
      : call(from), results(results_of(from)), equation(spelled(from, results)), tensors(tensors_of(from)), whole(evaluated(from)) {}

  /// The letters that stand without a mark.
  std::set<char> free_letters() const {
    std::set<char> letters, marked;
    for (auto const* side : {&equation.operands, &equation.results})
      for (auto const& factors : *side)
        for (auto const& factor : factors)
          for (std::size_t i = 0; i < factor.letters.size(); ++i) {
            letters.insert(factor.letters[i]);
            if (factor.whole || factor.positional || factor.selected || i > 0) marked.insert(factor.letters[i]);
          }
    for (char letter : marked) letters.erase(letter);
    return letters;
  }
  bool vanishes(char letter) const {
    return std::ranges::none_of(equation.results, [&](auto const& factors) { return place_of(factors, letter).has_value(); });
  }
  std::int64_t size_of(char letter) const {
    std::int64_t size = -1;
    auto const measure = [&](std::vector<ir::Factor> const& factors, auto const& sizes_of) {
      if (auto const d = place_of(factors, letter); d && factors[*d].letters.size() == 1) size = sizes_of(*d);
    };
    for (std::size_t k = 0; k < tensors.size(); ++k)
      measure(equation.operands[k], [&](std::size_t d) { return call.operands[tensors[k]].tensor->at.sizes[d]; });
    for (std::size_t k = 0; k < results.size(); ++k) measure(equation.results[k], [&](std::size_t d) { return results[k].sizes[d].value; });
    if (size < 0) throw std::runtime_error("does not fit its equation");
    return size;
  }
  /// Where to cut: in the middle where parts are averaged; else unevenly too, and a part may be empty unless it has nothing to give to a largest.
  std::set<std::int64_t> places(char letter) const {
    auto const size = size_of(letter);
    if (size < 2) return {};
    auto const combine = call.op->combine;
    if (vanishes(letter) && combine == Monoid::avg) return size % 2 == 0 ? std::set{size / 2} : std::set<std::int64_t>{};
    std::set<std::int64_t> list{1, size / 2, size - 1};
    if (!vanishes(letter) || combine == Monoid::sum || combine == Monoid::prod) list.insert(0);
    return list;
  }
  /// The call on one part: dims that start with the letter (compound ones in whole groups of their minor letters) are cut there.
  std::vector<Array> half(char letter, std::int64_t cut, bool upper) const {
    auto const size = size_of(letter);
    Call piece = call;
    auto const range = [&](std::int64_t dim) { return std::pair(upper ? dim / size * cut : 0, upper ? dim : dim / size * cut); };
    std::set<char> pending;  // terms that hold the vanishing letter
    for (std::size_t k = 0; k < tensors.size(); ++k) {
      auto& tensor = *piece.operands[tensors[k]].tensor;
      auto const d = place_of(equation.operands[k], letter);
      if (!d) continue;
      auto const [from, to] = range(tensor.at.sizes[*d]);
      tensor = part(tensor, *d, from, to);
      pending.insert(term(*call.op, tensors[k]));
    }
    if (vanishes(letter) && upper)  // what is added to a pending term is added once
      for (auto k : tensors)
        if (term(*call.op, k) != '-' && !pending.contains(term(*call.op, k))) piece.operands[k].tensor = zeros_of(*piece.operands[k].tensor);
    Shape sizes;
    for (std::size_t d = 0; d < equation.results[0].size(); ++d) {
      auto const dim = results[0].sizes[d].value;
      auto const [from, to] = range(dim);
      sizes.push_back(place_of(equation.results[0], letter) == d ? to - from : dim);
    }
    piece.attrs = with_sizes(call, sizes);
    return evaluated(piece);
  }
  void check(char letter, std::int64_t cut) const {
    auto const low = half(letter, cut, false), high = half(letter, cut, true);
    std::vector<Array> expected;
    for (std::size_t r = 0; r < results.size(); ++r)
      if (auto const d = place_of(equation.results[r], letter))
        expected.push_back(joined(low[r], high[r], *d));
      else
        expected.push_back(combined(low[r], high[r], [&](double a, double b) { return fold(call.op->combine, a, b); }));
    CHECK_MESSAGE(alike(expected, whole), call.text << ": cut along " << letter << " at " << cut);
  }
};
}  // namespace

TEST_CASE("a dim without marks can be cut: the parts of a result join, those of a vanishing dim combine") {
  int cuts = 0;
  std::map<std::string_view, int> by_row;
  each_sample([&](Call const& sampled, std::mt19937& random) {
    auto const call = with_whole_numbers(sampled, random);
    Cuttable const cuttable(call);
    auto& of_row = by_row[call.op->name];
    for (char letter : cuttable.free_letters()) {
      if (cuttable.size_of(letter) >= 2 && cuttable.vanishes(letter))
        CHECK_MESSAGE(call.op->combine != Monoid::none, call.text << ": " << letter << " vanishes and nothing combines it");
      for (auto const cut : cuttable.places(letter)) {
        if (cut == 0 && support::says(support::caught([&] { (void)cuttable.half(letter, 0, false); }), "has no elements")) continue;  // such a part is refused
        cuttable.check(letter, cut), ++cuts, ++of_row;
      }
    }
  });
  CHECK(cuts > 800);
  std::cout << "facts: " << cuts << " cuts; no dim can be cut, by its row's equation, in any sample of";
  for (auto const& [name, count] : by_row)
    if (count == 0) std::cout << ' ' << name;
  std::cout << '\n';
}

TEST_CASE("a dim that an index selects can be cut: the parts, masked, add up") {
  each_sample([](Call const& sampled, std::mt19937& random) {
    auto const call = with_whole_numbers(sampled, random);
    auto const equation = spelled(call, results_of(call));
    auto const tensors = tensors_of(call);
    for (std::size_t k = 0; k < tensors.size(); ++k)
      for (std::size_t d = 0; d < equation.operands[k].size(); ++d) {
        if (!equation.operands[k][d].selected) continue;
        auto const& x = *call.operands[tensors[k]].tensor;
        std::vector<std::vector<Array>> parts;
        for (int half = 0; half < 2; ++half) {
          auto piece = call;
          auto& masked = *piece.operands[tensors[k]].tensor;
          masked = support::converted(x.at, x.at.dtype);
          ir::walk<1>(masked.at.sizes, {&masked.at.strides}, [&](auto const& at) {
            bool const upper = at[0] / masked.at.strides[d] % masked.at.sizes[d] >= masked.at.sizes[d] / 2;
            if (upper != (half == 1)) masked.at.set(at[0], 0);
          });
          parts.push_back(evaluated(piece));
        }
        CHECK_MESSAGE(alike({combined(parts[0][0], parts[1][0], [](double a, double b) { return a + b; })}, evaluated(call)), call.text);
      }
  });
}

TEST_CASE("monotone operands are monotone, copies copy, joint and affine hold") {
  each_sample([](Call const& call, std::mt19937& random) {
    auto const& op = *call.op;
    auto const before = evaluated(call);
    for (auto k : tensors_of(call)) {
      char const mono = mark(op.mono, k, '.');
      auto const dtype = call.operands[k].tensor->at.dtype;
      if (mono == '.' || dtype == DType::boolean) continue;
      auto raised = call;
      raised.operands[k].tensor = combined(*call.operands[k].tensor, *call.operands[k].tensor, [&](double a, double) {
        return base::is_real(dtype) ? a + std::uniform_real_distribution(0.0, 1.0)(random) : a + static_cast<double>(random() % 2);
      });
      auto const after = evaluated(raised);
      for (std::size_t r = 0; r < before.size(); ++r)
        for (std::int64_t i = 0; i < base::numel(before[r].at.sizes); ++i) {
          double const rise = after[r].at.real(i) - before[r].at.real(i);
          if ((mono == '+' ? rise : -rise) < -1e-12) FAIL_CHECK(call.text << ": operand " << k << " is not monotone " << mono);
        }
    }
    auto const jointly = [&](auto const& f, std::string_view fact, bool all) {
      for (auto k : tensors_of(call))
        if ((all || term(op, k) != '-') && !base::is_real(call.operands[k].tensor->at.dtype)) return;  // no small numbers in place of it
      auto const x = with_whole_numbers(call, random), y = with_whole_numbers(call, random);
      auto z = x;
      auto other = x;
      for (auto k : tensors_of(call)) {
        if (!base::is_real(x.operands[k].tensor->at.dtype) || (!all && term(op, k) == '-')) continue;
        z.operands[k].tensor = combined(*x.operands[k].tensor, *y.operands[k].tensor, f);
        other.operands[k].tensor = y.operands[k].tensor;
      }
      auto const fx = evaluated(x), fy = evaluated(other);
      std::vector<Array> expected;
      for (std::size_t r = 0; r < fx.size(); ++r) expected.push_back(combined(fx[r], fy[r], f));
      CHECK_MESSAGE(alike(expected, evaluated(z), 0), call.text << ": " << fact);
    };
    if (op.copy)
      for (auto const &f :
           {+[](double a, double b) { return std::max(a, b); }, +[](double a, double b) { return a * b; }, +[](double a, double b) { return (a + b) / 2; }})
        jointly(f, "not a copy", false);
    if (op.joint != Monoid::none) jointly([&](double a, double b) { return fold(op.joint, a, b); }, "not joint", true);
    if (op.affine) jointly([](double a, double b) { return (a + b) / 2; }, "not affine", true);
  });
}

TEST_CASE("a body that states no equation has the one of its calls") {
  for (auto const& [line, expected] : {
           std::pair{"channel_shuffle(f64[2, 6, 5], groups=2)", "ab!c->ad!c"},
           {"split(f64[4, 6], split_size=[3], dim=1)", "ab!->ac!,ad!"},
           {"repeat(f64[2, 3], repeats=[1, 2])", "ab!->ac!"},
           {"max.dim(f64[2, 3], dim=1)", "ab!->a,a"},
           {"hstack(f64[2, 3], f64[2, 4])", "ab!,ac!->ad!"},
           {"cross(f64[2, 3], f64[2, 3], dim=1)", "ab!,ac!->ad!"},
           {"diag_embed(f64[2, 3])", "ab!->ac!d!"},
           {"movedim(f64[2, 3, 4], source=[0], destination=[2])", "abc->bca"},
       }) {
    std::mt19937 random(1);
    auto const call = support::sample(line, random);
    auto const got = ir::equation_of(*call.op, call.attrs, Metas(call).in);
    CHECK_MESSAGE(got == expected, call.text << ": " << got);
  }
}
