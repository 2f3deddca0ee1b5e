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
  mapping_.reset();  // before the grant: the former slab's bytes count until djinnd gave a new one
  DJINN_TRY(const Grants::Slab slab, grants_.request_slab(*rounded));
  DJINN_CHECK(pal::verify_memfd(slab.memfd, slab.bytes, pal::Seals::kSize));
  DJINN_CHECK(pal::commit_ahead(slab.memfd, 0, slab.bytes));
  DJINN_TRY(mapping_, pal::map_shared(slab.memfd, slab.bytes, pal::Access::kReadWrite));
  DJINN_CHECK(pal::populate_write(mapping_.bytes()));
  return mapping_.bytes();
}

}  // namespace djinn::worker
