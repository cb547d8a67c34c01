export module tenon.base:safetensors;
import std;
import :number;
import :shape;

export namespace tenon::base {

/// One tensor of a safetensors file: row-major elements in memory that the file object keeps, possibly unaligned (a header may have any length).
struct FileTensor {
  DType dtype = DType::f32;
  Shape shape;
  std::span<std::byte const> data;
};

/// A memory-mapped, read-only safetensors file, checked whole when it is opened.
///
/// Error "safetensors: FILE: NAME: ..." (NAME is the format's, or IoError, UnsupportedDtype; both values follow) for a missing or unreadable
/// file, a header that is too small, too large, not UTF-8 JSON or holds duplicate or unknown keys, offsets with holes, overlap or a tail, sizes
/// that overflow or disagree with dtype and shape, and an unknown dtype; nothing is allocated in proportion to an unchecked size.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(std::filesystem::path const& path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&& other) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&& other) noexcept;

  /// Every tensor by name, sorted.
  std::map<std::string, FileTensor> const& tensors() const { return tensors_; }
  /// The tensor of that name; Error naming the file and the name if there is none.
  FileTensor const& at(std::string const& name) const;
  /// The `__metadata__` strings.
  std::map<std::string, std::string> const& metadata() const { return metadata_; }

 private:
  std::string path_;
  void* map_ = nullptr;
  std::size_t bytes_ = 0;
  std::map<std::string, FileTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

/// Writes a safetensors file: by dtype alignment descending then name, header padded to 8 bytes, through a temporary file beside it that is
/// synced and renamed, so that `path` holds the old or the new file whole; Error for data that disagrees with dtype and shape.
void save_safetensors(std::filesystem::path const& path, std::map<std::string, FileTensor> const& tensors,
                      std::map<std::string, std::string> const& metadata = {});

}  // namespace tenon::base
