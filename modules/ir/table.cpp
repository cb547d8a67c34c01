module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir {
namespace ops {
std::span<OpDef const* const> place_rows();  // ops_places.cpp
}

std::span<OpDef const* const> all_ops() {
  using namespace ops;
  static std::vector<OpDef const*> const rows = [] {
    std::vector<OpDef const*> list;
    for (auto const part : {
             pointwise_rows(), binary_rows(),   reduction_rows(), contraction_rows(), view_rows(),     gather_rows(),     creation_rows(), composite_rows(),
             norm_rows(),      loss_rows(),     special_rows(),   activation_rows(),  distance_rows(), pair_loss_rows(),  matrix_rows(),   split_rows(),
             layout_rows(),    diagonal_rows(), index_rows(),     sort_rows(),        scan_rows(),     statistics_rows(), product_rows(),  convolution_rows(),
             pool_rows(),      resize_rows(),   bag_rows(),       collective_rows(),  einsum_rows(),   selection_rows(),  place_rows(),    spelling_rows(),
         })
      list.insert(list.end(), part.begin(), part.end());
    return list;
  }();
  return rows;
}

OpDef const* find_op(std::string_view name) {
  static std::map<std::string_view, OpDef const*> const by_name = [] {
    std::map<std::string_view, OpDef const*> map;
    for (auto const* op : all_ops()) base::ensure(map.emplace(op->name, op).second, std::format("two ops are named {}", op->name));
    return map;
  }();
  auto const found = by_name.find(name);
  return found == by_name.end() ? nullptr : found->second;
}

}  // namespace tenon::ir
