#pragma once
#include <functional>
#include <vector>

/// Copies the arrays to the device, runs `launch` on their device addresses in the same order, waits and copies them back; returns its status,
/// the first CUDA error, or tenon_no_device.
int on_device(std::vector<std::vector<float>*> const& arrays, std::function<int(std::vector<float*> const&)> const& launch);
