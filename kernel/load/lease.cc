// SPDX-License-Identifier: Apache-2.0

#include "kernel/load/lease.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>

namespace djinn::load {

ReadLease ReadLease::take(const Fd& fd) {
  // Before the lease: a break in between would send SIGIO, which ends a process.
  if (::fcntl(fd.get(), F_SETSIG, SIGURG) != 0) return {nullptr, false};
  if (::fcntl(fd.get(), F_SETLEASE, F_RDLCK) == 0) return {&fd, false};
  return {nullptr, errno == EAGAIN};
}

bool ReadLease::held() {
  if (fd_ == nullptr) return false;
  if (::fcntl(fd_->get(), F_GETLEASE) == F_RDLCK) return true;
  release();
  written_ = true;
  return false;
}

void ReadLease::release() noexcept {
  // It may have ended by itself: nothing is left to do then.
  if (fd_ != nullptr) static_cast<void>(::fcntl(fd_->get(), F_SETLEASE, F_UNLCK));
  fd_ = nullptr;
}

}  // namespace djinn::load
