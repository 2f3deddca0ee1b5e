// Grants: asks djinnd for bytes and waits for the answer. djinnd alone accounts memory; a worker
// spends only what was granted.
//
// request() blocks its thread (the lane, or the grower) while the control thread delivers answers.
// No warm step comes here: sections keep what they were granted.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "daemon/worker/outbox.h"
#include "ipc/messages.h"
#include "kernel/base/fd.h"
#include "kernel/base/result.h"

namespace djinn::worker {

class Grants {
 public:
  explicit Grants(Outbox& outbox) : outbox_(outbox) {}

  // Bytes more for a session's refs or a sequence group. Errors: djinnd's, kQuotaExceeded or
  // kOutOfMemory; kDisconnected when close() was called.
  Status request(ipc::GrantKind kind, SessionId session, SequenceHandle sequence, uint64_t bytes);
  // Bytes that are no longer touched and no longer committed.
  void give_back(ipc::GrantKind kind, SessionId session, SequenceHandle sequence, uint64_t bytes);
  struct Slab {
    Fd memfd;
    uint64_t bytes = 0;
  };
  // A new slab of at least bytes; the former one is no longer granted.
  Result<Slab> request_slab(uint64_t bytes);

  // Control thread.
  void deliver(const ipc::GrantAnswer& answer);
  void deliver(const ipc::GiveSlab& slab, Fd memfd);
  void close();

 private:
  struct Answer {
    Status status;
    Slab slab;
  };
  Result<Slab> ask(ipc::GrantRequest request);
  void deliver(uint64_t request, Answer answer);

  Outbox& outbox_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  uint64_t last_request_ = 0;
  std::map<uint64_t, std::optional<Answer>> waiting_;
  bool closed_ = false;
};

}  // namespace djinn::worker
