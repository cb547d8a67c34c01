// Choosing how a loop nest is walked, by the sizes of this run.
module tenon.fusion;
import std;
import tenon.base;
import tenon.ir;
import :print_c;
import :online;

namespace tenon::fusion {
using ir::Dim;

namespace {
std::size_t at(int i) { return static_cast<std::size_t>(i); }
constexpr std::int64_t most_kept = std::int64_t{1} << 20;  // bytes of a row's buffers: half of a second level cache
constexpr double cheap = 7;                                // FLOPs that are computed again rather than kept
constexpr std::int64_t split_rows = 8, split_columns = 16384;

std::int64_t count(Kernel const& kernel, Role role) {
  std::int64_t n = 1;
  for (auto const& axis : kernel.axes)
    if (axis.role == role) n *= axis.size.value;
  return n;
}

// Point values that a later pass needs and that cost more than a load.
void keep(Kernel& kernel) {
  auto& steps = kernel.steps;
  std::vector<int> last(steps.size(), -1);  // the last pass that needs a value, directly; -1: none does, of the whole row
  auto const need = [&](int step, int pass) { last[at(step)] = std::max(last[at(step)], pass); };
  for (auto const& store : kernel.stores) need(store.step, steps[at(store.step)].pass);
  for (std::size_t k = steps.size(); k-- > 0;) {
    auto const& step = steps[k];
    if (last[k] < 0 || step.with >= 0) continue;  // what is carried along reads values of its own block
    int const when = step.kind == Step::Kind::reduce ? walk_of(kernel, step) : std::max(last[k], step.pass);
    for (auto const in : step.in) need(in, when);
    if (step.access.index >= 0) need(step.access.index, when);
    if (step.access.guard >= 0) need(step.access.guard, when);
  }
  std::int64_t const columns = count(kernel, Role::column);
  std::int64_t bytes = 0;
  std::vector<double> price(steps.size(), 0);
  for (std::size_t k = 0; k < steps.size(); ++k) {
    auto& step = steps[k];
    step.keep = false;
    if (kernel.schedule.form == Form::split || !(step.level & over_columns) || step.kind != Step::Kind::op) continue;
    price[k] = step.op->cost;
    for (auto const in : step.in)
      if (steps[at(in)].level & over_columns && !steps[at(in)].keep) price[k] += price[at(in)];
    std::int64_t const size = columns * kept_bytes(step);
    if (last[k] > step.pass && price[k] > cheap && bytes + size <= most_kept) step.keep = true, bytes += size;
  }
}
// A row that is walked several times is computed on while memory rests; the pass that computes most therefore fetches what the next row reads.
void fetch_ahead(Kernel& kernel) {
  kernel.schedule.ahead = -1;
  if (kernel.schedule.form != Form::row || passes(kernel) < 2) return;
  auto const columns = static_cast<double>(count(kernel, Role::column));
  double bytes = 0;
  for (auto const& access : row_streams(kernel)) bytes += columns * base::bytes_of(kernel.buffers[at(access.buffer)].dtype);
  if (bytes < 512 || bytes > static_cast<double>(most_kept) / 2) return;
  std::vector<double> price(at(passes(kernel)), 0);
  for (auto const& step : kernel.steps)
    if (step.kind == Step::Kind::op && (step.level & over_columns)) price[at(step.pass)] += step.op->cost;
  kernel.schedule.ahead = static_cast<int>(std::ranges::max_element(price) - price.begin());
}
void collect(Kernel& kernel) {
  kernel.parameters.clear(), kernel.real_parameters.clear();
  auto const whole = [&](Dim dim) {
    if (dim.node >= 0 && std::ranges::find(kernel.parameters, dim) == kernel.parameters.end()) kernel.parameters.push_back(dim);
  };
  auto const scalar = [&](ir::Scalar const& number) {
    if (number.node < 0) return;
    if (number.kind == ir::ScalarKind::whole) return whole(Dim(number.whole, number.node, number.owner));
    for (auto const& known : kernel.real_parameters)
      if (known.node == number.node) return;
    kernel.real_parameters.push_back(number);
  };
  auto const access = [&](Access const& a) {
    whole(a.offset), whole(a.index_stride), whole(a.index_size);
    for (auto const stride : a.strides) whole(stride);
  };
  for (auto const& axis : kernel.axes) whole(axis.size);
  for (auto const& step : kernel.steps) {
    if (step.kind == Step::Kind::load) access(step.access);
    scalar(step.number);
    for (auto const dim : step.attrs.ints) whole(dim);
    for (auto const& number : step.attrs.nums) scalar(number);
  }
  for (auto const& store : kernel.stores) access(store.to);
}
Form usual_form(Kernel const& kernel) {
  bool along = false, across = false;
  for (auto const& step : kernel.steps)
    if (step.kind == Step::Kind::reduce) along |= (step.over & over_columns) != 0, across |= (step.over & over_rows) != 0;
  if (!along) return across ? Form::row : Form::pointwise;
  std::int64_t const rows = count(kernel, Role::row) * count(kernel, Role::batch), columns = count(kernel, Role::column);
  if (!across && passes(kernel) == 1 && rows < split_rows && columns >= split_columns) return Form::split;
  if (passes(kernel) == 1) return Form::row;
  bool const large = columns * 4 > most_kept;  // each pass reads it from memory again
  bool const few = rows < few_rows ? columns > long_row : rows <= split_rows && large;
  if (few && can_walk(kernel, Form::split)) return Form::split;
  if (!large) return Form::row;
  return can_walk(kernel, Form::online) ? Form::online : Form::row;
}
}  // namespace

bool can_walk(Kernel const& kernel, Form form) {
  bool along = false, across = false;
  for (auto const& step : kernel.steps)
    if (step.kind == Step::Kind::reduce) along |= (step.over & over_columns) != 0, across |= (step.over & over_rows) != 0;
  if (form == Form::pointwise) return !along && !across;
  if (form == Form::row) return along || across;
  if (!along || (form == Form::split && across)) return false;
  Kernel plain = kernel, carried = kernel;
  carry_along(plain, false), carry_along(carried, true);
  if (form == Form::online) return passes(carried) < passes(plain);
  return std::ranges::all_of(carried.steps, [](Step const& step) { return step.kind != Step::Kind::reduce || step.pass < 2; });
}

void walk(Kernel& kernel, Form form) {
  kernel.schedule.form = form;
  carry_along(kernel, form == Form::split || form == Form::online);
  keep(kernel);
  fetch_ahead(kernel);
}

void schedule(Kernel& kernel) {
  walk(kernel, usual_form(kernel));
  collect(kernel);
}

}  // namespace tenon::fusion
