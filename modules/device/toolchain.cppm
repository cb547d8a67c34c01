export module tenon.device:toolchain;
import std;

export namespace tenon::device {

/// A C compiler of this machine.
struct Toolchain {
  std::string path;      ///< of the program, links resolved
  std::string identity;  ///< its --version and its bytes' SHA-256: another compiler has another one
  bool clang = true;     ///< otherwise gcc
};
/// The compiler that TENON_CC names, else the first of clang-19, clang, gcc and cc on PATH; nothing if there is none or TENON_CC=none. Asked once.
std::optional<Toolchain> const& toolchain();

/// What a compilation produced.
struct Object {
  std::vector<std::byte> bytes;  ///< a shared object
  double seconds = 0;
};
/// Compiles C to a shared object for this machine's `cpu().isa`; Error with the compiler's first complaint. `flags` are added at the end.
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
/// How many shared objects this process has loaded through Library: tests show by it that a bad one was never reached.
std::int64_t libraries_loaded();

}  // namespace tenon::device
