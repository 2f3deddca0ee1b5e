// SPDX-License-Identifier: Apache-2.0

// Window: a sparse extent mapped as a whole at addresses that never move, and committed from its
// start up to a watermark, as far as grants reach.
//
//   GrantSource      where a spender gets its grants: djinnd, over the control connection
//   committed bytes  the watermark: below it memory is there, behind it a touch is a bug
//
// invariant: committed_bytes() <= size(), and equals what is granted, but while a call runs.
// invariant: a call that fails leaves grants and committed memory as they were; only where undoing
// a failed commit fails too, the grant stays, because the memory may be there.
//
// One thread at a time. Destroying a window neither ends its grants nor gives memory back: the
// extent outlives the process that maps it, and djinnd decides (ARCHITECTURE section 4).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernel/base/device_address.h"
#include "kernel/pal/device_pal.h"

namespace djinn::vmu {

class GrantSource {
 public:
  virtual ~GrantSource() = default;
  // Asks for so many bytes. It may block, or say kPending until the answer is there and the same
  // is asked again. Errors: kQuotaExceeded, kOutOfMemory, kCancelled, and those of the way to
  // djinnd.
  virtual Status ask(uint64_t bytes) = 0;
  // The bytes are no longer touched and no longer committed.
  virtual void give_back(uint64_t bytes) = 0;
};

class Window {
 public:
  // Grants are asked for in steps of this, so that growing is rare; the last one before a limit may
  // be smaller.
  static constexpr uint64_t kStepBytes = uint64_t{2} << 20;

  // Maps the extent. granted_bytes is what the holder has been granted already, 0 for a new one: a
  // predecessor may have died between grant and commit, so that much is committed here. pal and
  // grants outlive the window. Errors: kInvalidArgument, and those of the pal.
  static Result<Window> open(pal::DevicePal& pal, GrantSource& grants, pal::Extent extent,
                             uint64_t granted_bytes);

  // Commits at least so many bytes from the start. Errors: kOutOfMemory behind the extent's end,
  // those of the grant source and of the pal.
  Status grow_to(uint64_t bytes);

  [[nodiscard]] DeviceAddress address() const noexcept { return reservation_.data(); }
  [[nodiscard]] uint64_t size() const noexcept { return extent_.bytes; }
  [[nodiscard]] uint64_t committed_bytes() const noexcept { return committed_bytes_; }
  [[nodiscard]] pal::DevicePal& pal() const noexcept { return *pal_; }
  [[nodiscard]] pal::Reservation& reservation() noexcept { return reservation_; }

 private:
  Window(pal::DevicePal& pal, GrantSource& grants, pal::Extent extent,
         pal::Reservation reservation) noexcept;
  [[nodiscard]] uint64_t granules(uint64_t bytes) const;
  Status commit_and_touch(uint64_t begin, uint64_t end);
  Status grow_exactly_to(uint64_t bytes);

  pal::DevicePal* pal_;
  GrantSource* grants_;
  pal::Extent extent_;
  pal::Reservation reservation_;
  uint64_t committed_bytes_ = 0;
  bool step_refused_ = false;  // and whether less is granted is on its way: that is asked again
};

}  // namespace djinn::vmu
