export module tenon.device:cpu;
import std;

export namespace tenon::device {

/// Vector instruction sets of x86-64, each with all before it; `avx512` means F, BW, DQ and VL.
enum class Isa : std::uint8_t { baseline, avx2, avx512 };
/// "baseline", "avx2", "avx512".
std::string_view name_of(Isa isa);

/// What this machine computes with.
struct Cpu {
  std::string name;      ///< as the processor calls itself
  std::string features;  ///< its feature words in hexadecimal: what code made for "this machine" depends on
  Isa isa = Isa::baseline;
  Isa native = Isa::baseline;  ///< what it has, however far `isa` is lowered
  bool amx_bf16 = false;       ///< matrix tiles of bf16
  std::int64_t l1 = 32 << 10, l2 = 1 << 20,
               l3 = 32 << 20;  ///< bytes of data cache: of one processor, and l3 of all of them (a virtual machine tells what it likes)
};
/// This machine's, asked once; TENON_ISA=baseline|avx2|avx512 lowers `isa`, Error naming both if the machine has less.
Cpu const& cpu();

/// How many threads `parallel` uses: TENON_THREADS, else the processors that this process may run on.
int threads();
/// Sets it, from 1 to 1024, once no `parallel` runs; Error outside of that and within a `parallel`.
void set_threads(int count);

/// Calls f(item, thread) once for each item in [0, items), on as many threads as are idle, and returns when all are done; thread is in [0, threads()).
/// Nested calls and calls while another thread's are running do the work on the calling thread. The first exception is thrown again by the caller.
void parallel(std::int64_t items, void (*f)(void* context, std::int64_t item, int thread), void* context);
template <class F>
void parallel(std::int64_t items, F&& f) {
  parallel(
      items, [](void* context, std::int64_t item, int thread) { (*static_cast<std::remove_reference_t<F>*>(context))(item, thread); },
      const_cast<void*>(static_cast<void const*>(std::addressof(f))));
}

}  // namespace tenon::device
