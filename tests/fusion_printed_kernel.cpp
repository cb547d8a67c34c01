// A door for tests to what prints and runs kernels, which no interface exports: an implementation unit of the module.
module tenon.fusion;
import std;
import tenon.base;
import tenon.ir;
import :print_c;
import :run;

namespace tenon::fusion {

extern "C++" std::string printed(Kernel const& kernel, std::int64_t stream_from) { return c_text(kernel, stream_from); }

/// Runs compiled functions; partial results are of chunks of about `share` points.
extern "C++" void run_printed(Kernel const& kernel, void* main, void* finish, void* apply, std::span<std::int64_t const> parameters,
                              std::span<double const> real_parameters, std::span<std::byte* const> buffers, std::int64_t share) {
  Prepared launch;
  launch.whole.assign(parameters.begin(), parameters.end());
  launch.real.assign(real_parameters.begin(), real_parameters.end());
  for (auto* const buffer : buffers) launch.buffers.push_back(reinterpret_cast<char*>(buffer));
  if (has_indices(kernel)) launch.buffers.push_back(reinterpret_cast<char*>(&launch.bad));
  int const outer = outer_axes(kernel);
  for (int a = 0; std::cmp_less(a, kernel.axes.size()); ++a) {
    auto const& axis = kernel.axes[static_cast<std::size_t>(a)];
    Whole size = axis.size.value;
    for (std::size_t k = 0; k < kernel.parameters.size(); ++k)
      if (axis.size.node >= 0 && kernel.parameters[k] == axis.size) size = parameters[k];
    (a < outer ? launch.items : launch.columns) *= size;
    if (axis.role == Role::batch) launch.batches *= size;
    if (axis.role == Role::row) launch.rows *= size;
    if (a == outer) launch.first_columns = size;
  }
  for (auto const& step : kernel.steps)
    if (step.keep) launch.scratch += rounded(launch.columns * kept_bytes(step));
  for (int const step : partial_steps(kernel)) launch.region += rounded(8 * (partial_per_column(kernel, step) ? launch.columns : 1));
  bool const split = kernel.schedule.form == Form::split;
  if (split) launch.batches = launch.items;
  Whole const most = split ? std::min<Whole>(launch.first_columns, 64) : std::min<Whole>(launch.rows, 16);
  if (launch.region) launch.chunks = std::clamp<Whole>((split ? launch.columns : launch.rows * launch.columns) / share, 1, std::max<Whole>(most, 1));
  run_kernel(kernel, {reinterpret_cast<KernelMain>(main), reinterpret_cast<KernelFinish>(finish), reinterpret_cast<KernelApply>(apply)}, launch);
  base::ensure(launch.bad == 0, "a random kernel's index is out of range");
}

}  // namespace tenon::fusion
