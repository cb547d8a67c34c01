module tenon.base;
import std;

namespace tenon::base {
namespace {

constexpr std::align_val_t alignment{64};
constinit std::atomic<std::int64_t> live{0}, peak{0}, allocations{0};

// Small buffers come from the plain allocator, which is several times as fast, and are aligned by hand: the byte before says by how much.
constexpr std::int64_t small = 1024;
std::byte* allocated(std::int64_t bytes) {
  auto const size = static_cast<std::size_t>(bytes);
  if (bytes > small) return static_cast<std::byte*>(::operator new(size, alignment, std::nothrow));
  constexpr auto step = static_cast<std::size_t>(alignment);
  auto* const block = static_cast<std::byte*>(::operator new(size + step, std::nothrow));
  if (!block) return nullptr;
  auto const skip = step - reinterpret_cast<std::uintptr_t>(block) % step;
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
    ::operator delete(data_, alignment);
  live -= bytes_;
}

}  // namespace tenon::base
