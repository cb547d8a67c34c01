module;
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
module tenon.device;
import std;
import tenon.base;

namespace tenon::device {
namespace {

using base::fail;
using Clock = std::chrono::steady_clock;

constexpr int most_threads = 1024;

// How long a worker looks for the next job before it sleeps: longer than the gaps between the kernels of a graph. A thread that was taken off its
// processor meanwhile, as the gap between two looks at the clock tells, has company and sleeps at once.
constexpr auto spin_time = std::chrono::microseconds(80);
constexpr auto gap_time = std::chrono::microseconds(15);
constexpr int looks_a_clock = 16;

using Word = std::atomic<std::uint32_t>;
static_assert(sizeof(Word) == 4 && Word::is_always_lock_free);

void sleep_while(Word& word, std::uint32_t value) { syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0); }
void wake(Word& word, int count) { syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0); }

// Looks again and again, for `spin_time` at most, whether `done` holds.
template <class F>
bool spin_until(F const& done) {
  Clock::time_point start{}, last{};
  for (int look = 1;; ++look) {
    if (done()) return true;
    __builtin_ia32_pause();
    if (look % looks_a_clock) continue;
    auto const now = Clock::now();
    if (start == Clock::time_point{}) {
      start = last = now;
      continue;
    }
    if (now - start > spin_time || now - last > gap_time) return done();
    last = now;
  }
}

thread_local int own_number = 0;  // of a worker: its `thread`
thread_local int depth = 0;       // calls of `parallel` that this thread is in

// One job at a time. Workers join it by counting themselves in `state` while it is open; the caller closes it when its items have run out and waits
// for those who joined, so that nobody reads a job that is over, and one who wakes too late holds nobody up.
class Pool {
 public:
  bool run(std::int64_t items, void (*f)(void*, std::int64_t, int), void* context) {
    if (busy_.exchange(true, std::memory_order_acquire)) return false;
    f_ = f;
    context_ = context;
    items_ = items;
    failed_.store(false, std::memory_order_relaxed);
    next_.store(0, std::memory_order_relaxed);
    state_.store(open, std::memory_order_release);
    news_.fetch_add(1);  // sequentially consistent with `asleep_`: a worker sees the news or is seen asleep
    if (asleep_.load() > 0) wake(news_, static_cast<int>(std::min<std::int64_t>(items - 1, most_threads)));
    work(0);
    close();
    auto const error = failed_.load(std::memory_order_relaxed) ? std::exchange(error_, nullptr) : nullptr;
    busy_.store(false, std::memory_order_release);
    if (error) std::rethrow_exception(error);
    return true;
  }

  int count() {
    int const known = count_.load(std::memory_order_acquire);
    return known ? known : begin();
  }

  void resize(int wish) {
    std::scoped_lock const lock(changes_);
    while (busy_.exchange(true, std::memory_order_acquire)) std::this_thread::yield();
    stop();
    start(wish);
    busy_.store(false, std::memory_order_release);
  }

  // Joins the workers unless they are at work, which only exit() out of a job leaves behind, or are another process's.
  void end() {
    if (busy_.exchange(true, std::memory_order_acquire)) {
      for (auto& worker : workers_) worker.detach();
      workers_.clear();
      return;
    }
    stop();
    count_.store(1, std::memory_order_release);
  }

 private:
  static constexpr std::uint32_t open = 1u << 31, sleeping = 1u << 30, joined = sleeping - 1;

  int begin() {
    std::scoped_lock const lock(changes_);
    if (int const known = count_.load(std::memory_order_acquire)) return known;
    int wish = 0;
    if (char const* const text = std::getenv("TENON_THREADS"); text && *text) {
      auto const end = text + std::strlen(text);
      if (auto const read = std::from_chars(text, end, wish); read.ec != std::errc{} || read.ptr != end || wish < 1 || wish > most_threads)
        fail("TENON_THREADS: \"{}\" is no whole number from 1 to {}", text, most_threads);
    } else {
      cpu_set_t set;
      CPU_ZERO(&set);
      wish = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : static_cast<int>(std::thread::hardware_concurrency());
      wish = std::clamp(wish, 1, most_threads);
    }
    while (busy_.exchange(true, std::memory_order_acquire)) std::this_thread::yield();
    start(wish);
    busy_.store(false, std::memory_order_release);
    return wish;
  }

  void start(int wish) {
    ending_.store(false, std::memory_order_relaxed);
    owner_ = getpid();
    auto const news = news_.load();
    for (int k = 1; k < wish; ++k) workers_.emplace_back([this, k, news] { serve(k, news); });
    count_.store(wish, std::memory_order_release);
  }
  void stop() {
    ending_.store(true, std::memory_order_release);
    news_.fetch_add(1);
    wake(news_, most_threads);
    for (auto& worker : workers_)
      if (owner_ == getpid())
        worker.join();
      else
        worker.detach();  // a fork has no copy of them
    workers_.clear();
  }

  void serve(int number, std::uint32_t seen) {
    own_number = number;
    for (;;) {
      if (!spin_until([&] { return news_.load(std::memory_order_acquire) != seen; })) {
        asleep_.fetch_add(1);
        while (news_.load() == seen) sleep_while(news_, seen);
        asleep_.fetch_sub(1);
      }
      seen = news_.load(std::memory_order_acquire);
      if (ending_.load(std::memory_order_acquire)) return;
      if (!join()) continue;
      work(number);
      if (auto const before = state_.fetch_sub(1, std::memory_order_acq_rel); before == (sleeping | 1)) wake(state_, 1);
    }
  }

  bool join() {
    auto state = state_.load(std::memory_order_relaxed);
    while (state & open)
      if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acquire, std::memory_order_relaxed)) return true;
    return false;
  }
  void close() {
    state_.fetch_and(~open, std::memory_order_acq_rel);
    if (spin_until([&] { return (state_.load(std::memory_order_acquire) & joined) == 0; })) return;
    auto state = state_.fetch_or(sleeping, std::memory_order_acq_rel) | sleeping;
    for (; state & joined; state = state_.load(std::memory_order_acquire)) sleep_while(state_, state);
    state_.store(0, std::memory_order_relaxed);
  }

  void work(int number) {
    ++depth;
    for (std::int64_t item; (item = next_.fetch_add(1, std::memory_order_relaxed)) < items_;) try {
        f_(context_, item, number);
      } catch (...) {
        if (!failed_.exchange(true, std::memory_order_relaxed)) error_ = std::current_exception();
        next_.store(items_, std::memory_order_relaxed);
      }
    --depth;
  }

  alignas(64) Word news_{0};  // changes with every job
  std::atomic<int> asleep_{0};
  alignas(64) Word state_{0};  // open, the caller sleeps, how many joined
  alignas(64) std::atomic<std::int64_t> next_{0};
  alignas(64) void (*f_)(void*, std::int64_t, int) = nullptr;
  void* context_ = nullptr;
  std::int64_t items_ = 0;
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;
  alignas(64) std::atomic<bool> busy_{false};
  std::atomic<bool> ending_{false};
  std::atomic<int> count_{0};  // 0: not begun
  pid_t owner_ = 0;            // the process that has the workers
  std::vector<std::thread> workers_;
  std::mutex changes_;
};

// Never destroyed, as a detached worker may outlive main; its workers end with the process's other statics.
Pool& pool() {
  static Pool& made = *new Pool;
  static struct End {
    ~End() { made.end(); }
  } const end;
  return made;
}

}  // namespace

int threads() { return pool().count(); }

void set_threads(int count) {
  if (count < 1 || count > most_threads) fail("set_threads: {} is not from 1 to {}", count, most_threads);
  if (depth) fail("set_threads: called within parallel; {} threads are at work", threads());
  if (pool().count() != count) pool().resize(count);
}

void parallel(std::int64_t items, void (*f)(void* context, std::int64_t item, int thread), void* context) {
  if (items > 1 && depth == 0 && pool().count() > 1 && pool().run(items, f, context)) return;
  struct Inside {
    Inside() { ++depth; }
    ~Inside() { --depth; }
  } const inside;
  for (std::int64_t item = 0; item < items; ++item) f(context, item, own_number);
}

}  // namespace tenon::device
