module tenon.base;
import std;

namespace tenon::base {
namespace {

constexpr std::align_val_t alignment{64};
constinit std::atomic<std::int64_t> live{0}, peak{0}, allocations{0};

}  // namespace

MemoryCounters memory_counters() { return {.live = live.load(), .peak = peak.load(), .allocations = allocations.load()}; }

void reset_peak() { peak = live.load(); }

Buffer::Buffer(std::int64_t bytes) : data_(nullptr), bytes_(bytes) {
  if (bytes < 0) fail("Buffer: a size of {} bytes is negative", bytes);
  data_ = static_cast<std::byte*>(::operator new(static_cast<std::size_t>(bytes), alignment, std::nothrow));
  if (!data_) fail("Buffer: no memory for {} bytes ({} are held already)", bytes, live.load());
  std::int64_t const now = live.fetch_add(bytes) + bytes;
  for (std::int64_t seen = peak.load(); seen < now && !peak.compare_exchange_weak(seen, now);) continue;
  ++allocations;
}

Buffer::~Buffer() {
  ::operator delete(data_, alignment);
  live -= bytes_;
}

}  // namespace tenon::base
