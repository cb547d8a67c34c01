// The backend that programs get which import the whole of Tenon.
module tenon;
import std;

namespace tenon {

Backend fusion_backend(Mode mode) {
  auto const how = mode == Mode::reduce_overhead ? fusion::Mode::reduce_overhead
                   : mode == Mode::max_autotune  ? fusion::Mode::max_autotune
                                                 : fusion::Mode::normal;
  return [how](ir::Graph const& graph) -> Runner { return fusion::lower(graph, {.mode = how}); };
}

}  // namespace tenon
