// SPDX-License-Identifier: Apache-2.0

// Grants: asks djinnd for bytes and takes its answers. djinnd alone accounts memory; a worker
// spends only what was granted.
//
//   take       the lane's way: it never waits. While an answer is on its way it says so, and the
//              lane gives its step up, does other things, and repeats the step when the answer is
//              there. So djinnd may first have the lane drop a model to find the memory.
//   ask        the pager's way: the answer calls it back.
//
// invariant: at most one question of take() is open for each kind and session, so that no answer
// is without somebody who waits for it; who takes it credits what it brought, however much that is.
// No warm step comes here: sections keep what they were granted.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "daemon/worker/outbox.h"
#include "daemon/worker/waits.h"
#include "ipc/messages.h"
#include "kernel/base/fd.h"
#include "kernel/base/result.h"
#include "kernel/vmu/window.h"

namespace djinn::worker {

class Grants {
 public:
  // waits: told, on the control thread, when an answer to take() has come.
  Grants(Outbox& outbox, Waits& waits) : outbox_(outbox), waits_(waits) {}

  struct Answer {
    Status status;
    uint64_t bytes = 0;
    std::vector<ipc::MemoryRange> places;  // that were asked for
    std::vector<Fd> memory;                // of kSlab one extent, else one for each place
  };

  // Lane's thread. Bytes more for a session's refs or the lane's heap, or, in all, for its slab (no
  // session). places: of refs and of the heap, where extents have no parts. Gives the answer to the
  // open question of that kind and session, which may be to fewer or more bytes, or to other
  // places. Pending until it is there, which the step awaits then. Errors: djinnd's, kQuotaExceeded
  // or kOutOfMemory; kDisconnected when close() was called.
  Outcome<Answer> take(ipc::GrantKind kind, SessionId session, uint64_t bytes,
                       vmu::Amount amount = vmu::Amount::kNeeded,
                       std::vector<ipc::MemoryRange> places = {});
  // Nobody may be left who wants the answer to the open question: unless take() is called again,
  // what it brings is given back. held_bytes: of kSlab, what the lane has and keeps.
  void forget(ipc::GrantKind kind, SessionId session, uint64_t held_bytes = 0);

  // Bytes more for a sequence group. answered: called on the control thread, once, with the errors
  // of take(); not at all when close() was called. Any thread.
  void ask(SessionId session, SequenceHandle sequence, uint64_t bytes,
           std::function<void(Status)> answered);

  // So many bytes of a GPU this process has taken by itself, before djinnd knew it: djinnd counts
  // them from now on, and ends this worker where nobody has them to give. Once.
  void tell_base(uint64_t bytes);

  // Bytes that are no longer touched and no longer committed. sequence: of kSequence.
  void give_back(ipc::GrantKind kind, SessionId session, uint64_t bytes,
                 SequenceHandle sequence = {});

  // A chunk of a session's refs, or of the lane's heap (no session), that is no longer mapped.
  void give_back_chunk(ipc::GrantKind kind, SessionId session, ipc::MemoryRange chunk);

  // Lane's thread. While there is one, what take() asks for is of a trial: a refusal ends that
  // alone, and nobody else hears of it.
  class Trial {
   public:
    explicit Trial(Grants& grants) : grants_(grants) { grants_.in_trial_ = true; }
    ~Trial() { grants_.in_trial_ = false; }
    Trial(const Trial&) = delete;
    Trial& operator=(const Trial&) = delete;

   private:
    Grants& grants_;
  };

  // Lane's thread. While there is one, what take() asks for is of no trial: the step that has one
  // is set aside.
  class NoTrial {
   public:
    explicit NoTrial(Grants& grants)
        : grants_(grants), former_(std::exchange(grants.in_trial_, false)) {}
    ~NoTrial() { grants_.in_trial_ = former_; }
    NoTrial(const NoTrial&) = delete;
    NoTrial& operator=(const NoTrial&) = delete;

   private:
    Grants& grants_;
    bool former_;
  };

  // Control thread.
  void deliver(const ipc::GrantAnswer& answer);
  void deliver(const ipc::GiveMemory& given, std::vector<Fd> memory);
  void close();

 private:
  struct Asked {
    ipc::GrantRequest request;
    std::optional<Answer> answer;
    std::function<void(Status)> answered;  // of ask() and tell_base()
    bool forgotten = false;
    bool of_another_step = false;  // it was forgotten, and then taken up
    uint64_t held_bytes = 0;       // when forgotten
  };
  using Questions = std::map<uint64_t, Asked>;  // by the request's number

  // With the mutex held.
  uint64_t enter(ipc::GrantRequest request);
  Questions::iterator find(ipc::GrantKind kind, SessionId session);
  void drop(Questions::iterator asked);

  void deliver(uint64_t request, Answer answer);

  Outbox& outbox_;
  Waits& waits_;
  std::mutex mutex_;
  uint64_t last_request_ = 0;
  Questions asked_;
  bool closed_ = false;
  bool in_trial_ = false;  // the lane's
};

}  // namespace djinn::worker
