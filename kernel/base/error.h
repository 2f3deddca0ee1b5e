// SPDX-License-Identifier: Apache-2.0

// Error: what went wrong, in a code that programs switch on and a sentence that people read.
//
// A message says what, why and what next, in one to three short sentences. An Error that crosses to
// a client holds no addresses, no names of others, no paths and no internal ids: who builds one for
// a client keeps to that (ARCHITECTURE rule 5).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace djinn {

// Numbered in groups of a hundred, so that a number alone tells the kind. Numbers are part of the
// wire protocol and of djinn.h: never reused, only added.
enum class ErrorCode : uint16_t {
  kOk = 0,

  // 1xx: the request itself is wrong; repeating it gives the same answer.
  kInvalidArgument = 100,
  kMalformed = 101,    // bytes that no decoder accepts
  kUnsupported = 102,  // well-formed, but not offered: operator, dtype, version
  kShapeMismatch = 103,
  kOutOfRange = 104,         // index, offset, length or symbol outside its bounds
  kProtocolViolation = 105,  // ends the session

  // 2xx: a name or handle does not lead to a live object.
  kNotFound = 200,
  kStaleHandle = 201,  // right index, older generation
  kAlreadyExists = 202,
  kPoisoned = 203,  // the step that would have made this ref failed

  // 3xx: not allowed, or over a limit of the client's own.
  kPermissionDenied = 300,
  kQuotaExceeded = 301,
  kLimitExceeded = 302,
  kQueueFull = 303,
  kBusy = 304,         // pinned or in use
  kNotConfined = 305,  // the kernel lacks a confinement that was demanded

  // 4xx: a resource of the machine gave out.
  kOutOfMemory = 400,
  kIo = 401,
  kSystem = 402,  // a system call failed in a way no better code names

  // 5xx: a process or device went away.
  kDisconnected = 500,
  kWorkerLost = 501,  // the run met three worker deaths without progress
  kLoaderLost = 502,
  kDeviceLost = 503,
  kCancelled = 504,
  kTimeout = 505,

  // 6xx: what was read is not what was promised.
  kFileChanged = 600,
  kHashMismatch = 601,

  // 9xx: a fault of ours that was caught before it did harm.
  kInternal = 900,
};

// The stable lower-case name that logs and --json print, "invalid_argument" for kInvalidArgument.
// Unknown numbers, which a newer peer may send, give "unknown".
[[nodiscard]] std::string_view name_of(ErrorCode code) noexcept;

struct [[nodiscard]] Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
};

// "open the state extent: Permission denied": an Error for a failed system call. EMFILE, ENFILE,
// ENOMEM, ENOSPC, EDQUOT, EACCES, EPERM and EIO get codes of their own, all else kSystem.
Error system_error(std::string_view what, int error_number);

}  // namespace djinn
