// The launchers of a build without CUDA.
#include "adamw.h"

int tenon_adamw_f32(float* p, float const* g, float* m, float* v, int64_t n, double, double, double, double, double, int64_t step, void*) {
  return adamw_accepts(p, g, m, v, n, step) ? tenon_no_device : tenon_bad_argument;
}
