// SPDX-License-Identifier: Apache-2.0

// Control messages, as plain structs. ipc/codec turns them into Cap'n Proto bytes and back; each is
// one datagram of a SOCK_SEQPACKET socket, at most limits::kControlMessageBytes, with the
// descriptors that its comment names, in that order, as SCM_RIGHTS.
//
//   ClientRequest  -> DaemonReply     a client and djinnd; the request number pairs them
//   WorkerCommand  -> WorkerEvent     djinnd and a worker
//   LoaderCommand  -> LoaderEvent     djinnd and a loader (those of a mover: mover_messages.h)
//
// What clients send and may outgrow a datagram (graphs, plans) travels as a sealed memfd, and so do
// manifests between djinnd and its children. A client gets a manifest in parts: what it is given a
// descriptor of, it can keep in memory for as long as it likes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "ipc/event_kind.h"
#include "ipc/exit_status.h"
#include "ipc/limits.h"
#include "ipc/session_memory.h"
#include "ipc/time_histogram.h"
#include "kernel/base/dtype.h"
#include "kernel/base/error.h"
#include "kernel/base/ids.h"
#include "kernel/base/kernel_table.h"
#include "kernel/base/schedule.h"
#include "kernel/srg/graph.h"

namespace djinn::ipc {

inline constexpr uint32_t kProtocolVersion = 2;  // 1 gave manifests as descriptors

// ------------------------------------------------------------------ client -> djinnd

// First message of a connection. Answer: Welcome.
struct Hello {
  uint32_t version = kProtocolVersion;
  std::string client_name;                                // for people: the program's name
  uint64_t staging_bytes = limits::kStagingBytesDefault;  // rounded up to 4096
  bool observer = false;  // no data path: djinnctl. No session memory is made.
  std::string device{};   // "cpu:0": where it is to run; empty: djinnd's first
  ServiceClass service = ServiceClass::kNormal;  // beside the user's other sessions
  // Whose session it is (principal.h): from djinn-gate, by the socket that is for it, and from
  // nobody else.
  std::string principal{};
  friend bool operator==(const Hello&, const Hello&) = default;
};

// Adds descriptors (fds: one each, open for reading) to the connection's list of files for the next
// OpenModel or ImportModel; without any it empties the list, whose open was given up. Answer: Done.
struct AddFiles {
  uint32_t count = 0;
  // Of each: for people, or none at all; an import calls the files so.
  std::vector<std::string> names{};
  friend bool operator==(const AddFiles&, const AddFiles&) = default;
};

// Opens a model of the files added so far, in their order, and empties the list; or a published
// one. fds: [sealed memfd with an encoded srg::LoadPlan] if has_plan; without, every tensor as it
// is. Answer: ModelOpened once its weights are in memory and mapped by the session's worker.
inline constexpr uint64_t kKeepForever = UINT64_MAX;
struct OpenModel {
  std::string label;  // for people, shown by djinnctl; not an identity
  bool has_plan = false;
  bool pin = false;  // stays resident without a lease until unloaded (djinnctl load)
  // How long it stays after its last lease has ended, 0 or kKeepForever among them: of each user
  // the latest, of all users the longest. Nothing: as the user said before, or as configured.
  std::optional<uint64_t> keep_alive_ms{};
  // Where the files are, as whoever asks calls it, or empty; for people, as the label is. Shown to
  // that user and to administrators.
  std::string path{};
  bool unpin = false;  // ends the user's pin, if there is one; with pin it says nothing
  // Of the user's programs of the model for which nobody else chooses, in sessions that open it
  // from now on. Nothing: as the user said before, or else as configured.
  std::optional<srg::Numerics> numerics{};
  // Of a model in the store that the user may read: its weights are opened, and no file was added.
  // Empty: the files that were. Else kNotFound, the same for what is not there.
  std::string published{};
  friend bool operator==(const OpenModel&, const OpenModel&) = default;
};

// Takes the files added so far into the store of models, each under the name that AddFiles gave it,
// and publishes them; empties the list. name: NAME[:TAG] of administrators, ~USER/NAME[:TAG] of
// that user. Answer, when all of it is on the disk: ModelImported, or kAlreadyExists,
// kPermissionDenied, kBusy (the user imports already), kOutOfMemory (the disk is full).
struct ImportModel {
  std::string name;
  friend bool operator==(const ImportModel&, const ImportModel&) = default;
};

// The models of the store that the user may read; a page. Answer: PublishedList.
struct ListPublished {
  uint32_t first = 0;
  friend bool operator==(const ListPublished&, const ListPublished&) = default;
};

// The name stands for nothing from now on, and what no other name needs is removed from the disk,
// unless a model in memory is read from it. Of one's own names, and for administrators. Answer:
// Done, or kNotFound.
struct RemovePublished {
  std::string name;
  friend bool operator==(const RemovePublished&, const RemovePublished&) = default;
};

struct CloseModel {
  ModelId model;
  friend bool operator==(const CloseModel&, const CloseModel&) = default;
};

// The part of a model's manifest that begins at offset, if any is left. Of a model that the session
// has open, or that its user sees (ListModels); while it is first loaded there is none. Answer:
// ManifestPart.
struct ReadManifest {
  ModelId model;
  uint64_t offset = 0;
  friend bool operator==(const ReadManifest&, const ReadManifest&) = default;
};

// The part of a program's graph, as its session defined it, that begins at offset, if any is left.
// Of a program that ListPrograms shows. Answer: GraphPart.
struct ReadGraph {
  ProgramId program;
  uint64_t offset = 0;
  friend bool operator==(const ReadGraph&, const ReadGraph&) = default;
};

// Drops a model that no session leases. Answer: Done, or kBusy.
struct UnloadModel {
  ModelId model;
  friend bool operator==(const UnloadModel&, const UnloadModel&) = default;
};

// fds: [sealed memfd with an encoded srg::Graph]. Answer: ProgramDefined once a worker admitted it.
struct DefineProgram {
  ModelId model;  // whose weights the graph names; invalid: it names none
  friend bool operator==(const DefineProgram&, const DefineProgram&) = default;
};

// The session has these programs no more, and no run of it that names one is still to come: they
// may be forgotten. Those that it has not defined are passed over. Answer: Done.
struct DropPrograms {
  std::vector<ProgramId> programs;
  friend bool operator==(const DropPrograms&, const DropPrograms&) = default;
};

struct SequenceGeometry {
  uint32_t rows = 1;
  uint32_t layers = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  DType dtype = DType::kFloat32;
  uint64_t capacity = 0;  // tokens a row
  // 2: rows can be reordered, at the price of twice the memory; 1: they cannot.
  uint32_t banks = 1;
  friend bool operator==(const SequenceGeometry&, const SequenceGeometry&) = default;
};

// Answer: SequenceMade.
struct MakeSequence {
  SequenceGeometry geometry;
  friend bool operator==(const MakeSequence&, const MakeSequence&) = default;
};

// Done comes when its memory is free.
struct DropSequence {
  SequenceHandle sequence;
  friend bool operator==(const DropSequence&, const DropSequence&) = default;
};

// Lists come in pages of at most limits::kListPage items: ask again with first = items so far,
// until `total` of the answer is reached. What changes between two pages may be seen twice or not
// at all.
struct GetStatus {
  uint32_t first_worker = 0;
  friend bool operator==(const GetStatus&, const GetStatus&) = default;
};
struct ListSessions {
  uint32_t first = 0;
  friend bool operator==(const ListSessions&, const ListSessions&) = default;
};
struct ListModels {
  uint32_t first = 0;
  friend bool operator==(const ListModels&, const ListModels&) = default;
};
// Who uses a model. Answer: UseList.
struct ListUses {
  ModelId model;
  uint32_t first = 0;
  friend bool operator==(const ListUses&, const ListUses&) = default;
};
struct ListPrograms {
  uint32_t first = 0;
  friend bool operator==(const ListPrograms&, const ListPrograms&) = default;
};
// Short lists, in one answer each.
struct ListDevices {
  friend bool operator==(const ListDevices&, const ListDevices&) = default;
};
struct ListMemory {
  friend bool operator==(const ListMemory&, const ListMemory&) = default;
};
// What the session that asks holds itself. Answer: OwnMemory.
struct GetOwnMemory {
  friend bool operator==(const GetOwnMemory&, const GetOwnMemory&) = default;
};

// Keeps a model resident without a lease, or no longer. Answer: Done.
struct PinModel {
  ModelId model;
  bool pinned = false;
  friend bool operator==(const PinModel&, const PinModel&) = default;
};
// Where a model's bytes are when they are not on its device.
enum class Tier : uint8_t { kHost = 0, kDisk = 1 };

// Moves a model down: its bytes on the device are released, and its next use brings them back. To
// the host: its copies in GPUs' memory are dropped, and come back when it is placed again.
// force: even if it is pinned (the pin ends) or its sessions are idle. Answer: Done when the bytes
// are free, or kBusy (in use, pinned, or its files are not open),
// kUnsupported (a tier that the device does not have).
struct EvictModel {
  ModelId model;
  Tier to = Tier::kDisk;
  bool force = false;
  bool dry_run = false;  // answers as it would, and does nothing
  friend bool operator==(const EvictModel&, const EvictModel&) = default;
};
// Administrators only: puts a copy of a model that lies in the host's memory into a GPU's, where it
// stays until it gives way, or the model leaves the host. A copy that is there is compared anew.
// Answer: ModelPlaced, or kNotFound (model, device), kBusy (the model is on its way), kOutOfMemory,
// kDeviceLost.
struct PlaceModel {
  ModelId model;
  std::string device{};  // "cuda:0"
  friend bool operator==(const PlaceModel&, const PlaceModel&) = default;
};
// Administrators only: takes in no new session and no new model, until told otherwise. Answer:
// Done.
struct SetDraining {
  bool draining = false;
  friend bool operator==(const SetDraining&, const SetDraining&) = default;
};
// Administrators only: gives up what serves nobody. Answer: Collected.
struct CollectGarbage {
  friend bool operator==(const CollectGarbage&, const CollectGarbage&) = default;
};
// The events with larger numbers than after, a page of them. Answer: EventList; if it would be
// empty and wait is set, as soon as there is one. A session waits for one such answer at a time.
struct FollowEvents {
  uint64_t after = 0;
  bool wait = false;
  friend bool operator==(const FollowEvents&, const FollowEvents&) = default;
};
// Gives up the run that a session has in flight. Answer: Done, or kNotFound when it runs nothing.
struct CancelRun {
  SessionId session;
  friend bool operator==(const CancelRun&, const CancelRun&) = default;
};
// Ends a session as if its client had closed it; the client gets a notice. Answer: Done.
struct TerminateSession {
  SessionId session;
  friend bool operator==(const TerminateSession&, const TerminateSession&) = default;
};

// What a lane has decided lately: the lane of that session, or of those whose users the caller may
// see the lane-th. Answer, after the step that the lane is in: ScheduleReport.
struct GetSchedule {
  SessionId session;
  uint32_t lane = 0;  // from 0; without a session
  friend bool operator==(const GetSchedule&, const GetSchedule&) = default;
};

struct ClientRequest {
  uint32_t number = 0;  // echoed in the answer; unique among the pending ones, not 0
  std::variant<Hello, AddFiles, OpenModel, CloseModel, UnloadModel, DefineProgram, MakeSequence,
               DropSequence, GetStatus, ListSessions, ListModels, ListPrograms, ListDevices,
               ListMemory, PinModel, CancelRun, TerminateSession, EvictModel, SetDraining,
               CollectGarbage, FollowEvents, ReadManifest, ListUses, GetOwnMemory, DropPrograms,
               GetSchedule, ReadGraph, PlaceModel, ImportModel, ListPublished, RemovePublished>
      body;
  friend bool operator==(const ClientRequest&, const ClientRequest&) = default;
};

// ------------------------------------------------------------------ djinnd -> client

// fds, unless observer: [session memory memfd, submission bell, listener of the completion bell].
struct Welcome {
  SessionId session;
  uint64_t staging_bytes = 0;
  uint32_t threads = 0;                            // of a lane, which fixes fp32 bits
  uint64_t quota_bytes = 0;                        // device bytes this session may hold
  srg::Numerics numerics = srg::Numerics::kExact;  // of graphs for which nobody has chosen
  friend bool operator==(const Welcome&, const Welcome&) = default;
};

struct Done {
  friend bool operator==(const Done&, const Done&) = default;
};

struct Failed {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
  friend bool operator==(const Failed&, const Failed&) = default;
};

struct ModelOpened {
  ModelId model;
  uint64_t bytes = 0;
  bool was_resident = false;                // no byte was read for this open
  uint64_t manifest_bytes = 0;              // of the encoded srg::ModelManifest
  std::vector<std::byte> manifest;          // its first part; ReadManifest gives the others
  std::optional<srg::Numerics> numerics{};  // as this or an earlier open of its user's said
  friend bool operator==(const ModelOpened&, const ModelOpened&) = default;
};

// Of an encoded srg::Graph.
struct GraphPart {
  std::vector<std::byte> bytes;  // limits::kGraphPartBytes, or fewer: there are no more
  friend bool operator==(const GraphPart&, const GraphPart&) = default;
};

struct ManifestPart {
  std::vector<std::byte> bytes;  // limits::kManifestPartBytes, or fewer: there are no more
  friend bool operator==(const ManifestPart&, const ManifestPart&) = default;
};

struct OutputShape {
  std::string name;
  DType dtype = DType::kInvalid;
  bool sizes_known = true;
  std::vector<srg::Expr> sizes;
  friend bool operator==(const OutputShape&, const OutputShape&) = default;
};

struct ProgramDefined {
  ProgramId program;
  bool was_cached = false;
  std::vector<OutputShape> outputs;
  friend bool operator==(const ProgramDefined&, const ProgramDefined&) = default;
};

struct SequenceMade {
  SequenceHandle sequence;
  friend bool operator==(const SequenceMade&, const SequenceMade&) = default;
};

enum class WorkerState : uint8_t { kStarting = 0, kReady = 1, kRecovering = 2, kFailed = 3 };

struct WorkerReport {
  std::string device;  // "cpu:0"
  std::string owner;   // user name of the trust domain
  uint32_t pid = 0;
  WorkerState state = WorkerState::kStarting;
  uint32_t threads = 0;
  uint32_t restarts = 0;
  uint32_t landlock_abi = 0;  // 0: this kernel has no Landlock
  bool seccomp = false;
  uint64_t slab_bytes = 0;
  uint64_t runs = 0;
  uint64_t planned_runs = 0;
  uint64_t plan_misses = 0;
  uint64_t runs_repeated = 0;
  uint64_t runs_together = 0;
  uint64_t tokens = 0;
  uint64_t turn_ns = 0;   // as WorkerStats'
  uint64_t overruns = 0;  // likewise
  uint64_t refused = 0;   // likewise, submissions_refused
  friend bool operator==(const WorkerReport&, const WorkerReport&) = default;
};

// What a user has, and may have, where the configuration gives them a quota of their own.
struct QuotaReport {
  bool is_own = false;
  uint64_t memory_bytes = 0;  // of all their sessions and their worker, beside models
  uint64_t memory_max_bytes = 0;
  uint64_t pinned_bytes = 0;
  uint64_t pinned_max_bytes = 0;
  uint32_t sessions = 0;  // with a data path
  uint32_t sessions_max = 0;
  uint32_t models = 0;  // that their sessions hold, or they have pinned
  uint32_t models_max = 0;
  friend bool operator==(const QuotaReport&, const QuotaReport&) = default;
};

// A user who has something here.
struct UserReport {
  std::string owner;
  QuotaReport quota;
  friend bool operator==(const UserReport&, const UserReport&) = default;
};

// A setting as the configuration or the command line has it.
struct SettingReport {
  std::string key;
  std::string value;
  bool reloads = false;  // a reload takes another value up
  friend bool operator==(const SettingReport&, const SettingReport&) = default;
};

struct StatusReport {
  std::string version;
  uint64_t started_wall_ns = 0;
  uint64_t memory_total_bytes = 0;  // what djinnd may grant
  uint64_t memory_granted_bytes = 0;
  uint64_t memory_models_bytes = 0;
  uint64_t memory_sessions_bytes = 0;
  uint64_t memory_lanes_bytes = 0;
  uint32_t sessions = 0;
  uint32_t models = 0;
  uint32_t programs = 0;
  uint32_t descriptors = 0;     // open in djinnd
  uint64_t bytes_read = 0;      // from model files, ever
  uint64_t buffered_reads = 0;  // where O_DIRECT was refused
  uint32_t workers_total = 0;
  std::vector<WorkerReport> workers;  // a page, from first_worker
  bool draining = false;
  uint32_t descriptors_closing = 0;  // of clients', which may take long
  uint64_t compared_opens = 0;       // whose files were compared with a resident model byte by byte
  uint32_t data_sessions = 0;        // of the sessions those that may run something
  QuotaReport quota;                 // the asker's
  std::vector<SettingReport> settings;  // in force, of a service; with the first page of workers
  uint32_t users_total = 0;
  std::vector<UserReport> users;  // for administrators; a page, from first_worker, too
  std::string spill_fault;        // why no sequence group can go to disk; or empty
  std::string config_root;        // of a service: what stands before its configuration's paths
  friend bool operator==(const StatusReport&, const StatusReport&) = default;
};

// A session is lost while its worker is dead and the next one not there, and draining when its
// client has gone and its memory has not yet come back.
enum class SessionState : uint8_t {
  kActive = 0,
  kIdle = 1,
  kWaiting = 2,
  kDraining = 3,
  kLost = 4
};
inline constexpr size_t kSessionStates = 5;
static_assert(kSessionStates == static_cast<size_t>(SessionState::kLost) + 1);
// What keeps it from going on.
enum class SessionWait : uint8_t { kNone = 0, kMemory = 1, kDevice = 2, kDisk = 3, kClient = 4 };

// What kind of run a session computed last, in the order of the tiers.
enum class RunTier : uint8_t { kNone = 0, kGraph = 1, kProgram = 2, kGeneration = 3 };
inline constexpr size_t kRunTiers = 3;  // without kNone
static_assert(kRunTiers == static_cast<size_t>(RunTier::kGeneration));
static_assert(kRunTiers == std::tuple_size_v<decltype(ClientStatement::calls)>);

// Since the session began; counted by djinnd and its workers.
struct SessionCounts {
  RunTier tier = RunTier::kNone;
  uint64_t graphs = 0;    // that came with their run
  uint64_t programs = 0;  // runs by a program's id
  uint64_t generations = 0;
  uint64_t failed = 0;
  uint64_t tokens = 0;
  uint64_t plan_misses = 0;
  // All that crossed, to djinnd and its worker and from them: control messages with their memfds,
  // descriptors, binding blocks, what was copied from staging and to it, completions.
  uint64_t bytes_in = 0;
  uint64_t bytes_out = 0;
  friend bool operator==(const SessionCounts&, const SessionCounts&) = default;
};

struct SessionReport {
  SessionId session;
  std::string client_name;
  std::string owner;
  uint32_t pid = 0;
  uint64_t started_wall_ns = 0;
  uint64_t granted_bytes = 0;
  uint32_t models = 0;
  uint32_t sequences = 0;
  uint64_t steps = 0;  // committed
  bool running = false;
  SessionState state = SessionState::kIdle;
  SessionWait wait = SessionWait::kNone;
  uint64_t shared_bytes = 0;  // of the models that it holds
  SessionCounts counts{};
  ClientStatement stated{};
  std::string device{};  // "cpu:0"
  friend bool operator==(const SessionReport&, const SessionReport&) = default;
};

// Host and disk: where its bytes are while they are not on its device. kHost: of GPUs only.
enum class ModelState : uint8_t {
  kLoading = 0,
  kResident = 1,
  kFailed = 2,
  kEvicting = 3,
  kHost = 4,
  kDisk = 5
};
inline constexpr size_t kModelStates = 6;
static_assert(kModelStates == static_cast<size_t>(ModelState::kDisk) + 1);

struct ModelReport {
  ModelId model;
  std::string label;
  std::string owner;  // who opened it first
  ModelState state = ModelState::kLoading;
  uint64_t bytes = 0;
  uint64_t bytes_loaded = 0;
  uint32_t files = 0;
  uint32_t leases = 0;  // sessions that hold it
  bool pinned = false;
  bool hashed = false;
  std::array<uint8_t, 32> sha256{};
  uint64_t loaded_wall_ns = 0;
  std::string device;  // "cpu:0"
  uint64_t keep_alive_ms = 0;
  uint64_t expires_wall_ns = 0;  // 0: it is in use, pinned, or kept for ever
  std::string path;         // OpenModel's, as label is: who asks gave it, or their model's owner
  uint32_t plan = 0;        // of its load plan's hash the first bits; 0: it has none
  uint64_t huge_bytes = 0;  // that lay in huge pages when it had been loaded; 0: not on its device
  uint32_t on_gpus = 0;     // bit n: cuda:n has a copy of it, which was compared with the host's
  std::optional<srg::Numerics> numerics{};  // OpenModel's: who asks said them, or as with path
  friend bool operator==(const ModelReport&, const ModelReport&) = default;
};

// kHold: a session holds the model. kPin: a user has pinned it. kName: what a user calls it.
enum class UseKind : uint8_t { kHold = 0, kPin = 1, kName = 2 };

struct UseReport {
  UseKind kind = UseKind::kHold;
  std::string owner;
  SessionId session;  // of a hold; likewise the next two
  uint32_t pid = 0;
  std::string client_name;
  std::string label;  // of a name, OpenModel's; likewise the next
  std::string path;
  friend bool operator==(const UseReport&, const UseReport&) = default;
};

enum class ProgramState : uint8_t { kAdmitting = 0, kAdmitted = 1 };

// What a program's graph is for, as its worker tells from operators and how they are joined
// (kernel/sched/annotate.h). kUnknown: from nothing in it, or nobody has looked yet.
enum class Workload : uint8_t {
  kUnknown = 0,
  kTextEncoder = 1,
  kPrefill = 2,
  kDecode = 3,
  kVision = 4,
  kAudio = 5,
  kMultimodal = 6,
  kTraining = 7
};

struct ProgramReport {
  ProgramId program;
  ModelId model;  // invalid: it names no weights
  std::string owner;
  std::string device;
  ProgramState state = ProgramState::kAdmitting;
  uint64_t graph_bytes = 0;
  uint32_t outputs = 0;
  uint32_t sessions = 0;  // that defined it
  std::string name{};     // its graph's, for people; likewise the next once it is admitted
  Workload workload = Workload::kUnknown;
  uint32_t fast_nodes = 0;  // that our own kernels compute; 0: it is exact
  friend bool operator==(const ProgramReport&, const ProgramReport&) = default;
};

enum class DeviceState : uint8_t {
  kReady = 0,
  kFailed = 1,    // its workers do not start; a GPU that cannot be used
  kLost = 2,      // a GPU that could be used, and does not answer any more
  kStarting = 3,  // a GPU that is looked at
};

struct DeviceReport {
  std::string device;  // "cpu:0"
  std::string name;    // as its maker says
  uint64_t used_bytes = 0;
  uint64_t total_bytes = 0;
  uint64_t planned_bytes = 0;  // slabs of its lanes
  uint32_t lanes = 0;
  DeviceState state = DeviceState::kReady;
  uint64_t huge_bytes = 0;   // of the models there, as ModelReport's
  std::string huge_pages{};  // what the host allows, as the kernel calls it: "advise"; or empty
  std::string isa{};         // what its own kernels are made of: "avx512"; or empty
  // Of its workers; nothing before the first is warm, and where they have no choice of kernels.
  std::optional<KernelTable> kernels{};
  std::string driver{};  // a GPU's, "580.159.04"; or empty
  std::string reason{};  // why it is not ready, a GPU's; or empty
  // Of a GPU, as its driver says: what it has, what of it nobody has, and what was copied there
  // since djinnd started.
  uint64_t hardware_bytes = 0;
  uint64_t hardware_free_bytes = 0;
  uint64_t uploaded_bytes = 0;
  friend bool operator==(const DeviceReport&, const DeviceReport&) = default;
};

enum class MemoryPool : uint8_t { kWeights = 0, kSessions = 1, kLanes = 2 };

// invariant: mapped, cached, evictable, pinned <= reserved.
struct MemoryReport {
  std::string device;
  MemoryPool pool = MemoryPool::kWeights;
  uint64_t reserved_bytes = 0;   // granted
  uint64_t mapped_bytes = 0;     // of them, in the address space of a worker
  uint64_t cached_bytes = 0;     // of no session, or no ref of it: kept for the next
  uint64_t evictable_bytes = 0;  // what gives way when memory is wanted
  uint64_t pinned_bytes = 0;     // never gives way
  friend bool operator==(const MemoryReport&, const MemoryReport&) = default;
};

struct SessionList {
  uint32_t total = 0;
  std::vector<SessionReport> sessions;
  friend bool operator==(const SessionList&, const SessionList&) = default;
};
struct ModelList {
  uint32_t total = 0;
  std::vector<ModelReport> models;
  friend bool operator==(const ModelList&, const ModelList&) = default;
};
struct UseList {
  uint32_t total = 0;
  std::vector<UseReport> uses;
  friend bool operator==(const UseList&, const UseList&) = default;
};
struct ProgramList {
  uint32_t total = 0;
  std::vector<ProgramReport> programs;
  friend bool operator==(const ProgramList&, const ProgramList&) = default;
};
struct DeviceList {
  std::vector<DeviceReport> devices;
  friend bool operator==(const DeviceList&, const DeviceList&) = default;
};
struct MemoryList {
  std::vector<MemoryReport> pools;
  friend bool operator==(const MemoryList&, const MemoryList&) = default;
};

struct OwnMemory {
  uint64_t granted_bytes = 0;   // all that counts against its quota
  uint64_t sequence_bytes = 0;  // of these, for sequence groups
  uint64_t shared_bytes = 0;    // of the models that it holds
  uint64_t free_bytes = 0;      // what could be granted to it, with nothing giving way
  uint64_t total_bytes = 0;     // of the device
  friend bool operator==(const OwnMemory&, const OwnMemory&) = default;
};

// Which session's step a lane took, and why (kernel/sched/queue.h). Virtual times are those of an
// interactive session: to others a nanosecond is two or four.
struct ScheduleDecision {
  uint64_t number = 0;  // rises by one with each of the lane's decisions
  SessionId session;
  ServiceClass service = ServiceClass::kNormal;
  PickReason reason = PickReason::kOnly;
  uint64_t ago_ns = 0;
  uint64_t ready = 0;         // how many sessions were, itself included
  int64_t lag_ns = 0;         // virtual: what it was owed; negative: it had had more
  int64_t deadline_ns = 0;    // virtual, from the mean of all
  uint64_t predicted_ns = 0;  // of the step; of a slice: what the slice may take
  uint64_t measured_ns = 0;
  SessionId paused;  // whose run was paused meanwhile; none: invalid
  friend bool operator==(const ScheduleDecision&, const ScheduleDecision&) = default;
};

struct LaneSchedule {
  SchedulePolicy policy = SchedulePolicy::kFair;
  std::vector<ScheduleDecision> decisions{};  // the last limits::kDecisions, the oldest first
  friend bool operator==(const LaneSchedule&, const LaneSchedule&) = default;
};

struct ScheduleReport {
  uint32_t total = 0;  // lanes that could be asked for
  std::string device;  // "cpu:0"
  std::string owner;   // of the lane's sessions
  LaneSchedule schedule;
  friend bool operator==(const ScheduleReport&, const ScheduleReport&) = default;
};

struct Collected {
  uint32_t programs = 0;
  uint32_t workers = 0;
  uint64_t bytes = 0;  // grants that ended
  friend bool operator==(const Collected&, const Collected&) = default;
};

struct EventReport {
  uint64_t number = 0;  // rises by one with each event, seen or not
  uint64_t wall_ns = 0;
  EventKind kind = EventKind::kDaemonStarted;
  std::string text;
  SessionId session;   // or invalid
  ModelId model;       // or invalid
  std::string device;  // or empty
  std::optional<uint64_t> bytes{};
  ErrorCode error = ErrorCode::kOk;
  std::optional<uint32_t> user{};  // whose it is: a user id
  std::string path;                // or empty
  std::string reason;              // a sentence of at most kMessageTextBytes, or empty
  friend bool operator==(const EventReport&, const EventReport&) = default;
};
struct EventList {
  uint64_t last = 0;    // ask again with it
  uint64_t missed = 0;  // numbers that came after the asked one and are forgotten already
  std::vector<EventReport> events;
  friend bool operator==(const EventList&, const EventList&) = default;
};

// PlaceModel's model is on the device.
struct ModelPlaced {
  uint64_t bytes = 0;           // granted there
  uint64_t uploaded_bytes = 0;  // for this; 0: it was there
  friend bool operator==(const ModelPlaced&, const ModelPlaced&) = default;
};

// A model is in the store, and on the disk.
struct ModelImported {
  std::string name;  // with its tag
  uint64_t bytes = 0;
  std::array<uint8_t, 32> contents{};  // as PublishedReport's
  friend bool operator==(const ModelImported&, const ModelImported&) = default;
};

// A name of the store of models.
struct PublishedReport {
  std::string name;     // with its tag
  std::string owner;    // who published it
  std::string readers;  // who may read it beside them, with commas
  uint64_t bytes = 0;
  uint32_t files = 0;
  uint64_t since_wall_ns = 0;
  std::array<uint8_t, 32> contents{};  // SHA-256 of its files' names, digests and sizes
  friend bool operator==(const PublishedReport&, const PublishedReport&) = default;
};
struct PublishedList {
  uint32_t total = 0;
  std::vector<PublishedReport> published;
  friend bool operator==(const PublishedList&, const PublishedList&) = default;
};

struct DaemonReply {
  uint32_t number =
      0;  // of the request; 0 for a notice nobody asked for (Failed: the session ends)
  std::variant<Done, Failed, Welcome, ModelOpened, ProgramDefined, SequenceMade, StatusReport,
               SessionList, ModelList, ProgramList, DeviceList, MemoryList, Collected, EventList,
               ManifestPart, UseList, OwnMemory, ScheduleReport, GraphPart, ModelPlaced,
               ModelImported, PublishedList>
      body;
  friend bool operator==(const DaemonReply&, const DaemonReply&) = default;
};

// ------------------------------------------------------------------ djinnd -> worker

// Part of a window of addresses.
struct MemoryRange {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  friend bool operator==(const MemoryRange&, const MemoryRange&) = default;
};

// fds: [session memory, state extent, submission bell, completion bell, chunks of refs...].
// The worker recovers the state extent if a former worker left a step open. Answer: Attached.
struct AttachSession {
  SessionId session;
  uint64_t staging_bytes = 0;
  uint64_t ref_bytes_max = 0;  // of the window of its refs
  // The extents in it. Where extents have parts one, sparse, of all of it.
  std::vector<MemoryRange> ref_chunks;
  uint64_t ref_bytes_granted = 0;  // of them, what the session was granted so far
  uint32_t sequences = 0;          // AddSequence commands that follow; no step runs before the last
  // The submission in flight met its last death, or takes too long: it fails so.
  ErrorCode refusal = ErrorCode::kOk;
  std::string refusal_text;
  ServiceClass service = ServiceClass::kNormal;
  friend bool operator==(const AttachSession&, const AttachSession&) = default;
};
// Answer: Detached, after the last use of its memory.
struct DetachSession {
  SessionId session;
  friend bool operator==(const DetachSession&, const DetachSession&) = default;
};

// fds: [manifest memfd, extents...], or the manifest alone if parked: then its place is reserved,
// and programs that name it can be admitted. A parked model that is added again is where it was.
// Answer: ModelAdded.
struct AddModel {
  ModelId model;
  bool parked = false;
  friend bool operator==(const AddModel&, const AddModel&) = default;
};
// Answer: ModelDropped.
struct DropModel {
  ModelId model;
  friend bool operator==(const DropModel&, const DropModel&) = default;
};

// Lets go of the model's bytes and keeps their place; runs that need it wait. Answer: ModelParked.
struct ParkModel {
  ModelId model;
  friend bool operator==(const ParkModel&, const ParkModel&) = default;
};
// Answers ModelWanted for a model that cannot come back: the runs that wait for it fail so.
struct ModelLost {
  ModelId model;
  ErrorCode code = ErrorCode::kOk;
  std::string message;
  friend bool operator==(const ModelLost&, const ModelLost&) = default;
};

// fds: [graph memfd]. Answer, some time later: ProgramAdded or ProgramRefused; none if the program
// or its model is dropped meanwhile. A run of the program waits until then.
struct AddProgram {
  ProgramId program;
  ModelId model;
  bool again = false;  // a worker before has admitted it
  friend bool operator==(const AddProgram&, const AddProgram&) = default;
};
struct DropProgram {
  ProgramId program;
  friend bool operator==(const DropProgram&, const DropProgram&) = default;
};

// fds: [sequence memfd], and of a spilled one [sequence memfd, file]. Layout of both:
// kernel/gc/sequence_layout.h. Answer: SequenceAdded.
struct AddSequence {
  SessionId session;
  SequenceHandle sequence;
  SequenceGeometry geometry;
  uint64_t bytes_granted = 0;  // committed so far by a former worker; spilled: when it was spilled
  bool spilled = false;        // its bytes are in the file alone
  friend bool operator==(const AddSequence&, const AddSequence&) = default;
};
// Copies the group to a file, at its next use back. fds: [file], empty. Answer: SequenceSpilled.
struct SpillSequence {
  SessionId session;
  SequenceHandle sequence;
  friend bool operator==(const SpillSequence&, const SpillSequence&) = default;
};
// Gives back, between two steps, what is committed for the session's refs and holds none, and what
// the lane's heap does not hold: in GrantReturns. Answer: RefsTrimmed.
struct TrimRefs {
  SessionId session;
  friend bool operator==(const TrimRefs&, const TrimRefs&) = default;
};
// Answer: SequenceDropped.
struct ReleaseSequence {
  SessionId session;
  SequenceHandle sequence;
  friend bool operator==(const ReleaseSequence&, const ReleaseSequence&) = default;
};

// Answer to a GrantRequest.
struct GrantAnswer {
  uint64_t request = 0;
  ErrorCode code = ErrorCode::kOk;
  std::string message;
  friend bool operator==(const GrantAnswer&, const GrantAnswer&) = default;
};
// Answers a GrantRequest with extents, of so many bytes in all. fds: of kSlab [slab memfd], the
// lane's volatile section, which replaces the former one; of kRefs [extent for each place].
struct GiveMemory {
  uint64_t request = 0;
  uint64_t bytes = 0;
  friend bool operator==(const GiveMemory&, const GiveMemory&) = default;
};
struct GetWorkerStats {
  friend bool operator==(const GetWorkerStats&, const GetWorkerStats&) = default;
};
// Wakes the lane, which looks at all sessions again. Answer: LaneAwake.
struct WakeLane {
  friend bool operator==(const WakeLane&, const WakeLane&) = default;
};

// Answer, between two steps: LaneSchedule.
struct GetLaneSchedule {
  friend bool operator==(const GetLaneSchedule&, const GetLaneSchedule&) = default;
};

// With the page (ipc/baton.h) in which the workers of its device take turns. No answer.
struct JoinBaton {
  uint32_t slot = 0;
  friend bool operator==(const JoinBaton&, const JoinBaton&) = default;
};

struct WorkerCommand {
  std::variant<AttachSession, DetachSession, AddModel, DropModel, AddProgram, DropProgram,
               AddSequence, ReleaseSequence, GrantAnswer, GiveMemory, GetWorkerStats, ParkModel,
               ModelLost, SpillSequence, WakeLane, TrimRefs, GetLaneSchedule, JoinBaton>
      body;
  friend bool operator==(const WorkerCommand&, const WorkerCommand&) = default;
};

// ------------------------------------------------------------------ worker -> djinnd

struct WorkerReady {
  uint32_t threads = 0;
  uint32_t landlock_abi = 0;
  bool seccomp = false;
  std::string isa{};  // as DeviceReport's
  std::optional<KernelTable> kernels{};
  friend bool operator==(const WorkerReady&, const WorkerReady&) = default;
};
// Said by the lane's own thread, between two steps.
struct LaneAwake {
  friend bool operator==(const LaneAwake&, const LaneAwake&) = default;
};
struct Attached {
  SessionId session;
  friend bool operator==(const Attached&, const Attached&) = default;
};
struct Detached {
  SessionId session;
  friend bool operator==(const Detached&, const Detached&) = default;
};
struct ModelAdded {
  ModelId model;
  ErrorCode code = ErrorCode::kOk;
  std::string message;
  friend bool operator==(const ModelAdded&, const ModelAdded&) = default;
};
struct ModelDropped {
  ModelId model;
  friend bool operator==(const ModelDropped&, const ModelDropped&) = default;
};
struct ModelParked {
  ModelId model;
  friend bool operator==(const ModelParked&, const ModelParked&) = default;
};
// A run needs a model that is parked. Answer: AddModel or ModelLost.
struct ModelWanted {
  ModelId model;
  friend bool operator==(const ModelWanted&, const ModelWanted&) = default;
};
// One of the worker's desks looks at the graph of a program from now on; of an invalid id, at none.
// Told more than once of one that takes long.
struct ProgramLookedAt {
  ProgramId program;
  AdmissionDesk desk = AdmissionDesk::kQuick;
  friend bool operator==(const ProgramLookedAt&, const ProgramLookedAt&) = default;
};
struct ProgramAdded {
  ProgramId program;
  std::vector<OutputShape> outputs;
  uint64_t activation_bytes = 0;
  std::string name{};  // the graph's
  Workload workload = Workload::kUnknown;
  uint32_t fast_nodes = 0;  // that our own kernels compute
  bool wants_fast = false;  // its numerics are not exact
  friend bool operator==(const ProgramAdded&, const ProgramAdded&) = default;
};
struct ProgramRefused {
  ProgramId program;
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
  friend bool operator==(const ProgramRefused&, const ProgramRefused&) = default;
};
struct SequenceAdded {
  SessionId session;
  SequenceHandle sequence;
  ErrorCode code = ErrorCode::kOk;
  std::string message;
  friend bool operator==(const SequenceAdded&, const SequenceAdded&) = default;
};
struct SequenceDropped {
  SessionId session;
  SequenceHandle sequence;
  friend bool operator==(const SequenceDropped&, const SequenceDropped&) = default;
};
// All of the group is in the file, and its memory is djinnd's to free. With an error the group is
// where it was.
struct SequenceSpilled {
  SessionId session;
  SequenceHandle sequence;
  uint64_t bytes = 0;  // of its grants, which end
  ErrorCode code = ErrorCode::kOk;
  std::string message;
  friend bool operator==(const SequenceSpilled&, const SequenceSpilled&) = default;
};
// The group is in memory again, and its file is not needed any more.
struct SequenceRestored {
  SessionId session;
  SequenceHandle sequence;
  friend bool operator==(const SequenceRestored&, const SequenceRestored&) = default;
};

// kHeap: what a lane takes beside its slab, for recordings and copies of inputs.
enum class GrantKind : uint8_t { kRefs = 1, kSequence = 2, kSlab = 3, kHeap = 4 };

// Asks for bytes more. Answer: GrantAnswer; GiveMemory for a slab, and for refs where extents have
// no parts.
struct GrantRequest {
  uint64_t request = 0;
  GrantKind kind = GrantKind::kRefs;
  SessionId session;        // kRefs, kSequence
  SequenceHandle sequence;  // kSequence
  uint64_t bytes = 0;
  bool or_less = false;  // if it is refused, less is asked for: nobody else hears of it
  // kRefs where extents have no parts: the parts of the window that want an extent, of whole pages
  // and apart; `bytes` together. At most limits::kRefChunks.
  std::vector<MemoryRange> places;
  friend bool operator==(const GrantRequest&, const GrantRequest&) = default;
};

// Bytes granted before that are no longer touched and no longer committed. No answer.
struct GrantReturn {
  GrantKind kind = GrantKind::kRefs;
  SessionId session;
  SequenceHandle sequence;
  uint64_t bytes = 0;
  uint64_t offset = 0;  // kRefs where extents have no parts: that of the chunk, which goes whole
  friend bool operator==(const GrantReturn&, const GrantReturn&) = default;
};

// What could be given back of the session's refs was; it may be gone as well.
struct RefsTrimmed {
  SessionId session;
  friend bool operator==(const RefsTrimmed&, const RefsTrimmed&) = default;
};

// A session broke the protocol; djinnd ends it.
struct SessionBroken {
  SessionId session;
  ErrorCode code = ErrorCode::kProtocolViolation;
  std::string message;
  friend bool operator==(const SessionBroken&, const SessionBroken&) = default;
};

// What the lane of this worker has counted since its start.
struct WorkerStats {
  uint64_t slab_bytes = 0;  // now
  uint64_t runs = 0;
  uint64_t planned_runs = 0;
  uint64_t plan_misses = 0;
  uint64_t runs_repeated = 0;  // begun, given up until memory came, and begun anew
  uint64_t runs_together = 0;  // with those of other sessions
  uint64_t tokens = 0;
  uint64_t plan_records = 0;  // rehearsals, and runs recorded anew
  uint64_t prompt_tokens = 0;
  std::array<uint64_t, kOperations> submissions{};  // that ended well, by Operation
  uint64_t submissions_failed = 0;
  uint64_t submissions_refused = 0;  // of these, because of their deadlines
  TimeHistogram queue{};        // from when the lane could have begun a submission to its beginning
  TimeHistogram run{};          // of kRun and kRunOnce, from their beginning to their end
  TimeHistogram first_token{};  // of a generation, its time in the queue included
  TimeHistogram next_token{};   // from one token of a generation to the next
  uint64_t bytes_in = 0;        // what crossed in sessions' memory, to the worker
  uint64_t bytes_out = 0;       // and from it
  uint64_t turn_ns = 0;         // for which the lane has waited for other workers of its device
  uint64_t overruns = 0;        // how often it did not wait on, and computed beside them
  friend bool operator==(const WorkerStats&, const WorkerStats&) = default;
};

struct WorkerEvent {
  std::variant<WorkerReady, Attached, Detached, ModelAdded, ModelDropped, ProgramAdded,
               ProgramRefused, SequenceAdded, SequenceDropped, GrantRequest, GrantReturn,
               SessionBroken, WorkerStats, ModelParked, ModelWanted, SequenceSpilled,
               SequenceRestored, LaneAwake, ProgramLookedAt, RefsTrimmed, LaneSchedule>
      body;
  friend bool operator==(const WorkerEvent&, const WorkerEvent&) = default;
};

// ------------------------------------------------------------------ djinnd <-> loader

struct FileIdentity {
  uint32_t device_major = 0;
  uint32_t device_minor = 0;
  uint64_t inode = 0;
  uint64_t bytes = 0;
  int64_t mtime_ns = 0;
  int64_t ctime_ns = 0;
  bool on_block_device = false;  // of a file system on a block device, and not overlay
  std::optional<std::array<uint8_t, 32>> content = {};  // SHA-256, of a file that cannot change
  bool unwritten = false;  // nobody had it open for writing, and later writes move its ctime
  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

// fds: the files, in order; several messages for more than fit. Answer after the last: Identified.
struct TakeFiles {
  uint32_t count = 0;
  bool last = false;
  friend bool operator==(const TakeFiles&, const TakeFiles&) = default;
};
// fds: [plan memfd] if has_plan. Answer: Planned.
struct PlanLoad {
  bool has_plan = false;
  friend bool operator==(const PlanLoad&, const PlanLoad&) = default;
};
// fds: [one writable memfd for each extent]. Answer: Progress..., then Loaded, then Hashed.
struct ReadInto {
  uint32_t extents = 0;
  bool hash_at_once = false;  // somebody waits for the hash; else cores that nobody needs will do
  friend bool operator==(const ReadInto&, const ReadInto&) = default;
};

// fds: [manifest memfd, one sealed memfd for each extent], of a resident model. Answer: Compared.
struct CompareWith {
  uint32_t extents = 0;
  uint64_t seed = 0;  // of the places that are looked at first
  friend bool operator==(const CompareWith&, const CompareWith&) = default;
};

// The files' model is resident: they are forgotten, and the loader is a spare again. Answer:
// LoaderReady.
struct ReleaseFiles {
  friend bool operator==(const ReleaseFiles&, const ReleaseFiles&) = default;
};

// Copies one of the files to where the store of models has room for it, and has it on the disk.
// fds: [the store's file, empty, for reading and writing]. Answer: TakenIn.
struct TakeIn {
  uint32_t file = 0;  // its place among the files
  uint64_t bytes = 0;
  bool is_weights = false;  // then it has to be safetensors
  friend bool operator==(const TakeIn&, const TakeIn&) = default;
};

struct LoaderCommand {
  std::variant<TakeFiles, PlanLoad, ReadInto, ReleaseFiles, CompareWith, TakeIn> body;
  friend bool operator==(const LoaderCommand&, const LoaderCommand&) = default;
};

struct LoaderReady {
  uint32_t landlock_abi = 0;
  bool seccomp = false;
  friend bool operator==(const LoaderReady&, const LoaderReady&) = default;
};
struct Identified {
  std::vector<FileIdentity> files;
  int64_t now_ns = 0;  // CLOCK_REALTIME before the first stat: what ctime is compared to
  friend bool operator==(const Identified&, const Identified&) = default;
};
struct Planned {
  std::vector<uint64_t> extent_bytes;
  friend bool operator==(const Planned&, const Planned&) = default;
};
struct Progress {
  uint64_t bytes_read = 0;
  friend bool operator==(const Progress&, const Progress&) = default;
};
// fds: [manifest memfd]. All writable views are unmapped.
struct Loaded {
  uint64_t bytes_read = 0;
  uint64_t buffered_reads = 0;
  uint64_t huge_bytes = 0;  // of the extents
  friend bool operator==(const Loaded&, const Loaded&) = default;
};
// SHA-256 over the extents' bytes in order, read after djinnd sealed them.
struct Hashed {
  std::array<uint8_t, 32> sha256{};
  friend bool operator==(const Hashed&, const Hashed&) = default;
};
// Whether the files are those of the model, byte by byte, by the same plan.
struct Compared {
  bool same = false;
  friend bool operator==(const Compared&, const Compared&) = default;
};
// SHA-256 of what the store's file has now.
struct TakenIn {
  std::array<uint8_t, 32> sha256{};
  friend bool operator==(const TakenIn&, const TakenIn&) = default;
};
struct LoadFailed {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
  friend bool operator==(const LoadFailed&, const LoadFailed&) = default;
};

struct LoaderEvent {
  std::variant<LoaderReady, Identified, Planned, Progress, Loaded, Hashed, LoadFailed, Compared,
               TakenIn>
      body;
  friend bool operator==(const LoaderEvent&, const LoaderEvent&) = default;
};

}  // namespace djinn::ipc
