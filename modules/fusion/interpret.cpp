// Kernels without a compiler: blocks of columns through lists of instructions.
module tenon.fusion;
import std;
import tenon.base;
import tenon.ir;
import tenon.device;
import :interpret;
import :machine;
import :partials;

namespace tenon::fusion {
using Do = Instruction::Do;

namespace {
constexpr std::int64_t least_share = 1 << 14, most_shares = 64;  // points of an item of work, items of a kernel
constexpr std::int64_t most_partials = 64 << 20;                 // bytes of partial results

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
struct Free {
  void operator()(std::byte* p) const { ::operator delete(p, std::align_val_t{64}); }
};
using Bytes = std::unique_ptr<std::byte, Free>;
Bytes allocate(std::int64_t bytes) { return Bytes(static_cast<std::byte*>(::operator new(at(std::max<std::int64_t>(bytes, 64)), std::align_val_t{64}))); }

/// One thread's run through a machine.
class Walker {
 public:
  explicit Walker(Machine const& machine)
      : machine_(machine), slots_(allocate(machine.slot_bytes)), bases_(machine.places.size(), 0), index_(machine.outer.size(), 0) {
    for (auto const& slot : machine.slots)
      if (slot.constant) fill(slot, *slot.constant);
    if (std::ranges::none_of(machine.kernel.steps, &Step::keep)) return;
    for (auto const& step : machine.kernel.steps) kept_.push_back(step.keep ? allocate(machine.width * 8) : Bytes());
  }

  void rows(std::vector<Stage> const& stages, std::int64_t batch, std::int64_t low, std::int64_t high, std::int64_t from, std::int64_t to, Totals& totals) {
    totals_ = &totals, batch_ = batch;
    for (std::int64_t row = low; row < high; ++row) outer(batch, row), one_row(stages, from, to);
  }
  /// What comes behind the last row of a batch index.
  void finish(std::int64_t batch, Totals& totals) {
    totals_ = &totals, batch_ = batch;
    outer(batch, 0);
    one_row(machine_.finish, 0, machine_.width);
  }

 private:
  Machine const& machine_;
  Bytes slots_;
  std::vector<std::int64_t> bases_, index_;
  std::vector<Bytes> kept_;
  Totals* totals_ = nullptr;
  std::int64_t batch_ = 0;
  std::array<std::int64_t, block_length> offsets_{};
  // How a pivot moved with the last block: what its lead was, of how many columns.
  struct Moving {
    double lead = 0, count = 0, from = 0, to = 0, next_lead = 0, next_count = 0;
  };
  std::map<int, Moving> moving_;  // by its step

  Kernel const& kernel() const { return machine_.kernel; }
  std::byte* slot(int number) const { return slots_.get() + machine_.slots[at(number)].offset; }

  void fill(Slot const& slot, Total value) {
    auto* const to = slots_.get() + slot.offset;
    if (slot.lane == Lane::f32)
      std::fill_n(reinterpret_cast<float*>(to), block_length, static_cast<float>(value.real));
    else if (slot.lane == Lane::f64)
      std::fill_n(reinterpret_cast<double*>(to), block_length, value.real);
    else
      std::fill_n(reinterpret_cast<std::int64_t*>(to), block_length, value.whole);
  }
  void spread(int number) {
    auto const& slot = machine_.slots[at(number)];
    auto* const to = slots_.get() + slot.offset;
    auto const n = std::min(block_length, machine_.width);
    if (slot.lane == Lane::f32)
      std::fill_n(reinterpret_cast<float*>(to), n, *reinterpret_cast<float const*>(to));
    else
      std::fill_n(reinterpret_cast<std::uint64_t*>(to), n, *reinterpret_cast<std::uint64_t const*>(to));
  }
  void outer(std::int64_t batch, std::int64_t row) {
    for (std::size_t a = index_.size(); a-- > 0;) {
      auto& rest = kernel().axes[a].role == Role::row ? row : batch;
      auto const size = std::max<std::int64_t>(machine_.outer[a], 1);
      index_[a] = rest % size;
      rest /= size;
    }
    for (std::size_t k = 0; k < bases_.size(); ++k) {
      auto const& where = machine_.places[k];
      if (!where.needed) continue;
      bases_[k] = where.offset;
      for (std::size_t a = 0; a < index_.size(); ++a) bases_[k] += index_[a] * where.outer[a];
    }
  }
  void one_row(std::vector<Stage> const& stages, std::int64_t from, std::int64_t to) {
    for (std::size_t pass = 0; pass < stages.size(); ++pass) {
      for (auto const& instruction : stages[pass].row) {
        if (instruction.what == Do::fold && instruction.in[0] >= 0) {
          blocks().fold(combine(instruction), instruction.lane, slot(instruction.in[0]), 1, totals_->single[at(instruction.number)]);
          continue;
        }
        execute(instruction, 0, 1, false);
        if (instruction.out >= 0 && machine_.slots[at(instruction.out)].spread) spread(instruction.out);
      }
      if (stages[pass].columns.empty()) continue;
      for (auto const& instruction : stages[pass].columns) {  // reductions of one row begin anew with each
        if (instruction.what == Do::pivot) moving_[carried(instruction).pivot] = {.next_lead = identity(carried(instruction).rule->lead).real};
        if (instruction.what == Do::fold && !(kernel().steps[at(instruction.number)].over & over_rows))
          totals_->single[at(instruction.number)] = identity(combine(instruction));
      }
      for (std::int64_t column = from; column < to; column += block_length)
        for (auto const& instruction : stages[pass].columns) execute(instruction, column, std::min(block_length, to - column), true);
    }
  }
  ir::Monoid combine(Instruction const& instruction) const { return kernel().steps[at(instruction.number)].combine; }

  // Calls f(place in the block, length, offset of the first) for runs along the innermost column axis.
  template <class F>
  void runs(std::vector<std::int64_t> const& strides, std::int64_t offset, std::int64_t column, std::int64_t n, F f) const {
    auto const& sizes = machine_.columns;
    if (sizes.size() < 2) return f(std::int64_t{0}, n, sizes.empty() ? offset : offset + column * strides[0]);
    for (std::int64_t done = 0; done < n;) {
      std::int64_t rest = column + done, start = offset, left = 0;
      for (std::size_t a = sizes.size(); a-- > 0;) {
        auto const index = rest % sizes[a];
        rest /= sizes[a];
        if (a + 1 == sizes.size()) left = sizes[a] - index;
        start += index * strides[a];
      }
      auto const length = std::min(left, n - done);
      f(done, length, start);
      done += length;
    }
  }
  static std::string nodes_of(Kernel const& kernel) {
    std::string text;
    for (auto const& line : kernel.origin | std::views::take(4)) text += (text.empty() ? "" : "; ") + line;
    return text.empty() ? kernel.name : kernel.origin.size() > 4 ? text + "; ..." : text;
  }
  void check(std::int64_t index, std::int64_t size, std::string_view call) const {
    if (index < 0 || index >= size)
      base::fail("{}{}index {} is out of range for size {}, in {}", call, call.empty() ? "" : ": ", index, size, nodes_of(kernel()));
  }
  void checked(Instruction const& instruction, std::int64_t n) {
    auto const* const index = reinterpret_cast<std::int64_t const*>(slot(instruction.in[0]));
    auto const* const size = reinterpret_cast<std::int64_t const*>(slot(instruction.in[1]));
    for (std::int64_t i = 0; i < n; ++i) check(index[i], size[i], kernel().steps[at(instruction.number)].attrs.text);
    std::copy_n(index, n, reinterpret_cast<std::int64_t*>(slot(instruction.out)));
  }
  // Offsets of elements that an index or a guard selects; those that are guarded away are -1 below all others.
  static constexpr std::int64_t nowhere = std::numeric_limits<std::int64_t>::min();
  void select(Where const& where, std::size_t number, std::int64_t column, std::int64_t n, bool columns) {
    auto const stride = columns && !where.inner.empty() ? where.inner.back() : 0;
    auto const put = [&](std::int64_t first, std::int64_t length, std::int64_t offset) {
      for (std::int64_t i = 0; i < length; ++i) offsets_[at(first + i)] = offset + i * stride;
    };
    if (columns)
      runs(where.inner, bases_[number], column, n, put);
    else
      put(0, n, bases_[number]);
    auto const call = number < kernel().steps.size() ? kernel().steps[number].attrs.text : std::string_view();
    auto const* const index = where.index_slot >= 0 ? reinterpret_cast<std::int64_t const*>(slot(where.index_slot)) : nullptr;
    auto const* const guard = where.guard_slot >= 0 ? reinterpret_cast<std::int64_t const*>(slot(where.guard_slot)) : nullptr;
    for (std::int64_t i = 0; i < n; ++i) {
      if (guard && guard[i] == 0) {
        offsets_[at(i)] = nowhere;
        continue;
      }
      if (!index) continue;
      check(index[i], where.index_size, call);
      offsets_[at(i)] += index[i] * where.index_stride;
    }
  }
  void load(Instruction const& instruction, std::int64_t column, std::int64_t n, bool columns) {
    auto const& where = machine_.places[at(instruction.number)];
    auto const bytes = base::bytes_of(where.dtype);
    auto* const to = slot(instruction.out);
    auto const step = lane_bytes(instruction.lane);
    if (where.index_slot >= 0 || where.guard_slot >= 0) {
      select(where, at(instruction.number), column, n, columns);
      for (std::int64_t i = 0; i < n; ++i) {
        if (offsets_[at(i)] == nowhere)
          std::memset(to + i * step, 0, at(step));
        else
          blocks().load(where.dtype, where.memory + offsets_[at(i)] * bytes, 1, instruction.lane, to + i * step, 1);
      }
      return;
    }
    auto const base = bases_[at(instruction.number)];
    if (!columns) return blocks().load(where.dtype, where.memory + base * bytes, 1, instruction.lane, to, n);
    auto const stride = where.inner.empty() ? 0 : where.inner.back();
    runs(where.inner, base, column, n, [&](std::int64_t first, std::int64_t length, std::int64_t offset) {
      blocks().load(where.dtype, where.memory + offset * bytes, stride, instruction.lane, to + first * step, length);
    });
  }
  void store(Instruction const& instruction, std::int64_t column, std::int64_t n, bool columns) {
    auto const& where = machine_.places[at(instruction.number)];
    if (batch_ != 0 && !varies_over_batch(instruction.number)) return;  // every batch index has the same values
    auto const bytes = base::bytes_of(where.dtype);
    auto const* const from = slot(instruction.in[0]);
    auto const step = lane_bytes(instruction.lane);
    if (where.index_slot >= 0 || where.guard_slot >= 0) {
      select(where, at(instruction.number), column, n, columns);
      for (std::int64_t i = 0; i < n; ++i)
        if (offsets_[at(i)] != nowhere) blocks().store(where.dtype, where.memory + offsets_[at(i)] * bytes, 1, instruction.lane, from + i * step, 1);
      return;
    }
    auto const base = bases_[at(instruction.number)];
    if (!columns) return blocks().store(where.dtype, where.memory + base * bytes, 1, instruction.lane, from, n);
    auto const stride = where.inner.empty() ? 0 : where.inner.back();
    runs(where.inner, base, column, n, [&](std::int64_t first, std::int64_t length, std::int64_t offset) {
      blocks().store(where.dtype, where.memory + offset * bytes, stride, instruction.lane, from + first * step, length);
    });
  }
  bool varies_over_batch(int number) const {
    auto const& stored = kernel().stores[at(number) - kernel().steps.size()];
    if (kernel().steps[at(stored.step)].level & over_batch) return true;
    for (std::size_t a = 0; a < index_.size(); ++a)
      if (kernel().axes[a].role == Role::batch && machine_.places[at(number)].outer[a] != 0) return true;
    return false;
  }
  void index(Instruction const& instruction, std::int64_t column, std::int64_t n, bool columns) {
    auto* const to = reinterpret_cast<std::int64_t*>(slot(instruction.out));
    int const axis = kernel().steps[at(instruction.number)].axis;
    if (!columns) {
      *to = index_[at(axis)];
      return;
    }
    std::vector<std::int64_t> strides(machine_.columns.size(), 0);
    strides[at(machine_.column_of[at(axis)])] = 1;
    runs(strides, 0, column, n, [&](std::int64_t first, std::int64_t length, std::int64_t offset) {
      for (std::int64_t i = 0; i < length; ++i) to[first + i] = offset + i * strides.back();
    });
  }
  template <class T, class F>
  void call(Instruction const& instruction, std::int64_t n, F element) const {
    auto const operands = kernel().steps[at(instruction.number)].in.size();
    auto const* const attributes = machine_.attributes[at(instruction.number)].data();
    auto* const to = reinterpret_cast<T*>(slot(instruction.out));
    for (std::int64_t i = 0; i < n; ++i) {
      std::array<std::conditional_t<std::is_same_v<T, std::int64_t>, std::int64_t, double>, 3> x{};
      for (std::size_t k = 0; k < operands; ++k) x[k] = reinterpret_cast<T const*>(slot(instruction.in[k]))[i];
      to[i] = static_cast<T>(element(x.data(), attributes));
    }
  }
  Carried const& carried(Instruction const& instruction) const { return machine_.carried[at(instruction.number)]; }
  void pivot(Instruction const& instruction, std::int64_t count) {
    auto const& follower = carried(instruction);
    auto& m = moving_[follower.pivot];
    m.lead = m.next_lead, m.count = m.next_count, m.from = m.to;
    m.next_lead = totals_->single[at(follower.lead)].real, m.next_count = static_cast<double>(count);
    m.to = follower.rule->pivot(m.next_lead, m.next_count);
    if (instruction.lane == Lane::f32) m.to = static_cast<double>(static_cast<float>(m.to));
    fill(machine_.slots[at(instruction.out)], {.real = m.to});
  }
  void move(Instruction const& instruction) {
    auto const& m = moving_[carried(instruction).pivot];
    auto& sum = totals_->single[at(instruction.number)].real;
    sum = carried(instruction).rule->moved(sum, m.lead, m.count, m.from, m.to);
  }
  void total(Instruction const& instruction) {
    auto value = totals_->single[at(instruction.number)];
    if (auto const& follower = carried(instruction); follower.rule) value.real = follower.rule->finished(value.real, totals_->single[at(follower.lead)].real);
    auto* const to = slot(instruction.out);
    if (instruction.lane == Lane::f32)
      *reinterpret_cast<float*>(to) = static_cast<float>(value.real);
    else if (instruction.lane == Lane::f64)
      *reinterpret_cast<double*>(to) = value.real;
    else
      *reinterpret_cast<std::int64_t*>(to) = value.whole;
  }
  void execute(Instruction const& i, std::int64_t column, std::int64_t n, bool columns) {
    auto const& set = blocks();
    switch (i.what) {
      case Do::load:
        return load(i, column, n, columns);
      case Do::index:
        return index(i, column, n, columns);
      case Do::op: {
        std::array<void const*, 3> in{};
        for (std::size_t k = 0; k < 3; ++k) in[k] = slot(i.in[i.in[k] < 0 ? 0 : k]);
        return i.block(in.data(), slot(i.out), n, machine_.attributes[at(i.number)].data());
      }
      case Do::call: {
        if (kernel().steps[at(i.number)].op == &checked_index) return checked(i, n);
        auto const& element = kernel().steps[at(i.number)].op->element;
        if (i.lane == Lane::i64) return call<std::int64_t>(i, n, element.whole);
        return i.lane == Lane::f32 ? call<float>(i, n, element.real) : call<double>(i, n, element.real);
      }
      case Do::convert:
        return set.convert(i.from, slot(i.in[0]), i.lane, slot(i.out), n);
      case Do::settle:
        return set.settle(i.dtype, i.lane, slot(i.out), n);
      case Do::kept:
        std::memcpy(slot(i.out), kept_[at(i.number)].get() + column * lane_bytes(i.lane), at(n * lane_bytes(i.lane)));
        return;
      case Do::keep:
        std::memcpy(kept_[at(i.number)].get() + column * lane_bytes(i.lane), slot(i.in[0]), at(n * lane_bytes(i.lane)));
        return;
      case Do::total:
        return total(i);
      case Do::totals:
        return set.convert(i.lane == Lane::i64 ? Lane::i64 : Lane::f64, totals_->each[at(i.number)] + column * 8, i.lane, slot(i.out), n);
      case Do::fold:
        return set.fold(combine(i), i.lane, slot(i.in[0]), n, totals_->single[at(i.number)]);
      case Do::fold_each:
        return set.fold_each(combine(i), i.lane, slot(i.in[0]), n, totals_->each[at(i.number)] + column * 8);
      case Do::store:
        return store(i, column, n, columns);
      case Do::pivot:
        return pivot(i, column + n);
      case Do::move:
        return move(i);
    }
  }
};

bool has_work(std::vector<Stage> const& stages) {
  return std::ranges::any_of(stages, [](Stage const& stage) { return !stage.row.empty() || !stage.columns.empty(); });
}
}  // namespace

void interpret(Kernel const& kernel, std::span<std::byte* const> buffers, std::span<std::int64_t const> parameters, std::span<double const> real_parameters) {
  Machine const machine = machine_of(kernel, buffers, parameters, real_parameters);
  auto const batches = std::max<std::int64_t>(machine.batches, 1);  // without any, what does not vary over them is still to be stored
  auto const points = machine.rows * machine.width;
  auto const each = std::ranges::count_if(machine.row_folds, [&](int k) { return over_each_column(kernel, k); });
  auto const cut = [&](std::int64_t work, std::int64_t most) { return std::clamp<std::int64_t>(std::min(work / least_share, most), 1, most_shares); };
  auto const room = std::max<std::int64_t>(1, most_partials / std::max<std::int64_t>(1, batches * each * machine.width * 8));
  auto const chunks = cut(points, std::min({machine.rows, room, std::max<std::int64_t>(1, most_shares / batches)}));
  bool const reduces = std::ranges::any_of(kernel.steps, [](Step const& step) { return step.kind == Step::Kind::reduce; });
  auto const parts = reduces || batches * chunks > 1 ? 1 : cut(points, machine.width / block_length);

  std::vector<std::optional<Walker>> walkers(at(device::threads()));
  auto const walker = [&](int thread) -> Walker& {
    auto& mine = walkers[at(thread)];
    if (!mine) mine.emplace(machine);
    return *mine;
  };
  Partials partials(machine, chunks);
  auto const work = [&](std::int64_t item, int thread) {
    auto const part = item % parts, chunk = item / parts % chunks, batch = item / parts / chunks;
    walker(thread).rows(machine.main, batch, machine.rows * chunk / chunks, machine.rows * (chunk + 1) / chunks, machine.width * part / parts,
                        machine.width * (part + 1) / parts, partials.of(item / parts));
  };
  auto const finish = [&](std::int64_t batch, int thread) {
    for (std::int64_t chunk = 1; chunk < chunks; ++chunk) partials.combine(batch * chunks, batch * chunks + chunk);
    walker(thread).finish(batch, partials.of(batch * chunks));
  };
  auto const run = [&](std::int64_t items, auto const& f) {
    if (batches * points < least_share)
      for (std::int64_t item = 0; item < items; ++item) f(item, 0);
    else
      device::parallel(items, f);
  };
  if (has_work(machine.main)) run(batches * chunks * parts, work);
  if (has_work(machine.finish)) run(batches, finish);
}

}  // namespace tenon::fusion
