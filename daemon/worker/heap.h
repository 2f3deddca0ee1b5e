// SPDX-License-Identifier: Apache-2.0

// GrantedHeap: lets the lane's heap grow as far as djinnd grants, in steps that double.
//
//   kept   what was granted stays when a run has ended, so that the next one like it asks for
//          nothing; it goes back when the lane is trimmed, as djinnd asks when others want memory
//   first  step that is granted before a lane's first run begins, which most runs do with
//
// invariant: what the heap holds is at most what is granted.
#pragma once

#include "daemon/worker/grants.h"
#include "kernel/executor/executor.h"

namespace djinn::worker {

class GrantedHeap final : public exec::HeapOwner {
 public:
  explicit GrantedHeap(Grants& grants) : grants_(grants) {}

  // Lane's thread. Pending, and errors: as Grants::take().
  Outcome<void> allow(uint64_t bytes) override;
  void settle(uint64_t bytes) override;
  void trim(uint64_t bytes) override;
  // Who was refused so much begins without, and is not refused it again before the next trim().
  std::optional<Pending> prepare(uint64_t bytes) override;
  // Who asked for more may be gone.
  void forget() { grants_.forget(ipc::GrantKind::kHeap, {}); }

 private:
  Grants& grants_;
  uint64_t granted_bytes_ = 0;
  bool doubling_refused_ = false;        // since it last settled
  uint64_t refused_bytes_ = UINT64_MAX;  // to prepare(), the least
};

}  // namespace djinn::worker
