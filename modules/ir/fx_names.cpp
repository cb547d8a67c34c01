// Names of nodes and texts of types as FX writes them.
module tenon.ir;
import std;
import tenon.base;
import :fx;

namespace tenon::ir {

namespace {
bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }
// clang-format off
// What code can't call a node: Python's keywords and the functions that are always there.
constexpr std::string_view taken[] = {
    "ArithmeticError", "False", "None", "True", "__build_class__", "abs", "aiter", "all", "and", "anext", "any", "as", "ascii", "assert", "async", "await",
    "bin", "bool", "break", "breakpoint", "bytearray", "bytes", "callable", "chr", "class", "classmethod", "compile", "complex", "continue", "copyright",
    "credits", "def", "del", "delattr", "device", "dict", "dir", "divmod", "elif", "else", "enumerate", "eval", "except", "exec", "exit", "filter",
    "finally", "float", "for", "format", "from", "frozenset", "getattr", "global", "globals", "hasattr", "hash", "help", "hex", "id", "if", "import", "in",
    "inf", "input", "int", "is", "isinstance", "issubclass", "iter", "lambda", "len", "license", "list", "locals", "map", "max", "memoryview", "min",
    "nan", "next", "nonlocal", "not", "object", "oct", "open", "or", "ord", "pass", "pow", "print", "property", "pytree", "quit", "raise", "range", "repr",
    "return", "reversed", "round", "self", "set", "setattr", "slice", "sorted", "staticmethod", "str", "sum", "super", "torch", "try", "tuple", "type",
    "vars", "while", "with", "yield", "zip"};
constexpr std::pair<base::DType, std::string_view> abbreviations[] = {{base::DType::boolean, "b8"}, {base::DType::f8e4m3, "f8e4m3fn"}};
// clang-format on
}  // namespace

std::string fx::Names::unique(std::string_view wish) {
  std::string name;
  for (char c : wish) {
    bool const upper = std::isupper(static_cast<unsigned char>(c)) != 0;
    if (upper && !name.empty() && std::islower(static_cast<unsigned char>(name.back()))) name += '_';
    if (is_letter(c))
      name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    else if (!name.ends_with('_') && c != ']')
      name += '_';
  }
  if (name.empty()) name = "_unnamed";
  if (is_digit(name[0])) name.insert(0, "_");
  auto stem = name;
  auto const mark = name.rfind('_');
  bool const numbered = mark != std::string::npos && mark + 1 < name.size() && name.size() - mark < 10 &&
                        std::all_of(name.begin() + static_cast<std::ptrdiff_t>(mark) + 1, name.end(), is_digit);
  if (numbered) stem = name.substr(0, mark);
  std::int64_t number = 0;
  if (!numbered || used_.contains(name)) {
    number = count_[name];
    if (std::ranges::binary_search(taken, std::string_view(name))) name = std::format("{}_{}", stem, ++number);
  } else {
    number = std::stoll(name.substr(mark + 1));
  }
  while (used_.contains(name)) name = std::format("{}_{}", stem, ++number);
  used_.insert(name);
  count_[stem] = number;
  return name;
}

std::string fx::type_text(Meta const& meta, Symbols const& symbols) {
  auto const list = [&](Dims const& dims) {
    std::string text;
    for (auto dim : dims) text += (text.empty() ? "" : ", ") + symbols.to_string(dim);
    return "[" + text + "]";
  };
  auto const known = std::ranges::find(abbreviations, meta.dtype, [](auto const& row) { return row.first; });
  std::string text(known == std::end(abbreviations) ? base::info(meta.dtype).name : known->second);
  text += list(meta.sizes);
  if (!symbols.row_major(meta.sizes, meta.strides)) text += list(meta.strides);
  return meta.device == base::Device{} ? text : text + base::to_string(meta.device);
}
Meta fx::type_of(std::string_view text) {
  auto const whole = text;
  auto const refuse = [&](std::string_view what) { base::fail("type \"{}\": {}", whole, what); };
  auto const list = [&] {
    Dims dims;
    auto const end = text.find(']');
    if (!text.starts_with('[') || end == std::string_view::npos) refuse("expected sizes in brackets");
    for (auto const part : parts(text.substr(1, end - 1))) {
      std::int64_t number = 0;
      auto const [stop, error] = std::from_chars(part.data(), part.data() + part.size(), number);
      if (error != std::errc{} || stop != part.data() + part.size()) refuse(std::format("{} is no size", part));
      if (dims.size() == 64) refuse("more than 64 sizes");
      dims.push_back(number);
    }
    text.remove_prefix(end + 1);
    return dims;
  };
  auto const word = text.substr(0, text.find('['));
  auto const known = std::ranges::find(abbreviations, word, [](auto const& row) { return row.second; });
  auto const dtype = known == std::end(abbreviations) ? base::dtype_of(word) : known->first;
  text.remove_prefix(word.size());
  auto const sizes = list();
  for (auto size : sizes)
    if (size.value < 0) refuse(std::format("size {} is negative", size.value));
  auto meta = contiguous_meta(dtype, {}, sizes);
  if (text.starts_with('[')) {
    meta.strides = list();
    if (meta.strides.size() != sizes.size()) refuse(std::format("{} strides for {} sizes", meta.strides.size(), sizes.size()));
  }
  if (!text.empty()) meta.device = base::device_of(text);
  return meta;
}

}  // namespace tenon::ir
