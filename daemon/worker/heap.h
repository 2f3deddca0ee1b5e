// SPDX-License-Identifier: Apache-2.0

// GrantedHeap: lets the lane's heap grow as far as djinnd grants, in steps that double.
//
// invariant: what the heap holds is at most what is granted.
#pragma once

#include "daemon/worker/grants.h"
#include "kernel/executor/executor.h"

namespace djinn::worker {

class GrantedHeap final : public exec::HeapOwner {
 public:
  explicit GrantedHeap(Grants& grants) : grants_(grants) {}

  // Lane's thread. Errors: as Grants::take().
  Status allow(uint64_t bytes) override;
  void settle(uint64_t bytes) override;
  // Who asked for more may be gone.
  void forget() { grants_.forget(ipc::GrantKind::kHeap, {}); }

 private:
  Grants& grants_;
  uint64_t granted_bytes_ = 0;
  bool doubling_refused_ = false;  // since it last settled
};

}  // namespace djinn::worker
