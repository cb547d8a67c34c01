#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
import std;
import tenon.base;
import tenon.fusion;
#include "cache_support.hpp"
using namespace tenon;
namespace fs = std::filesystem;

namespace support {
namespace {
std::string sha256(std::string_view text) {
  auto const digest = fusion::sha256(text);
  return {reinterpret_cast<char const*>(digest.data()), digest.size()};
}
// RFC 2104 with a secret of 32 bytes: one block of 64.
std::string hmac(std::string secret, std::string_view text) {
  secret.resize(64);
  auto const padded = [&](char by) {
    std::string block = secret;
    for (char& c : block) c = static_cast<char>(c ^ by);
    return block;
  };
  return sha256(padded(0x5c) + sha256(padded(0x36) + std::string(text)));
}
}  // namespace

std::string text_of(fs::path const& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void set_times(fs::path const& file, std::int64_t read, std::int64_t written) {
  struct timespec const times[2] = {{read, 0}, {written, 0}};
  if (::utimensat(AT_FDCWD, file.c_str(), times, 0) != 0) base::fail("{}: its times can't be set", file.string());
}

CacheFolder::CacheFolder() {
  std::string name = fs::temp_directory_path() / "tenon-cache-XXXXXX";
  if (!mkdtemp(name.data())) base::fail("{}: can't be made", name);
  path = name;
  setenv("TENON_CACHE", name.c_str(), 1);
}
CacheFolder::~CacheFolder() {
  setenv("TENON_CACHE", "none", 1);
  std::error_code ignored;
  fs::remove_all(path, ignored);
}
std::vector<std::string> CacheFolder::entries() const {
  std::vector<std::string> names;
  for (auto const& file : fs::directory_iterator(path))
    if (auto name = file.path().filename().string(); name.size() == 64) names.push_back(std::move(name));
  std::ranges::sort(names);
  return names;
}

std::int64_t receipts_so_far() {
  auto const all = fusion::receipts();
  return all.empty() ? 0 : all.back().number;
}
std::vector<fusion::Receipt> receipts_since(std::int64_t before) {
  auto all = fusion::receipts();
  std::erase_if(all, [&](auto const& receipt) { return receipt.number <= before; });
  return all;
}

Forged::Forged(CacheFolder const& cache) : folder(cache.path), file(cache.path / cache.entries().at(0)), bytes(text_of(file)) {}
std::size_t Forged::object_at() const {
  std::uint32_t metadata = 0;
  std::memcpy(&metadata, bytes.data() + 12, sizeof metadata);
  return 24 + metadata;
}
Forged& Forged::replace(std::string_view from, std::string_view to) {
  auto const at = bytes.find(from);
  if (at == std::string::npos || from.size() != to.size()) base::fail("\"{}\" is not there or not as long as \"{}\"", from, to);
  return bytes.replace(at, from.size(), to), *this;
}
Forged& Forged::set_number(std::size_t at, std::size_t size, std::uint64_t number) {
  std::memcpy(bytes.data() + at, &number, size);
  return *this;
}
Forged& Forged::set_metadata(std::string_view text) {
  bytes.replace(24, object_at() - 24, text);
  return set_number(12, 4, text.size());
}
Forged& Forged::hash() {
  if (bytes.size() >= 64) bytes.replace(bytes.size() - 64, 32, sha256(std::string_view(bytes).substr(0, bytes.size() - 64)));
  return *this;
}
Forged& Forged::sign(std::string secret) {
  hash();
  if (secret.empty()) secret = text_of(folder / "secret");
  if (bytes.size() >= 64) bytes.replace(bytes.size() - 32, 32, hmac(secret, std::string_view(bytes).substr(bytes.size() - 64, 32)));
  return *this;
}
void Forged::write() const {
  fs::remove(file);
  std::ofstream(file, std::ios::binary) << bytes;
  fs::permissions(file, fs::perms::owner_read | fs::perms::owner_write);
}

}  // namespace support
