// SPDX-License-Identifier: Apache-2.0

// Machine: what a simulated djinnd runs on: its time, its threads and who is heard next. One seed
// decides all of it.
//
//   event     what happens next: a descriptor that is ready, a timer that is due, a call that a
//             thread asked for, a piece of work of a thread's, the checks after a look
//   work      what threads would do, in the order of its coming for each owner
//   fault     what may fail does, one time in so many, while faults are on
//   mistake   a mistake that a test plants, to see that it is found
//
// The functions of libuv that djinnd's loop calls (fake_uv.cc), and those of its threads, children,
// listener and extents, are this folder's own. They find the machine with current(): none of them
// has a place for it. So a process has one machine at a time.
//
// invariant: what happens depends on the seed alone.
#pragma once

#include <fmt/format.h>
#include <uv.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "daemon/djinnd/simulation/door.h"
#include "daemon/djinnd/simulation/memory_book.h"
#include "daemon/djinnd/simulation/processes.h"
#include "daemon/djinnd/simulation/systemd.h"
#include "kernel/base/clock.h"
#include "kernel/base/device_id.h"
#include "kernel/base/random.h"

namespace djinn::daemon::simulation {

enum class Mistake : uint8_t {
  kNone,
  kFreedIsNotTold,       // memory is freed, and its account never hears of it
  kDeathIsNotSeen,       // a worker ends, and nobody is told
  kWakeIsLost,           // a call for the loop that comes while one waits is dropped with it
  kLeaseOutlives,        // a session's lease on a model stays when it has left
  kExtentIsForgotten,    // memory is taken off the account, and stays
  kDeviceIsMixedUp,      // a model is taken for one of another device
  kStoreForgetsNothing,  // systemd keeps what it was told to forget
  kStopIsLost,           // the loop goes on when it was told to stop
  kClassIsMixedUp,       // a lane takes sessions of the class idle for interactive ones
  kTimeIsOvercharged,    // a lane charges some of its sessions for fifty times their steps
  kAccountOutlives,      // a lane's account of a session stays when it has left
  kDeathIsAlwaysNew,     // whoever has lost a worker has lost it just now
  kDeathIsAlwaysOld,     // or long ago
};

class Machine final : public Clock {
 public:
  Machine(uint64_t seed, Mistake mistake);
  ~Machine() override;
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  // The one that there is.
  static Machine& current();
  // Null where there is none.
  static Machine* current_or_null();

  // --- time
  [[nodiscard]] uint64_t monotonic_ns() const override { return now_ns_; }
  [[nodiscard]] uint64_t wall_ns() const override { return kEpochNs + now_ns_; }
  [[nodiscard]] uint64_t thread_cpu_ns() const override;
  [[nodiscard]] uint64_t now_ms() const { return now_ns_ / 1'000'000; }

  // --- chance
  [[nodiscard]] uint64_t below(uint64_t bound) { return random_.below(bound); }
  [[nodiscard]] uint64_t between(uint64_t least, uint64_t most) {
    return least + below(most - least + 1);
  }
  [[nodiscard]] bool one_in(uint64_t count) { return below(count) == 0; }
  // Whether what is about to be done fails.
  [[nodiscard]] bool fault(uint64_t one_in_count) { return faults_ && one_in(one_in_count); }
  void set_faults(bool on) { faults_ = on; }
  [[nodiscard]] bool faults() const { return faults_; }
  [[nodiscard]] Mistake mistake() const { return mistake_; }
  // No worker lives on a device that is lost.
  void set_lost(DeviceId device, bool lost) {
    lost ? void(lost_.insert(device)) : void(lost_.erase(device));
  }
  [[nodiscard]] bool is_lost(DeviceId device) const { return lost_.contains(device); }

  // --- events
  // Has the next one happen; where nothing is left to happen before until_ms, time passes until
  // then, and this gives false.
  bool step(uint64_t until_ms);
  [[nodiscard]] uint64_t events() const { return events_; }

  // --- what threads do. owner: of the thread.
  void post(const void* owner, std::function<void()> work);
  [[nodiscard]] size_t backlog(const void* owner) const;
  // The process is dead: nobody does what is left.
  void forget_work();
  // Does what is left, and forgets the owner.
  void finish(const void* owner);

  // --- libuv's handles
  void watch(uv_poll_t* handle, int fd, short events, uv_poll_cb call);
  void unwatch(const uv_poll_t* handle);
  void arm(uv_timer_t* handle, uint64_t after_ms, uv_timer_cb call);
  void disarm(const uv_timer_t* handle);
  [[nodiscard]] bool is_armed(const uv_timer_t* handle) const;
  void add(uv_async_t* handle, uv_async_cb call);
  void ring(const uv_async_t* handle);
  void add(uv_check_t* handle, uv_check_cb call);
  void close(uv_handle_t* handle, uv_close_cb closed);
  // Tells owners of closed handles that they are.
  void close_handles();

  // Whoever runs the loop is to return.
  void stop(const uv_loop_t* loop) {
    if (mistake_ != Mistake::kStopIsLost) stopped_ = loop;
  }
  [[nodiscard]] bool is_stopped(const uv_loop_t* loop) const { return stopped_ == loop; }

  // --- what happened
  template <typename... Args>
  void tell(fmt::format_string<Args...> format, Args&&... args) {
    tell_line(fmt::format(format, std::forward<Args>(args)...));
  }
  void tell_line(const std::string& line);
  // Of all that happened.
  [[nodiscard]] uint64_t hash() const { return hash_; }
  [[nodiscard]] std::vector<std::string> lines() const { return {lines_.begin(), lines_.end()}; }

  [[nodiscard]] Processes& processes() { return processes_; }
  [[nodiscard]] Door& door() { return door_; }
  [[nodiscard]] MemoryBook& memory() { return memory_; }
  [[nodiscard]] Systemd& systemd() { return systemd_; }

 private:
  static constexpr uint64_t kEpochNs = 1'700'000'000'000'000'000;
  static constexpr size_t kLinesKept = 20'000;

  struct Watched {
    uv_poll_t* handle;
    int fd;
    short events;
    uv_poll_cb call;
  };
  struct Armed {
    uv_timer_t* handle;
    uint64_t due_ms;
    uint64_t number;  // timers that are due at the same time fire in the order of their starts
    uv_timer_cb call;
  };
  struct Rung {
    uv_async_t* handle;
    uv_async_cb call;
    bool pending = false;
  };
  struct Checked {
    uv_check_t* handle;
    uv_check_cb call;
  };
  struct Work {
    const void* owner;
    std::deque<std::function<void()>> backlog;
    uint64_t not_before_ms = 0;
  };
  using Event = std::function<void()>;

  [[nodiscard]] std::vector<Event> possible_events();
  void add_ready_descriptors(std::vector<Event>& events);
  void do_next_work(const void* owner);
  [[nodiscard]] const Armed* next_timer() const;
  [[nodiscard]] uint64_t next_time_ms(uint64_t until_ms) const;
  void note(uint64_t value);

  Random random_;
  const Mistake mistake_;
  uint64_t now_ns_ = 1'000'000'000'000;
  mutable uint64_t cpu_ns_ = 0;
  bool faults_ = true;
  bool looked_ = false;  // descriptors were told of, and the checks not called yet
  std::set<DeviceId> lost_;
  uint64_t events_ = 0;
  uint64_t timers_started_ = 0;
  const uv_loop_t* stopped_ = nullptr;  // the last that was
  std::vector<Watched> polls_;
  std::vector<Armed> timers_;
  std::vector<Rung> asyncs_;
  std::vector<Checked> checks_;
  std::vector<std::pair<uv_handle_t*, uv_close_cb>> closing_;
  std::vector<Work> works_;
  std::deque<std::string> lines_;
  uint64_t hash_ = 0xcbf29ce484222325u;
  Door door_;
  MemoryBook memory_;
  Systemd systemd_;
  Processes processes_;
};

}  // namespace djinn::daemon::simulation
