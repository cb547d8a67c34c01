// Random changes of inputs and settings. A model in this file says which properties a body's graph depends on and how each entry generalises; the compiled
// function must record anew exactly when the model has no entry for a call, equal eager every time, and name one of the changed properties as its reason.
#include <doctest/doctest.h>

import std;
import tenon.base;
import tenon.ir;
import tenon.guards;
import tenon.tracer;
#include "compared.hpp"

using namespace tenon;
using namespace tenon::tracer;
using guards::What;
using support::exactly;

namespace {
struct Rng {
  std::uint64_t seed, at = 0;
  int below(int n) { return static_cast<int>(base::uniform(seed, 11, at++) * n); }
  bool chance(double p) { return base::uniform(seed, 11, at++) < p; }
  template <class T>
  T of(std::initializer_list<T> list) {
    return list.begin()[below(static_cast<int>(list.size()))];
  }
};

// ---- the function under test
enum class Join { add, multiply, larger };
struct Given {
  Tensor a, b, unread;
  bool flag = false;
  std::string act;
  Join join = Join::add;
  std::vector<Tensor> list;
  std::optional<Tensor> bias;
  double scale = 1, unread_number = 0;
  std::int64_t cut = 0;
  static void fields(auto& self, auto&& field) {
    field("a", self.a), field("b", self.b), field("unread", self.unread), field("flag", self.flag), field("act", self.act), field("join", self.join);
    field("list", self.list), field("bias", self.bias), field("scale", self.scale), field("unread_number", self.unread_number), field("cut", self.cut);
  }
};
Tensor body(Given const& in) {
  Tensor y = in.a * in.scale;
  if (settings().autocast[0].enabled) y = to(y, settings().autocast[0].dtype);
  if (in.flag) y = y + in.b;
  if (in.act == "tanh") y = tanh(y);
  if (in.act == "relu") y = relu(y);
  for (auto const& item : in.list) y = in.join == Join::add ? y + item : in.join == Join::multiply ? y * item : maximum(y, item);
  if (in.bias) y = y - *in.bias;
  if (settings().deterministic) y = y + 1;
  return in.cut > 0 ? slice(y, 0, 0, in.cut) : y;
}

// ---- one call, as choices that change one by one
struct Choice {
  struct About {
    int layout = 0;
    DType dtype = DType::f32;
    bool grad = false, there = false;  ///< on sim:0
  };
  int rank = 2;
  std::array<std::int64_t, 3> sizes{2, 3, 4};  ///< of a: the last `rank` of them
  About a{}, b{};
  int b_form = 0, items = 0, item_form = 0, unread = 0;
  bool same_object = false, flag = true, bias = false;
  std::string act = "none";
  Join join = Join::add;
  double scale = 1, unread_number = 0;
  std::int64_t cut = 0;
  Settings settings{};
};
using Change = void (*)(Rng&, Choice&);
constexpr int about_tensors = 16, in_all = 29;
std::array<Change, in_all> const changes{
    [](Rng& r, Choice& c) { c.sizes[0] = 1 + r.below(4); },
    [](Rng& r, Choice& c) { c.sizes[1] = 1 + r.below(5); },
    [](Rng& r, Choice& c) { c.sizes[2] = 1 + r.below(5); },
    [](Rng& r, Choice& c) { c.sizes[1] = c.sizes[2] = 2 + r.below(4); },
    [](Rng& r, Choice& c) { c.rank = 1 + r.below(3); },
    [](Rng& r, Choice& c) { c.a.layout = r.below(5); },
    [](Rng& r, Choice& c) { c.a.layout = r.below(2) * 3; },
    [](Rng& r, Choice& c) { c.b.layout = r.below(5); },
    [](Rng& r, Choice& c) { c.a.dtype = r.of({DType::f32, DType::f64, DType::f16, DType::i64}); },
    [](Rng& r, Choice& c) { c.b.dtype = r.of({DType::f32, DType::f64, DType::i32}); },
    [](Rng& r, Choice& c) { c.a.grad = r.chance(0.5); },
    [](Rng& r, Choice& c) { c.b.grad = r.chance(0.5); },
    [](Rng& r, Choice& c) { c.b_form = r.below(4); },
    [](Rng& r, Choice& c) { c.same_object = r.chance(0.5); },
    [](Rng& r, Choice& c) { c.a.there = c.b.there = r.chance(0.5); },
    [](Rng& r, Choice& c) { c.b.there = r.chance(0.1) ? !c.a.there : c.a.there; },  // two devices in one op are an error
    [](Rng& r, Choice& c) { c.items = r.below(3); },
    [](Rng& r, Choice& c) { c.item_form = r.below(2); },
    [](Rng& r, Choice& c) { c.bias = r.chance(0.5); },
    [](Rng& r, Choice& c) { c.unread = r.below(6); },
    [](Rng& r, Choice& c) { c.unread_number = r.below(100); },
    [](Rng& r, Choice& c) { c.flag = r.chance(0.6); },
    [](Rng& r, Choice& c) { c.act = r.of<std::string>({"none", "tanh", "relu"}); },
    [](Rng& r, Choice& c) { c.join = r.of({Join::add, Join::multiply, Join::larger}); },
    [](Rng& r, Choice& c) { c.scale = r.of({1.0, 1.0, 2.0, 0.5, -0.0, 0.0, 3.0}); },
    [](Rng& r, Choice& c) { c.settings.grad_enabled = r.chance(0.5); },
    [](Rng& r, Choice& c) { c.settings.deterministic = r.chance(0.5); },
    [](Rng& r, Choice& c) { c.settings.default_dtype = r.of({DType::f32, DType::f64}); },
    [](Rng& r, Choice& c) { c.settings.autocast[static_cast<std::size_t>(r.below(2))] = {r.chance(0.4), r.of({DType::bf16, DType::f16})}; },
};

// One of the first `count` changes; the rest of the choice stays legal.
void change(Rng& rng, Choice& choice, int count) {
  changes[static_cast<std::size_t>(rng.below(count))](rng, choice);
  if (choice.rank < 2 && choice.b_form == 2) choice.b_form = 1;
}

// Elements of the given sizes in memory that is laid out as `layout` says: row-major, last two dims swapped, every second element, behind others, repeated.
Tensor laid_out(DimList const& sizes, Choice::About const& about, double from) {
  NoGrad const off;
  auto const plain = [&](DimList const& of) {
    Tensor const y = to(reshape(to(arange(0, base::numel(ir::values(of))), DType::f64) * 0.25 + from, of), about.dtype);
    return about.there ? to(y, base::device_of("sim:0")) : y;
  };
  Tensor x;
  int const rank = static_cast<int>(sizes.size());
  DimList other = sizes;
  if (about.layout == 1 && rank >= 2) {
    std::swap(other[other.size() - 1], other[other.size() - 2]);
    x = transpose(plain(other), -1, -2);
  } else if (about.layout == 2 && rank >= 1) {
    other[other.size() - 1] = other[other.size() - 1] * 2;
    x = slice(plain(other), -1, 0, std::numeric_limits<std::int64_t>::max(), 2);
  } else if (about.layout == 3 && rank >= 1) {
    other[0] = other[0] + 2;
    x = slice(plain(other), 0, 2);
  } else if (about.layout == 4 && rank >= 1) {
    x = expand(plain({sizes[sizes.size() - 1]}), sizes);
  } else {
    x = plain(sizes);
  }
  x = x.detach();
  return about.grad && base::is_real(about.dtype) ? Tensor(x).set_requires_grad() : x;
}
Given arranged(Choice const& c, double from) {
  DimList a_sizes;
  for (std::size_t d = 3 - static_cast<std::size_t>(c.rank); d < 3; ++d) a_sizes.push_back(c.sizes[d]);
  std::int64_t const last = c.sizes[2];
  Given in;
  in.a = laid_out(a_sizes, c.a, from);
  DimList const row(last), column{c.sizes[1], 1};
  in.b = c.same_object                  ? in.a
         : c.b_form == 0                ? laid_out(a_sizes, c.b, from + 1)
         : c.b_form == 1                ? laid_out(row, c.b, from + 1)
         : c.b_form == 2 && c.rank >= 2 ? laid_out(column, c.b, from + 1)
                                        : laid_out({}, c.b, from + 1);
  for (int k = 0; k < c.items; ++k) in.list.push_back(laid_out(c.item_form ? DimList() : row, {.there = c.a.there}, from - k));
  if (c.bias) in.bias = laid_out(row, {.there = c.a.there}, 0.5);
  std::array const unread{ones({7}), ones({3}), ones({1}), ones({2, 5}), to(ones({3}), DType::f64), ones({3}).set_requires_grad()};
  in.unread = unread[static_cast<std::size_t>(c.unread)];
  in.flag = c.flag, in.act = c.act, in.join = c.join, in.scale = c.scale, in.unread_number = c.unread_number;
  in.cut = c.cut;
  return in;
}

// ---- the model
struct Read {  // a tensor that the body reads, as it is
  std::string name;
  int place;  ///< among the tensors of the arguments
  DType dtype;
  base::Device device;
  bool grad, contiguous;
  base::Shape sizes, strides;
};
struct Facts {
  std::vector<std::pair<std::string, std::string>> values;  ///< of arguments that are no tensors or numbers, by name
  std::string settings;
  int tensors;                         ///< in the arguments
  std::vector<Read> reads{}, named{};  ///< in the order of the body, once each; and under every name
  bool same_object;                    ///< b is a, and read
  double scale;
  std::int64_t cut;
};
Facts facts_of(Given const& in) {
  Facts facts;
  auto const& s = settings();
  facts.settings = std::format("grad {} deterministic {} dtype {}", s.grad_enabled, s.deterministic, static_cast<int>(s.default_dtype));
  for (auto const& state : s.autocast) facts.settings += state.enabled ? std::format(" autocast {}", static_cast<int>(state.dtype)) : " no autocast";
  facts.values = {{"args[0].flag", in.flag ? "true" : "false"},
                  {"args[0].act", in.act},
                  {"args[0].join", std::to_string(static_cast<int>(in.join))},
                  {"args[0].list", std::to_string(in.list.size())},
                  {"args[0].bias", in.bias ? "set" : "unset"}};
  int place = 0;
  auto const read = [&](std::string name, Tensor const& x, bool is_read) {
    if (!x.defined()) return;
    facts.named.push_back({"args[0]." + name, place++, x.dtype(), x.device(), x.requires_grad(), x.is_contiguous(), x.shape(), x.strides()});
    if (is_read) facts.reads.push_back(facts.named.back());
  };
  facts.same_object = in.flag && in.b.impl() == in.a.impl();
  read("a", in.a, true);
  read("b", in.b, in.flag && !facts.same_object);
  read("unread", in.unread, false);
  for (std::size_t k = 0; k < in.list.size(); ++k) read(std::format("list[{}]", k), in.list[k], true);
  if (in.bias) read("bias", *in.bias, true);
  facts.tensors = place;
  facts.scale = in.scale, facts.cut = in.cut;
  return facts;
}
bool same_number(double a, double b) { return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b); }

enum class Answer { no, maybe, yes };
enum class Number { constant, parameter, unknown };
struct Entry {
  Facts made;
  std::vector<std::vector<int>> symbols;             ///< per read and dim; -1: constant
  std::vector<std::pair<int, std::int64_t>> pinned;  ///< symbols that met a constant where sizes must be equal
  std::vector<std::pair<int, int>> met{};            ///< symbols that met each other there
  Number number = Number::constant;
  bool fixed = false;  ///< nothing generalises
};
Answer both(Answer a, Answer b) { return std::min(a, b); }
Answer only_if(bool holds) { return holds ? Answer::yes : Answer::no; }

// Whether a tensor lies in memory without gaps when its dims are ordered by the strides of `order`; dims of size 1 have no place in it.
bool dense(base::Shape const& sizes, base::Shape const& strides, base::Shape const& order) {
  std::vector<std::size_t> dims(sizes.size());
  std::iota(dims.begin(), dims.end(), std::size_t{0});
  std::ranges::stable_sort(dims, std::greater{}, [&](std::size_t d) { return order[d]; });
  std::int64_t step = 1;
  for (auto const d : dims | std::views::reverse) {
    if (sizes[d] == 1) continue;
    if (strides[d] != step) return false;
    step *= sizes[d];
  }
  return true;
}

// Whether the guards of the arguments let the call in; `bound` takes the sizes of its symbols.
Answer guards_pass(Entry const& entry, Facts const& now, std::map<int, std::int64_t>& bound) {
  auto const& made = entry.made;
  if (made.values != now.values || made.settings != now.settings) return Answer::no;
  Answer answer = Answer::yes;
  // b may be a itself where the recording had two objects: the same metadata, so it may pass as the second.
  auto reads = now.reads;
  if (made.same_object && !now.same_object) return Answer::no;
  if (!made.same_object && now.same_object) {
    answer = Answer::maybe;
    reads.insert(reads.begin() + 1, reads[0]);
  }
  if (made.reads.size() != reads.size()) return Answer::no;
  for (std::size_t k = 0; k < reads.size(); ++k) {
    auto const &want = made.reads[k], &have = reads[k];
    if (want.dtype != have.dtype || want.device != have.device || want.grad != have.grad || want.sizes.size() != have.sizes.size()) return Answer::no;
    bool symbolic = false;
    for (std::size_t d = 0; d < have.sizes.size(); ++d) {
      int const symbol = entry.symbols[k][d];
      symbolic = symbolic || symbol >= 0;
      if (symbol < 0 ? want.sizes[d] != have.sizes[d] : have.sizes[d] < 2) return Answer::no;
      if (symbol >= 0 && bound.try_emplace(symbol, have.sizes[d]).first->second != have.sizes[d]) return Answer::no;
    }
    bool const gapless = dense(want.sizes, want.strides, want.strides);
    if (symbolic && gapless) {  // strides follow the sizes
      answer = both(answer, only_if(dense(have.sizes, have.strides, want.strides)));
      continue;
    }
    bool alike = want.sizes == have.sizes;
    for (std::size_t d = 0; d < have.sizes.size(); ++d) alike = alike && (have.sizes[d] == 1 || want.strides[d] == have.strides[d]);
    if (!alike) answer = both(answer, entry.fixed || gapless ? Answer::no : Answer::maybe);  // strides with gaps may generalise or not
  }
  return answer;
}
// Whether that and what the ops ask of the sizes holds.
Answer lets_in(Entry const& entry, Facts const& now) {
  std::map<int, std::int64_t> bound;
  auto const answer = guards_pass(entry, now, bound);
  if (answer == Answer::no) return answer;
  bool const holds = std::ranges::all_of(entry.pinned, [&](auto const& pin) { return bound.at(pin.first) == pin.second; }) &&
                     std::ranges::all_of(entry.met, [&](auto const& pair) { return bound.at(pair.first) == bound.at(pair.second); });
  return holds ? answer : Answer::no;
}
Answer covers(Entry const& entry, Facts const& now, bool constants) {
  auto answer = lets_in(entry, now);
  if (!same_number(entry.made.scale, now.scale) && entry.number != Number::parameter)
    answer = both(answer, entry.number == Number::constant ? Answer::no : Answer::maybe);
  if (entry.made.cut != now.cut) answer = both(answer, constants || entry.made.cut == 0 || now.cut == 0 ? Answer::no : Answer::maybe);
  // An end that is cut is compared with the size: what holds for other sizes is the matter of that comparison.
  if (now.cut > 0 && entry.made.reads[0].sizes != now.reads[0].sizes) answer = both(answer, Answer::maybe);
  return answer;
}

// What has been recorded, and what the next recording would make symbolic.
struct Model {
  Dynamic dynamic;
  std::vector<Entry> entries{};
  std::map<int, std::vector<base::Shape>> seen{};  ///< sizes by place, of recordings

  void record(Facts const& now) {
    Entry entry{.made = now, .symbols = {}, .pinned = {}, .fixed = dynamic == Dynamic::never};
    std::map<std::int64_t, int> symbol_of;  // where all sizes are symbols from the start, equal ones share one
    int symbols_made = 0;
    for (auto const& read : now.reads) {
      auto& symbols = entry.symbols.emplace_back(read.sizes.size(), -1);
      for (std::size_t d = 0; d < read.sizes.size(); ++d) {
        bool varies = dynamic == Dynamic::always;
        if (dynamic == Dynamic::automatic)
          for (auto const& earlier : seen[read.place]) varies = varies || earlier.size() != read.sizes.size() || earlier[d] != read.sizes[d];
        if (!varies || read.sizes[d] < 2) continue;
        auto const [known, fresh] = symbol_of.try_emplace(read.sizes[d], symbols_made);
        symbols[d] = dynamic == Dynamic::always && !fresh ? known->second : symbols_made++;
      }
    }
    pin(entry);
    auto const passes = [&](Entry const& e) {
      std::map<int, std::int64_t> bound;
      return guards_pass(e, now, bound) != Answer::no;
    };
    bool const entered = std::ranges::any_of(entries, passes);
    bool const equal = std::ranges::any_of(entries, [&](Entry const& e) { return passes(e) && same_number(e.made.scale, now.scale); });
    entry.number = dynamic == Dynamic::never ? Number::constant : entered && !equal ? Number::parameter : Number::unknown;
    if (entries.empty()) entry.number = Number::constant;
    for (auto const& read : now.reads) seen[read.place].push_back(read.sizes);
    entries.push_back(std::move(entry));
  }
  // Where operands meet, a symbol must equal another one, or a constant other than 1.
  static void pin(Entry& entry) {
    for (std::size_t a = 0; a < entry.symbols.size(); ++a)
      for (std::size_t b = 0; b < entry.symbols.size(); ++b) {
        auto const &left = entry.symbols[a], &right = entry.symbols[b];
        for (std::size_t from_back = 1; from_back <= std::min(left.size(), right.size()); ++from_back) {
          int const symbol = left[left.size() - from_back], other = right[right.size() - from_back];
          auto const& sizes = entry.made.reads[b].sizes;
          std::int64_t const size = sizes[sizes.size() - from_back];
          if (symbol >= 0 && other < 0 && size != 1) entry.pinned.emplace_back(symbol, size);
          if (symbol >= 0 && other >= 0 && symbol != other) entry.met.emplace_back(symbol, other);
        }
      }
  }
};

// Whether the reason of a recompile speaks of something in which the call differs from an entry.
bool fits(guards::Mismatch const& reason, std::vector<Entry> const& entries, Facts const& now) {
  if (reason.text.empty()) return false;
  auto const differs = [&](auto const& property) {
    return std::ranges::any_of(entries, [&](Entry const& entry) {
      for (auto const& want : entry.made.named)
        for (auto const& have : now.named)
          if (want.name == reason.source && have.name == reason.source && property(want) != property(have)) return true;
      return false;
    });
  };
  auto const at = [&](auto const& list) { return std::cmp_less(reason.dim, list.size()) && reason.dim >= 0 ? list[static_cast<std::size_t>(reason.dim)] : -1; };
  switch (reason.what) {
    case What::settings:
      return std::ranges::any_of(entries, [&](Entry const& e) { return e.made.settings != now.settings; });
    case What::value:
      return std::ranges::any_of(entries, [&](Entry const& e) {
        for (std::size_t k = 0; k < now.values.size(); ++k)
          if (now.values[k].first == reason.source && e.made.values[k].second != now.values[k].second) return true;
        return false;
      });
    case What::count:
      return std::ranges::any_of(entries, [&](Entry const& e) { return e.made.tensors != now.tensors; });
    case What::dtype:
      return differs([](Read const& r) { return r.dtype; });
    case What::device:
      return differs([](Read const& r) { return base::to_string(r.device); });
    case What::rank:
      return differs([](Read const& r) { return r.sizes.size(); });
    case What::requires_grad:
      return differs([](Read const& r) { return r.grad; });
    case What::size:
      return differs([&](Read const& r) { return at(r.sizes); }) || std::ranges::any_of(entries, [](Entry const& e) { return !e.fixed; });
    case What::stride:
      return differs([&](Read const& r) { return std::pair(at(r.strides), r.sizes); });
    case What::number:
      return std::ranges::any_of(entries, [&](Entry const& e) { return !same_number(e.made.scale, now.scale) || e.made.cut != now.cut; });
    case What::relation:
      return std::ranges::any_of(entries, [](Entry const& e) { return !e.fixed || e.made.cut > 0; });
    case What::stream:
    case What::aliasing:
      return std::ranges::any_of(entries, [&](Entry const& e) { return e.made.same_object != now.same_object || (e.made.cut > 0) != (now.cut > 0); });
    default:
      return false;
  }
}

struct Tally {
  int calls = 0, hits = 0, recompiles = 0, unsure = 0, graphs = 0, refused = 0;
  std::map<What, int> reasons{};
};

// Result and gradients of one call, or what it refuses.
std::string outcome(auto const& f, Given const& in) {
  try {
    Tensor const y = f(in);
    auto text = exactly(y);
    if (!y.requires_grad()) return text;
    GradMode const on(true);
    for (auto const& slope : gradients(sum(y * y), std::array{in.a, in.b})) text += "\n" + exactly(slope);
    return text;
  } catch (base::Error const& error) {
    auto const text = std::string("refused: ") + error.what();
    return text.substr(0, text.find(": input"));  // what follows shows strides, also of dims of size 1
  }
}

void round_of_changes(std::uint64_t seed, int calls, Tally& tally) {
  Rng rng{seed};
  Model model{rng.chance(0.5) ? Dynamic::never : rng.chance(0.7) ? Dynamic::automatic : Dynamic::always};
  bool const constants = model.dynamic == Dynamic::never;
  auto const fast = compile(body, {.dynamic = model.dynamic, .recompile_limit = 1000});
  Choice choice;
  std::vector<Choice> past{choice};
  std::map<std::string, std::string> fresh_of;
  for (int call = 0; call < calls; ++call) {
    if (rng.chance(0.25)) {
      choice = past[static_cast<std::size_t>(rng.below(static_cast<int>(past.size())))];
    } else {
      for (int k = 1 + rng.below(3); k-- > 0;) change(rng, choice, rng.chance(0.5) ? about_tensors : in_all);
      if (constants && rng.chance(0.1)) choice.cut = rng.below(3);
      past.push_back(choice);
    }
    SettingsScope const scope(choice.settings);
    Given const in = arranged(choice, 0.25 * call - 3), again = arranged(choice, 0.25 * call - 3);
    Facts const now = facts_of(in);
    auto best = Answer::no;
    for (auto const& entry : model.entries) best = std::max(best, covers(entry, now, constants));
    auto const where = std::format("seed {} call {} dynamic {}", seed, call, static_cast<int>(model.dynamic));

    auto const before = fast.state().segments.size();
    std::string const want = outcome(body, again), got = outcome(fast, in);
    REQUIRE_MESSAGE(got == want, where);
    bool const recorded = fast.state().segments.size() > before;
    auto const after = recorded ? describe(fast.state()) : Explanation{};
    ++tally.calls;
    if (want.starts_with("refused: ")) {
      REQUIRE_MESSAGE(!recorded, where);
      ++tally.refused;
      continue;
    }
    REQUIRE_MESSAGE((best == Answer::maybe || recorded == (best == Answer::no)), where,
                    std::string(recorded ? ": recorded without need: " : ": no recording: "),
                    recorded && !after.recompiles.empty() ? after.recompiles.back().reason.text : "", "\n", exactly(in), to_string(describe(fast.state())));
    tally.hits += !recorded, tally.unsure += best == Answer::maybe;
    if (!recorded) continue;
    REQUIRE_MESSAGE(after.recompiles.size() == static_cast<std::size_t>(after.graphs - 1), where);
    if (!model.entries.empty()) {
      auto const& reason = after.recompiles.back().reason;
      REQUIRE_MESSAGE(fits(reason, model.entries, now), where, ": the reason fits no change: ", reason.text);
      ++tally.recompiles, ++tally.reasons[reason.what];
    }
    if (constants) {  // a recompile gave a graph, or guards, that no earlier one had
      auto const alone = explain(body, {.dynamic = Dynamic::never})(in);
      auto const [at, is_new] = fresh_of.try_emplace(to_string(alone.parts.at(0).graph) + support::guards_of(alone), where);
      REQUIRE_MESSAGE(is_new, where, ": the graph is that of ", at->second);
    }
    for (auto& entry : model.entries)
      if (entry.number == Number::unknown && lets_in(entry, now) == Answer::yes && !same_number(entry.made.scale, now.scale)) entry.number = Number::constant;
    model.record(now);
  }
  auto const report = describe(fast.state());
  CHECK(report.eager_calls == 0);
  CHECK(report.breaks.empty());
  tally.graphs += report.graphs;
}

int wanted_changes() {
  if (char const* const count = std::getenv("TENON_PROGRAMS")) return std::atoi(count);
  char const* const tier = std::getenv("TENON_TIER");
  return tier && std::string_view(tier) == "full" ? 10000 : tier && std::string_view(tier) == "quick" ? 100 : 1000;
}
}  // namespace

TEST_CASE("changes: a pure function, whose body is not run again, gives what eager gives after each change") {
  Rng rng{3};
  int runs = 0, calls = 0;
  for (int round = 0; round * 50 < wanted_changes(); ++round) {
    auto const dynamic = rng.of({Dynamic::automatic, Dynamic::always, Dynamic::never});
    auto const fast = compile(
        [&runs](Given const& in) {
          ++runs;
          return body(in);
        },
        {.dynamic = dynamic, .pure = true, .recompile_limit = 1000});
    Choice choice;
    for (int call = 0; call < 50; ++call, ++calls) {
      if (rng.chance(0.6)) change(rng, choice, in_all);
      if (rng.chance(0.1)) choice.cut = rng.below(3);
      SettingsScope const scope(choice.settings);
      Given const in = arranged(choice, 0.25 * call), again = arranged(choice, 0.25 * call);
      REQUIRE_MESSAGE(outcome(fast, in) == outcome(body, again), "round ", round, " call ", call, " dynamic ", static_cast<int>(dynamic), "\n", exactly(in),
                      describe(fast.state()));
    }
  }
  std::printf("changes: the body of a pure function ran in %d of %d calls\n", runs, calls);
  CHECK(runs < calls);
}

TEST_CASE("changes: a recompile exactly when the graph would differ, and a reason every time") {
  Tally tally;
  constexpr int calls = 50;
  char const* const first = std::getenv("TENON_SEED");
  for (int round = 0; round * calls < wanted_changes(); ++round)
    round_of_changes((first ? std::strtoull(first, nullptr, 10) : 1) + static_cast<std::uint64_t>(round), calls, tally);
  std::string kinds;
  for (auto const& [what, count] : tally.reasons) kinds += std::format(" {}:{}", static_cast<int>(what), count);
  std::printf("changes: %d calls, %d hits, %d recompiles, %d graphs, %d refused, %d of which the model is not sure; reasons by kind:%s\n", tally.calls,
              tally.hits, tally.recompiles, tally.graphs, tally.refused, tally.unsure, kinds.c_str());
  CHECK(tally.unsure * 10 < tally.calls);
  CHECK(tally.hits * 10 > tally.calls);
}
