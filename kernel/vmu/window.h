// SPDX-License-Identifier: Apache-2.0

// Window: a range of addresses that never move, with memory from its start up to a watermark, but
// for holes, as far as grants reach.
//
//   GrantSource      where a spender gets its grants: djinnd, over the control connection
//   chunk            an extent that is mapped in the window as a whole. Where extents have parts
//                    there is one, sparse, of the window's size, and memory comes by committing
//                    parts of it. Elsewhere memory comes and goes by the chunk, back to back
//   watermark        behind it a touch is a bug, as in a hole; all else below it is there
//   hole             what was given back below the watermark, in whole pages
//   committed bytes  what is there: the watermark less the holes
//
// invariant: watermark_bytes() <= size(); committed_bytes() equals what is granted, but while a
// call runs.
// invariant: no two holes touch, and none ends behind the watermark.
// invariant: where extents have no parts, chunks and holes together are [0, watermark).
// invariant: a call that fails leaves grants and committed memory as they were. But where undoing a
// failed commit fails too, the grant stays, because the memory may be there; and chunks that were
// mapped before another one could not be stay.
//
// One thread at a time. Destroying a window neither ends its grants nor gives memory back: the
// extent outlives the process that maps it, and djinnd decides (ARCHITECTURE section 4).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "kernel/base/device_address.h"
#include "kernel/base/outcome.h"
#include "kernel/pal/device_pal.h"
#include "kernel/vmu/extent_allocator.h"
#include "kernel/vmu/grants.h"

namespace djinn::vmu {

// An extent, and where in a window it belongs.
struct Chunk {
  uint64_t offset = 0;
  pal::Extent extent;
  [[nodiscard]] Range place() const noexcept { return {offset, extent.bytes}; }
};

class GrantSource {
 public:
  virtual ~GrantSource() = default;
  // Asks for memory in these places, which are apart and of whole pages. It may block, or be
  // pending until the answer is there and the same is asked again. Gives nothing where extents have
  // parts: the bytes are granted. Elsewhere it gives a chunk for each place, or for each of an
  // earlier question that was given up, which then has to be asked again. Errors: kQuotaExceeded,
  // kOutOfMemory, kCancelled, and those of the way to djinnd.
  virtual Outcome<std::vector<Chunk>> ask(std::span<const Range> places, Amount amount) = 0;
  // So many bytes are no longer touched and no longer committed. Where extents have parts.
  virtual void give_back(uint64_t bytes) = 0;
  // The chunk of that place is no longer mapped. Where extents have no parts.
  virtual void give_back(Range chunk) = 0;
  // A piece of what was granted has pages now. More may follow, for seconds.
  virtual void backed() = 0;
};

// What a window is opened with.
struct WindowMemory {
  uint64_t bytes = 0;         // the window's
  std::vector<Chunk> chunks;  // where extents have parts one, of all of it
  // What the holder has been granted already, 0 for a new one.
  uint64_t granted_bytes = 0;

  // Where extents have parts.
  static WindowMemory whole(pal::Extent extent, uint64_t granted_bytes = 0) {
    WindowMemory memory{extent.bytes, {}, granted_bytes};
    memory.chunks.push_back({0, std::move(extent)});
    return memory;
  }
};

// Whether less could be had.
[[nodiscard]] bool is_at_a_limit(const Outcome<void>& grown);

class Window {
 public:
  // Grants are asked for in steps of this, so that growing is rare; the last one before a limit may
  // be smaller.
  static constexpr uint64_t kStepBytes = uint64_t{2} << 20;
  // Where extents have no parts a step is as large as all before it, so that chunks are few, and
  // at least this.
  static constexpr uint64_t kChunkBytes = uint64_t{16} << 20;
  // What is free below the watermark is given back in pieces of at least this: a system call each.
  static constexpr uint64_t kHoleBytesMin = uint64_t{64} << 10;

  // Maps the chunks. Where extents have parts, a predecessor may have died between grant and
  // commit, or with holes, so from the start as much as is granted is committed here, and nothing
  // else. Where live ranges, which are in order, lie behind that, they alone are, and what is
  // granted beyond them is given back. pal and grants outlive the window. Errors:
  // kInvalidArgument; kMalformed for more live bytes than granted ones, or live ranges outside of
  // the chunks; those of the pal.
  static Result<Window> open(pal::DevicePal& pal, GrantSource& grants, WindowMemory memory,
                             std::span<const Range> live);

  // Has memory for the ranges, and for all up to their end that is no hole. What it takes is asked
  // for at once. Pending where the grant is. Errors: kOutOfMemory behind the window's end, those of
  // the grant source and of the pal.
  Outcome<void> cover(std::span<const Range> ranges);
  // Gives the memory of free ranges back where that is worth a call, and of all from end_bytes on;
  // by the chunk where extents have no parts. Nobody uses them. What the pal does not take stays.
  // Gives how many bytes went.
  uint64_t give_back(const std::map<uint64_t, uint64_t>& free, uint64_t end_bytes);

  [[nodiscard]] DeviceAddress address() const noexcept { return reservation_.data(); }
  [[nodiscard]] uint64_t size() const noexcept { return reservation_.size(); }
  [[nodiscard]] uint64_t watermark_bytes() const noexcept { return watermark_bytes_; }
  [[nodiscard]] uint64_t committed_bytes() const noexcept { return watermark_bytes_ - hole_bytes_; }
  [[nodiscard]] pal::DevicePal& pal() const noexcept { return *pal_; }
  [[nodiscard]] pal::Reservation& reservation() noexcept { return reservation_; }

 private:
  using Holes = std::map<uint64_t, uint64_t>;  // offset: bytes

  Window(pal::DevicePal& pal, GrantSource& grants, pal::Reservation reservation) noexcept;
  [[nodiscard]] bool has_parts() const { return pal_->properties().extents_have_parts; }
  [[nodiscard]] const pal::Extent& sparse() const;  // where extents have parts
  [[nodiscard]] uint64_t granules(uint64_t bytes) const;
  // The whole pages that hold the range.
  [[nodiscard]] Range pages_of(Range range) const;
  [[nodiscard]] std::vector<Range> pages_of(std::span<const Range> ranges) const;
  // What of the holes lies in the ranges, piece by piece.
  [[nodiscard]] std::vector<Range> holes_in(std::span<const Range> ranges) const;
  [[nodiscard]] std::vector<Range> whole_holes(std::span<const Range> pieces) const;

  // Where extents have parts, and where they have none: what open() finds.
  Status map_sparse(std::vector<Chunk> chunks);
  Status decommit_all_but(std::span<const Range> kept);
  Status keep_only(std::vector<Range> blocks, uint64_t granted_bytes);
  [[nodiscard]] Status check_held(std::span<const Range> blocks, uint64_t granted_bytes) const;

  // Growing.
  [[nodiscard]] uint64_t first_step(uint64_t least) const;
  [[nodiscard]] uint64_t lesser_step(uint64_t least) const;
  Outcome<void> grow_exactly_to(uint64_t bytes, std::vector<Range> pieces, Amount amount);
  Status commit_and_touch(Range range);
  Status commit_all(std::span<const Range> pieces);
  Status take(Chunk chunk);
  Status take_all(std::vector<Chunk> chunks);

  // Giving back.
  bool drop(Range pages);
  void drop_parts(const std::map<uint64_t, uint64_t>& free, uint64_t end_bytes);
  void drop_chunks(const std::map<uint64_t, uint64_t>& free, uint64_t end_bytes);

  void note_filled(Range piece);
  void note_hole(Range pages);
  void lower_watermark();

  pal::DevicePal* pal_;
  GrantSource* grants_;
  pal::Reservation reservation_;
  std::map<uint64_t, pal::Extent> chunks_;  // by offset
  uint64_t watermark_bytes_ = 0;
  Holes holes_;
  uint64_t hole_bytes_ = 0;  // of all holes
  // Growth up to here, and in whole holes, was refused, and that to less is on its way.
  uint64_t refused_end_ = 0;
  bool holes_refused_ = false;
};

}  // namespace djinn::vmu
