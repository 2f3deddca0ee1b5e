// SPDX-License-Identifier: Apache-2.0

// Leases of what a session has a limited number of: each is one holder's, and is given back when
// that holder is done.
//
//   StagingLease   a range of the staging slab. It goes back when the lease dies, or with the
//                  submission that the lease was handed over to (Client::submit)
//   RefLease       a ref's slot and generation. When the lease dies, a ref that no submission can
//                  have named is free at once; another is released in djinnd first, by the
//                  client's next submission. detach() leaves all that to whoever has the handle
//   ProgramLease   a program. When the last one of it dies, djinnd may forget it: it hears so with
//                  the client's next submission or definition
//   Lender         what the leases of one session share with its client
//
// A lease may die on any thread, after its client, and in the child of a fork: what it is of is
// given back only where the session lives and is this process's. All else is for the client's
// thread alone.
//
// invariant: in the child of a fork no lease takes the lender's lock, which another thread of the
// parent may have had.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "ipc/binding.h"
#include "kernel/base/ids.h"
#include "kernel/base/result.h"
#include "libdjinn-client/fork_mark.h"
#include "libdjinn-client/ref_slots.h"
#include "libdjinn-client/staging.h"

namespace djinn::client {

class Lender {
 public:
  // slab: of the session, mapped until end().
  Lender(std::shared_ptr<const ForkMark> mark, std::span<std::byte> slab)
      : mark_(std::move(mark)), staging_(slab) {}

  // The session is over: nothing is given back from now on.
  void end() { ended_ = true; }

  // --- staging; errors: those of Staging::allocate()
  Result<ipc::StagingRange> allocate(uint64_t bytes);
  void free(const ipc::StagingRange& range);
  // Precondition: the session lives.
  [[nodiscard]] std::span<std::byte> bytes(const ipc::StagingRange& range) const;
  [[nodiscard]] uint64_t free_bytes() const;

  // --- refs; errors: those of RefSlots::allocate()
  Result<RefHandle> allocate_ref();
  // djinnd has nothing under the ref, or will have let go of it before it hears of another one.
  void free(RefHandle ref);
  // The ref is to be released in djinnd, and freed then.
  void drop(RefHandle ref);
  // Takes one of those, if there is one: the caller is to release it.
  std::optional<RefHandle> take_dropped();
  [[nodiscard]] size_t dropped() const;

  // --- programs
  // One lease more.
  void lease(ProgramId program);
  void end_lease(ProgramId program);
  [[nodiscard]] bool is_leased(ProgramId program) const;
  // Those whose last lease has ended since the last call. Without the lock where there are none.
  std::vector<ProgramId> take_unleased();

  // A submission is about to be published, which may name every ref that there is.
  void note_submission() { ++submissions_; }
  [[nodiscard]] uint64_t submissions() const { return submissions_; }
  // Both without the lock: only the client's thread changes what they look at.
  [[nodiscard]] uint32_t last_generation() const { return refs_.last_generation(); }
  void begin_generations_after(uint32_t generation) { refs_.begin_after(generation); }

 private:
  [[nodiscard]] bool takes_back() const { return !ended_ && !mark_->is_in_child(); }

  std::shared_ptr<const ForkMark> mark_;
  std::atomic<bool> ended_ = false;
  std::atomic<uint64_t> submissions_ = 0;
  mutable std::mutex mutex_;  // guards what is below
  Staging staging_;
  RefSlots refs_;
  std::vector<RefHandle> dropped_;
  std::map<ProgramId, uint32_t> programs_;  // with how many leases; none of 0
  std::vector<ProgramId> unleased_;
  std::atomic<bool> has_unleased_ = false;  // also read without the lock
};

class StagingLease {
 public:
  StagingLease() = default;  // of nothing
  StagingLease(std::shared_ptr<Lender> lender, const ipc::StagingRange& range)
      : lender_(std::move(lender)), range_(range) {}
  ~StagingLease();
  StagingLease(StagingLease&& other) noexcept = default;
  StagingLease& operator=(StagingLease&& other) noexcept;

  // The range as a submission names it.
  [[nodiscard]] const ipc::StagingRange& range() const { return range_; }
  // Precondition: the session lives.
  [[nodiscard]] std::span<std::byte> bytes() const;

 private:
  std::shared_ptr<Lender> lender_;  // nullptr: of nothing, or moved from
  ipc::StagingRange range_;
};

// The staging of one submission.
struct StagingLeases {
  std::vector<StagingLease> read{};     // by the run: given back with its completion
  std::vector<StagingLease> written{};  // by the run: whoever waits for it has them then
};

template <typename... Leases>
std::vector<StagingLease> list_of(Leases... leases) {
  std::vector<StagingLease> list;
  (list.push_back(std::move(leases)), ...);
  return list;
}

class RefLease {
 public:
  RefLease() = default;  // of none
  RefLease(std::shared_ptr<Lender> lender, RefHandle ref)
      : lender_(std::move(lender)), ref_(ref), submissions_(lender_->submissions()) {}
  ~RefLease();
  RefLease(RefLease&& other) noexcept = default;
  RefLease& operator=(RefLease&& other) noexcept;

  [[nodiscard]] RefHandle ref() const { return ref_; }
  // The handle, whose holder releases it (operations.h), or has.
  RefHandle detach() &&;

 private:
  std::shared_ptr<Lender> lender_;  // nullptr: of none, moved from, or detached
  RefHandle ref_;
  uint64_t submissions_ = 0;  // before it
};

class ProgramLease {
 public:
  ProgramLease() = default;  // of none
  ProgramLease(std::shared_ptr<Lender> lender, ProgramId program)
      : lender_(std::move(lender)), program_(program) {
    lender_->lease(program_);
  }
  ~ProgramLease();
  ProgramLease(ProgramLease&& other) noexcept = default;
  ProgramLease& operator=(ProgramLease&& other) noexcept;

 private:
  std::shared_ptr<Lender> lender_;  // nullptr: of none, or moved from
  ProgramId program_;
};

}  // namespace djinn::client
