// SPDX-License-Identifier: Apache-2.0

// What principals may, verb by verb, and what of others' they see: a row for each request that
// there is. Local users are users of one djinnd as ever; here one is its admin.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "daemon/djinnd/testing/test_daemon.h"

namespace djinn::daemon {
namespace {

using ::testing::HasSubstr;
using testing::TestClient;
using testing::TestDaemon;

constexpr const char* kAnn = "spiffe://lab/ann";
constexpr const char* kBen = "spiffe://lab/ben";
constexpr const char* kLocal = "";

constexpr ipc::SequenceGeometry kGeometry{1, 1, 1, 8, DType::kFloat32, 16};

using Body = decltype(ipc::ClientRequest::body);

// A session of somebody's with all that one can name.
struct Theirs {
  TestClient client;
  SessionId session;
  ModelId model;
  ProgramId program;
  SequenceHandle sequence;
  std::string name;  // of a model in the store, once they publish()

  Theirs(const TestDaemon& daemon, const std::string& who)
      : client(daemon, who), session(client.greet().session) {
    const char fill = who.empty() ? 'x' : who[who.size() - 3];  // nobody has others' bytes
    const Fd file = testing::model_file(daemon.directory(), 64, fill);
    model = testing::open_model(client, file, {"of " + who}).model;
    program = client.ask<ipc::ProgramDefined>(ipc::DefineProgram{}, {testing::program("y").get()})
                  .program;
    sequence = client.ask<ipc::SequenceMade>(ipc::MakeSequence{kGeometry}).sequence;
  }
  // An admin's is for all users of the machine, a principal's for themselves.
  void publish(const TestDaemon& daemon, const std::string& who) {
    const Fd file = testing::model_file(daemon.directory(), 64, 'p');
    client.ask<ipc::Done>(ipc::AddFiles{1, {"model.safetensors"}}, {file.get()});
    name = fmt::format("{}:{}", who.empty() ? "shared" : "~" + who + "/own", session.value);
    EXPECT_EQ(client.ask<ipc::ModelImported>(ipc::ImportModel{name}).name, name);
  }
  // None of it is gone, or another's.
  void expect_whole() {
    EXPECT_FALSE(client.ask<ipc::GraphPart>(ipc::ReadGraph{program}).bytes.empty());
    EXPECT_FALSE(client.ask<ipc::ManifestPart>(ipc::ReadManifest{model}).bytes.empty());
    client.ask<ipc::Done>(ipc::DropSequence{sequence});
  }
};

struct Row {
  const char* verb;
  std::function<Body(const Theirs&)> request;
  // What comes of it, or a part of the refusal: of one's own, another principal's, a local user's;
  // and where the admin asks it of a principal's.
  const char* own;
  const char* others;
  const char* locals;
  const char* by_admin;
};

// What a caller has learnt.
struct Told {
  const Theirs& theirs;
  std::string operator()(const ipc::Failed& failed) const { return failed.message; }
  std::string operator()(const ipc::SessionList& list) const {
    return seen(std::ranges::any_of(
        list.sessions, [&](const auto& one) { return one.session == theirs.session; }));
  }
  std::string operator()(const ipc::ModelList& list) const {
    return seen(std::ranges::any_of(list.models,
                                    [&](const auto& one) { return one.model == theirs.model; }));
  }
  std::string operator()(const ipc::ProgramList& list) const {
    return seen(std::ranges::any_of(
        list.programs, [&](const auto& one) { return one.program == theirs.program; }));
  }
  std::string operator()(const ipc::UseList& list) const {
    return seen(std::ranges::any_of(
        list.uses, [&](const auto& one) { return one.session == theirs.session; }));
  }
  std::string operator()(const ipc::EventList& list) const {
    return seen(std::ranges::any_of(
        list.events, [&](const auto& one) { return one.session == theirs.session; }));
  }
  std::string operator()(const ipc::PublishedList& list) const {
    return seen(std::ranges::any_of(list.published,
                                    [&](const auto& one) { return one.name == theirs.name; }));
  }
  std::string operator()(const ipc::StatusReport& status) const {
    return fmt::format("{} workers, {} users", status.workers.size(), status.users.size());
  }
  template <typename Other>
  std::string operator()(const Other&) const {
    return "done";
  }
  static std::string seen(bool is) { return is ? "seen" : "hidden"; }
};

constexpr const char* kDone = "done";
constexpr const char* kSeen = "seen";
constexpr const char* kHidden = "hidden";
constexpr const char* kNoModel = "There is no such model";
constexpr const char* kNotOpen = "The session has not opened such a model";
constexpr const char* kInUse = "The model is in use";
constexpr const char* kNoSession = "There is no such session";
constexpr const char* kAdmins = "Only administrators may do this";
constexpr const char* kNoName = "There is no published model";
constexpr const char* kIdle = "has no run in flight";

const std::vector<Row>& rows() {
  static const std::vector<Row> all = {
      {"Hello", [](const Theirs&) { return ipc::Hello{}; }, "Hello must be the first",
       "Hello must be the first", "Hello must be the first", "Hello must be the first"},
      {"AddFiles", [](const Theirs&) { return ipc::AddFiles{}; }, kDone, kDone, kDone, kDone},
      {"OpenModel", [](const Theirs&) { return ipc::OpenModel{}; }, "needs at least one file",
       "needs at least one file", "needs at least one file", "needs at least one file"},
      {"CloseModel", [](const Theirs& t) { return ipc::CloseModel{t.model}; }, kNotOpen, kNotOpen,
       kNotOpen, kNotOpen},
      {"UnloadModel", [](const Theirs& t) { return ipc::UnloadModel{t.model}; }, kInUse, kNoModel,
       kNoModel, kInUse},
      {"DefineProgram", [](const Theirs& t) { return ipc::DefineProgram{t.model}; }, kNotOpen,
       kNotOpen, kNotOpen, kNotOpen},
      {"MakeSequence", [](const Theirs&) { return ipc::MakeSequence{kGeometry}; }, kDone, kDone,
       kDone, kDone},
      {"DropSequence", [](const Theirs& t) { return ipc::DropSequence{t.sequence}; },
       "has no such sequence group", "has no such sequence group", "has no such sequence group",
       "has no such sequence group"},
      {"GetStatus", [](const Theirs&) { return ipc::GetStatus{}; }, "1 workers, 0 users",
       "1 workers, 0 users", "1 workers, 0 users", "3 workers, 3 users"},
      {"ListSessions", [](const Theirs&) { return ipc::ListSessions{}; }, kSeen, kHidden, kHidden,
       kSeen},
      {"ListModels", [](const Theirs&) { return ipc::ListModels{}; }, kSeen, kHidden, kHidden,
       kSeen},
      {"ListPrograms", [](const Theirs&) { return ipc::ListPrograms{}; }, kSeen, kHidden, kHidden,
       kSeen},
      {"ListDevices", [](const Theirs&) { return ipc::ListDevices{}; }, kDone, kDone, kDone, kDone},
      {"ListMemory", [](const Theirs&) { return ipc::ListMemory{}; }, kDone, kDone, kDone, kDone},
      {"PinModel",
       [](const Theirs& t) {
         return ipc::PinModel{t.model, true};
       },
       "remote.pin_quota is 0", kNoModel, kNoModel, kDone},
      {"CancelRun", [](const Theirs& t) { return ipc::CancelRun{t.session}; }, kIdle, kNoSession,
       kNoSession, kIdle},
      {"TerminateSession", [](const Theirs& t) { return ipc::TerminateSession{t.session}; }, kDone,
       kNoSession, kNoSession, kDone},
      {"EvictModel", [](const Theirs& t) { return ipc::EvictModel{t.model}; }, kInUse, kNoModel,
       kNoModel, kInUse},
      {"SetDraining", [](const Theirs&) { return ipc::SetDraining{false}; }, kAdmins, kAdmins,
       kAdmins, kDone},
      {"CollectGarbage", [](const Theirs&) { return ipc::CollectGarbage{}; }, kAdmins, kAdmins,
       kAdmins, kDone},
      {"FollowEvents", [](const Theirs&) { return ipc::FollowEvents{}; }, kSeen, kHidden, kHidden,
       kSeen},
      {"ReadManifest", [](const Theirs& t) { return ipc::ReadManifest{t.model}; }, kDone,
       "sees no such model", "sees no such model", kDone},
      {"ListUses", [](const Theirs& t) { return ipc::ListUses{t.model}; }, kSeen, kHidden, kHidden,
       kSeen},
      {"GetOwnMemory", [](const Theirs&) { return ipc::GetOwnMemory{}; }, kDone, kDone, kDone,
       kDone},
      {"DropPrograms", [](const Theirs& t) { return ipc::DropPrograms{{t.program}}; }, kDone, kDone,
       kDone, kDone},
      {"GetSchedule", [](const Theirs& t) { return ipc::GetSchedule{t.session}; }, kDone,
       kNoSession, kNoSession, kDone},
      {"ReadGraph", [](const Theirs& t) { return ipc::ReadGraph{t.program}; }, kDone,
       "sees no such program", "sees no such program", kDone},
      {"PlaceModel",
       [](const Theirs& t) {
         return ipc::PlaceModel{t.model, "cuda:0"};
       },
       kAdmins, kAdmins, kAdmins, "has no GPU"},
      {"ImportModel", [](const Theirs&) { return ipc::ImportModel{"m"}; }, "at least one file",
       "at least one file", "at least one file", "at least one file"},
      {"ListPublished", [](const Theirs&) { return ipc::ListPublished{}; }, kSeen, kHidden, kHidden,
       kSeen},
      {"RemovePublished", [](const Theirs& t) { return ipc::RemovePublished{t.name}; }, kDone,
       kNoName, kNoName, kDone},
  };
  return all;
}
constexpr size_t kRows = 31;
static_assert(kRows == std::variant_size_v<Body>, "a new request has a row of its own");

class RightsTest : public ::testing::Test {
 protected:
  // What comes of it where the caller asks it of another session of that owner's.
  static std::string asked(const TestDaemon& daemon, const Row& row, const std::string& caller,
                           const std::string& owner) {
    Theirs theirs(daemon, owner);
    const std::string verb = row.verb;
    if (verb == "ListPublished" || verb == "RemovePublished") theirs.publish(daemon, owner);
    TestClient client(daemon, caller);
    client.greet();
    const Body body = row.request(theirs);
    const Fd graph = testing::program("z");
    const bool has_graph = std::holds_alternative<ipc::DefineProgram>(body);
    client.send({kNumber, body}, has_graph ? std::vector{graph.get()} : std::vector<int>{});
    const auto reply = client.receive();
    if (!reply) return "the end of the connection";
    const std::string told = std::visit(Told{theirs}, reply->body);
    if (owner != caller && !caller.empty()) theirs.expect_whole();
    return told;
  }

  static constexpr uint32_t kNumber = 100;
  TestDaemon daemon_{std::vector<std::string>{"--gate-socket"}};
};

TEST_F(RightsTest, each_verb_gives_a_principal_their_own_and_nobody_elses) {
  ASSERT_EQ(rows().size(), kRows);
  for (const Row& row : rows()) {
    const TestDaemon daemon({"--gate-socket"});  // of its own: the oldest events fill a page
    EXPECT_THAT(asked(daemon, row, kAnn, kAnn), HasSubstr(row.own)) << row.verb << " of their own";
    EXPECT_THAT(asked(daemon, row, kAnn, kBen), HasSubstr(row.others))
        << row.verb << " of another's";
    EXPECT_THAT(asked(daemon, row, kAnn, kLocal), HasSubstr(row.locals))
        << row.verb << " of a user's";
    EXPECT_THAT(asked(daemon, row, kLocal, kAnn), HasSubstr(row.by_admin))
        << row.verb << " by the admin";
  }
}

TEST_F(RightsTest, a_connection_is_whose_it_said_first_and_of_nobody_who_says_nothing) {
  const auto hello = [](std::string principal, bool fits = true) {
    return ipc::Hello{ipc::kProtocolVersion,
                      "test",
                      fits ? 1 << 16 : uint64_t{1} << 40,
                      false,
                      {},
                      ServiceClass::kNormal,
                      std::move(principal)};
  };
  TestClient by_gate(daemon_, kAnn);
  EXPECT_EQ(by_gate.ask<ipc::Failed>(hello("")).code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(by_gate.ask<ipc::Failed>(hello("ann")).code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(by_gate.ask<ipc::Failed>(hello("spiffe://lab/djinn-gate/box")).code,
            ErrorCode::kPermissionDenied);
  EXPECT_EQ(by_gate.ask<ipc::Failed>(hello(kAnn, false)).code, ErrorCode::kLimitExceeded);
  EXPECT_EQ(by_gate.ask<ipc::Failed>(hello(kBen)).code, ErrorCode::kPermissionDenied);
  by_gate.ask<ipc::Welcome>(hello(kAnn));
  TestClient by_program(daemon_);
  EXPECT_EQ(by_program.ask<ipc::Failed>(hello(kAnn)).code, ErrorCode::kPermissionDenied);
  by_program.ask<ipc::Welcome>(hello(""));
  const auto sessions = by_program.ask<ipc::SessionList>(ipc::ListSessions{}).sessions;
  ASSERT_EQ(sessions.size(), 2u);
  EXPECT_EQ(std::ranges::count(sessions, kAnn, &ipc::SessionReport::owner), 1);
}

// Else who names many principals, one after the other, has djinnd keep graphs of each for good.
TEST_F(RightsTest, what_a_principal_left_goes_with_their_worker_and_a_users_stays) {
  for (const char* const who : {kAnn, kLocal}) {
    TestClient client(daemon_, who);
    client.greet();
    client.ask<ipc::ProgramDefined>(ipc::DefineProgram{}, {testing::program("y").get()});
  }
  TestClient here(daemon_, kAnn);
  here.greet();
  TestClient admin(daemon_);
  admin.greet(true);
  const auto programs = [&] {
    std::set<bool> whose;
    for (const auto& one : admin.ask<ipc::ProgramList>(ipc::ListPrograms{}).programs) {
      whose.insert(one.owner == kAnn);
    }
    return whose;
  };
  const auto sessions = [&] {
    return admin.ask<ipc::SessionList>(ipc::ListSessions{}).sessions.size();
  };
  EXPECT_TRUE(testing::eventually([&] { return sessions() == 2; }));
  EXPECT_EQ(programs(), (std::set{false, true}));
  for (const auto& worker : admin.ask<ipc::StatusReport>(ipc::GetStatus{}).workers) {
    ASSERT_GT(worker.pid, 1u);
    ASSERT_EQ(::kill(static_cast<pid_t>(worker.pid), SIGKILL), 0);
  }
  EXPECT_TRUE(testing::eventually([&] { return programs() == std::set{false}; }));
}

// Else a gate that does not read, or asks without end, would be served before it has said for whom.
TEST_F(RightsTest, before_hello_a_gate_may_ask_for_nothing) {
  TestClient gate(daemon_, kAnn);
  gate.send({1, ipc::ListSessions{}});
  const auto reply = gate.receive();
  ASSERT_TRUE(reply.has_value());
  const auto* const failed = std::get_if<ipc::Failed>(&reply->body);
  ASSERT_NE(failed, nullptr);
  EXPECT_EQ(failed->code, ErrorCode::kProtocolViolation);
  EXPECT_FALSE(gate.receive().has_value());
}

}  // namespace
}  // namespace djinn::daemon
