// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/heap.h"

#include <algorithm>

#include "kernel/base/assert.h"
#include "kernel/base/checked.h"

namespace djinn::worker {
namespace {

constexpr uint64_t kHeapStepBytes = uint64_t{4} << 20;  // the recording of a small model fits

}  // namespace

// A step that meets the bound is repeated once the bound has been raised; doubling it keeps the
// repetitions few.
Outcome<void> GrantedHeap::allow(uint64_t bytes) {
  const auto least = align_up(bytes, kHeapStepBytes);
  if (!least) return Error{ErrorCode::kOutOfMemory, "The run needs more memory than there can be."};
  while (bytes > granted_bytes_) {
    const uint64_t total = doubling_refused_ ? *least : std::max(*least, 2 * granted_bytes_);
    auto answer = grants_.take(ipc::GrantKind::kHeap, {}, total - granted_bytes_,
                               total == *least ? vmu::Amount::kNeeded : vmu::Amount::kMore);
    if (answer) {
      granted_bytes_ += answer->bytes;
    } else if (answer.is_pending() || total == *least) {
      return std::move(answer).why_not();
    } else {
      doubling_refused_ = true;
    }
  }
  DJINN_ASSERT(bytes <= granted_bytes_);
  return {};
}

// A run whose request is refused here may still do with what there is; if it cannot, allow()
// refuses it.
std::optional<Pending> GrantedHeap::prepare(uint64_t bytes) {
  const uint64_t total =
      align_up(std::max<uint64_t>(bytes, 1), kHeapStepBytes).value_or(UINT64_MAX);
  while (total > granted_bytes_ && total < refused_bytes_) {
    const auto answer =
        grants_.take(ipc::GrantKind::kHeap, {}, total - granted_bytes_, vmu::Amount::kMore);
    if (answer) {
      granted_bytes_ += answer->bytes;
    } else if (answer.is_pending()) {
      return Pending{};
    } else {
      refused_bytes_ = total;  // what is asked for in the run's midst may still double
    }
  }
  return std::nullopt;
}

void GrantedHeap::settle(uint64_t) {
  doubling_refused_ = false;
}

void GrantedHeap::trim(uint64_t bytes) {
  refused_bytes_ = UINT64_MAX;
  const uint64_t keep = align_up(bytes, kHeapStepBytes).value_or(granted_bytes_);
  if (keep >= granted_bytes_) return;
  grants_.give_back(ipc::GrantKind::kHeap, {}, granted_bytes_ - keep);
  granted_bytes_ = keep;
}

}  // namespace djinn::worker
