// SPDX-License-Identifier: Apache-2.0

#include "ipc/rpc/mirrored_memory.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>

#include "kernel/base/assert.h"
#include "kernel/base/checked.h"

namespace djinn::rpc {

using ipc::SessionLayout;
using ipc::StagingRange;

Result<MirroredMemory> MirroredMemory::make(uint64_t staging_bytes) {
  DJINN_TRY(Fd memfd, pal::make_memfd("djinn-session", SessionLayout::bytes(staging_bytes),
                                      pal::Seals::kShared));
  DJINN_CHECK(pal::commit_ahead(memfd, 0, SessionLayout::bytes(0)));
  return adopt(std::move(memfd), staging_bytes);
}

Result<MirroredMemory> MirroredMemory::adopt(Fd memfd, uint64_t staging_bytes) {
  if (staging_bytes > limits::kStagingBytesMax) {
    return Error{ErrorCode::kMalformed, "The session's staging slab is over its limit."};
  }
  DJINN_CHECK(pal::verify_memfd(memfd, SessionLayout::bytes(staging_bytes), pal::Seals::kShared));
  DJINN_TRY(pal::Mapping head,
            pal::map_shared(memfd, SessionLayout::bytes(0), pal::Access::kReadWrite));
  DJINN_TRY(const ipc::SessionView view, ipc::SessionView::over(head.bytes()));
  return MirroredMemory(std::move(memfd), std::move(head), view, staging_bytes);
}

bool MirroredMemory::has(const StagingRange& range) const {
  return range_fits(range.offset, range.bytes, staging_bytes_);
}

Result<std::vector<std::byte>> MirroredMemory::read(const StagingRange& range) const {
  DJINN_ASSERT(has(range));
  return pal::read_memfd(fd_, range.bytes, SessionLayout::kStagingOffset + range.offset);
}

Result<ipc::StagingUse> MirroredMemory::use_of(const ipc::Submission& submission) const {
  const StagingRange block{submission.binding_offset, submission.binding_bytes};
  if (block.bytes > limits::kBindingTableBytes || !has(block)) return ipc::StagingUse();
  DJINN_TRY(const std::vector<std::byte> bytes, read(block));
  auto use = ipc::staging_of(submission, bytes);
  if (!use) return ipc::StagingUse{{block}, {}};
  use->read.push_back(block);
  return use;
}

Status MirroredMemory::write(uint64_t offset, std::span<const std::byte> bytes) {
  DJINN_ASSERT(has({offset, bytes.size()}));
  for (uint64_t at = SessionLayout::kStagingOffset + offset; !bytes.empty();) {
    const ssize_t written = ::pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return system_error("write what the other host sent", errno);
    bytes = bytes.subspan(static_cast<size_t>(written));
    at += static_cast<uint64_t>(written);
  }
  return {};
}

std::vector<StagingRange> pieces_of(std::vector<StagingRange> ranges, uint64_t staging_bytes,
                                    uint64_t most) {
  std::erase_if(ranges, [&](const StagingRange& range) {
    return range.bytes == 0 || !range_fits(range.offset, range.bytes, staging_bytes);
  });
  std::ranges::sort(ranges, {}, &StagingRange::offset);
  std::vector<StagingRange> pieces;
  uint64_t done = 0;  // bytes before this are in a piece, or in no range
  for (const StagingRange& range : ranges) {
    const uint64_t end = range.offset + range.bytes;
    for (done = std::max(done, range.offset); done < end;) {
      const uint64_t bytes = std::min(most, end - done);
      pieces.push_back({done, bytes});
      done += bytes;
    }
  }
  return pieces;
}

uint64_t bytes_of(std::span<const StagingRange> ranges) {
  uint64_t sum = 0;
  for (const StagingRange& range : ranges) sum += range.bytes;
  return sum;
}

}  // namespace djinn::rpc
