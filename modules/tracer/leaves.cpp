module tenon.tracer;
import std;

namespace tenon::tracer {

std::string Path::text() const {
  auto text = outer ? outer->text() : std::string();
  if (index >= 0) return text + std::format("[{}]", index);
  return text.empty() ? std::string(name) : std::format("{}.{}", text, name);
}

namespace {
thread_local ModuleScope const* running = nullptr;
}
ModuleScope::ModuleScope(void const* from, First (*first)(void const*)) : layer(from), first_tensor(first), outer(std::exchange(running, this)) {}
ModuleScope::~ModuleScope() { running = outer; }
ModuleScope const* ModuleScope::innermost() { return running; }

}  // namespace tenon::tracer
