// SPDX-License-Identifier: Apache-2.0

// ReadLease: while it is held nobody has the file open for writing, through a mapping or otherwise
// (F_SETLEASE, fcntl(2)). Whoever wants to waits meanwhile, at most for the kernel's
// lease-break-time: so it is held while a file is read, looked at now and then, and let go of as
// soon as somebody waits.
//
//   held      it was taken, and nobody has waited yet
//   written   it was refused, or has ended, because somebody has the file open for writing
//   neither   the kernel gives none: the file is another user's, or its file system knows no leases
//
// WatchedLeases: those of all files of a load, and a thread that looks at them: a disk may keep a
// read for long, and a writer must not wait for that. It looks by the clock, since the kernel's
// signal goes where whoever shares the open file description says.
#pragma once

#include <pthread.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernel/base/fd.h"
#include "kernel/base/result.h"

namespace djinn::load {

class ReadLease {
 public:
  // fd outlives it. Needs CAP_LEASE for files of others. Takes no signal: the kernel's, when
  // somebody waits, is set to one that is ignored by default.
  static ReadLease take(const Fd& fd);
  ~ReadLease() { release(); }
  ReadLease(ReadLease&& other) noexcept
      : fd_(std::exchange(other.fd_, nullptr)), written_(other.written_) {}
  ReadLease& operator=(ReadLease&&) = delete;

  // Asks the kernel, and lets go where somebody waits.
  bool held();
  [[nodiscard]] bool written() const noexcept { return written_; }
  void release() noexcept;

 private:
  ReadLease(const Fd* fd, bool written) : fd_(fd), written_(written) {}

  const Fd* fd_;  // while it is held
  bool written_;
};

class WatchedLeases {
 public:
  WatchedLeases() = default;
  ~WatchedLeases() { stop(); }
  WatchedLeases(const WatchedLeases&) = delete;

  // Once; of each file that one can be had for. The files outlive it. Errors: kSystem (no thread).
  Status take(std::span<const Fd* const> files);
  // Lets go of all. Whether all were held until now, so that nobody had a file open for writing.
  bool end_held();

 private:
  void watch();
  void look();
  void stop();

  std::vector<ReadLease> leases_;  // the watcher's while there is one
  std::optional<pthread_t> watcher_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool ends_ = false;  // guarded by mutex_
};

}  // namespace djinn::load
