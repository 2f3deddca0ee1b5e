#include "djinnctl/output.h"

#include <errno.h>
#include <unistd.h>

namespace djinn::ctl {
namespace {

Status write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return system_error("write the result", errno);
    text.remove_prefix(static_cast<size_t>(written));
  }
  return {};
}

}  // namespace

Status write_out(std::string_view text) {
  return write_all(STDOUT_FILENO, text);
}

void write_error(std::string_view text) {
  // Nobody is left to tell when stderr fails.
  (void)write_all(STDERR_FILENO, text);
}

bool out_is_terminal() {
  return ::isatty(STDOUT_FILENO) == 1;
}

}  // namespace djinn::ctl
