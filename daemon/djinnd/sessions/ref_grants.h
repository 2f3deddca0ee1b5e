// SPDX-License-Identifier: Apache-2.0

// RefGrants: memory for the refs of sessions, as their workers ask for it and give it back.
//
//   granted   bytes that the worker may commit in the session's extent; or, on a device whose
//             extents have no parts, chunks: an extent for each place of the window that it names
//   freeing   a chunk that the worker gave back, until its memory is free: only then its grant
//             ends, and whoever asks for more, or has trimmed, is heard
//
// More than a worker needs is given of what is free alone: nobody gives way for it.
//
// invariant: chunks of a session do not overlap, lie in its window, and together are what is
// granted, but for those that are being made and those that are being freed.
#pragma once

#include <vector>

#include "daemon/djinnd/memory/devices.h"
#include "daemon/djinnd/memory/quota_refusals.h"
#include "daemon/djinnd/sessions/idle_memory.h"
#include "daemon/djinnd/sessions/session.h"
#include "daemon/djinnd/workers/domains.h"
#include "daemon/djinnd/workers/worker_key.h"
#include "ipc/messages.h"
#include "kernel/base/fd.h"
#include "kernel/base/ids.h"
#include "kernel/base/result.h"

namespace djinn::daemon {

// Who keeps the account of a session that is gone.
class LateChunks {
 public:
  // So many bytes of its chunks that were being made or freed are free.
  virtual void freed_late(SessionId id, uint64_t bytes) = 0;

 protected:
  ~LateChunks() = default;
};

class RefGrants {
 public:
  RefGrants(const Devices& devices, Domains& domains, QuotaRefusals& refusals,
            const SessionTable& sessions, IdleMemory& idle_memory, LateChunks& late)
      : devices_(devices),
        domains_(domains),
        refusals_(refusals),
        sessions_(sessions),
        idle_memory_(idle_memory),
        late_(late) {}

  void on_request(WorkerKey key, const ipc::GrantRequest& event);
  // False when the worker gives back what it was not given.
  bool on_return(WorkerKey key, const ipc::GrantReturn& event);
  // What was not given back is waited for no more.
  void on_trimmed(WorkerKey key, const ipc::RefsTrimmed& event);
  // What its worker asked for is given up, and it is told.
  void refuse_asks(Session& session);
  static void worker_died(Session& session);

 private:
  // Who asked, and of which of the session's workers that was.
  struct Ask {
    WorkerKey key;
    ipc::GrantRequest request;
    uint64_t attachment;
  };
  [[nodiscard]] Memory& memory_of(const Session& session) const {
    return devices_.of(session.device);
  }
  [[nodiscard]] bool is_in_chunks(const Session& session) const {
    return !devices_.extents_of(session.device).extents_have_parts();
  }
  // Errors: kQuotaExceeded; kInvalidArgument, kOutOfMemory for places that cannot be given.
  [[nodiscard]] Status check(const Session& session, const ipc::GrantRequest& request) const;
  void granted(const Ask& ask, const Status& status);
  void has_chunks(const Ask& ask, Result<std::vector<Fd>> made);
  void free_chunk(Session& session, uint64_t offset);
  void chunk_freed(SessionId id, uint64_t bytes);
  void freed(SessionId id, uint64_t bytes);
  void release(Session& session, uint64_t bytes) const;

  const Devices& devices_;
  Domains& domains_;
  QuotaRefusals& refusals_;
  const SessionTable& sessions_;
  IdleMemory& idle_memory_;
  LateChunks& late_;
};

}  // namespace djinn::daemon
