// Loop nests as plain C: scalar statements in simple loops, which compilers turn into vector code.
module tenon.fusion;
import std;
import tenon.base;
import tenon.ir;
import tenon.device;
import :print_c;
import :c_types;
import :elements;

namespace tenon::fusion {

namespace {
std::size_t at(int i) { return static_cast<std::size_t>(i); }

class Printer : Elements {
 public:
  Printer(Kernel const& kernel, std::int64_t stream_from)
      : Elements(kernel), stream_from_(stream_from), partials_(partial_steps(kernel)), post_(post_steps()) {}
  std::string text() {
    for (auto const& line : kernel_.origin) text_ += "// " + line + "\n";
    main();
    if (!partials_.empty()) finish();
    return std::move(text_);
  }

 private:
  std::int64_t stream_from_;  // bytes
  bool any_streamed_ = false;
  std::string piece_end_;
  std::vector<int> partials_;
  std::vector<char> post_;

  bool per_column(Store const& store) const {
    return inner(store.step) || std::ranges::any_of(std::span(store.to.strides).subspan(at(outer_)), [](Dim d) { return d.node >= 0 || d.value != 0; });
  }
  void each_read(int k, auto f) const {
    for (auto const in : step(k).in) f(in);
    for (int const in : {step(k).access.index, step(k).access.guard})
      if (in >= 0) f(in);
  }
  bool stored_in(Store const& store, int pass) const { return per_column(store) && !post_[at(store.step)] && step(store.step).pass == pass; }
  std::string partial_count(int k) const { return partial_per_column(kernel_, k) ? product(outer_, axes()) : "1"; }
  bool is_partial(int k) const { return std::ranges::find(partials_, k) != partials_.end(); }
  std::vector<char> post_steps() const {  // what can be known only when all chunks are done
    std::vector<char> post(kernel_.steps.size(), 0);
    for (int k = 0; std::cmp_less(k, kernel_.steps.size()); ++k) {
      bool after = is_partial(k);
      each_read(k, [&](int in) { after |= post[at(in)] != 0; });
      post[at(k)] = after;
    }
    return post;
  }

  void parameters(bool main_function) {
    for (std::size_t k = 0; k < kernel_.parameters.size(); ++k) line(std::format("const tn_i64 n{0} = n[{0}];", k));
    for (std::size_t k = 0; k < kernel_.real_parameters.size(); ++k) line(std::format("const double q{0} = q[{0}];", k));
    if (has_indices(kernel_)) line("int bad = 0;");
    if (!main_function) return;
    bool scratch = false;
    for (int k = 0; std::cmp_less(k, kernel_.steps.size()); ++k) {
      if (!step(k).keep) continue;
      if (!std::exchange(scratch, true)) line("char *s = scratch;");
      auto const type = spelling(step(k).dtype).value;
      line(std::format("{0} *k{1} = ({0} *)s;", type, k));
      line(std::format("s += ({} * {} + 63) / 64 * 64;", product(outer_, axes()), kept_bytes(step(k))));
    }
  }
  // Places of partial results in a chunk's region, as pointers x{k}.
  void partial_pointers(std::string const& region) {
    std::string where = region;
    for (int const k : partials_) {
      auto const holder = combine_of(step(k)).holder;
      line(std::format("{0} *x{1} = ({0} *)({2});", holder, k, where));
      where += std::format(" + ({} * 8 + 63) / 64 * 64", partial_count(k));
    }
  }
  // Opens the loops over the inner axes; returns how many.
  int loops(bool cut, bool vector) {
    for (int a = outer_; a < axes(); ++a) {
      if (vector && a + 1 == axes()) line("TN_VECTOR");
      bool const part = cut && a == outer_;
      open(std::format("for (tn_i64 i{0} = {1}; i{0} < {2}; ++i{0}) {{", a, part ? "from" : "0", part ? "to" : dim(kernel_.axes[at(a)].size)));
    }
    return axes() - outer_;
  }

  // Whether a store's elements are written past the caches: so many that whoever reads them finds nothing there, and side by side.
  bool streamed(Store const& store) const {
    if (axes() != outer_ + 1 || kernel_.schedule.form == Form::split || store.to.index >= 0 || store.to.guard >= 0) return false;
    if (store.to.strides[at(outer_)] != Dim(1) || kernel_.axes.back().size.value < 128) return false;
    std::int64_t bytes = base::bytes_of(kernel_.buffers[at(store.to.buffer)].dtype);
    for (int a = 0; a < axes(); ++a)
      if (store.to.strides[at(a)] != Dim(0)) bytes *= kernel_.axes[at(a)].size.value;
    return bytes >= stream_from_;
  }
  // Opens the loop over the columns in pieces. The next row's are fetched a piece at a time, and what is streamed is gathered by pieces.
  int pieces(bool ahead, bool cut, std::vector<std::size_t> const& streams) {
    auto const rows = ahead ? row_streams(kernel_) : std::vector<Access>();
    for (std::size_t k = 0; k < rows.size(); ++k) {
      base_pointer(rows[k], std::format("f{}", k), true);
      line(std::format("f{} += {};", k, dim(rows[k].strides[at(outer_ - 1)])));
    }
    auto const size = kernel_.axes.back().size;
    auto const covers = [&](std::int64_t wish) { return !cut && size.node < 0 && (size.value <= 256 || size.value % wish == 0); };
    constexpr std::array<std::int64_t, 7> wishes{256, 384, 320, 512, 192, 448, 128};
    auto const* const found = std::ranges::find_if(wishes, covers);
    bool const whole = found != wishes.end();  // pieces of one length cover the columns
    std::int64_t const piece = !whole ? 256 : std::max<std::int64_t>(std::min(*found, size.value), 1);
    for (auto const s : streams) {
      auto const to = kernel_.stores[s].to.buffer;
      std::string apart;  // what is also read lies in the caches already
      for (auto const& other : kernel_.steps)
        if (auto const test = std::format("b[{}] != b[{}]", to, other.access.buffer); other.kind == Step::Kind::load && apart.find(test) == std::string::npos)
          apart += (apart.empty() ? "" : " && ") + test;
      line(std::format("{} t{}[{}] __attribute__((aligned(64)));", spelling(kernel_.buffers[at(to)].dtype).memory, s, piece));
      line(std::format("const int apart{} = {};", s, apart.empty() ? "1" : apart));
    }
    auto const last = cut ? "to" : dim(size);
    open(std::format("for (tn_i64 j = {}; j < {}; j += {}) {{", cut ? "from" : "0", last, piece));
    if (!whole) line(std::format("const tn_i64 end = j + {1} < {0} ? j + {1} : {0};", last, piece));
    for (std::size_t k = 0; k < rows.size(); ++k)
      line(std::format("for (tn_i64 c = j; c < j + {}; c += {}) __builtin_prefetch(f{} + c);", piece,
                       64 / base::bytes_of(kernel_.buffers[at(rows[k].buffer)].dtype), k));
    line("TN_VECTOR");
    piece_end_ = whole ? std::format("j + {}", piece) : "end";
    open(std::format("for (tn_i64 i{0} = j; i{0} < {1}; ++i{0}) {{", outer_, piece_end_));
    return 2;
  }

  // The indices of the first `count` axes, of which `item` is the place.
  void indices(int count) {
    if (count > 1) line("tn_i64 rest = item;");
    for (int a = count; a-- > 0;)
      line(a           ? std::format("const tn_i64 i{0} = rest % {1}; rest /= {1};", a, dim(kernel_.axes[at(a)].size))
           : count > 1 ? "const tn_i64 i0 = rest;"
                       : "const tn_i64 i0 = item;");
  }

  void report_index() {
    if (has_indices(kernel_)) line(std::format("if (bad) __atomic_store_n((int *)b[{}], 1, __ATOMIC_RELAXED);", kernel_.buffers.size()));
  }

  void main();
  void pass(int number);
  void row_stage(int number);
  void finish();
  void need(int k, int pass, std::vector<char>& wanted) const;
  int pass_of(Step const& s) const { return s.kind == Step::Kind::reduce ? step(s.in[0]).pass : s.pass; }
};

// Marks inner steps that pass `number` computes to have step k.
void Printer::need(int k, int number, std::vector<char>& wanted) const {
  if (wanted[at(k)] || !inner(k) || step(k).kind == Step::Kind::number) return;
  wanted[at(k)] = 1;
  if (step(k).keep && step(k).pass < number) return;
  each_read(k, [&](int in) { need(in, number, wanted); });
}

void Printer::pass(int number) {
  std::vector<char> wanted(kernel_.steps.size(), 0);
  bool any = false;
  auto const is_here = [&](int k) {
    return step(k).kind == Step::Kind::reduce && !post_[at(step(k).in[0])] && pass_of(step(k)) == number &&
           ((step(k).over & over_columns) || inner(step(k).in[0]));
  };
  for (int k = 0; std::cmp_less(k, kernel_.steps.size()); ++k) {
    if (post_[at(k)] && !is_partial(k)) continue;
    if (is_here(k)) need(step(k).in[0], number, wanted), any = true;
    if (step(k).keep && step(k).pass == number) need(k, number, wanted), any = true;
  }
  for (auto const& s : kernel_.stores)
    if (stored_in(s, number)) need(s.step, number, wanted), any = true;
  if (!any) return;
  for (int k = 0; std::cmp_less(k, kernel_.steps.size()); ++k) {
    if (is_here(k) && (step(k).over & over_columns) && !(is_partial(k) && partial_per_column(kernel_, k)))
      line(std::format("{} a{} = {};", combine_of(step(k)).holder, k, combine_of(step(k)).start));
  }
  open("{");  // several passes may read one access
  for (int k = 0; std::cmp_less(k, kernel_.steps.size()); ++k)
    if (wanted[at(k)] && step(k).kind == Step::Kind::load && !(step(k).keep && step(k).pass < number))
      base_pointer(step(k).access, std::format("p{}", k), true);
  for (std::size_t s = 0; s < kernel_.stores.size(); ++s) {
    if (auto const& st = kernel_.stores[s]; stored_in(st, number)) base_pointer(st.to, std::format("o{}", s), false);
  }
  std::vector<std::size_t> streams;
  for (std::size_t k = 0; k < kernel_.stores.size(); ++k)
    if (stored_in(kernel_.stores[k], number) && streamed(kernel_.stores[k])) streams.push_back(k);
  bool const cut = kernel_.schedule.form == Form::split || kernel_.schedule.form == Form::pointwise;
  bool const ahead = number == kernel_.schedule.ahead && axes() == outer_ + 1;
  int const opened = ahead || !streams.empty() ? pieces(ahead, cut, streams) : loops(cut, true);
  for (int k = 0; std::cmp_less(k, kernel_.steps.size()); ++k) {
    if (wanted[at(k)]) {
      if (step(k).keep && step(k).pass < number)
        line(std::format("{} v{} = k{}[{}];", spelling(step(k).dtype).value, k, k, place()));
      else
        define(k);
      if (step(k).keep && step(k).pass == number) line(std::format("k{}[{}] = v{};", k, place(), k));
    }
    if (is_here(k)) {
      bool const columns = is_partial(k) && partial_per_column(kernel_, k);
      combine(step(k), columns ? std::format("x{}[{}]", k, place()) : std::format("a{}", k), entry(step(k)));
    }
  }
  for (std::size_t s = 0; s < kernel_.stores.size(); ++s) {
    auto const& st = kernel_.stores[s];
    if (!stored_in(st, number)) continue;
    bool const gathered = std::ranges::find(streams, s) != streams.end();
    store(st, gathered ? std::format("t{}[i{} - j]", s, outer_) : element(st.to, std::format("o{}", s)));
  }
  for (int k = 0; k < opened + 1; ++k) {
    close();
    if (k > 0) continue;
    for (auto const s : streams)
      line(std::format("tn_stream(o{0} + j, t{0}, ({1} - j) * {2}, apart{0});", s, piece_end_,
                       base::bytes_of(kernel_.buffers[at(kernel_.stores[s].to.buffer)].dtype)));
  }
  if (!streams.empty()) any_streamed_ = true;
  for (int k : partials_)
    if (is_here(k) && !partial_per_column(kernel_, k)) {  // a row's share joins the chunk's
      auto const& s = step(k);
      if (s.combine == Monoid::sum || s.combine == Monoid::prod)
        line(std::format("*x{0} {1}= a{0};", k, s.combine == Monoid::sum ? "+" : "*"));
      else
        line(std::format("*x{0} = a{0} {1} *x{0} ? a{0} : *x{0};", k, s.combine == Monoid::max ? ">" : "<"));
    }
}

// What is computed once a row, when pass `number` can begin.
void Printer::row_stage(int number) {
  for (int k = 0; std::cmp_less(k, kernel_.steps.size()); ++k) {
    auto const& s = step(k);
    if (is_partial(k)) {
      if (s.over & over_columns || inner(s.in[0]) || step(s.in[0]).pass != number) continue;
      combine(s, std::format("*x{}", k), entry(s));
      continue;
    }
    if (post_[at(k)] || inner(k) || s.pass != number) continue;
    if (s.kind == Step::Kind::reduce)
      line(std::format("{} v{} = {};", spelling(s.dtype).value, k, left(s, std::format("a{}", k))));
    else {
      if (s.kind == Step::Kind::load) base_pointer(s.access, std::format("p{}", k), true);
      define(k);
    }
  }
  for (std::size_t s = 0; s < kernel_.stores.size(); ++s) {
    auto const& st = kernel_.stores[s];
    if (post_[at(st.step)] || per_column(st) || step(st.step).pass != number) continue;
    base_pointer(st.to, std::format("o{}", s), false);
    store(st, element(st.to, std::format("o{}", s)));
  }
}

void Printer::main() {
  open(std::format("void {}(char *const *b, const tn_i64 *n, const double *q, tn_i64 lo, tn_i64 hi, tn_i64 from, tn_i64 to, char *scratch, char *part) {{",
                   kernel_.name));
  parameters(true);
  if (!partials_.empty()) {
    partial_pointers("part");
    for (int const k : partials_) line(std::format("for (tn_i64 c = 0; c < {}; ++c) x{}[c] = {};", partial_count(k), k, combine_of(step(k)).start));
  }
  open("for (tn_i64 item = lo; item < hi; ++item) {");
  indices(outer_);
  int const last = passes(kernel_);
  for (int number = 0; number <= last; ++number) row_stage(number), pass(number);
  close();
  if (any_streamed_) line("tn_streamed();");
  report_index();
  close();
}

void Printer::finish() {
  open(std::format("void {}_finish(char *const *b, const tn_i64 *n, const double *q, tn_i64 item, char *part, tn_i64 chunks, tn_i64 stride) {{", kernel_.name));
  parameters(false);
  partial_pointers("part");
  open("for (tn_i64 g = 1; g < chunks; ++g) {");
  std::string where = "part + g * stride";
  for (int const k : partials_) {
    auto const& s = step(k);
    auto const count = partial_count(k);
    line(std::format("const {0} *y{1} = (const {0} *)({2});", combine_of(s).holder, k, where));
    where += std::format(" + ({} * 8 + 63) / 64 * 64", count);
    auto const holder = std::format("x{}[c]", k), more = std::format("y{}[c]", k);
    line("TN_VECTOR");
    line(s.combine == Monoid::sum || s.combine == Monoid::prod
             ? std::format("for (tn_i64 c = 0; c < {}; ++c) {} {}= {};", count, holder, s.combine == Monoid::sum ? "+" : "*", more)
             : std::format("for (tn_i64 c = 0; c < {0}; ++c) {1} = {2} {3} {1} ? {2} : {1};", count, holder, more, s.combine == Monoid::max ? ">" : "<"));
  }
  close();
  // The batch index, or the row of a split.
  int const shared = kernel_.schedule.form == Form::split ? outer_ : static_cast<int>(std::ranges::count(kernel_.axes, Role::batch, &Axis::role));
  for (int a = shared; a < outer_; ++a) line(std::format("const tn_i64 i{} = 0;", a));
  indices(shared);
  for (int const level : {0, 1}) {  // once, then a column each
    std::vector<char> wanted(kernel_.steps.size(), 0);
    bool any = false;
    for (auto const& st : kernel_.stores)
      if (post_[at(st.step)]) {
        std::vector<int> todo{st.step};
        std::set<int> seen;
        while (!todo.empty()) {  // through steps of the other level as well
          int const k = todo.back();
          todo.pop_back();
          if (!seen.insert(k).second) continue;
          wanted[at(k)] = inner(k) == (level == 1);
          if (!is_partial(k)) each_read(k, [&](int in) { todo.push_back(in); });
        }
        any |= inner(st.step) == (level == 1);
      }
    if (level == 1 && !any) break;
    for (int k = 0; std::cmp_less(k, kernel_.steps.size()); ++k)
      if (wanted[at(k)] && step(k).kind == Step::Kind::load) base_pointer(step(k).access, std::format("p{}", k), true);
    for (std::size_t s = 0; s < kernel_.stores.size(); ++s)
      if (post_[at(kernel_.stores[s].step)] && inner(kernel_.stores[s].step) == (level == 1)) base_pointer(kernel_.stores[s].to, std::format("o{}", s), false);
    int const opened = level == 1 ? loops(false, true) : 0;
    for (int k = 0; std::cmp_less(k, kernel_.steps.size()); ++k) {
      if (!wanted[at(k)]) continue;
      if (is_partial(k))
        line(std::format("{} v{} = {};", spelling(step(k).dtype).value, k, left(step(k), std::format("x{}[{}]", k, level == 1 ? place() : "0"))));
      else
        define(k);
    }
    for (std::size_t s = 0; s < kernel_.stores.size(); ++s)
      if (post_[at(kernel_.stores[s].step)] && inner(kernel_.stores[s].step) == (level == 1))
        store(kernel_.stores[s], element(kernel_.stores[s].to, std::format("o{}", s)));
    for (int k = 0; k < opened; ++k) close();
  }
  report_index();
  close();
}
}  // namespace

std::int64_t stream_from() { return std::clamp<std::int64_t>(device::cpu().l3 / 2, 8 << 20, 32 << 20); }
std::string c_text(Kernel const& kernel, std::int64_t stream_from) { return Printer(kernel, stream_from).text(); }
bool has_indices(Kernel const& kernel) {
  return std::ranges::any_of(kernel.steps,
                             [](Step const& step) { return (step.kind == Step::Kind::load && step.access.index >= 0) || step.op == &checked_index; });
}

}  // namespace tenon::fusion
