// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/slices.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernel/sched/turns.h"

namespace djinn::worker {
namespace {

// A step that is begun inside a pause has so much time at most at its first try, and a unit of the
// processor behind that. One that is likely to take longer is held; if it waits for too long, it
// has what it is likely to take, up to what makes a step long for certain.
constexpr uint64_t kInsideNsMax = 3 * sched::kUnitNs;
constexpr uint64_t kLongNs = 8 * sched::kUnitNs;
// After so many tries it has kLongNs of the processor.
constexpr uint32_t kTriesInsideMax = 3;
static_assert(sched::kUnitNs << kTriesInsideMax == kLongNs);
// What is held has waited for so many times the time that it has inside, when it is let in.
constexpr uint64_t kPatience = 16;

// Twice as much after each time that it was not enough. So is what it has of the processor then.
uint64_t inside_ns(const Seat& seat) {
  uint64_t first_ns = sched::kUnitNs;
  if (seat.is_sure && seat.predicted_ns > kLongNs) {
    first_ns = kInsideNsMax;
  } else if (seat.is_sure) {
    first_ns = std::max(first_ns, seat.predicted_ns);
  }
  return std::min(first_ns << seat.tries_inside, kLongNs);
}

}  // namespace

// A step that makes a token is never long, however large its model is: it is a unit. What may not
// be long is not taken for long, since it would be held: to abandon it costs less.
bool Slices::is_long(const Seat& seat) {
  if (seat.is_held_back) return true;
  const bool is_token_run = seat.token_kind != 0 && seat.kind.number == seat.token_kind;
  if (seat.kind.is_token || is_token_run) return false;
  return seat.is_sure && seat.predicted_ns > kInsideNsMax;
}

void Slices::begin_turn(uint64_t now_ns) {
  if (turn_since_ns_ == 0) turn_since_ns_ = now_ns;
}

Slice Slices::begin(const Seat& seat, uint64_t begun_ns, Place place) {
  Slice slice;
  const uint64_t turn_since_ns = std::exchange(turn_since_ns_, 0);
  slice.since_ns = turn_since_ns == 0 ? begun_ns : std::min(turn_since_ns, begun_ns);
  slice.turn_ns = begun_ns - slice.since_ns;
  slice.ends_ns = begun_ns + (place == Place::kInside ? inside_ns(seat) : sched::kUnitNs);
  slice.cpu_inside_ns = sched::kUnitNs << seat.tries_inside;
  if (is_long(seat)) slice.cpu_begun_ns = clock_.thread_cpu_ns();
  return std::exchange(slice_, slice);
}

Slice Slices::end(const Slice& aside, uint64_t ended_ns) {
  turn_since_ns_ = ended_ns;
  return std::exchange(slice_, aside);
}

void Slices::note_abandoned(Seat& seat, const Slice& slice) {
  seat.is_held_back = true;
  if (!slice.has_run_out) return;
  if (seat.tries_inside == kTriesInsideMax) {
    seat.long_kind = seat.kind.number;
  } else {
    ++seat.tries_inside;
  }
}

void Slices::note_done(Seat& seat, const Slice& slice) const {
  seat.is_held_back = false;
  seat.tries_inside = 0;
  if (slice.cpu_begun_ns != 0 && clock_.thread_cpu_ns() - slice.cpu_begun_ns >= kLongNs) {
    seat.long_kind = seat.kind.number;
  }
}

void Slices::skip(uint64_t took_ns) {
  slice_.since_ns += took_ns;
  slice_.ends_ns += took_ns;
  if (turn_since_ns_ != 0) turn_since_ns_ += took_ns;
}

void Slices::charge_units(SessionId session, uint64_t now_ns) {
  const bool is_due = now_ns >= slice_.since_ns + sched::kUnitNs;
  charge(session, is_due ? now_ns : slice_.since_ns);
}

void Slices::charge(SessionId session, uint64_t now_ns) {
  const uint64_t took_ns = now_ns - slice_.since_ns;
  sched::charge_slice(queue_, session, took_ns);
  slice_.charged_ns += took_ns;
  slice_.since_ns = now_ns;
}

void Slices::begin_next(uint64_t now_ns) {
  slice_.since_ns = now_ns;
  slice_.ends_ns = now_ns + queue_.slice_ns();
  end_turn();
}

// Where others compute on the machine, that they had it is no fault of this step.
bool Slices::goes_on_inside() {
  if (clock_.monotonic_ns() < slice_.ends_ns) return true;
  const uint64_t cpu_ns = clock_.thread_cpu_ns();
  if (slice_.cpu_ends_ns == 0) slice_.cpu_ends_ns = cpu_ns + slice_.cpu_inside_ns;
  slice_.has_run_out = cpu_ns >= slice_.cpu_ends_ns;
  return !slice_.has_run_out;
}

// What lacked memory may have it now, too: nobody is to wait for as long as somebody's run takes.
void Slices::let_in_who_waited(const Rings& rings, uint64_t now_ns) {
  std::vector<SessionId> waited;
  for (const SessionId id : queue_.held()) {
    const Seat& seat = rings.at(id);
    const bool is_truly_long = seat.long_kind != 0 && seat.long_kind == seat.kind.number;
    if (!is_truly_long && now_ns - seat.worked_ns >= kPatience * inside_ns(seat)) {
      waited.push_back(id);
    }
  }
  for (const SessionId id : waited) queue_.let_go(id);
}

}  // namespace djinn::worker
