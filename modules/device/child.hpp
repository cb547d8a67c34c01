#pragma once
// Other programs, run without a shell. Behind `import std;` in a source of tenon.device.

namespace tenon::device {

/// A folder of this user's alone; it goes away with the object.
struct TemporaryFolder {
  std::string path;
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(TemporaryFolder const&) = delete;
  TemporaryFolder& operator=(TemporaryFolder const&) = delete;
};

/// A program and its arguments.
struct Command {
  std::vector<std::string> words;
};
struct Ended {
  int status = 0;      ///< what it returned, or 128 + the signal that ended it
  std::string output;  ///< what it wrote, errors too
};
/// A program that runs; it writes to a file, so that it never waits for a reader.
struct Child {
  int pid = -1, output = -1;
};
/// Error if it can't be started.
Child start_child(Command const& command);
/// Waits until it has ended.
Ended end_child(Child child);
inline Ended run_child(Command const& command) { return end_child(start_child(command)); }

}  // namespace tenon::device
