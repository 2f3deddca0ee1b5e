// SPDX-License-Identifier: Apache-2.0

// Subprocess: another program's output, for what djinnctl leaves to others.
#pragma once

#include <string>
#include <vector>

#include "libdjinn-client/client.h"

namespace djinn::ctl {

struct Said {
  int exit_code = 0;  // 128 + N for signal N
  std::string out;    // at most kSaidBytesMax of it
};
constexpr size_t kSaidBytesMax = size_t{16} << 20;

enum class ErrorsTo { kOurs, kOutput };

// Runs command[0], looked for on PATH unless it has a slash, with nothing on its stdin, and waits
// for its end. Its stderr is ours, or joins its output. It is killed after ten seconds. Errors:
// kNotFound, kTimeout, kLimitExceeded.
Result<Said> run_program(const std::vector<std::string>& command, ErrorsTo errors);

// Where this program lies, with a slash at the end: others of the same build lie beside it.
[[nodiscard]] std::string own_directory();

}  // namespace djinn::ctl
