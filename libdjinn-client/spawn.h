// SPDX-License-Identifier: Apache-2.0

// spawn: starts a program by its name.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <span>
#include <string>
#include <vector>

#include "kernel/base/result.h"

namespace djinn::client {

// A descriptor that the program gets, under a number there.
struct Inherited {
  int fd = -1;
  int number = -1;
};

// words: the program, found in $PATH, and its arguments. It has no signal blocked, and those of
// defaults are what they are by default. It is the caller's to wait for, and until then its number
// is no other process's. Errors: kNotFound where there is no such program, those of system_error().
Result<pid_t> spawn(std::vector<std::string> words, std::span<const Inherited> inherited,
                    const sigset_t& defaults);

}  // namespace djinn::client
