module tenon.nn;
import std;
import tenon.base;
import tenon.ir;
import tenon.tracer;

namespace tenon::nn {
using base::fail;
using tracer::Arg;
using tracer::NoGrad;

namespace {
void check_parameters(std::string_view who, std::span<Tensor const> parameters) {
  if (parameters.empty()) fail("{}: no parameters are given", who);
  std::unordered_map<std::uint64_t, std::size_t> seen;
  for (std::size_t k = 0; k < parameters.size(); ++k) {
    if (!parameters[k].defined()) fail("{}: parameter {} is undefined", who, k);
    auto const [first, fresh] = seen.try_emplace(parameters[k].impl()->id, k);
    if (!fresh) fail("{}: parameters {} and {} are the same tensor", who, first->second, k);
  }
}
void check_range(std::string_view who, std::string_view what, double value, double end = std::numeric_limits<double>::infinity()) {
  if (!(value >= 0 && value < end)) fail("{}: {} must lie in [0, {}), not {}", who, what, end, value);
}

// What an optimizer keeps of a parameter. Made on the first step, and by no capture: a captured step would otherwise hold the making as well.
void prepare(Tensor& state, Tensor const& parameter) {
  if (state.defined()) return;
  tracer::Active const outside(tracer::Rank::capture, nullptr);
  state = tracer::zeros(parameter.shape(), parameter.dtype());
}

void forget(std::span<Tensor> parameters) {
  for (auto& parameter : parameters) parameter.set_grad({});
}
// g + decay · θ, or g itself.
Tensor decayed(Tensor const& gradient, Tensor const& parameter, double decay, base::At at) {
  return decay == 0 ? gradient : gradient + Arg(parameter * Arg(decay, at), at);
}
}  // namespace

Sgd::Sgd(std::vector<Tensor> parameters, SgdOptions how) : options(how), parameters_(std::move(parameters)), velocity_(parameters_.size()) {
  check_parameters("sgd", parameters_);
  check_range("sgd", "lr", how.lr), check_range("sgd", "momentum", how.momentum), check_range("sgd", "weight_decay", how.weight_decay);
  if (how.nesterov && (how.momentum == 0 || how.dampening != 0))
    fail("sgd: nesterov needs a momentum and no dampening, not momentum {} and dampening {}", how.momentum, how.dampening);
}
void Sgd::step(base::At at) {
  NoGrad const off;
  auto const& [lr, momentum, dampening, weight_decay, nesterov] = options;
  for (std::size_t k = 0; k < parameters_.size(); ++k) {
    auto& parameter = parameters_[k];
    if (!parameter.grad().defined()) continue;
    Tensor update = decayed(parameter.grad(), parameter, weight_decay, at);
    if (momentum != 0) {
      auto& velocity = velocity_[k];
      double const share = velocity.defined() ? 1 - dampening : 1;  // the first gradient enters whole
      prepare(velocity, parameter);
      velocity.mul_(momentum, at).add_(update, share, at);
      update = nesterov ? update + Arg(velocity * Arg(momentum, at), at) : velocity;
    }
    parameter.add_(update, -lr, at);
  }
}
void Sgd::zero_grad() { forget(parameters_); }

Adam::Adam(std::vector<Tensor> parameters, AdamOptions how)
    : options(how),
      parameters_(std::move(parameters)),
      mean_(parameters_.size()),
      square_(parameters_.size()),
      largest_(parameters_.size()),
      steps_(parameters_.size()) {
  check_parameters("adam", parameters_);
  check_range("adam", "lr", how.lr), check_range("adam", "eps", how.eps), check_range("adam", "weight_decay", how.weight_decay);
  check_range("adam", "beta1", how.beta1, 1), check_range("adam", "beta2", how.beta2, 1);
}
void Adam::step(base::At at) {
  NoGrad const off;
  auto const& [lr, beta1, beta2, eps, weight_decay, amsgrad, decoupled] = options;
  for (std::size_t k = 0; k < parameters_.size(); ++k) {
    auto& parameter = parameters_[k];
    if (!parameter.grad().defined()) continue;
    auto &mean = mean_[k], &square = square_[k];
    prepare(mean, parameter), prepare(square, parameter);
    // Numbers of the host that differ each call: a second capture finds that and makes parameters of them.
    auto const step = static_cast<double>(++steps_[k]);
    double const scale = lr / (1 - std::pow(beta1, step)), root = std::sqrt(1 - std::pow(beta2, step));

    Tensor const gradient = decoupled ? parameter.grad() : decayed(parameter.grad(), parameter, weight_decay, at);
    if (decoupled && weight_decay != 0) parameter.mul_(1 - lr * weight_decay, at);
    mean.mul_(beta1, at).add_(gradient, 1 - beta1, at);
    square.mul_(beta2, at).add_(gradient * Arg(gradient, at), 1 - beta2, at);
    if (amsgrad) {
      prepare(largest_[k], parameter);
      largest_[k].copy_(tracer::maximum(largest_[k], Arg(square, at)), at);
    }
    Tensor const spread = tracer::sqrt(amsgrad ? largest_[k] : square, at) / Arg(root, at) + Arg(eps, at);
    parameter.add_(mean / Arg(spread, at), -scale, at);
  }
}
void Adam::zero_grad() { forget(parameters_); }

Adam adamw(std::vector<Tensor> parameters, AdamOptions options) {
  options.decoupled = true;
  return {std::move(parameters), options};
}

Tensor clip_grad_norm(std::span<Tensor const> parameters, double max_norm, base::At at) {
  NoGrad const off;
  Tensor total;
  for (auto const& parameter : parameters) {
    Tensor gradient = parameter.grad();
    if (!gradient.defined()) continue;
    if (base::bytes_of(gradient.dtype()) < 4) gradient = tracer::to(gradient, base::DType::f32, at);
    Tensor const squares = tracer::sum(gradient * Arg(gradient, at), {}, false, at);
    total = total.defined() ? total + Arg(squares, at) : squares;
  }
  if (!total.defined()) return tracer::zeros({}, base::DType::f32, at);
  Tensor const norm = tracer::sqrt(total, at);
  Tensor const scale = tracer::clamp(Arg(max_norm, at) / Arg(norm + Arg(1e-6, at), at), {}, 1.0, at);
  for (auto const& parameter : parameters)
    if (parameter.grad().defined()) parameter.grad().mul_(scale, at);
  return norm;
}

Schedule constant(double lr) {
  return [lr](std::int64_t) { return lr; };
}
Schedule warmup(double lr, std::int64_t warmup_steps, Schedule after) {
  if (warmup_steps < 0) fail("warmup: the number of steps must not be negative, but is {}", warmup_steps);
  if (!after) fail("warmup: no schedule is given for what comes after");
  return [lr, warmup_steps, after = std::move(after)](std::int64_t step) {
    return step < warmup_steps ? lr * static_cast<double>(step) / static_cast<double>(warmup_steps) : after(step - warmup_steps);
  };
}
Schedule cosine(double lr, std::int64_t steps, double floor) {
  if (steps < 0) fail("cosine: the number of steps must not be negative, but is {}", steps);
  return [lr, steps, floor](std::int64_t step) {
    if (step >= steps) return floor;
    return floor + (lr - floor) * (1 + std::cos(std::numbers::pi * static_cast<double>(step) / static_cast<double>(steps))) / 2;
  };
}

}  // namespace tenon::nn
