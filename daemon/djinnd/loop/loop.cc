// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/loop/loop.h"

#include <utility>

#include "kernel/base/assert.h"

namespace djinn::daemon {

Loop::Loop() {
  DJINN_ASSERT(uv_loop_init(&loop_) == 0);
  DJINN_ASSERT(uv_async_init(&loop_, &wake_, [](uv_async_t* wake) {
                 static_cast<Loop*>(wake->data)->run_deferred();
               }) == 0);
  wake_.data = this;
  uv_unref(reinterpret_cast<uv_handle_t*>(&wake_));
}

Loop::~Loop() {
  drop_deferred();
  uv_close(reinterpret_cast<uv_handle_t*>(&wake_), nullptr);
  // libuv frees the closed handles.
  while (uv_run(&loop_, UV_RUN_NOWAIT) != 0) {
  }
  DJINN_ASSERT(uv_loop_close(&loop_) == 0);
}

void Loop::run() {
  uv_run(&loop_, UV_RUN_DEFAULT);
}

void Loop::stop() {
  uv_stop(&loop_);
}

void Loop::defer(std::function<void()> task) {
  DJINN_ASSERT(task != nullptr);
  if (deferred_.empty()) uv_async_send(&wake_);
  deferred_.push_back(std::move(task));
}

// Destroying a deferred call may defer more.
void Loop::drop_deferred() {
  while (!deferred_.empty()) std::exchange(deferred_, {}).clear();
}

void Loop::run_deferred() {
  std::vector<std::function<void()>> tasks = std::exchange(deferred_, {});
  for (auto& task : tasks) task();
}

// --- Poll

Poll::Poll(Loop& loop, int fd, std::function<void()> ready)
    : ready_(std::move(ready)), handle_(new uv_poll_t) {
  DJINN_ASSERT(uv_poll_init(loop.raw(), handle_.get(), fd) == 0);
  handle_->data = this;
}

void Poll::watch(int events) {
  const int failed = uv_poll_start(handle_.get(), events, [](uv_poll_t* handle, int, int) {
    // The function sees an error again in its own call on the descriptor.
    if (handle->data != nullptr) static_cast<Poll*>(handle->data)->ready_();
  });
  DJINN_ASSERT(failed == 0);
}

void Poll::pause() {
  uv_poll_stop(handle_.get());
}

// --- Timer

Timer::Timer(Loop& loop, std::function<void()> fire)
    : fire_(std::move(fire)), handle_(new uv_timer_t) {
  DJINN_ASSERT(uv_timer_init(loop.raw(), handle_.get()) == 0);
  handle_->data = this;
}

void Timer::fired(uv_timer_t* handle) {
  if (handle->data != nullptr) static_cast<Timer*>(handle->data)->fire_();
}

void Timer::start_once(uint64_t after_ms) {
  uv_update_time(handle_->loop);
  const int failed = uv_timer_start(handle_.get(), &Timer::fired, after_ms, 0);
  DJINN_ASSERT(failed == 0);
}

void Timer::stop() {
  uv_timer_stop(handle_.get());
}

bool Timer::active() const {
  return uv_is_active(reinterpret_cast<const uv_handle_t*>(handle_.get())) != 0;
}

// --- Wake

Wake::Wake(Loop& loop, std::function<void()> woken)
    : woken_(std::move(woken)), handle_(new uv_async_t) {
  handle_->data = this;
  DJINN_ASSERT(uv_async_init(loop.raw(), handle_.get(), [](uv_async_t* handle) {
                 if (handle->data != nullptr) static_cast<Wake*>(handle->data)->woken_();
               }) == 0);
  uv_unref(reinterpret_cast<uv_handle_t*>(handle_.get()));
}

// --- Check

Check::Check(Loop& loop, std::function<void()> polled)
    : polled_(std::move(polled)), handle_(new uv_check_t) {
  handle_->data = this;
  DJINN_ASSERT(uv_check_init(loop.raw(), handle_.get()) == 0);
  uv_check_start(handle_.get(), [](uv_check_t* handle) {
    if (handle->data != nullptr) static_cast<Check*>(handle->data)->polled_();
  });
  uv_unref(reinterpret_cast<uv_handle_t*>(handle_.get()));
}

// --- Signal

Signal::Signal(Loop& loop, int number, std::function<void()> caught)
    : caught_(std::move(caught)), handle_(new uv_signal_t) {
  DJINN_ASSERT(uv_signal_init(loop.raw(), handle_.get()) == 0);
  handle_->data = this;
  const int failed = uv_signal_start(
      handle_.get(),
      [](uv_signal_t* handle, int) {
        if (handle->data != nullptr) static_cast<Signal*>(handle->data)->caught_();
      },
      number);
  DJINN_ASSERT(failed == 0);
}

}  // namespace djinn::daemon
