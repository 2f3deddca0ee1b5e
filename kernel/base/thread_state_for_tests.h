// SPDX-License-Identifier: Apache-2.0

// Tells what a thread of this process does, for tests that wait until it waits.
#pragma once

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "kernel/base/fd.h"

namespace djinn {

// Its state as proc(5) has it: 'S' where it sleeps, 'D' where no signal wakes it; 0 if it is gone.
inline char state_of(pid_t thread) {
  const std::string path = "/proc/self/task/" + std::to_string(thread) + "/stat";
  const Fd stat(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text(512, '\0');
  text.resize(
      static_cast<size_t>(std::max<ssize_t>(::read(stat.get(), text.data(), text.size()), 0)));
  const size_t name_end = text.rfind(") ");
  return name_end == text.npos || name_end + 2 >= text.size() ? '\0' : text[name_end + 2];
}

}  // namespace djinn
