// Walks over columns in which reductions are carried along: a block's leads first, then, around what they are by then, the sums that follow them.
module tenon.fusion;
import std;
import tenon.base;
import tenon.ir;
import :printer;

namespace tenon::fusion {

namespace {
std::size_t at(int i) { return static_cast<std::size_t>(i); }
constexpr std::int64_t block = 2048, piece = 256;  // columns: a block's elements stay in the first cache; a piece fetches as many of the next block
}  // namespace

std::string_view Printer::holder(int k) const {
  auto const& s = step(k);
  bool const wide = s.dtype == DType::f32 && s.combine == Monoid::sum && !inner(k) && (s.over & over_columns) && carries_in(kernel_, walk_of(kernel_, s));
  return wide && !(s.over & over_rows) ? "double" : combine_of(s).holder;
}
std::string Printer::result(int k, std::string const& held, std::string const& lead) const {
  auto const& s = step(k);
  if (s.with < 0 && holder(k) == combine_of(s).holder) return left(s, held);
  auto const type = spelling(s.dtype).value;
  auto const name = s.with < 0 ? std::string_view() : carried(kernel_, k)->rule->finished_name;
  return name.empty() ? std::format("({}){}", type, held) : std::format("({}){}({}, {})", type, name, held, lead_value(s.with, lead));
}
std::string Printer::lead_value(int lead, std::string const& held) const {
  return step(lead).combine == Monoid::sum ? held : std::format("(double){}", left(step(lead), held));
}
std::string Printer::pivot(Carried const& follower, std::string const& lead, std::string const& count) const {
  return std::format("({}){}({}, {})", spelling(step(follower.pivot).dtype).value, follower.rule->pivot_name, lead, count);
}

void Printer::walk(int number) {
  std::vector<char> first(kernel_.steps.size(), 0), second = first;
  std::vector<int> plain, followers;
  std::map<int, Carried> pivots;  // by their steps
  for (int k = 0; std::cmp_less(k, kernel_.steps.size()); ++k) {
    if (post_[at(k)] && !is_partial(k)) continue;
    if (is_here(k, number)) {
      bool const follows = step(k).with >= 0;
      need(step(k).in[0], follows ? number + 1 : number, follows ? second : first);
      (follows ? followers : plain).push_back(k);
      if (follows) {
        auto const found = *carried(kernel_, k);
        pivots.emplace(found.pivot, found);
      }
    }
    if (step(k).keep && step(k).pass == number) need(k, number, first);
  }
  std::vector<std::size_t> stores;
  for (std::size_t s = 0; s < kernel_.stores.size(); ++s)
    if (stored_in(kernel_.stores[s], number)) need(kernel_.stores[s].step, number, first), stores.push_back(s);
  auto const each = [&](int k) { return is_partial(k) && partial_per_column(kernel_, k); };
  auto const by_block = [&](int k) { return (step(k).over & over_columns) && !each(k); };
  for (int const k : plain)
    if (by_block(k)) line(std::format("{} a{} = {};", holder(k), k, combine_of(step(k)).start));
  for (int const k : followers) line(std::format("double a{} = 0;", k));
  open("{");
  std::vector<char> read = first;
  for (std::size_t k = 0; k < read.size(); ++k) read[k] |= second[k];
  pointers(read, number);
  for (auto const& [p, follower] : pivots) line(std::format("double at{} = 0;", p));

  auto const axis = outer_;
  auto const low = is_split() ? std::string("from") : std::string("0"), high = is_split() ? std::string("to") : dim(kernel_.axes.back().size);
  open(std::format("for (tn_i64 j = {}; j < {}; j += {}) {{", low, high, block));
  line(std::format("const tn_i64 end = j + {1} < {0} ? j + {1} : {0};", high, block));
  for (auto const& [p, follower] : pivots) line(std::format("const double was{} = {};", p, lead_value(follower.lead, std::format("a{}", follower.lead))));
  auto const start = [&](int k) { line(std::format("{} c{} = {};", combine_of(step(k)).holder, k, combine_of(step(k)).start)); };
  auto const join = [&](int k) {
    auto const& s = step(k);
    if (s.combine == Monoid::sum || s.combine == Monoid::prod) {
      bool const sums = s.combine == Monoid::sum;
      line(base::is_real(s.dtype) ? std::format("a{0} {1}= c{0};", k, sums ? "+" : "*")
                                  : std::format("a{0} = {1}(a{0}, c{0});", k, sums ? "tn_add_i64" : "tn_mul_i64"));
    } else {
      line(std::format("a{0} = c{0} {1} a{0} ? c{0} : a{0};", k, s.combine == Monoid::max ? ">" : "<"));
    }
  };
  for (int const k : plain)
    if (by_block(k)) start(k);
  line("TN_VECTOR");
  open(std::format("for (tn_i64 i{0} = j; i{0} < end; ++i{0}) {{", axis));
  for (int k = 0; std::cmp_less(k, kernel_.steps.size()); ++k) {
    if (first[at(k)]) define_point(k, number);
    if (std::ranges::find(plain, k) != plain.end()) combine(step(k), each(k) ? std::format("x{}[{}]", k, place()) : std::format("c{}", k), entry(step(k)));
  }
  for (auto const s : stores) store_point(s, false);
  close();
  for (int const k : plain)
    if (by_block(k)) join(k);

  for (auto const& [p, follower] : pivots)
    line(std::format("const {} v{} = {};", spelling(step(p).dtype).value, p,
                     pivot(follower, lead_value(follower.lead, std::format("a{}", follower.lead)), std::format("(double)(end - {})", low))));
  for (int const k : followers) {
    auto const found = *carried(kernel_, k);
    line(std::format("a{0} = {1}(a{0}, was{2}, (double)(j - {3}), at{2}, (double)v{2});", k, found.rule->moved_name, found.pivot, low));
    start(k);
  }
  for (auto const& [p, follower] : pivots) line(std::format("at{0} = (double)v{0};", p));
  open(std::format("for (tn_i64 c = j; c < end; c += {}) {{", piece));
  line(std::format("const tn_i64 last = c + {0} < end ? c + {0} : end;", piece));
  for (int k = 0; std::cmp_less(k, kernel_.steps.size()); ++k) {
    auto const& s = step(k);
    if (!read[at(k)] || s.kind != Step::Kind::load || s.access.index >= 0 || s.access.guard >= 0 || s.access.strides[at(axis)] != Dim(1)) continue;
    line(std::format("for (tn_i64 f = c; f < last; f += {}) __builtin_prefetch(p{} + f + {});", 64 / base::bytes_of(kernel_.buffers[at(s.access.buffer)].dtype),
                     k, block));
  }
  line("TN_VECTOR");
  open(std::format("for (tn_i64 i{0} = c; i{0} < last; ++i{0}) {{", axis));
  for (int k = 0; std::cmp_less(k, kernel_.steps.size()); ++k) {
    if (second[at(k)]) {
      bool const held = step(k).keep && step(k).pass <= number;
      held ? line(std::format("{} v{} = k{}[{}];", spelling(step(k).dtype).value, k, k, place())) : define(k);
    }
    if (std::ranges::find(followers, k) != followers.end()) combine(step(k), std::format("c{}", k), entry(step(k)));
  }
  close(), close();
  for (int const k : followers) line(std::format("a{0} += c{0};", k));
  close(), close();
  join_chunk(number);
}

}  // namespace tenon::fusion
