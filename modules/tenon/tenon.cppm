export module tenon;
export import tenon.base;
export import tenon.ir;
export import tenon.guards;
export import tenon.tracer;
export import tenon.nn;
import std;

/// Everything under one name: `using namespace tenon;` is all that a program needs.
export namespace tenon {
using namespace base;
using namespace guards;
using namespace tracer;
using namespace nn;
}  // namespace tenon
