#pragma once
// What a call refuses, as text. Include behind `import std; import tenon.base;`: it includes nothing itself.

namespace support {

/// The text of the Error, "Bug: " and its text for a Bug, or "nothing".
template <class F>
std::string caught(F const& act) {
  try {
    act();
  } catch (tenon::base::Error const& error) {
    return error.what();
  } catch (tenon::base::Bug const& bug) {
    return std::string("Bug: ") + bug.what();
  }
  return "nothing";
}
inline bool says(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

}  // namespace support
