// SPDX-License-Identifier: Apache-2.0

#include "kernel/base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

namespace djinn {

void Fd::reset() noexcept {
  // Linux frees the descriptor even when close reports EINTR or EIO, so there is nothing to repeat.
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

Result<Fd> Fd::duplicate() const {
  const int copy = ::fcntl(fd_, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return system_error("duplicate a descriptor", errno);
  return Fd(copy);
}

}  // namespace djinn
