// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/slab.h"

#include <algorithm>
#include <utility>

#include "kernel/base/assert.h"
#include "kernel/base/checked.h"

namespace djinn::worker {
namespace {

constexpr uint64_t kSlabStepBytes = uint64_t{1}
                                    << 20;  // plans of similar programs then share one slab

}  // namespace

Outcome<std::span<std::byte>> Slab::grow(uint64_t bytes, const std::function<void()>& after_each) {
  const uint64_t step = std::max(kSlabStepBytes, pal_.properties().granularity_bytes);
  const auto rounded = align_up(std::max<uint64_t>(bytes, 1), step);
  if (!rounded) return Error{ErrorCode::kOutOfMemory, "The plan's slab is too large."};
  while (memory_.size() < *rounded) {
    DJINN_TRY(Grants::Answer answer, grants_.take(ipc::GrantKind::kSlab, {}, *rounded));
    if (answer.bytes < *rounded) {
      // The answer is to another step, which wanted less: it goes back, and djinnd is asked again.
      const uint64_t more = answer.bytes - std::min<uint64_t>(answer.bytes, memory_.size());
      if (more > 0) grants_.give_back(ipc::GrantKind::kSlab, {}, more);
      continue;
    }
    DJINN_CHECK(replace(std::move(answer), after_each));
  }
  DJINN_ASSERT(memory_.size() >= bytes);
  return std::span(memory_.data(), memory_.size());
}

Status Slab::replace(Grants::Answer answer, const std::function<void()>& after_each) {
  const uint64_t bytes = answer.bytes;
  DJINN_ASSERT(bytes > memory_.size());
  const auto mapped = [&]() -> Result<pal::Reservation> {
    Fd memory_fd = answer.memory.empty() ? Fd() : std::move(answer.memory.front());
    DJINN_TRY(const pal::Extent extent,
              pal_.import_extent(std::move(memory_fd), bytes, pal::Seals::kSize));
    DJINN_TRY(pal::Reservation memory, pal_.reserve(extent.bytes));
    DJINN_CHECK(pal_.map(memory, 0, extent, 0, extent.bytes, pal::Access::kReadWrite));
    DJINN_CHECK(pal::back_with_pages(pal_, extent, memory, 0, extent.bytes, after_each));
    return memory;
  };
  Result<pal::Reservation> memory = mapped();
  if (!memory) {
    grants_.give_back(ipc::GrantKind::kSlab, {}, bytes - memory_.size());
    return memory.error();
  }
  memory_ = *std::move(memory);
  return {};
}

}  // namespace djinn::worker
