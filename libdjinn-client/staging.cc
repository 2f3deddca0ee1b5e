// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/staging.h"

#include <algorithm>

#include "kernel/base/checked.h"
#include "kernel/base/size_text.h"

namespace djinn::client {
namespace {

constexpr uint64_t kAlignment = 64;

}  // namespace

Staging::Staging(std::span<std::byte> slab) : slab_(slab), free_bytes_(slab.size()) {
  if (!slab.empty()) free_[0] = slab.size();
}

Result<ipc::StagingRange> Staging::allocate(uint64_t bytes) {
  const auto rounded = align_up(std::max<uint64_t>(bytes, 1), kAlignment);
  if (!rounded || *rounded > slab_.size()) {
    return Error{ErrorCode::kLimitExceeded,
                 "The tensor is larger than the staging slab of " + size_text(slab_.size()) +
                     ". Connect with more staging, or make it a ref first."};
  }
  const auto found =
      std::ranges::find_if(free_, [&](const auto& range) { return range.second >= *rounded; });
  if (found == free_.end()) {
    return Error{ErrorCode::kQueueFull,
                 "Of the staging slab's " + size_text(slab_.size()) + " no " + size_text(*rounded) +
                     " are free in one piece. Wait for a run to complete. Where none is under way, "
                     "the tensors of one run are too large together: connect with more staging, or "
                     "make some of them refs first."};
  }
  const auto [offset, available] = *found;
  free_.erase(found);
  if (available > *rounded) free_[offset + *rounded] = available - *rounded;
  free_bytes_ -= *rounded;
  return ipc::StagingRange{offset, bytes};
}

void Staging::free(const ipc::StagingRange& range) {
  uint64_t offset = range.offset;
  uint64_t bytes = *align_up(std::max<uint64_t>(range.bytes, 1), kAlignment);
  free_bytes_ += bytes;
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && offset + bytes == next->first) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    DJINN_ASSERT(before->first + before->second <= offset);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  free_[offset] = bytes;
}

std::span<std::byte> Staging::bytes(const ipc::StagingRange& range) const {
  DJINN_ASSERT(range_fits(range.offset, range.bytes, slab_.size()));
  return slab_.subspan(range.offset, range.bytes);
}

}  // namespace djinn::client
