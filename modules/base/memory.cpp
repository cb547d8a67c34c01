module;
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
module tenon.base;
import std;

namespace tenon::base {
namespace {

constexpr std::size_t alignment = 64;
constinit std::atomic<std::int64_t> live{0}, peak{0}, allocations{0};

#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool keeps_blocks = false;  // a sanitizer must see every release
#else
constexpr bool keeps_blocks = true;
#endif

// Released blocks of more than `small` bytes, by size: a result of the same size as the last call's then needs no new pages, which cost more to get from
// the system than a kernel takes to fill them. Sizes are rounded up to eight steps a power of two.
class Blocks {
 public:
  static std::size_t rounded(std::size_t bytes) {
    auto const step = std::bit_floor(bytes) / 8;
    return (bytes + step - 1) / step * step;
  }
  std::byte* take(std::size_t bytes) {
    if constexpr (keeps_blocks) {
      std::scoped_lock const lock(mutex_);
      auto& free = lists_[list_of(bytes)];
      if (!free.empty()) {
        held_ -= bytes;
        auto* const block = free.back();
        free.pop_back();
        return block;
      }
    }
    if (auto* const block = fresh(bytes)) return block;
    clear();
    return fresh(bytes);
  }
  void give(std::byte* block, std::size_t bytes) {
    if constexpr (keeps_blocks) {
      std::scoped_lock const lock(mutex_);
      if (held_ + bytes <= limit_) {
        lists_[list_of(bytes)].push_back(block);
        held_ += bytes;
        return;
      }
    }
    std::free(block);
  }

 private:
  static std::byte* fresh(std::size_t bytes) {
    bool const huge = bytes >= (std::size_t{4} << 20);  // worth pages of 2 MiB, where the system has them
    void* block = nullptr;
    if (::posix_memalign(&block, huge ? std::size_t{2} << 20 : alignment, bytes) != 0) return nullptr;
    if (huge) ::madvise(block, bytes, MADV_HUGEPAGE);
    return static_cast<std::byte*>(block);
  }
  static std::size_t list_of(std::size_t bytes) {
    auto const power = static_cast<std::size_t>(std::bit_width(bytes)) - 1;
    return power * 8 + ((bytes >> (power - 3)) & 7);
  }
  void clear() {
    std::scoped_lock const lock(mutex_);
    for (auto& free : lists_) {
      for (auto* const block : free) std::free(block);
      free.clear();
    }
    held_ = 0;
  }
  std::mutex mutex_;
  std::array<std::vector<std::byte*>, 512> lists_;
  std::size_t held_ = 0;
  std::size_t limit_ = static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) / 8 * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
};
Blocks& blocks() {
  static Blocks& made = *new Blocks;  // outlives every buffer
  return made;
}

// Small buffers come from the plain allocator, which is several times as fast, and are aligned by hand: the byte before says by how much.
constexpr std::int64_t small = 1024;
std::byte* allocated(std::int64_t bytes) {
  auto const size = static_cast<std::size_t>(bytes);
  if (bytes > small) return blocks().take(Blocks::rounded(size));
  auto* const block = static_cast<std::byte*>(::operator new(size + alignment, std::nothrow));
  if (!block) return nullptr;
  auto const skip = alignment - reinterpret_cast<std::uintptr_t>(block) % alignment;
  block[skip - 1] = static_cast<std::byte>(skip);
  return block + skip;
}
}  // namespace

MemoryCounters memory_counters() { return {.live = live.load(), .peak = peak.load(), .allocations = allocations.load()}; }

void reset_peak() { peak = live.load(); }

Buffer::Buffer(std::int64_t bytes) : data_(nullptr), bytes_(bytes) {
  if (bytes < 0) fail("Buffer: a size of {} bytes is negative", bytes);
  data_ = allocated(bytes);
  if (!data_) fail("Buffer: no memory for {} bytes ({} are held already)", bytes, live.load());
  std::int64_t const now = live.fetch_add(bytes) + bytes;
  for (std::int64_t seen = peak.load(); seen < now && !peak.compare_exchange_weak(seen, now);) continue;
  ++allocations;
}

Buffer::~Buffer() {
  if (bytes_ <= small)
    ::operator delete(data_ - static_cast<std::uint8_t>(data_[-1]));
  else
    blocks().give(data_, Blocks::rounded(static_cast<std::size_t>(bytes_)));
  live -= bytes_;
}

}  // namespace tenon::base
