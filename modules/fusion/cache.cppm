export module tenon.fusion:cache;
import std;
import tenon.base;
import :key;

export namespace tenon::fusion {

/// What one compilation made, as it lies on disk.
struct CacheEntry {
  Key key{};
  std::string graph{};                         ///< its name, for those who read a list
  std::vector<std::byte> object{};             ///< a shared object; empty where only facts are kept
  std::map<std::string, std::string> facts{};  ///< what the caller keeps with it, as UTF-8
  double seconds = 0;                          ///< what the compilation took
  std::int64_t source_bytes = 0;
  std::int64_t when = 0;  ///< seconds since 1970, filled in by store_entry
};

/// The folder of entries: TENON_CACHE, else tenon in XDG_CACHE_HOME, else ~/.cache/tenon; empty if TENON_CACHE=none or nothing names a folder.
std::string cache_folder();
/// The entry of this key, for a graph of this name (which only the receipt shows), read once into memory and verified there; nothing on disk changes but
/// the time of its last use. Nothing if there is none, or if one was refused: the receipt says why. Never throws for what lies on disk.
std::optional<CacheEntry> find_entry(Key const& key, std::string_view graph = {});
/// Writes an entry, in place of an older one of its key, and removes those used longest ago where all are more than TENON_CACHE_LIMIT; false, with a receipt,
/// where that can't be done. Never throws for what lies on disk.
bool store_entry(CacheEntry entry);

/// What the cache did once, and why.
struct Receipt {
  enum class Outcome : std::uint8_t {
    hit,      ///< found and verified
    miss,     ///< there is none
    refused,  ///< there is one that must not be used
    stored,   ///< written
    unstored  ///< could not be written
  };
  Outcome outcome = Outcome::miss;
  std::int64_t number = 0;  ///< counts from 1 in this process
  Key key{};
  std::string graph{};
  std::string reason{};    ///< of a refusal or of what was not written; of a miss where there is no cache
  std::int64_t bytes = 0;  ///< of the entry
  double seconds = 0;
};
std::string_view text_of(Receipt::Outcome outcome);
/// The last 256 of this process, the oldest first. Each is also a line of the log topic "cache", and one of JSON in the file that TENON_CACHE_LOG names.
std::vector<Receipt> receipts();
/// One line: outcome, key, graph, bytes, milliseconds, reason.
std::string to_string(Receipt const& receipt);

/// An entry as tools see it: without its object, and with what is wrong with it.
struct Listed {
  std::string file;  ///< its name in the folder
  std::int64_t bytes = 0;
  CacheEntry entry{};   ///< what could be read of it
  std::string fault{};  ///< empty: it would be a hit for its key
};
/// All entries of a folder by name, each verified; Error if the folder is not to be trusted.
std::vector<Listed> list_entries(std::string const& folder);
/// Reads the metadata of an entry at any path, also of another user's, whose MAC can't be checked; Error if it is no entry.
Listed read_entry(std::string const& path);
/// Which entries go.
struct PruneOptions {
  std::optional<double> older_seconds{};     ///< those written longer ago
  std::optional<std::int64_t> most_bytes{};  ///< those used longest ago, until the rest is no larger
  bool all = false;
};
/// Removes entries, and what interrupted writers left an hour ago; names of what went. Error if the folder is not to be trusted.
std::vector<std::string> prune_entries(std::string const& folder, PruneOptions const& options);

}  // namespace tenon::fusion
