#include "daemon/djinnd/log.h"

#include <unistd.h>

namespace djinn::daemon {

void log_line(const std::string& text) noexcept {
  const std::string line = "djinnd: " + text + "\n";
  // A log that cannot be written has nobody to tell.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace djinn::daemon
