#include <cmath>

#include "adamw.h"

int tenon_adamw_f32_cpu(float* p, float const* g, float* m, float* v, int64_t n, double lr, double beta1, double beta2, double eps, double weight_decay,
                        int64_t step, void*) {
  if (!adamw_accepts(p, g, m, v, n, step)) return tenon_bad_argument;
  AdamwStep const s = adamw_step(lr, beta1, beta2, eps, weight_decay, step);
  for (int64_t i = 0; i < n; ++i) {
    m[i] = s.beta1 * m[i] + s.one_minus_beta1 * g[i];
    v[i] = s.beta2 * v[i] + s.one_minus_beta2 * g[i] * g[i];
    p[i] = s.decay * p[i] - s.step_size * (m[i] / (std::sqrt(v[i]) * s.inverse_root_correction + s.eps));
  }
  return tenon_ok;
}
