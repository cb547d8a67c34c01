module tenon.ir;
import std;
import tenon.base;
import :hlo;

namespace tenon::ir {

hlo::Attribute const* hlo::Op::find(std::string_view key) const {
  for (auto const& [name, value] : attributes)
    if (name == key) return &value;
  return nullptr;
}

}  // namespace tenon::ir
