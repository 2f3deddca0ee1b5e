// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/heap.h"

#include <algorithm>

#include "kernel/base/assert.h"
#include "kernel/base/checked.h"

namespace djinn::worker {
namespace {

constexpr uint64_t kStepBytes = uint64_t{4} << 20;  // the recording of a small model fits

}  // namespace

// A step that meets the bound is repeated once the bound has been raised; doubling it keeps the
// repetitions few.
Status GrantedHeap::allow(uint64_t bytes) {
  const auto least = align_up(bytes, kStepBytes);
  if (!least) return Error{ErrorCode::kOutOfMemory, "The run needs more memory than there can be."};
  while (bytes > granted_bytes_) {
    const uint64_t total = doubling_refused_ ? *least : std::max(*least, 2 * granted_bytes_);
    const auto answer = grants_.take(ipc::GrantKind::kHeap, {}, total - granted_bytes_,
                                     total == *least ? vmu::Amount::kNeeded : vmu::Amount::kMore);
    if (answer) {
      granted_bytes_ += answer->bytes;
    } else if (answer.error().code == ErrorCode::kPending || total == *least) {
      return answer.error();
    } else {
      doubling_refused_ = true;
    }
  }
  DJINN_ASSERT(bytes <= granted_bytes_);
  return {};
}

void GrantedHeap::settle(uint64_t bytes) {
  doubling_refused_ = false;
  const uint64_t keep = align_up(bytes, kStepBytes).value_or(granted_bytes_);
  if (keep >= granted_bytes_) return;
  grants_.give_back(ipc::GrantKind::kHeap, {}, granted_bytes_ - keep);
  granted_bytes_ = keep;
}

}  // namespace djinn::worker
