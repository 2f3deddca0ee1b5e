// SPDX-License-Identifier: Apache-2.0

// Where models are and when they move: djinnd as a process, with a real loader and a worker without
// kernels.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "daemon/djinnd/programs/program_table.h"
#include "daemon/djinnd/reclaim/pressure.h"
#include "daemon/djinnd/testing/test_daemon.h"

namespace djinn::daemon {
namespace {

using testing::eventually;
using testing::model_file;
using testing::open_model;
using testing::TestClient;
using testing::TestDaemon;

using testing::kMiB;

// A client, and an observer that looks meanwhile.
struct TiersHost {
  explicit TiersHost(std::vector<std::string> options = {})
      : daemon(std::move(options)), client(daemon), observer(daemon) {
    client.greet();
    observer.greet(true);
  }

  std::optional<ipc::ModelReport> model(ModelId id) {
    const auto list = observer.ask<ipc::ModelList>(ipc::ListModels{});
    const auto found = std::ranges::find(list.models, id, &ipc::ModelReport::model);
    if (found == list.models.end()) return std::nullopt;
    return *found;
  }
  bool is(ModelId id, ipc::ModelState state) {
    return eventually([&] {
      const auto report = model(id);
      return report && report->state == state;
    });
  }
  bool is_gone(ModelId id) {
    return eventually([&] { return !model(id); });
  }
  bool is_hashed(ModelId id) {
    return eventually([&] { return model(id).value_or(ipc::ModelReport{}).hashed; });
  }
  uint64_t models_bytes() {
    return observer.ask<ipc::StatusReport>(ipc::GetStatus{}).memory_models_bytes;
  }

  TestDaemon daemon;
  TestClient client;
  TestClient observer;
};

TEST(Tiers, an_evicted_model_keeps_its_id_and_comes_back_with_its_next_use) {
  TiersHost host;
  const Fd file = model_file(host.daemon.directory(), kMiB, 'a');
  const ModelId id = open_model(host.client, file).model;
  ASSERT_TRUE(host.is_hashed(id));
  host.client.ask<ipc::Done>(ipc::CloseModel{id});
  host.observer.ask<ipc::Done>(ipc::EvictModel{id});
  EXPECT_EQ(host.model(id)->state, ipc::ModelState::kDisk);
  EXPECT_EQ(host.models_bytes(), 0u);
  const ipc::ModelOpened again = open_model(host.client, file);
  EXPECT_EQ(again.model, id);
  EXPECT_FALSE(again.was_resident) << "its bytes were read";
  EXPECT_GE(host.models_bytes(), kMiB);
  EXPECT_EQ(host.model(id)->state, ipc::ModelState::kResident);
}

TEST(Tiers, what_is_pinned_or_in_use_is_evicted_by_force_alone) {
  TiersHost host;
  const Fd file = model_file(host.daemon.directory(), 1000, 'a');
  const ModelId id = open_model(host.client, file).model;
  ASSERT_TRUE(host.is_hashed(id));
  const auto refused = [&](ipc::EvictModel how) {
    return host.observer.ask<ipc::Failed>(how).code;
  };
  EXPECT_EQ(refused({id, ipc::Tier::kDisk, false}), ErrorCode::kBusy) << "in use";
  host.client.ask<ipc::Done>(ipc::CloseModel{id});
  host.observer.ask<ipc::Done>(ipc::PinModel{id, true});
  EXPECT_EQ(refused({id, ipc::Tier::kDisk, false}), ErrorCode::kBusy) << "pinned";
  EXPECT_EQ(refused({id, ipc::Tier::kHost, true}), ErrorCode::kUnsupported);
  EXPECT_EQ(refused({ModelId{12345}}), ErrorCode::kNotFound);
  open_model(host.client, file);
  host.observer.ask<ipc::Done>(ipc::EvictModel{id, ipc::Tier::kDisk, true});
  EXPECT_EQ(host.model(id)->state, ipc::ModelState::kDisk);
  EXPECT_FALSE(host.model(id)->pinned);
  EXPECT_EQ(host.model(id)->leases, 1u) << "its session keeps it";
  host.observer.ask<ipc::Done>(ipc::PinModel{id, true});
  EXPECT_TRUE(host.is(id, ipc::ModelState::kResident)) << "a pin is a use";
}

TEST(Tiers, files_that_have_changed_do_not_come_back) {
  TiersHost host;
  const Fd file = model_file(host.daemon.directory(), 1000, 'a');
  const ModelId id = open_model(host.client, file).model;
  ASSERT_TRUE(host.is_hashed(id));
  host.observer.ask<ipc::Done>(ipc::EvictModel{id, ipc::Tier::kDisk, true});
  const std::string path = "/proc/self/fd/" + std::to_string(file.get());
  const Fd writable(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(writable.valid());
  ASSERT_EQ(::pwrite(writable.get(), "b", 1, 600), 1);
  host.observer.ask<ipc::Done>(ipc::PinModel{id, true});
  EXPECT_TRUE(host.is(id, ipc::ModelState::kFailed));
  EXPECT_EQ(host.models_bytes(), 0u);
  EXPECT_NE(open_model(host.client, file).model, id);
}

TEST(Tiers, a_close_before_the_answer_to_an_open_that_fails_harms_nobody) {
  TiersHost host;
  const Fd file = model_file(host.daemon.directory(), kMiB, 'a');
  const ModelId id = open_model(host.client, file).model;
  ASSERT_TRUE(host.is_hashed(id));
  host.client.ask<ipc::Done>(ipc::CloseModel{id});
  host.observer.ask<ipc::Done>(ipc::EvictModel{id});
  host.client.ask<ipc::Done>(ipc::AddFiles{1}, {file.get()});
  ASSERT_EQ(::ftruncate(Fd(::open(("/proc/self/fd/" + std::to_string(file.get())).c_str(),
                                  O_WRONLY | O_CLOEXEC))
                            .get(),
                        100),
            0);
  host.client.send({901, ipc::OpenModel{}});
  for (uint32_t number = 902; number < 910; ++number) {
    host.client.send({number, ipc::CloseModel{id}});
  }
  for (int i = 0; i < 9; ++i) ASSERT_TRUE(host.client.receive().has_value());
  host.observer.ask<ipc::StatusReport>(ipc::GetStatus{});
}

TEST(Tiers, a_model_leaves_when_its_time_to_stay_is_over) {
  TiersHost host({"--keep-alive-ms", "0"});
  const Fd file = model_file(host.daemon.directory(), 1000, 'a');
  const Fd other = model_file(host.daemon.directory(), 1000, 'b');
  const ModelId id = open_model(host.client, file).model;
  const ModelId kept = open_model(host.client, other, {"b", false, false, ipc::kKeepForever}).model;
  EXPECT_EQ(host.model(id)->expires_wall_ns, 0u) << "it is in use";
  host.client.ask<ipc::Done>(ipc::CloseModel{kept});
  host.client.ask<ipc::Done>(ipc::CloseModel{id});
  EXPECT_TRUE(host.is_gone(id));
  EXPECT_EQ(host.model(kept)->keep_alive_ms, ipc::kKeepForever);
  EXPECT_EQ(host.model(kept)->state, ipc::ModelState::kResident);
  open_model(host.client, other, {"b", false, false, 1});
  host.client.ask<ipc::Done>(ipc::CloseModel{kept});
  EXPECT_TRUE(host.is_gone(kept)) << "the latest request decides";
}

TEST(Tiers, numerics_that_are_said_of_a_model_hold_until_others_are_or_it_is_unloaded) {
  TiersHost host({"--keep-alive-ms", "100000"});
  const Fd file = model_file(host.daemon.directory(), 1000, 'a');
  ipc::OpenModel saying{"a"};
  EXPECT_FALSE(open_model(host.client, file, saying).numerics) << "nobody has said any";
  saying.numerics = srg::Numerics::kFast;
  const ipc::ModelOpened said = open_model(host.client, file, saying);
  EXPECT_EQ(said.numerics, srg::Numerics::kFast);
  EXPECT_EQ(host.model(said.model)->numerics, srg::Numerics::kFast);
  EXPECT_EQ(open_model(host.observer, file).numerics, srg::Numerics::kFast) << "of each session";
  saying.numerics = srg::Numerics::kExact;
  EXPECT_EQ(open_model(host.observer, file, saying).numerics, srg::Numerics::kExact);
  EXPECT_EQ(open_model(host.client, file).numerics, srg::Numerics::kExact);
  for (int i = 0; i < 3; ++i) host.client.ask<ipc::Done>(ipc::CloseModel{said.model});
  for (int i = 0; i < 2; ++i) host.observer.ask<ipc::Done>(ipc::CloseModel{said.model});
  ASSERT_TRUE(host.is_hashed(said.model));
  host.client.ask<ipc::Done>(ipc::EvictModel{said.model, ipc::Tier::kDisk});
  EXPECT_EQ(open_model(host.client, file).numerics, srg::Numerics::kExact) << "it came back";
  host.client.ask<ipc::Done>(ipc::CloseModel{said.model});
  host.client.ask<ipc::Done>(ipc::UnloadModel{said.model});
  EXPECT_FALSE(open_model(host.client, file).numerics) << "it is another model";
}

TEST(Tiers, looking_does_not_make_a_model_stay) {
  TiersHost host({"--keep-alive-ms", "100000"});
  const Fd file = model_file(host.daemon.directory(), 1000, 'a');
  const ModelId id = open_model(host.client, file).model;
  host.client.ask<ipc::Done>(ipc::CloseModel{id});
  const uint64_t expires = host.model(id)->expires_wall_ns;
  ASSERT_NE(expires, 0u);
  for (int i = 0; i < 20; ++i) host.model(id);
  constexpr uint64_t kClocksApartNs =
      50'000'000;  // it is told by the wall clock, counted by another
  EXPECT_NEAR(static_cast<double>(host.model(id)->expires_wall_ns), static_cast<double>(expires),
              static_cast<double>(kClocksApartNs));
}

TEST(Tiers, what_runs_nothing_gives_way_and_what_is_pinned_does_not) {
  TiersHost host({"--memory", "25165824"});  // 24 MiB
  const Fd first = model_file(host.daemon.directory(), 4 * kMiB, 'a');
  const Fd second = model_file(host.daemon.directory(), 4 * kMiB, 'b');
  const ModelId old = open_model(host.client, first).model;
  ASSERT_TRUE(host.is_hashed(old));
  host.observer.ask<ipc::Done>(ipc::PinModel{old, true});
  host.client.ask<ipc::Done>(ipc::AddFiles{1}, {second.get()});
  const auto refused = host.client.ask<ipc::Failed>(ipc::OpenModel{"second"});
  EXPECT_EQ(refused.code, ErrorCode::kOutOfMemory);
  EXPECT_NE(refused.message.find(" more are needed"), std::string::npos) << refused.message;
  EXPECT_NE(refused.message.find("16.0 MiB of it pinned"), std::string::npos) << refused.message;
  host.observer.ask<ipc::Done>(ipc::PinModel{old, false});
  open_model(host.client, second);
  EXPECT_EQ(host.model(old)->state, ipc::ModelState::kDisk);
  EXPECT_EQ(host.model(old)->leases, 1u);
}

TEST(Tiers, memory_that_a_gone_session_still_has_is_waited_for) {
  TiersHost host({"--memory", std::to_string(64 * kMiB), "--hang-timeout-ms", "200"});
  TestClient other(host.daemon);
  const SessionId gone = other.greet(false, 40 * kMiB).session;
  const Fd file = model_file(host.daemon.directory(), 10 * kMiB, 'a');
  const auto workers = host.observer.ask<ipc::StatusReport>(ipc::GetStatus{}).workers;
  ::kill(static_cast<pid_t>(workers.at(0).pid), SIGSTOP);  // it does not let go
  other.disconnect();
  ASSERT_TRUE(eventually([&] {
    const auto list = host.observer.ask<ipc::SessionList>(ipc::ListSessions{});
    const auto found = std::ranges::find(list.sessions, gone, &ipc::SessionReport::session);
    return found == list.sessions.end() || found->state == ipc::SessionState::kDraining;
  }));
  EXPECT_FALSE(open_model(host.client, file).was_resident) << "until that worker is replaced";
}

TEST(Tiers, above_the_thresholds_models_move_down_before_anybody_asks) {
  TiersHost host({"--memory", "41943040"});  // 40 MiB
  const Fd first = model_file(host.daemon.directory(), 4 * kMiB, 'a');
  const Fd second = model_file(host.daemon.directory(), 4 * kMiB, 'b');
  const ModelId old = open_model(host.client, first).model;
  ASSERT_TRUE(host.is_hashed(old));
  host.client.ask<ipc::Done>(ipc::CloseModel{old});
  EXPECT_EQ(host.model(old)->state, ipc::ModelState::kResident) << "there is room";
  const ModelId young = open_model(host.client, second).model;
  EXPECT_TRUE(host.is(old, ipc::ModelState::kDisk));
  EXPECT_TRUE(host.is(young, ipc::ModelState::kResident));
  const auto list = host.observer.ask<ipc::EventList>(ipc::FollowEvents{});
  EXPECT_TRUE(std::ranges::any_of(list.events, [](const auto& event) {
    return event.kind == ipc::EventKind::kMemoryPressure;
  }));
}

TEST(Pressure, levels_are_above_their_thresholds) {
  const Thresholds at{80, 95};
  EXPECT_EQ(level_of(80, 100, at), PressureLevel::kNone);
  EXPECT_EQ(level_of(81, 100, at), PressureLevel::kIdleGoes);
  EXPECT_EQ(level_of(95, 100, at), PressureLevel::kIdleGoes);
  EXPECT_EQ(level_of(96, 100, at), PressureLevel::kAllGoes);
  EXPECT_EQ(level_of(UINT64_MAX, UINT64_MAX, {100, 100}), PressureLevel::kNone);
}

// --- draining, events, garbage

TEST(Drain, takes_in_nobody_new_and_lets_the_rest_go_on) {
  TiersHost host;
  const Fd file = model_file(host.daemon.directory(), 1000, 'a');
  const Fd other = model_file(host.daemon.directory(), 1000, 'b');
  const ModelId id = open_model(host.client, file).model;
  host.observer.ask<ipc::Done>(ipc::SetDraining{true});
  TestClient late(host.daemon);
  EXPECT_EQ(late.ask<ipc::Failed>(ipc::Hello{}).code, ErrorCode::kBusy);
  host.client.ask<ipc::Done>(ipc::AddFiles{1}, {other.get()});
  EXPECT_EQ(host.client.ask<ipc::Failed>(ipc::OpenModel{}).code, ErrorCode::kBusy);
  EXPECT_EQ(open_model(host.client, file).model, id) << "what is there may be shared";
  EXPECT_TRUE(host.observer.ask<ipc::StatusReport>(ipc::GetStatus{}).draining);
  host.observer.ask<ipc::Done>(ipc::SetDraining{false});
  late.greet();
}

TEST(EventStream, who_waits_hears_of_what_comes_and_nobody_of_what_was_before) {
  TiersHost host;
  const auto before = host.observer.ask<ipc::EventList>(ipc::FollowEvents{});
  ASSERT_FALSE(before.events.empty());
  EXPECT_EQ(before.events.front().kind, ipc::EventKind::kDaemonStarted);
  EXPECT_EQ(before.missed, 0u);
  host.observer.send({900, ipc::FollowEvents{before.last, true}});
  const Fd file = model_file(host.daemon.directory(), 1000, 'a');
  const ModelId id = open_model(host.client, file).model;
  const auto reply = host.observer.receive();
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->number, 900u);
  const auto& list = std::get<ipc::EventList>(reply->body);
  ASSERT_FALSE(list.events.empty());
  EXPECT_EQ(list.events.front().number, before.last + 1);
  EXPECT_EQ(list.events.front().model, id);
  const auto none = host.observer.ask<ipc::EventList>(ipc::FollowEvents{UINT64_MAX - 1});
  EXPECT_TRUE(none.events.empty());
}

TEST(EventStream, a_session_waits_once) {
  TiersHost host;
  const uint64_t last = host.observer.ask<ipc::EventList>(ipc::FollowEvents{}).last;
  host.observer.send({900, ipc::FollowEvents{last, true}});
  EXPECT_EQ(host.observer.ask<ipc::Failed>(ipc::FollowEvents{last, true}).code,
            ErrorCode::kLimitExceeded);
  TestClient another(host.daemon);
  another.greet(true);
  another.send({901, ipc::FollowEvents{last, true}});
  const Fd file = model_file(host.daemon.directory(), 1000, 'a');
  open_model(host.client, file);
  for (TestClient* const waits : {&host.observer, &another}) {
    const auto reply = waits->receive();
    ASSERT_TRUE(reply.has_value());
    EXPECT_FALSE(std::get<ipc::EventList>(reply->body).events.empty());
  }
}

// The next worker looks at the graph, although its session uses no program of the model any more.
TEST(Tiers, a_program_whose_model_is_closed_before_the_answer_is_answered_after_a_death_too) {
  TiersHost host;
  const Fd file = model_file(host.daemon.directory(), kMiB, 'a');
  const ModelId id = open_model(host.client, file).model;
  const Fd graph = testing::program("y");
  const auto workers = host.observer.ask<ipc::StatusReport>(ipc::GetStatus{}).workers;
  ASSERT_EQ(workers.size(), 1u);
  const auto worker = static_cast<pid_t>(workers[0].pid);
  ASSERT_EQ(::kill(worker, SIGSTOP), 0);
  constexpr uint32_t kDefine = 901;
  host.client.send({kDefine, ipc::DefineProgram{id}}, {graph.get()});
  host.client.ask<ipc::Done>(ipc::CloseModel{id});
  ASSERT_EQ(::kill(worker, SIGKILL), 0);
  const auto reply = host.client.receive();
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->number, kDefine);
  const auto* const failed = std::get_if<ipc::Failed>(&reply->body);
  EXPECT_TRUE(failed == nullptr || failed->code == ErrorCode::kNotFound) << failed->message;
}

TEST(Garbage, programs_without_users_and_workers_without_sessions_go) {
  const TestDaemon daemon;
  TestClient observer(daemon);
  observer.greet(true);
  {
    TestClient client(daemon);
    client.greet();
    client.ask<ipc::ProgramDefined>(ipc::DefineProgram{}, {testing::program("y").get()});
    EXPECT_EQ(observer.ask<ipc::Collected>(ipc::CollectGarbage{}), ipc::Collected{});
  }
  ASSERT_TRUE(eventually([&] {
    return observer.ask<ipc::StatusReport>(ipc::GetStatus{}).memory_sessions_bytes == 0;
  }));
  const auto collected = observer.ask<ipc::Collected>(ipc::CollectGarbage{});
  EXPECT_EQ(collected.programs, 1u);
  EXPECT_EQ(collected.workers, 1u);
  TestClient client(daemon);
  client.greet();  // another worker comes
}

TEST(Garbage, large_programs_go_with_the_last_session_that_uses_one) {
  const TestDaemon daemon;
  TestClient observer(daemon);
  observer.greet(true);
  const auto programs = [&] { return observer.ask<ipc::StatusReport>(ipc::GetStatus{}).programs; };
  const Fd one = testing::sealed(testing::large_graph("one", ProgramTable::kBytesUnused / 2));
  const Fd two = testing::sealed(testing::large_graph("two", ProgramTable::kBytesUnused / 2));
  {
    TestClient first(daemon);
    first.greet();
    first.ask<ipc::ProgramDefined>(ipc::DefineProgram{}, {one.get()});
    first.ask<ipc::ProgramDefined>(ipc::DefineProgram{}, {two.get()});
    EXPECT_EQ(programs(), 2u);
  }
  ASSERT_TRUE(eventually([&] { return programs() == 1; }));
  TestClient again(daemon);
  again.greet();
  EXPECT_TRUE(again.ask<ipc::ProgramDefined>(ipc::DefineProgram{}, {two.get()}).was_cached)
      << "the one that was used last";
}

TEST(Tiers, programs_that_their_sessions_let_go_of_make_room_for_others) {
  const TestDaemon daemon;
  TestClient client(daemon), neighbour(daemon), observer(daemon);
  client.greet();
  neighbour.greet();
  observer.greet(true);
  const auto define = [](TestClient& of, uint32_t number) {
    const Fd graph = testing::sealed(testing::large_graph(std::to_string(number), 1));
    return of.ask<ipc::ProgramDefined>(ipc::DefineProgram{}, {graph.get()}).program;
  };
  std::vector<ProgramId> programs;
  for (uint32_t i = 0; i < limits::kProgramsPerUser; ++i) programs.push_back(define(client, i));
  const Fd last = testing::sealed(testing::large_graph("last", 1));
  EXPECT_EQ(neighbour.ask<ipc::Failed>(ipc::DefineProgram{}, {last.get()}).code,
            ErrorCode::kLimitExceeded);
  neighbour.ask<ipc::Done>(ipc::DropPrograms{programs});
  EXPECT_EQ(neighbour.ask<ipc::Failed>(ipc::DefineProgram{}, {last.get()}).code,
            ErrorCode::kLimitExceeded)
      << "they are not the neighbour's to let go of";
  const ProgramId kept = programs.back();
  programs.pop_back();
  programs.push_back(ProgramId{77});  // there is none
  client.ask<ipc::Done>(ipc::DropPrograms{programs});
  for (uint32_t i = 0; i < limits::kProgramsPerUser - 1; ++i) define(neighbour, 10'000 + i);
  EXPECT_EQ(define(client, limits::kProgramsPerUser - 1), kept);
  EXPECT_EQ(observer.ask<ipc::StatusReport>(ipc::GetStatus{}).programs, limits::kProgramsPerUser);
  observer.ask<ipc::Failed>(ipc::DropPrograms{{kept}});
}

}  // namespace
}  // namespace djinn::daemon
