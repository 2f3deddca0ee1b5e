// SPDX-License-Identifier: Apache-2.0

// Window: a sparse extent mapped as a whole at addresses that never move, and committed from its
// start up to a watermark, but for holes, as far as grants reach.
//
//   GrantSource      where a spender gets its grants: djinnd, over the control connection
//   watermark        behind it a touch is a bug, as in a hole; all else below it is there
//   hole             what was given back below the watermark, in whole pages
//   committed bytes  what is there: the watermark less the holes
//
// invariant: watermark_bytes() <= size(); committed_bytes() equals what is granted, but while a
// call runs.
// invariant: holes do not overlap, and end at or below the watermark.
// invariant: a call that fails leaves grants and committed memory as they were; only where undoing
// a failed commit fails too, the grant stays, because the memory may be there.
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
#include "kernel/pal/device_pal.h"
#include "kernel/vmu/extent_allocator.h"

namespace djinn::vmu {

// kMore: more than is needed now; who is refused asks for less.
enum class Amount : uint8_t { kNeeded, kMore };

class GrantSource {
 public:
  virtual ~GrantSource() = default;
  // Asks for so many bytes. It may block, or say kPending until the answer is there and the same
  // is asked again. Errors: kQuotaExceeded, kOutOfMemory, kCancelled, and those of the way to
  // djinnd.
  virtual Status ask(uint64_t bytes, Amount amount) = 0;
  // The bytes are no longer touched and no longer committed.
  virtual void give_back(uint64_t bytes) = 0;
  // A piece of what was granted has pages now. More may follow, for seconds.
  virtual void backed() = 0;
};

class Window {
 public:
  // Grants are asked for in steps of this, so that growing is rare; the last one before a limit may
  // be smaller.
  static constexpr uint64_t kStepBytes = uint64_t{2} << 20;
  // What is free below the watermark is given back in pieces of at least this: a system call each.
  static constexpr uint64_t kHoleBytesMin = uint64_t{64} << 10;

  // Maps the extent. granted_bytes is what the holder has been granted already, 0 for a new one: a
  // predecessor may have died between grant and commit, or with holes, so from the start that much
  // is committed here, and nothing else. Where live ranges, which are in order, lie behind that,
  // they alone are, and what is granted beyond them is given back. pal and grants outlive the
  // window. Errors: kInvalidArgument; kMalformed for more live bytes than granted ones; those of
  // the pal.
  static Result<Window> open(pal::DevicePal& pal, GrantSource& grants, pal::Extent extent,
                             uint64_t granted_bytes, std::span<const Range> live);

  // Commits the ranges, and all up to their end that is no hole. What it takes is asked for at
  // once. Errors: kOutOfMemory behind the extent's end, those of the grant source and of the pal.
  Status cover(std::span<const Range> ranges);
  // Gives the memory of free ranges back where that is worth a call, and of all from end_bytes on.
  // Nobody uses them. What the pal does not take stays. Gives how many bytes went.
  uint64_t give_back(const std::map<uint64_t, uint64_t>& free, uint64_t end_bytes);

  [[nodiscard]] DeviceAddress address() const noexcept { return reservation_.data(); }
  [[nodiscard]] uint64_t size() const noexcept { return extent_.bytes; }
  [[nodiscard]] uint64_t watermark_bytes() const noexcept { return watermark_bytes_; }
  [[nodiscard]] uint64_t committed_bytes() const noexcept { return watermark_bytes_ - hole_bytes_; }
  [[nodiscard]] pal::DevicePal& pal() const noexcept { return *pal_; }
  [[nodiscard]] pal::Reservation& reservation() noexcept { return reservation_; }

 private:
  using Holes = std::map<uint64_t, uint64_t>;  // offset: bytes

  Window(pal::DevicePal& pal, GrantSource& grants, pal::Extent extent,
         pal::Reservation reservation) noexcept;
  [[nodiscard]] uint64_t granules(uint64_t bytes) const;
  // The whole pages that hold the range.
  [[nodiscard]] Range pages_of(Range range) const;
  Status commit_and_touch(Range range);
  Status decommit_all_but(std::span<const Range> kept);
  Status keep_only(std::vector<Range> blocks, uint64_t granted_bytes);
  // What of the holes lies in the ranges, piece by piece.
  [[nodiscard]] std::vector<Range> holes_in(std::span<const Range> ranges) const;
  Status grow_exactly_to(uint64_t bytes, std::vector<Range> pieces, Amount amount);
  bool punch(Range range);
  void fill(Range piece);

  pal::DevicePal* pal_;
  GrantSource* grants_;
  pal::Extent extent_;
  pal::Reservation reservation_;
  uint64_t watermark_bytes_ = 0;
  Holes holes_;
  uint64_t hole_bytes_ = 0;    // of all holes
  bool step_refused_ = false;  // and whether less is granted is on its way: that is asked again
};

}  // namespace djinn::vmu
