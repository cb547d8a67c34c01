// Entries of the compile cache as bytes: all lengths and digests are checked before anything in them is believed.
module;
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <nlohmann/json.hpp>
module tenon.fusion;
import std;
import tenon.base;
import :entry;

namespace tenon::fusion {

namespace {
using Json = nlohmann::json;

constexpr std::string_view magic = "\x89TENON\r\n";
constexpr std::uint32_t version = 1;
constexpr std::size_t header_bytes = 8 + 4 + 4 + 8, digest_bytes = sizeof(Digest), most_metadata_bytes = std::size_t{1} << 20;

template <std::unsigned_integral T>
void append(std::vector<std::byte>& to, T number) {
  for (std::size_t k = 0; k < sizeof number; ++k) to.push_back(static_cast<std::byte>(number >> (8 * k)));
}
void append(std::vector<std::byte>& to, std::span<std::byte const> bytes) { to.insert(to.end(), bytes.begin(), bytes.end()); }
template <std::unsigned_integral T>
T number_at(std::span<std::byte const> bytes, std::size_t at) {
  T number = 0;
  for (std::size_t k = 0; k < sizeof number; ++k) number |= static_cast<T>(std::to_integer<T>(bytes[at + k]) << (8 * k));
  return number;
}

// Over the digest, which stands for every byte before it.
Digest mac_of(Digest const& digest, Secret const& secret) {
  Digest mac{};
  unsigned size = 0;
  auto const* done = HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()), reinterpret_cast<unsigned char const*>(digest.data()), digest.size(),
                          reinterpret_cast<unsigned char*>(mac.data()), &size);
  base::ensure(done && size == mac.size(), "HMAC-SHA256 is there");
  return mac;
}
bool same(std::span<std::byte const> a, Digest const& b) { return CRYPTO_memcmp(a.data(), b.data(), b.size()) == 0; }

Json json_of(Key const& key) {
  Json parts = Json::array();
  for (auto const& part : key.parts) parts.push_back({{"name", part.name}, {"digest", part.digest}, {"text", part.text.substr(0, 4000)}});
  return {{"name", key.name}, {"parts", parts}};
}
std::string text_of(Json const& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

Key key_from(Json const& json) {
  Key key{.name = json.at("name").get<std::string>()};
  for (auto const& part : json.at("parts"))
    key.parts.push_back(
        {.name = part.at("name").get<std::string>(), .digest = part.at("digest").get<std::string>(), .text = part.at("text").get<std::string>()});
  return key;
}
}  // namespace

std::vector<std::byte> encode(CacheEntry const& entry, Secret const& secret) {
  auto const metadata = text_of(Json{{"key", json_of(entry.key)},
                                     {"graph", entry.graph},
                                     {"facts", entry.facts},
                                     {"seconds", entry.seconds},
                                     {"source_bytes", entry.source_bytes},
                                     {"when", entry.when}});
  std::vector<std::byte> file;
  file.reserve(header_bytes + metadata.size() + entry.object.size() + 2 * digest_bytes);
  append(file, std::as_bytes(std::span(magic)));
  append(file, version), append(file, static_cast<std::uint32_t>(metadata.size())), append(file, std::uint64_t{entry.object.size()});
  append(file, std::as_bytes(std::span(metadata)));
  append(file, std::span(entry.object));
  auto const digest = sha256(std::span<std::byte const>(file));
  append(file, digest);
  append(file, mac_of(digest, secret));
  return file;
}

Decoded decode(std::span<std::byte const> file, Secret const* secret) {
  auto const refuse = [](std::string why) { return Decoded{.fault = std::move(why)}; };
  if (file.size() < header_bytes + 2 * digest_bytes) return refuse(std::format("truncated: {} bytes, an entry has more", file.size()));
  if (!std::ranges::equal(file.first(magic.size()), std::as_bytes(std::span(magic)))) return refuse("begins like no entry");
  if (auto const found = number_at<std::uint32_t>(file, 8); found != version) return refuse(std::format("unknown version {}, known is {}", found, version));
  std::size_t const metadata = number_at<std::uint32_t>(file, 12), object = number_at<std::uint64_t>(file, 16);
  if (metadata > most_metadata_bytes || object > most_entry_bytes) return refuse(std::format("says that it has {} + {} bytes: too many", metadata, object));
  auto const signed_bytes = header_bytes + metadata + object, due = signed_bytes + 2 * digest_bytes;
  if (file.size() != due) return refuse(std::format("{}: {} bytes, not {}", file.size() < due ? "truncated" : "longer than it says", file.size(), due));
  auto const digest = sha256(file.first(signed_bytes));
  if (!same(file.subspan(signed_bytes), digest)) return refuse("damaged: its SHA-256 is another one");
  if (secret && !same(file.subspan(signed_bytes + digest_bytes), mac_of(digest, *secret)))
    return refuse("wrong MAC: it was not written with this user's secret");
  Decoded made;
  try {
    auto const* text = reinterpret_cast<char const*>(file.data() + header_bytes);
    auto const json = Json::parse(text, text + metadata);
    auto& entry = made.entry;
    entry.key = key_from(json.at("key"));
    json.at("graph").get_to(entry.graph), json.at("facts").get_to(entry.facts), json.at("seconds").get_to(entry.seconds);
    json.at("source_bytes").get_to(entry.source_bytes), json.at("when").get_to(entry.when);
    if (key_of(entry.key.parts).name != entry.key.name) made.fault = "its key is not that of its parts";
    append(entry.object, file.subspan(header_bytes + metadata, object));
  } catch (Json::exception const&) {
    made.fault = "its metadata can't be read";
  }
  return made;
}

std::string json_of(Receipt const& receipt) {
  return text_of(Json{{"outcome", text_of(receipt.outcome)},
                      {"key", json_of(receipt.key)},
                      {"graph", receipt.graph},
                      {"reason", receipt.reason},
                      {"bytes", receipt.bytes},
                      {"seconds", receipt.seconds}});
}

}  // namespace tenon::fusion
