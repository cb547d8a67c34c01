import std;
import tenon.base;
import tenon.ir;
#include "op_samples.hpp"

namespace support {
namespace {

constexpr std::string_view table[] = {
    // convolutions
    "convolution(f64[2, 3, 5, 4], f64[4, 3, 3, 2])",
    "convolution(f64[2, 3], f64[4, 3])",
    "convolution(f64[2, 3, 7], f64[2, 3, 3], stride=[2], low=[2], high=[1], dilation=[2])",
    "convolution(f64[1, 4, 5, 6], f64[6, 2, 3, 2], stride=[2, 1], low=[2, -1], high=[1, 3], dilation=[1, 2], input_dilation=[3, 2], groups=2)",
    "convolution(f64[2, 2, 3, 2, 3], f64[3, 2, 2, 1, 2], low=[1], high=[0, 1, 0], input_dilation=[2, 1, 1])",
    "convolution(f64[2, 4, 3], f64[4, 1, 2], high=[1], groups=4)",
    "convolution(f64[0, 2, 3], f64[3, 2, 2])",
    "convolution(i64[2, 3, 4], i64[2, 3, 2])",
    "conv1d(f64[2, 3, 7], f64[4, 3, 3], f64[4])",
    "conv1d(f64[4, 7], f64[2, 2, 2], f64[2], stride=[2], padding=[1], groups=2, dilation=[3])",
    "conv1d(f64[2, 3, 7], f64[4, 3, 2], none, dilation=[3], pad=same)",
    "conv2d(f64[2, 3, 5, 4], f64[4, 3, 3, 2], none)",
    "conv2d(f64[1, 4, 6, 6], f64[6, 2, 3, 3], f64[6], stride=[2, 1], padding=[1], groups=2)",
    "conv2d(f64[3, 5, 4], f64[2, 3, 2, 2], f64[2])",
    "conv2d(f64[2, 2, 7, 6], f64[2, 2, 2, 3], f64[2], dilation=[2, 1], padding=[1, 2])",
    "conv2d(f64[1, 2, 4, 5], f64[3, 2, 4, 3], f64[3], pad=same)",
    "conv2d(f64[1, 2, 4, 5], f64[3, 2, 2, 3], none, stride=[2], pad=valid)",
    "conv3d(f64[1, 2, 3, 4, 3], f64[3, 2, 2, 2, 1], f64[3], stride=[1, 2, 1], padding=[1, 0, 1])",
    "conv3d(f64[2, 3, 3, 2], f64[2, 1, 2, 2, 2], none, groups=2)",
    "conv_transpose1d(f64[2, 3, 4], f64[3, 2, 3], f64[2])",
    "conv_transpose1d(f64[4, 3], f64[4, 3, 2], f64[6], stride=[3], padding=[1], output_padding=[2], groups=2, dilation=[4])",
    "conv_transpose2d(f64[2, 3, 3, 4], f64[3, 2, 3, 2], none, stride=[2], padding=[1, 0], output_padding=[1])",
    "conv_transpose2d(f64[4, 2, 3], f64[4, 1, 2, 2], f64[2], stride=[1, 2], groups=2)",
    "conv_transpose3d(f64[1, 2, 2, 3, 2], f64[2, 2, 2, 2, 2], f64[2], stride=[2, 1, 1], padding=[1, 0, 0])",
};
}  // namespace

std::span<std::string_view const> window_lines() { return table; }

}  // namespace support
