// SPDX-License-Identifier: Apache-2.0

// What the process exits with, for scripts. Numbers are never reused, only added.
#pragma once

#include "djinnctl/json.h"
#include "djinnctl/output.h"
#include "libdjinn-client/client.h"

namespace djinn::ctl {

enum class ExitCode : int {
  kOk = 0,
  kFailed = 1,
  kUsage = 2,
  kDaemonNotRunning = 3,
  kNoSuchObject = 4,
  kPermissionDenied = 5,
  kBusy = 6,  // in use, pinned, or djinnd drains
  kTimeout = 7,
  kOverQuota = 8,
  kOutOfMemory = 9,
  kBadFiles = 10,   // a model's or the configuration's
  kQueueFull = 75,  // EX_TEMPFAIL: the same command may succeed later
};

[[nodiscard]] ExitCode exit_code_of(ErrorCode error) noexcept;

// The error as at most three lines, each with its newline: "djinnctl: what", why, what next.
// Messages quote names that others chose: see sentence_for().
[[nodiscard]] std::string error_text(const Error& error, const Terminal& terminal);
// What stands on stderr: error_text(), or with --json an envelope of its own, "djinn.error.v1".
[[nodiscard]] std::string failure_text(const Error& error, JsonStyle style);
void write_failure(const Error& error, JsonStyle style);

}  // namespace djinn::ctl
