/// A program that runs: compiled kernels, memory between calls, one launch after another.
module tenon.fusion:execute;
import std;
import tenon.base;
import tenon.ir;
import tenon.device;
import :program;
import :run;

namespace tenon::fusion {

/// A pointer in a prepared launch that every call sets anew: to memory of an input or of an output.
struct Patch {
  enum class Kind : std::uint8_t { buffer, in, out };
  Kind kind = Kind::buffer;
  int launch = 0, slot = 0, root = 0;
  std::int64_t offset = 0;
};

/// What one call at a time uses and leaves to the next: launches with the sizes of its bindings, an arena, where each root lies.
struct Frame {
  std::shared_ptr<Sizes const> of;
  ir::Bindings bindings;  ///< of the last call
  Sizes sizes;
  base::Ref<base::Buffer> arena;
  std::vector<std::byte*> bases;
  std::vector<Patch> patches;  ///< of reduce_overhead; all other pointers stand
};

class Executor {
 public:
  /// Compiles the kernels, unless they are to be interpreted or there is no compiler, and computes the constants.
  explicit Executor(Program program);
  ~Executor();
  Executor(Executor const&) = delete;
  Executor& operator=(Executor const&) = delete;

  ir::Evaluated run(std::span<ir::Strided const> inputs, ir::Bindings const& bindings);

  /// For timing single launches: a frame of these bindings, memory of inputs and outputs tied to it, and launch `l` with what follows on its rows;
  /// returns how many launches that were.
  std::unique_ptr<Frame> frame(ir::Bindings const& bindings);
  void attach(Frame& frame, std::span<ir::Strided const> inputs, std::vector<base::Ref<base::Buffer>>& outputs) const;
  std::size_t launch(Frame& frame, std::size_t l) const;
  inline Program const& program() const { return program_; }

 private:
  void load();
  void find_varying();
  bool fits(Frame const& frame, ir::Bindings const& bindings) const;
  bool same_sizes(Sizes const& sizes, ir::Bindings const& bindings) const;
  std::unique_ptr<Frame> make_frame(ir::Bindings const& bindings, std::shared_ptr<Sizes const> sizes);
  void tie(Frame& frame) const;
  void give_back(std::unique_ptr<Frame> frame);
  void fill(Frame& frame, std::size_t l) const;
  std::size_t go(Frame& frame, std::size_t l) const;
  std::size_t logged_launch(Frame& frame, std::size_t l) const;
  void interpreted(Launch const& launch, Prepared const& prepared) const;

  Program program_;
  device::Library library_{};
  std::vector<Entry> entries_{};
  std::vector<base::Ref<base::Buffer>> constants_{};
  std::vector<std::pair<int, int>> in_place_{};  // root, input
  std::vector<ir::Dim> symbolic_sizes_{};        // what layouts depend on
  std::vector<int> varying_{};                   // launches with numbers that differ between calls
  std::atomic<Frame*> hot_{nullptr};             // of the last call
  std::mutex mutex_{};
  std::vector<std::shared_ptr<Sizes const>> known_{};
  std::vector<std::unique_ptr<Frame>> idle_{};
};

}  // namespace tenon::fusion
