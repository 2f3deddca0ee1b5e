// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/loop/log.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>

namespace djinn::daemon {
namespace {

// A write of this size to a pipe that has room at all does not block (pipe(7)).
constexpr size_t kLineBytesMax = 4096;
constexpr size_t kTextBytesMax = kLineBytesMax - 128;  // with what stands around it

std::atomic<uint64_t> lost{0};
std::atomic<uint64_t> lost_told{0};

// Writes without waiting. The flags of stderr stay as they are, because other processes share them.
bool write_now(const std::string& line) {
  ssize_t written = ::send(STDERR_FILENO, line.data(), line.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (written >= 0 || errno != ENOTSOCK) return written >= 0;
  pollfd stream{STDERR_FILENO, POLLOUT, 0};
  if (::poll(&stream, 1, 0) <= 0 || (stream.revents & POLLOUT) == 0) return false;
  written = ::write(STDERR_FILENO, line.data(), line.size());
  return written >= 0;
}

}  // namespace

void log_line(const std::string& text) noexcept {
  const uint64_t missing = lost - lost_told;
  std::string line = "djinnd: " + text.substr(0, kTextBytesMax) + "\n";
  if (missing > 0) {
    line =
        "djinnd: " + std::to_string(missing) + " lines are missing here: nobody read them\n" + line;
  }
  if (write_now(line)) {
    lost_told += missing;
  } else {
    ++lost;
  }
}

uint64_t log_lines_lost() noexcept {
  return lost;
}

}  // namespace djinn::daemon
