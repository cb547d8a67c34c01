// Attributes of HLO that have a form of their own: lists, windows, labels of dims, slices and padding.
module tenon.ir;
import std;
import tenon.base;
import :hlo_reader;

namespace tenon::ir::hlo {
using List = std::vector<std::int64_t>;
using Matrix = std::vector<List>;

List HloReader::braced() {  // {0,1}
  List list;
  in_.expect("{");
  if (in_.accept("}")) return list;
  do list.push_back(in_.integer());
  while (in_.accept(","));
  in_.expect("}");
  return list;
}
List HloReader::crossed() {  // 1x2x2
  List list;
  do list.push_back(in_.integer());
  while (in_.touches('x') && in_.accept("x"));
  return list;
}

// {size=2x2 stride=2x2 pad=0_1x0_1 lhs_dilate=1x1 rhs_dilate=1x1 rhs_reversal=0x0}
void HloReader::window(Instruction& made) {
  Op& op = made.op;
  bool const convolves = op.name == "convolution";
  in_.expect("{");
  while (!in_.accept("}")) {
    auto const word = in_.word();
    in_.expect("=");
    if (word == "pad") {
      Matrix rows;
      do {
        auto const low = in_.integer();
        in_.expect("_");
        rows.push_back({low, in_.integer()});
      } while (in_.touches('x') && in_.accept("x"));
      op.attributes.emplace_back("padding", rows);
      continue;
    }
    auto list = crossed();
    auto const key = word == "stride"         ? "window_strides"
                     : word == "size"         ? "window_dimensions"
                     : word == "lhs_dilate"   ? (convolves ? "lhs_dilation" : "base_dilations")
                     : word == "rhs_dilate"   ? (convolves ? "rhs_dilation" : "window_dilations")
                     : word == "rhs_reversal" ? "window_reversal"
                                              : nullptr;
    if (!key) in_.refuse(std::format("unknown word '{}' of a window", word));
    op.attributes.emplace_back(key, std::move(list));
  }
}

// b01f_01io->b01f
void HloReader::dim_labels(Op& op) {
  struct Part {
    char first, second;
    std::string_view first_name, second_name, spatial_name;
  };
  static constexpr Part parts[] = {{'b', 'f', "input_batch_dimension", "input_feature_dimension", "input_spatial_dimensions"},
                                   {'o', 'i', "kernel_output_feature_dimension", "kernel_input_feature_dimension", "kernel_spatial_dimensions"},
                                   {'b', 'f', "output_batch_dimension", "output_feature_dimension", "output_spatial_dimensions"}};
  auto const operands = in_.word();
  auto const middle = operands.find('_');
  if (middle == std::string_view::npos) in_.refuse(std::format("'{}' is no pair of labels", operands));
  in_.expect("->");
  std::array const labels{operands.substr(0, middle), operands.substr(middle + 1), in_.word()};
  for (std::size_t k = 0; k < labels.size(); ++k) {
    auto const place = [&](char c) {
      auto const at = labels[k].find(c);
      if (at == std::string_view::npos || labels[k].find(c, at + 1) != std::string_view::npos) in_.refuse(std::format("'{}' needs one {}", labels[k], c));
      return static_cast<std::int64_t>(at);
    };
    if (std::cmp_greater(labels[k].size(), 10)) in_.refuse(std::format("'{}' has too many dims", labels[k]));
    List spatial;
    for (std::size_t d = 0; d + 2 < labels[k].size(); ++d) spatial.push_back(place(static_cast<char>('0' + d)));
    op.attributes.emplace_back(std::string(parts[k].first_name), place(parts[k].first));
    op.attributes.emplace_back(std::string(parts[k].second_name), place(parts[k].second));
    op.attributes.emplace_back(std::string(parts[k].spatial_name), spatial);
  }
}

// {[0:2], [0:8:2]}
void HloReader::slice(Op& op) {
  List start, limit, stride;
  in_.expect("{");
  if (!in_.accept("}")) {
    do {
      in_.expect("["), start.push_back(in_.integer());
      in_.expect(":"), limit.push_back(in_.integer());
      stride.push_back(in_.accept(":") ? in_.integer() : 1);
      in_.expect("]");
    } while (in_.accept(","));
    in_.expect("}");
  }
  op.attributes.emplace_back("start_indices", start);
  op.attributes.emplace_back("limit_indices", limit);
  op.attributes.emplace_back("strides", stride);
}

// 0_1_0x0_0: low, high and, where it is not 0, interior
void HloReader::padding(Op& op) {
  List low, high, interior;
  do {
    low.push_back(in_.integer()), in_.expect("_");
    high.push_back(in_.integer());
    interior.push_back(in_.accept("_") ? in_.integer() : 0);
  } while (in_.touches('x') && in_.accept("x"));
  op.attributes.emplace_back("edge_padding_low", low);
  op.attributes.emplace_back("edge_padding_high", high);
  op.attributes.emplace_back("interior_padding", interior);
}

}  // namespace tenon::ir::hlo
