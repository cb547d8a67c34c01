// From a kernel to instructions: which value is held how, what every pass needs, where sizes stand.
module tenon.fusion;
import std;
import tenon.base;
import tenon.ir;
import :c_text;
import :machine;

namespace tenon::fusion {
using base::DType;
using base::ensure;
using Do = Instruction::Do;

namespace {
std::size_t at(int i) { return static_cast<std::size_t>(i); }
// The words are made only where they are needed: there are several checks a step.
void check(bool holds, auto words) {
  if (!holds) ensure(false, words());
}

class Builder {
 public:
  Builder(Kernel const& kernel, std::span<std::byte* const> buffers, std::span<std::int64_t const> parameters, std::span<double const> real_parameters)
      : kernel_(kernel), buffers_(buffers), parameters_(parameters), reals_(real_parameters), machine_{kernel} {}

  Machine run() {
    check(buffers_.size() == kernel_.buffers.size() && parameters_.size() >= kernel_.parameters.size() && reals_.size() >= kernel_.real_parameters.size(), [&] {
      return std::format("kernel {}: {} buffers and {} + {} numbers for {} and {} + {}", kernel_.name, buffers_.size(), parameters_.size(), reals_.size(),
                         kernel_.buffers.size(), kernel_.parameters.size(), kernel_.real_parameters.size());
    });
    axes();
    for (int k = 0; std::cmp_less(k, kernel_.steps.size()); ++k) {
      place(step(k).access, step(k).kind == Step::Kind::load);
      machine_.lanes.push_back(held(k));
      machine_.attributes.push_back(attributes(step(k)));
      machine_.carried.push_back(step(k).with < 0 ? Carried() : carried(kernel_, k).value_or(Carried()));
      if (step(k).kind == Step::Kind::reduce && (step(k).over & over_rows) && happens(step(k).level)) machine_.row_folds.push_back(k);
    }
    for (auto const& store : kernel_.stores) place(store.to, true);
    machine_.main = stages(false);
    machine_.finish = stages(true);
    for (auto& slot : machine_.slots) {
      slot.offset = machine_.slot_bytes;
      machine_.slot_bytes += block_length * lane_bytes(slot.lane);
    }
    return std::move(machine_);
  }

 private:
  Kernel const& kernel_;
  std::span<std::byte* const> buffers_;
  std::span<std::int64_t const> parameters_;
  std::span<double const> reals_;
  Machine machine_;
  std::map<std::pair<int, Lane>, int> slots_;
  // Of the stages being built: which slots their lists have filled.
  Stage* stage_ = nullptr;
  std::set<int> row_done_, column_done_;

  Step const& step(int k) const { return kernel_.steps[at(k)]; }
  bool inner(int k) const { return (step(k).level & over_columns) != 0; }
  bool is_number(int k) const { return step(k).kind == Step::Kind::number; }

  std::int64_t size(ir::Dim dim) const {
    if (dim.node < 0) return dim.value;
    for (std::size_t k = 0; k < kernel_.parameters.size(); ++k)
      if (kernel_.parameters[k].node == dim.node && kernel_.parameters[k].owner == dim.owner) return parameters_[k];
    ensure(false, std::format("kernel {}: a size is none of its parameters", kernel_.name));
    return 0;
  }
  Total number(ir::Scalar const& scalar) const {
    if (scalar.kind == ir::ScalarKind::none) return {std::numeric_limits<double>::quiet_NaN(), ir::absent};
    if (scalar.kind != ir::ScalarKind::real) {
      auto const value = scalar.node < 0 ? scalar.whole : size(ir::Dim(scalar.whole, scalar.node, scalar.owner));
      return {static_cast<double>(value), value};
    }
    if (scalar.node < 0) return {scalar.real, base::truncate(scalar.real)};
    for (std::size_t k = 0; k < kernel_.real_parameters.size(); ++k)
      if (kernel_.real_parameters[k].node == scalar.node && kernel_.real_parameters[k].owner == scalar.owner) return {reals_[k], base::truncate(reals_[k])};
    ensure(false, std::format("kernel {}: a number is none of its parameters", kernel_.name));
    return {};
  }
  std::array<double, 8> attributes(Step const& step) const {
    std::array<double, 8> values{};
    if (step.kind != Step::Kind::op) return values;
    auto const scalars = element_scalars(*step.op, step.attrs);
    for (std::size_t k = 0; k < scalars.size() && k < values.size(); ++k) values[k] = number(scalars[k]).real;
    return values;
  }

  // Column axes that every access walks as one are merged; those of size 1 go.
  void axes() {
    machine_.column_of.assign(kernel_.axes.size(), -1);
    std::vector<char> counted(kernel_.axes.size(), 0);
    for (auto const& s : kernel_.steps)
      if (s.kind == Step::Kind::index) counted[at(s.axis)] = 1;
    int last = -1;
    for (int a = 0; std::cmp_less(a, kernel_.axes.size()); ++a) {
      auto const n = size(kernel_.axes[at(a)].size);
      if (kernel_.axes[at(a)].role != Role::column) {
        machine_.outer.push_back(n);
        (kernel_.axes[at(a)].role == Role::batch ? machine_.batches : machine_.rows) *= n;
        continue;
      }
      machine_.width *= n;
      if (n == 1 && !counted[at(a)]) continue;
      if (last >= 0 && !counted[at(a)] && !counted[at(last)] && joined(last, a, n)) {
        machine_.columns.back() *= n;
      } else {
        machine_.columns.push_back(n);
      }
      machine_.column_of[at(a)] = static_cast<int>(machine_.columns.size()) - 1;
      last = a;
    }
  }
  bool joined(int a, int b, std::int64_t n) const {
    auto const as_one = [&](Access const& access) { return access.buffer < 0 || size(access.strides[at(a)]) == size(access.strides[at(b)]) * n; };
    return std::ranges::all_of(kernel_.steps, as_one, &Step::access) && std::ranges::all_of(kernel_.stores, as_one, &Store::to);
  }
  void place(Access const& access, bool used) {
    Where where;
    if (used) {
      where = {.offset = size(access.offset),
               .index_stride = size(access.index_stride),
               .index_size = size(access.index_size),
               .inner = std::vector<std::int64_t>(machine_.columns.size(), 0),
               .dtype = kernel_.buffers[at(access.buffer)].dtype,
               .memory = buffers_[at(access.buffer)]};
      for (std::size_t a = 0; a < kernel_.axes.size(); ++a) {
        auto const stride = size(access.strides[a]);
        if (kernel_.axes[a].role != Role::column)
          where.outer.push_back(stride);
        else if (machine_.column_of[a] >= 0)
          where.inner[at(machine_.column_of[a])] = stride;  // of merged axes the last one's stays
      }
    }
    machine_.places.push_back(std::move(where));
  }

  // -- how values are held ------------------------------------------------------------------------------------------------------------------
  Lane computed(int k) const {
    auto const& s = step(k);
    auto const type = compute_type(kernel_, s);
    if (type != DType::i64) return type == DType::f64 ? Lane::f64 : Lane::f32;
    bool const flags = s.dtype == DType::boolean && std::ranges::all_of(s.in, [&](int in) { return step(in).dtype == DType::boolean; });
    auto const* const row = block_row(*s.op);
    if (flags && row && row->lanes[0]) return Lane::f32;  // bools stay where comparisons leave them
    return s.op->element.whole || !s.op->element.real ? Lane::i64 : Lane::f64;
  }
  Lane held(int k) const {
    auto const& s = step(k);
    if (s.kind != Step::Kind::op || s.dtype != DType::boolean) return lane_of_dtype(s.dtype);
    if (s.op != &ir::ops::to) return computed(k);
    return is_number(s.in[0]) ? Lane::f64 : machine_.lanes[at(s.in[0])];
  }

  // -- instructions -------------------------------------------------------------------------------------------------------------------------
  int slot(int k, Lane lane) {
    auto const [found, fresh] = slots_.try_emplace({k, lane}, static_cast<int>(machine_.slots.size()));
    if (fresh) {
      machine_.slots.push_back({.lane = lane});
      if (is_number(k)) machine_.slots.back().constant = number(step(k).number);
    }
    return found->second;
  }
  bool is_row_value(int k) const { return !inner(k); }
  void emit(bool of_row, Instruction instruction) {
    if (instruction.out >= 0) (of_row ? row_done_ : column_done_).insert(instruction.out);
    (of_row ? stage_->row : stage_->columns).push_back(instruction);
  }
  // The slot that holds step k as `lane` for a list that reads it.
  int operand(int k, Lane lane, bool of_row) {
    int const wanted = slot(k, lane);
    if (is_number(k)) return wanted;
    bool const converts_in_row = is_row_value(k);
    auto& done = converts_in_row ? row_done_ : column_done_;
    if (lane != machine_.lanes[at(k)] && !done.contains(wanted))
      emit(converts_in_row, {.what = Do::convert, .lane = lane, .from = machine_.lanes[at(k)], .out = wanted, .in = {slot(k, machine_.lanes[at(k)])}});
    if (converts_in_row && !of_row) machine_.slots[at(wanted)].spread = true;
    return wanted;
  }
  void converted(int k, Lane from, int source, Lane to, bool of_row) {
    emit(of_row, {.what = Do::convert, .lane = to, .from = from, .out = slot(k, to), .in = {source}});
  }
  void settled(int k, Lane lane, bool of_row) { emit(of_row, {.what = Do::settle, .lane = lane, .dtype = step(k).dtype, .out = slot(k, lane)}); }
  // A cast rounds once, from what the operand is.
  void cast(int k, bool of_row) {
    auto const& s = step(k);
    int const in = s.in[0];
    Lane const want = machine_.lanes[at(k)];
    Lane const from = is_number(in) ? (step(in).number.kind == ir::ScalarKind::real ? Lane::f64 : Lane::i64) : machine_.lanes[at(in)];
    bool const small = want == Lane::f32 && s.dtype != DType::f32 && s.dtype != DType::boolean;
    if (small || s.dtype == DType::boolean) {
      Lane const lane = small && from == Lane::i64 ? Lane::f64 : from;
      converted(k, from, operand(in, from, of_row), lane, of_row);
      settled(k, lane, of_row);
      if (lane != want) converted(k, lane, slot(k, lane), want, of_row);
      return;
    }
    converted(k, from, operand(in, from, of_row), want, of_row);
    if (want == Lane::i64 && s.dtype != DType::i64) settled(k, want, of_row);
  }
  void call(int k, bool of_row) {
    auto const& s = step(k);
    if (s.op == &ir::ops::to) return cast(k, of_row);
    Lane const lane = computed(k), want = machine_.lanes[at(k)];
    check(s.in.size() <= 3, [&] { return std::format("kernel {}: {} has {} operands", kernel_.name, s.op->name, s.in.size()); });
    Instruction instruction{.what = Do::call, .number = k, .lane = lane, .out = slot(k, lane)};
    for (std::size_t i = 0; i < s.in.size(); ++i) instruction.in[i] = operand(s.in[i], lane, of_row);
    auto const* row = block_row(*s.op);
    if (!row && !s.op->element.real && s.op->source == "{0}") row = block_row(ir::ops::clone);
    if (row && row->lanes[static_cast<std::size_t>(lane)]) {
      instruction.what = Do::op;
      instruction.block = row->lanes[static_cast<std::size_t>(lane)];
    } else {
      check(lane == Lane::i64 ? s.op->element.whole != nullptr : s.op->element.real != nullptr,
            [&] { return std::format("kernel {}: {} has no element", kernel_.name, s.op->name); });
    }
    emit(of_row, instruction);
    if (s.dtype == DType::boolean) {
      if (s.op->types != ir::Types::boolean) settled(k, lane, of_row);
      return;
    }
    if (lane != want) converted(k, lane, slot(k, lane), want, of_row);
    if (want == Lane::i64 && s.dtype != DType::i64) settled(k, want, of_row);
  }
  void selectors(Access const& access, Where& where, bool of_row) {
    if (access.index >= 0) where.index_slot = operand(access.index, Lane::i64, of_row);
    if (access.guard >= 0) where.guard_slot = operand(access.guard, Lane::i64, of_row);
  }
  void define(int k, bool of_row) {
    auto const& s = step(k);
    Lane const lane = machine_.lanes[at(k)];
    switch (s.kind) {
      case Step::Kind::number:
        return;
      case Step::Kind::load:
        selectors(s.access, machine_.places[at(k)], of_row);
        machine_.places[at(k)].needed = true;
        return emit(of_row, {.what = Do::load, .number = k, .lane = lane, .out = slot(k, lane)});
      case Step::Kind::index:
        return emit(of_row, {.what = Do::index, .number = k, .lane = lane, .out = slot(k, lane)});
      case Step::Kind::op:
        return call(k, of_row);
      case Step::Kind::reduce:
        emit(of_row, {.what = of_row ? Do::total : Do::totals, .number = k, .lane = lane, .dtype = s.dtype, .out = slot(k, lane)});
        if (lane == Lane::i64 && s.dtype != DType::i64) settled(k, lane, of_row);
    }
  }
  void fold(int k, bool of_row) {
    Lane const lane = lane_of_dtype(step(k).dtype);
    emit(of_row, {.what = over_each_column(kernel_, k) ? Do::fold_each : Do::fold, .number = k, .lane = lane, .in = {operand(step(k).in[0], lane, of_row)}});
  }
  void store(std::size_t s, bool of_row) {
    int const k = kernel_.stores[s].step;
    auto& where = machine_.places[kernel_.steps.size() + s];
    Lane const lane = is_number(k) ? lane_of_dtype(where.dtype) : machine_.lanes[at(k)];
    selectors(kernel_.stores[s].to, where, of_row);
    where.needed = true;
    emit(of_row, {.what = Do::store, .number = static_cast<int>(kernel_.steps.size() + s), .lane = lane, .in = {operand(k, lane, of_row)}});
  }

  // -- what a row, or what comes behind the last one, needs -------------------------------------------------------------------------------------
  template <class F>
  void each_source(int k, F f) const {
    for (auto const in : step(k).in) f(static_cast<int>(in));
    for (int const in : {step(k).access.index, step(k).access.guard})
      if (in >= 0) f(in);
  }
  Roles level_of(Store const& store) const {
    Roles level = step(store.step).level;
    for (std::size_t a = 0; a < kernel_.axes.size(); ++a)
      if (size(store.to.strides[a]) != 0) level |= roles_of(kernel_.axes[a].role);
    for (int const in : {store.to.index, store.to.guard})
      if (in >= 0) level |= step(in).level;
    return level;
  }
  bool happens(Roles level) const { return machine_.batches > 0 || !(level & over_batch); }
  bool is_row_fold(int k) const { return step(k).kind == Step::Kind::reduce && (step(k).over & over_rows); }
  void need(int k, bool finishing, std::vector<char>& needed) const {
    if (needed[at(k)]) return;
    needed[at(k)] = 1;
    if (finishing && is_row_fold(k)) return;
    check(!finishing || !(step(k).level & over_rows),
          [&] { return std::format("kernel {}: v{} varies over rows and is needed when they are done", kernel_.name, k); });
    check(finishing || !is_row_fold(k), [&] { return std::format("kernel {}: v{} is needed before all rows are done", kernel_.name, k); });
    each_source(k, [&](int in) { need(in, finishing, needed); });
  }
  void mark(int k, int pass, std::vector<char>& wanted, std::vector<char>& kept) const {
    if (wanted[at(k)] || !inner(k) || is_number(k)) return;
    wanted[at(k)] = 1;
    if (step(k).keep && step(k).pass < pass) {
      kept[at(k)] = 1;
      return;
    }
    if (step(k).kind != Step::Kind::reduce) each_source(k, [&](int in) { mark(in, pass, wanted, kept); });
  }
  // Behind a block's leads: their pivots, and what was summed moved to them. Gives what the terms need besides what the block has computed.
  std::vector<char> follow(std::vector<int> const& followers, std::vector<char> const& done, int pass, std::vector<char>& kept) {
    std::set<int> pivots;
    std::vector<char> points(kernel_.steps.size(), 0);
    for (int const k : followers) {
      int const pivot = machine_.carried[at(k)].pivot;
      Lane const lane = machine_.lanes[at(pivot)];
      if (pivots.insert(pivot).second) emit(false, {.what = Do::pivot, .number = k, .lane = lane, .out = slot(pivot, lane)});
      mark(step(k).in[0], pass, points, kept);
    }
    for (int const k : followers) emit(false, {.what = Do::move, .number = k});
    for (std::size_t k = 0; k < points.size(); ++k) points[k] &= !done[k];
    return points;
  }
  std::vector<Stage> stages(bool finishing) {
    auto const& stores = kernel_.stores;
    std::vector<char> needed(kernel_.steps.size(), 0), kept(kernel_.steps.size(), 0);
    std::vector<std::size_t> own;  // stores of this part
    int last = 0;
    for (std::size_t s = 0; s < stores.size(); ++s)
      if (((level_of(stores[s]) & over_rows) == 0) == finishing && happens(level_of(stores[s]))) {
        own.push_back(s);
        need(stores[s].step, finishing, needed);
        for (int const in : {stores[s].to.index, stores[s].to.guard})
          if (in >= 0) need(in, finishing, needed);
      }
    if (!finishing)
      for (int const k : machine_.row_folds) each_source(k, [&](int in) { need(in, false, needed); });
    auto const folds = [&](int k, int pass) {  // in the pass in which its operand is there
      if (step(k).kind != Step::Kind::reduce || walk_of(kernel_, step(k)) != pass) return false;
      return is_row_fold(k) ? !finishing && happens(step(k).level) : needed[at(k)] != 0;
    };
    auto const by_row = [&](int k) { return !(step(k).over & over_columns) && !inner(step(k).in[0]); };
    for (auto const& s : kernel_.steps) last = std::max(last, s.pass);
    std::vector<Stage> stages(at(last) + 1);
    for (int pass = last; pass >= 0; --pass) {  // from the last one on, so that a pass knows what later ones want kept
      stage_ = &stages[at(pass)];
      row_done_.clear(), column_done_.clear();
      std::vector<char> wanted(kernel_.steps.size(), 0), written = kept;
      for (int k = 0; std::cmp_less(k, kernel_.steps.size()); ++k) {
        if (folds(k, pass) && !by_row(k) && step(k).with < 0) mark(step(k).in[0], pass, wanted, kept);
        if (written[at(k)] && step(k).pass == pass) mark(k, pass, wanted, kept);
      }
      auto const of_columns = [&](std::size_t s) { return (level_of(stores[s]) & over_columns) != 0; };
      for (auto const s : own)
        if (of_columns(s) && pass_of(stores[s]) == pass)
          for (int const k : {stores[s].step, stores[s].to.index, stores[s].to.guard})
            if (k >= 0) mark(k, pass, wanted, kept);
      for (int k = 0; std::cmp_less(k, kernel_.steps.size()); ++k)
        if (needed[at(k)] && !inner(k) && step(k).pass == pass) define(k, true);
      auto const define_all = [&](std::vector<char> const& points) {
        for (int k = 0; std::cmp_less(k, kernel_.steps.size()); ++k) {
          if (!points[at(k)]) continue;
          if (step(k).keep && step(k).pass < pass)
            emit(false, {.what = Do::kept, .number = k, .lane = machine_.lanes[at(k)], .out = slot(k, machine_.lanes[at(k)])});
          else
            define(k, false);
          if (written[at(k)] && step(k).pass == pass)
            emit(false, {.what = Do::keep, .number = k, .lane = machine_.lanes[at(k)], .in = {slot(k, machine_.lanes[at(k)])}});
        }
      };
      define_all(wanted);
      std::vector<int> followers;
      for (int k = 0; std::cmp_less(k, kernel_.steps.size()); ++k)
        if (folds(k, pass)) step(k).with < 0 ? fold(k, by_row(k)) : followers.push_back(k);
      for (auto const s : own)
        if (pass_of(stores[s]) == pass) store(s, !of_columns(s));
      if (!followers.empty()) define_all(follow(followers, wanted, pass, kept));
      for (int const k : followers) fold(k, false);
    }
    return stages;
  }
  int pass_of(Store const& store) const {
    int pass = step(store.step).pass;
    for (int const in : {store.to.index, store.to.guard})
      if (in >= 0) pass = std::max(pass, step(in).pass);
    return pass;
  }
};
}  // namespace

Lane lane_of_dtype(DType dtype) {
  if (dtype == DType::f64) return Lane::f64;
  return base::is_real(dtype) || dtype == DType::boolean ? Lane::f32 : Lane::i64;
}

Machine machine_of(Kernel const& kernel, std::span<std::byte* const> buffers, std::span<std::int64_t const> parameters,
                   std::span<double const> real_parameters) {
  return Builder(kernel, buffers, parameters, real_parameters).run();
}

}  // namespace tenon::fusion
