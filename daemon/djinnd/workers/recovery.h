// SPDX-License-Identifier: Apache-2.0

// What djinnd concludes from the deaths and the silence of workers (ARCHITECTURE section 8). Pure.
//
//   DeathCount   of one session: deaths of workers in its step, with nothing committed between them
//   BackOff      how long to wait before the next worker
//   Quarantine   of one session: that its run ended a worker holds up the session itself, and not
//                those that the next worker serves as well
//   Newcomers    of one user: the sessions that have committed nothing yet have a quarantine in
//                common, since who connects anew for each worker that it ends has none of its own
//   OwnTime      of one worker: how much of the time it could have done something
//   HangWatch    whether a worker that has work does anything at all
#pragma once

#include <cstdint>
#include <optional>

#include "kernel/gc/session_state.h"

namespace djinn::daemon {

class DeathCount {
 public:
  // A worker died that served this session; progress is what the state head then said.
  void note(const gc::Progress& progress);
  [[nodiscard]] uint32_t deaths() const { return deaths_; }
  // The submission in flight met its last death: the next worker refuses it.
  [[nodiscard]] bool exhausted() const;
  // Refusing it kills as well: the session is to end.
  [[nodiscard]] bool hopeless() const;

 private:
  uint32_t deaths_ = 0;
  uint64_t commit_ = 0;  // at the last death
};

class BackOff {
 public:
  static constexpr uint64_t kFirstMs = 50;
  static constexpr uint64_t kMaxMs = 5000;

  static_assert(kFirstMs <= kMaxMs);

  // A worker died; progressed: something was committed or acknowledged since the death before.
  // Gives the milliseconds to wait: none at first, then doubling.
  uint64_t after_death(bool progressed);

 private:
  uint32_t fruitless_ = 0;
};

class Quarantine {
 public:
  // A worker died in a step of the session; went_on: something of it was done since the death
  // before, other than refusing the run that met it.
  void note_death(bool went_on, uint64_t now_ns);
  // Whether a worker may have the session. After a first death at once; after others in a row when
  // the back-off is over and a spare is warm: if it kills this worker too, nobody waits for a
  // start.
  [[nodiscard]] bool is_over(uint64_t now_ns, bool has_spare) const;

 private:
  BackOff back_off_;
  uint64_t until_ns_ = 0;
  bool needs_spare_ = false;
};

class Newcomers {
 public:
  // A session of the user ended a worker in a step, for the first time.
  void note_death(uint64_t now_ns);
  // The same as of Quarantine, for sessions that have committed nothing.
  [[nodiscard]] bool is_over(uint64_t now_ns, bool has_spare) const;

 private:
  // A session that lets so much time pass between two deaths ends fewer workers than the back-off
  // allows.
  static constexpr uint64_t kForgottenAfterMs = 2 * BackOff::kMaxMs;

  Quarantine quarantine_;
  uint64_t last_ns_ = 0;
};

// A worker that others on the machine, or a quota (cpu.max), leave a part of a processor is not to
// blame for the rest. Whether it waited for a processor or for something else nobody tells who may
// not look into its /proc. So what computes a little counts as held up: its time is what its
// threads have computed. What computes next to nothing counts as standing still, and what has a
// processor of its own is not held up, however many it would like to have: then its time is the
// clock's.
//
// invariant: between two looks it passes no faster than the clock, and a kSlowest-th as fast at
// least, if the looks come when they are due. So who computes a little and waits otherwise, be it
// on purpose, is found no later than that.
class OwnTime {
 public:
  // Less of a processor is next to nothing.
  static constexpr uint64_t kSlowest = 100;

  // now_ns: monotonic. cpu_ns: what the worker's threads have computed so far; 0 where nobody
  // knows. due_ns: how long after the look before this one was to come. What it comes later djinnd
  // did not run either: the host was suspended, say, or all of the group frozen.
  // Gives the worker's time, in ns since the first look.
  uint64_t look(uint64_t now_ns, uint64_t cpu_ns, uint64_t due_ns);

 private:
  uint64_t time_ns_ = 0;
  std::optional<uint64_t> looked_ns_;
  uint64_t cpu_ns_ = 0;
};

class HangWatch {
 public:
  explicit HangWatch(uint64_t timeout_ns) : timeout_ns_(timeout_ns) {}

  struct Sample {
    bool has_work = false;  // a step is running, a bell was rung, or a command is unanswered
    uint64_t activity = 0;  // changes whenever the worker did anything
    bool patient = false;   // what it does shows no activity: mapping a model, for example
  };
  // True when the worker had work and did nothing for the whole timeout; patient work has several.
  // now_ns: as OwnTime says.
  bool look(uint64_t now_ns, const Sample& sample);
  // The last look saw a sign of life.
  [[nodiscard]] bool is_fresh(uint64_t now_ns) const { return since_ == now_ns; }
  void reset() { since_.reset(); }

 private:
  static constexpr uint64_t kPatience = 6;

  uint64_t timeout_ns_;
  uint64_t activity_ = 0;
  std::optional<uint64_t> since_;  // has had work without activity
};

}  // namespace djinn::daemon
