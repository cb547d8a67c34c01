/// Running a program: sizes of one call, memory, launches.
module tenon.fusion:run;
import std;
import tenon.base;
import tenon.ir;
import tenon.device;
import :loop;
import :contraction;
import :plan;
import :program;

namespace tenon::fusion {

using Whole = long long;
using KernelMain = void (*)(char* const* buffers, Whole const* whole, double const* real, Whole low, Whole high, Whole from, Whole to, char* scratch,
                            char* part);
using KernelFinish = void (*)(char* const* buffers, Whole const* whole, double const* real, Whole item, char* part, Whole chunks, Whole stride);
using KernelApply = void (*)(char* const* buffers, Whole const* whole, double const* real, Whole item, Whole from, Whole to, char* part);

/// A kernel's compiled functions; null where it is interpreted.
struct Entry {
  KernelMain main = nullptr;
  KernelFinish finish = nullptr;
  KernelApply apply = nullptr;  ///< the second pass of `split`, where there is one
};

/// A launch with the sizes of one call.
struct Prepared {
  std::vector<Whole> whole;
  std::vector<double> real;
  std::vector<char*> buffers;  ///< of a kernel, filled in every run; the address of `bad` behind them where it gathers
  int bad = 0;                 ///< an index was out of range
  bool interpreted = false;    ///< it gathers from a dim of size 0, where compiled code has no place to read
  Whole items = 1, columns = 1, batches = 1, rows = 1, first_columns = 1;
  Whole grain = 1 << 13;                      ///< elements that are worth a thread
  Whole chunks = 1, region = 0, scratch = 0;  ///< partial results a batch index or row, bytes of one, bytes of row buffers
  std::vector<ir::Strided> in, out;           ///< of a call; data are byte offsets from the root until a run fills them in
  std::vector<int> in_roots;
  std::vector<std::int64_t> in_offsets;
  std::vector<ir::Scalar> scalars;
  ir::Attrs attrs;
  std::optional<Engine> engine{};  ///< of a matmul, where one was chosen
};
/// All sizes that one call's bindings decide.
struct Sizes {
  std::vector<std::int64_t> key;      ///< values of `symbolic_sizes`
  std::vector<std::int64_t> bytes;    ///< per value, of roots
  std::vector<std::int64_t> offsets;  ///< per value, of arena roots
  std::int64_t arena = 0;
  std::vector<Prepared> launches;
  std::vector<ir::Strided> outputs;          ///< where no memory stands yet
  std::vector<std::int64_t> output_offsets;  ///< bytes from the root
};
Sizes sizes_of(Program const& program, ir::Bindings const& bindings);

/// Bytes of outputs, and the most that values in the arena take at once, with the sizes that symbols have as hints: what footprint says, less what its
/// layout cannot fill.
struct Held {
  std::int64_t outputs = 0, values = 0;
  std::int64_t peak() const { return outputs + values; }
};
Held held(Program const& program);
/// The symbolic sizes, strides and offsets that decide them; what else is symbolic only stands in kernels' parameters and calls' numbers.
std::vector<ir::Dim> symbolic_sizes(Program const& program);
/// Puts numbers of these bindings in a launch that was prepared for the same sizes.
void renumber(Program const& program, Launch const& launch, ir::Bindings const& bindings, Prepared& prepared);
/// A kernel over all of its space, on threads where there is enough to do; rows of it on the calling thread; a call; all with pointers filled in.
void run_kernel(Kernel const& kernel, Entry const& entry, Prepared& launch);
void run_rows(Entry const& entry, Prepared& launch, Whole low, Whole high);
void run_call(ir::OpDef const& op, Prepared& launch);
/// Whether what comes behind a matmul should run on blocks of its rows: not where that makes threads copy much more of the operands.
bool joined_pays(Prepared const& product);
/// A matmul, and per block of rows what comes behind it.
void run_matmul(Prepared& product, Entry const& behind, Prepared& launch);
/// The calling thread's own memory, at least so many bytes, aligned to 64; what it held is lost when it grows.
char* thread_memory(std::int64_t bytes, int which = 0);

}  // namespace tenon::fusion
