// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/sequence.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <utility>
#include <vector>

#include "kernel/base/assert.h"
#include "kernel/base/checked.h"

namespace djinn::worker {
namespace {

// A growth covers this many slots beyond the need, and is asked for when half of them are used. A
// decode step takes milliseconds and a growth some hundred microseconds, so it comes in time.
constexpr uint64_t kAheadTokens = 256;
// A group goes to its file and comes back in pieces of this size, which stay in the caches on the
// way.
constexpr uint64_t kFilePieceBytes = uint64_t{256} << 10;

// These are the legal moves of a group, from and to (sequence.h).
using Move = std::pair<Sequence::Place, Sequence::Place>;
constexpr std::array kMoves{
    Move{Sequence::Place::kPresent, Sequence::Place::kSpilling},
    Move{Sequence::Place::kSpilling, Sequence::Place::kSpilled},
    Move{Sequence::Place::kSpilling, Sequence::Place::kPresent},
    Move{Sequence::Place::kSpilled, Sequence::Place::kReturning},
    Move{Sequence::Place::kReturning, Sequence::Place::kPresent},
    Move{Sequence::Place::kReturning, Sequence::Place::kSpilled},
};

// Gives the largest count of token slots that this many bytes pay for.
uint64_t slots_paid_by(uint64_t bytes, const gc::SequenceLayout& layout) {
  uint64_t slots = 0;
  for (uint64_t step = std::bit_floor(layout.capacity()); step > 0; step /= 2) {
    const uint64_t next = std::min(slots + step, layout.capacity());
    if (layout.committed_bytes(next) <= bytes) slots = next;
  }
  return slots;
}

// djinnd cancels the requests of a run that is given up, and such a run never comes back here: a
// cancelled request was another run's.
bool is_of_another_run(const Error& failure) {
  return failure.code == ErrorCode::kCancelled;
}

Status write_at(const Fd& file, uint64_t offset, std::span<const std::byte> bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t written = ::pwrite(file.get(), bytes.data() + done, bytes.size() - done,
                                     static_cast<off_t>(offset + done));
    if (written < 0 && errno != EINTR) return system_error("spill a sequence group", errno);
    if (written > 0) done += static_cast<size_t>(written);
  }
  return {};
}

Status read_at(const Fd& file, uint64_t offset, std::span<std::byte> out) {
  for (size_t done = 0; done < out.size();) {
    const ssize_t got = ::pread(file.get(), out.data() + done, out.size() - done,
                                static_cast<off_t>(offset + done));
    if (got == 0) return Error{ErrorCode::kIo, "The file of a spilled sequence group is short."};
    if (got < 0 && errno != EINTR) return system_error("read a spilled sequence group", errno);
    if (got > 0) done += static_cast<size_t>(got);
  }
  return {};
}

AwaitedSequence awaited(const Sequence& sequence) {
  return {sequence.session(), sequence.handle()};
}

}  // namespace

Sequence::Sequence(SessionId session, SequenceHandle handle, const ipc::SequenceGeometry& geometry,
                   gc::SequenceLayout layout, pal::DevicePal& pal, pal::Extent extent,
                   pal::Reservation memory)
    : session_(session),
      handle_(handle),
      geometry_(geometry),
      layout_(layout),
      pal_(pal),
      extent_(std::move(extent)),
      memory_(std::move(memory)) {}

Result<std::shared_ptr<Sequence>> Sequence::map(SessionId session, SequenceHandle handle,
                                                const ipc::SequenceGeometry& geometry, Fd memfd,
                                                uint64_t granted, Fd file, pal::DevicePal& pal) {
  DJINN_TRY(
      const gc::SequenceLayout layout,
      gc::SequenceLayout::make(geometry.banks * geometry.rows, geometry.layers, geometry.kv_heads,
                               geometry.head_dim, size_of(geometry.dtype), geometry.capacity));
  // Where extents have no parts the group has all of its memory, in whole granules.
  const auto whole = align_up(layout.file_bytes(), pal.properties().granularity_bytes);
  if (!whole) return Error{ErrorCode::kMalformed, "A sequence group is too large."};
  DJINN_TRY(pal::Extent extent, pal.import_extent(std::move(memfd), *whole, pal::Seals::kSize));
  DJINN_TRY(pal::Reservation memory, pal.reserve(extent.bytes));
  DJINN_CHECK(pal.map(memory, 0, extent, 0, extent.bytes, pal::Access::kReadWrite));
  std::shared_ptr<Sequence> sequence(
      new Sequence(session, handle, geometry, layout, pal, std::move(extent), std::move(memory)));
  const uint64_t tokens = slots_paid_by(granted, layout);
  if (file.valid()) {
    sequence->file_ = std::move(file);
    sequence->place_.store(Place::kSpilled, std::memory_order_release);
  } else {
    sequence->granted_bytes_ = granted;
    // The former worker may have died between a grant and its pages; committing again is
    // idempotent. A group without parts that has all of its memory had it from its making on.
    const bool is_there = !pal.properties().extents_have_parts && granted == *whole;
    const uint64_t to_commit = is_there ? 0 : tokens;
    DJINN_CHECK(layout.for_each_range(0, to_commit, [&](uint64_t offset, uint64_t bytes) {
      return pal.commit(sequence->extent_, offset, bytes);
    }));
  }
  sequence->committed_.store(tokens, std::memory_order_release);
  sequence->wanted_.store(tokens, std::memory_order_relaxed);
  return sequence;
}

void Sequence::enter(Place next) {
  DJINN_ASSERT(std::ranges::find(kMoves, Move(place(), next)) != kMoves.end());
  place_.store(next, std::memory_order_release);
}

uint64_t Sequence::head_bytes() const {
  return geometry_.capacity * geometry_.head_dim * size_of(geometry_.dtype);
}
uint64_t Sequence::bank_bytes() const {
  return uint64_t{geometry_.rows} * geometry_.kv_heads * head_bytes();
}
uint64_t Sequence::slot_offset(uint32_t bank, uint32_t row, uint64_t at) const {
  DJINN_ASSERT(bank < geometry_.banks && row < geometry_.rows && at <= geometry_.capacity);
  return layout_.tokens_offset(bank * geometry_.rows + row) + at * sizeof(int32_t);
}
Status Sequence::read_tokens(uint32_t bank, uint32_t row, uint64_t at,
                             std::span<int32_t> out) const {
  DJINN_ASSERT(range_fits(at, out.size(), committed()));
  return pal_.copy_out(memory_, slot_offset(bank, row, at), std::as_writable_bytes(out));
}
Status Sequence::write_tokens(uint32_t bank, uint32_t row, uint64_t at,
                              std::span<const int32_t> tokens) {
  DJINN_ASSERT(range_fits(at, tokens.size(), committed()));
  return pal_.copy_in(memory_, slot_offset(bank, row, at), std::as_bytes(tokens));
}
DeviceAddress Sequence::key(uint32_t bank, uint32_t layer) const {
  DJINN_ASSERT(bank < geometry_.banks);
  return DeviceAddress(memory_.data()) + layout_.key_offset(layer) + bank * bank_bytes();
}
DeviceAddress Sequence::value(uint32_t bank, uint32_t layer) const {
  DJINN_ASSERT(bank < geometry_.banks);
  return DeviceAddress(memory_.data()) + layout_.value_offset(layer) + bank * bank_bytes();
}

Status Sequence::copy_rows(uint32_t from, uint32_t to, std::span<const uint32_t> rows,
                           uint64_t tokens) {
  DJINN_ASSERT(from != to && rows.size() == geometry_.rows && tokens <= committed());
  for (uint32_t row = 0; row < rows.size(); ++row) {
    DJINN_CHECK(pal_.copy(memory_, slot_offset(from, rows[row], 0), slot_offset(to, row, 0),
                          tokens * sizeof(int32_t)));
    for (uint32_t layer = 0; layer < geometry_.layers; ++layer) {
      for (const uint64_t at : {layout_.key_offset(layer), layout_.value_offset(layer)}) {
        DJINN_CHECK(
            copy_heads(at + from * bank_bytes(), rows[row], at + to * bank_bytes(), row, tokens));
      }
    }
  }
  return {};
}

Status Sequence::copy_heads(uint64_t from, uint32_t from_row, uint64_t to, uint32_t to_row,
                            uint64_t tokens) {
  const uint64_t bytes = tokens * geometry_.head_dim * size_of(geometry_.dtype);
  for (uint32_t head = 0; head < geometry_.kv_heads; ++head) {
    DJINN_CHECK(
        pal_.copy(memory_, from + (uint64_t{from_row} * geometry_.kv_heads + head) * head_bytes(),
                  to + (uint64_t{to_row} * geometry_.kv_heads + head) * head_bytes(), bytes));
  }
  return {};
}

// --- growing

uint64_t Sequence::missing(uint64_t bytes) {
  const std::lock_guard lock(memory_mutex_);
  return bytes - std::min(bytes, granted_bytes_);
}

Status Sequence::back_with_pages(uint64_t from, uint64_t to) {
  return layout_.for_each_range(from, to, [&](uint64_t offset, uint64_t bytes) -> Status {
    // No step runs this, so nobody looks for signs of life.
    return pal::back_with_pages(pal_, extent_, memory_, offset, bytes, [] {});
  });
}

Status Sequence::grow(uint64_t tokens, uint64_t more, Grants& grants) {
  const std::lock_guard lock(memory_mutex_);
  if (place() != Place::kPresent) {  // since the grant was asked for; nobody needs it now
    if (more > 0) grants.give_back(ipc::GrantKind::kSequence, session_, more, handle_);
    return {};
  }
  granted_bytes_ += more;
  DJINN_ASSERT(tokens <= layout_.capacity());
  if (tokens <= committed()) return {};
  DJINN_CHECK(back_with_pages(committed(), tokens));
  committed_.store(tokens, std::memory_order_release);
  return {};
}

// --- to the file and back

// The file has the memfd's size, so that what was never committed reads as zeros. If this fails,
// the group's memory is whole. A kernel that cannot write a page later drops it, and a read then
// gives other bytes: fdatasync() tells now.
Result<uint64_t> Sequence::write_out(Fd file) {
  const std::lock_guard lock(memory_mutex_);
  DJINN_ASSERT(place() == Place::kSpilling && !file_.valid());
  if (::ftruncate(file.get(), static_cast<off_t>(layout_.file_bytes())) != 0) {
    return system_error("size a sequence group's file", errno);
  }
  DJINN_CHECK(for_each_piece([&](uint64_t offset, std::span<std::byte> piece) -> Status {
    DJINN_CHECK(pal_.copy_out(memory_, offset, piece));
    return write_at(file, offset, piece);
  }));
  if (::fdatasync(file.get()) != 0) return system_error("keep a spilled sequence group", errno);
  file_ = std::move(file);
  return std::exchange(granted_bytes_, 0);
}

Status Sequence::read_file() {
  return for_each_piece([&](uint64_t offset, std::span<std::byte> piece) -> Status {
    DJINN_CHECK(read_at(file_, offset, piece));
    return pal_.copy_in(memory_, offset, piece);
  });
}

// Visits all that is committed, piece by piece, with room for the bytes on the host.
Status Sequence::for_each_piece(const Piece& visit) const {
  std::vector<std::byte> room(kFilePieceBytes);
  return layout_.for_each_range(0, committed(), [&](uint64_t offset, uint64_t bytes) -> Status {
    for (uint64_t done = 0; done < bytes;) {
      const auto piece = std::span(room).first(std::min(kFilePieceBytes, bytes - done));
      DJINN_CHECK(visit(offset + done, piece));
      done += piece.size();
    }
    return {};
  });
}

Status Sequence::read_back(uint64_t more, Grants& grants) {
  const std::lock_guard lock(memory_mutex_);
  DJINN_ASSERT(place() == Place::kReturning && file_.valid());
  granted_bytes_ += more;
  Status read = back_with_pages(0, committed());
  if (read) read = read_file();
  if (read) {
    file_.reset();
    return {};
  }
  if (pal_.decommit(extent_, 0, extent_.bytes)) {
    const uint64_t bytes = std::exchange(granted_bytes_, 0);
    if (bytes > 0) grants.give_back(ipc::GrantKind::kSequence, session_, bytes, handle_);
  }
  return read;
}

std::optional<Error> Sequence::take_failure() {
  const std::lock_guard lock(failure_mutex_);
  return std::exchange(failure_, std::nullopt);
}

// Has the lane regard a growth that was under way as ended; ensure() asks again.
void Sequence::forget_growth() {
  const std::lock_guard lock(failure_mutex_);
  failure_.reset();
  wanted_.store(committed(), std::memory_order_relaxed);
}

// --- SequencePager

Outcome<void> SequencePager::ensure(const std::shared_ptr<Sequence>& sequence, uint64_t tokens) {
  const Sequence::Place place = sequence->place();
  if (place != Sequence::Place::kPresent) return bring_back(sequence, place);
  const uint64_t capacity = sequence->layout().capacity();
  DJINN_ASSERT(tokens <= capacity);
  const uint64_t committed = sequence->committed();
  const bool ready = tokens <= committed;
  if (!ready) {
    if (auto failure = sequence->take_failure()) {
      sequence->wanted_.store(committed, std::memory_order_relaxed);
      if (sequence->asked_in_need_ && !is_of_another_run(*failure)) return *std::move(failure);
    }
  }
  if (committed < capacity && tokens + kAheadTokens / 2 > committed) {
    ask(sequence, std::min(tokens + kAheadTokens, capacity), !ready);
  }
  if (ready) return {};
  return waits_.await(awaited(*sequence));
}

void SequencePager::ask(const std::shared_ptr<Sequence>& sequence, uint64_t tokens, bool in_need) {
  // A growth that is under way comes first; ensure() asks again if it was not enough.
  if (sequence->wanted_.load(std::memory_order_relaxed) > sequence->committed()) return;
  sequence->wanted_.store(tokens, std::memory_order_relaxed);
  sequence->asked_in_need_ = in_need;
  growing_.post([this, sequence, tokens] {
    // The group may have left in between; ensure() asks again when it is back.
    if (sequence->place() != Sequence::Place::kPresent) return;
    with_grant(sequence, sequence->layout().committed_bytes(tokens),
               [this, tokens](Sequence& group, Result<uint64_t> more) {
                 grow(group, tokens, std::move(more));
               });
  });
}

// The grants of a dropped group end with it: nothing is asked for it, and nobody is told.
void SequencePager::with_grant(const std::shared_ptr<Sequence>& sequence, uint64_t bytes,
                               Granted done) {
  if (sequence->dropped()) return;
  const uint64_t more = sequence->missing(bytes);
  if (more == 0) return done(*sequence, more);
  grants_.ask(sequence->session(), sequence->handle(), more,
              [this, sequence, more, done = std::move(done)](const Status& status) {
                growing_.post([sequence, more, done, status] {
                  if (sequence->dropped()) return;
                  done(*sequence, status ? Result<uint64_t>(more) : status.error());
                });
              });
}

void SequencePager::grow(Sequence& sequence, uint64_t tokens, Result<uint64_t> more) {
  const Status grown = more ? sequence.grow(tokens, *more, grants_) : std::move(more).error();
  if (!grown) {
    // The failure concerns nobody if the group has left meanwhile: forget_growth() comes after
    // this, or has come.
    const std::lock_guard lock(sequence.failure_mutex_);
    if (sequence.place() == Sequence::Place::kPresent) sequence.failure_ = grown.error();
  }
  waits_.arrived(awaited(sequence));
}

// A step waits while its group is being written, and asks again when that has ended.
Outcome<void> SequencePager::bring_back(const std::shared_ptr<Sequence>& sequence,
                                        Sequence::Place place) {
  if (place != Sequence::Place::kSpilled) return waits_.await(awaited(*sequence));
  auto failure = sequence->take_failure();
  if (failure && !is_of_another_run(*failure)) return *std::move(failure);
  sequence->enter(Sequence::Place::kReturning);
  growing_.post([this, sequence] {
    with_grant(sequence, sequence->layout().committed_bytes(sequence->committed()),
               [this](Sequence& group, const Result<uint64_t>& more) { restore(group, more); });
  });
  return waits_.await(awaited(*sequence));
}

void SequencePager::restore(Sequence& sequence, const Result<uint64_t>& more) {
  Status read = more ? sequence.read_back(*more, grants_) : more.error();
  if (read) {
    sequence.forget_growth();
    // djinnd is told before any step can change the group: the next worker reads from the file
    // whatever djinnd has not heard to be back.
    outbox_.send({ipc::SequenceRestored{sequence.session_, sequence.handle_}});
    sequence.enter(Sequence::Place::kPresent);
  } else {
    const std::lock_guard lock(sequence.failure_mutex_);
    sequence.failure_ = std::move(read).error();
    sequence.enter(Sequence::Place::kSpilled);
  }
  waits_.arrived(awaited(sequence));
}

// The group is written on another thread. A step that awaits a growth is woken: it asks again,
// and then awaits the group's return.
void SequencePager::spill(const std::shared_ptr<Sequence>& sequence, Fd file) {
  sequence->enter(Sequence::Place::kSpilling);
  waits_.arrived(awaited(*sequence));
  auto shared = std::make_shared<Fd>(std::move(file));  // closures are copied
  spilling_.post([this, sequence, shared] {
    if (!sequence->dropped()) write_out(*sequence, std::move(*shared));
  });
}

void SequencePager::after_moves(std::function<void()> job) {
  spilling_.post([this, job = std::move(job)] { growing_.post(job); });
}

void SequencePager::write_out(Sequence& sequence, Fd file) {
  ipc::SequenceSpilled told{sequence.session_, sequence.handle_, 0, ErrorCode::kOk, {}};
  const Result<uint64_t> written = sequence.write_out(std::move(file));
  if (written) {
    told.bytes = *written;
  } else {
    told.code = written.error().code;
    told.message = written.error().message;
  }
  sequence.forget_growth();
  // djinnd is told before anybody can ask for the group back.
  outbox_.send({told});
  sequence.enter(written ? Sequence::Place::kSpilled : Sequence::Place::kPresent);
  waits_.arrived(awaited(sequence));
}

}  // namespace djinn::worker
