/// Where the values of a plan lie.
module tenon.fusion:homes;
import std;
import :loop;
import :program;

namespace tenon::fusion {

/// Fills in a program's lifetimes, homes and offers of memory; `kernels` are those that its launches name.
void give_homes(Program& program, std::span<Kernel const> kernels);

}  // namespace tenon::fusion
