module;
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
module tenon.device;
import std;
import tenon.base;
#include "child.hpp"

namespace tenon::device {

using base::fail;

TemporaryFolder::TemporaryFolder() {
  std::error_code error;
  path = std::filesystem::temp_directory_path(error);
  if (error) path = "/tmp";
  path += "/tenon-XXXXXX";
  if (!mkdtemp(path.data())) fail("{}: no folder for temporary files: {}", path, strerror(errno));
}
TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;  // what is left behind is in the folder for temporary files
  std::filesystem::remove_all(path, ignored);
}

Child start_child(Command const& command) {
  std::vector<char*> words;
  words.reserve(command.words.size() + 1);
  for (auto const& word : command.words) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  Child child{.output = memfd_create("output", MFD_CLOEXEC)};
  if (child.output < 0) fail("{}: no memory file: {}", command.words[0], strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, child.output, 1);
  posix_spawn_file_actions_adddup2(&actions, child.output, 2);
  pid_t pid = -1;
  int const error = posix_spawn(&pid, command.words[0].c_str(), &actions, nullptr, words.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error) {
    close(child.output);
    fail("{}: can't be started: {}", command.words[0], strerror(error));
  }
  child.pid = pid;
  return child;
}

Ended end_child(Child child) {
  Ended ended;
  int status = 0;
  while (waitpid(child.pid, &status, 0) < 0)
    if (errno != EINTR) {  // a host that ignores SIGCHLD has no status: the caller looks for what the program should have made
      status = 0;
      break;
    }
  ended.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  char piece[4096];
  for (off_t at = 0; ended.output.size() < (1u << 20);) {
    auto const count = pread(child.output, piece, sizeof piece, at);
    if (count <= 0) break;
    ended.output.append(piece, static_cast<std::size_t>(count));
    at += count;
  }
  close(child.output);
  return ended;
}

}  // namespace tenon::device
