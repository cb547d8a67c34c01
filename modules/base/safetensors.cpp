module;
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
module tenon.base;
import std;

namespace tenon::base {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian and elements are used where they lie");

constexpr std::uint64_t length_bytes = 8, largest_header = 100'000'000;
constexpr std::string_view metadata_key = "__metadata__";

/// Dtypes that the format has and we have not, with their bits an element.
constexpr std::pair<std::string_view, std::uint64_t> foreign_dtypes[]{
    {"U16", 16}, {"U32", 32}, {"U64", 64}, {"C64", 64}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F4", 4}, {"F6_E2M3", 6}, {"F6_E3M2", 6},
};

/// Throws Error "safetensors: FILE: NAME: …", NAME being the error of the format or of the system.
template <class... Args>
[[noreturn]] void refuse(std::string const& path, std::string_view name, std::format_string<Args...> text, Args&&... args) {
  fail("safetensors: {}: {}: {}", path, name, std::format(text, std::forward<Args>(args)...));
}

/// The text, cut so that a hostile file cannot fill the message.
std::string brief(std::string text, std::size_t limit) { return text.size() <= limit ? text : text.substr(0, limit) + "..."; }

/// A value of the file as JSON in ASCII, cut likewise.
std::string shown(nlohmann::json const& value) { return brief(value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace), 80); }

[[noreturn]] void refuse_system(std::string const& path, std::string_view doing, int error) {
  refuse(path, "IoError", "cannot {}: {}", doing, std::generic_category().message(error));
}

struct Descriptor {
  int number;
  ~Descriptor() {
    if (number >= 0) ::close(number);
  }
};

struct Mapping {
  void* start = nullptr;
  std::size_t bytes = 0;
  ~Mapping() {
    if (start) ::munmap(start, bytes);
  }
};

/// Byte of the first sequence that is not UTF-8 (RFC 3629: no overlong forms, surrogates or values over 10FFFF), or the size.
std::size_t utf8_prefix(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    auto const byte = [&](std::size_t i) { return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u; };
    unsigned const first = byte(0), second = byte(1);
    std::size_t const length = first < 0x80 ? 1 : first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
    if (length == 0) return at;
    for (std::size_t i = 1; i < length; ++i)
      if ((byte(i) & 0xC0) != 0x80) return at;
    bool const overlong = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
    bool const beyond = (first == 0xED && second > 0x9F) || (first == 0xF4 && second > 0x8F);
    if (overlong || beyond) return at;
    at += length;
  }
  return at;
}

/// The header as JSON; refuses duplicate keys and anything deeper than the format is, which bounds what a hostile header can make us build.
nlohmann::json parse_header(std::string const& path, std::string_view text) {
  constexpr std::string_view broken = "InvalidHeaderDeserialization";
  if (std::size_t const good = utf8_prefix(text); good != text.size()) refuse(path, "InvalidHeader", "byte {} of {} is not UTF-8", good, text.size());
  if (!text.starts_with('{')) refuse(path, broken, "the header starts with {}, not {{", shown(text.substr(0, 1)));
  // The parser takes a NUL for the end of its input and would not see what follows.
  if (std::size_t const nul = text.find('\0'); nul != std::string_view::npos) refuse(path, broken, "byte {} of {} is NUL", nul, text.size());
  std::vector<std::set<std::string>> keys;
  auto const watch = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    using Event = nlohmann::json::parse_event_t;
    if ((event == Event::object_start || event == Event::array_start) && depth > 2) refuse(path, broken, "nested {} deep, the format needs 3", depth + 1);
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(value.get<std::string>()).second) refuse(path, broken, "duplicate key {}", shown(value));
    return true;
  };
  try {
    return nlohmann::json::parse(text, watch);
  } catch (nlohmann::json::exception const& error) {  // a number that overflows is no parse_error
    refuse(path, broken, "{}", brief(error.what(), 200));
  }
}

struct Entry {
  std::string name, dtype;
  Shape shape;
  std::uint64_t begin, end;
};

std::uint64_t whole(std::string const& path, std::string const& name, std::string_view field, nlohmann::json const& value) {
  if (!value.is_number_unsigned()) refuse(path, "InvalidHeaderDeserialization", "{} of {} holds {}, not a whole number", field, shown(name), shown(value));
  return value.get<std::uint64_t>();
}

Entry entry_of(std::string const& path, std::string const& name, nlohmann::json const& value) {
  constexpr std::string_view broken = "InvalidHeaderDeserialization";
  if (!value.is_object()) refuse(path, broken, "{} is {}, not an object", shown(name), shown(value));
  for (auto const& [field, unused] : value.items())
    if (field != "dtype" && field != "shape" && field != "data_offsets") refuse(path, broken, "{} has an unknown field {}", shown(name), shown(field));
  for (char const* field : {"dtype", "shape", "data_offsets"})
    if (!value.contains(field)) refuse(path, broken, "{} has no {}", shown(name), field);
  auto const &dtype = value["dtype"], &shape = value["shape"], &offsets = value["data_offsets"];
  if (!dtype.is_string()) refuse(path, broken, "dtype of {} is {}, not a string", shown(name), shown(dtype));
  if (!shape.is_array()) refuse(path, broken, "shape of {} is {}, not an array", shown(name), shown(shape));
  if (!offsets.is_array() || offsets.size() != 2) refuse(path, broken, "data_offsets of {} are {}, not two numbers", shown(name), shown(offsets));

  Entry entry{name, dtype.get<std::string>(), {}, whole(path, name, "data_offsets", offsets[0]), whole(path, name, "data_offsets", offsets[1])};
  for (auto const& item : shape) {
    std::uint64_t const size = whole(path, name, "shape", item);
    if (!std::in_range<std::int64_t>(size)) refuse(path, "ValidationOverflow", "size {} of {} is beyond 63 bits", size, shown(name));
    entry.shape.push_back(static_cast<std::int64_t>(size));
  }
  return entry;
}

std::optional<DType> dtype_in_file(std::string_view name) {
  for (int i = 0; i < dtype_count; ++i)
    if (info(static_cast<DType>(i)).file_name == name) return static_cast<DType>(i);
  return std::nullopt;
}

/// Bytes that dtype and shape ask for, as the format counts them.
std::uint64_t bytes_asked(std::string const& path, Entry const& entry, std::optional<DType> dtype) {
  std::uint64_t bits = 0;
  if (dtype) bits = 8 * static_cast<std::uint64_t>(bytes_of(*dtype));
  for (auto const& [name, size] : foreign_dtypes)
    if (name == entry.dtype) bits = size;
  if (bits == 0) refuse(path, "InvalidHeaderDeserialization", "unknown dtype {} of {}", shown(entry.dtype), shown(entry.name));
  std::uint64_t elements = 1;
  for (std::int64_t const size : entry.shape)
    if (__builtin_mul_overflow(elements, static_cast<std::uint64_t>(size), &elements))
      refuse(path, "ValidationOverflow", "elements of {} {} overflow 64 bits", shown(entry.name), shown(entry.shape));
  std::uint64_t all = 0;
  if (__builtin_mul_overflow(elements, bits, &all))
    refuse(path, "ValidationOverflow", "{} bits times {} elements of {} overflow 64 bits", bits, elements, shown(entry.name));
  if (all % 8 != 0) refuse(path, "MisalignedSlice", "{} elements of {} in {} are {} bits, not whole bytes", elements, entry.dtype, shown(entry.name), all);
  return all / 8;
}

/// The header's bytes, once its length is known to lie in the file.
std::string_view header_of(std::string const& path, std::string_view file) {
  if (file.size() < length_bytes) refuse(path, "HeaderTooSmall", "{} bytes, the length alone takes {}", file.size(), length_bytes);
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), length_bytes);
  if (length > largest_header) refuse(path, "HeaderTooLarge", "header of {} bytes, at most {} are allowed", length, largest_header);
  if (length > file.size() - length_bytes) refuse(path, "InvalidHeaderLength", "header of {} bytes in a file of {}", length, file.size());
  return file.substr(length_bytes, length);
}

std::map<std::string, std::string> metadata_of(std::string const& path, nlohmann::json const& value) {
  std::map<std::string, std::string> metadata;
  if (!value.is_object()) refuse(path, "InvalidHeaderDeserialization", "{} is {}, not an object", metadata_key, shown(value));
  for (auto const& [key, text] : value.items()) {
    if (!text.is_string()) refuse(path, "InvalidHeaderDeserialization", "{} of {} is {}, not a string", metadata_key, shown(key), shown(text));
    metadata.emplace(key, text.get<std::string>());
  }
  return metadata;
}

std::map<std::string, FileTensor> tensors_of(std::string const& path, std::vector<Entry> entries, std::string_view data) {
  std::ranges::sort(entries, {}, [](Entry const& entry) { return std::pair(entry.begin, entry.end); });
  std::map<std::string, FileTensor> tensors;
  std::uint64_t position = 0;
  for (Entry& entry : entries) {
    if (entry.begin != position || entry.end < entry.begin)
      refuse(path, "InvalidOffset", "{} lies at [{}, {}], expected to begin at {}", shown(entry.name), entry.begin, entry.end, position);
    position = entry.end;
    auto const dtype = dtype_in_file(entry.dtype);
    std::uint64_t const bytes = bytes_asked(path, entry, dtype);
    if (entry.end - entry.begin != bytes)
      refuse(path, "TensorInvalidInfo", "{} {} {} needs {} bytes, its offsets give {}", shown(entry.name), entry.dtype, shown(entry.shape), bytes,
             entry.end - entry.begin);
    if (!dtype) refuse(path, "UnsupportedDtype", "dtype {} of {} is in the format but not in Tenon", shown(entry.dtype), shown(entry.name));
    if (entry.end > data.size()) refuse(path, "MetadataIncompleteBuffer", "{} ends at byte {} of {} bytes of data", shown(entry.name), entry.end, data.size());
    tensors.emplace(std::move(entry.name), FileTensor{*dtype, std::move(entry.shape), std::as_bytes(std::span(data.substr(entry.begin, bytes)))});
  }
  if (position != data.size()) refuse(path, "MetadataIncompleteBuffer", "tensors end at byte {} of {} bytes of data", position, data.size());
  return tensors;
}

}  // namespace

SafetensorsFile::SafetensorsFile(std::filesystem::path const& path) : path_(path.string()) {
  Descriptor const file{::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};  // nonblocking: a FIFO must not hang before it is refused
  if (file.number < 0) refuse_system(path_, "open", errno);
  struct stat status{};
  if (::fstat(file.number, &status) != 0) refuse_system(path_, "stat", errno);
  if (!S_ISREG(status.st_mode)) refuse(path_, "IoError", "not a regular file");

  Mapping mapping{nullptr, static_cast<std::size_t>(status.st_size)};
  if (mapping.bytes > 0) {
    void* const start = ::mmap(nullptr, mapping.bytes, PROT_READ, MAP_PRIVATE, file.number, 0);
    if (start == MAP_FAILED) refuse_system(path_, "map", errno);
    mapping.start = start;
  }
  std::string_view const whole_file(static_cast<char const*>(mapping.start), mapping.bytes);
  std::string_view const header = header_of(path_, whole_file);
  auto const json = parse_header(path_, header);
  std::vector<Entry> entries;
  for (auto const& [name, value] : json.items()) {
    if (name == metadata_key)
      metadata_ = metadata_of(path_, value);
    else
      entries.push_back(entry_of(path_, name, value));
  }
  tensors_ = tensors_of(path_, std::move(entries), whole_file.substr(length_bytes + header.size()));
  map_ = std::exchange(mapping.start, nullptr);
  bytes_ = mapping.bytes;
}

SafetensorsFile::~SafetensorsFile() {
  if (map_) ::munmap(map_, bytes_);
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept
    : path_(std::move(other.path_)),
      map_(std::exchange(other.map_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      tensors_(std::exchange(other.tensors_, {})),
      metadata_(std::exchange(other.metadata_, {})) {}

SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(map_, other.map_);
  std::swap(bytes_, other.bytes_);
  std::swap(tensors_, other.tensors_);
  std::swap(metadata_, other.metadata_);
  return *this;
}

FileTensor const& SafetensorsFile::at(std::string const& name) const {
  auto const found = tensors_.find(name);
  if (found == tensors_.end()) refuse(path_, "TensorNotFound", "no tensor {} among {}", shown(name), tensors_.size());
  return found->second;
}

namespace {

/// A file under a name of its own that either becomes `path` whole, durably, or is removed.
class PendingFile {
 public:
  explicit PendingFile(std::string path) : path_(std::move(path)) {
    static constinit std::atomic<int> made{0};
    temporary_ = std::format("{}.{}-{}.tmp", path_, ::getpid(), made++);
    file_.number = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file_.number < 0) refuse_system(path_, "create", errno);
  }
  ~PendingFile() {
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
  }
  void append(std::span<std::byte const> bytes) {
    while (!bytes.empty()) {
      auto const written = ::write(file_.number, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) refuse_system(path_, "write", errno);
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }
  void commit() {
    if (::fsync(file_.number) != 0) refuse_system(path_, "sync", errno);
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) refuse_system(path_, "rename to", errno);
    temporary_.clear();
    std::string const folder = std::filesystem::path(path_).parent_path().string();
    Descriptor const parent{::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    if (parent.number < 0 || ::fsync(parent.number) != 0) refuse_system(path_, "sync the folder of", errno);
  }

 private:
  std::string path_, temporary_;
  Descriptor file_{-1};
};

}  // namespace

void save_safetensors(std::filesystem::path const& path, std::map<std::string, FileTensor> const& tensors, std::map<std::string, std::string> const& metadata) {
  std::string const file = path.string();
  auto const check_text = [&](std::string const& text, std::string_view what) {
    if (std::size_t const good = utf8_prefix(text); good != text.size())
      refuse(file, "InvalidHeader", "byte {} of {} {} is not UTF-8", good, what, shown(text));
  };
  for (auto const& [key, value] : metadata) {
    check_text(key, "metadata key");
    check_text(value, "metadata value");
  }
  for (auto const& [name, tensor] : tensors) {
    check_text(name, "tensor name");
    if (name == metadata_key) refuse(file, "InvalidHeader", "a tensor cannot be called {}", metadata_key);
    std::uint64_t const bytes = bytes_asked(file, {name, std::string(info(tensor.dtype).file_name), tensor.shape, 0, 0}, tensor.dtype);
    if (tensor.data.size() != bytes)
      refuse(file, "TensorInvalidInfo", "{} {} {} needs {} bytes, its data has {}", shown(name), info(tensor.dtype).file_name, to_string(tensor.shape), bytes,
             tensor.data.size());
  }

  using Named = std::pair<std::string const, FileTensor>;
  std::vector<Named const*> order;
  for (auto const& named : tensors) order.push_back(&named);
  std::ranges::stable_sort(order, std::greater{}, [](Named const* named) { return bytes_of(named->second.dtype); });

  std::string header = "{";
  if (!metadata.empty()) header += std::format("\"{}\":{}", metadata_key, nlohmann::json(metadata).dump());
  std::uint64_t position = 0;
  for (auto const* named : order) {
    auto const& [name, tensor] = *named;
    std::uint64_t const end = position + tensor.data.size();
    header += std::format(R"({}{}:{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", header.size() > 1 ? "," : "", nlohmann::json(name).dump(),
                          info(tensor.dtype).file_name, nlohmann::json(tensor.shape).dump(), position, end);
    position = end;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::uint64_t const length = header.size();
  if (length > largest_header) refuse(file, "HeaderTooLarge", "header of {} bytes, at most {} are allowed", length, largest_header);

  PendingFile pending(file);
  pending.append(std::as_bytes(std::span(&length, 1)));
  pending.append(std::as_bytes(std::span(header)));
  for (auto const* named : order) pending.append(named->second.data);
  pending.commit();
}

}  // namespace tenon::base
