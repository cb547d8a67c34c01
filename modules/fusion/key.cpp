// Keys: named parts, their digests, and what this machine and this build add to them.
module;
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include "build_identity.h"
module tenon.fusion;
import std;
import tenon.base;
import tenon.ir;
import tenon.device;

namespace tenon::fusion {

Digest sha256(std::span<std::byte const> bytes) {
  // Without it the library reads its configuration from disk first, which is of no use here and takes longer than the hashing.
  static bool const ready = OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG, nullptr) == 1;
  Digest digest{};
  bool const done = ready && SHA256(reinterpret_cast<unsigned char const*>(bytes.data()), bytes.size(), reinterpret_cast<unsigned char*>(digest.data()));
  base::ensure(done, "SHA-256 is there");
  return digest;
}
Digest sha256(std::string_view text) { return sha256(std::as_bytes(std::span(text))); }

std::string to_hex(Digest const& digest) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (auto const byte : digest) text += digits[std::to_integer<std::size_t>(byte >> 4)], text += digits[std::to_integer<std::size_t>(byte & std::byte{15})];
  return text;
}

KeyPart key_part(std::string name, std::string_view text, std::string words) {
  return {.name = std::move(name), .digest = to_hex(sha256(text)), .text = words.empty() ? std::string(text) : std::move(words)};
}

Key key_of(std::vector<KeyPart> parts) {
  std::string text;
  for (auto const& part : parts) text += std::format("{} {} {}\n", part.name.size(), part.name, part.digest);
  return {.name = to_hex(sha256(text)), .parts = std::move(parts)};
}

Key with_part(Key const& key, KeyPart part) {
  auto parts = key.parts;
  parts.push_back(std::move(part));
  return key_of(std::move(parts));
}

std::vector<std::string> differences(Key const& a, Key const& b) {
  std::vector<std::string> names;
  auto const find = [](Key const& in, std::string_view name) {
    auto const found = std::ranges::find(in.parts, name, &KeyPart::name);
    return found == in.parts.end() ? nullptr : &*found;
  };
  for (auto const& part : a.parts)
    if (auto const* other = find(b, part.name); !other || other->digest != part.digest) names.push_back(part.name);
  for (auto const& part : b.parts)
    if (!find(a, part.name)) names.push_back(part.name);
  return names;
}

std::vector<KeyPart> parts_of_this_machine() {
  auto const& cpu = device::cpu();
  auto const& compiler = device::toolchain();
  std::string flags;
  if (compiler)
    for (auto const& flag : device::compile_flags(*compiler)) flags += (flags.empty() ? "" : " ") + flag;
  return {key_part("toolchain", compiler ? compiler->identity : "none"), key_part("flags", flags.empty() ? "none" : flags),
          key_part("processor", std::format("{} {}", device::name_of(cpu.isa), cpu.features)), key_part("build", build_identity())};
}

std::string_view build_identity() { return TENON_BUILD_IDENTITY; }

}  // namespace tenon::fusion
