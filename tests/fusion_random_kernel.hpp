#pragma once
// Random loop nests and what they mean. Include behind `import std; import tenon.base; import tenon.ir; import tenon.fusion;`.

namespace support {

/// A kernel with memory and numbers to run it on.
struct RandomKernel {
  tenon::fusion::Kernel kernel;
  std::vector<std::vector<std::byte>> buffers;
  std::vector<std::int64_t> parameters;
  std::vector<double> real_parameters;
};
/// What a random kernel may hold.
struct KernelOptions {
  std::int64_t points = 4000;  ///< at most
  int steps = 14;              ///< ops and reductions, about
  int followers = 30;          ///< of a hundred: sums that can be carried along, and forms in which they are
  bool small_floats = true, whole = true, indirect = true, symbolic = true, specials = true, empty = true;
};
/// Axes of every role, loads of every kind, ops, reductions over columns and over rows in several passes, stores at every level.
RandomKernel random_kernel(std::mt19937& random, KernelOptions const& options = {});
/// Addresses of buffers.
std::vector<std::byte*> addresses(std::vector<std::vector<std::byte>>& buffers);

/// What an element may be: a value, and how far single precision and another order of additions may lead from it (infinite: anywhere).
struct Expected {
  int buffer = -1;
  std::int64_t offset = 0;
  double low = 0, high = 0, value = 0;  ///< as read back from the buffer's dtype
  std::int64_t whole = 0;
  bool is_whole = false, open = false;  ///< open: no bound is known
};
/// Every element that the kernel stores, by its definition: point by point, in double and i64.
std::vector<Expected> reference(RandomKernel const& random);
/// The first elements of `buffers` that are not as expected, as text; empty if all are. `closed` counts those with a bound of 0.1 % or less.
std::string differences(RandomKernel const& random, std::vector<std::vector<std::byte>> const& buffers, std::int64_t* closed = nullptr,
                        std::int64_t* all = nullptr);

}  // namespace support
