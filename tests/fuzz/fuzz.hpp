#pragma once
// Readers of untrusted text, and texts to throw at them. Include behind `import std; import tenon.base; import tenon.ir;`.

namespace fuzz {

/// One reader. `run` says whether it accepts a text; a refusal is an Error that it catches, anything else escapes: another exception says what broke.
struct Target {
  std::string_view name;
  bool (*run)(std::string_view text);
  std::vector<std::string> (*seeds)();
  std::span<std::string_view const> words;  ///< of the grammar
};
/// own, fx, fx_code, stablehlo, hlo.
std::span<Target const> targets();
/// A text with one to four changes: bytes, cuts, copies, words, digits.
std::string mutated(std::string text, std::span<std::string_view const> words, std::mt19937& random);

}  // namespace fuzz
