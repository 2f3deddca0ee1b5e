// SPDX-License-Identifier: Apache-2.0

#include "kernel/base/error.h"

#include <errno.h>
#include <string.h>

namespace djinn {

std::string_view name_of(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kOk:
      return "ok";
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kMalformed:
      return "malformed";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kShapeMismatch:
      return "shape_mismatch";
    case ErrorCode::kOutOfRange:
      return "out_of_range";
    case ErrorCode::kProtocolViolation:
      return "protocol_violation";
    case ErrorCode::kNotFound:
      return "not_found";
    case ErrorCode::kStaleHandle:
      return "stale_handle";
    case ErrorCode::kAlreadyExists:
      return "already_exists";
    case ErrorCode::kPoisoned:
      return "poisoned";
    case ErrorCode::kPermissionDenied:
      return "permission_denied";
    case ErrorCode::kQuotaExceeded:
      return "quota_exceeded";
    case ErrorCode::kLimitExceeded:
      return "limit_exceeded";
    case ErrorCode::kQueueFull:
      return "queue_full";
    case ErrorCode::kBusy:
      return "busy";
    case ErrorCode::kNotConfined:
      return "not_confined";
    case ErrorCode::kOutOfMemory:
      return "out_of_memory";
    case ErrorCode::kIo:
      return "io";
    case ErrorCode::kSystem:
      return "system";
    case ErrorCode::kDisconnected:
      return "disconnected";
    case ErrorCode::kWorkerLost:
      return "worker_lost";
    case ErrorCode::kLoaderLost:
      return "loader_lost";
    case ErrorCode::kDeviceLost:
      return "device_lost";
    case ErrorCode::kCancelled:
      return "cancelled";
    case ErrorCode::kTimeout:
      return "timeout";
    case ErrorCode::kFileChanged:
      return "file_changed";
    case ErrorCode::kHashMismatch:
      return "hash_mismatch";
    case ErrorCode::kInternal:
      return "internal";
  }
  return "unknown";
}

Error system_error(std::string_view what, int error_number) {
  ErrorCode code = ErrorCode::kSystem;
  if (error_number == ENOMEM || error_number == ENOSPC || error_number == EDQUOT) {
    code = ErrorCode::kOutOfMemory;
  }
  if (error_number == EMFILE || error_number == ENFILE) code = ErrorCode::kLimitExceeded;
  if (error_number == EACCES || error_number == EPERM) code = ErrorCode::kPermissionDenied;
  if (error_number == EIO) code = ErrorCode::kIo;
  char text[128];
  // This is the GNU strerror_r. It is thread-safe, and returns its argument or a constant.
  return {code, std::string(what) + ": " + ::strerror_r(error_number, text, sizeof text)};
}

}  // namespace djinn
