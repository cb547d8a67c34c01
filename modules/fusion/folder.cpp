// The folder of the compile cache: everything in it is looked at through a descriptor, so that what was checked is what is read.
module;
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
module tenon.fusion;
import std;
import tenon.base;
import :entry;

namespace tenon::fusion {

namespace {
constexpr char secret_name[] = "secret";
constexpr std::string_view temporary = ".unfinished-";

struct Descriptor {
  int number;
  ~Descriptor() {
    if (number >= 0) ::close(number);
  }
};
constexpr double idle_enough = 3600;  // seconds
double seconds_since(struct timespec const& time) {
  auto const then = std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch() - then).count();
}
std::string error_text() { return strerror(errno); }
std::string mode_text(struct stat const& about) { return std::format("{:o}", about.st_mode & 07777); }

// What keeps a file or folder from being this user's alone.
std::string stranger(struct stat const& about) {
  if (about.st_uid != ::geteuid()) return std::format("belongs to user {}, not {}", about.st_uid, ::geteuid());
  if (about.st_mode & 077) return std::format("has mode {}: others than its owner may use it", mode_text(about));
  return {};
}
bool fill(int descriptor, std::span<std::byte> bytes) {
  for (std::size_t done = 0; done < bytes.size();) {
    auto const count = ::read(descriptor, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    done += static_cast<std::size_t>(count);
  }
  return true;
}
bool flush(int descriptor, std::span<std::byte const> bytes) {
  for (std::size_t done = 0; done < bytes.size();) {
    auto const count = ::write(descriptor, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    done += static_cast<std::size_t>(count);
  }
  return ::fsync(descriptor) == 0;
}
bool draw(std::span<std::byte> bytes) { return ::getrandom(bytes.data(), bytes.size(), 0) == static_cast<::ssize_t>(bytes.size()); }

std::string temporary_name() {
  std::array<std::byte, 12> random{};
  if (!draw(random)) return {};
  std::string name(temporary);
  for (auto const byte : random) name += std::format("{:02x}", std::to_integer<int>(byte));
  return name;
}
// A file in the folder under a name that nobody knows, complete on disk; empty, with errno, if that can't be done.
std::string written(int folder, std::span<std::byte const> bytes) {
  auto name = temporary_name();
  if (name.empty()) return {};
  Descriptor const file{::openat(folder, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600)};
  if (file.number < 0) return {};
  if (flush(file.number, bytes)) return name;
  int const error = errno;
  ::unlinkat(folder, name.c_str(), 0);
  errno = error;
  return {};
}
}  // namespace

bool is_entry_name(std::string_view name) {
  return name.size() == 64 && std::ranges::all_of(name, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}
bool is_temporary_name(std::string_view name) { return name.starts_with(temporary); }

Folder::Folder(std::string const& path, bool make) : path_(path) {
  auto const open = [&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC); };
  descriptor_ = open();
  if (descriptor_ < 0 && errno == ENOENT && make) {
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
    if (::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) descriptor_ = open();
  }
  if (descriptor_ < 0) {
    if (errno != ENOENT || make) fault_ = std::format("{}: {}", path, errno == ELOOP || errno == ENOTDIR ? "is a link or no folder" : error_text());
    return;
  }
  struct stat about{};
  if (::fstat(descriptor_, &about) != 0)
    fault_ = std::format("{}: {}", path, error_text());
  else if (auto const why = stranger(about); !why.empty())
    fault_ = std::format("{}: {}", path, why);
}
Folder::~Folder() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Contents Folder::read(std::string const& name, std::size_t most) const {
  Descriptor const file{::openat(descriptor_, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)};
  if (file.number < 0) {
    if (errno == ENOENT) return {};
    return {.fault = errno == ELOOP ? "is a symbolic link" : error_text(), .there = true};
  }
  struct stat about{};
  auto const refuse = [](std::string why) { return Contents{.fault = std::move(why), .there = true}; };
  if (::fstat(file.number, &about) != 0) return refuse(error_text());
  if (!S_ISREG(about.st_mode)) return refuse("is no regular file");
  if (auto why = stranger(about); !why.empty()) return refuse(std::move(why));
  if (about.st_nlink > 1) return refuse(std::format("has {} names: a hard link", about.st_nlink));  // 0: replaced since it was opened
  if (std::cmp_greater(about.st_size, most)) return refuse(std::format("oversized: {} bytes, at most {}", about.st_size, most));
  Contents made{.bytes = std::vector<std::byte>(static_cast<std::size_t>(about.st_size)), .there = true};
  if (!fill(file.number, made.bytes)) return refuse("truncated while it was read");
  return made;
}

std::string Folder::write(std::string const& name, std::span<std::byte const> bytes) const {
  auto const made = written(descriptor_, bytes);
  if (made.empty()) return std::format("{}: {}", path_, error_text());
  if (::renameat(descriptor_, made.c_str(), descriptor_, name.c_str()) == 0) return {};
  auto why = std::format("{}/{}: {}", path_, name, error_text());
  ::unlinkat(descriptor_, made.c_str(), 0);
  return why;
}

std::optional<Secret> Folder::secret(bool make, std::string& why) const {
  auto found = read(secret_name, sizeof(Secret));
  if (!found.there && make) {
    Secret fresh{};
    std::string const made = draw(fresh) ? written(descriptor_, fresh) : "";
    if (made.empty()) return why = std::format("{}: {}", path_, error_text()), std::nullopt;
    // Whoever comes second takes the first one's.
    if (::renameat2(descriptor_, made.c_str(), descriptor_, secret_name, RENAME_NOREPLACE) != 0) {
      if (errno == EINVAL || errno == ENOSYS) (void)::linkat(descriptor_, made.c_str(), descriptor_, secret_name, 0);
      ::unlinkat(descriptor_, made.c_str(), 0);
    }
    found = read(secret_name, sizeof(Secret));
  }
  if (found.bytes.size() != sizeof(Secret)) {
    why = !found.there ? "there is no secret to check it with"
                       : std::format("{}/{}: {}", path_, secret_name, found.fault.empty() ? "has not 32 bytes" : found.fault);
    return std::nullopt;
  }
  Secret secret{};
  std::ranges::copy(found.bytes, secret.begin());
  return secret;
}

std::vector<std::string> Folder::names() const {
  std::vector<std::string> all;
  int const copy = ::openat(descriptor_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const list = copy < 0 ? nullptr : ::fdopendir(copy);
  if (!list) base::fail("{}: {}", path_, error_text());
  while (auto const* item = ::readdir(list)) all.emplace_back(item->d_name);
  ::closedir(list);
  std::ranges::sort(all);
  return all;
}
bool Folder::remove(std::string const& name) const { return ::unlinkat(descriptor_, name.c_str(), 0) == 0; }
Age Folder::age(std::string const& name) const {
  struct stat about{};
  if (::fstatat(descriptor_, name.c_str(), &about, AT_SYMLINK_NOFOLLOW) != 0) return {};
  auto const written = seconds_since(about.st_mtim);
  return {written, std::min(written, seconds_since(about.st_atim)), about.st_size};
}
void Folder::use(std::string const& name) const {
  if (age(name).idle < idle_enough) return;
  struct timespec const times[2] = {{0, UTIME_NOW}, {0, UTIME_OMIT}};
  (void)::utimensat(descriptor_, name.c_str(), times, AT_SYMLINK_NOFOLLOW);  // a disk that is only read has no order of use
}
bool Folder::lock() const { return ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0; }
}  // namespace tenon::fusion
