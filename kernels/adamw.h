#pragma once
#include <math.h>
#include <stdint.h>

#include "kernels.h"

// What the AdamW kernel and its twin share: the scalars of one step, computed once in f64, and the arguments that both refuse.

struct AdamwStep {
  float decay;                    // 1 - lr * weight_decay
  float beta1, one_minus_beta1;   // weights of the running mean of g
  float beta2, one_minus_beta2;   // weights of the running mean of g²
  float step_size;                // lr / (1 - beta1^step)
  float inverse_root_correction;  // 1 / sqrt(1 - beta2^step)
  float eps;
};

inline AdamwStep adamw_step(double lr, double beta1, double beta2, double eps, double weight_decay, int64_t step) {
  double const t = static_cast<double>(step);
  return {static_cast<float>(1 - lr * weight_decay),
          static_cast<float>(beta1),
          static_cast<float>(1 - beta1),
          static_cast<float>(beta2),
          static_cast<float>(1 - beta2),
          static_cast<float>(lr / (1 - pow(beta1, t))),
          static_cast<float>(1 / sqrt(1 - pow(beta2, t))),
          static_cast<float>(eps)};
}

inline bool adamw_accepts(void const* p, void const* g, void const* m, void const* v, int64_t n, int64_t step) {
  return n >= 0 && step >= 1 && (n == 0 || (p && g && m && v));
}
