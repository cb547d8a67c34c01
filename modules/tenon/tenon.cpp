// The backend that programs get which import the whole of Tenon.
module tenon;
import std;

namespace tenon {

Backend fusion_backend(Mode) {
  return [](ir::Graph const& graph) -> Runner { return fusion::lower(graph); };
}

}  // namespace tenon
