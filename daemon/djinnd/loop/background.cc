// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/loop/background.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <system_error>
#include <utility>

#include "daemon/djinnd/loop/log.h"
#include "kernel/base/assert.h"

namespace djinn::daemon {
namespace {

// On Linux the priority belongs to this thread alone.
void take_ordinary_priority() {
  const auto self = static_cast<id_t>(::gettid());
  if (::getpriority(PRIO_PROCESS, self) < 0) ::setpriority(PRIO_PROCESS, self, 0);
}

}  // namespace

Result<std::thread> start_thread(const char* name, std::function<void()> work) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  Result<std::thread> started = Error{ErrorCode::kSystem, "No thread could be started."};
  try {
    started = std::thread([work = std::move(work)] {
      take_ordinary_priority();
      work();
    });
    ::pthread_setname_np(started.value().native_handle(), name);
  } catch (const std::system_error& error) {
    started = system_error("start a thread", error.code().value());
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

Background::Background(const char* name, size_t backlog_max) : backlog_max_(backlog_max) {
  auto started = start_thread(name, [state = state_] { run(*state); });
  if (started.ok()) {
    thread_ = *std::move(started);
  } else {
    log("there is no thread for the {}: {}", name, started.error().message);
  }
}

Background::~Background() {
  if (!thread_.joinable()) return;
  std::unique_lock lock(state_->mutex);
  state_->stopping = true;
  state_->changed.notify_all();
  const bool done = state_->changed.wait_for(lock, std::chrono::milliseconds(kPatienceMs), [this] {
    return state_->backlog.empty() && !state_->busy;
  });
  lock.unlock();
  if (done) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

bool Background::post(Work work) {
  if (backlog() < backlog_max_) {
    post_surely(std::move(work));
    return true;
  }
  ++lost_;
  return false;
}

void Background::post_surely(Work work) {
  DJINN_ASSERT(work != nullptr);
  if (!thread_.joinable()) return work();
  const std::lock_guard lock(state_->mutex);
  state_->backlog.push_back(std::move(work));
  state_->changed.notify_all();
}

size_t Background::backlog() const {
  const std::lock_guard lock(state_->mutex);
  return state_->backlog.size();
}

void Background::run(State& state) {
  std::unique_lock lock(state.mutex);
  while (true) {
    state.changed.wait(lock, [&] { return state.stopping || !state.backlog.empty(); });
    if (state.backlog.empty()) return;
    Work work = std::move(state.backlog.front());
    state.backlog.pop_front();
    DJINN_ASSERT(!state.busy);
    state.busy = true;
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
    state.busy = false;
    state.changed.notify_all();
  }
}

}  // namespace djinn::daemon
