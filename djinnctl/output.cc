// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/output.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>

#include "djinnctl/text.h"
#include "kernel/base/text.h"

namespace djinn::ctl {
namespace {

// This is the width of a terminal that does not tell its own, such as a serial line.
constexpr size_t kColumnsStandard = 80;

// Tells whether stderr's cursor stands behind a line that can be rewritten. This is a global
// because the process has one stderr, and because nothing can be passed to the handler of
// --timeout.
std::atomic<bool> error_line_is_open = false;
static_assert(std::atomic<bool>::is_always_lock_free);

Status write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    // The error is of I/O even if the disk is full, because a full disk is not a lack of memory.
    if (written < 0) {
      return Error{ErrorCode::kIo, system_error("write the result", errno).message};
    }
    text.remove_prefix(static_cast<size_t>(written));
  }
  return {};
}

std::string_view variable(const char* name) {
  const char* const value = ::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

Terminal terminal_of(int fd) {
  Terminal terminal;
  if (::isatty(fd) != 1) return terminal;
  const std::string_view kind = variable("TERM");
  terminal.is_terminal = true;
  terminal.rewrites_lines = !kind.empty() && kind != "dumb";
  terminal.takes_escapes = terminal.rewrites_lines && variable("NO_COLOR").empty();
  winsize size{};
  const bool known = ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  terminal.columns = known ? size.ws_col : kColumnsStandard;
  return terminal;
}

std::string sentence_for(const Terminal& terminal, std::string_view sentence) {
  const std::string text = showable(sentence);
  return terminal.is_terminal ? isolated_within(text) : text;
}

Status write_out(std::string_view text) {
  return write_all(STDOUT_FILENO, text);
}

void write_error(std::string_view text) {
  // If stderr fails, nobody is left to tell.
  if (error_line_is_open.exchange(false)) (void)write_all(STDERR_FILENO, "\n");
  (void)write_all(STDERR_FILENO, text);
}

void rewrite_error_line(std::string_view line, size_t columns) {
  std::string text = "\r" + std::string(line);
  const size_t shown = width_of(line);
  // Blanks clear the line, because every terminal knows them, and not an escape code.
  if (shown + 1 < columns) text.append(columns - 1 - shown, ' ');
  if (line.empty()) text += '\r';
  // The flag is set before the write: a signal between the two then takes the line for open, and
  // not for missing.
  if (!line.empty()) error_line_is_open = true;
  (void)write_all(STDERR_FILENO, text);
  if (line.empty()) error_line_is_open = false;
}

bool out_is_terminal() {
  return ::isatty(STDOUT_FILENO) == 1;
}

}  // namespace djinn::ctl
