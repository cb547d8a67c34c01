export module tenon.device:toolchain;
import std;

export namespace tenon::device {

/// A C compiler of this machine.
struct Toolchain {
  std::string path;      ///< of the program, as it was found
  std::string identity;  ///< what tells it from another one, see `identify`
  bool clang = true;     ///< otherwise gcc
  std::string linker{};  ///< of the linker that `compile` runs itself; empty: the compiler links
};
/// The compiler that TENON_CC names, else the first of clang-19, clang, gcc and cc on PATH; nothing if there is none or TENON_CC=none. Asked once.
std::optional<Toolchain> const& toolchain();
/// The compiler at a path or of a name on PATH; Error if there is none.
Toolchain toolchain_at(std::string const& program);

/// What tells a program from another: its resolved path, its size, and the build id that its linker made of its contents, or its time where it has none.
/// The libraries of LLVM that a program needs are told likewise, as clang is hardly more than them. Hashing 200 MB or asking it for --version (what is done
/// where no ELF file is found: 50 ms) costs more than a whole look-up in the compile cache.
std::string identify(std::string const& program);

/// What a compilation produced.
struct Object {
  std::vector<std::byte> bytes;  ///< a shared object
  double seconds = 0;
};
/// Compiles C to one shared object for this machine's `cpu().isa`, a compiler process a source, as many at once as there are threads; Error with the
/// compiler's first complaint. `flags` are added at the end.
Object compile(Toolchain const& with, std::span<std::string const> sources, std::span<std::string const> flags = {});
Object compile(Toolchain const& with, std::string_view source, std::span<std::string const> flags = {});
/// The flags that `compile` passes for speed and meaning: part of the identity of what it makes.
std::vector<std::string> compile_flags(Toolchain const& with);

/// A loaded shared object; unloaded with its last copy.
class Library {
 public:
  Library() = default;
  /// Loads from memory through a sealed memfd, so that what was checked is what runs; Error with the loader's complaint.
  explicit Library(std::span<std::byte const> object, std::string_view name);
  /// Address of a symbol; null if there is none.
  void* symbol(std::string const& name) const;
  inline explicit operator bool() const { return handle_ != nullptr; }

 private:
  std::shared_ptr<void> handle_;
};
/// How many shared objects this process has handed to the loader through Library: tests show by it that a bad one was never reached.
std::int64_t libraries_loaded();

}  // namespace tenon::device
