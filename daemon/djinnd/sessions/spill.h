// SPDX-License-Identifier: Apache-2.0

// Spill: which sequence groups go to disk (ARCHITECTURE section 4, Tiers): those of sessions that
// run nothing, least recently used first; a GPU's stay. Sequences moves them. The worker reads a
// group between two steps, so none goes that would wait for a long one.
//
// invariant: all that is on disk or on its way there is at most the limit.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/djinnd/memory/devices.h"
#include "daemon/djinnd/sessions/deaths.h"
#include "daemon/djinnd/sessions/lane_steps.h"
#include "daemon/djinnd/sessions/session.h"
#include "daemon/djinnd/workers/domains.h"
#include "kernel/base/clock.h"

namespace djinn::daemon {

struct SpillRules {
  std::string directory;      // empty: nothing is spilled
  uint64_t idle_ms = 60'000;  // who ran nothing for so long gives way to the first threshold
  uint64_t limit_bytes = 0;   // of all that is on disk or on its way there
  bool is_wanted = false;     // a directory that is empty all the same is a fault
};

class Spill {
 public:
  struct Candidate {
    Session* session;
    SequenceGroup* group;
  };

  Spill(const Clock& clock, const Devices& devices, const Domains& domains,
        const SessionTable& sessions, const LaneSteps& lane_steps, const Deaths& deaths,
        SpillRules rules)
      : clock_(clock),
        devices_(devices),
        domains_(domains),
        sessions_(sessions),
        lane_steps_(lane_steps),
        deaths_(deaths),
        rules_(std::move(rules)) {}

  void set_idle_ms(uint64_t ms) { rules_.idle_ms = ms; }
  // What is there already may stay.
  void set_limit(uint64_t bytes) { rules_.limit_bytes = bytes; }
  [[nodiscard]] const std::string& directory() const { return rules_.directory; }

  // Of the device, least recently used first, as many as the limit has room for. idle_only: those
  // of sessions that have run nothing for a while.
  [[nodiscard]] std::vector<Candidate> candidates(DeviceId device, bool idle_only) const;
  // Whether the session's groups may go now.
  [[nodiscard]] bool may_spill(const Session& session) const;
  // The bytes of the device's groups that could go at once.
  [[nodiscard]] uint64_t evictable_bytes(DeviceId device) const;
  // Likewise, and of those that could as soon as the successor of a dead worker has them.
  [[nodiscard]] uint64_t evictable_soon_bytes(DeviceId device) const;
  // The bytes of groups that are on disk.
  [[nodiscard]] uint64_t spilled_bytes() const;
  // How long until another group there has been idle for a while; nothing where there is none.
  [[nodiscard]] std::optional<uint64_t> ms_to_next_idle(DeviceId device) const;

  // Looks whether the session has done something since the last look.
  void note_use(Session& session, const gc::Progress& progress) const;
  // No file could be made: no group is a candidate for a while. Gives whether that is news.
  bool note_failure(const std::string& why);
  void note_success() { fault_.clear(); }
  // Why nothing can be spilled, as far as anybody has tried; empty: it can, or nobody wants it.
  [[nodiscard]] const std::string& fault() const { return fault_; }
  [[nodiscard]] bool is_wanted() const { return rules_.is_wanted; }
  // Whether it has run nothing for a while, as of the last look.
  [[nodiscard]] bool is_idle(const Session& session) const;
  // How long until it has; one that has is looked at again after a whole while.
  [[nodiscard]] uint64_t ms_to_idle(const Session& session) const;
  // When a group that could not be spilled may be tried again, by the monotonic clock.
  [[nodiscard]] uint64_t retry_ns() const;

 private:
  // Whether the session has nothing to do that would use its groups.
  [[nodiscard]] bool rests(const Session& session) const;
  // Of sessions whose groups may go.
  [[nodiscard]] std::vector<Candidate> candidates(
      DeviceId device, bool idle_only, const std::function<bool(const Session&)>& may_go) const;
  // Whether groups of the device can go to disk at all.
  [[nodiscard]] bool can_spill(DeviceId device) const;
  // The bytes of groups that are on their way to disk.
  [[nodiscard]] uint64_t spilling_bytes() const;

  const Clock& clock_;
  const Devices& devices_;
  const Domains& domains_;
  const SessionTable& sessions_;
  const LaneSteps& lane_steps_;
  const Deaths& deaths_;
  SpillRules rules_;
  uint64_t not_before_ns_ = 0;
  std::string fault_;
};

}  // namespace djinn::daemon
