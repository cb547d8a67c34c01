// Types and attributes of MLIR text: every form that StableHLO's operations are printed in, each under StableHLO's own names.
module tenon.ir;
import std;
import tenon.base;
import :stablehlo;

namespace tenon::ir::hlo {
using List = std::vector<std::int64_t>;
using Matrix = std::vector<List>;

namespace {
// Attributes that say what an operation means; all others (precision, sharding, names) are passed over.
constexpr std::string_view known[] = {"value",
                                      "comparison_direction",
                                      "compare_type",
                                      "iota_dimension",
                                      "permutation",
                                      "broadcast_dimensions",
                                      "start_indices",
                                      "limit_indices",
                                      "strides",
                                      "dimension",
                                      "dimensions",
                                      "is_stable",
                                      "window_dimensions",
                                      "window_strides",
                                      "base_dilations",
                                      "window_dilations",
                                      "padding",
                                      "lhs_batching_dimensions",
                                      "rhs_batching_dimensions",
                                      "lhs_contracting_dimensions",
                                      "rhs_contracting_dimensions",
                                      "dot_dimension_numbers",
                                      "dimension_numbers",
                                      "scatter_dimension_numbers",
                                      "lhs_dilation",
                                      "rhs_dilation",
                                      "window_reversal",
                                      "feature_group_count",
                                      "batch_group_count",
                                      "offset_dims",
                                      "collapsed_slice_dims",
                                      "operand_batching_dims",
                                      "start_indices_batching_dims",
                                      "start_index_map",
                                      "index_vector_dim",
                                      "slice_sizes",
                                      "update_window_dims",
                                      "inserted_window_dims",
                                      "input_batching_dims",
                                      "scatter_indices_batching_dims",
                                      "scatter_dims_to_operand_dims",
                                      "edge_padding_low",
                                      "edge_padding_high",
                                      "interior_padding",
                                      "call_target_name",
                                      "exponent_bits",
                                      "mantissa_bits",
                                      "k",
                                      "largest",
                                      "decomposition",
                                      "callee",
                                      "index"};
}  // namespace

Type StablehloReader::type() {
  in_.skip_blanks();
  auto const start = in_.at();
  auto const refuse = [&](std::string_view what) { in_.refuse(start, what); };
  if (!in_.accept("tensor")) {
    if (in_.accept("!")) in_.refuse(start, std::format("type !{} is not supported", in_.peek_word()));
    in_.refuse(start, std::format("expected a tensor's type, not '{}'", in_.peek_word()));
  }
  in_.expect("<");
  Type type;
  for (;;) {  // 4x8xf32: letters and digits run together
    if (in_.peek() == '?') refuse("a dynamic size is not supported");
    if (in_.peek() == '*') refuse("an unranked tensor is not supported");
    if (!std::isdigit(static_cast<unsigned char>(in_.peek()))) break;
    type.sizes.push_back(in_.integer());
    in_.expect("x");
  }
  if (in_.peek() == '!') refuse("quantised elements are not supported");
  auto const name = in_.word();
  if (name == "complex") refuse("complex elements are not supported");
  auto const dtype = element_type(name);
  if (!dtype) refuse(std::format("elements of type {} are not supported", name));
  type.dtype = *dtype;
  if (in_.accept(",")) in_.skip_value();
  in_.expect(">");
  try {
    elements(type);
  } catch (base::Error const& error) {
    refuse(error.what());
  }
  return type;
}

std::vector<Type> StablehloReader::types() {
  std::vector<Type> list;
  if (!in_.accept("(")) return list.push_back(type()), list;
  if (in_.accept(")")) return list;
  do {
    list.push_back(type());
    if (in_.peek() == '{') in_.expect("{"), attributes(nullptr, "}");
  } while (in_.accept(","));
  in_.expect(")");
  return list;
}

Literal StablehloReader::dense() {
  auto const start = in_.at();
  in_.expect("<");
  std::vector<std::string_view> words;
  std::string bytes;
  List shape;                        // how many items each depth of brackets holds
  std::vector<std::int64_t> counts;  // of the brackets that are open
  bool closed = in_.peek() == '>';
  if (in_.peek() == '"') {
    bytes = in_.quoted();
    closed = true;
  }
  bool lists = false;
  while (!closed) {
    if (in_.accept("[")) {
      lists = true;
      if (std::cmp_greater_equal(counts.size(), most_rank)) in_.refuse("too many brackets in one another");
      counts.push_back(0);
      if (in_.peek() != ']') continue;
    } else {
      if (in_.peek() == '(') in_.refuse("complex elements are not supported");
      words.push_back(in_.token());
      if (!counts.empty()) ++counts.back();
    }
    for (;;) {  // behind an item: the next one, or the ends of lists
      if (!counts.empty() && in_.accept(",")) break;
      if (counts.empty() || !in_.accept("]")) {
        closed = counts.empty();
        if (!closed) in_.refuse("expected \",\" or \"]\"");
        break;
      }
      auto const depth = counts.size() - 1;
      if (shape.size() <= depth) shape.resize(depth + 1, -1);
      if (shape[depth] < 0) shape[depth] = counts.back();
      if (shape[depth] != counts.back()) in_.refuse(std::format("a list of {} elements beside one of {}", counts.back(), shape[depth]));
      counts.pop_back();
      if (!counts.empty()) ++counts.back();
    }
  }
  in_.expect(">");
  in_.expect(":");
  auto const of = type();
  try {
    if (!bytes.empty()) return literal_of_bytes(of, bytes);
    if (lists && shape != of.sizes && !words.empty()) base::fail("lists of sizes {} for {}", base::to_string(shape), to_string(of));
    if (lists && words.size() == 1 && elements(of) != 1) base::fail("1 element given, {} needed by {}", elements(of), to_string(of));
    return literal_of(of, words);
  } catch (base::Error const& error) {
    in_.refuse(start, error.what());
  }
}

namespace {
// Whole numbers of a small dense attribute as a list or, of two dims, as a matrix.
Attribute rows_of(Literal const& literal, Cursor const& in) {
  auto const& sizes = literal.type.sizes;
  auto const n = static_cast<std::size_t>(elements(literal.type));
  if (sizes.empty() || sizes.size() > 2 || n > 1024 || base::is_real(literal.type.dtype)) in.refuse("this attribute needs a short list of whole numbers");
  auto const item = [&](std::size_t i) { return literal.wholes.size() == 1 ? literal.wholes[0] : literal.wholes.at(i); };
  Matrix rows(sizes.size() == 2 ? static_cast<std::size_t>(sizes[0]) : 1);
  if (rows.size() > 1024) in.refuse("this attribute has too many rows");
  for (std::size_t i = 0; i < n; ++i) rows[i * rows.size() / n].push_back(item(i));
  return sizes.size() == 2 ? Attribute(rows) : Attribute(rows[0]);
}
}  // namespace

std::optional<Attribute> StablehloReader::list() {
  List numbers;
  Matrix rows;
  in_.expect("[");
  if (in_.accept("]")) return numbers;
  do {
    if (in_.peek() == '[') {
      List row;
      in_.expect("[");
      if (!in_.accept("]")) {
        do row.push_back(in_.integer());
        while (in_.accept(","));
        in_.expect("]");
      }
      rows.push_back(std::move(row));
    } else if (in_.accept_word("true") || in_.peek_word() == "false") {
      numbers.push_back(!in_.accept_word("false"));
    } else {
      numbers.push_back(in_.integer());
    }
  } while (in_.accept(","));
  in_.expect("]");
  if (!rows.empty() && !numbers.empty()) in_.refuse("numbers and lists in one list");
  return rows.empty() ? Attribute(numbers) : Attribute(rows);
}

void StablehloReader::value(Op& op, std::string const& key) {
  auto const put = [&](Attribute attribute) { op.attributes.emplace_back(key, std::move(attribute)); };
  char const c = in_.peek();
  if (c == '"') return put(in_.quoted());
  if (c == '[') return put(*list());
  if (in_.accept("@")) return put(in_.peek() == '"' ? in_.quoted() : std::string(in_.word()));
  if (in_.accept("#stablehlo.conv<")) {
    convolution_dims(op);
    return in_.expect(">");
  }
  if (in_.accept("#")) {  // #stablehlo<comparison_direction LT>, #stablehlo.gather<offset_dims = [0], ..>
    in_.word();
    in_.expect("<");
    auto const first = in_.peek_word();
    if (first == "comparison_direction" || first == "comparison_type") {
      in_.word();
      put(std::string(in_.word()));
      return in_.expect(">");
    }
    if (++depth_ > most_depth) in_.refuse("too many attributes in one another");
    attributes(&op, ">");
    return void(--depth_);
  }
  auto const word = in_.peek_word();
  if (word == "true" || word == "false") return in_.word(), put(word == "true");
  if (word == "array") {
    in_.word(), in_.expect("<"), in_.word();
    List numbers;
    if (in_.accept(":")) do
        if (in_.accept_word("true"))
          numbers.push_back(1);
        else
          numbers.push_back(in_.accept_word("false") ? 0 : in_.integer());
      while (in_.accept(","));
    in_.expect(">");
    return put(numbers);
  }
  if (word == "dense") {
    in_.word();
    auto literal = dense();
    return put(key == "value" ? Attribute(std::move(literal)) : rows_of(literal, in_));
  }
  if (word.starts_with("dense")) in_.refuse(std::format("elements as {} are not in the text", word));
  put(in_.integer());
  auto const behind = in_.at();
  if (in_.accept(":") && element_type(in_.peek_word()))
    in_.word();
  else
    in_.back(behind);  // the operation's types, no type of this number
}

void StablehloReader::attributes(Op* op, std::string_view end) {
  if (in_.accept(end)) return;
  do {
    std::string const key = in_.peek() == '"' ? in_.quoted() : std::string(in_.word());
    if (!in_.accept("=")) continue;  // a flag
    if (op && contains(known, key))
      value(*op, key);
    else
      in_.skip_value();
  } while (in_.accept(","));
  in_.expect(end);
}

// [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]
void StablehloReader::convolution_dims(Op& op) {
  struct Part {
    std::string_view open, first, first_name, second, second_name, spatial_name;
  };
  static constexpr Part parts[] = {{"[", "b", "input_batch_dimension", "f", "input_feature_dimension", "input_spatial_dimensions"},
                                   {"x", "o", "kernel_output_feature_dimension", "i", "kernel_input_feature_dimension", "kernel_spatial_dimensions"},
                                   {"->", "b", "output_batch_dimension", "f", "output_feature_dimension", "output_spatial_dimensions"}};
  for (auto const& part : parts) {
    if (part.open != "[") in_.expect(part.open);
    in_.expect("[");
    std::int64_t first = -1, second = -1, at = 0;
    List spatial;
    do {
      auto const word = in_.word();
      if (word == part.first) {
        first = at++;
      } else if (word == part.second) {
        second = at++;
      } else {
        std::size_t number{};
        auto const [rest, error] = std::from_chars(word.data(), word.data() + word.size(), number);
        if (error != std::errc{} || rest != word.data() + word.size() || number >= static_cast<std::size_t>(most_rank))
          in_.refuse(std::format("'{}' names no dim", word));
        if (spatial.size() <= number) spatial.resize(number + 1, -1);
        spatial[number] = at++;
      }
    } while (in_.accept(","));
    in_.expect("]");
    if (first < 0 || second < 0 || contains(spatial, -1)) in_.refuse("a dim of the convolution is missing");
    op.attributes.emplace_back(std::string(part.first_name), first);
    op.attributes.emplace_back(std::string(part.second_name), second);
    op.attributes.emplace_back(std::string(part.spatial_name), spatial);
  }
}

}  // namespace tenon::ir::hlo
