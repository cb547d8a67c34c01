export module tenon.nn:optim;
import std;
import tenon.base;
import tenon.ir;
import tenon.tracer;

export namespace tenon::nn {
using tracer::Tensor;

/// θ ← θ − lr · v with v = μ v + g (Nesterov: g + μ v), g including weight_decay · θ; as torch.optim.SGD.
struct SgdOptions {
  double lr = 1e-3, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;
};
class Sgd {
 public:
  Sgd(std::vector<Tensor> parameters, SgdOptions options);
  /// One update of every parameter that has a gradient, in place and without history; works inside a compiled step.
  void step(base::At at = base::At::current());
  /// Forgets the gradients.
  void zero_grad();
  SgdOptions options;

 private:
  std::vector<Tensor> parameters_, velocity_;
};

/// Kingma & Ba 2015; with `decoupled` weight decay AdamW (Loshchilov & Hutter 2019); amsgrad as Reddi et al. 2018; as torch.optim.Adam(W).
struct AdamOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool amsgrad = false, decoupled = false;
};
class Adam {
 public:
  Adam(std::vector<Tensor> parameters, AdamOptions options);
  /// As Sgd::step; the step number enters as a number that varies between calls.
  void step(base::At at = base::At::current());
  void zero_grad();
  AdamOptions options;

 private:
  std::vector<Tensor> parameters_, mean_, square_, largest_;
  std::int64_t steps_ = 0;
};
/// Adam with decoupled weight decay 0.01 by default, as torch.optim.AdamW.
Adam adamw(std::vector<Tensor> parameters, AdamOptions options = {.weight_decay = 0.01});

/// Scales all gradients so that their joint 2-norm is at most `max_norm`; returns the norm before, a 0-d tensor.
Tensor clip_grad_norm(std::span<Tensor const> parameters, double max_norm, base::At at = base::At::current());

/// A learning rate by step: `schedule(step)` for step 0, 1, …
using Schedule = std::function<double(std::int64_t step)>;
Schedule constant(double lr);
/// From 0 linearly to lr over `warmup` steps, then `after(step − warmup)`.
Schedule warmup(double lr, std::int64_t warmup_steps, Schedule after);
/// From lr to `floor` along half a cosine over `steps`, then `floor` (Loshchilov & Hutter 2017, one cycle).
Schedule cosine(double lr, std::int64_t steps, double floor = 0);

}  // namespace tenon::nn
