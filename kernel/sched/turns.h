// SPDX-License-Identifier: Apache-2.0

// Turns: in which order whoever drives a queue calls it, be it a worker's lane, one that is
// foreseen (forecast.h) or that of a test.
//
//   wait    before a turn: for a client that will come before the step that is next
//   turn    what is next: a step of a session, the next slice of the run that is paused, or that
//           this run is given up
//   unit    of a turn: the session that was picked, and those that share its step
//   slice   of a run ends between two of its operators: it is charged, who came meanwhile is
//           queued, and then it goes on, gives way, or is given up
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "kernel/sched/queue.h"

namespace djinn::sched {

// Whether to wait before next_turn(); ask again until this says no.
[[nodiscard]] bool is_wait_next(Queue& queue, uint64_t now_ns);

enum class TurnKind : uint8_t {
  kStep,    // the session's step begins
  kSlice,   // its run goes on, which has slices
  kGiveUp,  // that run is to be charged and queued again: it begins anew when no other can run
};
struct Turn {
  SessionId session;  // it is picked
  TurnKind kind = TurnKind::kStep;
};
// Nothing: nobody is ready.
std::optional<Turn> next_turn(Queue& queue, uint64_t now_ns);

// Picks those that share the step of the one that was picked, whose batch key this is, and gives
// all of them, that one first; key 0: nobody does. takes: asked of each in turn, whether there is
// room for its step. Of the class idle nobody joins another class: a step takes longer with it.
std::vector<SessionId> unit_of(Queue& queue, SessionId picked, uint64_t batch_key, uint64_t now_ns,
                               const std::function<bool(SessionId)>& takes);

// The picked session's run has slices, and has gone on for so long since it was picked or this was
// called last.
void charge_slice(Queue& queue, SessionId session, uint64_t measured_ns);

// What is next for the run with slices.
enum class AfterSlice : uint8_t {
  kGoesOn,     // nobody else can run
  kGivesWay,   // to the next turn, after Queue::end_slice()
  kIsGivenUp,  // as TurnKind::kGiveUp says
};
[[nodiscard]] AfterSlice after_slice(const Queue& queue);

}  // namespace djinn::sched
