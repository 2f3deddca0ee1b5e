#include "daemon/worker/slab.h"

#include <algorithm>
#include <utility>

#include "kernel/base/checked.h"

namespace djinn::worker {
namespace {

constexpr uint64_t kStepBytes = uint64_t{1} << 20;  // plans of similar programs then share one slab

}  // namespace

Result<std::span<std::byte>> Slab::grow(uint64_t bytes) {
  const auto rounded = align_up(std::max<uint64_t>(bytes, 1), kStepBytes);
  if (!rounded) return Error{ErrorCode::kOutOfMemory, "The plan's slab is too large."};
  DJINN_TRY(Grants::Answer answer, grants_.take(ipc::GrantKind::kSlab, {}, *rounded));
  memory_.reset();  // djinnd counts the new one in its place
  DJINN_TRY(const pal::Extent extent,
            pal_.import_extent(std::move(answer.slab), answer.bytes, pal::Seals::kSize));
  DJINN_CHECK(pal_.commit(extent, 0, extent.bytes));
  DJINN_TRY(memory_, pal_.reserve(extent.bytes));
  DJINN_CHECK(pal_.map(memory_, 0, extent, 0, extent.bytes, pal::Access::kReadWrite));
  DJINN_CHECK(pal_.populate(memory_, 0, extent.bytes));
  return std::span(memory_.data(), memory_.size());
}

}  // namespace djinn::worker
