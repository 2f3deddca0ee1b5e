// SPDX-License-Identifier: Apache-2.0

// A client that holds the inode of a memfd: its write to the memfd stands still in the page fault
// of its source, which it serves itself, and whoever else calls write, fallocate or ftruncate on
// the memfd waits for it.
#pragma once

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

#include "kernel/base/fd.h"

namespace djinn::daemon::testing {

class InodeHolder {
 public:
  static constexpr size_t kPage = 4096;

  // Holds once holds(). It does not work where the kernel lets nobody serve its faults:
  // has_begun().
  explicit InodeHolder(const Fd& memfd)
      : faults_(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK))) {
    source_ = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uffdio_api api{UFFD_API, 0, 0};
    uffdio_register range{
        {reinterpret_cast<uintptr_t>(source_), kPage}, UFFDIO_REGISTER_MODE_MISSING, 0};
    begun_ = faults_.valid() && ::ioctl(faults_.get(), UFFDIO_API, &api) == 0 &&
             ::ioctl(faults_.get(), UFFDIO_REGISTER, &range) == 0;
    if (!begun_) return;
    writer_ = std::thread([this, fd = memfd.get()] {
      // Behind all that somebody reads: in the staging slab.
      [[maybe_unused]] const ssize_t written = ::pwrite(fd, source_, 1, kBehindTheRings);
    });
  }
  ~InodeHolder() {
    let_go();
    ::munmap(source_, kPage);
  }
  InodeHolder(const InodeHolder&) = delete;
  InodeHolder& operator=(const InodeHolder&) = delete;

  [[nodiscard]] bool has_begun() const { return begun_; }
  void let_go() {
    if (!writer_.joinable()) return;
    uffdio_zeropage fill{{reinterpret_cast<uintptr_t>(source_), kPage}, 0, 0};
    ::ioctl(faults_.get(), UFFDIO_ZEROPAGE, &fill);
    writer_.join();
  }
  // The write has met its fault.
  [[nodiscard]] bool holds() {
    uffd_msg fault;
    return holds_ = holds_ || ::read(faults_.get(), &fault, sizeof fault) == sizeof fault;
  }

 private:
  static constexpr off_t kBehindTheRings = 256 * 1024;

  Fd faults_;
  void* source_ = nullptr;
  bool begun_ = false;
  bool holds_ = false;
  std::thread writer_;
};

}  // namespace djinn::daemon::testing
