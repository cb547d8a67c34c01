/// Prints a loop nest as C functions: passes of a row (print_c.cpp), walks in which reductions are carried along (print_online.cpp), partial results
/// (print_parts.cpp).
module tenon.fusion:printer;
import std;
import tenon.base;
import tenon.ir;
import :loop;
import :online;
import :print_c;
import :c_types;
import :elements;

namespace tenon::fusion {

class Printer : Elements {
 public:
  Printer(Kernel const& kernel, std::int64_t stream_from)
      : Elements(kernel), stream_from_(stream_from), partials_(partial_steps(kernel)), post_(post_steps()) {}
  std::string text();

 private:
  std::int64_t stream_from_;  // bytes
  bool any_streamed_ = false;
  std::string piece_end_;
  std::vector<int> partials_;
  std::vector<char> post_;  // per step: known only when all chunks are done

  inline void each_read(int k, auto f) const {
    for (auto const in : step(k).in) f(in);
    for (int const in : {step(k).access.index, step(k).access.guard})
      if (in >= 0) f(in);
  }
  inline bool is_split() const { return kernel_.schedule.form == Form::split; }
  inline bool is_partial(int k) const { return std::ranges::find(partials_, k) != partials_.end(); }
  std::vector<char> post_steps() const;
  bool per_column(Store const& store) const;
  bool stored_in(Store const& store, int pass) const;
  /// Whether reduction k is met in the walk of a pass.
  bool is_here(int k, int pass) const;

  // -- parts of functions
  void parameters(bool main_function);
  /// Opens the loops over the inner axes; returns how many.
  int loops(bool cut, bool vector);
  /// Whether a store's elements are written past the caches: so many that whoever reads them finds nothing there, and side by side.
  bool streamed(Store const& store) const;
  /// Opens the loop over the columns in pieces. The next row's are fetched a piece at a time, and what is streamed is gathered by pieces.
  int pieces(bool ahead, bool cut, std::vector<std::size_t> const& streams);
  /// Closes loops, and streams what was gathered.
  void close_loops(int count, std::vector<std::size_t> const& streams);
  /// The indices of the first `count` axes, of which `item` is the place.
  void indices(int count);
  void report_index();

  // -- passes
  void main();
  /// What is computed once a row, when pass `number` can begin.
  void row_stage(int number);
  void pass(int number);
  /// Marks inner steps that pass `number` computes to have step k.
  void need(int k, int number, std::vector<char>& wanted) const;
  void pointers(std::vector<char> const& wanted, int number);
  /// Defines the wanted steps of a column, or reads them from row buffers.
  void define_point(int k, int number);
  void store_point(std::size_t store, bool gathered);
  /// A row's share of partial results joins the chunk's.
  void join_chunk(int number);

  // -- walks in which reductions are carried along
  void walk(int number);
  /// The accumulator's type; what a reduction is in the end, as a value of its dtype, from accumulators of it and of its lead; a lead as a double.
  std::string_view holder(int k) const;
  std::string result(int k, std::string const& held, std::string const& lead) const;
  std::string lead_value(int lead, std::string const& held) const;
  /// As terms read it: rounded to their dtype.
  std::string pivot(Carried const& follower, std::string const& lead, std::string const& count) const;

  // -- partial results
  std::string partial_count(int k) const;
  /// Places of partial results in a chunk's region, as pointers x{k}.
  void partial_pointers(std::string const& region);
  void merge_chunks();
  void finish();
  /// The second pass of `split`, over chunks again.
  void apply();
  /// What some stores need of what the partial results make, and those stores.
  void behind(std::vector<std::size_t> const& stores, bool cut);
};

}  // namespace tenon::fusion
