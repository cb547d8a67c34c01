export module tenon.fusion:interpret;
import std;
import tenon.base;
import tenon.ir;
import :loop;

export namespace tenon::fusion {

/// Runs a kernel without a compiler, over blocks of columns and on the device's threads; results do not depend on how many there are.
/// `parameters` and `real_parameters` are the values of the kernel's, `buffers` its memory. Error for an index outside of its range.
void interpret(Kernel const& kernel, std::span<std::byte* const> buffers, std::span<std::int64_t const> parameters, std::span<double const> real_parameters);

}  // namespace tenon::fusion
