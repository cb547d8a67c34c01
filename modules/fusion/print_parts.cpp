// Partial results of chunks: how they are merged, and what follows from them.
module tenon.fusion;
import std;
import tenon.base;
import tenon.ir;
import :printer;

namespace tenon::fusion {

namespace {
std::size_t at(int i) { return static_cast<std::size_t>(i); }
}  // namespace

std::vector<char> Printer::post_steps() const {
  std::vector<char> post(kernel_.steps.size(), 0);
  for (int k = 0; std::cmp_less(k, kernel_.steps.size()); ++k) {
    bool after = is_partial(k);
    each_read(k, [&](int in) { after |= post[at(in)] != 0; });
    post[at(k)] = after;
  }
  return post;
}
std::string Printer::partial_count(int k) const { return partial_per_column(kernel_, k) ? product(outer_, axes()) : "1"; }
void Printer::partial_pointers(std::string const& region) {
  std::string where = region;
  for (int const k : partials_) {
    line(std::format("{0} *x{1} = ({0} *)({2});", holder(k), k, where));
    where += std::format(" + ({} * 8 + 63) / 64 * 64", partial_count(k));
  }
}

void Printer::join_chunk(int number) {
  for (int k : partials_) {
    if (!is_here(k, number) || partial_per_column(kernel_, k)) continue;
    auto const& s = step(k);
    if (s.with >= 0)  // beside what was summed: over how many columns
      line(std::format("x{0}[0] = a{0}, x{0}[1] = (double)(to - from);", k));
    else if (s.combine == Monoid::sum || s.combine == Monoid::prod)
      line(std::format("*x{0} {1}= a{0};", k, s.combine == Monoid::sum ? "+" : "*"));
    else
      line(std::format("*x{0} = a{0} {1} *x{0} ? a{0} : *x{0};", k, s.combine == Monoid::max ? ">" : "<"));
  }
}

// Chunk after chunk joins the first, in order. What follows a lead is moved from both chunks' pivots to that of both together.
void Printer::merge_chunks() {
  open("for (tn_i64 g = 1; g < chunks; ++g) {");
  std::string where = "part + g * stride";
  for (int const k : partials_) {
    line(std::format("const {0} *y{1} = (const {0} *)({2});", holder(k), k, where));
    where += std::format(" + ({} * 8 + 63) / 64 * 64", partial_count(k));
  }
  auto const lead_of = [&](int k, char from) { return lead_value(step(k).with, std::format("{}{}[0]", from, step(k).with)); };
  for (int const k : partials_)
    if (step(k).with >= 0) line(std::format("const double l{0} = {1}, r{0} = {2};", k, lead_of(k, 'x'), lead_of(k, 'y')));
  for (int const k : partials_) {
    auto const& s = step(k);
    if (s.with >= 0) continue;
    auto const count = partial_count(k), holder = std::format("x{}[c]", k), more = std::format("y{}[c]", k);
    line("TN_VECTOR");
    line(s.combine == Monoid::sum || s.combine == Monoid::prod
             ? std::format("for (tn_i64 c = 0; c < {}; ++c) {} {}= {};", count, holder, s.combine == Monoid::sum ? "+" : "*", more)
             : std::format("for (tn_i64 c = 0; c < {0}; ++c) {1} = {2} {3} {1} ? {2} : {1};", count, holder, more, s.combine == Monoid::max ? ">" : "<"));
  }
  for (int const k : partials_) {
    if (step(k).with < 0) continue;
    auto const found = *carried(kernel_, k);
    auto const around = [&](std::string const& lead, std::string const& count) { return "(double)" + pivot(found, lead, count); };
    open("{");
    line(std::format("const double both = {};", around(lead_of(k, 'x'), std::format("x{0}[1] + y{0}[1]", k))));
    line(std::format("x{0}[0] = {1}(x{0}[0], l{0}, x{0}[1], {2}, both) + {1}(y{0}[0], r{0}, y{0}[1], {3}, both);", k, found.rule->moved_name,
                     around(std::format("l{}", k), std::format("x{}[1]", k)), around(std::format("r{}", k), std::format("y{}[1]", k))));
    line(std::format("x{0}[1] += y{0}[1];", k));
    close();
  }
  close();
}

void Printer::behind(std::vector<std::size_t> const& stores, bool cut) {
  std::vector<char> wanted(kernel_.steps.size(), 0);
  std::vector<int> todo;
  std::vector<std::size_t> streams, columns;
  for (auto const s : stores) {
    todo.push_back(kernel_.stores[s].step);
    if (!per_column(kernel_.stores[s])) continue;
    columns.push_back(s);
    if (streamed(kernel_.stores[s])) streams.push_back(s);
  }
  while (!todo.empty()) {
    int const k = todo.back();
    todo.pop_back();
    if (std::exchange(wanted[at(k)], 1)) continue;
    if (!is_partial(k)) each_read(k, [&](int in) { todo.push_back(in); });
  }
  auto const make = [&](bool of_columns) {
    for (int k = 0; std::cmp_less(k, kernel_.steps.size()); ++k) {
      if (!wanted[at(k)] || inner(k) != of_columns) continue;
      if (is_partial(k))
        line(std::format("{} v{} = {};", spelling(step(k).dtype).value, k,
                         result(k, std::format("x{}[{}]", k, of_columns ? place() : "0"), std::format("x{}[0]", step(k).with))));
      else if (!of_columns && step(k).kind == Step::Kind::load)
        base_pointer(step(k).access, std::format("p{}", k), true), define(k);
      else
        define(k);
    }
  };
  make(false);
  for (auto const s : stores)
    if (!per_column(kernel_.stores[s])) base_pointer(kernel_.stores[s].to, std::format("o{}", s), false), store_point(s, false);
  if (columns.empty()) return;
  for (int k = 0; std::cmp_less(k, kernel_.steps.size()); ++k)
    if (wanted[at(k)] && inner(k) && step(k).kind == Step::Kind::load) base_pointer(step(k).access, std::format("p{}", k), true);
  for (auto const s : columns) base_pointer(kernel_.stores[s].to, std::format("o{}", s), false);
  int const opened = streams.empty() ? loops(cut, true) : pieces(false, cut, streams);
  make(true);
  for (auto const s : columns) store_point(s, std::ranges::find(streams, s) != streams.end());
  close_loops(opened, streams);
}

void Printer::finish() {
  open(std::format("void {}_finish(char *const *b, const tn_i64 *n, const double *q, tn_i64 item, char *part, tn_i64 chunks, tn_i64 stride) {{", kernel_.name));
  parameters(false);
  partial_pointers("part");
  merge_chunks();
  // The batch index, or the row of a split.
  int const shared = is_split() ? outer_ : static_cast<int>(std::ranges::count(kernel_.axes, Role::batch, &Axis::role));
  for (int a = shared; a < outer_; ++a) line(std::format("const tn_i64 i{} = 0;", a));
  indices(shared);
  std::vector<std::size_t> own;
  for (std::size_t s = 0; s < kernel_.stores.size(); ++s)
    if (post_[at(kernel_.stores[s].step)] && !(is_split() && per_column(kernel_.stores[s]))) own.push_back(s);
  behind(own, false);
  report_index();
  close();
}

void Printer::apply() {
  any_streamed_ = false;
  open(std::format("void {}_apply(char *const *b, const tn_i64 *n, const double *q, tn_i64 item, tn_i64 from, tn_i64 to, char *part) {{", kernel_.name));
  parameters(false);
  partial_pointers("part");
  indices(outer_);
  std::vector<std::size_t> own;
  for (std::size_t s = 0; s < kernel_.stores.size(); ++s)
    if (post_[at(kernel_.stores[s].step)] && per_column(kernel_.stores[s])) own.push_back(s);
  behind(own, true);
  if (any_streamed_) line("tn_streamed();");
  report_index();
  close();
}

}  // namespace tenon::fusion
