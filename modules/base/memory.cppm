export module tenon.base:memory;
import std;
import :diagnostics;

extern "C" char __libc_single_threaded;  // glibc: not 0 until the process makes its first thread

export namespace tenon::base {

/// The count that Ref keeps inside its pointee; starts at 0, so the first Ref owns it.
struct RefCounted {
  RefCounted() = default;
  RefCounted(RefCounted const&) {}
  RefCounted& operator=(RefCounted const&) { return *this; }
  mutable std::atomic<std::int32_t> references{0};
};

/// A shared pointer of one word to a type derived from RefCounted; copies are atomic increments.
template <class T>
class Ref {
 public:
  Ref() = default;
  Ref(std::nullptr_t) {}
  explicit Ref(T* pointer) : pointer_(pointer) { retain(); }
  Ref(Ref const& other) : pointer_(other.pointer_) { retain(); }
  Ref(Ref&& other) noexcept : pointer_(std::exchange(other.pointer_, nullptr)) {}
  template <class U>
    requires std::convertible_to<U*, T*>
  Ref(Ref<U> const& other) : pointer_(other.get()) {
    retain();
  }
  Ref& operator=(Ref other) noexcept {
    std::swap(pointer_, other.pointer_);
    return *this;
  }
  /// The first Ref to what no other thread knows yet: counted without an atomic operation.
  static Ref first(T* pointer) {
    pointer->references.store(pointer->references.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    Ref made;
    made.pointer_ = pointer;
    return made;
  }
  ~Ref() {
    if (pointer_ && change(-1) == 0) delete pointer_;
  }
  T* get() const { return pointer_; }
  T* operator->() const { return pointer_; }
  T& operator*() const { return *pointer_; }
  explicit operator bool() const { return pointer_ != nullptr; }
  bool operator==(Ref const& other) const { return pointer_ == other.pointer_; }
  /// How many Refs hold the pointee; exact only while no other thread copies one.
  int use_count() const { return pointer_ ? pointer_->references.load(std::memory_order_acquire) : 0; }

 private:
  void retain() {
    if (pointer_) change(1);
  }
  // The count after the change. Where no other thread exists a plain addition does, at a fraction of the price.
  int change(int by) const {
    auto& count = pointer_->references;
    if (__libc_single_threaded) {
      int const now = count.load(std::memory_order_relaxed) + by;
      count.store(now, std::memory_order_relaxed);
      return now;
    }
    return count.fetch_add(by, std::memory_order_acq_rel) + by;
  }
  T* pointer_ = nullptr;
};

/// Makes a T and the first Ref to it.
template <class T, class... Args>
Ref<T> make_ref(Args&&... args) {
  return Ref<T>::first(new T(std::forward<Args>(args)...));
}

/// Bytes held by buffers now, the most ever since `reset_peak`, and how many buffers were ever made; of the whole process.
struct MemoryCounters {
  std::int64_t live = 0, peak = 0, allocations = 0;
};

/// The counters as they stand.
MemoryCounters memory_counters();

/// Makes `peak` start again from the bytes that are live now.
void reset_peak();

/// Owned, 64-byte aligned, uninitialised memory, counted in MemoryCounters; Error naming the bytes if there are not that many.
class Buffer : public RefCounted {
 public:
  explicit Buffer(std::int64_t bytes);
  ~Buffer();
  Buffer(Buffer const&) = delete;
  Buffer& operator=(Buffer const&) = delete;
  inline std::byte* data() const { return data_; }
  inline std::int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_;
  std::int64_t bytes_;
};

}  // namespace tenon::base
