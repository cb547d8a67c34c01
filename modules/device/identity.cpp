module;
#include <elf.h>
#include <sys/stat.h>
module tenon.device;
import std;
import tenon.base;
#include "child.hpp"

namespace tenon::device {
namespace {

namespace fs = std::filesystem;

// What a file of ELF says of itself.
struct Elf {
  std::string build;                ///< the build id in hexadecimal
  std::vector<std::string> needed;  ///< names of libraries
};

// Reads pieces of a file; a piece that is not there is zeros.
class Pieces {
 public:
  explicit Pieces(fs::path const& path) : file_(path, std::ios::binary) {}
  template <class T>
  T at(std::uint64_t offset) {
    T value{};
    bytes(offset, reinterpret_cast<char*>(&value), sizeof value);
    return value;
  }
  std::string text(std::uint64_t offset) {
    char found[256]{};
    bytes(offset, found, sizeof found - 1);
    return found;
  }
  void bytes(std::uint64_t offset, char* to, std::size_t count) {
    file_.clear();
    file_.seekg(static_cast<std::streamoff>(offset & 0x7fffffffffffffff));
    file_.read(to, static_cast<std::streamsize>(count));
  }

 private:
  std::ifstream file_;
};

std::string build_id(Pieces& file, Elf64_Phdr const& part) {
  for (std::uint64_t at = part.p_offset, end = at + std::min<std::uint64_t>(part.p_filesz, 1 << 16); at + sizeof(Elf64_Nhdr) <= end;) {
    auto const note = file.at<Elf64_Nhdr>(at);
    auto const words = at + sizeof note + ((note.n_namesz + 3ull) & ~3ull);
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && note.n_descsz <= 64) {
      unsigned char id[64]{};
      file.bytes(words, reinterpret_cast<char*>(id), note.n_descsz);
      std::string text;
      for (unsigned k = 0; k < note.n_descsz; ++k) text += std::format("{:02x}", id[k]);
      return text;
    }
    at = words + ((note.n_descsz + 3ull) & ~3ull);
  }
  return {};
}

std::optional<Elf> read_elf(fs::path const& path) {
  Pieces file(path);
  auto const head = file.at<Elf64_Ehdr>(0);
  if (!std::ranges::equal(std::span(head.e_ident, SELFMAG), std::string_view(ELFMAG)) || head.e_ident[EI_CLASS] != ELFCLASS64) return {};
  std::vector<Elf64_Phdr> parts;
  for (unsigned k = 0; k < std::min<unsigned>(head.e_phnum, 64); ++k) parts.push_back(file.at<Elf64_Phdr>(head.e_phoff + k * sizeof(Elf64_Phdr)));
  auto const offset_of = [&](std::uint64_t address) -> std::uint64_t {
    for (auto const& part : parts)
      if (part.p_type == PT_LOAD && address >= part.p_vaddr && address - part.p_vaddr < part.p_filesz) return address - part.p_vaddr + part.p_offset;
    return 0;
  };
  Elf made;
  for (auto const& part : parts) {
    if (part.p_type == PT_NOTE && made.build.empty()) made.build = build_id(file, part);
    if (part.p_type != PT_DYNAMIC) continue;
    std::vector<std::uint64_t> names;
    std::uint64_t texts = 0;
    for (std::uint64_t at = 0; at + sizeof(Elf64_Dyn) <= std::min<std::uint64_t>(part.p_filesz, 1 << 16); at += sizeof(Elf64_Dyn)) {
      auto const row = file.at<Elf64_Dyn>(part.p_offset + at);
      if (row.d_tag == DT_NEEDED) names.push_back(row.d_un.d_val);
      if (row.d_tag == DT_STRTAB) texts = offset_of(row.d_un.d_ptr);
    }
    for (auto const name : names) made.needed.push_back(file.text(texts + name));
  }
  return made;
}

std::string words_of(fs::path const& path, std::string const& build) {
  struct stat about{};
  if (::stat(path.c_str(), &about) != 0) return path.string() + " gone";
  auto const tail = build.empty() ? std::format("time {}.{:09}", about.st_mtim.tv_sec, about.st_mtim.tv_nsec) : "build " + build;
  return std::format("{} {} bytes {}", path.string(), about.st_size, tail);
}

bool is_compiler_library(std::string_view name) { return name.starts_with("libclang") || name.starts_with("libLLVM"); }

}  // namespace

std::string identify(std::string const& program) {
  std::error_code error;
  auto const path = fs::canonical(program, error);
  if (error) base::fail("{}: {}", program, error.message());
  auto const elf = read_elf(path);
  auto text = words_of(path, elf ? elf->build : "");
  bool whole = elf.has_value() && path.filename().string().find("gcc") == std::string::npos;  // gcc only starts the compiler, which has the same version
  for (auto const& name : elf ? elf->needed : std::vector<std::string>{}) {
    if (!is_compiler_library(name)) continue;
    bool found = false;
    for (fs::path const& folder :
         {path.parent_path().parent_path() / "lib", fs::path("/usr/lib/x86_64-linux-gnu"), fs::path("/usr/lib64"), fs::path("/usr/lib")}) {
      auto const library = fs::canonical(folder / name, error);
      if (error) continue;
      auto const inside = read_elf(library);
      text += "; " + words_of(library, inside ? inside->build : "");
      found = true;
      break;
    }
    whole = whole && found;
  }
  if (!whole) text += "; " + run_child({{program, "--version"}}).output;
  std::ranges::replace(text, '\n', ' ');
  return text;
}

}  // namespace tenon::device
