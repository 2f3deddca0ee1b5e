// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/exit_code.h"

#include <unistd.h>

#include <cctype>

namespace djinn::ctl {
namespace {

constexpr size_t kLinesMax = 3;

// A sentence ends at a point before a space and a capital letter.
bool ends_sentence(const std::string& text, size_t point) {
  return text[point] == '.' && point + 2 < text.size() && text[point + 1] == ' ' &&
         std::isupper(static_cast<unsigned char>(text[point + 2])) != 0;
}

}  // namespace

ExitCode exit_code_of(ErrorCode error) noexcept {
  switch (error) {
    case ErrorCode::kOk:
      return ExitCode::kOk;
    case ErrorCode::kInvalidArgument:
      return ExitCode::kUsage;
    case ErrorCode::kDisconnected:
      return ExitCode::kDaemonNotRunning;
    case ErrorCode::kNotFound:
    case ErrorCode::kStaleHandle:
      return ExitCode::kNoSuchObject;
    case ErrorCode::kPermissionDenied:
      return ExitCode::kPermissionDenied;
    case ErrorCode::kBusy:
      return ExitCode::kBusy;
    case ErrorCode::kTimeout:
      return ExitCode::kTimeout;
    case ErrorCode::kQuotaExceeded:
    case ErrorCode::kLimitExceeded:
      return ExitCode::kOverQuota;
    case ErrorCode::kOutOfMemory:
      return ExitCode::kOutOfMemory;
    case ErrorCode::kMalformed:
    case ErrorCode::kUnsupported:
    case ErrorCode::kShapeMismatch:
    case ErrorCode::kFileChanged:
    case ErrorCode::kHashMismatch:
      return ExitCode::kBadFiles;
    case ErrorCode::kQueueFull:
      return ExitCode::kQueueFull;
    default:
      return ExitCode::kFailed;
  }
}

std::string error_text(const Error& error, const Terminal& terminal) {
  const std::string message = sentence_for(terminal, error.message);
  std::string out = "djinnctl: ";
  size_t lines = 1;
  for (size_t i = 0; i < message.size(); ++i) {
    out.push_back(message[i]);
    if (lines == kLinesMax || !ends_sentence(message, i)) continue;
    out.push_back('\n');
    ++lines;
    ++i;  // the space
  }
  return out + '\n';
}

std::string failure_text(const Error& error, JsonStyle style) {
  if (style == JsonStyle::kOff) return error_text(error, terminal_of(STDERR_FILENO));
  const Json item{{"error", name_of(error.code)},
                  {"exit_status", static_cast<int>(exit_code_of(error.code))},
                  {"message", error.message}};
  return json_text("error", {item}, style);
}

void write_failure(const Error& error, JsonStyle style) {
  write_error(failure_text(error, style));
}

}  // namespace djinn::ctl
