#pragma once
// Folders of the compile cache, and entries as an attacker would write them. Include behind `import std; import tenon.base; import tenon.fusion;` and
// <stdlib.h>.

namespace support {

std::string text_of(std::filesystem::path const& path);

/// Sets when a file was last read and written, in seconds since 1970.
void set_times(std::filesystem::path const& file, std::int64_t read, std::int64_t written);

/// A folder that TENON_CACHE names while the object lives.
struct CacheFolder {
  std::filesystem::path path;
  CacheFolder();
  ~CacheFolder();
  CacheFolder(CacheFolder const&) = delete;
  CacheFolder& operator=(CacheFolder const&) = delete;
  /// Names of the entries in it.
  std::vector<std::string> entries() const;
};

/// The last receipt's number; those that came since.
std::int64_t receipts_so_far();
std::vector<tenon::fusion::Receipt> receipts_since(std::int64_t before);

/// The bytes of a folder's first entry, to be changed; the format is written down here once more, as docs/cache.md has it.
struct Forged {
  std::filesystem::path folder, file;
  std::string bytes;
  explicit Forged(CacheFolder const& folder);
  std::size_t object_at() const;
  Forged& replace(std::string_view from, std::string_view to);
  Forged& set_number(std::size_t at, std::size_t size, std::uint64_t number);
  Forged& set_metadata(std::string_view text);
  /// SHA-256 anew; with `sign` the MAC too, by the folder's secret or another one.
  Forged& hash();
  Forged& sign(std::string secret = {});
  void write() const;
};

}  // namespace support
