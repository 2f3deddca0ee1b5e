// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/chunks.h"

#include <utility>

#include "ipc/limits.h"
#include "kernel/base/assert.h"

namespace djinn::worker {

Outcome<std::vector<vmu::Chunk>> take_chunks(Grants& grants, pal::DevicePal& pal,
                                             ipc::GrantKind kind, SessionId session,
                                             std::span<const vmu::Range> places,
                                             vmu::Amount amount) {
  std::vector<ipc::MemoryRange> wanted;
  uint64_t bytes = 0;
  for (const vmu::Range& place : places) {
    wanted.push_back({place.offset, place.bytes});
    bytes += place.bytes;
  }
  if (wanted.size() > limits::kRefChunks) {
    return Error{ErrorCode::kOutOfMemory, "What memory is wanted for is in too many pieces."};
  }
  DJINN_TRY(Grants::Answer answer, grants.take(kind, session, bytes, amount, std::move(wanted)));
  std::vector<vmu::Chunk> chunks;
  Status imported;
  answer.memory.resize(answer.places.size());
  for (size_t i = 0; i < answer.places.size() && imported; ++i) {
    auto extent =
        pal.import_extent(std::move(answer.memory[i]), answer.places[i].bytes, pal::Seals::kSize);
    if (!extent) imported = extent.error();
    if (extent) chunks.push_back({answer.places[i].offset, *std::move(extent)});
  }
  if (imported) return chunks;
  chunks.clear();
  for (const ipc::MemoryRange& place : answer.places) grants.give_back_chunk(kind, session, place);
  return std::move(imported).error();
}

Result<vmu::WindowMemory> HeapChunks::open(uint64_t window_bytes, uint64_t base_bytes) {
  DJINN_TRY(pal::Extent base, pal_.create("base", base_bytes));
  vmu::WindowMemory memory{window_bytes, {}, base_bytes};
  memory.chunks.push_back({0, std::move(base)});
  return memory;
}

void HeapChunks::begin(uint64_t own_bytes) {
  has_begun_ = true;
  if (own_bytes > 0) grants_.tell_base(own_bytes);
}

Outcome<std::vector<vmu::Chunk>> HeapChunks::ask(std::span<const vmu::Range> places,
                                                 vmu::Amount amount) {
  if (has_begun_) return take_chunks(grants_, pal_, ipc::GrantKind::kHeap, {}, places, amount);
  return Error{ErrorCode::kOutOfMemory, "What libraries keep is more than a worker has for it."};
}

// Of chunks none has parts.
void HeapChunks::give_back(uint64_t bytes) {
  DJINN_ASSERT(bytes == 0);
}

void HeapChunks::give_back(vmu::Range chunk) {
  DJINN_ASSERT(chunk.offset > 0);  // the base has what libraries keep
  grants_.give_back_chunk(ipc::GrantKind::kHeap, {}, {chunk.offset, chunk.bytes});
}

}  // namespace djinn::worker
