// Loop nests as plain C: scalar statements in simple loops, which compilers turn into vector code.
module tenon.fusion;
import std;
import tenon.base;
import tenon.ir;
import tenon.device;
import :print_c;
import :printer;

namespace tenon::fusion {

namespace {
std::size_t at(int i) { return static_cast<std::size_t>(i); }
}  // namespace

std::string Printer::text() {
  for (auto const& line : kernel_.origin) text_ += "// " + line + "\n";
  main();
  if (!partials_.empty()) finish();
  if (has_second_pass(kernel_)) apply();
  return std::move(text_);
}

bool Printer::per_column(Store const& store) const {
  return inner(store.step) || std::ranges::any_of(std::span(store.to.strides).subspan(at(outer_)), [](Dim d) { return d.node >= 0 || d.value != 0; });
}
bool Printer::stored_in(Store const& store, int pass) const { return per_column(store) && !post_[at(store.step)] && step(store.step).pass == pass; }
bool Printer::is_here(int k, int pass) const {
  auto const& s = step(k);
  if (s.kind != Step::Kind::reduce || walk_of(kernel_, s) != pass || !((s.over & over_columns) || inner(s.in[0]))) return false;
  return s.with >= 0 || !post_[at(s.in[0])];  // what follows a lead is computed around what that is so far
}

void Printer::parameters(bool main_function) {
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
int Printer::loops(bool cut, bool vector) {
  for (int a = outer_; a < axes(); ++a) {
    if (vector && a + 1 == axes()) line("TN_VECTOR");
    bool const part = cut && a == outer_;
    open(std::format("for (tn_i64 i{0} = {1}; i{0} < {2}; ++i{0}) {{", a, part ? "from" : "0", part ? "to" : dim(kernel_.axes[at(a)].size)));
  }
  return axes() - outer_;
}

bool Printer::streamed(Store const& store) const {
  if (axes() != outer_ + 1 || store.to.index >= 0 || store.to.guard >= 0) return false;
  if (store.to.strides[at(outer_)] != Dim(1) || kernel_.axes.back().size.value < 128) return false;
  std::int64_t bytes = base::bytes_of(kernel_.buffers[at(store.to.buffer)].dtype);
  for (int a = 0; a < axes(); ++a)
    if (store.to.strides[at(a)] != Dim(0)) bytes *= kernel_.axes[at(a)].size.value;
  return bytes >= stream_from_;
}
int Printer::pieces(bool ahead, bool cut, std::vector<std::size_t> const& streams) {
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

void Printer::close_loops(int count, std::vector<std::size_t> const& streams) {
  for (int k = 0; k < count; ++k) {
    close();
    if (k > 0) continue;
    for (auto const s : streams)
      line(std::format("tn_stream(o{0} + j, t{0}, ({1} - j) * {2}, apart{0});", s, piece_end_,
                       base::bytes_of(kernel_.buffers[at(kernel_.stores[s].to.buffer)].dtype)));
  }
  if (!streams.empty()) any_streamed_ = true;
}
void Printer::indices(int count) {
  if (count > 1) line("tn_i64 rest = item;");
  for (int a = count; a-- > 0;)
    line(a           ? std::format("const tn_i64 i{0} = rest % {1}; rest /= {1};", a, dim(kernel_.axes[at(a)].size))
         : count > 1 ? "const tn_i64 i0 = rest;"
                     : "const tn_i64 i0 = item;");
}

void Printer::report_index() {
  if (has_indices(kernel_)) line(std::format("if (bad) __atomic_store_n((int *)b[{}], 1, __ATOMIC_RELAXED);", kernel_.buffers.size()));
}

// Marks inner steps that pass `number` computes to have step k.
void Printer::need(int k, int number, std::vector<char>& wanted) const {
  if (wanted[at(k)] || !inner(k) || step(k).kind == Step::Kind::number) return;
  wanted[at(k)] = 1;
  if (step(k).keep && step(k).pass < number) return;
  each_read(k, [&](int in) { need(in, number, wanted); });
}

void Printer::pointers(std::vector<char> const& wanted, int number) {
  for (int k = 0; std::cmp_less(k, kernel_.steps.size()); ++k)
    if (wanted[at(k)] && step(k).kind == Step::Kind::load && !(step(k).keep && step(k).pass < number))
      base_pointer(step(k).access, std::format("p{}", k), true);
  for (std::size_t s = 0; s < kernel_.stores.size(); ++s)
    if (auto const& st = kernel_.stores[s]; stored_in(st, number)) base_pointer(st.to, std::format("o{}", s), false);
}
void Printer::define_point(int k, int number) {
  if (step(k).keep && step(k).pass < number)
    line(std::format("{} v{} = k{}[{}];", spelling(step(k).dtype).value, k, k, place()));
  else
    define(k);
  if (step(k).keep && step(k).pass == number) line(std::format("k{}[{}] = v{};", k, place(), k));
}
void Printer::store_point(std::size_t s, bool gathered) {
  auto const& st = kernel_.stores[s];
  store(st, gathered ? std::format("t{}[i{} - j]", s, outer_) : element(st.to, std::format("o{}", s)));
}

void Printer::pass(int number) {
  if (carries_in(kernel_, number)) return walk(number);
  std::vector<char> wanted(kernel_.steps.size(), 0);
  bool any = false;
  for (int k = 0; std::cmp_less(k, kernel_.steps.size()); ++k) {
    if (post_[at(k)] && !is_partial(k)) continue;
    if (is_here(k, number)) need(step(k).in[0], number, wanted), any = true;
    if (step(k).keep && step(k).pass == number) need(k, number, wanted), any = true;
  }
  for (auto const& s : kernel_.stores)
    if (stored_in(s, number)) need(s.step, number, wanted), any = true;
  if (!any) return;
  for (int k = 0; std::cmp_less(k, kernel_.steps.size()); ++k) {
    if (is_here(k, number) && (step(k).over & over_columns) && !(is_partial(k) && partial_per_column(kernel_, k)))
      line(std::format("{} a{} = {};", combine_of(step(k)).holder, k, combine_of(step(k)).start));
  }
  open("{");  // several passes may read one access
  pointers(wanted, number);
  std::vector<std::size_t> streams;
  for (std::size_t k = 0; k < kernel_.stores.size(); ++k)
    if (stored_in(kernel_.stores[k], number) && streamed(kernel_.stores[k])) streams.push_back(k);
  bool const cut = is_split() || kernel_.schedule.form == Form::pointwise;
  bool const ahead = number == kernel_.schedule.ahead && axes() == outer_ + 1;
  int const opened = ahead || !streams.empty() ? pieces(ahead, cut, streams) : loops(cut, true);
  for (int k = 0; std::cmp_less(k, kernel_.steps.size()); ++k) {
    if (wanted[at(k)]) define_point(k, number);
    if (is_here(k, number)) {
      bool const columns = is_partial(k) && partial_per_column(kernel_, k);
      combine(step(k), columns ? std::format("x{}[{}]", k, place()) : std::format("a{}", k), entry(step(k)));
    }
  }
  for (std::size_t s = 0; s < kernel_.stores.size(); ++s)
    if (stored_in(kernel_.stores[s], number)) store_point(s, std::ranges::find(streams, s) != streams.end());
  close_loops(opened, streams);
  close();
  join_chunk(number);
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
      line(std::format("{} v{} = {};", spelling(s.dtype).value, k, result(k, std::format("a{}", k), std::format("a{}", s.with))));
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

std::int64_t stream_from() { return std::clamp<std::int64_t>(device::cpu().l3 / 2, 8 << 20, 32 << 20); }
std::string c_text(Kernel const& kernel, std::int64_t stream_from) { return Printer(kernel, stream_from).text(); }
bool has_indices(Kernel const& kernel) {
  return std::ranges::any_of(kernel.steps,
                             [](Step const& step) { return (step.kind == Step::Kind::load && step.access.index >= 0) || step.op == &checked_index; });
}

}  // namespace tenon::fusion
