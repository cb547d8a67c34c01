export module tenon;
export import tenon.base;
export import tenon.ir;
export import tenon.device;
export import tenon.fusion;
export import tenon.guards;
export import tenon.tracer;
export import tenon.nn;
export import :package;
import std;

/// Everything under one name: `using namespace tenon;` is all that a program needs.
export namespace tenon {
using namespace base;
using namespace guards;
using namespace tracer;
using namespace nn;

/// Compiled kernels: what `compile` runs graphs on in a program that imports this module.
Backend fusion_backend(Mode mode = Mode::normal);
}  // namespace tenon

namespace tenon {
[[maybe_unused]] bool const chosen = (set_default_backend(fusion_backend), true);
}
