// SPDX-License-Identifier: Apache-2.0

#include "ipc/codec/control_codec.h"

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>
#include <string>

#include "ipc/codec/djinn.capnp.h"
#include "ipc/codec/mover_codec.h"
#include "kernel/base/random.h"

namespace djinn::ipc {
namespace {

using Bytes = std::vector<std::byte>;

// --- one example of every message, with no field at its default and no two alike

const std::string kName = "großer Name";
const std::string kLongest(limits::kNameBytes, 'n');

OutputShape shape(const std::string& name) {
  OutputShape out{name, DType::kBFloat16, false, {}};
  srg::Expr expr(7);
  expr.terms = {{1, -2}, {5, 3}};
  out.sizes = {srg::Expr(4), expr};
  return out;
}

SequenceGeometry geometry() {
  return {2, 3, 4, 5, DType::kFloat16, 6, 2};
}

std::vector<ClientRequest> requests() {
  return {
      {1, Hello{9, kName, 2, true}},
      {2, AddFiles{3}},
      {26, AddFiles{2, {"a.safetensors", kName}}},
      {3, OpenModel{kName, true, true}},
      {4, CloseModel{{UINT64_MAX}}},
      {5, UnloadModel{{6}}},
      {6, DefineProgram{{7}}},
      {7, MakeSequence{geometry()}},
      {8, DropSequence{{0xfffffffe, 0xfffffffd}}},
      {9, GetStatus{10}},
      {10, ListSessions{11}},
      {UINT32_MAX, ListModels{12}},
      {12, ListPrograms{13}},
      {13, ListDevices{}},
      {14, ListMemory{}},
      {15, PinModel{{16}, true}},
      {16, CancelRun{{17}}},
      {17, TerminateSession{{18}}},
      {18, OpenModel{kName, false, false, kKeepForever, kName}},
      {31, OpenModel{kName, false, true, 32, kName, true, srg::Numerics::kFastOnly}},
      {32, OpenModel{kName, false, false, {}, kName, false, srg::Numerics::kExact}},
      {34, OpenModel{kName, false, false, {}, {}, false, {}, kName}},
      {35, ImportModel{kName}},
      {36, ListPublished{37}},
      {37, RemovePublished{kName}},
      {19, EvictModel{{20}, Tier::kHost, true}},
      {24, EvictModel{{25}, Tier::kDisk, false, true}},
      {20, SetDraining{true}},
      {21, CollectGarbage{}},
      {22, FollowEvents{23, true}},
      {23, ReadManifest{{24}, 25}},
      {27, ReadGraph{{28}, 29}},
      {25, ListUses{{26}, 27}},
      {26, GetOwnMemory{}},
      {27, DropPrograms{{{28}, {UINT64_MAX}}}},
      {28, Hello{9, kName, 2, false, "cpu:0", ServiceClass::kIdle}},
      {29, GetSchedule{{30}, 31}},
      {30, PlaceModel{{31}, "cuda:0"}},
      {33, Hello{9, kName, 2, false, "", ServiceClass::kBatch, "spiffe://lab/ann"}},
  };
}

LaneSchedule schedule() {
  return {SchedulePolicy::kFifo,
          {{1, {2}, ServiceClass::kBatch, PickReason::kArrival, 3, 4, -5, -6, 7, 8, {9}},
           ScheduleDecision{}}};
}

ScheduleDecision fullest_decision() {
  return {UINT64_MAX, {UINT64_MAX}, ServiceClass::kIdle, PickReason::kSlice,
          UINT64_MAX, UINT64_MAX,   INT64_MIN,           INT64_MIN,
          UINT64_MAX, UINT64_MAX,   {UINT64_MAX}};
}

WorkerReport worker_report(const std::string& name) {
  return {name, name, 2, WorkerState::kRecovering, 3, 4, 5, true, 6, 7, 8, 9, 10, 11};
}
SessionReport session_report(const std::string& name) {
  return {{1},
          name,
          name,
          2,
          3,
          4,
          5,
          6,
          7,
          true,
          SessionState::kLost,
          SessionWait::kClient,
          8,
          {RunTier::kGeneration, 9, 10, 11, 12, 13, 14, 15, 16},
          {{17, 18, 19}, 20}};
}
ModelReport model_report(const std::string& name) {
  ModelReport report{
      {1}, name, name, ModelState::kDisk,   2, 3, 4, 5, true, true, {}, 6, "cpu:0", 7, 8, name,
      9,   10,   11,   srg::Numerics::kFast};
  report.sha256.fill(0xab);
  return report;
}
UseReport use_report(const std::string& name) {
  return {UseKind::kPin, name, {1}, 2, name, "tiny", "/tiny"};
}
std::array<uint8_t, 32> sha256(uint8_t fill) {
  std::array<uint8_t, 32> hash{};
  hash.fill(fill);
  return hash;
}
PublishedReport published_report(const std::string& name) {
  return {name, name, name, 1, 2, 3, sha256(4)};
}
UseReport longest_name() {
  return {UseKind::kName, kLongest, {}, 0, {}, kLongest, kLongest};
}
ProgramReport program_report(const std::string& name) {
  return {{1}, {2}, name, "cpu:0", ProgramState::kAdmitted, 3, 4, 5, name, Workload::kTraining, 6};
}
KernelTable kernel_table() {
  KernelTable table{1, {2, 3, 4}, {}};
  for (uint32_t next = 5; ProductKernels & product : table.products) {
    product = {next, next + 1};
    next += 2;
  }
  return table;
}
DeviceReport device_report(const std::string& name) {
  const std::string word = name.substr(0, limits::kWordBytes);
  return {name,           name, 1,    2, 3, 4, DeviceState::kLost, 5, word, word,
          kernel_table(), word, name, 6, 7, 8};
}
MemoryReport memory_report(const std::string& name) {
  return {name, MemoryPool::kLanes, 1, 2, 3, 4, 5};
}

EventReport event_report(const std::string& text) {
  return {1,       2, EventKind::kModelEvicted, text, {3},  {4},
          "cpu:0", 5, ErrorCode::kOutOfMemory,  1000, text, "Reasons."};
}

// As many as a page may hold, with as much text.
EventList fullest_events() {
  EventList list{0, 0, {limits::kListPage, event_report("")}};
  for (EventReport& event : list.events) {
    const std::string part(limits::kEventTextBytes / limits::kListPage / 4, 'x');
    event.text = event.path = event.device = event.reason = part;
  }
  return list;
}

StatusReport status_report(size_t workers, const std::string& name) {
  StatusReport report;
  report.version = name;
  report.started_wall_ns = 1;
  report.memory_total_bytes = 2;
  report.memory_granted_bytes = 3;
  report.memory_models_bytes = 4;
  report.memory_sessions_bytes = 5;
  report.memory_lanes_bytes = 6;
  report.sessions = 7;
  report.models = 8;
  report.programs = 9;
  report.descriptors = 10;
  report.bytes_read = 11;
  report.buffered_reads = 12;
  report.workers_total = 13;
  report.workers = {workers, worker_report(name)};
  report.draining = true;
  report.data_sessions = 14;
  report.quota = {true, 15, 16, 17, 18, 19, 20};
  report.settings = {{name, name}, {"memory.limit", "80%"}};
  report.users_total = 21;
  report.users = {workers, {name, report.quota}};
  report.spill_fault = std::string(name == kLongest ? limits::kMessageTextBytes : 1, 'x');
  report.config_root = name;
  return report;
}

std::vector<DaemonReply> replies() {
  return {
      {1, Done{}},
      {0, Failed{ErrorCode::kQuotaExceeded, "Too much."}},
      {2, Failed{static_cast<ErrorCode>(799), "From a newer daemon."}},
      {3, Welcome{{4}, 5, 6, 7, srg::Numerics::kFast}},
      {4, ModelOpened{{5}, 6, true, 7, Bytes(9, std::byte{8})}},
      {4, ModelOpened{{5}, 6, true, 7, Bytes(9, std::byte{8}), srg::Numerics::kExact}},
      {5, ProgramDefined{{6}, true, {shape("a"), shape("b")}}},
      {6, SequenceMade{{7, 8}}},
      {7, status_report(2, kName)},
      {8, SessionList{99, {session_report("a"), session_report("b")}}},
      {9, ModelList{98, {model_report("a"), ModelReport{}}}},
      {10, ProgramList{97, {program_report("a"), ProgramReport{}}}},
      {11, DeviceList{{device_report("a"), DeviceReport{}}}},
      {12, MemoryList{{memory_report("a"), MemoryReport{}}}},
      {13, Collected{1, 2, 3}},
      {14, EventList{5, 6, {event_report("a"), EventReport{}}}},
      {15, ManifestPart{Bytes(9, std::byte{8})}},
      {16, GraphPart{Bytes(7, std::byte{6})}},
      {17, ModelPlaced{18, 19}},
      {18, ModelImported{kName, 19, sha256(20)}},
      {19, PublishedList{95, {published_report("a"), PublishedReport{}}}},
      {16, UseList{96, {use_report("a"), UseReport{}}}},
      {17, OwnMemory{1, 2, 3, 4, 5}},
      {18, ScheduleReport{2, "cpu:0", kName, schedule()}},
  };
}

std::vector<WorkerCommand> commands() {
  return {
      {AttachSession{{1}, 2, 3, {}, 4, 5, ErrorCode::kOk, ""}},
      {AttachSession{{1}, 2, 3, {{4, 5}, {6, 7}}, 4, 5, ErrorCode::kTimeout, "Too long."}},
      {AttachSession{{1}, 2, 3, {}, 4, 5, ErrorCode::kOk, "", ServiceClass::kInteractive}},
      {DetachSession{{5}}},
      {GetLaneSchedule{}},
      {AddModel{{6}, true}},
      {DropModel{{7}}},
      {AddProgram{{8}, {9}, true}},
      {DropProgram{{10}}},
      {AddSequence{{11}, {12, 13}, geometry(), 14, true}},
      {SpillSequence{{15}, {16, 17}}},
      {TrimRefs{{18}}},
      {ReleaseSequence{{15}, {16, 17}}},
      {GrantAnswer{18, ErrorCode::kOk, ""}},
      {GrantAnswer{19, ErrorCode::kQuotaExceeded, "No."}},
      {GiveMemory{20, 21}},
      {GetWorkerStats{}},
      {WakeLane{}},
      {JoinBaton{63}},
      {ParkModel{{22}}},
      {ModelLost{{23}, ErrorCode::kIo, "Gone."}},
  };
}

WorkerStats worker_stats() {
  WorkerStats stats{27, 28, 29, 30, 26, 31, 32, 33, {34}, 35};
  stats.submissions.back() = 36;
  uint64_t next = 37;
  for (TimeHistogram* times : {&stats.queue, &stats.run, &stats.first_token, &stats.next_token}) {
    for (uint64_t& count : times->counts) count = next++;
    times->sum_ns = next++;
  }
  stats.bytes_in = next++;
  stats.bytes_out = next++;
  stats.turn_ns = next++;
  stats.overruns = next++;
  stats.submissions_refused = next++;
  return stats;
}

std::vector<WorkerEvent> events() {
  return {
      {WorkerReady{1, 2, true, "avx2"}},
      {WorkerReady{1, 2, true, "avx2", kernel_table()}},
      {Attached{{3}}},
      {Detached{{4}}},
      {ModelAdded{{5}, ErrorCode::kOk, ""}},
      {ModelAdded{{6}, ErrorCode::kIo, "Gone."}},
      {ModelDropped{{7}}},
      {ProgramAdded{{8}, {shape("a")}, 9, "bert", Workload::kTextEncoder, 7, true}},
      {ProgramRefused{{10}, ErrorCode::kUnsupported, "Unknown operator."}},
      {SequenceAdded{{11}, {12, 13}, ErrorCode::kOutOfMemory, "Full."}},
      {SequenceDropped{{14}, {15, 16}}},
      {GrantRequest{17, GrantKind::kSlab, {18}, {19, 20}, 21, false, {}}},
      {GrantRequest{17, GrantKind::kHeap, {}, {}, 21, true, {}}},
      {GrantRequest{17, GrantKind::kRefs, {18}, {}, 21, false, {{22, 23}, {24, 25}}}},
      {GrantReturn{GrantKind::kSequence, {22}, {23, 24}, 25, 0}},
      {GrantReturn{GrantKind::kRefs, {22}, {}, 25, 26}},
      {SessionBroken{{26}, ErrorCode::kProtocolViolation, "Index out of range."}},
      {worker_stats()},
      {ModelParked{{32}}},
      {ModelWanted{{33}}},
      {ProgramLookedAt{{34}, AdmissionDesk::kLong}},
      {SequenceSpilled{{34}, {35, 36}, 37, ErrorCode::kIo, "Full."}},
      {RefsTrimmed{{38}}},
      {SequenceRestored{{38}, {39, 40}}},
      {LaneAwake{}},
      {schedule()},
  };
}

std::vector<LoaderCommand> loader_commands() {
  return {{TakeFiles{64, true}}, {PlanLoad{true}},    {ReadInto{3, true}},
          {ReleaseFiles{}},      {CompareWith{3, 9}}, {TakeIn{4, 5, true}}};
}

std::vector<LoaderEvent> loader_events() {
  Hashed hashed;
  hashed.sha256.fill(0x5a);
  FileIdentity identity{1, 2, 3, 4, -5, std::numeric_limits<int64_t>::min(), true};
  identity.content.emplace().fill(0x3c);
  identity.unwritten = true;
  return {
      {LoaderReady{6, true}},
      {Identified{{identity, {}}, -7}},
      {Planned{{8, 9}}},
      {Progress{10}},
      {Loaded{11, 12, 13}},
      {hashed},
      {LoadFailed{ErrorCode::kMalformed, "Not safetensors."}},
      {Compared{true}},
      {TakenIn{sha256(0x5b)}},
  };
}

std::vector<MoverOrder> mover_orders() {
  return {{1, CreateExtent{2}},
          {2, ZeroExtent{3}},
          {3, UploadExtent{4, {{5, 6, 7}, {}}}},
          {4, ChecksumExtent{8, {9, 10}}},
          {5, MeasureDevice{}}};
}

std::vector<MoverEvent> mover_events() {
  return {{0, MoverReady{6, true, "A GPU", "GPU-1", "580.1", 7, 8}},
          {0, MoverReady{6, true, "A GPU", "GPU-1", "580.1", 7}},
          {0, OrderFailed{ErrorCode::kNotFound, "No driver."}},
          {1, OrderDone{}},
          {2, Checksummed{{3, 4}}},
          {5, DeviceMeasured{6, 7, 79}}};
}

// --- properties of every kind of message

template <typename Message>
using Decode = Result<Message> (*)(std::span<const std::byte>);

template <typename Message>
void expect_every_alternative(const std::vector<Message>& examples) {
  std::vector<bool> seen(std::variant_size_v<decltype(Message::body)>);
  for (const Message& example : examples) seen[example.body.index()] = true;
  EXPECT_THAT(seen, testing::Each(true));
}

template <typename Message>
void expect_round_trips(const std::vector<Message>& examples, Decode<Message> decode) {
  expect_every_alternative(examples);
  for (const Message& example : examples) {
    const Bytes bytes = encode(example);
    const auto decoded = decode(bytes);
    ASSERT_TRUE(decoded) << example.body.index() << ": " << decoded.error().message;
    ASSERT_TRUE(*decoded == example) << example.body.index();
    ASSERT_EQ(encode(*decoded), bytes);
  }
}

template <typename Message>
void expect_all_lengths_refused(const std::vector<Message>& examples, Decode<Message> decode) {
  for (const Message& example : examples) {
    Bytes bytes = encode(example);
    for (size_t length = 0; length < bytes.size(); ++length) {
      const Bytes cut(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(length));
      ASSERT_FALSE(decode(cut)) << length << " of " << bytes.size();
    }
    bytes.resize(bytes.size() + 8);
    ASSERT_EQ(decode(bytes).error().code, ErrorCode::kMalformed);
  }
}

void mutate(Bytes& bytes, Random& random) {
  for (uint64_t i = 0; i <= random.below(4); ++i) {
    bytes[random.below(bytes.size())] = static_cast<std::byte>(random.next());
  }
}

template <typename Message>
void expect_mutations_harmless(const std::vector<Message>& examples, Decode<Message> decode) {
  Random random(1);
  for (const Message& example : examples) {
    const Bytes good = encode(example);
    for (int i = 0; i < 1500; ++i) {
      Bytes bytes = good;
      mutate(bytes, random);
      const auto decoded = decode(bytes);
      if (decoded) {
        const auto again = decode(encode(*decoded));
        ASSERT_TRUE(again) << "what was decoded must be within the limits";
        ASSERT_TRUE(*again == *decoded);
      } else {
        ASSERT_THAT(decoded.error().code,
                    testing::AnyOf(ErrorCode::kMalformed, ErrorCode::kLimitExceeded,
                                   ErrorCode::kUnsupported));
      }
    }
  }
}

template <typename Message>
void expect_codec(const std::vector<Message>& examples, Decode<Message> decode) {
  expect_round_trips(examples, decode);
  expect_all_lengths_refused(examples, decode);
  expect_mutations_harmless(examples, decode);
}

TEST(ControlCodec, client_requests_survive_the_wire) {
  expect_codec(requests(), decode_client_request);
}
TEST(ControlCodec, daemon_replies_survive_the_wire) {
  expect_codec(replies(), decode_daemon_reply);
}
TEST(ControlCodec, worker_commands_survive_the_wire) {
  expect_codec(commands(), decode_worker_command);
}
TEST(ControlCodec, worker_events_survive_the_wire) {
  expect_codec(events(), decode_worker_event);
}
TEST(ControlCodec, loader_commands_survive_the_wire) {
  expect_codec(loader_commands(), decode_loader_command);
}
TEST(ControlCodec, loader_events_survive_the_wire) {
  expect_codec(loader_events(), decode_loader_event);
}

TEST(ControlCodec, mover_orders_survive_the_wire) {
  expect_codec(mover_orders(), decode_mover_order);
}
TEST(ControlCodec, mover_events_survive_the_wire) {
  expect_codec(mover_events(), decode_mover_event);
}

TEST(ControlCodec, the_largest_upload_fits_a_message_and_a_larger_one_is_refused) {
  UploadExtent upload{1, {kUploadRanges, UploadRange{2, 3, 4}}};
  const Bytes bytes = encode(MoverOrder{1, upload});
  EXPECT_LE(bytes.size(), limits::kControlMessageBytes);
  EXPECT_TRUE(decode_mover_order(bytes));
  upload.ranges.emplace_back();
  EXPECT_EQ(decode_mover_order(encode(MoverOrder{1, upload})).error().code,
            ErrorCode::kLimitExceeded);
}

TEST(ControlCodec, noise_of_any_length_is_refused_or_decoded_but_never_worse) {
  Random random(2);
  for (int i = 0; i < 5000; ++i) {
    Bytes bytes(8 * random.below(32));
    for (std::byte& byte : bytes) {
      byte = static_cast<std::byte>(random.below(3) == 0 ? random.next() : 0);
    }
    (void)decode_client_request(bytes);
    (void)decode_daemon_reply(bytes);
    (void)decode_worker_command(bytes);
    (void)decode_worker_event(bytes);
    (void)decode_loader_command(bytes);
    (void)decode_loader_event(bytes);
    (void)decode_mover_order(bytes);
    (void)decode_mover_event(bytes);
    (void)number_of_request(bytes);
  }
}

TEST(ControlCodec, bytes_need_not_be_aligned) {
  for (const ClientRequest& request : requests()) {
    Bytes bytes = encode(request);
    bytes.insert(bytes.begin(), std::byte{1});
    EXPECT_TRUE(decode_client_request(std::span(bytes).subspan(1)));
  }
}

// --- sizes and limits

template <typename Message>
ErrorCode code_of(const Result<Message>& result) {
  return result ? ErrorCode::kOk : result.error().code;
}

TEST(ControlCodec, a_full_page_with_the_longest_names_fits_a_message) {
  const DaemonReply full[] = {
      {1, SessionList{0, {limits::kListPage, session_report(kLongest)}}},
      {2, ModelList{0, {limits::kListPage, model_report(kLongest)}}},
      {3, status_report(limits::kListPage / 2, kLongest)},  // and as many users
      {4, ProgramList{0, {limits::kListPage, program_report(kLongest)}}},
      {5, DeviceList{{limits::kDevices, device_report(kLongest)}}},
      {6, MemoryList{{limits::kListPage, memory_report(kLongest)}}},
      {7, fullest_events()},
      {8, UseList{0, {limits::kListPage, use_report(kLongest)}}},
      {8, UseList{0, {limits::kListPage, longest_name()}}},
      {8, ScheduleReport{0, kLongest, kLongest, {{}, {limits::kDecisions, fullest_decision()}}}},
      {8, ModelOpened{{1}, 2, true, 3, Bytes(limits::kManifestPartBytes)}},
      {9, ManifestPart{Bytes(limits::kManifestPartBytes)}},
      {10, GraphPart{Bytes(limits::kGraphPartBytes)}},
  };
  for (const DaemonReply& reply : full) {
    const Bytes bytes = encode(reply);
    EXPECT_LE(bytes.size(), limits::kControlMessageBytes);
    EXPECT_TRUE(decode_daemon_reply(bytes));
  }
}

FileIdentity longest_identity() {
  FileIdentity identity;
  identity.content.emplace();
  return identity;
}

TEST(ControlCodec, the_largest_identities_and_plans_fit_a_message) {
  const LoaderEvent full[] = {{Identified{std::vector(limits::kModelFiles, longest_identity()), 0}},
                              {Planned{std::vector<uint64_t>(limits::kModelExtents)}}};
  for (const LoaderEvent& event : full) {
    EXPECT_LE(encode(event).size(), limits::kControlMessageBytes);
    EXPECT_TRUE(decode_loader_event(encode(event)));
  }
}

TEST(ControlCodec, lists_and_names_over_their_limit_are_refused) {
  constexpr ErrorCode kOver = ErrorCode::kLimitExceeded;
  const std::string long_name = kLongest + "n";
  EXPECT_EQ(code_of(decode_client_request(encode(ClientRequest{1, Hello{1, long_name, 0, true}}))),
            kOver);
  EXPECT_EQ(code_of(decode_client_request(encode(ClientRequest{1, OpenModel{long_name, {}, {}}}))),
            kOver);
  const Hello of_a_principal{1, "", 0, true, "", ServiceClass::kNormal, long_name};
  EXPECT_EQ(code_of(decode_client_request(encode(ClientRequest{1, of_a_principal}))), kOver);
  EXPECT_EQ(code_of(decode_daemon_reply(
                encode(DaemonReply{1, SessionList{0, {limits::kListPage + 1, SessionReport{}}}}))),
            kOver);
  EXPECT_EQ(code_of(decode_daemon_reply(
                encode(DaemonReply{1, ModelList{0, {limits::kListPage + 1, ModelReport{}}}}))),
            kOver);
  EXPECT_EQ(code_of(decode_daemon_reply(
                encode(DaemonReply{1, status_report(limits::kListPage + 1, "")}))),
            kOver);
  EXPECT_EQ(code_of(decode_daemon_reply(
                encode(DaemonReply{1, ProgramList{0, {limits::kListPage + 1, ProgramReport{}}}}))),
            kOver);
  EXPECT_EQ(code_of(decode_daemon_reply(
                encode(DaemonReply{1, UseList{0, {limits::kListPage + 1, UseReport{}}}}))),
            kOver);
  EXPECT_EQ(code_of(decode_daemon_reply(
                encode(DaemonReply{1, DeviceList{{limits::kDevices + 1, DeviceReport{}}}}))),
            kOver);
  EXPECT_EQ(code_of(decode_daemon_reply(
                encode(DaemonReply{1, MemoryList{{limits::kListPage + 1, MemoryReport{}}}}))),
            kOver);
  EXPECT_EQ(code_of(decode_loader_event(
                encode(LoaderEvent{Identified{{limits::kModelFiles + 1, FileIdentity{}}, 0}}))),
            kOver);
  EXPECT_EQ(code_of(decode_loader_event(
                encode(LoaderEvent{Planned{std::vector<uint64_t>(limits::kModelExtents + 1)}}))),
            kOver);
  OutputShape deep = shape("deep");
  deep.sizes.resize(limits::kRank + 1);
  EXPECT_EQ(code_of(decode_worker_event(encode(WorkerEvent{ProgramAdded{{1}, {deep}, 0}}))), kOver);
  const std::vector<OutputShape> many(limits::kProgramOutputs + 1);
  EXPECT_EQ(code_of(decode_worker_event(encode(WorkerEvent{ProgramAdded{{1}, many, 0}}))), kOver);
  EXPECT_EQ(code_of(decode_client_request(Bytes(limits::kControlMessageBytes + 8))), kOver);
}

TEST(ControlCodec, a_name_is_made_showable_by_replacing_what_is_not) {
  EXPECT_EQ(showable_name("größer"), "größer");
  EXPECT_EQ(showable_name("red\x1b[31m\n"), "red?[31m?");
  EXPECT_EQ(showable_name("\xc2\x9b\xff"), "??");
  EXPECT_EQ(showable_name("a\u202egpj\u2066b\u2028c"), "a?gpj?b?c");
  EXPECT_EQ(showable_name("a\u2027\u202f\u2065\u206a"), "a\u2027\u202f\u2065\u206a");
  EXPECT_EQ(showable_name(kLongest + "n"), kLongest);
  // It never ends inside a character.
  EXPECT_EQ(showable_name(kLongest.substr(1) + "ö"), kLongest.substr(1));
}

TEST(ControlCodec, names_that_no_terminal_should_see_are_refused) {
  const auto code = [](const std::string& name) {
    return code_of(decode_client_request(encode(ClientRequest{1, Hello{1, name, 0, true}})));
  };
  for (const char* good : {"", "plain", "größer", "日本語", "😀", "\xf4\x8f\xbf\xbf", "\xc2\xa0"}) {
    EXPECT_EQ(code(good), ErrorCode::kOk) << good;
  }
  const std::string bad[] = {"\x1b[2J",
                             "line\nbreak",
                             "\x7f",
                             "\xc2\x9b",
                             "\xc0\xaf",
                             "\xe0\x9f\xbf",
                             "\xed\xa0\x80",
                             "\xf4\x90\x80\x80",
                             "\xf0\x8f\xbf\xbf",
                             "\xc3",
                             "\xe2\x82",
                             "\x80",
                             "\xff",
                             std::string("\0", 1),
                             "\u202e",
                             "\u2069",
                             "\u2028"};
  for (const std::string& name : bad) {
    EXPECT_EQ(code(name), ErrorCode::kMalformed) << testing::PrintToString(name);
    EXPECT_EQ(code(showable_name("a" + name + "b")), ErrorCode::kOk)
        << testing::PrintToString(name);
  }
}

TEST(ControlCodec, a_long_error_text_is_cut_between_characters) {
  std::string text(limits::kMessageTextBytes - 1, 'x');
  const DaemonReply reply{1, Failed{ErrorCode::kIo, text + "äöü"}};
  const DaemonReply cut{1, Failed{ErrorCode::kIo, text}};
  EXPECT_TRUE(decode_daemon_reply(encode(reply)).value() == cut);
}

TEST(ControlCodec, a_failure_without_an_error_code_is_refused) {
  constexpr ErrorCode kBad = ErrorCode::kMalformed;
  EXPECT_EQ(code_of(decode_daemon_reply(encode(DaemonReply{1, Failed{ErrorCode::kOk, ""}}))), kBad);
  EXPECT_EQ(code_of(decode_loader_event(encode(LoaderEvent{LoadFailed{ErrorCode::kOk, ""}}))),
            kBad);
  EXPECT_EQ(
      code_of(decode_worker_event(encode(WorkerEvent{ProgramRefused{{1}, ErrorCode::kOk, ""}}))),
      kBad);
  EXPECT_EQ(
      code_of(decode_worker_event(encode(WorkerEvent{SessionBroken{{1}, ErrorCode::kOk, ""}}))),
      kBad);
}

TEST(ControlCodec, sizes_that_are_not_canonical_are_refused) {
  const std::vector<std::vector<srg::Term>> bad = {
      {{1, 0}}, {{2, 1}, {1, 1}}, {{1, 1}, {1, 1}}, {{limits::kSymbols, 1}}};
  for (const auto& terms : bad) {
    OutputShape output = shape("a");
    output.sizes[0].terms = terms;
    EXPECT_EQ(code_of(decode_worker_event(encode(WorkerEvent{ProgramAdded{{1}, {output}, 0}}))),
              ErrorCode::kMalformed);
  }
}

// --- what only another version sends

Bytes bytes_of(capnp::MessageBuilder& message) {
  const auto words = capnp::messageToFlatArray(message);
  const auto* begin = reinterpret_cast<const std::byte*>(words.begin());
  return {begin, begin + words.size() * sizeof(capnp::word)};
}

// The same message with the tag 999 in its union.
Bytes with_unknown_tag(Bytes bytes, size_t tag_at) {
  const uint16_t tag = 999;
  std::memcpy(bytes.data() + tag_at, &tag, sizeof tag);
  return bytes;
}

TEST(ControlCodec, union_members_of_another_version_are_unsupported) {
  // A segment table of one word, a root pointer of one word, then the struct's data: the tag comes
  // first, or behind the 32-bit number.
  constexpr size_t kRoot = 16;
  constexpr ErrorCode kNew = ErrorCode::kUnsupported;
  for (const ClientRequest& request : requests()) {
    const Bytes bytes = with_unknown_tag(encode(request), kRoot + 4);
    EXPECT_EQ(code_of(decode_client_request(bytes)), kNew);
    EXPECT_EQ(number_of_request(bytes), request.number);
  }
  EXPECT_EQ(code_of(decode_daemon_reply(with_unknown_tag(encode(replies()[3]), kRoot + 4))), kNew);
  EXPECT_EQ(code_of(decode_worker_command(with_unknown_tag(encode(commands()[0]), kRoot))), kNew);
  EXPECT_EQ(code_of(decode_worker_event(with_unknown_tag(encode(events()[0]), kRoot))), kNew);
  EXPECT_EQ(code_of(decode_loader_command(with_unknown_tag(encode(loader_commands()[0]), kRoot))),
            kNew);
  EXPECT_EQ(code_of(decode_loader_event(with_unknown_tag(encode(loader_events()[0]), kRoot))),
            kNew);
}

TEST(ControlCodec, enumerators_of_another_version_are_unsupported) {
  capnp::MallocMessageBuilder make;
  make.initRoot<wire::ClientRequest>().initMakeSequence().setDtype(18);
  EXPECT_EQ(code_of(decode_client_request(bytes_of(make))), ErrorCode::kUnsupported);
  capnp::MallocMessageBuilder models;
  models.initRoot<wire::DaemonReply>().initModels().initModels(1)[0].setState(6);
  EXPECT_EQ(code_of(decode_daemon_reply(bytes_of(models))), ErrorCode::kUnsupported);
  for (const uint8_t kind : {0, 5}) {
    capnp::MallocMessageBuilder grant;
    grant.initRoot<wire::WorkerEvent>().initGrantRequest().setKind(kind);
    EXPECT_EQ(code_of(decode_worker_event(bytes_of(grant))), ErrorCode::kUnsupported);
  }
}

TEST(ControlCodec, a_hash_of_another_length_is_refused) {
  capnp::MallocMessageBuilder hashed;
  hashed.initRoot<wire::LoaderEvent>().initHashed(31);
  EXPECT_EQ(code_of(decode_loader_event(bytes_of(hashed))), ErrorCode::kMalformed);
}

TEST(ControlCodec, a_refused_request_still_tells_its_number_if_it_can_be_read) {
  const Bytes bytes = encode(ClientRequest{77, OpenModel{kLongest + "n", false, false}});
  ASSERT_FALSE(decode_client_request(bytes));
  EXPECT_EQ(number_of_request(bytes), 77u);
  EXPECT_EQ(number_of_request(Bytes(24, std::byte{0xff})), 0u);
  EXPECT_EQ(number_of_request({}), 0u);
}

}  // namespace
}  // namespace djinn::ipc
