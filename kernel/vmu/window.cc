// SPDX-License-Identifier: Apache-2.0

#include "kernel/vmu/window.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kernel/base/assert.h"
#include "kernel/base/checked.h"

namespace djinn::vmu {

Window::Window(pal::DevicePal& pal, GrantSource& grants, pal::Extent extent,
               pal::Reservation reservation) noexcept
    : pal_(&pal),
      grants_(&grants),
      extent_(std::move(extent)),
      reservation_(std::move(reservation)) {}

Result<Window> Window::open(pal::DevicePal& pal, GrantSource& grants, pal::Extent extent,
                            uint64_t granted_bytes) {
  const uint64_t granularity = pal.properties().granularity_bytes;
  if (granted_bytes > extent.bytes || granted_bytes % granularity != 0) {
    return Error{
        ErrorCode::kInvalidArgument,
        fmt::format("{} granted bytes do not fit an extent of {}", granted_bytes, extent.bytes)};
  }
  DJINN_TRY(pal::Reservation reservation, pal.reserve(extent.bytes));
  DJINN_CHECK(pal.map(reservation, 0, extent, 0, extent.bytes, pal::Access::kReadWrite));
  Window window(pal, grants, std::move(extent), std::move(reservation));
  DJINN_CHECK(window.commit_and_touch(0, granted_bytes));
  window.committed_bytes_ = granted_bytes;
  return window;
}

uint64_t Window::granules(uint64_t bytes) const {
  return *align_up(bytes, pal_->properties().granularity_bytes);
}

Status Window::commit_and_touch(uint64_t begin, uint64_t end) {
  if (begin == end) return {};
  DJINN_CHECK(pal_->commit(extent_, begin, end - begin));
  return pal_->populate(reservation_, begin, end - begin);
}

Status Window::grow_exactly_to(uint64_t bytes) {
  const uint64_t more = bytes - committed_bytes_;
  DJINN_CHECK(grants_->ask(more));
  if (Status committed = commit_and_touch(committed_bytes_, bytes); !committed) {
    // Half of it may be there. If even this fails, the memory is the extent's until that closes, so
    // it stays granted: djinnd counts what is really used.
    if (pal_->decommit(extent_, committed_bytes_, more)) grants_->give_back(more);
    return committed;
  }
  committed_bytes_ = bytes;
  return {};
}

Status Window::grow_to(uint64_t bytes) {
  if (bytes <= committed_bytes_) return {};
  if (bytes > extent_.bytes) {
    return Error{ErrorCode::kOutOfMemory,
                 fmt::format("needs {} bytes, the section ends at {}", bytes, extent_.bytes)};
  }
  const uint64_t least = granules(bytes);
  const uint64_t step = std::min(align_up(least, kStepBytes).value_or(least), extent_.bytes);
  if (!step_refused_) {
    const Status stepped = grow_exactly_to(step);
    const bool at_a_limit = !stepped && (stepped.error().code == ErrorCode::kQuotaExceeded ||
                                         stepped.error().code == ErrorCode::kOutOfMemory);
    if (!at_a_limit || step == least) return stepped;
  }
  const Status exact = grow_exactly_to(least);  // close to a limit: no more than what is needed
  step_refused_ = !exact && exact.error().code == ErrorCode::kPending;
  return exact;
}

}  // namespace djinn::vmu
