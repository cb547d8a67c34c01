export module tenon.base:shape;
import std;
import :diagnostics;

export namespace tenon::base {

/// Sizes of a tensor, outermost first.
using Shape = std::vector<std::int64_t>;

/// Number of elements; 1 for rank 0; Error when it overflows or a size is negative.
std::int64_t numel(std::span<std::int64_t const> shape);

/// Row-major strides in elements; sizes of 0 count as 1.
Shape contiguous_strides(std::span<std::int64_t const> shape);

/// Whether elements lie in row-major order without gaps (strides of size-1 dims do not matter; an empty tensor is contiguous).
bool is_contiguous(std::span<std::int64_t const> shape, std::span<std::int64_t const> strides);

/// The result of broadcasting; Error naming `what` and both shapes.
Shape broadcast(std::string_view what, std::span<std::int64_t const> a, std::span<std::int64_t const> b);

/// Turns a negative dim into its place from the front; Error naming `what`, the dim and the rank.
int wrap_dim(std::string_view what, std::int64_t dim, int rank);

/// "[2, 3]".
std::string to_string(std::span<std::int64_t const> shape);

/// Where memory lives and dispatch happens: cpu, cuda:N, or sim:N (host memory that dispatches like a GPU).
struct Device {
  enum class Kind : std::uint8_t { cpu, cuda, sim };
  Kind kind = Kind::cpu;
  std::int8_t index = 0;
  bool operator==(Device const&) const = default;
};

/// "cpu", "cuda:0", "sim:1".
std::string to_string(Device device);

/// The device of that name; Error naming an unknown one.
Device device_of(std::string_view name);

/// Throws Bug: a list of `size` has no item `index`.
[[noreturn]] void no_such_item(std::size_t index, std::size_t size);
/// A vector of trivially copyable elements whose first N need no allocation; an index is checked.
template <class T, std::size_t N>
class InlineVector {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  using value_type = T;
  InlineVector() {}
  InlineVector(std::initializer_list<T> items) { assign(std::span<T const>(items.begin(), items.size())); }
  explicit InlineVector(std::span<T const> items) { assign(items); }
  InlineVector(InlineVector const& other) { assign(other); }
  InlineVector(InlineVector&& other) noexcept { take(other); }
  InlineVector& operator=(InlineVector const& other) {
    if (this != &other) assign(other);
    return *this;
  }
  InlineVector& operator=(InlineVector&& other) noexcept {
    if (this != &other) take(other);
    return *this;
  }
  ~InlineVector() { delete[] heap_; }

  T* data() { return heap_ ? heap_ : reinterpret_cast<T*>(inline_); }
  T const* data() const { return heap_ ? heap_ : reinterpret_cast<T const*>(inline_); }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* begin() { return data(); }
  T* end() { return data() + size_; }
  T const* begin() const { return data(); }
  T const* end() const { return data() + size_; }
  T& operator[](std::size_t i) { return data()[checked(i)]; }
  T const& operator[](std::size_t i) const { return data()[checked(i)]; }
  T& back() { return data()[size_ - 1]; }
  T const& back() const { return data()[size_ - 1]; }
  void clear() { size_ = 0; }
  void push_back(T item) {
    if (size_ == capacity_) grow(2 * capacity_);
    data()[size_++] = item;
  }
  void resize(std::size_t size, T fill = T{}) {
    if (size > capacity_) grow(size);
    for (std::size_t i = size_; i < size; ++i) data()[i] = fill;
    size_ = static_cast<std::uint32_t>(size);
  }
  void assign(std::span<T const> items) {
    if (items.size() > capacity_) grow(items.size());
    std::copy(items.begin(), items.end(), data());
    size_ = static_cast<std::uint32_t>(items.size());
  }
  operator std::span<T const>() const { return {data(), size_}; }
  bool operator==(InlineVector const& other) const { return std::equal(begin(), end(), other.begin(), other.end()); }

 private:
  std::size_t checked(std::size_t i) const {
    if (i >= size_) [[unlikely]]
      no_such_item(i, size_);
    return i;
  }
  void grow(std::size_t capacity) {
    T* larger = new T[capacity];
    std::copy(begin(), end(), larger);
    delete[] heap_;
    heap_ = larger;
    capacity_ = static_cast<std::uint32_t>(capacity);
  }
  void take(InlineVector& other) {
    if (!other.heap_) return assign(other);
    delete[] heap_;
    heap_ = std::exchange(other.heap_, nullptr);
    size_ = std::exchange(other.size_, 0);
    capacity_ = std::exchange(other.capacity_, N);
  }
  T* heap_ = nullptr;
  std::uint32_t size_ = 0, capacity_ = N;
  alignas(T) std::byte inline_[sizeof(T) * N];  // left as it is: most lists are short, and made many times a call
};

}  // namespace tenon::base
