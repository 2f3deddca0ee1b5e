// SPDX-License-Identifier: Apache-2.0

#include <optional>

#include "ipc/codec/control_codec.h"
#include "ipc/codec/control_wire.h"

namespace djinn::ipc::control {
namespace {

// --- numerics of a model, if anybody has said them

template <typename Builder>
void write_said(Builder& out, std::optional<srg::Numerics> numerics) {
  out.setHasNumerics(numerics.has_value());
  out.setNumerics(static_cast<uint8_t>(numerics.value_or(srg::Numerics::kExact)));
}

template <typename Reader>
std::optional<srg::Numerics> read_said(Reader in) {
  if (!in.getHasNumerics()) return std::nullopt;
  return read_numerics(in.getNumerics());
}

// --- ClientRequest

void write(wire::ClientRequest::Builder out, const Hello& request) {
  auto hello = out.initHello();
  hello.setVersion(request.version);
  hello.setClientName(text(request.client_name));
  hello.setStagingBytes(request.staging_bytes);
  hello.setObserver(request.observer);
  hello.setDevice(text(request.device));
  hello.setService(static_cast<uint8_t>(request.service));
  hello.setPrincipal(text(request.principal));
}
void write(wire::ClientRequest::Builder out, const AddFiles& request) {
  auto add = out.initAddFiles();
  add.setCount(request.count);
  auto names = add.initNames(count_of(request.names));
  for (unsigned i = 0; i < names.size(); ++i) names.set(i, text(request.names[i]));
}
void write(wire::ClientRequest::Builder out, const OpenModel& request) {
  auto open = out.initOpenModel();
  open.setLabel(text(request.label));
  open.setHasPlan(request.has_plan);
  open.setPin(request.pin);
  open.setHasKeepAlive(request.keep_alive_ms.has_value());
  open.setKeepAliveMs(request.keep_alive_ms.value_or(0));
  open.setPath(text(request.path));
  open.setUnpin(request.unpin);
  write_said(open, request.numerics);
  open.setPublished(text(request.published));
}
void write(wire::ClientRequest::Builder out, const ImportModel& request) {
  out.setImportModel(text(request.name));
}
void write(wire::ClientRequest::Builder out, const ListPublished& request) {
  out.setListPublished(request.first);
}
void write(wire::ClientRequest::Builder out, const RemovePublished& request) {
  out.setRemovePublished(text(request.name));
}
void write(wire::ClientRequest::Builder out, const CloseModel& request) {
  out.setCloseModel(request.model.value);
}
void write(wire::ClientRequest::Builder out, const UnloadModel& request) {
  out.setUnloadModel(request.model.value);
}
void write(wire::ClientRequest::Builder out, const DefineProgram& request) {
  out.setDefineProgram(request.model.value);
}
void write(wire::ClientRequest::Builder out, const DropPrograms& request) {
  auto ids = out.initDropPrograms(static_cast<uint32_t>(request.programs.size()));
  for (uint32_t i = 0; i < ids.size(); ++i) ids.set(i, request.programs[i].value);
}
void write(wire::ClientRequest::Builder out, const MakeSequence& request) {
  write_geometry(out.initMakeSequence(), request.geometry);
}
void write(wire::ClientRequest::Builder out, const DropSequence& request) {
  out.setDropSequence(pack(request.sequence));
}
void write(wire::ClientRequest::Builder out, const GetStatus& request) {
  out.setGetStatus(request.first_worker);
}
void write(wire::ClientRequest::Builder out, const ListSessions& request) {
  out.setListSessions(request.first);
}
void write(wire::ClientRequest::Builder out, const ListModels& request) {
  out.setListModels(request.first);
}
void write(wire::ClientRequest::Builder out, const ListPrograms& request) {
  out.setListPrograms(request.first);
}
void write(wire::ClientRequest::Builder out, const ListDevices&) {
  out.setListDevices();
}
void write(wire::ClientRequest::Builder out, const ListMemory&) {
  out.setListMemory();
}
void write(wire::ClientRequest::Builder out, const PinModel& request) {
  auto pin = out.initPinModel();
  pin.setModel(request.model.value);
  pin.setPinned(request.pinned);
}
void write(wire::ClientRequest::Builder out, const EvictModel& request) {
  auto evict = request.dry_run ? out.initTryEvictModel() : out.initEvictModel();
  evict.setModel(request.model.value);
  evict.setTo(static_cast<uint8_t>(request.to));
  evict.setForce(request.force);
}
void write(wire::ClientRequest::Builder out, const PlaceModel& request) {
  auto place = out.initPlaceModel();
  place.setModel(request.model.value);
  place.setDevice(text(request.device));
}
void write(wire::ClientRequest::Builder out, const SetDraining& request) {
  out.setSetDraining(request.draining);
}
void write(wire::ClientRequest::Builder out, const CollectGarbage&) {
  out.setCollectGarbage();
}
void write(wire::ClientRequest::Builder out, const FollowEvents& request) {
  auto follow = out.initFollowEvents();
  follow.setAfter(request.after);
  follow.setWait(request.wait);
}
void write(wire::ClientRequest::Builder out, const CancelRun& request) {
  out.setCancelRun(request.session.value);
}
void write(wire::ClientRequest::Builder out, const TerminateSession& request) {
  out.setTerminateSession(request.session.value);
}
void write(wire::ClientRequest::Builder out, const ReadManifest& request) {
  auto read = out.initReadManifest();
  read.setModel(request.model.value);
  read.setOffset(request.offset);
}

void write(wire::ClientRequest::Builder out, const ReadGraph& request) {
  auto read = out.initReadGraph();
  read.setProgram(request.program.value);
  read.setOffset(request.offset);
}

void write(wire::ClientRequest::Builder out, const ListUses& request) {
  auto list = out.initListUses();
  list.setModel(request.model.value);
  list.setFirst(request.first);
}

void write(wire::ClientRequest::Builder out, const GetSchedule& request) {
  auto get = out.initGetSchedule();
  get.setSession(request.session.value);
  get.setLane(request.lane);
}
void write(wire::ClientRequest::Builder out, const GetOwnMemory&) {
  out.setGetOwnMemory();
}

Hello read_hello(wire::Hello::Reader in) {
  return {in.getVersion(),
          read_name(in.getClientName()),
          in.getStagingBytes(),
          in.getObserver(),
          read_name(in.getDevice()),
          read_service(in.getService()),
          read_name(in.getPrincipal())};
}

AddFiles read_add_files(wire::AddFiles::Reader in) {
  return {in.getCount(), read_list(in.getNames(), limits::kControlDescriptors, read_name)};
}

OpenModel read_open(wire::OpenModel::Reader in) {
  OpenModel open{read_name(in.getLabel()), in.getHasPlan(), in.getPin()};
  if (in.getHasKeepAlive()) open.keep_alive_ms = in.getKeepAliveMs();
  open.path = read_name(in.getPath());
  open.unpin = in.getUnpin();
  open.numerics = read_said(in);
  open.published = read_name(in.getPublished());
  return open;
}

EvictModel read_evict(wire::EvictModel::Reader in, bool dry_run) {
  return {{in.getModel()}, read_enum(in.getTo(), Tier::kHost, Tier::kDisk), in.getForce(), dry_run};
}

DropPrograms read_drop_programs(capnp::List<uint64_t>::Reader in) {
  return {read_list(in, limits::kProgramsPerUser, [](uint64_t id) { return ProgramId{id}; })};
}

using RequestBody = decltype(ClientRequest::body);
// Each kind of request has one member of the union, and EvictModel has two.
static_assert(std::variant_size_v<RequestBody> == wire::ClientRequest::REMOVE_PUBLISHED);

RequestBody read_request_body(wire::ClientRequest::Reader in) {
  switch (in.which()) {
    case wire::ClientRequest::HELLO:
      return read_hello(in.getHello());
    case wire::ClientRequest::ADD_FILES:
      return read_add_files(in.getAddFiles());
    case wire::ClientRequest::OPEN_MODEL:
      return read_open(in.getOpenModel());
    case wire::ClientRequest::CLOSE_MODEL:
      return CloseModel{{in.getCloseModel()}};
    case wire::ClientRequest::UNLOAD_MODEL:
      return UnloadModel{{in.getUnloadModel()}};
    case wire::ClientRequest::DEFINE_PROGRAM:
      return DefineProgram{{in.getDefineProgram()}};
    case wire::ClientRequest::MAKE_SEQUENCE:
      return MakeSequence{read_geometry(in.getMakeSequence())};
    case wire::ClientRequest::DROP_SEQUENCE:
      return DropSequence{unpack<SequenceHandle>(in.getDropSequence())};
    case wire::ClientRequest::GET_STATUS:
      return GetStatus{in.getGetStatus()};
    case wire::ClientRequest::LIST_SESSIONS:
      return ListSessions{in.getListSessions()};
    case wire::ClientRequest::LIST_MODELS:
      return ListModels{in.getListModels()};
    case wire::ClientRequest::LIST_PROGRAMS:
      return ListPrograms{in.getListPrograms()};
    case wire::ClientRequest::LIST_DEVICES:
      return ListDevices{};
    case wire::ClientRequest::LIST_MEMORY:
      return ListMemory{};
    case wire::ClientRequest::PIN_MODEL:
      return PinModel{{in.getPinModel().getModel()}, in.getPinModel().getPinned()};
    case wire::ClientRequest::CANCEL_RUN:
      return CancelRun{{in.getCancelRun()}};
    case wire::ClientRequest::TERMINATE_SESSION:
      return TerminateSession{{in.getTerminateSession()}};
    case wire::ClientRequest::EVICT_MODEL:
      return read_evict(in.getEvictModel(), false);
    case wire::ClientRequest::TRY_EVICT_MODEL:
      return read_evict(in.getTryEvictModel(), true);
    case wire::ClientRequest::SET_DRAINING:
      return SetDraining{in.getSetDraining()};
    case wire::ClientRequest::COLLECT_GARBAGE:
      return CollectGarbage{};
    case wire::ClientRequest::FOLLOW_EVENTS:
      return FollowEvents{in.getFollowEvents().getAfter(), in.getFollowEvents().getWait()};
    case wire::ClientRequest::READ_MANIFEST:
      return ReadManifest{{in.getReadManifest().getModel()}, in.getReadManifest().getOffset()};
    case wire::ClientRequest::LIST_USES:
      return ListUses{{in.getListUses().getModel()}, in.getListUses().getFirst()};
    case wire::ClientRequest::GET_OWN_MEMORY:
      return GetOwnMemory{};
    case wire::ClientRequest::DROP_PROGRAMS:
      return read_drop_programs(in.getDropPrograms());
    case wire::ClientRequest::GET_SCHEDULE:
      return GetSchedule{{in.getGetSchedule().getSession()}, in.getGetSchedule().getLane()};
    case wire::ClientRequest::READ_GRAPH:
      return ReadGraph{{in.getReadGraph().getProgram()}, in.getReadGraph().getOffset()};
    case wire::ClientRequest::PLACE_MODEL:
      return PlaceModel{{in.getPlaceModel().getModel()}, read_name(in.getPlaceModel().getDevice())};
    case wire::ClientRequest::IMPORT_MODEL:
      return ImportModel{read_name(in.getImportModel())};
    case wire::ClientRequest::LIST_PUBLISHED:
      return ListPublished{in.getListPublished()};
    case wire::ClientRequest::REMOVE_PUBLISHED:
      return RemovePublished{read_name(in.getRemovePublished())};
  }
  refuse(ErrorCode::kUnsupported, "The request is unknown to this version of the daemon.");
}

ClientRequest read_request(wire::ClientRequest::Reader in) {
  return {in.getNumber(), read_request_body(in)};
}

// --- DaemonReply: reports

void write_worker(wire::WorkerReport::Builder out, const WorkerReport& report) {
  out.setDevice(text(report.device));
  out.setOwner(text(report.owner));
  out.setPid(report.pid);
  out.setState(static_cast<uint8_t>(report.state));
  out.setThreads(report.threads);
  out.setRestarts(report.restarts);
  out.setLandlockAbi(report.landlock_abi);
  out.setSeccomp(report.seccomp);
  auto stats = out.initStats();
  stats.setSlabBytes(report.slab_bytes);
  stats.setRuns(report.runs);
  stats.setPlannedRuns(report.planned_runs);
  stats.setPlanMisses(report.plan_misses);
  stats.setRunsRepeated(report.runs_repeated);
  stats.setRunsTogether(report.runs_together);
  stats.setTurnNs(report.turn_ns);
  stats.setOverruns(report.overruns);
  stats.setSubmissionsRefused(report.refused);
  stats.setTokens(report.tokens);
}

WorkerReport read_worker(wire::WorkerReport::Reader in) {
  WorkerReport report;
  report.device = read_name(in.getDevice());
  report.owner = read_name(in.getOwner());
  report.pid = in.getPid();
  report.state = read_enum(in.getState(), WorkerState::kStarting, WorkerState::kFailed);
  report.threads = in.getThreads();
  report.restarts = in.getRestarts();
  report.landlock_abi = in.getLandlockAbi();
  report.seccomp = in.getSeccomp();
  const wire::WorkerStats::Reader stats = in.getStats();
  report.slab_bytes = stats.getSlabBytes();
  report.runs = stats.getRuns();
  report.planned_runs = stats.getPlannedRuns();
  report.plan_misses = stats.getPlanMisses();
  report.runs_repeated = stats.getRunsRepeated();
  report.runs_together = stats.getRunsTogether();
  report.turn_ns = stats.getTurnNs();
  report.overruns = stats.getOverruns();
  report.refused = stats.getSubmissionsRefused();
  report.tokens = stats.getTokens();
  return report;
}

void write_counts(wire::SessionReport::Builder out, const SessionCounts& counts) {
  out.setTier(static_cast<uint8_t>(counts.tier));
  out.setGraphs(counts.graphs);
  out.setPrograms(counts.programs);
  out.setGenerations(counts.generations);
  out.setFailed(counts.failed);
  out.setTokens(counts.tokens);
  out.setPlanMisses(counts.plan_misses);
  out.setBytesIn(counts.bytes_in);
  out.setBytesOut(counts.bytes_out);
}

SessionCounts read_counts(wire::SessionReport::Reader in) {
  SessionCounts counts;
  counts.tier = read_enum(in.getTier(), RunTier::kNone, RunTier::kGeneration);
  counts.graphs = in.getGraphs();
  counts.programs = in.getPrograms();
  counts.generations = in.getGenerations();
  counts.failed = in.getFailed();
  counts.tokens = in.getTokens();
  counts.plan_misses = in.getPlanMisses();
  counts.bytes_in = in.getBytesIn();
  counts.bytes_out = in.getBytesOut();
  return counts;
}

void write_statement(wire::SessionReport::Builder out, const ClientStatement& stated) {
  auto calls = out.initStatedCalls(static_cast<unsigned>(stated.calls.size()));
  for (unsigned i = 0; i < calls.size(); ++i) calls.set(i, stated.calls[i]);
  out.setStatedLocalModels(stated.local_models);
}

ClientStatement read_statement(wire::SessionReport::Reader in) {
  ClientStatement stated;
  const auto calls = in.getStatedCalls();
  const auto known = std::min<size_t>(calls.size(), stated.calls.size());
  DJINN_ASSERT(known <= kRunTiers);
  for (unsigned i = 0; i < known; ++i) stated.calls[i] = calls[i];
  stated.local_models = in.getStatedLocalModels();
  return stated;
}

void write_session(wire::SessionReport::Builder out, const SessionReport& report) {
  out.setSession(report.session.value);
  out.setClientName(text(report.client_name));
  out.setOwner(text(report.owner));
  out.setPid(report.pid);
  out.setStartedWallNs(report.started_wall_ns);
  out.setGrantedBytes(report.granted_bytes);
  out.setModels(report.models);
  out.setSequences(report.sequences);
  out.setSteps(report.steps);
  out.setRunning(report.running);
  out.setState(static_cast<uint8_t>(report.state));
  out.setWait(static_cast<uint8_t>(report.wait));
  out.setSharedBytes(report.shared_bytes);
  write_counts(out, report.counts);
  write_statement(out, report.stated);
  out.setDevice(text(report.device));
}

SessionReport read_session(wire::SessionReport::Reader in) {
  SessionReport report;
  report.session = {in.getSession()};
  report.client_name = read_name(in.getClientName());
  report.owner = read_name(in.getOwner());
  report.pid = in.getPid();
  report.started_wall_ns = in.getStartedWallNs();
  report.granted_bytes = in.getGrantedBytes();
  report.models = in.getModels();
  report.sequences = in.getSequences();
  report.steps = in.getSteps();
  report.running = in.getRunning();
  report.state = read_enum(in.getState(), SessionState::kActive, SessionState::kLost);
  report.wait = read_enum(in.getWait(), SessionWait::kNone, SessionWait::kClient);
  report.shared_bytes = in.getSharedBytes();
  report.counts = read_counts(in);
  report.stated = read_statement(in);
  report.device = read_name(in.getDevice());
  return report;
}

void write_model(wire::ModelReport::Builder out, const ModelReport& report) {
  out.setModel(report.model.value);
  out.setLabel(text(report.label));
  out.setOwner(text(report.owner));
  out.setState(static_cast<uint8_t>(report.state));
  out.setBytes(report.bytes);
  out.setBytesLoaded(report.bytes_loaded);
  out.setFiles(report.files);
  out.setLeases(report.leases);
  out.setPinned(report.pinned);
  if (report.hashed) out.setSha256(data(report.sha256));
  out.setLoadedWallNs(report.loaded_wall_ns);
  out.setDevice(text(report.device));
  out.setKeepAliveMs(report.keep_alive_ms);
  out.setExpiresWallNs(report.expires_wall_ns);
  out.setPath(text(report.path));
  out.setPlan(report.plan);
  out.setHugeBytes(report.huge_bytes);
  out.setOnGpus(report.on_gpus);
  write_said(out, report.numerics);
}

ModelReport read_model(wire::ModelReport::Reader in) {
  ModelReport report;
  report.model = {in.getModel()};
  report.label = read_name(in.getLabel());
  report.owner = read_name(in.getOwner());
  report.state = read_enum(in.getState(), ModelState::kLoading, ModelState::kDisk);
  report.bytes = in.getBytes();
  report.bytes_loaded = in.getBytesLoaded();
  report.files = in.getFiles();
  report.leases = in.getLeases();
  report.pinned = in.getPinned();
  report.hashed = in.hasSha256();
  if (report.hashed) report.sha256 = read_sha256(in.getSha256());
  report.loaded_wall_ns = in.getLoadedWallNs();
  report.device = read_name(in.getDevice());
  report.keep_alive_ms = in.getKeepAliveMs();
  report.expires_wall_ns = in.getExpiresWallNs();
  report.path = read_name(in.getPath());
  report.plan = in.getPlan();
  report.huge_bytes = in.getHugeBytes();
  report.on_gpus = in.getOnGpus();
  report.numerics = read_said(in);
  return report;
}

void write_use(wire::UseReport::Builder out, const UseReport& report) {
  out.setSession(report.session.value);
  out.setOwner(text(report.owner));
  out.setPid(report.pid);
  out.setClientName(text(report.client_name));
  out.setKind(static_cast<uint8_t>(report.kind));
  out.setLabel(text(report.label));
  out.setPath(text(report.path));
}

void write_published(wire::PublishedReport::Builder out, const PublishedReport& report) {
  out.setName(text(report.name));
  out.setOwner(text(report.owner));
  out.setReaders(text(report.readers));
  out.setBytes(report.bytes);
  out.setFiles(report.files);
  out.setSinceWallNs(report.since_wall_ns);
  out.setContents(data(report.contents));
}

PublishedReport read_published(wire::PublishedReport::Reader in) {
  return {read_name(in.getName()),
          read_name(in.getOwner()),
          read_name(in.getReaders()),
          in.getBytes(),
          in.getFiles(),
          in.getSinceWallNs(),
          read_sha256(in.getContents())};
}

UseReport read_use(wire::UseReport::Reader in) {
  return {read_enum(in.getKind(), UseKind::kHold, UseKind::kName),
          read_name(in.getOwner()),
          {in.getSession()},
          in.getPid(),
          read_name(in.getClientName()),
          read_name(in.getLabel()),
          read_name(in.getPath())};
}

void write_program(wire::ProgramReport::Builder out, const ProgramReport& report) {
  out.setProgram(report.program.value);
  out.setModel(report.model.value);
  out.setOwner(text(report.owner));
  out.setDevice(text(report.device));
  out.setState(static_cast<uint8_t>(report.state));
  out.setGraphBytes(report.graph_bytes);
  out.setOutputs(report.outputs);
  out.setSessions(report.sessions);
  out.setName(text(report.name));
  out.setWorkload(static_cast<uint8_t>(report.workload));
  out.setFastNodes(report.fast_nodes);
}

ProgramReport read_program(wire::ProgramReport::Reader in) {
  ProgramReport report;
  report.program = {in.getProgram()};
  report.model = {in.getModel()};
  report.owner = read_name(in.getOwner());
  report.device = read_name(in.getDevice());
  report.state = read_enum(in.getState(), ProgramState::kAdmitting, ProgramState::kAdmitted);
  report.graph_bytes = in.getGraphBytes();
  report.outputs = in.getOutputs();
  report.sessions = in.getSessions();
  report.name = read_name(in.getName());
  report.workload = read_enum(in.getWorkload(), Workload::kUnknown, Workload::kTraining);
  report.fast_nodes = in.getFastNodes();
  return report;
}

void write_device(wire::DeviceReport::Builder out, const DeviceReport& report) {
  out.setDevice(text(report.device));
  out.setName(text(report.name));
  out.setUsedBytes(report.used_bytes);
  out.setTotalBytes(report.total_bytes);
  out.setPlannedBytes(report.planned_bytes);
  out.setLanes(report.lanes);
  out.setState(static_cast<uint8_t>(report.state));
  out.setHugeBytes(report.huge_bytes);
  out.setHugePages(text(report.huge_pages));
  out.setIsa(text(report.isa));
  if (report.kernels) write_kernels(out.initKernels(), *report.kernels);
  out.setDriver(text(report.driver));
  out.setReason(text(report.reason));
  out.setHardwareBytes(report.hardware_bytes);
  out.setHardwareFreeBytes(report.hardware_free_bytes);
  out.setUploadedBytes(report.uploaded_bytes);
}

DeviceReport read_device(wire::DeviceReport::Reader in) {
  DeviceReport report;
  report.device = read_name(in.getDevice());
  report.name = read_name(in.getName());
  report.used_bytes = in.getUsedBytes();
  report.total_bytes = in.getTotalBytes();
  report.planned_bytes = in.getPlannedBytes();
  report.lanes = in.getLanes();
  report.state = read_enum(in.getState(), DeviceState::kReady, DeviceState::kStarting);
  report.huge_bytes = in.getHugeBytes();
  report.huge_pages = read_word(in.getHugePages());
  report.isa = read_word(in.getIsa());
  if (in.hasKernels()) report.kernels = read_kernels(in.getKernels());
  report.driver = read_word(in.getDriver());
  report.reason = read_name(in.getReason());
  report.hardware_bytes = in.getHardwareBytes();
  report.hardware_free_bytes = in.getHardwareFreeBytes();
  report.uploaded_bytes = in.getUploadedBytes();
  return report;
}

void write_pool(wire::MemoryReport::Builder out, const MemoryReport& report) {
  out.setDevice(text(report.device));
  out.setPool(static_cast<uint8_t>(report.pool));
  out.setReservedBytes(report.reserved_bytes);
  out.setMappedBytes(report.mapped_bytes);
  out.setCachedBytes(report.cached_bytes);
  out.setEvictableBytes(report.evictable_bytes);
  out.setPinnedBytes(report.pinned_bytes);
}

MemoryReport read_pool(wire::MemoryReport::Reader in) {
  MemoryReport report;
  report.device = read_name(in.getDevice());
  report.pool = read_enum(in.getPool(), MemoryPool::kWeights, MemoryPool::kLanes);
  report.reserved_bytes = in.getReservedBytes();
  report.mapped_bytes = in.getMappedBytes();
  report.cached_bytes = in.getCachedBytes();
  report.evictable_bytes = in.getEvictableBytes();
  report.pinned_bytes = in.getPinnedBytes();
  return report;
}

void write_event(wire::EventReport::Builder out, const EventReport& report) {
  out.setNumber(report.number);
  out.setWallNs(report.wall_ns);
  out.setKind(static_cast<uint8_t>(report.kind));
  out.setText(text(report.text));
  out.setSession(report.session.value);
  out.setModel(report.model.value);
  out.setDevice(text(report.device));
  out.setHasBytes(report.bytes.has_value());
  out.setBytes(report.bytes.value_or(0));
  out.setError(static_cast<uint16_t>(report.error));
  out.setHasUser(report.user.has_value());
  out.setUser(report.user.value_or(0));
  out.setPath(text(report.path));
  out.setReason(text(report.reason));
}

EventReport read_event(wire::EventReport::Reader in) {
  EventReport report;
  report.number = in.getNumber();
  report.wall_ns = in.getWallNs();
  report.kind = read_enum(in.getKind(), EventKind::kDaemonStarted, EventKind::kCopyDiffered);
  report.text = read_name(in.getText());
  report.session = {in.getSession()};
  report.model = {in.getModel()};
  report.device = read_name(in.getDevice());
  if (in.getHasBytes()) report.bytes = in.getBytes();
  report.error = static_cast<ErrorCode>(in.getError());
  if (in.getHasUser()) report.user = in.getUser();
  report.path = read_name(in.getPath());
  report.reason = read_sentence(in.getReason());
  return report;
}

// --- DaemonReply

void write(wire::DaemonReply::Builder out, const Done&) {
  out.setDone();
}
void write(wire::DaemonReply::Builder out, const Failed& reply) {
  write_failure(out.initFailed(), reply.code, reply.message);
}
void write(wire::DaemonReply::Builder out, const Welcome& reply) {
  auto welcome = out.initWelcome();
  welcome.setSession(reply.session.value);
  welcome.setStagingBytes(reply.staging_bytes);
  welcome.setThreads(reply.threads);
  welcome.setQuotaBytes(reply.quota_bytes);
  welcome.setNumerics(static_cast<uint8_t>(reply.numerics));
}
void write(wire::DaemonReply::Builder out, const ModelOpened& reply) {
  auto opened = out.initModelOpened();
  opened.setModel(reply.model.value);
  opened.setBytes(reply.bytes);
  opened.setWasResident(reply.was_resident);
  opened.setManifestBytes(reply.manifest_bytes);
  opened.setManifest(part(reply.manifest));
  write_said(opened, reply.numerics);
}
void write(wire::DaemonReply::Builder out, const ManifestPart& reply) {
  out.setManifestPart(part(reply.bytes));
}
void write(wire::DaemonReply::Builder out, const GraphPart& reply) {
  out.setGraphPart(part(reply.bytes));
}
void write(wire::DaemonReply::Builder out, const ModelPlaced& reply) {
  auto placed = out.initModelPlaced();
  placed.setBytes(reply.bytes);
  placed.setUploadedBytes(reply.uploaded_bytes);
}
void write(wire::DaemonReply::Builder out, const ModelImported& reply) {
  auto imported = out.initModelImported();
  imported.setName(text(reply.name));
  imported.setBytes(reply.bytes);
  imported.setContents(data(reply.contents));
}
void write(wire::DaemonReply::Builder out, const PublishedList& reply) {
  auto list = out.initPublished();
  list.setTotal(reply.total);
  write_list(reply.published, list.initPublished(count_of(reply.published)), write_published);
}
void write(wire::DaemonReply::Builder out, const ProgramDefined& reply) {
  auto defined = out.initProgramDefined();
  defined.setProgram(reply.program.value);
  defined.setWasCached(reply.was_cached);
  write_list(reply.outputs, defined.initOutputs(count_of(reply.outputs)), write_shape);
}
void write(wire::DaemonReply::Builder out, const SequenceMade& reply) {
  out.setSequenceMade(pack(reply.sequence));
}
void write_setting(wire::SettingReport::Builder out, const SettingReport& setting) {
  out.setKey(text(setting.key));
  out.setValue(text(setting.value));
  out.setReloads(setting.reloads);
}
void write_quota(wire::QuotaReport::Builder out, const QuotaReport& quota) {
  out.setIsOwn(quota.is_own);
  out.setMemoryBytes(quota.memory_bytes);
  out.setMemoryMaxBytes(quota.memory_max_bytes);
  out.setPinnedBytes(quota.pinned_bytes);
  out.setPinnedMaxBytes(quota.pinned_max_bytes);
  out.setSessions(quota.sessions);
  out.setSessionsMax(quota.sessions_max);
  out.setModels(quota.models);
  out.setModelsMax(quota.models_max);
}
void write_user(wire::UserReport::Builder out, const UserReport& user) {
  out.setOwner(text(user.owner));
  write_quota(out.initQuota(), user.quota);
}
void write(wire::DaemonReply::Builder out, const StatusReport& reply) {
  auto status = out.initStatus();
  status.setVersion(text(reply.version));
  status.setStartedWallNs(reply.started_wall_ns);
  status.setMemoryTotalBytes(reply.memory_total_bytes);
  status.setMemoryGrantedBytes(reply.memory_granted_bytes);
  status.setMemoryModelsBytes(reply.memory_models_bytes);
  status.setMemorySessionsBytes(reply.memory_sessions_bytes);
  status.setMemoryLanesBytes(reply.memory_lanes_bytes);
  status.setSessions(reply.sessions);
  status.setModels(reply.models);
  status.setPrograms(reply.programs);
  status.setDescriptors(reply.descriptors);
  status.setBytesRead(reply.bytes_read);
  status.setBufferedReads(reply.buffered_reads);
  status.setComparedOpens(reply.compared_opens);
  status.setWorkersTotal(reply.workers_total);
  write_list(reply.workers, status.initWorkers(count_of(reply.workers)), write_worker);
  status.setDraining(reply.draining);
  status.setDescriptorsClosing(reply.descriptors_closing);
  status.setDataSessions(reply.data_sessions);
  write_quota(status.initQuota(), reply.quota);
  write_list(reply.settings, status.initSettings(count_of(reply.settings)), write_setting);
  status.setUsersTotal(reply.users_total);
  write_list(reply.users, status.initUsers(count_of(reply.users)), write_user);
  status.setSpillFault(text(reply.spill_fault));
  status.setConfigRoot(text(reply.config_root));
}
void write(wire::DaemonReply::Builder out, const SessionList& reply) {
  auto list = out.initSessions();
  list.setTotal(reply.total);
  write_list(reply.sessions, list.initSessions(count_of(reply.sessions)), write_session);
}
void write(wire::DaemonReply::Builder out, const ModelList& reply) {
  auto list = out.initModels();
  list.setTotal(reply.total);
  write_list(reply.models, list.initModels(count_of(reply.models)), write_model);
}
void write(wire::DaemonReply::Builder out, const UseList& reply) {
  auto list = out.initUses();
  list.setTotal(reply.total);
  write_list(reply.uses, list.initUses(count_of(reply.uses)), write_use);
}
void write(wire::DaemonReply::Builder out, const ProgramList& reply) {
  auto list = out.initPrograms();
  list.setTotal(reply.total);
  write_list(reply.programs, list.initPrograms(count_of(reply.programs)), write_program);
}
void write(wire::DaemonReply::Builder out, const DeviceList& reply) {
  write_list(reply.devices, out.initDevices(count_of(reply.devices)), write_device);
}
void write(wire::DaemonReply::Builder out, const MemoryList& reply) {
  write_list(reply.pools, out.initMemory(count_of(reply.pools)), write_pool);
}
void write(wire::DaemonReply::Builder out, const Collected& reply) {
  auto collected = out.initCollected();
  collected.setPrograms(reply.programs);
  collected.setWorkers(reply.workers);
  collected.setBytes(reply.bytes);
}
void write(wire::DaemonReply::Builder out, const ScheduleReport& reply) {
  auto report = out.initSchedule();
  report.setTotal(reply.total);
  report.setDevice(text(reply.device));
  report.setOwner(text(reply.owner));
  write_schedule(report.initSchedule(), reply.schedule);
}
void write(wire::DaemonReply::Builder out, const OwnMemory& reply) {
  auto memory = out.initOwnMemory();
  memory.setGrantedBytes(reply.granted_bytes);
  memory.setSequenceBytes(reply.sequence_bytes);
  memory.setSharedBytes(reply.shared_bytes);
  memory.setFreeBytes(reply.free_bytes);
  memory.setTotalBytes(reply.total_bytes);
}
void write(wire::DaemonReply::Builder out, const EventList& reply) {
  auto list = out.initEvents();
  list.setLast(reply.last);
  list.setMissed(reply.missed);
  write_list(reply.events, list.initEvents(count_of(reply.events)), write_event);
}

Failed read_failed(wire::Failure::Reader in) {
  Error error = read_failure(in, Success::kRefused);
  return {error.code, std::move(error.message)};
}

Welcome read_welcome(wire::Welcome::Reader in) {
  return {{in.getSession()},
          in.getStagingBytes(),
          in.getThreads(),
          in.getQuotaBytes(),
          read_numerics(in.getNumerics())};
}

ModelOpened read_opened(wire::ModelOpened::Reader in) {
  return {{in.getModel()},
          in.getBytes(),
          in.getWasResident(),
          in.getManifestBytes(),
          read_part(in.getManifest()),
          read_said(in)};
}

ProgramDefined read_defined(wire::ProgramDefined::Reader in) {
  return {{in.getProgram()},
          in.getWasCached(),
          read_list(in.getOutputs(), limits::kProgramOutputs, read_shape)};
}

SettingReport read_setting(wire::SettingReport::Reader in) {
  return {read_name(in.getKey()), read_name(in.getValue()), in.getReloads()};
}

QuotaReport read_quota(wire::QuotaReport::Reader in) {
  return {in.getIsOwn(),       in.getMemoryBytes(),    in.getMemoryMaxBytes(),
          in.getPinnedBytes(), in.getPinnedMaxBytes(), in.getSessions(),
          in.getSessionsMax(), in.getModels(),         in.getModelsMax()};
}

UserReport read_user(wire::UserReport::Reader in) {
  return {read_name(in.getOwner()), read_quota(in.getQuota())};
}

StatusReport read_status(wire::StatusReport::Reader in) {
  StatusReport status;
  status.version = read_name(in.getVersion());
  status.started_wall_ns = in.getStartedWallNs();
  status.memory_total_bytes = in.getMemoryTotalBytes();
  status.memory_granted_bytes = in.getMemoryGrantedBytes();
  status.memory_models_bytes = in.getMemoryModelsBytes();
  status.memory_sessions_bytes = in.getMemorySessionsBytes();
  status.memory_lanes_bytes = in.getMemoryLanesBytes();
  status.sessions = in.getSessions();
  status.models = in.getModels();
  status.programs = in.getPrograms();
  status.descriptors = in.getDescriptors();
  status.bytes_read = in.getBytesRead();
  status.buffered_reads = in.getBufferedReads();
  status.compared_opens = in.getComparedOpens();
  status.workers_total = in.getWorkersTotal();
  status.workers = read_list(in.getWorkers(), limits::kListPage, read_worker);
  status.draining = in.getDraining();
  status.descriptors_closing = in.getDescriptorsClosing();
  status.data_sessions = in.getDataSessions();
  status.quota = read_quota(in.getQuota());
  status.settings = read_list(in.getSettings(), limits::kListPage, read_setting);
  status.users_total = in.getUsersTotal();
  status.users = read_list(in.getUsers(), limits::kListPage, read_user);
  status.spill_fault = read_sentence(in.getSpillFault());
  status.config_root = read_name(in.getConfigRoot());
  return status;
}

SessionList read_sessions(wire::SessionList::Reader in) {
  return {in.getTotal(), read_list(in.getSessions(), limits::kListPage, read_session)};
}

ModelList read_models(wire::ModelList::Reader in) {
  return {in.getTotal(), read_list(in.getModels(), limits::kListPage, read_model)};
}

UseList read_uses(wire::UseList::Reader in) {
  return {in.getTotal(), read_list(in.getUses(), limits::kListPage, read_use)};
}

ProgramList read_programs(wire::ProgramList::Reader in) {
  return {in.getTotal(), read_list(in.getPrograms(), limits::kListPage, read_program)};
}

ModelImported read_imported(wire::ModelImported::Reader in) {
  return {read_name(in.getName()), in.getBytes(), read_sha256(in.getContents())};
}

PublishedList read_published_list(wire::PublishedList::Reader in) {
  return {in.getTotal(), read_list(in.getPublished(), limits::kListPage, read_published)};
}

EventList read_events(wire::EventList::Reader in) {
  return {in.getLast(), in.getMissed(), read_list(in.getEvents(), limits::kListPage, read_event)};
}

OwnMemory read_own_memory(wire::OwnMemory::Reader in) {
  return {in.getGrantedBytes(), in.getSequenceBytes(), in.getSharedBytes(), in.getFreeBytes(),
          in.getTotalBytes()};
}

ScheduleReport read_schedule_report(wire::ScheduleReport::Reader in) {
  return {in.getTotal(), read_name(in.getDevice()), read_name(in.getOwner()),
          read_schedule(in.getSchedule())};
}

using ReplyBody = decltype(DaemonReply::body);
static_assert(std::variant_size_v<ReplyBody> == wire::DaemonReply::PUBLISHED + 1);

ReplyBody read_reply_body(wire::DaemonReply::Reader in) {
  switch (in.which()) {
    case wire::DaemonReply::DONE:
      return Done{};
    case wire::DaemonReply::FAILED:
      return read_failed(in.getFailed());
    case wire::DaemonReply::WELCOME:
      return read_welcome(in.getWelcome());
    case wire::DaemonReply::MODEL_OPENED:
      return read_opened(in.getModelOpened());
    case wire::DaemonReply::PROGRAM_DEFINED:
      return read_defined(in.getProgramDefined());
    case wire::DaemonReply::SEQUENCE_MADE:
      return SequenceMade{unpack<SequenceHandle>(in.getSequenceMade())};
    case wire::DaemonReply::STATUS:
      return read_status(in.getStatus());
    case wire::DaemonReply::SESSIONS:
      return read_sessions(in.getSessions());
    case wire::DaemonReply::MODELS:
      return read_models(in.getModels());
    case wire::DaemonReply::PROGRAMS:
      return read_programs(in.getPrograms());
    case wire::DaemonReply::DEVICES:
      return DeviceList{read_list(in.getDevices(), limits::kDevices, read_device)};
    case wire::DaemonReply::MEMORY:
      return MemoryList{read_list(in.getMemory(), limits::kListPage, read_pool)};
    case wire::DaemonReply::COLLECTED:
      return Collected{in.getCollected().getPrograms(), in.getCollected().getWorkers(),
                       in.getCollected().getBytes()};
    case wire::DaemonReply::EVENTS:
      return read_events(in.getEvents());
    case wire::DaemonReply::MANIFEST_PART:
      return ManifestPart{read_part(in.getManifestPart())};
    case wire::DaemonReply::USES:
      return read_uses(in.getUses());
    case wire::DaemonReply::OWN_MEMORY:
      return read_own_memory(in.getOwnMemory());
    case wire::DaemonReply::SCHEDULE:
      return read_schedule_report(in.getSchedule());
    case wire::DaemonReply::GRAPH_PART:
      return GraphPart{read_part(in.getGraphPart())};
    case wire::DaemonReply::MODEL_PLACED:
      return ModelPlaced{in.getModelPlaced().getBytes(), in.getModelPlaced().getUploadedBytes()};
    case wire::DaemonReply::MODEL_IMPORTED:
      return read_imported(in.getModelImported());
    case wire::DaemonReply::PUBLISHED:
      return read_published_list(in.getPublished());
  }
  refuse(ErrorCode::kUnsupported, "The daemon's answer is unknown to this version of the client.");
}

DaemonReply read_reply(wire::DaemonReply::Reader in) {
  return {in.getNumber(), read_reply_body(in)};
}

}  // namespace
}  // namespace djinn::ipc::control

namespace djinn::ipc {

std::vector<std::byte> encode(const ClientRequest& request) {
  capnp::MallocMessageBuilder message;
  auto out = message.initRoot<wire::ClientRequest>();
  out.setNumber(request.number);
  std::visit([&](const auto& body) { control::write(out, body); }, request.body);
  return control::flatten(message);
}

std::vector<std::byte> encode(const DaemonReply& reply) {
  capnp::MallocMessageBuilder message;
  auto out = message.initRoot<wire::DaemonReply>();
  out.setNumber(reply.number);
  std::visit([&](const auto& body) { control::write(out, body); }, reply.body);
  return control::flatten(message);
}

Result<ClientRequest> decode_client_request(std::span<const std::byte> bytes) {
  return control::decode_message<wire::ClientRequest>(bytes, control::read_request);
}

Result<DaemonReply> decode_daemon_reply(std::span<const std::byte> bytes) {
  return control::decode_message<wire::DaemonReply>(bytes, control::read_reply);
}

uint32_t number_of_request(std::span<const std::byte> bytes) {
  const auto number = control::decode_message<wire::ClientRequest>(
      bytes, [](wire::ClientRequest::Reader in) { return in.getNumber(); });
  return number ? *number : 0;
}

}  // namespace djinn::ipc
