// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/runner.h"

#include <fmt/format.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "ipc/exit_status.h"
#include "kernel/base/assert.h"
#include "kernel/base/checked.h"
#include "kernel/base/units.h"

namespace djinn::worker {
namespace {

// One step publishes at most a token completion for every few rows, and the end of its submission.
constexpr uint32_t kCompletionsPerStep =
    (limits::kRows + ipc::kTokensPerCompletion - 1) / ipc::kTokensPerCompletion + 1;

static_assert(kCompletionsPerStep <= limits::kCompletionSlots);

// What inputs of all joined steps are copied to counts for the quota of each session's next run, as
// all of the lane's heap does. Who would need more is computed alone.
constexpr uint64_t kJoinedBytesMax = uint64_t{64} << 20;

// Gives the record that the next step of this session starts from.
gc::StepRecord next_record(const gc::StepRecord& last, const ipc::Submission& submission) {
  gc::StepRecord record;
  record.completed = last.completed;
  record.run = submission.run;
  record.failed_series = last.failed_series;
  // After a token step of the same run, the generation goes on where it was committed.
  if (last.kind == gc::StepKind::kToken && last.run == submission.run) record = last;
  record.tokens_in_step = 0;
  return record;
}

void push_tokens(ipc::WorkerRing& ring, const gc::StepRecord& record) {
  DJINN_ASSERT(record.tokens_in_step <= gc::kRowsMax);
  DJINN_ASSERT(record.tokens_in_step == 0 || record.generated > 0);
  for (uint32_t row = 0; row < record.tokens_in_step; row += ipc::kTokensPerCompletion) {
    ipc::Completion out;
    out.kind = static_cast<uint16_t>(ipc::CompletionKind::kToken);
    out.index = static_cast<uint32_t>(record.generated - 1);
    out.run = record.run;
    out.first_row = row;
    out.row_count = std::min<uint32_t>(ipc::kTokensPerCompletion,
                                       static_cast<uint32_t>(record.tokens_in_step) - row);
    std::copy_n(record.tokens.begin() + row, out.row_count, out.tokens);
    ring.push(out);
  }
}

// Gives the tier (RunCounts) of an operation that computes, and 0 for the others.
uint64_t tier_of(uint16_t operation) {
  switch (static_cast<ipc::Operation>(operation)) {
    case ipc::Operation::kRunOnce:
      return 1;
    case ipc::Operation::kRun:
      return 2;
    case ipc::Operation::kGenerate:
      return 3;
    default:
      return 0;
  }
}

// Tells whether it was a decode step of a client that has the loop.
bool is_token_run(const Step& step) {
  return step.submission.operation == static_cast<uint16_t>(ipc::Operation::kRun) &&
         step.group != nullptr && step.tokens == 1;
}

// A token was made, or a part of a prompt was read: the group has it.
bool is_under_way(const gc::StepRecord& record) {
  return record.generated > 0 || record.prompt_read > 0;
}

exec::Program* program_of(const std::variant<TokenRun, ProgramRun>& bound) {
  return std::visit([](const auto& run) { return run.program; }, bound);
}

Error too_late(uint64_t late_ns) {
  return {
      ErrorCode::kQueueFull,
      fmt::format("The run had to wait longer than it may: {} ms after its deadline it could "
                  "begin. Nothing of it was done. Submit it again later, or let it wait longer.",
                  ms_rounded_up(late_ns))};
}

ipc::Completion done_completion(const gc::StepRecord& record) {
  ipc::Completion out;
  out.kind = static_cast<uint16_t>(ipc::CompletionKind::kDone);
  out.error = static_cast<uint16_t>(record.error);
  out.index =
      static_cast<uint32_t>(record.failed_node != 0 ? record.failed_node : record.generated);
  out.run = record.run;
  out.random_offset = record.random_offset;
  return out;
}

}  // namespace

Result<bool> Runner::is_blocked(Session& session) {
  return session.ring().block_until_free(kCompletionsPerStep);
}

Result<Runner::Advance> Runner::advance(Session& session, const StepBatch& unit) {
  tools_.waits.begin_step();
  gc::SessionState& state = session.state();
  DJINN_TRY(const bool full, is_blocked(session));
  if (full) return Advance::kBlocked;
  if (state.step_published() < state.step()) {
    publish(session);
    DJINN_TRY(const bool is_full_now, is_blocked(session));
    if (is_full_now) return Advance::kBlocked;
  }
  auto flight = state.in_flight();
  const bool is_new = !flight;
  if (is_new) {
    DJINN_TRY(const bool submitted, session.ring().has_submission());
    if (!submitted) return Advance::kIdle;
  }
  state.begin();  // before the pick-up, so that a death in it counts against the submission
  if (is_new) {
    DJINN_CHECK(pick_up(session));
    flight = state.in_flight();
  }
  DJINN_ASSERT(flight && flight->submission_index == session.ring().completed());
  ipc::Submission submission;
  DJINN_ASSERT(flight->descriptor.size() >= sizeof submission);
  memcpy(&submission, flight->descriptor.data(), sizeof submission);
  Begun begun{{session, submission, flight->block}, next_record(state.record(), submission)};
  state.beat();
  watch(begun);
  if (session.progression.begun_ns == 0) session.progression.begun_ns = clock_.monotonic_ns();
  // A step that waited and was cancelled meanwhile does not ask again.
  begun.waited = std::exchange(session.waits, false);
  if (is_new || begun.waited) refuse_if_late(begun);
  if (may_join(begun, unit)) return join(std::move(begun));
  if (unit.key != 0 && begun.record.generated == 0) {
    give_up_for_now(begun);
    return Advance::kAbandoned;
  }
  DJINN_ASSERT(!is_aside(session.id()));
  const bool gives_up = begun.waited && session.is_cancelled();
  const uint64_t begun_before = tools_.lane.stats().begun;
  const Outcome<Ending> ending = gives_up ? give_up(begun.step) : perform(begun.step, begun.record);
  return end(begun, ending, begun_before);
}

// A step that has waited for memory has not begun either, but for a generation's later ones.
void Runner::refuse_if_late(const Begun& begun) {
  const uint64_t begin_by_ns = begun.step.submission.begin_by_ns;
  if (begin_by_ns == 0 || is_under_way(begun.record)) return;
  const uint64_t now_ns = clock_.monotonic_ns();
  if (now_ns <= begin_by_ns) return;
  begun.step.session.refuse(too_late(now_ns - begin_by_ns));
}

// Of the runs that follow.
void Runner::watch(Begun& begun) {
  Session& session = begun.step.session;
  tools_.lane.set_owner({session.id().value, session.refs().extent_bytes()});
  tools_.lane.set_pulse(pulse_of(begun));
}

// Shows life, and says whether the run goes on. A step that makes a token is short enough.
std::function<bool(std::string_view)> Runner::pulse_of(Begun& begun) {
  if (between_ && begun.record.generated == 0) {
    return [this, &begun](std::string_view op) { return goes_on(begun, op); };
  }
  return [&begun](std::string_view op) {
    begun.step.session.state().beat(op);
    return !begun.step.session.gives_up(begun.step.submission.run);
  };
}

bool Runner::goes_on(Begun& begun, std::string_view op) {
  Session& session = begun.step.session;
  session.state().beat(op);
  const uint64_t run = begun.step.submission.run;
  if (begun.is_abandoned || session.gives_up(run)) return false;
  if (op.empty() || is_token_run(begun.step)) return true;
  Begun* const outside = std::exchange(asks_, &begun);
  begun.is_abandoned = !between_(session);
  asks_ = outside;
  return !begun.is_abandoned && !session.gives_up(run);
}

Runner::Advance Runner::end(Begun& begun, const Outcome<Ending>& ending, uint64_t begun_before) {
  Session& session = begun.step.session;
  settle_lane(ending);
  const bool abandons = is_to_abandon(begun, ending);
  if (abandons || ending.is_pending()) {
    if (tools_.lane.stats().begun != begun_before) counts_.note_repetition();
    session.waits = ending.is_pending() || begun.waited;
    if (is_paused()) session.beginnings.reset();  // found with less memory than there is
    give_up_for_now(begun);
    return abandons ? Advance::kAbandoned : Advance::kWaiting;
  }
  session.waits = false;
  if (!ending) {
    fail(begun.step, begun.record, ending.error());
  } else {
    begun.record.kind = *ending == Ending::kDone ? gc::StepKind::kDone : gc::StepKind::kToken;
    commit(begun.step, begun.record);
  }
  session.was_token = is_token_run(begun.step);
  session.note_step();
  count(begun.step, session.state().record());
  publish(session);
  return begun.waited ? Advance::kWaited : Advance::kWorked;
}

// What a step computed is there before it is committed, or put back. Nobody is told of one whose
// device is gone: the process ends, and the next one does it again.
void Runner::settle_lane(const Outcome<Ending>& ending) {
  const bool is_lost = ending.has_failed() && ending.error().code == ErrorCode::kDeviceLost;
  const Status done = is_lost ? Status(ending.error()) : tools_.lane.wait();
  if (done) return;
  fmt::print(stderr, "djinn-worker: {}\n", done.error().message);
  ::_exit(ipc::kDeviceLostStatus);
}

bool Runner::is_to_abandon(const Begun& begun, const Outcome<Ending>& ending) const {
  if (begun.is_abandoned) return true;
  if (!is_paused() || !ending.has_failed()) return false;
  const ErrorCode code = ending.error().code;
  return code == ErrorCode::kOutOfMemory || code == ErrorCode::kQuotaExceeded;
}

// --- pauses

Runner::Pause::Pause(Runner& runner) : runner_(runner), no_trial_(runner.tools_.grants) {
  DJINN_ASSERT(runner.asks_ != nullptr && runner.aside_ == nullptr && !runner.has_joined());
  runner.aside_ = runner.asks_;
  runner.tools_.waits.set_aside();
  runner.aside_->step.session.state().suspend();
  runner.tools_.lane.pause();
  runner.tools_.programs.pause();
}

Runner::Pause::~Pause() {
  DJINN_ASSERT(!runner_.has_joined());
  runner_.tools_.programs.resume();
  runner_.tools_.lane.resume();
  runner_.tools_.waits.take_up();
  std::exchange(runner_.aside_, nullptr)->step.session.state().resume();
}

bool Runner::is_asking(SessionId session) const {
  return asks_ != nullptr && asks_->step.session.id() == session;
}

bool Runner::is_aside(SessionId session) const {
  return aside_ != nullptr && aside_->step.session.id() == session;
}

bool Runner::is_used_aside(SessionId session, SequenceHandle sequence) const {
  return is_aside(session) && aside_->step.group != nullptr &&
         aside_->step.group->handle() == sequence;
}

// --- steps that join

// What perform() looks at first is of steps that are refused. And the client may have changed its
// word since it was looked at.
bool Runner::may_join(const Begun& begun, const StepBatch& unit) const {
  const Step& step = begun.step;
  const bool is_refused =
      step.session.has_refusal() ||
      (step.is_of_series() && begun.record.failed_series == step.submission.series);
  return unit.key != 0 && !begun.waited && !is_refused && batch_of(step, tools_.programs) == unit;
}

Outcome<Runner::Bound> Runner::bind(Begun& begun, Binder& binder) {
  if (begun.record.generated > 0) {
    DJINN_TRY(TokenRun run, prepare_token(begun.step, tools_, binder, begun.record));
    return Bound(std::move(run));
  }
  DJINN_TRY(ProgramRun run, prepare_run(begun.step, tools_, binder));
  return Bound(std::move(run));
}

Outcome<Ending> Runner::compute(Begun& begun, const Binder& binder, const Bound& bound) {
  if (const auto* const token = std::get_if<TokenRun>(&bound)) {
    return compute_token(begun.step, tools_, binder, *token, begun.record);
  }
  return compute_run(begun.step, tools_, binder, std::get<ProgramRun>(bound));
}

Outcome<Ending> Runner::finish(Begun& begun, const Bound& bound,
                               std::span<const exec::OutputView> outputs) {
  if (const auto* const token = std::get_if<TokenRun>(&bound)) {
    return finish_token(begun.step, tools_, outputs, *token, begun.record);
  }
  return finish_run(begun.step, tools_, outputs, std::get<ProgramRun>(bound));
}

Result<Runner::Advance> Runner::join(Begun begun) {
  watch(begun);  // it has moved
  if (binders_.size() == joined_.size()) binders_.emplace_back(tools_.lane);
  Binder& binder = binders_[joined_.size()];
  const uint64_t begun_before = tools_.lane.stats().begun;
  Outcome<Bound> bound = bind(begun, binder);
  if (!bound) return end(begun, std::move(bound).why_not(), begun_before);
  DJINN_ASSERT(joined_.empty() || program_of(*bound) == program_of(joined_.front().bound));
  if (copied_bytes() <= kJoinedBytesMax) {
    joined_.push_back({std::move(begun), &binder, *std::move(bound)});
    return Advance::kJoins;
  }
  const Outcome<Ending> ending = compute(begun, binder, *bound);
  binder.clear();
  return end(begun, ending, begun_before);
}

uint64_t Runner::copied_bytes() const {
  uint64_t bytes = 0;
  for (const Binder& binder : binders_) bytes += binder.kept_bytes();
  return bytes;
}

void Runner::end_joined(const OnEnd& on_end) {
  const std::vector<bool> done = compute_joined();
  // What was computed together is valid until something is computed again.
  for (const bool together : {true, false}) {
    for (size_t i = 0; i < joined_.size(); ++i) {
      if (done[i] != together) continue;
      auto& [begun, binder, bound] = joined_[i];
      Session& session = begun.step.session;
      tools_.waits.begin_step();
      const uint64_t begun_before = tools_.lane.stats().begun;
      if (!together) watch(begun);
      const Outcome<Ending> ending = together ? finish(begun, bound, tools_.lane.outputs_of(i))
                                              : compute(begun, *binder, bound);
      on_end(session, end(begun, ending, begun_before));
    }
  }
  joined_.clear();
}

// Gives which of them were computed. Their outputs have no places yet: they are copied there.
std::vector<bool> Runner::compute_joined() {
  if (joined_.size() < 2) return std::vector<bool>(joined_.size(), false);
  // While the slab grows the lane shows life for this one; whoever came last may be gone.
  watch(joined_.front().begun);
  std::vector<exec::RunTogether> runs;
  for (auto& [begun, binder, bound] : joined_) {
    Session& session = begun.step.session;
    exec::RunBindings bindings = binder->bindings();
    bindings.places = {};
    runs.push_back(
        {bindings, {session.id().value, session.refs().extent_bytes()}, pulse_of(begun)});
  }
  return tools_.lane.run_together(*program_of(joined_.front().bound), runs);
}

void Runner::clear() {
  DJINN_ASSERT(joined_.empty());
  binders_.clear();
  inner_binder_.clear();
}

void Runner::count(Step& step, const gc::StepRecord& record) {
  Session& session = step.session;
  const uint64_t now_ns = clock_.monotonic_ns();
  LaneCounts::Tokens tokens{record.tokens_in_step, record.generated};
  if (session.generation) {
    tokens.prompt_tokens = uint64_t{session.generation->prompt_tokens} * session.generation->rows;
  }
  counts_.note_tokens(session.progression, tokens, now_ns);
  if (record.kind != gc::StepKind::kToken) {
    counts_.note_end(session.progression, step.submission.operation,
                     record.kind == gc::StepKind::kFailed, now_ns);
  }
  counts_.note_lane(tools_.lane.stats());
  count_for_session(step, record);
}

void Runner::count_for_session(const Step& step, const gc::StepRecord& record) {
  gc::RunCounts& counts = step.session.counts;
  const uint64_t misses = tools_.lane.stats().plan_misses;
  counts.plan_misses += misses - std::exchange(plan_misses_, misses);
  counts.tokens += record.tokens_in_step;
  counts.last_tier = tier_of(step.submission.operation);
  if (record.kind == gc::StepKind::kToken) return;
  if (record.kind == gc::StepKind::kFailed) {
    ++counts.failed;
  } else if (uint64_t* const ended = counts.of_tier(counts.last_tier); ended != nullptr) {
    ++*ended;
  }
}

Status Runner::pick_up(Session& session) {
  DJINN_ASSERT(!session.state().in_flight() && !session.waits);
  const ipc::Submission submission = session.ring().copy_submission();
  if (submission.run <= session.state().record().run) {
    return Error{ErrorCode::kProtocolViolation,
                 "A run's number is not larger than the one before."};
  }
  std::span<const std::byte> block;
  if (range_fits(submission.binding_offset, submission.binding_bytes, session.staging().size()) &&
      submission.binding_bytes <= limits::kBindingTableBytes) {
    block = session.staging().subspan(submission.binding_offset, submission.binding_bytes);
  }
  // A block that does not fit is left empty. No decoder accepts that, so the run fails and not the
  // session.
  session.state().pick_up(session.ring().completed(), std::as_bytes(std::span(&submission, 1)),
                          block);
  session.counts.bytes_in += sizeof submission + block.size();
  session.generation.reset();
  session.beginnings.reset();
  return {};
}

Outcome<Ending> Runner::perform(Step& step, gc::StepRecord& record) {
  if (auto refusal = step.session.take_refusal()) {
    if (refusal->code == ErrorCode::kQueueFull) {
      counts_.note_refusal();
      doom_made(step);
    } else {
      doom_products(step, tools());
    }
    return *std::move(refusal);
  }
  if (step.is_of_series() && record.failed_series == step.submission.series) {
    doom_products(step, tools());
    return Error{ErrorCode::kPoisoned, "A run of the same series before it has failed."};
  }
  switch (static_cast<ipc::Operation>(step.submission.operation)) {
    case ipc::Operation::kNop:
      return Ending::kDone;
    case ipc::Operation::kRun:
      return run_program(step, tools());
    case ipc::Operation::kRunOnce:
      return run_graph_once(step, tools());
    case ipc::Operation::kGenerate:
      return generate_token(step, tools(), record);
    case ipc::Operation::kReadRef:
      return read_ref(step, tools());
    case ipc::Operation::kWriteRef:
      return write_ref(step);
    case ipc::Operation::kReleaseRefs:
      return release_refs(step);
    case ipc::Operation::kCropSequence:
      return crop_sequence(step);
    case ipc::Operation::kReorderSequence:
      return reorder_sequence(step, tools());
  }
  return Error{ErrorCode::kUnsupported, "The daemon does not know this operation."};
}

Error Runner::give_up(Step& step) {
  doom_products(step, tools_);
  return {ErrorCode::kCancelled, "The run was given up while it waited for memory."};
}

void Runner::commit(Step& step, gc::StepRecord record) {
  DJINN_ASSERT(record.kind != gc::StepKind::kNone && record.run == step.submission.run);
  DJINN_ASSERT((record.kind == gc::StepKind::kFailed) == (record.error != 0));
  if (record.kind != gc::StepKind::kToken) record.completed += 1;
  step.session.state().stage_record(record);
  step.session.state().commit();
  step.session.refs().end_step(Refs::End::kCommitted);
  step.session.tell_idle_refs();
}

// The step will be repeated: when what it awaits has come, or when it is its turn again.
void Runner::give_up_for_now(Begun& begun) {
  Session& session = begun.step.session;
  roll_back(session);
  session.state().pause();
  if (!is_under_way(begun.record)) session.progression.begun_ns = 0;
}

void Runner::fail(Step& step, gc::StepRecord record, const Error& error) {
  gc::SessionState& state = step.session.state();
  Refs& refs = step.session.refs();
  if (!step.keeps) begin_again(step);
  for (const RefHandle handle : step.doomed) refs.stage_poison(state, handle, error.code);
  record.kind = gc::StepKind::kFailed;
  record.error = static_cast<uint32_t>(error.code);
  if (step.is_of_series()) record.failed_series = step.submission.series;
  record.failed_node = step.failed_node;
  record.tokens_in_step = 0;
  record.error_text = {};
  std::copy_n(error.message.begin(), std::min(error.message.size(), record.error_text.size() - 1),
              record.error_text.begin());
  commit(step, record);
}

// The record says all that the client is told, so this can be done again by another worker. Room in
// the completion ring was found before.
void Runner::publish(Session& session) {
  gc::SessionState& state = session.state();
  ipc::WorkerRing& ring = session.ring();
  const gc::StepRecord record = state.record();
  DJINN_ASSERT(state.step_published() < state.step());
  push_tokens(ring, record);
  if (record.kind != gc::StepKind::kToken) {
    if (record.kind == gc::StepKind::kFailed) {
      const std::string_view text = record.error_text.data();
      ring.set_error_text(record.completed - 1, text);
      session.counts.bytes_out += text.size();
    }
    ring.push(done_completion(record));
  }
  session.counts.bytes_out +=
      (ring.pushed() - state.completions_published()) * sizeof(ipc::Completion);
  counts_.note_crossing(session.counts.bytes_in, session.counts.bytes_out);
  state.count(std::exchange(session.counts, {}));
  DJINN_ASSERT(ring.pushed() >= state.completions_published());
  state.set_completions_published(ring.pushed());
  while (ring.completed() < record.completed) ring.complete_one();
  DJINN_ASSERT(ring.completed() == record.completed);
  const bool wake = ring.publish();
  state.set_step_published(state.step());
  if (wake) session.ring_completion_bell();
}

}  // namespace djinn::worker
