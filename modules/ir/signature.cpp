module tenon.ir;
import std;
import tenon.base;

namespace tenon::ir {
using base::ensure;
using base::fail;

std::string_view intern(std::string_view text) {
  static std::mutex mutex;
  static std::set<std::string, std::less<>> pool;
  std::scoped_lock const lock(mutex);
  auto found = pool.find(text);
  if (found == pool.end()) found = pool.emplace(text).first;
  return *found;
}

Attrs& Attrs::with(std::span<Dim const> list) {
  ints.push_back(Dim(list.size()));
  for (auto dim : list) ints.push_back(dim);
  return *this;
}
Attrs& Attrs::with_text(std::string_view words) {
  text = intern(words);
  return *this;
}
base::Device AttrReader::device() {
  auto const code = number().value;
  return {static_cast<base::Device::Kind>(code / 256), static_cast<std::int8_t>(code % 256)};
}
std::span<Dim const> AttrReader::list() {
  auto const length = static_cast<std::size_t>(attrs.ints[at].value);
  std::span<Dim const> const items(attrs.ints.data() + at + 1, length);
  at += length + 1;
  return items;
}

namespace {
using Type = Parameter::Type;
using NamedType = std::pair<std::string_view, Type>;
constexpr std::array<NamedType, 14> types{NamedType{"Tensor", Type::tensor},
                                          {"Tensor[]", Type::tensors},
                                          {"int", Type::whole},
                                          {"size", Type::size},
                                          {"int[]", Type::wholes},
                                          {"size[]", Type::sizes},
                                          {"bool", Type::flag},
                                          {"float", Type::real},
                                          {"fixed", Type::real},
                                          {"float[]", Type::reals},
                                          {"dtype", Type::dtype},
                                          {"str", Type::text},
                                          {"counter", Type::counter},
                                          {"device", Type::device}};

std::string_view trim(std::string_view text) {
  auto const first = text.find_first_not_of(' ');
  return first == std::string_view::npos ? std::string_view{} : text.substr(first, text.find_last_not_of(' ') - first + 1);
}

// Splits at commas outside brackets.
std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  int depth = 0;
  std::size_t start = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && text[i] == '[') ++depth;
    if (i < text.size() && text[i] == ']') --depth;
    if (i == text.size() || (text[i] == ',' && depth == 0)) {
      if (auto const part = trim(text.substr(start, i - start)); !part.empty()) parts.push_back(part);
      start = i + 1;
    }
  }
  return parts;
}

Parameter parse_parameter(std::string_view part, OpDef const& op) {
  auto const space = part.find(' ');
  ensure(space != std::string_view::npos, std::format("{}: a parameter needs a type and a name: {}", op.name, part));
  auto type = part.substr(0, space);
  auto name = trim(part.substr(space));
  Parameter parameter{};
  if (auto const equals = name.find('='); equals != std::string_view::npos) {
    parameter.fallback = name.substr(equals + 1);
    name = name.substr(0, equals);
  }
  parameter.name = name;
  if (type.ends_with('?')) {
    parameter.optional = true;
    type.remove_suffix(1);
    if (parameter.fallback.empty()) parameter.fallback = "None";
  }
  if (type.find('|') != std::string_view::npos) {
    parameter.type = Type::choice;
    for (auto const word : std::views::split(type, '|')) parameter.choices.emplace_back(word.begin(), word.end());
    return parameter;
  }
  auto const found = std::ranges::find(types, type, &std::pair<std::string_view, Type>::first);
  ensure(found != types.end(), std::format("{}: unknown parameter type {}", op.name, type));
  parameter.type = found->second;
  parameter.fixed = type == "fixed";
  return parameter;
}
}  // namespace

namespace {
Signature const& read_signature(OpDef const& op) {
  static std::shared_mutex mutex;
  static std::unordered_map<OpDef const*, std::unique_ptr<Signature>> cache;
  {
    std::shared_lock const lock(mutex);
    if (auto const found = cache.find(&op); found != cache.end()) return *found->second;
  }
  auto made = std::make_unique<Signature>();
  for (auto const part : split(op.signature)) {
    if (part == "*") continue;
    auto parameter = parse_parameter(part, op);
    if (parameter.type == Type::tensor) ++made->operands;
    if (parameter.type == Type::tensors) made->variadic = true;
    made->parameters.push_back(std::move(parameter));
  }
  std::unique_lock const lock(mutex);
  return *cache.try_emplace(&op, std::move(made)).first->second;
}
}  // namespace

Signature const& signature(OpDef const& op) {  // several times a call: what this thread asked last is found without a lock
  static thread_local constinit std::array<std::pair<OpDef const*, Signature const*>, 64> known{};
  auto& [asked, answer] = known[static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(&op)) * 0x9E3779B97F4A7C15u >> 58];
  if (asked != &op) answer = &read_signature(op), asked = &op;
  return *answer;
}

namespace {
Dim whole_default(Parameter const& parameter) {
  auto const text = parameter.fallback;
  if (text.empty()) return parameter.type == Type::size || parameter.type == Type::whole ? 1 : 0;
  if (text == "None") return absent;
  if (text == "True" || text == "False") return text == "True";
  if (text == "MAX") return std::numeric_limits<std::int64_t>::max();
  if (parameter.type == Type::choice) return std::ranges::find(parameter.choices, text) - parameter.choices.begin();
  if (parameter.type == Type::dtype) return static_cast<int>(base::dtype_of(text));
  if (parameter.type == Type::device) return static_cast<int>(base::device_of(text).kind) * 256 + base::device_of(text).index;
  std::int64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}
Dims list_default(Parameter const& parameter) {
  Dims list;
  auto const text = parameter.fallback;
  for (std::size_t i = 0; i < text.size(); ++i)
    if (std::isdigit(static_cast<unsigned char>(text[i])) || text[i] == '-') {
      std::int64_t number = 0;
      auto const end = std::from_chars(text.data() + i, text.data() + text.size(), number).ptr;
      list.push_back(number);
      i = static_cast<std::size_t>(end - text.data());
    }
  return list;
}
Scalar real_default(Parameter const& parameter) {
  if (parameter.fallback == "None") return {};
  if (parameter.fallback.empty()) return Scalar(0.0);
  return Scalar(std::strtod(std::string(parameter.fallback).c_str(), nullptr));
}
void add_reals_default(Parameter const& parameter, Attrs& attrs) {
  std::vector<Scalar> items;
  std::string const text(parameter.fallback);
  for (char const* at = text.c_str(); *at != '\0';) {
    char* end = nullptr;
    double const number = std::strtod(at, &end);
    if (end == at)
      ++at;
    else
      items.emplace_back(number), at = end;
  }
  attrs.with(Dim(items.size()));
  for (auto const& item : items) attrs.with_num(item);
}
}  // namespace

Attrs default_attrs(OpDef const& op) {
  Attrs attrs;
  for (auto const& parameter : signature(op).parameters) switch (parameter.type) {
      case Type::tensor:
      case Type::tensors:
        break;
      case Type::wholes:
      case Type::sizes:
        attrs.with(list_default(parameter));
        break;
      case Type::real:
        attrs.with_num(real_default(parameter));
        break;
      case Type::reals:
        add_reals_default(parameter, attrs);
        break;
      case Type::text:
        attrs.with_text(parameter.fallback);
        break;
      default:
        attrs.with(whole_default(parameter));
    }
  return attrs;
}

void copy_attribute(Parameter const& parameter, AttrReader& from, Attrs& to) {
  switch (parameter.type) {
    case Type::wholes:
    case Type::sizes:
      to.with(from.list());
      return;
    case Type::real:
      to.with_num(from.num());
      return;
    case Type::reals:
      to.with(from.number());
      for (auto n = to.ints.back().value; n-- > 0;) to.with_num(from.num());
      return;
    case Type::text:
      to.text = from.attrs.text;
      return;
    default:
      to.with(from.number());
  }
}
std::string attribute_fault(OpDef const& op, Attrs const& attrs) {
  std::size_t at = 0, reals = 0;
  for (auto const& parameter : signature(op).parameters) {
    bool const takes_one = parameter.type != Type::tensor && parameter.type != Type::tensors && parameter.type != Type::text;
    if (!takes_one) continue;
    if (parameter.type == Type::real ? reals >= attrs.nums.size() : at >= attrs.ints.size()) return std::format("attribute {} is missing", parameter.name);
    if (parameter.type == Type::real) {
      ++reals;
      continue;
    }
    auto const value = attrs.ints[at++].value;
    auto const below = [&](std::int64_t end) { return value >= 0 && value < end; };
    bool good = true;
    switch (parameter.type) {
      case Type::wholes:
      case Type::sizes:
        good = below(static_cast<std::int64_t>(attrs.ints.size() - at) + 1);
        if (good) at += static_cast<std::size_t>(value);
        break;
      case Type::reals:
        good = below(static_cast<std::int64_t>(attrs.nums.size() - reals) + 1);
        if (good) reals += static_cast<std::size_t>(value);
        break;
      case Type::dtype:
        good = below(base::dtype_count) || (value == absent && parameter.optional);
        break;
      case Type::choice:
        good = below(std::ssize(parameter.choices));
        break;
      case Type::flag:
        good = below(2);
        break;
      case Type::device:
        good = below(3 * 256);
        break;
      default:
        break;
    }
    if (!good) return std::format("attribute {} can't be {}", parameter.name, value);
  }
  return at == attrs.ints.size() && reals == attrs.nums.size() ? "" : "too many attributes";
}

namespace {
std::string size_text(Dim dim, Symbols const* symbols) { return symbols ? symbols->to_string(dim) : std::to_string(dim.value); }

std::string value_text(Parameter const& parameter, AttrReader& reader, Symbols const* symbols) {
  auto const one = [&](Dim dim) {
    return dim.value == absent ? "none" : dim == Dim(std::numeric_limits<std::int64_t>::max()) ? "max" : size_text(dim, symbols);
  };
  switch (parameter.type) {
    case Type::wholes:
    case Type::sizes: {
      std::string text;
      for (auto dim : reader.list()) text += (text.empty() ? "" : ", ") + one(dim);
      return "[" + text + "]";
    }
    case Type::flag:
      return reader.flag() ? "true" : "false";
    case Type::dtype: {
      auto const dim = reader.number();
      return dim.value == absent ? "none" : std::string(base::info(static_cast<base::DType>(dim.value)).name);
    }
    case Type::device:
      return base::to_string(reader.device());
    case Type::choice:
      return std::string(parameter.choices[static_cast<std::size_t>(reader.number().value)]);
    case Type::real: {
      auto const number = reader.num();
      return symbols ? symbols->to_string(number) : Symbols().to_string(number);
    }
    case Type::reals: {
      std::string text;
      for (auto n = reader.number().value; n-- > 0;)
        text += (text.empty() ? "" : ", ") + (symbols ? symbols->to_string(reader.num()) : Symbols().to_string(reader.num()));
      return "[" + text + "]";
    }
    case Type::text:
      return quoted(reader.attrs.text);
    default:
      return one(reader.number());
  }
}
}  // namespace

std::string to_string(OpDef const& op, Attrs const& attrs, Symbols const* symbols) {
  Attrs const defaults = default_attrs(op);
  AttrReader given{attrs}, usual{defaults};
  std::string text;
  for (auto const& parameter : signature(op).parameters) {
    if (parameter.type == Type::tensor || parameter.type == Type::tensors) continue;
    auto const value = value_text(parameter, given, symbols);
    if (value_text(parameter, usual, nullptr) == value && !parameter.fallback.empty()) continue;
    text += std::format("{}{}={}", text.empty() ? "" : ", ", parameter.name, value);
  }
  return text;
}

Meta contiguous_meta(base::DType dtype, base::Device device, Dims sizes) {
  Meta meta;
  meta.dtype = dtype;
  meta.device = device;
  meta.strides.resize(sizes.size());
  Dim stride = 1;
  for (std::size_t d = sizes.size(); d-- > 0;) {
    meta.strides[d] = stride;
    if (sizes[d].value != 0) stride = stride * sizes[d];
  }
  meta.sizes = std::move(sizes);
  return meta;
}

std::string to_string(Meta const& meta, Symbols const* symbols) {
  auto const list = [&](Dims const& dims) {
    std::string text;
    for (auto dim : dims) text += (text.empty() ? "" : ", ") + size_text(dim, symbols);
    return "[" + text + "]";
  };
  auto text = std::string(base::info(meta.dtype).name) + list(meta.sizes);
  bool const plain = symbols ? symbols->row_major(meta.sizes, meta.strides) : Symbols().row_major(meta.sizes, meta.strides);
  if (!plain) text += " strides " + list(meta.strides);
  if (meta.device != base::Device{}) text += " on " + base::to_string(meta.device);
  return text;
}

}  // namespace tenon::ir
