// Spill: moves sequence groups of idle sessions to disk, and hears of their coming back (DESIGN
// section 4, Tiers). The worker copies, djinnd decides:
//
//   memory -> spilling     djinnd makes a file without a name and has the worker fill it
//   spilling -> spilled    the worker said that all is written: djinnd frees the memory
//   spilling -> memory     it could not be written, or the worker died: nothing has changed
//   spilled -> memory      the group's next use: the worker asked for a grant, read the file, and
//                          said so; the file goes
//
// invariant: a group that is spilled has no memory but what was granted for its way back.
// invariant: a worker that dies changes nothing: what is spilled then is in its file, the rest is
// in memory. What is spilled holds what users wrote; the file goes with the group, whatever ends
// that.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/djinnd/domains.h"
#include "daemon/djinnd/events.h"
#include "daemon/djinnd/memory.h"
#include "daemon/djinnd/session.h"
#include "kernel/base/clock.h"

namespace djinn::daemon {

struct SpillRules {
  std::string directory;      // empty: nothing is spilled
  uint64_t idle_ms = 60'000;  // who ran nothing for so long gives way to the first threshold
};

class Spill {
 public:
  struct World {
    const Clock& clock;
    Memory& memory;
    Domains& domains;
    Events& events;
    const std::map<SessionId, std::unique_ptr<Session>>& sessions;
  };
  Spill(const World& world, SpillRules rules) : world_(world), rules_(std::move(rules)) {}

  void set_idle_ms(uint64_t ms) { rules_.idle_ms = ms; }

  // Begins with groups of sessions that run nothing, least recently used first, until so many bytes
  // are on their way; gives how many are. idle_only: those that have run nothing for a while.
  uint64_t begin(uint64_t bytes, bool idle_only);
  // Of groups that could go at once.
  [[nodiscard]] uint64_t evictable_bytes() const;
  // Of groups that are on their way out.
  [[nodiscard]] uint64_t leaving_bytes() const;
  // Until a group has been idle for a while that is not yet; nothing where there is none.
  [[nodiscard]] std::optional<uint64_t> ms_to_next_idle() const;
  // Whether the domain's worker writes or reads a group: steps may wait for that.
  [[nodiscard]] bool moves_any(DomainId domain) const;

  // Looks whether the session has done something since the last look.
  void note_use(Session& session, const gc::Progress& progress) const;

  // --- workers
  // False when the worker says what cannot be.
  bool hear(const Session& session, SequenceGroup& group, const ipc::SequenceSpilled& event);
  void restored(const Session& session, SequenceGroup& group);
  void worker_died(const Session& session, SequenceGroup& group);

 private:
  struct Candidate {
    Session* session;
    SequenceGroup* group;
  };
  [[nodiscard]] std::vector<Candidate> candidates(bool idle_only) const;
  [[nodiscard]] bool may_spill(const Session& session) const;
  [[nodiscard]] bool is_idle(const Session& session) const;
  Status begin(const Candidate& candidate);
  Result<Fd> make_file();
  void put_off(SequenceGroup& group);
  void tell(EventKind kind, const Session& session, uint64_t bytes, const char* what);

  World world_;
  SpillRules rules_;
  uint64_t not_before_ns_ = 0;  // no file could be made
};

// A group's memory is freed; false: its bytes are still there.
[[nodiscard]] bool free_memory_of(const SequenceGroup& group);

}  // namespace djinn::daemon
