// SPDX-License-Identifier: Apache-2.0

// Rings: the lane's sessions, and how it learns that one has submitted.
//
//   hot    a session that had work lately, or waits: its ring is looked at often, two loads, no
//   call cold   the ring of every other says that the lane sleeps: its client rings, and now and
//   then
//          one call asks for all bells. So idle clients cost a step nothing, however many there are
//   sleep  on all submission bells and the mailbox's, at once; none of them is read, since clients
//          have theirs, too (ipc/bell.h)
//
// invariant: while the thread sleeps, every session's ring says so, and each was looked at after
// that. Of a cold session both are so whatever the thread does.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "daemon/worker/seat.h"
#include "kernel/base/clock.h"
#include "kernel/base/fd.h"
#include "kernel/base/result.h"

namespace djinn::worker {

// Lane's thread, but make().
class Rings {
 public:
  // mailbox_bell: it wakes the lane like those of sessions.
  static Result<Rings> make(const Clock& clock, const Fd& mailbox_bell);

  // From then on the session's bell is heard. It needs no seat yet.
  Status watch(const Session& session);
  void unwatch(const Session& session);

  // The seat is hot. Precondition: the session has none.
  Seat& add(Session& session);
  // Of one without seat: nothing.
  void remove(SessionId id);
  // Precondition: the session has a seat.
  [[nodiscard]] Seat& at(SessionId id) { return seats_.at(id); }
  [[nodiscard]] const Seat& at(SessionId id) const { return seats_.at(id); }

  // Of all sessions, submitted and not completed. What a client says of its ring that cannot be is
  // found out when it is looked at.
  [[nodiscard]] uint64_t count_queued() const;

  // Asks for the bells of the cold ones, where it is time to. Whoever has rung is hot.
  void hear(uint64_t now_ns);
  // Whether the hot ones are to be looked at; if so, they are as of now. must: whatever the time.
  [[nodiscard]] bool is_time_to_look(uint64_t now_ns, bool must);
  // Calls look(seat) for each hot one; of those that have cooled the client rings from then on.
  template <typename Look>
  void look(uint64_t now_ns, const Look& look);

  // The rings of the hot idle ones say that the lane sleeps. Gives whether they are all empty.
  [[nodiscard]] bool prepare_to_sleep();
  // Until a bell rings, or the first deadline of a submission that waits for memory has passed.
  void sleep();
  // Also where it did not sleep.
  void finish_sleep();

 private:
  Rings(const Clock& clock, Fd epoll) : clock_(&clock), epoll_(std::move(epoll)) {}
  [[nodiscard]] static bool cools(Seat& seat, uint64_t now_ns);
  void listen(int wait_ms);
  [[nodiscard]] int sleep_ms_max() const;

  const Clock* clock_;
  Fd epoll_;
  std::map<SessionId, Seat> seats_;  // of each session
  // invariant: those seats that are not cold; the cold ones are idle, and their rings sleep
  std::vector<Seat*> hot_;
  uint64_t looked_ns_ = 0;    // when, at all of those
  uint64_t listened_ns_ = 0;  // when, to the bells of the others
};

template <typename Look>
void Rings::look(uint64_t now_ns, const Look& look) {
  for (size_t i = 0; i < hot_.size();) {
    Seat& seat = *hot_[i];
    look(seat);
    seat.has_rung = false;
    if (cools(seat, now_ns)) {
      hot_[i] = hot_.back();
      hot_.pop_back();
    } else {
      ++i;
    }
  }
}

}  // namespace djinn::worker
