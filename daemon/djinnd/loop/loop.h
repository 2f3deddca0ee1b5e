// SPDX-License-Identifier: Apache-2.0

// Loop: the one event loop of djinnd, libuv's, and what hangs on it. Everything runs on its thread.
//
//   Poll      tells when a descriptor is readable or writable
//   Timer     calls once, or again and again
//   Signal    calls when the process gets a signal
//   Check     calls after each look at descriptors, once all that were ready have been told of
//   Wake      calls when another thread asked for it
//
// invariant: once a Poll, Timer, Signal, Check or Wake is destroyed its function is not called any
// more. A function may destroy the object that called it only through defer().
#pragma once

#include <uv.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace djinn::daemon {

class Loop {
 public:
  Loop();
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Runs until stop(), or until nothing is watched any more.
  void run();
  void stop();

  // Calls task soon, outside of every function of Poll, Timer and Signal; in the order of the
  // calls.
  void defer(std::function<void()> task);
  // Whoever stands behind what is deferred is about to go: it is destroyed, and not done.
  void drop_deferred();
  // Destroys object soon: for what may be in the middle of one of its own functions.
  template <typename T>
  void dispose(std::unique_ptr<T> object) {
    if (object) defer([kept = std::shared_ptr<T>(std::move(object))] {});
  }

  [[nodiscard]] uv_loop_t* raw() { return &loop_; }

 private:
  void run_deferred();

  uv_loop_t loop_{};
  uv_async_t wake_{};
  std::vector<std::function<void()>> deferred_;
};

// A libuv handle closes some time after its owner: it lives on the heap until libuv lets go of it.
template <typename Handle>
struct CloseHandle {
  void operator()(Handle* handle) const {
    handle->data = nullptr;
    uv_close(reinterpret_cast<uv_handle_t*>(handle),
             [](uv_handle_t* closed) { delete reinterpret_cast<Handle*>(closed); });
  }
};
template <typename Handle>
using OwnedHandle = std::unique_ptr<Handle, CloseHandle<Handle>>;

class Poll {
 public:
  // fd stays the caller's, who closes it after this is destroyed.
  Poll(Loop& loop, int fd, std::function<void()> ready);

  void watch_readable() { watch(UV_READABLE); }
  void watch_writable() { watch(UV_WRITABLE); }
  void watch_both() { watch(UV_READABLE | UV_WRITABLE); }
  void pause();

 private:
  void watch(int events);

  std::function<void()> ready_;
  OwnedHandle<uv_poll_t> handle_;
};

class Timer {
 public:
  Timer(Loop& loop, std::function<void()> fire);

  void start_once(uint64_t after_ms);
  void stop();
  [[nodiscard]] bool active() const;

 private:
  static void fired(uv_timer_t* handle);

  std::function<void()> fire_;
  OwnedHandle<uv_timer_t> handle_;
};

// Does not keep the loop running.
class Wake {
 public:
  Wake(Loop& loop, std::function<void()> woken);

  // Any thread, as long as this lives; never waits. Calls that come together are one.
  void call() { uv_async_send(handle_.get()); }

 private:
  std::function<void()> woken_;
  OwnedHandle<uv_async_t> handle_;
};

// Does not keep the loop running.
class Check {
 public:
  Check(Loop& loop, std::function<void()> polled);

 private:
  std::function<void()> polled_;
  OwnedHandle<uv_check_t> handle_;
};

class Signal {
 public:
  Signal(Loop& loop, int number, std::function<void()> caught);

 private:
  std::function<void()> caught_;
  OwnedHandle<uv_signal_t> handle_;
};

}  // namespace djinn::daemon
