#pragma once
#include <stdint.h>

// The boundary between the modules and the kernels: C launchers over raw pointers. A launcher named NAME takes device memory and a CUDA
// stream; its twin NAME_cpu takes the same arguments in host memory, ignores the stream and is what NAME is tested against.
// Sizes count elements, streams are cudaStream_t or null for the default one, and nothing here waits for the device.

extern "C" {

/// What a launcher returns: one of these, or a positive cudaError_t. Nothing was written unless it is tenon_ok.
enum { tenon_ok = 0, tenon_no_device = -1, tenon_bad_argument = -2 };

/// One AdamW step (Loshchilov and Hutter, arXiv:1711.05101, with PyTorch's order of operations) on n f32 elements, in place:
/// p -= lr * weight_decay * p; m and v are the running means of g and g²; p -= lr / (1 - beta1^step) * m / (sqrt(v / (1 - beta2^step)) + eps).
/// `step` counts from 1. tenon_bad_argument for a negative n, a step below 1 or a null pointer with n > 0.
int tenon_adamw_f32(float* p, float const* g, float* m, float* v, int64_t n, double lr, double beta1, double beta2, double eps, double weight_decay,
                    int64_t step, void* stream);
int tenon_adamw_f32_cpu(float* p, float const* g, float* m, float* v, int64_t n, double lr, double beta1, double beta2, double eps, double weight_decay,
                        int64_t step, void* stream);

}  // extern "C"
