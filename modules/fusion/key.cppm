export module tenon.fusion:key;
import std;
import tenon.base;
import tenon.ir;

export namespace tenon::fusion {

/// A SHA-256 value.
using Digest = std::array<std::byte, 32>;
Digest sha256(std::span<std::byte const> bytes);
Digest sha256(std::string_view text);
/// 64 digits, lower case.
std::string to_hex(Digest const& digest);

/// One of the things that decide what a compilation makes.
struct KeyPart {
  std::string name;
  std::string digest;  ///< of all of it, in hexadecimal
  std::string text;    ///< the part itself where it is short, else a few words about it
  inline bool operator==(KeyPart const& other) const { return name == other.name && digest == other.digest; }
};
/// What a compilation is told from others by: parts, and the SHA-256 over their names and digests.
struct Key {
  std::string name;  ///< 64 hexadecimal digits: the file of its entry; empty: no key
  std::vector<KeyPart> parts;
  inline explicit operator bool() const { return !name.empty(); }
  bool operator==(Key const&) const = default;
};
/// A key of these parts.
Key key_of(std::vector<KeyPart> parts);
/// A part from the text that it stands for; `words` are shown instead of it.
KeyPart key_part(std::string name, std::string_view text, std::string words = {});
/// The key with one more part.
Key with_part(Key const& key, KeyPart part);
/// Names of the parts in which two keys differ, or that only one has.
std::vector<std::string> differences(Key const& a, Key const& b);

/// The graph in the one order that all graphs of the same calls share: depth first from the outputs, those that need the fewest steps first. Random,
/// host and collective calls keep their order; other calls that no output needs are gone.
ir::Graph canonical(ir::Graph const& graph);
/// What a canonical graph computes, as bytes: calls by place, every type and attribute, symbols by first appearance, the facts of each op that it
/// uses. No name, place in a source or hint of a symbol is in it.
std::string canonical_text(ir::Graph const& graph);
/// The parts of a canonical graph: inputs, and calls.
std::vector<KeyPart> parts_of(ir::Graph const& graph);
/// What this machine and this build of Tenon add: toolchain, flags, processor, build.
std::vector<KeyPart> parts_of_this_machine();
/// The digest of Tenon's sources that decide what is generated, its compiler and its flags.
std::string_view build_identity();

}  // namespace tenon::fusion
