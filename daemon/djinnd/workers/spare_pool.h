// SPDX-License-Identifier: Apache-2.0

// SparePool: keeps one process of a kind started in advance, because a start takes longer than
// anybody should wait: LibTorch's half a second for a worker, a few milliseconds for a loader.
//
//   spare    started, confined, warm, and nobody's
//   taker    who needs one; gets the spare, or the next one as soon as it is ready
//
// A spare that dies before it was ready is started again, later each time. So is one of another
// build, which an upgrade has put in place of ours, but nobody waits for that: it takes a restart
// of djinnd.
//
// Of a kind that costs too much to be kept, as a GPU's workers, whose contexts take its memory, one
// is started when somebody waits for it, and none in advance. Where nobody waits any more when it
// is ready, it ends.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "daemon/djinnd/loop/loop.h"
#include "daemon/djinnd/workers/child_process.h"
#include "daemon/djinnd/workers/recovery.h"
#include "kernel/base/kernel_table.h"

namespace djinn::daemon {

// What a child said when it was ready.
struct ChildReady {
  uint32_t threads = 0;  // workers only
  uint32_t landlock_abi = 0;
  bool seccomp = false;
  std::string isa{};                     // workers only: what their own kernels are made of
  std::optional<KernelTable> kernels{};  // workers only: what products give
};

struct ReadyChild {
  std::unique_ptr<ChildProcess> process;
  ChildReady ready;
};

class SparePool {
 public:
  using Taker = std::function<void(ReadyChild)>;
  struct Kind {
    const char* name;
    ErrorCode lost;  // what who needs one is told while none can be started
    // The time from when a spare was taken to the start of the next, which would compete for cores
    // with whoever needed the spare in a hurry.
    uint64_t next_after_ms = 0;
    std::function<ChildProgram()> program;  // of the next child
    // The first message of a child, read; nothing if it is not the ready message.
    std::function<std::optional<ChildReady>(const ipc::Datagram&)> read_ready;
    Traffic& traffic;           // with all of the kind
    bool is_on_demand = false;  // none is kept
  };
  SparePool(const ChildHost& host, Kind kind);

  // Starts the first spare, of a kind that is kept.
  void start();
  // taker is called once, never from within, if wanted lives until then: who wants none any more
  // takes none from those who stand behind.
  void take(std::weak_ptr<const bool> wanted, Taker taker);
  // A child that is about to say again that it is ready, and is nobody's from then on.
  void give_back(std::unique_ptr<ChildProcess> child);

  // Whether one is warm, and nobody waits for it; of a kind that is not kept nobody waits for that.
  [[nodiscard]] bool has_spare() const {
    if (kind_.is_on_demand) return true;
    return ready_.has_value() && std::ranges::all_of(waiting_, &wants_none);
  }
  // Whether so many children in a row died before they were ready that those who wait should know.
  [[nodiscard]] bool fails() const { return failures_ >= kFailuresMax || other_build_; }
  // Whether what is installed is of another build than this djinnd, as far as is known: until a
  // child is ready. In the middle of an upgrade there may be no program for a moment.
  [[nodiscard]] bool has_other_build() const { return other_build_; }
  // Says to a client why none can be started. Precondition: it fails.
  [[nodiscard]] Error failure() const;
  // What the last one said that was ready; null: none ever was.
  [[nodiscard]] const ChildReady* last_ready() const {
    return last_ready_ ? &*last_ready_ : nullptr;
  }
  // Called when it begins to fail, when it does no more, and when another build is why.
  void on_change(std::function<void()> changed) { changed_ = std::move(changed); }

 private:
  // In the child's own time: to load LibTorch under a CPU quota of a few percent takes minutes.
  static constexpr uint64_t kReadyTimeoutMs = 60'000;
  static constexpr uint64_t kReadyLookMs = kReadyTimeoutMs / 8;
  static constexpr uint32_t kFailuresMax = 3;

  struct Waiting {
    std::weak_ptr<const bool> wanted;
    Taker taker;
  };
  static bool wants_none(const Waiting& waiting) { return waiting.wanted.expired(); }

  void count(uint32_t failures, bool other_build);
  void start_child();
  void adopt(std::unique_ptr<ChildProcess> child);
  void look_at_start();
  void heard(const ipc::Datagram& message);
  void child_failed();
  void start_next(uint64_t after_ms);
  void end_spare();
  void serve();

  ChildHost host_;
  Loop& loop_;
  Kind kind_;
  std::unique_ptr<ChildProcess> child_;  // starting or spare
  std::optional<ChildReady> ready_;      // of child_
  OwnTime start_time_;                   // of child_, as long as it starts
  uint64_t start_looks_ = 0;             // likewise
  std::deque<Waiting> waiting_;
  BackOff back_off_;
  uint32_t failures_ = 0;
  bool other_build_ = false;
  bool other_device_ = false;  // the last one did not find the one that it was started for
  std::optional<ChildReady> last_ready_;
  std::function<void()> changed_;
  Timer start_timer_;
  Timer ready_timer_;
};

}  // namespace djinn::daemon
