// The loop IR: what it says of itself, how it is printed and checked.
module tenon.fusion;
import std;
import tenon.base;
import tenon.ir;
import :print_c;
import :online;

namespace tenon::fusion {
using base::DType;
using base::ensure;

constinit ir::OpDef const checked_index{.name = "checked_index",
                                        .kind = ir::Kind::pointwise,
                                        .signature = "Tensor index, Tensor size",
                                        .element = {.whole = [](std::int64_t const* x, double const*) { return x[0]; }},
                                        .source = "tn_place({0}, {1}, 1, &bad)"};

namespace {
std::string roles_text(Roles roles) {
  std::string text;
  for (auto const& [bit, name] : {std::pair{over_batch, "batch"}, {over_rows, "rows"}, {over_columns, "columns"}})
    if (roles & bit) text += (text.empty() ? "" : "+") + std::string(name);
  return text.empty() ? "once" : text;
}
std::string size_text(ir::Dim dim, ir::Symbols const* symbols) { return symbols ? symbols->to_string(dim) : std::to_string(dim.value); }
std::string access_text(Kernel const& kernel, Access const& access, ir::Symbols const* symbols) {
  std::string text;
  for (std::size_t a = 0; a < access.strides.size(); ++a) {
    auto const stride = access.strides[a];
    if (stride.node < 0 && stride.value == 0) continue;
    text += (text.empty() ? "" : " + ") + std::format("i{}", a) + (stride.node < 0 && stride.value == 1 ? "" : "*" + size_text(stride, symbols));
  }
  if (access.index >= 0)
    text += (text.empty() ? "" : " + ") +
            std::format("(v{} < {})*{}", access.index, size_text(access.index_size, symbols), size_text(access.index_stride, symbols));
  if (access.offset.node >= 0 || access.offset.value != 0) text += (text.empty() ? "" : " + ") + size_text(access.offset, symbols);
  auto const& name = kernel.buffers[static_cast<std::size_t>(access.buffer)].name;
  return std::format("b{}{}[{}]{}", access.buffer, name.empty() ? "" : ":" + name, text.empty() ? "0" : text,
                     access.guard >= 0 ? std::format(" where v{}", access.guard) : "");
}
constexpr std::string_view combine_name(ir::Monoid monoid) {
  constexpr std::string_view names[] = {"none", "sum", "avg", "max", "min", "prod", "norm", "lse"};
  return names[static_cast<std::size_t>(monoid)];
}
std::string step_text(Kernel const& kernel, std::size_t number, ir::Symbols const* symbols) {
  auto const& step = kernel.steps[number];
  std::string text = std::format("v{}: {} = ", number, base::info(step.dtype).name);
  auto const operands = [&] {
    std::string list;
    for (auto const in : step.in) list += (list.empty() ? "" : ", ") + std::format("v{}", in);
    return list;
  };
  auto const checks = [&] { return step.attrs.text.empty() || (step.op && step.op != &checked_index) ? "" : std::format(" for {}", step.attrs.text); };
  switch (step.kind) {
    case Step::Kind::load:
      return text + "load " + access_text(kernel, step.access, symbols) + checks();
    case Step::Kind::number:
      return text + (symbols ? symbols->to_string(step.number) : std::format("{}", step.number.real));
    case Step::Kind::index:
      return text + std::format("i{}", step.axis);
    case Step::Kind::op: {
      auto const attributes = ir::to_string(*step.op, step.attrs, symbols);
      return text + std::format("{}({}{}{})", step.op->name, operands(), step.in.empty() || attributes.empty() ? "" : ", ", attributes) + checks();
    }
    case Step::Kind::reduce:
      return text + std::format("{} of {} over {}{}", combine_name(step.combine), operands(), roles_text(step.over),
                                step.with >= 0 ? std::format(", with v{}", step.with) : "");
  }
  return text;
}
}  // namespace

int passes(Kernel const& kernel) {
  auto const& steps = kernel.steps;
  std::vector<char> needed(steps.size(), carries(kernel) ? 0 : 1);  // once all of a row is known: not what is only carried along in a walk
  for (auto const& store : kernel.stores) needed[static_cast<std::size_t>(store.step)] = 1;
  int count = 1;
  for (std::size_t k = steps.size(); k-- > 0;) {
    auto const& step = steps[k];
    if (!needed[k]) continue;
    count = std::max(count, step.pass + (step.level & over_columns ? 1 : 0));
    if (step.with >= 0) needed[static_cast<std::size_t>(step.with)] = 1;
    for (auto const in : step.in) needed[static_cast<std::size_t>(in)] |= step.with < 0;
    for (int const in : {step.access.index, step.access.guard})
      if (in >= 0) needed[static_cast<std::size_t>(in)] = 1;
  }
  return count;
}

DType compute_type(Kernel const& kernel, Step const& step) {
  bool whole = true;
  bool wide = step.dtype == DType::f64;
  auto const look = [&](DType type) { whole = whole && !base::is_real(type), wide = wide || type == DType::f64; };
  look(step.dtype);
  for (auto const in : step.in) {
    auto const& operand = kernel.steps[static_cast<std::size_t>(in)];
    if (operand.kind == Step::Kind::number)  // a number takes the type of what it stands beside
      whole = whole && operand.number.kind != ir::ScalarKind::real;
    else
      look(operand.dtype);
  }
  if (step.op == &ir::ops::to && base::is_real(kernel.steps[static_cast<std::size_t>(step.in[0])].dtype) && !base::is_real(step.dtype)) whole = false;
  if (whole && step.op && step.op->element.real && !step.op->element.whole) return DType::f64;  // its element is of real numbers only
  return whole ? DType::i64 : wide ? DType::f64 : DType::f32;
}

std::string to_string(Kernel const& kernel, ir::Symbols const* symbols) {
  constexpr std::string_view forms[] = {"pointwise", "row", "split", "online"}, roles[] = {"batch", "row", "column"};
  std::string text = std::format("kernel {} {}", kernel.name, forms[static_cast<std::size_t>(kernel.schedule.form)]);
  if (kernel.schedule.ahead >= 0) text += std::format(", the next row fetched in pass {}", kernel.schedule.ahead);
  text += " (";
  for (std::size_t a = 0; a < kernel.axes.size(); ++a)
    text += std::format("{}i{} < {} {}", a ? ", " : "", a, size_text(kernel.axes[a].size, symbols), roles[static_cast<std::size_t>(kernel.axes[a].role)]);
  text += ") {\n";
  for (auto const& line : kernel.origin) text += "  // " + line + "\n";
  for (int pass = 0, count = passes(kernel); pass <= count; ++pass) {
    bool headed = count == 1;
    for (std::size_t k = 0; k < kernel.steps.size(); ++k) {
      auto const& step = kernel.steps[k];
      if (step.pass != pass) continue;
      if (!std::exchange(headed, true)) text += std::format("  pass {}:\n", pass);
      text += std::format("    {:<13}{}{}\n", roles_text(step.level), step_text(kernel, k, symbols), step.keep ? "  kept" : "");
    }
  }
  for (auto const& store : kernel.stores) text += std::format("    store {} = v{}\n", access_text(kernel, store.to, symbols), store.step);
  return text + "}\n";
}

ir::Cost cost(Kernel const& kernel) {
  ir::Cost total;
  double count[8] = {};
  for (Roles roles = 0; roles < 8; ++roles) {
    count[roles] = 1;
    for (auto const& axis : kernel.axes)
      if (roles & roles_of(axis.role)) count[roles] *= static_cast<double>(axis.size.value);
  }
  auto const traffic = [&](Access const& access) {
    double elements = 1;
    for (std::size_t a = 0; a < access.strides.size(); ++a)
      if (access.strides[a].value != 0 || access.strides[a].node >= 0) elements *= static_cast<double>(kernel.axes[a].size.value);
    total.bytes += elements * base::bytes_of(kernel.buffers[static_cast<std::size_t>(access.buffer)].dtype);
  };
  for (auto const& step : kernel.steps) {
    if (step.kind == Step::Kind::load) traffic(step.access);
    if (step.kind == Step::Kind::op) total.flops += step.op->cost * count[step.level];
    if (step.kind == Step::Kind::reduce) total.flops += count[kernel.steps[static_cast<std::size_t>(step.in[0])].level];
  }
  for (auto const& store : kernel.stores) traffic(store.to);
  return total;
}

void verify(Kernel const& kernel) {
  auto const& steps = kernel.steps;
  auto const form = kernel.schedule.form;
  auto const check = [&](bool holds, std::size_t number, std::string_view what) {
    if (!holds) ensure(false, std::format("kernel {}, v{}: {}", kernel.name, number, what));
  };
  auto const known = [&](int number, std::size_t before) { return number >= 0 && std::cmp_less(number, before); };
  auto const varies = [&](Access const& access) {
    Roles level = 0;
    for (std::size_t a = 0; a < access.strides.size(); ++a)
      if (access.strides[a].value != 0 || access.strides[a].node >= 0) level |= roles_of(kernel.axes[a].role);
    for (int const step : {access.index, access.guard})
      if (step >= 0) level |= steps[static_cast<std::size_t>(step)].level;
    return level;
  };
  for (std::size_t a = 1; a < kernel.axes.size(); ++a)
    ensure(kernel.axes[a - 1].role <= kernel.axes[a].role, std::format("kernel {}: axes out of order", kernel.name));
  for (std::size_t k = 0; k < steps.size(); ++k) {
    auto const& step = steps[k];
    Roles level = 0;
    int pass = 0;
    auto const reads = [&](int number) {
      check(known(number, k), k, std::format("reads v{}, which does not stand before it", number));
      level |= steps[static_cast<std::size_t>(number)].level;
      pass = std::max(pass, steps[static_cast<std::size_t>(number)].pass);
    };
    for (auto const in : step.in) reads(in);
    if (step.kind == Step::Kind::load) {
      check(known(step.access.buffer, kernel.buffers.size()), k, "loads from no buffer");
      check(step.access.strides.size() == kernel.axes.size(), k, "has not a stride an axis");
      if (step.access.index >= 0) reads(step.access.index);
      if (step.access.guard >= 0) reads(step.access.guard);
      level |= varies(step.access);
    }
    if (step.kind == Step::Kind::index) {
      check(known(step.axis, kernel.axes.size()), k, "counts along no axis");
      level = roles_of(kernel.axes[static_cast<std::size_t>(step.axis)].role);
    }
    if (step.kind == Step::Kind::op) check(step.op && !step.op->source.empty(), k, "has no source text");
    if (step.kind == Step::Kind::reduce) {
      check(step.in.size() == 1 && step.over != 0, k, "reduces nothing");
      level &= static_cast<Roles>(~step.over);
      pass += step.over & over_columns ? 1 : 0;
    }
    if (step.with >= 0) {
      auto const found = step.kind == Step::Kind::reduce ? carried(kernel, static_cast<int>(k)) : std::nullopt;
      check(found && found->lead == step.with, k, std::format("does not follow v{}: no rule says how it moves with it", step.with));
      check(form == Form::online || form == Form::split, k, std::format("is carried along with v{} in a kernel of another form", step.with));
      pass = steps[static_cast<std::size_t>(step.with)].pass;
    }
    if (form == Form::split) {
      check(!(step.over & over_rows), k, "is over rows, and columns are cut");
      check(!step.keep, k, "is kept, and columns are cut");
      check(step.kind != Step::Kind::reduce || step.pass < 2, k, "needs a walk of its own, and columns are cut once");
    }
    check(step.level == level, k, std::format("varies over {}, not {}", roles_text(level), roles_text(step.level)));
    check(step.pass == pass, k, std::format("belongs in pass {}, not {}", pass, step.pass));
  }
  ensure(kernel.schedule.ahead < passes(kernel) && (kernel.schedule.ahead < 0 || form == Form::row),
         std::format("kernel {}: no pass {} to fetch ahead in", kernel.name, kernel.schedule.ahead));
  ensure(form != Form::online || carries(kernel), std::format("kernel {}: online, and nothing is carried along", kernel.name));
  for (auto const& store : kernel.stores) {
    check(known(store.step, steps.size()), static_cast<std::size_t>(std::max(store.step, 0)), "is stored and does not exist");
    check(known(store.to.buffer, kernel.buffers.size()) && kernel.buffers[static_cast<std::size_t>(store.to.buffer)].written,
          static_cast<std::size_t>(store.step), "is stored into a buffer that is only read");
  }
}

int outer_axes(Kernel const& kernel) {
  return static_cast<int>(std::ranges::count_if(kernel.axes, [](Axis const& axis) { return axis.role != Role::column; }));
}
std::vector<int> partial_steps(Kernel const& kernel) {
  std::vector<int> list;
  for (int k = 0; std::cmp_less(k, kernel.steps.size()); ++k) {
    auto const& step = kernel.steps[static_cast<std::size_t>(k)];
    if (step.kind == Step::Kind::reduce && ((step.over & over_rows) || kernel.schedule.form == Form::split)) list.push_back(k);
  }
  return list;
}
std::vector<Access> row_streams(Kernel const& kernel) {
  std::vector<Access> list;
  auto const outer = static_cast<std::size_t>(outer_axes(kernel));
  if (outer == 0 || kernel.axes.size() != outer + 1) return list;
  for (auto const& step : kernel.steps) {
    auto const& access = step.access;
    if (step.kind != Step::Kind::load || access.index >= 0 || access.guard >= 0 || access.strides[outer] != ir::Dim(1)) continue;
    if (access.strides[outer - 1] == ir::Dim(0)) continue;  // the next row reads the same
    bool const known = std::ranges::any_of(
        list, [&](Access const& other) { return other.buffer == access.buffer && other.offset == access.offset && other.strides == access.strides; });
    if (!known) list.push_back(access);
  }
  return list;
}
bool has_second_pass(Kernel const& kernel) { return kernel.schedule.form == Form::split && passes(kernel) > 1; }
bool has_partials(Kernel const& kernel) { return !partial_steps(kernel).empty(); }
bool partial_per_column(Kernel const& kernel, int step) { return (kernel.steps[static_cast<std::size_t>(step)].level & over_columns) != 0; }
int kept_bytes(Step const& step) { return step.dtype == DType::f64 || step.dtype == DType::i64 ? 8 : 4; }

}  // namespace tenon::fusion
