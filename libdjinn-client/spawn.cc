// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/spawn.h"

#include <errno.h>
#include <spawn.h>
#include <unistd.h>

namespace djinn::client {

Result<pid_t> spawn(std::vector<std::string> words, std::span<const Inherited> inherited,
                    const sigset_t& defaults) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  for (const Inherited& one : inherited) {
    ::posix_spawn_file_actions_adddup2(&actions, one.fd, one.number);
  }
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t none;
  ::sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &defaults);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  pid_t pid = 0;
  const int failed =
      ::posix_spawnp(&pid, arguments[0], &actions, &attributes, arguments.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  if (failed == ENOENT) {
    return Error{ErrorCode::kNotFound, "There is no " + words[0] + " in $PATH."};
  }
  if (failed != 0) return system_error("start " + words[0], failed);
  return pid;
}

}  // namespace djinn::client
