// SPDX-License-Identifier: Apache-2.0

// Sequence: one sequence group of a session in this process: its memfd mapped, and how many token
// slots of it are committed.
// Bank: one copy of all rows. A group of two banks can be reordered: the rows are copied to the
// bank that is not in use, and the step that commits says that it is the one in use now.
// SequencePager: commits slots ahead of need on a thread of its own, so that a decode step never
// does, and moves groups to their files and back.
//
//   present -> spilling      djinnd wants its memory; between two steps
//   spilling -> spilled      all of it is in the file, and djinnd was told
//   spilling -> present      it could not be written
//   spilled -> returning     a step needs it; memory is asked for
//   returning -> present     it was read, and djinnd was told before any step could change it
//   returning -> spilled     there was no memory, or it could not be read: the step's error, once
//
// invariant: slots [0, committed) of a group that is present are backed by pages; committed only
// grows. invariant: no step touches a group that is not present.
// invariant: once after_moves() has called back, nobody here touches a group dropped before.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "daemon/worker/grants.h"
#include "daemon/worker/job_thread.h"
#include "daemon/worker/outbox.h"
#include "ipc/messages.h"
#include "kernel/base/device_address.h"
#include "kernel/gc/sequence_layout.h"
#include "kernel/pal/device_pal.h"

namespace djinn::worker {

class Sequence {
 public:
  enum class Place : uint8_t { kPresent, kSpilling, kSpilled, kReturning };

  // memfd: sparse, of the layout's file size. granted: bytes that a former worker was granted; what
  // they bought is committed already. file: where it is if it is spilled, then with all that it was
  // granted; else none.
  static Result<std::shared_ptr<Sequence>> map(SessionId session, SequenceHandle handle,
                                               const ipc::SequenceGeometry& geometry, Fd memfd,
                                               uint64_t granted, Fd file, pal::DevicePal& pal);

  [[nodiscard]] SequenceHandle handle() const { return handle_; }
  [[nodiscard]] SessionId session() const { return session_; }
  [[nodiscard]] const ipc::SequenceGeometry& geometry() const { return geometry_; }
  [[nodiscard]] const gc::SequenceLayout& layout() const { return layout_; }
  [[nodiscard]] uint64_t committed() const { return committed_.load(std::memory_order_acquire); }
  [[nodiscard]] Place place() const { return place_.load(std::memory_order_acquire); }
  // Its session lets go of it: what the pager has not begun is not done any more. Any thread.
  void drop() { dropped_.store(true, std::memory_order_release); }

  // Token slots of a row, from slot `at` on, which are committed. Errors: those of the pal.
  Status read_tokens(uint32_t bank, uint32_t row, uint64_t at, std::span<int32_t> out) const;
  Status write_tokens(uint32_t bank, uint32_t row, uint64_t at, std::span<const int32_t> tokens);
  // One K or V: geometry dtype [rows, kv_heads, capacity, head_dim], in bank_bytes().
  [[nodiscard]] DeviceAddress key(uint32_t bank, uint32_t layer) const;
  [[nodiscard]] DeviceAddress value(uint32_t bank, uint32_t layer) const;
  [[nodiscard]] uint64_t bank_bytes() const;
  // Row r of bank `to` becomes row rows[r] of bank `from`, in its first `tokens` slots. Errors:
  // those of the pal.
  Status copy_rows(uint32_t from, uint32_t to, std::span<const uint32_t> rows, uint64_t tokens);

 private:
  friend class SequencePager;
  Sequence(SessionId session, SequenceHandle handle, const ipc::SequenceGeometry& geometry,
           gc::SequenceLayout layout, pal::DevicePal& pal, pal::Extent extent,
           pal::Reservation memory);
  // Its only way from one place to another; the table in sequence.cc says which there are.
  void enter(Place next);
  std::optional<Error> take_failure();
  [[nodiscard]] bool dropped() const { return dropped_.load(std::memory_order_acquire); }
  // Growing thread. more: bytes that were granted for it and are not in granted_bytes_ yet.
  uint64_t missing(uint64_t bytes);
  Status grow(uint64_t tokens, uint64_t more, Grants& grants);
  Status read_back(uint64_t more, Grants& grants);
  Status back_with_pages(uint64_t from, uint64_t to);
  Status read_file();
  using Piece = std::function<Status(uint64_t offset, std::span<std::byte> piece)>;
  Status for_each_piece(const Piece& visit) const;
  // Spilling thread. Gives the bytes whose grants end.
  Result<uint64_t> write_out(Fd file);
  void forget_growth();

  [[nodiscard]] uint64_t slot_offset(uint32_t bank, uint32_t row, uint64_t at) const;
  [[nodiscard]] uint64_t head_bytes() const;  // of one row and head of a K or V
  // Of one K or V of each of two banks, by their offsets in the extent.
  Status copy_heads(uint64_t from, uint32_t from_row, uint64_t to, uint32_t to_row,
                    uint64_t tokens);

  SessionId session_;
  SequenceHandle handle_;
  ipc::SequenceGeometry geometry_;
  gc::SequenceLayout layout_;
  pal::DevicePal& pal_;
  pal::Extent extent_;
  pal::Reservation memory_;
  std::atomic<Place> place_{Place::kPresent};
  std::mutex memory_mutex_;             // growing against spilling
  uint64_t granted_bytes_ = 0;          // what djinnd counts, but for grants on their way
  Fd file_;                             // kSpilled, kReturning
  std::atomic<uint64_t> committed_{0};  // token slots
  std::atomic<uint64_t> wanted_{0};     // what the pager was asked for
  std::atomic<bool> dropped_{false};
  bool asked_in_need_ = false;  // for the growth under way; lane's thread
  std::mutex failure_mutex_;
  std::optional<Error> failure_;
};

class SequencePager {
 public:
  // waits: told, on the pager's threads, after each growth, failure, or move of a group.
  SequencePager(Grants& grants, Outbox& outbox, Waits& waits)
      : grants_(grants), outbox_(outbox), waits_(waits) {}

  // Ok when the group is present and `tokens` slots are committed; brings it back, or asks for more
  // ahead of need, on the way. Lane's thread. Pending while it grows or moves, which the step
  // awaits then. Errors: after the failure of what was needed, its error, once: asking again tries
  // again.
  Outcome<void> ensure(const std::shared_ptr<Sequence>& sequence, uint64_t tokens);

  // Copies the group to the file, and tells djinnd how that ended. Lane's thread, between two
  // steps.
  void spill(const std::shared_ptr<Sequence>& sequence, Fd file);
  // Runs job when no group that was dropped before is read or written any more. Any thread.
  void after_moves(std::function<void()> job);

 private:
  Outcome<void> bring_back(const std::shared_ptr<Sequence>& sequence, Sequence::Place place);
  void ask(const std::shared_ptr<Sequence>& sequence, uint64_t tokens, bool in_need);
  // Growing thread. Has so many bytes granted in all, and calls done there with those that were.
  using Granted = std::function<void(Sequence& sequence, Result<uint64_t> more)>;
  void with_grant(const std::shared_ptr<Sequence>& sequence, uint64_t bytes, Granted done);
  void grow(Sequence& sequence, uint64_t tokens, Result<uint64_t> more);
  void restore(Sequence& sequence, const Result<uint64_t>& more);
  void write_out(Sequence& sequence, Fd file);

  Grants& grants_;
  Outbox& outbox_;
  Waits& waits_;
  // Two, so that no growth waits for a large group's way out. Neither waits for a grant. The second
  // posts to the first, and so ends before it.
  JobThread growing_;
  JobThread spilling_;
};

}  // namespace djinn::worker
