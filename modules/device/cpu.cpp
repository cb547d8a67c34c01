module;
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
module tenon.device;
import std;
import tenon.base;

namespace tenon::device {
namespace {

using base::fail;
namespace fs = std::filesystem;

constexpr std::string_view isa_names[] = {"baseline", "avx2", "avx512"};

struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};
Registers ask(unsigned leaf, unsigned sub = 0) {
  Registers r;
  __get_cpuid_count(leaf, sub, &r.a, &r.b, &r.c, &r.d);
  return r;
}

// A row: the register of a feature word (of leaf 1 or 7), its bit, the least instruction set that needs it.
enum Word : unsigned { c1, b7 };
struct Needed {
  Word word;
  unsigned bit;
  Isa isa;
};
constexpr Needed needed[] = {
    {c1, 12, Isa::avx2},    // FMA
    {c1, 22, Isa::avx2},    // MOVBE
    {c1, 29, Isa::avx2},    // F16C
    {b7, 3, Isa::avx2},     // BMI1
    {b7, 5, Isa::avx2},     // AVX2
    {b7, 8, Isa::avx2},     // BMI2
    {b7, 16, Isa::avx512},  // F
    {b7, 17, Isa::avx512},  // DQ
    {b7, 30, Isa::avx512},  // BW
    {b7, 31, Isa::avx512},  // VL
};

// What the operating system saves when it changes threads; 0 before AVX.
std::uint64_t saved_state(Registers const& one) {
  if (!(one.c >> 27 & 1)) return 0;
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return std::uint64_t{high} << 32 | low;
}

// Linux lends the tiles to a process that asks for them: whether it would.
bool tiles_lent() {
  constexpr int supported_components = 0x1021;  // ARCH_GET_XCOMP_SUPP
  std::uint64_t components = 0;
  return syscall(SYS_arch_prctl, supported_components, &components) == 0 && (components >> 17 & 3) == 3;
}

std::string brand() {
  std::string text;
  if (ask(0x80000000).a < 0x80000004) return "x86-64";
  for (unsigned leaf = 0x80000002; leaf <= 0x80000004; ++leaf) {
    auto const r = ask(leaf);
    for (unsigned const word : {r.a, r.b, r.c, r.d})
      for (int k = 0; k < 4; ++k)
        if (char const c = static_cast<char>(word >> 8 * k & 255); c && (c != ' ' || (!text.empty() && text.back() != ' '))) text += c;
  }
  while (text.ends_with(' ')) text.pop_back();
  return text;
}

std::string first_line(fs::path const& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Bytes of one data cache of a level, and how many processors' worth of them there are; 0 where the system does not say.
std::int64_t cache_bytes(int level, bool all) {
  std::int64_t bytes = 0;
  std::set<std::string> instances;
  std::error_code none;
  for (int cpu = 0; cpu < 4096; ++cpu) {
    fs::path const folder = std::format("/sys/devices/system/cpu/cpu{}/cache", cpu);
    if (!fs::exists(folder, none)) break;
    for (int k = 0; k < 8; ++k) {
      auto const index = folder / std::format("index{}", k);
      if (first_line(index / "level") != std::to_string(level) || first_line(index / "type") == "Instruction") continue;
      auto const size = first_line(index / "size");  // "48K"
      std::int64_t kib = 0;
      std::from_chars(size.data(), size.data() + size.size(), kib);
      if (instances.insert(first_line(index / "shared_cpu_list")).second) bytes = all ? bytes + (kib << 10) : std::max(bytes, kib << 10);
    }
    if (!all && bytes) break;
  }
  return bytes;
}

Isa chosen(Isa has) {
  char const* const wish = std::getenv("TENON_ISA");
  if (!wish || !*wish) return has;
  auto const at = std::ranges::find(isa_names, std::string_view(wish));
  if (at == std::end(isa_names)) fail("TENON_ISA: \"{}\" is none of baseline, avx2 and avx512", wish);
  auto const isa = static_cast<Isa>(at - std::begin(isa_names));
  if (isa > has) fail("TENON_ISA: {} is asked for, but this machine has {}", wish, name_of(has));
  return isa;
}

Cpu described() {
  Cpu made;
  made.name = brand();
  auto const one = ask(1), seven = ask(7), seven1 = ask(7, 1);
  made.features = std::format("{:08x} {:08x} {:08x} {:08x} {:08x} {:08x} {:08x} {:08x}", one.a, one.c, one.d, seven.b, seven.c, seven.d, seven1.a, seven1.d);
  auto const state = saved_state(one);
  constexpr std::uint64_t ymm = 0x6, zmm = 0xe6, tiles = 0x60000;
  made.native = (state & zmm) == zmm ? Isa::avx512 : (state & ymm) == ymm ? Isa::avx2 : Isa::baseline;
  for (auto const& row : needed)
    if (!((row.word == c1 ? one.c : seven.b) >> row.bit & 1) && made.native >= row.isa) made.native = static_cast<Isa>(static_cast<int>(row.isa) - 1);
  made.isa = chosen(made.native);
  made.amx_bf16 = (seven.d >> 22 & 1) && (seven.d >> 24 & 1) && (state & tiles) == tiles && tiles_lent();
  if (auto const bytes = cache_bytes(1, false)) made.l1 = bytes;
  if (auto const bytes = cache_bytes(2, false)) made.l2 = bytes;
  if (auto const bytes = cache_bytes(3, true)) made.l3 = bytes;
  return made;
}

}  // namespace

std::string_view name_of(Isa isa) { return isa_names[static_cast<std::size_t>(isa)]; }

Cpu const& cpu() {
  static Cpu const here = described();
  return here;
}

}  // namespace tenon::device
