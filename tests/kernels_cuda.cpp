#include <cuda_runtime_api.h>

#include "kernels.h"
#include "kernels_test.h"

int on_device(std::vector<std::vector<float>*> const& arrays, std::function<int(std::vector<float*> const&)> const& launch) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return tenon_no_device;
  std::vector<float*> at(arrays.size(), nullptr);
  int status = tenon_ok;
  auto const check = [&](cudaError_t error) {
    if (status == tenon_ok) status = error;
  };
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    auto const bytes = arrays[i]->size() * sizeof(float);
    check(cudaMalloc(reinterpret_cast<void**>(&at[i]), bytes));
    check(cudaMemcpy(at[i], arrays[i]->data(), bytes, cudaMemcpyHostToDevice));
  }
  if (status == tenon_ok) status = launch(at);
  check(cudaDeviceSynchronize());
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    check(cudaMemcpy(arrays[i]->data(), at[i], arrays[i]->size() * sizeof(float), cudaMemcpyDeviceToHost));
    check(cudaFree(at[i]));
  }
  return status;
}
