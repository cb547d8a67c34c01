/// What reductions over rows leave behind while a kernel is interpreted.
module tenon.fusion:partials;
import std;
import tenon.base;
import tenon.ir;
import :loop;
import :blocks;
import :machine;

namespace tenon::fusion {

/// Totals of all reductions; those with one a column point at `width` doubles or whole numbers.
struct Totals {
  std::vector<Total> single;
  std::vector<std::byte*> each;
};

/// A number as a place of a list.
inline std::size_t at_place(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Partial results of every chunk of rows; chunks follow from sizes alone, and are combined in order.
class Partials {
 public:
  Partials(Machine const& machine, std::int64_t chunks) : machine_(machine), totals_(at_place(std::max<std::int64_t>(machine.batches, 1) * chunks)) {
    region_ = machine.width * std::ranges::count_if(machine.row_folds, [&](int k) { return over_each_column(machine.kernel, k); });
    memory_.resize(at_place(region_) * totals_.size());
    for (std::size_t item = 0; item < totals_.size(); ++item) {
      auto& totals = totals_[item];
      totals.single.resize(machine.kernel.steps.size());
      totals.each.resize(machine.kernel.steps.size(), nullptr);
      auto* next = memory_.data() + at_place(region_) * item;
      for (int const k : machine.row_folds) {
        auto const& step = machine.kernel.steps[at_place(k)];
        auto const start = totals.single[at_place(k)] = identity(step.combine);
        if (!over_each_column(machine.kernel, k)) continue;
        bool const whole = lane_of_dtype(step.dtype) == Lane::i64;
        std::fill_n(next, machine.width, whole ? std::bit_cast<std::uint64_t>(start.whole) : std::bit_cast<std::uint64_t>(start.real));
        totals.each[at_place(k)] = reinterpret_cast<std::byte*>(next);
        next += machine.width;
      }
    }
  }
  Totals& of(std::int64_t item) { return totals_[at_place(item)]; }
  void combine(std::int64_t into, std::int64_t from) {
    for (int const k : machine_.row_folds) {
      auto const& step = machine_.kernel.steps[at_place(k)];
      Lane const lane = lane_of_dtype(step.dtype) == Lane::i64 ? Lane::i64 : Lane::f64;
      auto const& more = of(from);
      if (over_each_column(machine_.kernel, k))
        blocks().fold_each(step.combine, lane, more.each[at_place(k)], machine_.width, of(into).each[at_place(k)]);
      else
        blocks().fold(step.combine, lane, lane == Lane::i64 ? static_cast<void const*>(&more.single[at_place(k)].whole) : &more.single[at_place(k)].real, 1,
                      of(into).single[at_place(k)]);
    }
  }

 private:
  Machine const& machine_;
  std::vector<Totals> totals_;
  std::vector<std::uint64_t> memory_;
  std::int64_t region_ = 0;
};

}  // namespace tenon::fusion
