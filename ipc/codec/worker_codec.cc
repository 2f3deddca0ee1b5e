// SPDX-License-Identifier: Apache-2.0

#include "ipc/codec/control_codec.h"
#include "ipc/codec/control_wire.h"

namespace djinn::ipc::control {
namespace {

// --- what commands and events share

void write_name(wire::SequenceName::Builder out, SessionId session, SequenceHandle sequence) {
  out.setSession(session.value);
  out.setSequence(pack(sequence));
}

struct SequenceName {
  SessionId session;
  SequenceHandle sequence;
};
SequenceName read_sequence_name(wire::SequenceName::Reader in) {
  return {{in.getSession()}, unpack<SequenceHandle>(in.getSequence())};
}

void write_range(wire::MemoryRange::Builder out, const MemoryRange& range) {
  out.setOffset(range.offset);
  out.setBytes(range.bytes);
}
MemoryRange read_range(wire::MemoryRange::Reader in) {
  return {in.getOffset(), in.getBytes()};
}

// --- WorkerCommand

void write(wire::WorkerCommand::Builder out, const AttachSession& command) {
  auto attach = out.initAttachSession();
  attach.setSession(command.session.value);
  attach.setStagingBytes(command.staging_bytes);
  attach.setRefBytesMax(command.ref_bytes_max);
  write_list(command.ref_chunks, attach.initRefChunks(count_of(command.ref_chunks)), write_range);
  attach.setRefBytesGranted(command.ref_bytes_granted);
  attach.setSequences(command.sequences);
  write_failure(attach.initRefusal(), command.refusal, command.refusal_text);
  attach.setService(static_cast<uint8_t>(command.service));
}
void write(wire::WorkerCommand::Builder out, const DetachSession& command) {
  out.setDetachSession(command.session.value);
}
void write(wire::WorkerCommand::Builder out, const AddModel& command) {
  auto add = out.initAddModel();
  add.setModel(command.model.value);
  add.setParked(command.parked);
}
void write(wire::WorkerCommand::Builder out, const DropModel& command) {
  out.setDropModel(command.model.value);
}
void write(wire::WorkerCommand::Builder out, const AddProgram& command) {
  auto add = out.initAddProgram();
  add.setProgram(command.program.value);
  add.setModel(command.model.value);
  add.setAgain(command.again);
}
void write(wire::WorkerCommand::Builder out, const DropProgram& command) {
  out.setDropProgram(command.program.value);
}
void write(wire::WorkerCommand::Builder out, const AddSequence& command) {
  auto add = out.initAddSequence();
  write_name(add.initName(), command.session, command.sequence);
  write_geometry(add.initGeometry(), command.geometry);
  add.setBytesGranted(command.bytes_granted);
  add.setSpilled(command.spilled);
}
void write(wire::WorkerCommand::Builder out, const ReleaseSequence& command) {
  write_name(out.initReleaseSequence(), command.session, command.sequence);
}
void write(wire::WorkerCommand::Builder out, const SpillSequence& command) {
  write_name(out.initSpillSequence(), command.session, command.sequence);
}
void write(wire::WorkerCommand::Builder out, const TrimRefs& command) {
  out.setTrimRefs(command.session.value);
}
void write(wire::WorkerCommand::Builder out, const GrantAnswer& command) {
  auto answer = out.initGrantAnswer();
  answer.setRequest(command.request);
  write_failure(answer.initOutcome(), command.code, command.message);
}
void write(wire::WorkerCommand::Builder out, const GiveMemory& command) {
  auto give = out.initGiveMemory();
  give.setRequest(command.request);
  give.setBytes(command.bytes);
}
void write(wire::WorkerCommand::Builder out, const GetWorkerStats&) {
  out.setGetStats();
}
void write(wire::WorkerCommand::Builder out, const JoinBaton& command) {
  out.setJoinBaton(command.slot);
}
void write(wire::WorkerCommand::Builder out, const WakeLane&) {
  out.setWakeLane();
}
void write(wire::WorkerCommand::Builder out, const GetLaneSchedule&) {
  out.setGetSchedule();
}
void write(wire::WorkerCommand::Builder out, const ParkModel& command) {
  out.setParkModel(command.model.value);
}
void write(wire::WorkerCommand::Builder out, const ModelLost& command) {
  auto lost = out.initModelLost();
  lost.setId(command.model.value);
  write_failure(lost.initOutcome(), command.code, command.message);
}

AttachSession read_attach(wire::AttachSession::Reader in) {
  AttachSession attach;
  attach.session = {in.getSession()};
  attach.staging_bytes = in.getStagingBytes();
  attach.ref_bytes_max = in.getRefBytesMax();
  attach.ref_chunks = read_list(in.getRefChunks(), limits::kRefChunks, read_range);
  attach.ref_bytes_granted = in.getRefBytesGranted();
  attach.sequences = in.getSequences();
  Error refusal = read_failure(in.getRefusal(), Success::kAllowed);
  attach.refusal = refusal.code;
  attach.refusal_text = std::move(refusal.message);
  attach.service = read_service(in.getService());
  return attach;
}

AddSequence read_add_sequence(wire::AddSequence::Reader in) {
  const auto [session, sequence] = read_sequence_name(in.getName());
  return {session, sequence, read_geometry(in.getGeometry()), in.getBytesGranted(),
          in.getSpilled()};
}

ReleaseSequence read_release(wire::SequenceName::Reader in) {
  const auto [session, sequence] = read_sequence_name(in);
  return {session, sequence};
}

SpillSequence read_spill(wire::SequenceName::Reader in) {
  const auto [session, sequence] = read_sequence_name(in);
  return {session, sequence};
}

GrantAnswer read_grant_answer(wire::GrantAnswer::Reader in) {
  Error outcome = read_failure(in.getOutcome(), Success::kAllowed);
  return {in.getRequest(), outcome.code, std::move(outcome.message)};
}

ModelLost read_lost(wire::IdOutcome::Reader in) {
  Error error = read_failure(in.getOutcome(), Success::kRefused);
  return {{in.getId()}, error.code, std::move(error.message)};
}

static_assert(std::variant_size_v<decltype(WorkerCommand::body)> ==
              wire::WorkerCommand::JOIN_BATON + 1);

WorkerCommand read_worker_command(wire::WorkerCommand::Reader in) {
  switch (in.which()) {
    case wire::WorkerCommand::ATTACH_SESSION:
      return {read_attach(in.getAttachSession())};
    case wire::WorkerCommand::DETACH_SESSION:
      return {DetachSession{{in.getDetachSession()}}};
    case wire::WorkerCommand::ADD_MODEL:
      return {AddModel{{in.getAddModel().getModel()}, in.getAddModel().getParked()}};
    case wire::WorkerCommand::DROP_MODEL:
      return {DropModel{{in.getDropModel()}}};
    case wire::WorkerCommand::ADD_PROGRAM:
      return {AddProgram{{in.getAddProgram().getProgram()},
                         {in.getAddProgram().getModel()},
                         in.getAddProgram().getAgain()}};
    case wire::WorkerCommand::DROP_PROGRAM:
      return {DropProgram{{in.getDropProgram()}}};
    case wire::WorkerCommand::ADD_SEQUENCE:
      return {read_add_sequence(in.getAddSequence())};
    case wire::WorkerCommand::RELEASE_SEQUENCE:
      return {read_release(in.getReleaseSequence())};
    case wire::WorkerCommand::GRANT_ANSWER:
      return {read_grant_answer(in.getGrantAnswer())};
    case wire::WorkerCommand::GIVE_MEMORY:
      return {GiveMemory{in.getGiveMemory().getRequest(), in.getGiveMemory().getBytes()}};
    case wire::WorkerCommand::GET_STATS:
      return {GetWorkerStats{}};
    case wire::WorkerCommand::PARK_MODEL:
      return {ParkModel{{in.getParkModel()}}};
    case wire::WorkerCommand::MODEL_LOST:
      return {read_lost(in.getModelLost())};
    case wire::WorkerCommand::SPILL_SEQUENCE:
      return {read_spill(in.getSpillSequence())};
    case wire::WorkerCommand::WAKE_LANE:
      return {WakeLane{}};
    case wire::WorkerCommand::TRIM_REFS:
      return {TrimRefs{{in.getTrimRefs()}}};
    case wire::WorkerCommand::GET_SCHEDULE:
      return {GetLaneSchedule{}};
    case wire::WorkerCommand::JOIN_BATON:
      return {JoinBaton{in.getJoinBaton()}};
  }
  refuse(ErrorCode::kUnsupported, "A worker command is unknown to this version.");
}

// --- WorkerEvent

void write_outcome(wire::IdOutcome::Builder out, uint64_t id, ErrorCode code,
                   const std::string& message) {
  out.setId(id);
  write_failure(out.initOutcome(), code, message);
}

void write(wire::WorkerEvent::Builder out, const WorkerReady& event) {
  auto ready = out.initReady();
  ready.setThreads(event.threads);
  ready.setLandlockAbi(event.landlock_abi);
  ready.setSeccomp(event.seccomp);
  ready.setIsa(text(event.isa));
  if (event.kernels) write_kernels(ready.initKernels(), *event.kernels);
}
void write(wire::WorkerEvent::Builder out, const LaneSchedule& event) {
  write_schedule(out.initSchedule(), event);
}
void write(wire::WorkerEvent::Builder out, const LaneAwake&) {
  out.setLaneAwake();
}
void write(wire::WorkerEvent::Builder out, const Attached& event) {
  out.setAttached(event.session.value);
}
void write(wire::WorkerEvent::Builder out, const Detached& event) {
  out.setDetached(event.session.value);
}
void write(wire::WorkerEvent::Builder out, const ModelAdded& event) {
  write_outcome(out.initModelAdded(), event.model.value, event.code, event.message);
}
void write(wire::WorkerEvent::Builder out, const ModelParked& event) {
  out.setModelParked(event.model.value);
}
void write(wire::WorkerEvent::Builder out, const ModelWanted& event) {
  out.setModelWanted(event.model.value);
}
void write(wire::WorkerEvent::Builder out, const ProgramLookedAt& event) {
  auto looked = out.initProgramLookedAt();
  looked.setProgram(event.program.value);
  looked.setDesk(static_cast<uint8_t>(event.desk));
}
void write(wire::WorkerEvent::Builder out, const ModelDropped& event) {
  out.setModelDropped(event.model.value);
}
void write(wire::WorkerEvent::Builder out, const ProgramAdded& event) {
  auto added = out.initProgramAdded();
  added.setProgram(event.program.value);
  added.setActivationBytes(event.activation_bytes);
  added.setName(text(event.name));
  added.setWorkload(static_cast<uint8_t>(event.workload));
  added.setFastNodes(event.fast_nodes);
  added.setWantsFast(event.wants_fast);
  write_list(event.outputs, added.initOutputs(count_of(event.outputs)), write_shape);
}
void write(wire::WorkerEvent::Builder out, const ProgramRefused& event) {
  write_outcome(out.initProgramRefused(), event.program.value, event.code, event.message);
}
void write(wire::WorkerEvent::Builder out, const SequenceAdded& event) {
  auto added = out.initSequenceAdded();
  write_name(added.initName(), event.session, event.sequence);
  write_failure(added.initOutcome(), event.code, event.message);
}
void write(wire::WorkerEvent::Builder out, const SequenceDropped& event) {
  write_name(out.initSequenceDropped(), event.session, event.sequence);
}
void write(wire::WorkerEvent::Builder out, const SequenceSpilled& event) {
  auto spilled = out.initSequenceSpilled();
  write_name(spilled.initName(), event.session, event.sequence);
  spilled.setBytes(event.bytes);
  write_failure(spilled.initOutcome(), event.code, event.message);
}
void write(wire::WorkerEvent::Builder out, const SequenceRestored& event) {
  write_name(out.initSequenceRestored(), event.session, event.sequence);
}
void write(wire::WorkerEvent::Builder out, const RefsTrimmed& event) {
  out.setRefsTrimmed(event.session.value);
}
void write(wire::WorkerEvent::Builder out, const GrantRequest& event) {
  auto request = out.initGrantRequest();
  request.setRequest(event.request);
  request.setKind(static_cast<uint8_t>(event.kind));
  write_name(request.initName(), event.session, event.sequence);
  request.setBytes(event.bytes);
  request.setOrLess(event.or_less);
  write_list(event.places, request.initPlaces(count_of(event.places)), write_range);
}
void write(wire::WorkerEvent::Builder out, const GrantReturn& event) {
  auto back = out.initGrantReturn();
  back.setKind(static_cast<uint8_t>(event.kind));
  write_name(back.initName(), event.session, event.sequence);
  back.setBytes(event.bytes);
  back.setOffset(event.offset);
}
void write(wire::WorkerEvent::Builder out, const SessionBroken& event) {
  write_outcome(out.initSessionBroken(), event.session.value, event.code, event.message);
}
template <typename Counts>
void write_counts(capnp::List<uint64_t>::Builder out, const Counts& counts) {
  DJINN_ASSERT(out.size() == counts.size());
  for (unsigned i = 0; i < out.size(); ++i) out.set(i, counts[i]);
}
void write_times(wire::TimeHistogram::Builder out, const TimeHistogram& times) {
  write_counts(out.initCounts(count_of(times.counts)), times.counts);
  out.setSumNs(times.sum_ns);
}
void write(wire::WorkerEvent::Builder out, const WorkerStats& event) {
  auto stats = out.initStats();
  stats.setSlabBytes(event.slab_bytes);
  stats.setRuns(event.runs);
  stats.setPlannedRuns(event.planned_runs);
  stats.setPlanMisses(event.plan_misses);
  stats.setRunsRepeated(event.runs_repeated);
  stats.setRunsTogether(event.runs_together);
  stats.setTokens(event.tokens);
  stats.setPlanRecords(event.plan_records);
  stats.setPromptTokens(event.prompt_tokens);
  write_counts(stats.initSubmissions(count_of(event.submissions)), event.submissions);
  stats.setSubmissionsFailed(event.submissions_failed);
  stats.setSubmissionsRefused(event.submissions_refused);
  write_times(stats.initQueue(), event.queue);
  write_times(stats.initRun(), event.run);
  write_times(stats.initFirstToken(), event.first_token);
  write_times(stats.initNextToken(), event.next_token);
  stats.setBytesIn(event.bytes_in);
  stats.setBytesOut(event.bytes_out);
  stats.setTurnNs(event.turn_ns);
  stats.setOverruns(event.overruns);
}

WorkerReady read_ready(wire::WorkerReady::Reader in) {
  WorkerReady ready{in.getThreads(), in.getLandlockAbi(), in.getSeccomp(), read_word(in.getIsa())};
  if (in.hasKernels()) ready.kernels = read_kernels(in.getKernels());
  return ready;
}

ModelAdded read_model_added(wire::IdOutcome::Reader in) {
  Error outcome = read_failure(in.getOutcome(), Success::kAllowed);
  return {{in.getId()}, outcome.code, std::move(outcome.message)};
}

ProgramAdded read_program_added(wire::ProgramAdded::Reader in) {
  return {{in.getProgram()},
          read_list(in.getOutputs(), limits::kProgramOutputs, read_shape),
          in.getActivationBytes(),
          read_name(in.getName()),
          read_enum(in.getWorkload(), Workload::kUnknown, Workload::kTraining),
          in.getFastNodes(),
          in.getWantsFast()};
}

ProgramRefused read_program_refused(wire::IdOutcome::Reader in) {
  Error error = read_failure(in.getOutcome(), Success::kRefused);
  return {{in.getId()}, error.code, std::move(error.message)};
}

ProgramLookedAt read_looked_at(wire::ProgramLookedAt::Reader in) {
  if (in.getDesk() >= kAdmissionDesks) {
    refuse(ErrorCode::kMalformed, "A worker has no such desk.");
  }
  return {{in.getProgram()}, static_cast<AdmissionDesk>(in.getDesk())};
}

SequenceAdded read_sequence_added(wire::SequenceAdded::Reader in) {
  const auto [session, sequence] = read_sequence_name(in.getName());
  Error outcome = read_failure(in.getOutcome(), Success::kAllowed);
  return {session, sequence, outcome.code, std::move(outcome.message)};
}

SequenceDropped read_sequence_dropped(wire::SequenceName::Reader in) {
  const auto [session, sequence] = read_sequence_name(in);
  return {session, sequence};
}

SequenceSpilled read_sequence_spilled(wire::SequenceSpilled::Reader in) {
  const auto [session, sequence] = read_sequence_name(in.getName());
  Error outcome = read_failure(in.getOutcome(), Success::kAllowed);
  return {session, sequence, in.getBytes(), outcome.code, std::move(outcome.message)};
}

SequenceRestored read_sequence_restored(wire::SequenceName::Reader in) {
  const auto [session, sequence] = read_sequence_name(in);
  return {session, sequence};
}

GrantRequest read_grant_request(wire::GrantRequest::Reader in) {
  const auto kind = read_enum(in.getKind(), GrantKind::kRefs, GrantKind::kHeap);
  const auto [session, sequence] = read_sequence_name(in.getName());
  return {in.getRequest(),
          kind,
          session,
          sequence,
          in.getBytes(),
          in.getOrLess(),
          read_list(in.getPlaces(), limits::kRefChunks, read_range)};
}

GrantReturn read_grant_return(wire::GrantReturn::Reader in) {
  const auto kind = read_enum(in.getKind(), GrantKind::kRefs, GrantKind::kHeap);
  const auto [session, sequence] = read_sequence_name(in.getName());
  return {kind, session, sequence, in.getBytes(), in.getOffset()};
}

SessionBroken read_session_broken(wire::IdOutcome::Reader in) {
  Error error = read_failure(in.getOutcome(), Success::kRefused);
  return {{in.getId()}, error.code, std::move(error.message)};
}

template <typename Counts>
void read_counts(capnp::List<uint64_t>::Reader in, Counts& counts) {
  if (in.size() != counts.size()) {
    refuse(ErrorCode::kMalformed, "A list of counts has another length than it must have.");
  }
  for (unsigned i = 0; i < in.size(); ++i) counts[i] = in[i];
}

TimeHistogram read_times(wire::TimeHistogram::Reader in) {
  TimeHistogram times;
  read_counts(in.getCounts(), times.counts);
  times.sum_ns = in.getSumNs();
  return times;
}

WorkerStats read_stats(wire::WorkerStats::Reader in) {
  WorkerStats stats;
  stats.slab_bytes = in.getSlabBytes();
  stats.runs = in.getRuns();
  stats.planned_runs = in.getPlannedRuns();
  stats.plan_misses = in.getPlanMisses();
  stats.runs_repeated = in.getRunsRepeated();
  stats.runs_together = in.getRunsTogether();
  stats.tokens = in.getTokens();
  stats.plan_records = in.getPlanRecords();
  stats.prompt_tokens = in.getPromptTokens();
  read_counts(in.getSubmissions(), stats.submissions);
  stats.submissions_failed = in.getSubmissionsFailed();
  stats.submissions_refused = in.getSubmissionsRefused();
  stats.queue = read_times(in.getQueue());
  stats.run = read_times(in.getRun());
  stats.first_token = read_times(in.getFirstToken());
  stats.next_token = read_times(in.getNextToken());
  stats.bytes_in = in.getBytesIn();
  stats.bytes_out = in.getBytesOut();
  stats.turn_ns = in.getTurnNs();
  stats.overruns = in.getOverruns();
  return stats;
}

static_assert(std::variant_size_v<decltype(WorkerEvent::body)> == wire::WorkerEvent::SCHEDULE + 1);

WorkerEvent read_worker_event(wire::WorkerEvent::Reader in) {
  switch (in.which()) {
    case wire::WorkerEvent::READY:
      return {read_ready(in.getReady())};
    case wire::WorkerEvent::ATTACHED:
      return {Attached{{in.getAttached()}}};
    case wire::WorkerEvent::DETACHED:
      return {Detached{{in.getDetached()}}};
    case wire::WorkerEvent::MODEL_ADDED:
      return {read_model_added(in.getModelAdded())};
    case wire::WorkerEvent::MODEL_DROPPED:
      return {ModelDropped{{in.getModelDropped()}}};
    case wire::WorkerEvent::PROGRAM_ADDED:
      return {read_program_added(in.getProgramAdded())};
    case wire::WorkerEvent::PROGRAM_REFUSED:
      return {read_program_refused(in.getProgramRefused())};
    case wire::WorkerEvent::SEQUENCE_ADDED:
      return {read_sequence_added(in.getSequenceAdded())};
    case wire::WorkerEvent::SEQUENCE_DROPPED:
      return {read_sequence_dropped(in.getSequenceDropped())};
    case wire::WorkerEvent::GRANT_REQUEST:
      return {read_grant_request(in.getGrantRequest())};
    case wire::WorkerEvent::GRANT_RETURN:
      return {read_grant_return(in.getGrantReturn())};
    case wire::WorkerEvent::SESSION_BROKEN:
      return {read_session_broken(in.getSessionBroken())};
    case wire::WorkerEvent::STATS:
      return {read_stats(in.getStats())};
    case wire::WorkerEvent::MODEL_PARKED:
      return {ModelParked{{in.getModelParked()}}};
    case wire::WorkerEvent::MODEL_WANTED:
      return {ModelWanted{{in.getModelWanted()}}};
    case wire::WorkerEvent::SEQUENCE_SPILLED:
      return {read_sequence_spilled(in.getSequenceSpilled())};
    case wire::WorkerEvent::SEQUENCE_RESTORED:
      return {read_sequence_restored(in.getSequenceRestored())};
    case wire::WorkerEvent::LANE_AWAKE:
      return {LaneAwake{}};
    case wire::WorkerEvent::REFS_TRIMMED:
      return {RefsTrimmed{{in.getRefsTrimmed()}}};
    case wire::WorkerEvent::SCHEDULE:
      return {read_schedule(in.getSchedule())};
    case wire::WorkerEvent::PROGRAM_LOOKED_AT:
      return {read_looked_at(in.getProgramLookedAt())};
  }
  refuse(ErrorCode::kUnsupported, "A worker event is unknown to this version.");
}

}  // namespace
}  // namespace djinn::ipc::control

namespace djinn::ipc {

std::vector<std::byte> encode(const WorkerCommand& command) {
  capnp::MallocMessageBuilder message;
  auto out = message.initRoot<wire::WorkerCommand>();
  std::visit([&](const auto& body) { control::write(out, body); }, command.body);
  return control::flatten(message);
}

std::vector<std::byte> encode(const WorkerEvent& event) {
  capnp::MallocMessageBuilder message;
  auto out = message.initRoot<wire::WorkerEvent>();
  std::visit([&](const auto& body) { control::write(out, body); }, event.body);
  return control::flatten(message);
}

Result<WorkerCommand> decode_worker_command(std::span<const std::byte> bytes) {
  return control::decode_message<wire::WorkerCommand>(bytes, control::read_worker_command);
}

Result<WorkerEvent> decode_worker_event(std::span<const std::byte> bytes) {
  return control::decode_message<wire::WorkerEvent>(bytes, control::read_worker_event);
}

}  // namespace djinn::ipc
