#include <cuda_runtime.h>

#include "adamw.h"

namespace {

// One thread an element, striding by the grid: reads p, g, m, v and writes p, m, v once, so it is bound by memory.
__global__ void adamw(float* p, float const* g, float* m, float* v, int64_t n, AdamwStep s) {
  int64_t const stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) {
    float const grad = g[i];
    float const mean = s.beta1 * m[i] + s.one_minus_beta1 * grad;
    float const square = s.beta2 * v[i] + s.one_minus_beta2 * grad * grad;
    m[i] = mean;
    v[i] = square;
    p[i] = s.decay * p[i] - s.step_size * (mean / (sqrtf(square) * s.inverse_root_correction + s.eps));
  }
}

}  // namespace

int tenon_adamw_f32(float* p, float const* g, float* m, float* v, int64_t n, double lr, double beta1, double beta2, double eps, double weight_decay,
                    int64_t step, void* stream) {
  if (!adamw_accepts(p, g, m, v, n, step)) return tenon_bad_argument;
  if (n == 0) return tenon_ok;
  int64_t const threads = 256, most_blocks = 65535, blocks = (n + threads - 1) / threads;
  adamw<<<static_cast<unsigned>(blocks < most_blocks ? blocks : most_blocks), static_cast<unsigned>(threads), 0, static_cast<cudaStream_t>(stream)>>>(
      p, g, m, v, n, adamw_step(lr, beta1, beta2, eps, weight_decay, step));
  cudaError_t const error = cudaGetLastError();
  if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver || error == cudaErrorStubLibrary) return tenon_no_device;
  return error;
}
