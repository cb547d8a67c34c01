/// Entries as bytes, and the folder that they lie in.
module tenon.fusion:entry;
import std;
import tenon.base;
import tenon.ir;
import tenon.device;
import :key;
import :program;
import :cache;

namespace tenon::fusion {

inline constexpr std::size_t most_entry_bytes = std::size_t{64} << 20;
using Secret = std::array<std::byte, 32>;

/// The file of an entry: header, metadata, object, SHA-256 of all that, HMAC of that under `secret`.
std::vector<std::byte> encode(CacheEntry const& entry, Secret const& secret);
/// What a file holds, and the first thing that is wrong with it. Without a secret the HMAC is not checked.
struct Decoded {
  CacheEntry entry{};
  std::string fault{};
};
Decoded decode(std::span<std::byte const> file, Secret const* secret);
/// A program's object from its entry, else compiled and stored.
device::Library load_or_compile(device::Toolchain const& compiler, Program const& program);
/// What `tune` chose for a graph before, on this machine with as many threads, libraries and these sizes; otherwise it is asked, and that is kept.
Choices tuned(ir::Graph const& graph, LowerOptions const& options);
/// The line of JSON that TENON_CACHE_LOG gets.
std::string json_of(Receipt const& receipt);

/// What reading a file of the folder gave: bytes, or what is wrong; neither if there is no such file.
struct Contents {
  std::vector<std::byte> bytes{};
  std::string fault{};
  bool there = false;
};
/// Seconds since a file was written, since it was written or used, and its size.
struct Age {
  double written = 0, idle = 0;
  std::int64_t bytes = 0;
};
/// A folder of this user's that nobody else can write to, held open, so that it is the one that was checked.
class Folder {
 public:
  /// `make`: it is made if there is none. `fault()` says why it can't be used; `there()` is false if there is none.
  Folder(std::string const& path, bool make);
  ~Folder();
  Folder(Folder const&) = delete;
  Folder& operator=(Folder const&) = delete;
  std::string const& fault() const { return fault_; }
  bool there() const { return descriptor_ >= 0; }
  /// A regular file of this user's with one name, no link, no larger than `most`.
  Contents read(std::string const& name, std::size_t most) const;
  /// Written to a file of another name, flushed, then renamed; what went wrong, or nothing.
  std::string write(std::string const& name, std::span<std::byte const> bytes) const;
  /// The user's secret; made if there is none and `make`. Nothing, and why, if it can't be had.
  std::optional<Secret> secret(bool make, std::string& why) const;
  /// Names in it, sorted; removes one; how old one is, all 0 if it is gone.
  std::vector<std::string> names() const;
  bool remove(std::string const& name) const;
  Age age(std::string const& name) const;
  /// Notes that an entry is used: its time of access becomes now, where it is more than an hour old.
  void use(std::string const& name) const;
  /// Whether no other process holds the lock of the folder, which this one then has as long as it is open.
  bool lock() const;

 private:
  std::string path_, fault_{};
  int descriptor_ = -1;
};
/// Whether a name is that of an entry, or of a file that a writer has not finished.
bool is_entry_name(std::string_view name), is_temporary_name(std::string_view name);

}  // namespace tenon::fusion
