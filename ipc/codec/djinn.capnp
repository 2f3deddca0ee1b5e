# SPDX-License-Identifier: Apache-2.0
@0xb6f20d6c1a7e5c39;
# The control protocol of djinnd.
#
# Four kinds of connection speak it, each a SOCK_SEQPACKET socket of its own:
#
#   a client and djinnd     ClientRequest ->   <- DaemonReply
#   djinnd and a worker     WorkerCommand ->   <- WorkerEvent
#   djinnd and a loader     LoaderCommand ->   <- LoaderEvent
#   djinnd and a mover      MoverOrder ->      <- MoverEvent
#
# One message is one datagram of at most 64 KiB: a Cap'n Proto message with the standard segment
# table. Descriptors travel beside it as SCM_RIGHTS, at most 64 in one datagram; which message
# carries which, and in what order, stands with its struct in ipc/messages.h, where every field is
# explained too. This file says how those structs look as bytes and how the peers take turns.
#
# Clients. A connection begins with Hello; the answer is Welcome, with the memory and the bells of
# the data path, or Failed. From then on each request has a number of the client's choice, not 0 and
# not that of another pending request, and gets exactly one answer with the same number; answers may
# overtake each other. An answer with number 0 is a notice: Failed with number 0 says why djinnd is
# about to close the connection. Closing the connection ends the session and gives everything back.
# A client that for a minute takes none of the answers that wait for it, and has sent more
# meanwhile, is cut off. djinn-gate is a client like any, on a socket of its own: there each Hello
# names a principal, whose the session is, and whose what it makes; a connection stays with the
# first that was taken. On any other socket none may be named.
#
# Opening a model takes AddFiles, as often as its descriptors need datagrams, then OpenModel; an
# AddFiles without descriptors takes back those before it. Importing one into the store of models
# takes the same, and ImportModel. Defining a program takes one DefineProgram with a sealed memfd.
# What a client sends and may outgrow a datagram always travels as a sealed memfd (srg.capnp
# describes their contents). Lists come in pages, and a model's manifest in parts: the first with
# ModelOpened, each further one when it is asked for; a program's graph likewise.
#
# Workers. A worker says WorkerReady once it is confined and warm. Each command that messages.h
# gives an answer to is answered by one event that repeats its ids; commands of one session are
# answered in order. GrantRequest goes the other way: the worker asks, and GrantAnswer or GiveMemory
# answers; GrantReturn gives bytes back and has no answer.
#
# Loaders. A loader says LoaderReady and waits. One load is TakeFiles (several), Identified, then
# either the end (the model is resident already, or the client left) or PlanLoad, Planned, and
# CompareWith, Compared (with a resident model), or ReadInto, Progress (several), Loaded, Hashed. An
# import is TakeFiles, Identified, and for each file TakeIn, TakenIn.
# LoadFailed may take the place of any event and ends the load.
#
# Movers. A mover says MoverReady, or why it has no device, and then ends. Each order has a number,
# and one answer with it; they are answered in their order. What an order does may be done twice.
#
# Rules of the wire.
# * Fields and union members are only ever added; a decoder gives absent ones the defaults of
#   messages.h. A union member or an enumerator that a decoder does not know is refused as
#   unsupported, since it cannot be obeyed by half.
# * Enumerations travel as the numbers of the C++ headers (UInt8; error codes UInt16), so that there
#   is one place that names them. Any error code is accepted: a newer peer may know more of them.
# * Ids are UInt64. A handle is UInt64 too: its index in the low 32 bits, its generation in the
#   high ones. 0 is neither a valid id nor a valid handle.
# * Names are UTF-8 without control characters and at most 256 bytes; error texts at most 1024.
# * A peer that sends what cannot be decoded has broken the protocol. A request whose number can
#   still be read gets Failed first.

using Cxx = import "/capnp/c++.capnp";
using Srg = import "srg.capnp";
$Cxx.namespace("djinn::wire");

# -- client -> djinnd ----------------------------------------------------------------------------

struct ClientRequest {
  number @0 :UInt32;
  union {
    hello @1 :Hello;
    addFiles @2 :AddFiles;
    openModel @3 :OpenModel;
    closeModel @4 :UInt64;   # the model's id
    unloadModel @5 :UInt64;  # likewise
    defineProgram @6 :UInt64;  # the id of the model whose weights it names; 0: none
    makeSequence @7 :SequenceGeometry;
    dropSequence @8 :UInt64;  # the handle
    getStatus @9 :UInt32;     # the first item of the page, as in the two below
    listSessions @10 :UInt32;
    listModels @11 :UInt32;
    listPrograms @12 :UInt32;
    listDevices @13 :Void;
    listMemory @14 :Void;
    pinModel @15 :PinModel;
    cancelRun @16 :UInt64;         # the session's id
    terminateSession @17 :UInt64;  # likewise
    evictModel @18 :EvictModel;
    setDraining @19 :Bool;
    collectGarbage @20 :Void;
    followEvents @21 :FollowEvents;
    tryEvictModel @22 :EvictModel;  # a dry run; a daemon that does not know it must not evict
    readManifest @23 :ReadManifest;
    listUses @24 :ListUses;
    getOwnMemory @25 :Void;
    dropPrograms @26 :List(UInt64);  # their ids
    getSchedule @27 :GetSchedule;
    readGraph @28 :ReadGraph;
    placeModel @29 :PlaceModel;
    importModel @30 :Text;  # the name
    listPublished @31 :UInt32;  # the first item of the page
    removePublished @32 :Text;  # the name
  }
}

struct Hello {
  version @0 :UInt32;
  clientName @1 :Text;
  stagingBytes @2 :UInt64;
  observer @3 :Bool;
  device @4 :Text;
  service @5 :UInt8 = 1;  # normal
  principal @6 :Text;  # empty: whom the kernel says
}

struct PlaceModel {
  model @0 :UInt64;
  device @1 :Text;
}

struct GetSchedule {
  session @0 :UInt64;  # 0: that lane
  lane @1 :UInt32;
}

struct AddFiles {
  count @0 :UInt32;
  names @1 :List(Text);
}

struct OpenModel {
  label @0 :Text;
  hasPlan @1 :Bool;
  pin @2 :Bool;
  hasKeepAlive @3 :Bool;
  keepAliveMs @4 :UInt64;  # all ones: for ever
  path @5 :Text;
  unpin @6 :Bool;
  hasNumerics @7 :Bool;
  numerics @8 :UInt8;
  published @9 :Text;
}

struct ListUses {
  model @0 :UInt64;
  first @1 :UInt32;
}

struct FollowEvents {
  after @0 :UInt64;
  wait @1 :Bool;
}

struct EvictModel {
  model @0 :UInt64;
  to @1 :UInt8;
  force @2 :Bool;
}

struct ReadManifest {
  model @0 :UInt64;
  offset @1 :UInt64;
}

struct ReadGraph {
  program @0 :UInt64;
  offset @1 :UInt64;
}

struct PinModel {
  model @0 :UInt64;
  pinned @1 :Bool;
}

struct SequenceGeometry {
  rows @0 :UInt32;
  layers @1 :UInt32;
  kvHeads @2 :UInt32;
  headDim @3 :UInt32;
  dtype @4 :UInt8;
  capacity @5 :UInt64;
  banks @6 :UInt32;  # 2: the rows can be reordered
}

# -- djinnd -> client ----------------------------------------------------------------------------

struct DaemonReply {
  number @0 :UInt32;
  union {
    done @1 :Void;
    failed @2 :Failure;
    welcome @3 :Welcome;
    modelOpened @4 :ModelOpened;
    programDefined @5 :ProgramDefined;
    sequenceMade @6 :UInt64;  # the handle
    status @7 :StatusReport;
    sessions @8 :SessionList;
    models @9 :ModelList;
    programs @10 :ProgramList;
    devices @11 :List(DeviceReport);
    memory @12 :List(MemoryReport);
    collected @13 :Collected;
    events @14 :EventList;
    manifestPart @15 :Data;
    uses @16 :UseList;
    ownMemory @17 :OwnMemory;
    schedule @18 :ScheduleReport;
    graphPart @19 :Data;
    modelPlaced @20 :ModelPlaced;
    modelImported @21 :ModelImported;
    published @22 :PublishedList;
  }
}

struct ModelImported {
  name @0 :Text;
  bytes @1 :UInt64;
  contents @2 :Data;  # SHA-256
}

struct PublishedReport {
  name @0 :Text;
  owner @1 :Text;
  readers @2 :Text;
  bytes @3 :UInt64;
  files @4 :UInt32;
  sinceWallNs @5 :UInt64;
  contents @6 :Data;  # SHA-256
}

struct PublishedList {
  total @0 :UInt32;
  published @1 :List(PublishedReport);
}

struct ModelPlaced {
  bytes @0 :UInt64;
  uploadedBytes @1 :UInt64;
}

struct Failure {
  code @0 :UInt16;  # 0 only where messages.h lets an answer say that all went well
  message @1 :Text;
}

struct Welcome {
  session @0 :UInt64;
  stagingBytes @1 :UInt64;
  threads @2 :UInt32;
  quotaBytes @3 :UInt64;
  numerics @4 :UInt8;
}

struct ModelOpened {
  model @0 :UInt64;
  bytes @1 :UInt64;
  wasResident @2 :Bool;
  manifestBytes @3 :UInt64;
  manifest @4 :Data;
  hasNumerics @5 :Bool;
  numerics @6 :UInt8;
}

struct OutputShape {
  name @0 :Text;
  dtype @1 :UInt8;
  sizesUnknown @2 :Bool;
  sizes @3 :List(Srg.Expr);
}

struct ProgramDefined {
  program @0 :UInt64;
  wasCached @1 :Bool;
  outputs @2 :List(OutputShape);
}

struct WorkerReport {
  device @0 :Text;
  owner @1 :Text;
  pid @2 :UInt32;
  state @3 :UInt8;
  threads @4 :UInt32;
  restarts @5 :UInt32;
  landlockAbi @6 :UInt32;
  seccomp @7 :Bool;
  stats @8 :WorkerStats;
}

struct StatusReport {
  version @0 :Text;
  startedWallNs @1 :UInt64;
  memoryTotalBytes @2 :UInt64;
  memoryGrantedBytes @3 :UInt64;
  memoryModelsBytes @4 :UInt64;
  memorySessionsBytes @5 :UInt64;
  memoryLanesBytes @6 :UInt64;
  sessions @7 :UInt32;
  models @8 :UInt32;
  programs @9 :UInt32;
  descriptors @10 :UInt32;
  bytesRead @11 :UInt64;
  bufferedReads @12 :UInt64;
  workersTotal @13 :UInt32;
  workers @14 :List(WorkerReport);
  draining @15 :Bool;
  descriptorsClosing @16 :UInt32;
  comparedOpens @17 :UInt64;
  dataSessions @18 :UInt32;
  quota @19 :QuotaReport;
  settings @20 :List(SettingReport);
  usersTotal @21 :UInt32;
  users @22 :List(UserReport);
  spillFault @23 :Text;
  configRoot @24 :Text;
}

struct UserReport {
  owner @0 :Text;
  quota @1 :QuotaReport;
}

struct QuotaReport {
  isOwn @0 :Bool;
  memoryBytes @1 :UInt64;
  memoryMaxBytes @2 :UInt64;
  pinnedBytes @3 :UInt64;
  pinnedMaxBytes @4 :UInt64;
  sessions @5 :UInt32;
  sessionsMax @6 :UInt32;
  models @7 :UInt32;
  modelsMax @8 :UInt32;
}

struct SettingReport {
  key @0 :Text;
  value @1 :Text;
  reloads @2 :Bool;
}

struct SessionReport {
  session @0 :UInt64;
  clientName @1 :Text;
  owner @2 :Text;
  pid @3 :UInt32;
  startedWallNs @4 :UInt64;
  grantedBytes @5 :UInt64;
  models @6 :UInt32;
  sequences @7 :UInt32;
  steps @8 :UInt64;
  running @9 :Bool;
  state @10 :UInt8;
  wait @11 :UInt8;
  sharedBytes @12 :UInt64;
  tier @13 :UInt8;  # ipc::RunTier
  graphs @14 :UInt64;
  programs @15 :UInt64;
  generations @16 :UInt64;
  failed @17 :UInt64;
  tokens @18 :UInt64;
  planMisses @19 :UInt64;
  bytesIn @20 :UInt64;
  bytesOut @21 :UInt64;
  statedCalls @22 :List(UInt64);  # by tier
  statedLocalModels @23 :UInt64;
  device @24 :Text;
}

struct SessionList {
  total @0 :UInt32;
  sessions @1 :List(SessionReport);
}

struct ModelReport {
  model @0 :UInt64;
  label @1 :Text;
  owner @2 :Text;
  state @3 :UInt8;
  bytes @4 :UInt64;
  bytesLoaded @5 :UInt64;
  files @6 :UInt32;
  leases @7 :UInt32;
  pinned @8 :Bool;
  sha256 @9 :Data;  # 32 bytes, or none while the model is not hashed
  loadedWallNs @10 :UInt64;
  device @11 :Text;
  keepAliveMs @12 :UInt64;
  expiresWallNs @13 :UInt64;
  path @14 :Text;
  plan @15 :UInt32;
  hugeBytes @16 :UInt64;
  onGpus @17 :UInt32;  # bit n: cuda:n
  hasNumerics @18 :Bool;
  numerics @19 :UInt8;
}

struct ModelList {
  total @0 :UInt32;
  models @1 :List(ModelReport);
}

struct UseReport {
  session @0 :UInt64;  # of a hold
  owner @1 :Text;
  pid @2 :UInt32;
  clientName @3 :Text;
  kind @4 :UInt8;
  label @5 :Text;  # of a name
  path @6 :Text;  # likewise
}

struct UseList {
  total @0 :UInt32;
  uses @1 :List(UseReport);
}

struct ProgramReport {
  program @0 :UInt64;
  model @1 :UInt64;  # 0: it names no weights
  owner @2 :Text;
  device @3 :Text;
  state @4 :UInt8;
  graphBytes @5 :UInt64;
  outputs @6 :UInt32;
  sessions @7 :UInt32;
  name @8 :Text;
  workload @9 :UInt8;
  fastNodes @10 :UInt32;
}

struct ProgramList {
  total @0 :UInt32;
  programs @1 :List(ProgramReport);
}

struct DeviceReport {
  device @0 :Text;
  name @1 :Text;
  usedBytes @2 :UInt64;
  totalBytes @3 :UInt64;
  plannedBytes @4 :UInt64;
  lanes @5 :UInt32;
  state @6 :UInt8;
  hugeBytes @7 :UInt64;
  hugePages @8 :Text;
  isa @9 :Text;
  kernels @10 :KernelTable;  # null: nothing
  driver @11 :Text;
  reason @12 :Text;
  hardwareBytes @13 :UInt64;
  hardwareFreeBytes @14 :UInt64;
  uploadedBytes @15 :UInt64;
}

# Rates are 10^6 bytes, or operations, a second.
struct KernelTable {
  readMbs @0 :UInt32;
  rowMbs @1 :List(UInt32);  # of each dtype
  products @2 :List(ProductKernels);
}

struct ProductKernels {
  ownMflops @0 :UInt32;
  libraryMflops @1 :UInt32;
}

struct MemoryReport {
  device @0 :Text;
  pool @1 :UInt8;
  reservedBytes @2 :UInt64;
  mappedBytes @3 :UInt64;
  cachedBytes @4 :UInt64;
  evictableBytes @5 :UInt64;
  pinnedBytes @6 :UInt64;
}

struct OwnMemory {
  grantedBytes @0 :UInt64;
  sequenceBytes @1 :UInt64;
  sharedBytes @2 :UInt64;
  freeBytes @3 :UInt64;
  totalBytes @4 :UInt64;
}

struct ScheduleDecision {
  number @0 :UInt64;
  session @1 :UInt64;
  service @2 :UInt8;
  reason @3 :UInt8;
  agoNs @4 :UInt64;
  ready @5 :UInt64;
  lagNs @6 :Int64;
  deadlineNs @7 :Int64;
  predictedNs @8 :UInt64;
  measuredNs @9 :UInt64;
  paused @10 :UInt64;
}

struct LaneSchedule {
  policy @0 :UInt8;
  decisions @1 :List(ScheduleDecision);
}

struct ScheduleReport {
  total @0 :UInt32;
  device @1 :Text;
  owner @2 :Text;
  schedule @3 :LaneSchedule;
}

struct Collected {
  programs @0 :UInt32;
  workers @1 :UInt32;
  bytes @2 :UInt64;
}

struct EventReport {
  number @0 :UInt64;
  wallNs @1 :UInt64;
  kind @2 :UInt8;
  text @3 :Text;
  session @4 :UInt64;
  model @5 :UInt64;
  device @6 :Text;
  hasBytes @7 :Bool;
  bytes @8 :UInt64;
  error @9 :UInt16;
  hasUser @10 :Bool;
  user @11 :UInt32;
  path @12 :Text;
  reason @13 :Text;
}

struct EventList {
  last @0 :UInt64;
  missed @1 :UInt64;
  events @2 :List(EventReport);
}

# -- djinnd -> worker ----------------------------------------------------------------------------

struct WorkerCommand {
  union {
    attachSession @0 :AttachSession;
    detachSession @1 :UInt64;  # the session's id
    addModel @2 :AddModel;
    dropModel @3 :UInt64;
    addProgram @4 :AddProgram;
    dropProgram @5 :UInt64;  # the program's id
    addSequence @6 :AddSequence;
    releaseSequence @7 :SequenceName;
    grantAnswer @8 :GrantAnswer;
    giveMemory @9 :GiveMemory;
    getStats @10 :Void;
    parkModel @11 :UInt64;
    modelLost @12 :IdOutcome;
    spillSequence @13 :SequenceName;
    wakeLane @14 :Void;
    trimRefs @15 :UInt64;  # the session's id
    getSchedule @16 :Void;
    joinBaton @17 :UInt32;  # the slot
  }
}

struct AttachSession {
  session @0 :UInt64;
  stagingBytes @1 :UInt64;
  refBytesMax @2 :UInt64;
  refBytesGranted @3 :UInt64;
  sequences @4 :UInt32;
  refusal @5 :Failure;
  refChunks @6 :List(MemoryRange);
  service @7 :UInt8 = 1;  # normal
}

struct MemoryRange {
  offset @0 :UInt64;
  bytes @1 :UInt64;
}

struct AddModel {
  model @0 :UInt64;
  parked @1 :Bool;
}

struct AddProgram {
  program @0 :UInt64;
  model @1 :UInt64;
  again @2 :Bool;
}

struct SequenceName {
  session @0 :UInt64;
  sequence @1 :UInt64;
}

struct AddSequence {
  name @0 :SequenceName;
  geometry @1 :SequenceGeometry;
  bytesGranted @2 :UInt64;
  spilled @3 :Bool;
}

struct GrantAnswer {
  request @0 :UInt64;
  outcome @1 :Failure;
}

struct GiveMemory {
  request @0 :UInt64;
  bytes @1 :UInt64;
}

# -- worker -> djinnd ----------------------------------------------------------------------------

struct WorkerEvent {
  union {
    ready @0 :WorkerReady;
    attached @1 :UInt64;  # the session's id
    detached @2 :UInt64;
    modelAdded @3 :IdOutcome;
    modelDropped @4 :UInt64;  # the model's id
    programAdded @5 :ProgramAdded;
    programRefused @6 :IdOutcome;
    sequenceAdded @7 :SequenceAdded;
    sequenceDropped @8 :SequenceName;
    grantRequest @9 :GrantRequest;
    sessionBroken @10 :IdOutcome;
    stats @11 :WorkerStats;
    grantReturn @12 :GrantReturn;
    modelParked @13 :UInt64;
    modelWanted @14 :UInt64;
    sequenceSpilled @15 :SequenceSpilled;
    sequenceRestored @16 :SequenceName;
    laneAwake @17 :Void;
    programLookedAt @18 :ProgramLookedAt;
    refsTrimmed @19 :UInt64;  # the session's id
    schedule @20 :LaneSchedule;
  }
}

struct ProgramLookedAt {
  program @0 :UInt64;  # 0: none any more
  desk @1 :UInt8;
}

struct IdOutcome {
  id @0 :UInt64;
  outcome @1 :Failure;
}

struct WorkerReady {
  threads @0 :UInt32;
  landlockAbi @1 :UInt32;
  seccomp @2 :Bool;
  isa @3 :Text;
  kernels @4 :KernelTable;
}

struct ProgramAdded {
  program @0 :UInt64;
  outputs @1 :List(OutputShape);
  activationBytes @2 :UInt64;
  name @3 :Text;
  workload @4 :UInt8;
  fastNodes @5 :UInt32;
  wantsFast @6 :Bool;
}

struct SequenceAdded {
  name @0 :SequenceName;
  outcome @1 :Failure;
}

struct SequenceSpilled {
  name @0 :SequenceName;
  bytes @1 :UInt64;
  outcome @2 :Failure;
}

struct GrantRequest {
  request @0 :UInt64;
  kind @1 :UInt8;
  name @2 :SequenceName;
  bytes @3 :UInt64;
  orLess @4 :Bool;
  places @5 :List(MemoryRange);
}

struct GrantReturn {
  kind @0 :UInt8;
  name @1 :SequenceName;
  bytes @2 :UInt64;
  offset @3 :UInt64;
}

struct WorkerStats {
  slabBytes @0 :UInt64;
  runs @1 :UInt64;
  plannedRuns @2 :UInt64;
  planMisses @3 :UInt64;
  tokens @4 :UInt64;
  planRecords @5 :UInt64;
  promptTokens @6 :UInt64;
  submissions @7 :List(UInt64);  # by operation
  submissionsFailed @8 :UInt64;
  queue @9 :TimeHistogram;
  run @10 :TimeHistogram;
  firstToken @11 :TimeHistogram;
  nextToken @12 :TimeHistogram;
  bytesIn @13 :UInt64;
  bytesOut @14 :UInt64;
  runsRepeated @15 :UInt64;
  runsTogether @16 :UInt64;
  turnNs @17 :UInt64;
  overruns @18 :UInt64;
  submissionsRefused @19 :UInt64;
}

struct TimeHistogram {
  counts @0 :List(UInt64);  # one for each bucket of ipc/time_histogram.h
  sumNs @1 :UInt64;
}

# -- djinnd <-> loader ---------------------------------------------------------------------------

struct LoaderCommand {
  union {
    takeFiles @0 :TakeFiles;
    planLoad @1 :PlanLoad;
    readInto @2 :ReadInto;
    releaseFiles @3 :Void;
    compareWith @4 :CompareWith;
    takeIn @5 :TakeIn;
  }
}

struct TakeIn {
  file @0 :UInt32;
  bytes @1 :UInt64;
  isWeights @2 :Bool;
}

struct TakeFiles {
  count @0 :UInt32;
  last @1 :Bool;
}

struct PlanLoad {
  hasPlan @0 :Bool;
}

struct ReadInto {
  extents @0 :UInt32;
  hashAtOnce @1 :Bool;
}

struct CompareWith {
  extents @0 :UInt32;
  seed @1 :UInt64;
}

struct LoaderEvent {
  union {
    ready @0 :LoaderReady;
    identified @1 :Identified;
    planned @2 :List(UInt64);  # bytes of each extent
    progress @3 :UInt64;       # bytes read so far
    loaded @4 :Loaded;
    hashed @5 :Data;  # SHA-256
    failed @6 :Failure;
    compared @7 :Bool;
    takenIn @8 :Data;  # SHA-256
  }
}

struct LoaderReady {
  landlockAbi @0 :UInt32;
  seccomp @1 :Bool;
}

struct FileIdentity {
  deviceMajor @0 :UInt32;
  deviceMinor @1 :UInt32;
  inode @2 :UInt64;
  bytes @3 :UInt64;
  mtimeNs @4 :Int64;
  ctimeNs @5 :Int64;
  onBlockDevice @6 :Bool;
  content @7 :Data;  # 32 bytes, or none: SHA-256 of a file that cannot change
  unwritten @8 :Bool;
}

struct Identified {
  files @0 :List(FileIdentity);
  nowNs @1 :Int64;
}

struct Loaded {
  bytesRead @0 :UInt64;
  bufferedReads @1 :UInt64;
  hugeBytes @2 :UInt64;
}

# --- from one djinnd to the next

struct KeptModel {
  format @0 :UInt32;  # another number: of a djinnd that is no predecessor
  boot @1 :Text;
  id @2 :UInt64;
  domain @3 :UInt64;
  label @4 :Text;
  planHash @5 :Data;
  files @6 :List(FileIdentity);
  readAtNs @7 :Int64;
  extentBytes @8 :List(UInt64);
  pinnedBy @9 :List(UInt64);
  sha256 @10 :Data;  # or none
  loadedWallNs @11 :UInt64;
  hasPlan @12 :Bool;
  keepAlives @13 :List(KeptKeepAlive);
  path @14 :Text;
  names @15 :List(KeptName);
  device @16 :Text;
  hugeBytes @17 :UInt64;
  numerics @18 :List(KeptNumerics);
}

struct KeptName {
  user @0 :UInt64;
  label @1 :Text;
  path @2 :Text;
}

struct KeptKeepAlive {
  user @0 :UInt64;
  given @1 :Bool;  # else as djinnd is configured
  ms @2 :UInt64;
}

struct KeptNumerics {
  user @0 :UInt64;
  numerics @1 :UInt8;
}

# -- djinnd <-> mover ----------------------------------------------------------------------------

struct MoverOrder {
  number @0 :UInt32;
  union {
    createExtent @1 :UInt64;  # bytes
    zeroExtent @2 :UInt64;    # likewise
    uploadExtent @3 :UploadExtent;
    checksumExtent @4 :ChecksumExtent;
    measureDevice @5 :Void;
  }
}

struct UploadExtent {
  bytes @0 :UInt64;
  ranges @1 :List(UploadRange);
}

struct UploadRange {
  from @0 :UInt64;
  to @1 :UInt64;
  bytes @2 :UInt64;
}

struct ChecksumExtent {
  bytes @0 :UInt64;
  key @1 :Checksum;
}

# Two words: of a key, or of what it gives.
struct Checksum {
  first @0 :UInt64;
  second @1 :UInt64;
}

struct MoverEvent {
  number @0 :UInt32;  # of the order that it answers; 0: none
  union {
    ready @1 :MoverReady;
    failed @2 :Failure;
    done @3 :Void;
    checksummed @4 :Checksum;
    measured @5 :DeviceMeasure;
  }
}

struct MoverReady {
  landlockAbi @0 :UInt32;
  seccomp @1 :Bool;
  name @2 :Text;
  uuid @3 :Text;
  driver @4 :Text;
  granularityBytes @5 :UInt64;
  minor @6 :UInt32 = 0xffffffff;  # of its node; that: not known
}

struct DeviceMeasure {
  freeBytes @0 :UInt64;
  totalBytes @1 :UInt64;
  xid @2 :UInt32;
}
