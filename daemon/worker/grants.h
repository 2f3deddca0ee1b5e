// Grants: asks djinnd for bytes and takes its answers. djinnd alone accounts memory; a worker
// spends only what was granted.
//
//   take       the lane's way: it never waits. While an answer is on its way it says so, and the
//              lane gives its step up, does other things, and repeats the step when the answer is
//              there. So djinnd may first have the lane drop a model to find the memory.
//   request    the grower's way: it blocks its thread.
//
// No warm step comes here: sections keep what they were granted.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>

#include "daemon/worker/outbox.h"
#include "ipc/messages.h"
#include "kernel/base/fd.h"
#include "kernel/base/result.h"

namespace djinn::worker {

// What take() says while the answer is on its way; nothing else in a step ends with this code.
[[nodiscard]] inline bool is_on_its_way(const Error& error) {
  return error.code == ErrorCode::kBusy;
}

class Grants {
 public:
  // wake: called on the control thread when an answer to take() has come.
  Grants(Outbox& outbox, std::function<void()> wake) : outbox_(outbox), wake_(std::move(wake)) {}

  struct Answer {
    Status status;
    Fd slab;  // of kSlab
    uint64_t bytes = 0;
  };

  // Lane's thread. Bytes more for a session's refs, the lane's heap, or, in all, its slab. The same
  // call takes the answer when it is there. Errors: kBusy until then (is_on_its_way); djinnd's,
  // kQuotaExceeded or kOutOfMemory; kDisconnected when close() was called.
  Result<Answer> take(ipc::GrantKind kind, SessionId session, uint64_t bytes);
  // What was asked for a session, or for the lane (no session), is not wanted any more.
  void forget(ipc::GrantKind kind, SessionId session);

  // Bytes more for a sequence group. Blocks. Errors: as take(), but kBusy.
  Status request(SessionId session, SequenceHandle sequence, uint64_t bytes);

  // Bytes that are no longer touched and no longer committed.
  void give_back(ipc::GrantKind kind, SessionId session, uint64_t bytes);

  // Control thread.
  void deliver(const ipc::GrantAnswer& answer);
  void deliver(const ipc::GiveSlab& slab, Fd memfd);
  void close();

 private:
  struct Asked {
    ipc::GrantRequest request;
    std::optional<Answer> answer;
    bool forgotten = false;
  };
  uint64_t enter(ipc::GrantRequest request);  // with the mutex held
  void deliver(uint64_t request, Answer answer);
  void drop(const Asked& asked);

  Outbox& outbox_;
  std::function<void()> wake_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  uint64_t last_request_ = 0;
  std::map<uint64_t, Asked> asked_;  // by the request's number
  bool closed_ = false;
};

}  // namespace djinn::worker
