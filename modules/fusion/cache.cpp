// The compile cache: look-ups that change nothing, entries that are written whole or not at all, a receipt of everything.
module;
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
module tenon.fusion;
import std;
import tenon.base;
import tenon.ir;
import tenon.device;
import :entry;

namespace tenon::fusion {

namespace {
constexpr std::size_t most_receipts = 256;
constexpr double finished_by_now = 3600;  // seconds: nobody writes an entry for so long
constexpr std::int64_t usual_limit = std::int64_t{1} << 30;
using Clock = std::chrono::steady_clock;
double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Book {
  std::mutex mutex{};
  std::deque<Receipt> receipts{};
  std::int64_t count = 0;
};
Book& book() {
  static Book all;
  return all;
}

std::string variable(char const* name) {
  char const* const text = std::getenv(name);
  return text ? text : "";
}
// One write to a file opened for appending: lines of several processes do not mix.
void append_line(std::string const& path, std::string line) {
  line += '\n';
  int const file = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || ::write(file, line.data(), line.size()) != static_cast<::ssize_t>(line.size())) base::log("cache", "{}: can't be written", path);
  if (file >= 0) ::close(file);
}
void record(Receipt receipt) {
  auto& all = book();
  {
    std::scoped_lock const lock(all.mutex);
    if (all.receipts.size() == most_receipts) all.receipts.pop_front();
    receipt.number = ++all.count;
    all.receipts.push_back(receipt);
  }
  if (auto const path = variable("TENON_CACHE_LOG"); !path.empty()) append_line(path, json_of(receipt));
  base::log("cache", "{}", to_string(receipt));
}

// Bytes that entries may have together, by TENON_CACHE_LIMIT: "500M", "2G", "none"; nothing, if it says no such thing.
std::optional<std::int64_t> limit() {
  auto const text = variable("TENON_CACHE_LIMIT");
  constexpr auto most = std::numeric_limits<std::int64_t>::max();
  if (text.empty()) return usual_limit;
  if (text == "none") return most;
  std::int64_t number = 0;
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  constexpr std::pair<std::string_view, int> units[] = {{"", 0}, {"k", 10}, {"M", 20}, {"G", 30}, {"T", 40}};
  auto const found = std::ranges::find(units, std::string_view(end, text.data() + text.size()), &std::pair<std::string_view, int>::first);
  if (error != std::errc{} || number < 0 || found == std::end(units)) return {};
  return number > most >> found->second ? most : number << found->second;
}

struct Used {
  Age age;
  std::string name;
};
// Removes those used longest ago, until the others have no more than `most` bytes; one of the name `stays` is not removed. Names of what went.
std::vector<std::string> trim(Folder const& folder, std::vector<Used> entries, std::int64_t most, std::string_view stays = {}) {
  std::ranges::sort(entries, {}, [&](Used const& entry) { return std::pair(entry.name != stays, entry.age.idle); });
  std::vector<std::string> gone;
  std::int64_t total = 0;
  for (auto const& entry : entries) {
    total += entry.age.bytes;
    if (total > most && entry.name != stays && folder.remove(entry.name)) gone.push_back(entry.name);
  }
  return gone;
}
std::vector<Used> entries_of(Folder const& folder) {
  std::vector<Used> all;
  for (auto const& name : folder.names())
    if (is_entry_name(name)) all.push_back({folder.age(name), name});
  return all;
}

// Makes room behind a new entry. Looking at every file is for one store in 16, by the key's last digit, and for whoever wrote much since it looked; then
// an eighth of the limit is freed, so that the next store need not. One process at a time does so; a reader keeps the file that it has open.
void keep_within(std::int64_t most, Folder const& folder, std::string const& name, std::int64_t bytes) {
  static std::atomic<std::int64_t> unseen = 0;
  bool const wrote_much = unseen.fetch_add(bytes) + bytes > most / 16;
  if (most == std::numeric_limits<std::int64_t>::max() || (!wrote_much && !name.ends_with('0'))) return;
  unseen = 0;
  if (!folder.lock()) return;
  auto entries = entries_of(folder);
  std::int64_t total = 0;
  for (auto const& entry : entries) total += entry.age.bytes;
  if (total <= most) return;
  auto const gone = trim(folder, std::move(entries), most - most / 8, name);
  base::log("cache", "{} bytes are more than TENON_CACHE_LIMIT, {}: {} entries removed", total, most, gone.size());
}

constexpr std::string_view no_folder = "no cache: TENON_CACHE=none, or no home folder";

// The folder's own fault, then the file's, then the entry's, then that it answers another question.
Decoded looked_up(Key const& key, Receipt& receipt) {
  auto const path = cache_folder();
  if (path.empty()) return receipt.reason = no_folder, Decoded{};
  Folder const folder(path, false);
  auto const refused = [&](std::string why) {
    receipt.outcome = Receipt::Outcome::refused, receipt.reason = std::move(why);
    return Decoded{};
  };
  if (!folder.fault().empty()) return refused(folder.fault());
  if (!folder.there()) return {};
  auto const file = folder.read(key.name, most_entry_bytes);
  if (!file.there) return {};
  if (!file.fault.empty()) return refused(file.fault);
  receipt.bytes = static_cast<std::int64_t>(file.bytes.size());
  std::string why;
  auto const secret = folder.secret(false, why);
  if (!secret) return refused(why);
  auto found = decode(file.bytes, &*secret);
  if (!found.fault.empty()) return refused(std::move(found.fault));
  if (found.entry.key.name != key.name) {
    std::string names;
    for (auto const& name : differences(found.entry.key, key)) names += (names.empty() ? "" : ", ") + name;
    return refused("another key's entry: it differs in " + names);
  }
  folder.use(key.name);
  receipt.outcome = Receipt::Outcome::hit;
  return found;
}
}  // namespace

std::string cache_folder() {
  if (auto const given = variable("TENON_CACHE"); !given.empty()) {
    if (given == "none") return {};
    std::error_code error;
    auto const path = std::filesystem::absolute(given, error).lexically_normal();
    if (error) return {};
    return path.has_filename() ? path.string() : path.parent_path().string();
  }
  if (auto const cache = variable("XDG_CACHE_HOME"); cache.starts_with('/')) return cache + "/tenon";
  if (auto const home = variable("HOME"); home.starts_with('/')) return home + "/.cache/tenon";
  return {};
}

std::optional<CacheEntry> find_entry(Key const& key, std::string_view graph) {
  auto const start = Clock::now();
  Receipt receipt{.key = key, .graph = std::string(graph)};
  Decoded found;
  try {
    found = looked_up(key, receipt);
  } catch (std::bad_alloc const&) {
    receipt.outcome = Receipt::Outcome::refused, receipt.reason = "there is no memory for it";
  }
  bool const hit = receipt.outcome == Receipt::Outcome::hit;
  receipt.seconds = since(start);
  record(std::move(receipt));
  if (!hit) return {};
  return std::move(found.entry);
}

bool store_entry(CacheEntry entry) {
  auto const start = Clock::now();
  Receipt receipt{.outcome = Receipt::Outcome::unstored, .key = entry.key, .graph = entry.graph};
  entry.when = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  auto const fault = [&]() -> std::string {
    if (!is_entry_name(entry.key.name)) return "it has no key";
    auto const path = cache_folder();
    if (path.empty()) return std::string(no_folder);
    Folder const folder(path, true);
    if (!folder.fault().empty()) return folder.fault();
    std::string why;
    auto const secret = folder.secret(true, why);
    if (!secret) return why;
    auto const file = encode(entry, *secret);
    receipt.bytes = static_cast<std::int64_t>(file.size());
    if (file.size() > most_entry_bytes) return std::format("oversized: {} bytes, at most {}", file.size(), most_entry_bytes);
    auto const most = limit();
    if (!most) return std::format("TENON_CACHE_LIMIT: \"{}\" is no size such as 500M or 2G, and not none", variable("TENON_CACHE_LIMIT"));
    if (auto wrong = folder.write(entry.key.name, file); !wrong.empty()) return wrong;
    keep_within(*most, folder, entry.key.name, receipt.bytes);
    return {};
  };
  receipt.reason = fault();
  if (receipt.reason.empty()) receipt.outcome = Receipt::Outcome::stored;
  receipt.seconds = since(start);
  bool const done = receipt.outcome == Receipt::Outcome::stored;
  record(std::move(receipt));
  return done;
}

namespace {
// Of the source only what is compiled: comments name places in the user's files.
std::string without_comments(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (std::size_t from = 0; from < source.size();) {
    auto const end = std::min(source.find('\n', from), source.size() - 1) + 1;
    if (auto const line = source.substr(from, end - from); !line.starts_with("//")) text += line;
    from = end;
  }
  return text;
}
}  // namespace

device::Library load_or_compile(device::Toolchain const& compiler, Program const& program) {
  auto const& name = program.grouping.graph.name;
  if (!program.key) return device::Library(device::compile(compiler, program.source).bytes, name);
  auto const source = without_comments(program.source);
  auto const key = with_part(program.key, key_part("source", source, std::format("{} bytes of C, {} kernels", source.size(), program.kernels.size())));
  if (auto const found = find_entry(key, name)) {
    try {
      return device::Library(found->object, name);
    } catch (base::Error const& error) {
      record({.outcome = Receipt::Outcome::refused, .key = key, .graph = name, .reason = error.what()});
    }
  }
  auto made = device::compile(compiler, program.source);
  device::Library library(made.bytes, name);
  store_entry({.key = key,
               .graph = name,
               .object = std::move(made.bytes),
               .facts = program.facts,
               .seconds = made.seconds,
               .source_bytes = static_cast<std::int64_t>(program.source.size())});
  return library;
}

Choices tuned(ir::Graph const& graph, LowerOptions const& options) {
  std::string libraries, sizes;
  for (auto const engine : engines()) libraries += std::format(" {}", name_of(engine));
  for (int number = 0; std::cmp_less(number, graph.symbols.names().size()); ++number) sizes += std::format("{} ", graph.symbols.symbol_at(number).whole);
  auto const machine = std::format("{}, {} threads, products by{}", device::cpu().name, device::threads(), libraries);
  auto const key =
      with_part(with_part(key_of(graph, options), key_part("tuned on", machine)), key_part("tuned for", sizes, sizes.empty() ? "fixed sizes" : sizes));
  if (auto found = find_entry(key, graph.name)) return std::move(found->facts);
  auto const start = Clock::now();
  auto choices = tune(graph, options);
  store_entry({.key = key, .graph = graph.name, .facts = choices, .seconds = since(start)});
  return choices;
}

std::string_view text_of(Receipt::Outcome outcome) {
  constexpr std::string_view words[] = {"hit", "miss", "refused", "stored", "not stored"};
  return words[static_cast<std::size_t>(outcome)];
}
std::vector<Receipt> receipts() {
  auto& all = book();
  std::scoped_lock const lock(all.mutex);
  return {all.receipts.begin(), all.receipts.end()};
}
std::string to_string(Receipt const& receipt) {
  auto text = std::format("{} {}", text_of(receipt.outcome), receipt.key.name.substr(0, 16));
  if (!receipt.graph.empty()) text += " " + receipt.graph;
  if (receipt.bytes) text += std::format(", {} bytes", receipt.bytes);
  text += std::format(", {:.2f} ms", receipt.seconds * 1e3);
  return receipt.reason.empty() ? text : text + ": " + receipt.reason;
}

std::vector<Listed> list_entries(std::string const& path) {
  Folder const folder(path, false);
  if (!folder.fault().empty()) throw base::Error(folder.fault());
  std::vector<Listed> all;
  if (!folder.there()) return all;
  std::string no_secret;
  auto const secret = folder.secret(false, no_secret);
  for (auto const& name : folder.names()) {
    if (!is_entry_name(name)) continue;
    auto const file = folder.read(name, most_entry_bytes);
    Listed listed{.file = name, .bytes = static_cast<std::int64_t>(file.bytes.size()), .fault = file.fault};
    if (file.fault.empty()) {
      auto found = decode(file.bytes, secret ? &*secret : nullptr);
      listed.fault = !found.fault.empty()           ? found.fault
                     : !secret                      ? no_secret
                     : found.entry.key.name != name ? "another key's entry: " + found.entry.key.name
                                                    : "";
      listed.entry = std::move(found.entry);
      listed.entry.object = {};
    }
    all.push_back(std::move(listed));
  }
  return all;
}

Listed read_entry(std::string const& path) {
  std::error_code error;
  auto const bytes = std::filesystem::file_size(path, error);
  if (error) base::fail("{}: {}", path, error.message());
  if (bytes > most_entry_bytes) base::fail("{}: oversized: {} bytes, at most {}", path, bytes, most_entry_bytes);
  std::vector<std::byte> file(bytes);
  std::ifstream stream(path, std::ios::binary);
  if (!stream.read(reinterpret_cast<char*>(file.data()), static_cast<std::streamsize>(bytes))) base::fail("{}: can't be read", path);
  auto found = decode(file, nullptr);
  if (!found.fault.empty()) base::fail("{}: {}", path, found.fault);
  found.entry.object = {};
  return {.file = path, .bytes = static_cast<std::int64_t>(bytes), .entry = std::move(found.entry)};
}

std::vector<std::string> prune_entries(std::string const& path, PruneOptions const& options) {
  Folder const folder(path, false);
  if (!folder.fault().empty()) throw base::Error(folder.fault());
  std::vector<std::string> gone;
  if (!folder.there()) return gone;
  auto const remove = [&](std::string const& name) {
    if (folder.remove(name)) gone.push_back(name);
  };
  for (auto const& name : folder.names()) {
    double const age = folder.age(name).written;
    bool const old = options.all || (options.older_seconds && age > *options.older_seconds);
    if (is_temporary_name(name) ? age > finished_by_now : is_entry_name(name) && old) remove(name);
  }
  if (options.most_bytes) std::ranges::copy(trim(folder, entries_of(folder), *options.most_bytes), std::back_inserter(gone));
  return gone;
}

}  // namespace tenon::fusion
