module;
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
module tenon.device;
import std;
import tenon.base;

namespace tenon::device {
namespace {

using base::fail;

std::atomic<std::int64_t> loaded{0};

struct Descriptor {
  int number;
  ~Descriptor() {
    if (number >= 0) ::close(number);
  }
};

// The loader takes two paths of equal text for one library, and descriptors are given again: the k-th path has its own text, though all of them
// lead to the same folder.
std::string path_of(int descriptor, std::int64_t k) {
  std::string path = "/proc/self/fd/";
  for (; k; k >>= 1) path += k & 1 ? "./" : "/";
  return path + std::to_string(descriptor);
}

}  // namespace

Library::Library(std::span<std::byte const> object, std::string_view name) {
  std::string const title(name);
  Descriptor const file{memfd_create(title.substr(0, 200).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  if (file.number < 0) fail("{}: no memory file: {}", name, strerror(errno));
  for (std::size_t done = 0; done < object.size();) {
    auto const count = ::write(file.number, object.data() + done, object.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) fail("{}: memory file of {} bytes: {}", name, object.size(), strerror(errno));
    done += static_cast<std::size_t>(count);
  }
  if (fcntl(file.number, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) != 0) fail("{}: can't be sealed: {}", name, strerror(errno));
  void* const handle = dlopen(path_of(file.number, loaded.fetch_add(1, std::memory_order_relaxed) + 1).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    char const* const said = dlerror();
    fail("{}: can't be loaded: {}", name, said ? said : "the loader says nothing");
  }
  handle_ = std::shared_ptr<void>(handle, [](void* open) { dlclose(open); });
}

void* Library::symbol(std::string const& name) const { return handle_ ? dlsym(handle_.get(), name.c_str()) : nullptr; }

std::int64_t libraries_loaded() { return loaded.load(std::memory_order_relaxed); }

}  // namespace tenon::device
