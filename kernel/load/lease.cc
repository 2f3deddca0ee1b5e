// SPDX-License-Identifier: Apache-2.0

#include "kernel/load/lease.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>

#include <algorithm>
#include <chrono>

#include "kernel/base/assert.h"

namespace djinn::load {
namespace {

// A lease is looked at this often, so a writer may wait this long.
constexpr std::chrono::milliseconds kLookEvery{10};

}  // namespace

ReadLease ReadLease::take(const Fd& fd) {
  // The signal is set before the lease, because a break in between would send SIGIO, which ends a
  // process.
  if (::fcntl(fd.get(), F_SETSIG, SIGURG) != 0) return {nullptr, false};
  if (::fcntl(fd.get(), F_SETLEASE, F_RDLCK) != 0) return {nullptr, errno == EAGAIN};
  // The lease has made this process the one that is signalled. Another process that shares the
  // description may choose a different signal, such as SIGSTOP, so the owner is cleared.
  ReadLease taken(&fd, false);
  if (::fcntl(fd.get(), F_SETOWN, 0) != 0) taken.release();
  return taken;
}

bool ReadLease::held() {
  if (fd_ == nullptr) return false;
  if (::fcntl(fd_->get(), F_GETLEASE) == F_RDLCK) return true;
  release();
  written_ = true;
  return false;
}

void ReadLease::release() noexcept {
  // The lease may have ended by itself. Then the call does nothing.
  if (fd_ != nullptr) static_cast<void>(::fcntl(fd_->get(), F_SETLEASE, F_UNLCK));
  fd_ = nullptr;
}

Status WatchedLeases::take(std::span<const Fd* const> files) {
  DJINN_ASSERT(leases_.empty() && !watcher_);
  for (const Fd* file : files) leases_.push_back(ReadLease::take(*file));
  if (std::ranges::none_of(leases_, &ReadLease::held)) return {};
  pthread_t watcher{};
  const auto run = [](void* self) -> void* {
    static_cast<WatchedLeases*>(self)->watch();
    return nullptr;
  };
  const int error = ::pthread_create(&watcher, nullptr, run, this);
  if (error != 0) return system_error("start a thread that watches leases", error);
  watcher_ = watcher;
  return {};
}

void WatchedLeases::watch() {
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, kLookEvery, [this] { return ends_; })) look();
}

void WatchedLeases::look() {
  for (ReadLease& lease : leases_) static_cast<void>(lease.held());
}

void WatchedLeases::stop() {
  if (!watcher_) return;
  {
    const std::scoped_lock lock(mutex_);
    ends_ = true;
  }
  ended_.notify_one();
  ::pthread_join(*std::exchange(watcher_, std::nullopt), nullptr);
}

bool WatchedLeases::end_held() {
  stop();
  const bool held = std::ranges::all_of(leases_, &ReadLease::held);
  leases_.clear();
  return held;
}

}  // namespace djinn::load
