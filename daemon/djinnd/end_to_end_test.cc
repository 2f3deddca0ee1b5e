// SPDX-License-Identifier: Apache-2.0

// djinnd as a process, with a real loader and a worker without kernels.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <set>

#include "daemon/djinnd/loop/log.h"
#include "daemon/djinnd/models/models.h"
#include "daemon/djinnd/testing/as_nobody.h"
#include "daemon/djinnd/testing/inode_holder.h"
#include "daemon/djinnd/testing/programs.h"
#include "daemon/djinnd/testing/test_daemon.h"
#include "ipc/codec/srg_codec.h"

namespace djinn::daemon {
namespace {

using testing::as_nobody;
using ::testing::ElementsAre;
using testing::eventually;
using testing::graph_of;
using ::testing::HasSubstr;
using testing::large_graph;
using testing::model_file;
using testing::program;
using testing::sealed;
using testing::TestClient;
using testing::TestDaemon;
using testing::write_config;

// Reading it takes a while. With what is between its texts it is near the limit of a graph.
constexpr uint64_t kLargeGraphBytes = limits::kGraphBytes / 4 * 3;

// A program that starts only while nobody holds it.
class HeldProgram {
 public:
  explicit HeldProgram(const std::string& program) {
    char directory[] = "/tmp/djinnd-held-XXXXXX";
    directory_ = ::mkdtemp(directory);
    const std::string gate = directory_ + "/gate";
    EXPECT_EQ(::mkfifo(gate.c_str(), 0600), 0);
    gate_ = Fd(::open(gate.c_str(), O_RDWR | O_CLOEXEC));
    const Fd script(::open(path().c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0700));
    const std::string text =
        fmt::format("#!/bin/sh\n[ ! -e {0}/held ] || read -r _ <{0}/gate\nexec {1} \"$@\"\n",
                    directory_, program);
    EXPECT_EQ(::write(script.get(), text.data(), text.size()), std::ssize(text));
  }
  ~HeldProgram() { std::filesystem::remove_all(directory_); }
  HeldProgram(const HeldProgram&) = delete;
  HeldProgram& operator=(const HeldProgram&) = delete;

  void hold() const {
    const Fd held(::open((directory_ + "/held").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    EXPECT_TRUE(held.valid());
  }
  void let_go() const {
    std::filesystem::remove(directory_ + "/held");
    EXPECT_EQ(::write(gate_.get(), "\n", 1), 1);
  }
  [[nodiscard]] std::string path() const { return directory_ + "/program"; }

 private:
  std::string directory_;
  Fd gate_;
};

ipc::StatusReport status_of(const TestDaemon& daemon) {
  TestClient observer(daemon);
  observer.greet(true);
  return observer.ask<ipc::StatusReport>(ipc::GetStatus{});
}

ipc::ModelOpened open_tiny(TestClient& client, const Fd& file, bool pin = false) {
  return testing::open_model(client, file, {"tiny", false, pin});
}

// What must be the same after all clients have gone.
struct Baseline {
  uint32_t descriptors;
  uint32_t closing;
  uint32_t sessions;
  uint64_t sessions_bytes;
  friend bool operator==(const Baseline&, const Baseline&) = default;
};

Baseline baseline_of(TestClient& observer) {
  const auto status = observer.ask<ipc::StatusReport>(ipc::GetStatus{});
  return {status.descriptors, status.descriptors_closing, status.sessions,
          status.memory_sessions_bytes};
}

// The observer is one for all looks: the end of each would be something to close.
bool settled(const TestDaemon& daemon, Baseline& out) {
  TestClient observer(daemon);
  observer.greet(true);
  return eventually([&] {
    const bool quiet = daemon.children_are_settled();
    out = baseline_of(observer);
    const bool freed = out.closing == 0 && out.sessions == 1 && out.sessions_bytes == 0;
    return quiet && freed && daemon.children_are_settled();
  });
}

// Five visits leave what was there before. A process that ends may be counted in the place of one
// that is about to start: then the look before came too early, and another five tell. What each
// visit leaves shows every time.
void expect_to_leave_nothing(const TestDaemon& daemon, const std::function<void()>& visit) {
  constexpr int kRounds = 3;
  visit();
  Baseline before{};
  Baseline after{};
  ASSERT_TRUE(settled(daemon, before));
  for (int round = 0; round < kRounds; ++round, before = after) {
    for (int i = 0; i < 5; ++i) visit();
    ASSERT_TRUE(settled(daemon, after));
    if (after == before) return;
  }
  ADD_FAILURE() << after.descriptors << " descriptors instead of " << before.descriptors;
}

// With what was told to whom it befell.
std::vector<std::string> texts_of(const TestDaemon& daemon, ipc::EventKind kind) {
  TestClient observer(daemon);
  observer.greet(true);
  std::vector<std::string> texts;
  for (const auto& event : observer.ask<ipc::EventList>(ipc::FollowEvents{}).events) {
    if (event.kind == kind) texts.push_back(event.text + ": " + event.reason);
  }
  return texts;
}

pid_t worker_pid(const TestDaemon& daemon) {
  const ipc::StatusReport status = status_of(daemon);
  return status.workers.empty() ? 0 : static_cast<pid_t>(status.workers[0].pid);
}

TEST(Djinnd, welcomes_a_session_with_memory_that_cannot_change_its_size) {
  const TestDaemon daemon({"--threads", "2"});
  TestClient client(daemon);
  const ipc::Welcome welcome = client.greet();
  EXPECT_TRUE(welcome.session.valid());
  EXPECT_EQ(welcome.threads, 2u);
  EXPECT_EQ(welcome.staging_bytes, 1u << 16);
  EXPECT_NE(::ftruncate(client.memory().get(), 0), 0);
  EXPECT_TRUE(*pal::has_seals(client.memory(), pal::Seals::kShared));
}

TEST(Djinnd, a_submission_reaches_the_worker_and_comes_back) {
  const TestDaemon daemon;
  TestClient client(daemon);
  client.greet();
  client.submit_nothing();
  EXPECT_EQ(client.completion(), ErrorCode::kOk);
}

TEST(Djinnd, a_model_is_read_once_and_shared) {
  const TestDaemon daemon;
  const Fd file = model_file(daemon.directory(), 1000, 'a');
  TestClient first(daemon);
  TestClient second(daemon);
  first.greet();
  second.greet();
  const ipc::ModelOpened opened = open_tiny(first, file);
  EXPECT_TRUE(first.fds().empty()) << "of nothing that it could keep";
  EXPECT_FALSE(opened.was_resident);
  const uint64_t bytes_read = status_of(daemon).bytes_read;
  const ipc::ModelOpened again = open_tiny(second, file);
  EXPECT_EQ(again.model, opened.model);
  EXPECT_TRUE(again.was_resident);
  EXPECT_EQ(status_of(daemon).bytes_read, bytes_read);
  EXPECT_EQ(status_of(daemon).models, 1u);
}

TEST(Djinnd, a_session_hears_what_it_holds_itself) {
  const TestDaemon daemon;
  TestClient other(daemon);
  TestClient client(daemon);
  other.greet();
  const ipc::Welcome welcome = client.greet();
  const auto own = [&] { return client.ask<ipc::OwnMemory>(ipc::GetOwnMemory{}); };
  open_tiny(other, model_file(daemon.directory(), 1000, 'b'));
  const ipc::OwnMemory before = own();
  EXPECT_EQ(before.shared_bytes + before.sequence_bytes, 0u);
  EXPECT_GT(before.granted_bytes, 0u) << "its staging and state";
  EXPECT_EQ(before.free_bytes, std::min(before.total_bytes - status_of(daemon).memory_granted_bytes,
                                        welcome.quota_bytes - before.granted_bytes));
  const ipc::ModelOpened opened = open_tiny(client, model_file(daemon.directory(), 1000, 'a'));
  EXPECT_EQ(own().shared_bytes, opened.bytes);
  EXPECT_EQ(own().granted_bytes, before.granted_bytes) << "models are nobody's";
  client.ask<ipc::Done>(ipc::CloseModel{opened.model});
  EXPECT_EQ(own().shared_bytes, 0u);
}

TEST(Djinnd, who_has_a_model_open_reads_all_parts_of_its_manifest) {
  constexpr uint64_t kTensors = 1000;
  const TestDaemon daemon;
  const Fd file = model_file(daemon.directory(), 1, 'a', kTensors);
  TestClient client(daemon);
  client.greet();
  const ipc::ModelOpened opened = open_tiny(client, file);
  const auto part = [&](uint64_t offset) {
    return client.ask<ipc::ManifestPart>(ipc::ReadManifest{opened.model, offset}).bytes;
  };
  EXPECT_EQ(part(0), opened.manifest);
  std::vector<std::byte> content = opened.manifest;
  ASSERT_LT(content.size(), opened.manifest_bytes);
  while (content.size() < opened.manifest_bytes) {
    const std::vector<std::byte> next = part(content.size());
    ASSERT_FALSE(next.empty());
    content.insert(content.end(), next.begin(), next.end());
  }
  EXPECT_EQ(content.size(), opened.manifest_bytes);
  EXPECT_EQ(ipc::decode_manifest(content)->tensors.size(), kTensors);
  for (const uint64_t offset : {opened.manifest_bytes, uint64_t{INT64_MAX}, UINT64_MAX}) {
    EXPECT_TRUE(part(offset).empty()) << offset;
  }
}

// The sanitizers' allocators hold on to what is freed.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kFreedIsReturned = false;
#else
constexpr bool kFreedIsReturned = true;
#endif

uint64_t resident_bytes(pid_t pid) {
  const Fd file(::open(fmt::format("/proc/{}/statm", pid).c_str(), O_RDONLY | O_CLOEXEC));
  char text[128]{};
  EXPECT_GT(::read(file.get(), text, sizeof text - 1), 0);
  const std::string_view pages = std::string_view(text).substr(std::string_view(text).find(' '));
  return std::strtoull(pages.data(), nullptr, 10) * static_cast<uint64_t>(::getpagesize());
}

TEST(Djinnd, once_keeps_no_answers_for_who_does_not_read) {
  constexpr uint32_t kOpens = limits::kRequestsPending - 1;
  const TestDaemon daemon;
  const Fd file = model_file(daemon.directory(), 1, 'a', 2000);
  std::vector<std::unique_ptr<TestClient>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<TestClient>(daemon));
    clients.back()->greet();
  }
  const pid_t worker = worker_pid(daemon);
  ::kill(worker, SIGSTOP);  // it maps nothing, and no open is answered
  for (const auto& client : clients) {
    for (uint32_t i = 0; i < kOpens; ++i) {
      client->ask<ipc::Done>(ipc::AddFiles{1}, {file.get()});
      client->send({1000 + i, ipc::OpenModel{"model"}});
    }
  }
  TestClient observer(daemon);
  observer.greet(true);
  EXPECT_TRUE(eventually([&] { return status_of(daemon).models == 1; }));
  const uint64_t before = resident_bytes(daemon.pid());
  ::kill(worker, SIGCONT);
  EXPECT_TRUE(eventually(
      [&] { return std::ranges::all_of(clients, [](const auto& c) { return c->has_reply(); }); }));
  if (kFreedIsReturned) {
    EXPECT_LT(resident_bytes(daemon.pid()),
              before + clients.size() * kOpens * limits::kManifestPartBytes / 4);
  }
  for (const auto& client : clients) {
    std::set<uint32_t> answered;
    for (uint32_t i = 0; i < kOpens; ++i) {
      const auto reply = client->receive();
      ASSERT_TRUE(reply.has_value());
      EXPECT_TRUE(std::holds_alternative<ipc::ModelOpened>(reply->body));
      answered.insert(reply->number);
    }
    EXPECT_EQ(answered.size(), kOpens);
  }
}

TEST(Djinnd, who_sees_a_model_reads_its_manifest) {
  const TestDaemon daemon;
  const Fd file = model_file(daemon.directory(), 1000, 'a');
  TestClient client(daemon);
  client.greet();
  const ipc::ModelOpened opened = open_tiny(client, file);
  client.ask<ipc::Done>(ipc::CloseModel{opened.model});
  TestClient observer(daemon);
  observer.greet(true);
  EXPECT_EQ(observer.ask<ipc::ManifestPart>(ipc::ReadManifest{opened.model, 0}).bytes,
            opened.manifest);
  const ModelId other{opened.model.value + 1};
  EXPECT_EQ(observer.ask<ipc::Failed>(ipc::ReadManifest{other, 0}).code, ErrorCode::kNotFound);
}

TEST(Djinnd, a_file_that_was_changed_is_another_model) {
  const TestDaemon daemon;
  const Fd one = model_file(daemon.directory(), 1000, 'a');
  const Fd other = model_file(daemon.directory(), 1000, 'b');
  TestClient client(daemon);
  client.greet();
  EXPECT_NE(open_tiny(client, one).model, open_tiny(client, other).model);
}

TEST(Djinnd, a_model_gets_its_hash_after_it_is_resident) {
  const TestDaemon daemon;
  const Fd file = model_file(daemon.directory(), 1000, 'a');
  TestClient client(daemon);
  client.greet();
  open_tiny(client, file);
  EXPECT_TRUE(eventually([&] {
    const auto list = client.ask<ipc::ModelList>(ipc::ListModels{});
    return list.models.size() == 1 && list.models[0].hashed;
  }));
}

TEST(Djinnd, what_is_no_safetensors_file_fails_and_leaves_nothing) {
  const TestDaemon daemon;
  TestClient client(daemon);
  client.greet();
  TestClient observer(daemon);
  observer.greet(true);
  Baseline before{};
  ASSERT_TRUE(eventually([&] {
    before = baseline_of(observer);
    return daemon.children_are_settled() && before.closing == 0 && before == baseline_of(observer);
  }));
  const Fd nonsense = sealed("this is not a safetensors file at all");
  client.ask<ipc::Done>(ipc::AddFiles{1}, {nonsense.get()});
  const auto failed = client.ask<ipc::Failed>(ipc::OpenModel{"nonsense", false, false});
  EXPECT_NE(failed.code, ErrorCode::kOk);
  EXPECT_TRUE(eventually([&] { return baseline_of(observer) == before; }));
  EXPECT_EQ(status_of(daemon).models, 0u);
  EXPECT_EQ(status_of(daemon).memory_models_bytes, 0u);
}

// Loads that no loader has begun, and models that no worker takes in.
class FailedLoads : public ::testing::Test {
 protected:
  FailedLoads() { session_ = client_.greet().session; }

  template <typename Body>
  void expect_told(const Body& body, const std::vector<int>& fds, const std::string& path) {
    const auto failed = client_.ask<ipc::Failed>(body, fds);
    const auto events = client_.ask<ipc::EventList>(ipc::FollowEvents{}).events;
    const auto last = std::find_if(events.rbegin(), events.rend(), [](const auto& event) {
      return event.kind == ipc::EventKind::kModelFailed;
    });
    ASSERT_NE(last, events.rend()) << failed.message;
    EXPECT_GT(last->number, std::exchange(told_, last->number)) << failed.message;
    EXPECT_EQ(last->error, failed.code);
    EXPECT_EQ(last->reason, ipc::showable_sentence(failed.message));
    EXPECT_EQ(last->session, session_);
    EXPECT_EQ(last->user, ::geteuid());
    EXPECT_EQ(last->path, path);
    EXPECT_THAT(last->text,
                HasSubstr(fmt::format(" could not be loaded for session {:012x}", session_.value)));
  }
  void add(const Fd& file) { client_.ask<ipc::Done>(ipc::AddFiles{1}, {file.get()}); }

  const TestDaemon daemon_;
  TestClient client_{daemon_};
  SessionId session_;
  uint64_t told_ = 0;  // the number of the latest such event
};

TEST_F(FailedLoads, that_no_loader_has_begun_are_told_in_the_log) {
  const ipc::OpenModel open{"tiny", false, false, {}, "/models/tiny"};
  expect_told(open, {}, open.path);  // of no file
  add(model_file(daemon_.directory(), 1, 'a'));
  ipc::OpenModel planned = open;
  planned.has_plan = true;
  const Fd unsealed = *pal::make_memfd("test", 64);
  expect_told(planned, {unsealed.get()}, open.path);
  expect_told(open, {}, open.path);  // the file went with the request that was refused
  expect_told(ipc::AddFiles{1}, {client_.socket()}, "");
  const Fd file = model_file(daemon_.directory(), 1, 'a');
  for (uint32_t i = 0; i < limits::kModelFiles; ++i) add(file);
  expect_told(ipc::AddFiles{1}, {file.get()}, "");
}

TEST_F(FailedLoads, of_models_that_no_worker_takes_in_are_told_in_the_log) {
  for (const char fill : {'r', 'd'}) {
    add(model_file(daemon_.directory(), 1000, fill));
    expect_told(ipc::OpenModel{"tiny", false, false, {}, "/models/tiny"}, {}, "/models/tiny");
  }
}

TEST(Djinnd, plans_of_openings_that_wait_have_a_limit_together) {
  const HeldProgram loader(testing::loader_program());
  loader.hold();
  const TestDaemon daemon({}, {"--user"}, {.loader = loader.path()});
  TestClient client(daemon);
  client.greet(true);
  const Fd file = model_file(daemon.directory(), 1, 'a');
  const Fd plan = sealed(std::string(limits::kLoadPlanBytes, 'p'));
  const uint64_t fit = Models::kPlanBytesPerUser / limits::kLoadPlanBytes;
  for (uint32_t i = 0; i < fit; ++i) {
    client.ask<ipc::Done>(ipc::AddFiles{1}, {file.get()});
    client.send({1000 + i, ipc::OpenModel{"waits", true, false}}, {plan.get()});
  }
  const auto refusal_of_one_more = [&] {
    client.ask<ipc::Done>(ipc::AddFiles{1}, {file.get()});
    return client.ask<ipc::Failed>(ipc::OpenModel{"one more", true, false}, {plan.get()}).code;
  };
  EXPECT_EQ(refusal_of_one_more(), ErrorCode::kLimitExceeded);
  loader.let_go();
  for (uint32_t i = 0; i < fit; ++i) ASSERT_TRUE(client.receive().has_value());
  EXPECT_EQ(refusal_of_one_more(), ErrorCode::kMalformed);
}

TEST(Djinnd, a_session_is_not_kept_by_its_own_socket) {
  const TestDaemon daemon;
  TestClient observer(daemon);
  observer.greet(true);
  {
    TestClient client(daemon);
    client.greet();
    const auto refused = client.ask<ipc::Failed>(ipc::AddFiles{1}, {client.socket()});
    EXPECT_EQ(refused.code, ErrorCode::kInvalidArgument);
  }
  EXPECT_TRUE(eventually([&] { return status_of(daemon).sessions == 2; })) << "those who look";
}

TEST(Djinnd, a_killed_client_returns_everything) {
  const TestDaemon daemon;
  const Fd file = model_file(daemon.directory(), 1000, 'a');
  expect_to_leave_nothing(daemon, [&] {
    TestClient client(daemon);
    client.greet();
    open_tiny(client, file);
    client.ask<ipc::ProgramDefined>(ipc::DefineProgram{}, {program("y").get()});
    client.ask<ipc::SequenceMade>(ipc::MakeSequence{{1, 2, 2, 64, DType::kFloat32, 128}});
    client.submit_write(1 << 20);
    EXPECT_EQ(client.completion(), ErrorCode::kOk);
    EXPECT_GT(status_of(daemon).memory_sessions_bytes, uint64_t{1} << 20);
  });
}

TEST(Djinnd, a_killed_worker_is_replaced_and_nobody_is_told) {
  const TestDaemon daemon;
  const Fd file = model_file(daemon.directory(), 1000, 'a');
  TestClient client(daemon);
  client.greet();
  open_tiny(client, file);
  const auto sequence =
      client.ask<ipc::SequenceMade>(ipc::MakeSequence{{1, 2, 2, 64, DType::kFloat32, 128}});
  client.ask<ipc::ProgramDefined>(ipc::DefineProgram{}, {program("y").get()});
  for (int death = 0; death < 5; ++death) {
    const pid_t worker = worker_pid(daemon);
    ASSERT_GT(worker, 0);
    ::kill(worker, SIGKILL);
    client.submit_nothing();
    EXPECT_EQ(client.completion(), ErrorCode::kOk);
    ASSERT_TRUE(eventually([&] { return worker_pid(daemon) > 0; }));
    EXPECT_NE(worker_pid(daemon), worker);
  }
  EXPECT_EQ(status_of(daemon).workers[0].restarts, 5u);
  client.ask<ipc::Done>(ipc::DropSequence{sequence.sequence});
  EXPECT_TRUE(
      client.ask<ipc::ProgramDefined>(ipc::DefineProgram{}, {program("y").get()}).was_cached);
}

TEST(Djinnd, a_run_that_kills_three_workers_is_refused_and_its_neighbour_goes_on) {
  const TestDaemon daemon;
  TestClient client(daemon);
  TestClient neighbour(daemon);
  client.greet();
  neighbour.greet();
  client.submit_graph(graph_of("fake::die"));
  EXPECT_EQ(client.completion(), ErrorCode::kWorkerLost);
  EXPECT_EQ(status_of(daemon).workers[0].restarts, limits::kDeathsWithoutProgress);
  EXPECT_THAT(texts_of(daemon, ipc::EventKind::kRunRefused),
              ElementsAre(HasSubstr("last in the operator fake::die,")));
  neighbour.submit_nothing();
  EXPECT_EQ(neighbour.completion(), ErrorCode::kOk);
}

ErrorCode run_one(TestClient& client) {
  client.submit_nothing();
  return client.completion();
}

bool is_running(TestClient& observer, SessionId session) {
  return eventually([&] {
    const auto list = observer.ask<ipc::SessionList>(ipc::ListSessions{});
    return std::ranges::any_of(list.sessions, [&](const auto& report) {
      return report.session == session && report.running;
    });
  });
}

TEST(Djinnd, a_worker_that_dies_before_it_has_a_session_did_not_die_in_its_run) {
  const TestDaemon daemon;
  TestClient client(daemon), observer(daemon);
  observer.greet(true);
  const SessionId session = client.greet().session;
  client.submit_graph(graph_of("fake::wait"));
  ASSERT_TRUE(is_running(observer, session));
  client.let_workers_die(2);
  ::kill(worker_pid(daemon), SIGKILL);
  ASSERT_TRUE(eventually([&] { return status_of(daemon).workers[0].restarts == 3; }));
  ASSERT_TRUE(is_running(observer, session)) << "the run is tried again";
  observer.ask<ipc::Done>(ipc::CancelRun{session});
  EXPECT_EQ(client.completion(), ErrorCode::kCancelled);
  EXPECT_THAT(texts_of(daemon, ipc::EventKind::kRunCancelled),
              ElementsAre(HasSubstr("a run of session " + text_of(session) + " of ")));
}

// A session of its own ends the worker in its first step, and is gone.
void end_worker_once(
    const TestDaemon& daemon, TestClient& observer, const std::function<void()>& before = [] {}) {
  TestClient killer(daemon);
  const SessionId session = killer.greet().session;
  killer.submit_graph(graph_of("fake::hang"));
  ASSERT_TRUE(is_running(observer, session));
  before();
  observer.ask<ipc::Done>(ipc::TerminateSession{session});
  ::kill(worker_pid(daemon), SIGKILL);
}

TEST(Djinnd, who_connects_anew_for_each_worker_that_it_ends_waits_and_who_has_committed_goes_on) {
  const HeldProgram workers(testing::fake_worker_program());
  const TestDaemon daemon({}, {"--user"}, {.worker = workers.path()});
  TestClient innocent(daemon), observer(daemon);
  observer.greet(true);
  innocent.greet();
  EXPECT_EQ(run_one(innocent), ErrorCode::kOk);
  for (int killer = 0; killer < 2; ++killer) {
    end_worker_once(daemon, observer);
    EXPECT_EQ(run_one(innocent), ErrorCode::kOk);
  }
  end_worker_once(daemon, observer, [&] { workers.hold(); });
  EXPECT_EQ(run_one(innocent), ErrorCode::kOk) << "by the last spare worker";
  TestClient newcomer(daemon);
  newcomer.send({1, ipc::Hello{ipc::kProtocolVersion, "newcomer", 1 << 16, false}});
  EXPECT_EQ(run_one(innocent), ErrorCode::kOk);
  observer.ask<ipc::StatusReport>(ipc::GetStatus{});
  EXPECT_FALSE(newcomer.has_reply()) << "it could end the last worker";
  workers.let_go();
  const auto reply = newcomer.receive();
  ASSERT_TRUE(reply.has_value());
  EXPECT_TRUE(std::holds_alternative<ipc::Welcome>(reply->body));
}

TEST(Djinnd, a_worker_that_hangs_in_a_step_is_replaced) {
  const TestDaemon daemon({"--hang-timeout-ms", "200"});
  TestClient client(daemon);
  client.greet();
  client.submit_graph(graph_of("fake::stop"));  // by each worker; the third death refuses the run
  EXPECT_EQ(client.completion(), ErrorCode::kWorkerLost);
}

TEST(Djinnd, an_operator_that_computes_for_too_long_is_refused_at_once_and_by_name) {
  const TestDaemon daemon({"--hang-timeout-ms", "1000"});
  TestClient client(daemon);
  client.greet();
  client.submit_graph(graph_of("fake::hang"));
  EXPECT_EQ(client.completion(), ErrorCode::kTimeout);
  EXPECT_EQ(status_of(daemon).workers[0].restarts, 1u);
  EXPECT_THAT(texts_of(daemon, ipc::EventKind::kRunRefused),
              ElementsAre(HasSubstr("The operator fake::hang ran longer than 1 s")));
}

TEST(Djinnd, a_lane_that_gives_no_sign_of_life_is_replaced_although_it_has_no_work) {
  const TestDaemon daemon({"--hang-timeout-ms", "100"});
  TestClient client(daemon), observer(daemon);
  observer.greet(true);
  client.greet();
  {
    TestClient other(daemon);
    other.greet();
    other.ask<ipc::ProgramDefined>(ipc::DefineProgram{}, {sealed(graph_of("fake::stick")).get()});
  }
  // When the lane is told to forget it, there is nothing else for it to do.
  ASSERT_TRUE(eventually(
      [&] { return observer.ask<ipc::Collected>(ipc::CollectGarbage{}).programs == 1; }));
  EXPECT_TRUE(eventually([&] { return status_of(daemon).workers[0].restarts == 1; }));
}

TEST(Djinnd, what_nobody_rang_for_is_found_and_kills_no_worker) {
  const TestDaemon daemon({"--hang-timeout-ms", "2000"});  // more than a busy machine makes it wait
  TestClient liar(daemon);
  liar.greet();
  for (int run = 0; run < 3; ++run) {
    liar.submit_silently();
    EXPECT_EQ(liar.completion(), ErrorCode::kOk);
  }
  EXPECT_EQ(status_of(daemon).workers[0].restarts, 0u);
}

// As soon as it has a run in flight.
bool is_cancelled(TestClient& observer, SessionId session) {
  return eventually([&] {
    observer.send({99, ipc::CancelRun{session}});
    const auto reply = observer.receive();
    return reply && std::holds_alternative<ipc::Done>(reply->body);
  });
}

TEST(Djinnd, a_client_that_jams_its_bells_and_cancels_its_run_stops_nobody) {
  const TestDaemon daemon;
  TestClient hostile(daemon), observer(daemon);
  observer.greet(true);
  const SessionId session = hostile.greet().session;
  hostile.submit_graph(graph_of("fake::stop"));  // its worker is busy
  hostile.jam_bells();
  EXPECT_TRUE(is_cancelled(observer, session));
  observer.ask<ipc::StatusReport>(ipc::GetStatus{});
}

TEST(Djinnd, a_client_that_makes_writers_of_its_memory_wait_stops_nobody) {
  const TestDaemon daemon;
  TestClient hostile(daemon), observer(daemon);
  observer.greet(true);
  const SessionId session = hostile.greet(false, 1 << 20).session;
  testing::InodeHolder holder(hostile.memory());
  if (!holder.has_begun()) GTEST_SKIP() << "NEEDS ROOT, to serve page faults of the kernel";
  ASSERT_TRUE(eventually([&] { return holder.holds(); }));
  hostile.submit_graph(graph_of("fake::stop"));  // its worker is busy
  EXPECT_TRUE(is_cancelled(observer, session));
  observer.ask<ipc::StatusReport>(ipc::GetStatus{});
}

TEST(Djinnd, a_worker_that_takes_over_jammed_bells_serves_all) {
  const TestDaemon daemon;
  TestClient hostile(daemon), neighbour(daemon);
  hostile.greet();
  neighbour.greet();
  hostile.jam_bells();
  const pid_t worker = worker_pid(daemon);
  ::kill(worker, SIGABRT);
  const auto losses = [&] { return texts_of(daemon, ipc::EventKind::kWorkerLost); };
  ASSERT_TRUE(eventually([&] { return !losses().empty(); }));  // else the former one may serve
  neighbour.submit_nothing();
  EXPECT_EQ(neighbour.completion(), ErrorCode::kOk);
  EXPECT_THAT(losses(), ElementsAre(HasSubstr("has died of SIGABRT")));
}

TEST(Djinnd, a_stopped_worker_is_replaced_although_no_step_runs) {
  const TestDaemon daemon({"--hang-timeout-ms", "200"});
  TestClient client(daemon);
  client.greet();
  ::kill(worker_pid(daemon), SIGSTOP);
  client.submit_nothing();
  EXPECT_EQ(client.completion(), ErrorCode::kOk);
}

// The answer is made when the time of the worker is over, and no descriptor tells of that.
TEST(Djinnd, a_status_waits_for_nothing_else_when_a_worker_does_not_answer) {
  TestDaemon daemon({"--hang-timeout-ms", "3600000"});
  TestClient session(daemon), observer(daemon);
  session.greet();
  observer.greet(true);
  ASSERT_TRUE(eventually([&] { return daemon.children_are_settled(); }));
  const auto workers = observer.ask<ipc::StatusReport>(ipc::GetStatus{}).workers;
  ::kill(static_cast<pid_t>(workers.at(0).pid), SIGSTOP);
  for (int i = 0; i < 3; ++i) {  // what djinnd does soon after its start is over then
    EXPECT_EQ(observer.ask<ipc::StatusReport>(ipc::GetStatus{}).workers.size(), 1u);
  }
}

TEST(Djinnd, programs_are_admitted_once_refused_with_reasons_and_never_kill_for_long) {
  const TestDaemon daemon;
  TestClient client(daemon);
  client.greet();
  const auto defined = client.ask<ipc::ProgramDefined>(ipc::DefineProgram{}, {program("a").get()});
  EXPECT_FALSE(defined.was_cached);
  ASSERT_EQ(defined.outputs.size(), 1u);
  EXPECT_EQ(defined.outputs[0].name, "a");
  const auto again = client.ask<ipc::ProgramDefined>(ipc::DefineProgram{}, {program("a").get()});
  EXPECT_TRUE(again.was_cached);
  EXPECT_EQ(again.program, defined.program);
  EXPECT_EQ(
      client.ask<ipc::Failed>(ipc::DefineProgram{}, {sealed(graph_of("fake::refuse")).get()}).code,
      ErrorCode::kUnsupported);
  const Fd deadly = sealed(graph_of("fake::die_in_admission"));
  EXPECT_EQ(client.ask<ipc::Failed>(ipc::DefineProgram{}, {deadly.get()}).code,
            ErrorCode::kWorkerLost);
  const Fd unsealed = *pal::make_memfd("test", 64);
  EXPECT_EQ(client.ask<ipc::Failed>(ipc::DefineProgram{}, {unsealed.get()}).code,
            ErrorCode::kInvalidArgument);
}

// One death, after which the next worker has the others at once; the step in flight is not blamed.
TEST(Djinnd, a_graph_that_ends_its_worker_is_refused_at_once_and_blamed_on_who_defined_it) {
  const TestDaemon daemon;
  TestClient bad(daemon), neighbour(daemon);
  bad.greet();
  neighbour.greet();
  neighbour.submit_graph(graph_of("fake::wait"));
  const Fd deadly = sealed(graph_of("fake::die_in_admission"));
  for (int deaths = 1; deaths <= 4; ++deaths) {  // the neighbour's would be refused after three
    EXPECT_EQ(bad.ask<ipc::Failed>(ipc::DefineProgram{}, {deadly.get()}).code,
              ErrorCode::kWorkerLost);
    EXPECT_EQ(status_of(daemon).workers.at(0).restarts, static_cast<uint32_t>(deaths));
  }
}

TEST(Djinnd, a_graph_whose_look_does_not_end_is_refused_as_what_it_is) {
  const TestDaemon daemon({"--hang-timeout-ms", "300"});
  TestClient bad(daemon), neighbour(daemon);
  bad.greet();
  neighbour.greet();
  const Fd endless = sealed(graph_of("fake::hang_in_admission"));
  bad.send({5, ipc::DefineProgram{}}, {endless.get()});
  neighbour.submit_nothing();
  EXPECT_EQ(neighbour.completion(), ErrorCode::kOk);
  const auto refused = bad.receive();
  ASSERT_TRUE(refused);
  EXPECT_EQ(std::get<ipc::Failed>(refused->body).code, ErrorCode::kTimeout);
  EXPECT_EQ(status_of(daemon).workers.at(0).restarts, 1u);
}

TEST(Djinnd, more_than_the_quota_is_refused_with_numbers) {
  const TestDaemon daemon({"--session-quota", "16777216"});
  TestClient client(daemon);
  client.greet();
  client.submit_write(17 << 20);
  EXPECT_EQ(client.completion(), ErrorCode::kQuotaExceeded);
  TestClient large(daemon);
  EXPECT_EQ(
      large.ask<ipc::Failed>(ipc::Hello{ipc::kProtocolVersion, "large", 32u << 20, false}).code,
      ErrorCode::kQuotaExceeded);
}

TEST(Djinnd, a_pinned_model_stays_until_it_is_unloaded) {
  const TestDaemon daemon;
  const Fd file = model_file(daemon.directory(), 1000, 'a');
  ModelId model;
  {
    TestClient observer(daemon);
    observer.greet(true);
    model = open_tiny(observer, file, true).model;
    EXPECT_EQ(observer.ask<ipc::Failed>(ipc::UnloadModel{model}).code, ErrorCode::kBusy);
  }
  TestClient observer(daemon);
  observer.greet(true);
  ASSERT_TRUE(eventually([&] {
    const auto list = observer.ask<ipc::ModelList>(ipc::ListModels{});
    return list.models.size() == 1 && list.models[0].leases == 0;
  }));
  observer.ask<ipc::Done>(ipc::UnloadModel{model});
  EXPECT_EQ(status_of(daemon).memory_models_bytes, 0u);
  EXPECT_EQ(observer.ask<ipc::Failed>(ipc::UnloadModel{model}).code, ErrorCode::kNotFound);
}

TEST(Djinnd, a_breach_of_the_protocol_ends_that_session_only) {
  const TestDaemon daemon;
  TestClient good(daemon);
  good.greet();
  TestClient impatient(daemon);
  impatient.send({1, ipc::GetStatus{}});
  TestClient babbling(daemon);
  babbling.send_bytes("no message at all");
  TestClient twice(daemon);
  twice.greet();
  twice.send({77, ipc::Hello{}});
  for (TestClient* client : {&impatient, &babbling, &twice}) {
    const auto notice = client->receive();
    ASSERT_TRUE(notice.has_value());
    EXPECT_EQ(notice->number, 0u);
    EXPECT_EQ(std::get<ipc::Failed>(notice->body).code, ErrorCode::kProtocolViolation);
    EXPECT_FALSE(client->receive().has_value());
  }
  good.ask<ipc::StatusReport>(ipc::GetStatus{});
}

TEST(Djinnd, files_that_no_model_is_opened_from_count_as_their_users_too) {
  const TestDaemon daemon;
  const Fd file = model_file(daemon.directory(), 10, 'a');
  const std::vector<int> part(limits::kControlDescriptors, file.get());
  const ipc::AddFiles add{limits::kControlDescriptors, {}};
  std::deque<TestClient> clients;
  for (uint32_t held = 0; held < limits::kModelFilesPerUser; held += limits::kControlDescriptors) {
    if (held % limits::kModelFiles == 0) clients.emplace_back(daemon).greet(true);
    clients.back().ask<ipc::Done>(add, part);
  }
  TestClient another(daemon);
  another.greet(true);
  const auto refused = another.ask<ipc::Failed>(ipc::AddFiles{1, {}}, {file.get()});
  EXPECT_EQ(refused.code, ErrorCode::kLimitExceeded) << refused.message;
  clients.pop_front();
  ASSERT_TRUE(eventually([&] {
    another.send({77, ipc::AddFiles{1, {}}}, {file.get()});
    return std::holds_alternative<ipc::Done>(another.receive()->body);
  }));
}

// As ulimit -n would.
void let_open(const TestDaemon& daemon, rlim_t descriptors) {
  const rlimit limit{descriptors, descriptors};
  ASSERT_EQ(::prlimit(daemon.pid(), RLIMIT_NOFILE, &limit, nullptr), 0);
}

// Connects and says Hello; whether it is welcome. What it is refused with is told.
bool is_welcome(const TestDaemon& daemon, std::vector<TestClient>& clients) {
  TestClient& client = clients.emplace_back(daemon);
  [[maybe_unused]] const Status sent =
      client.try_send({1, ipc::Hello{ipc::kProtocolVersion, "one of many", 1 << 16}});
  const auto reply = client.receive();
  if (!reply) {
    ADD_FAILURE() << "no answer";
    return false;
  }
  const auto* failed = std::get_if<ipc::Failed>(&reply->body);
  if (failed == nullptr) return true;
  EXPECT_EQ(failed->code, ErrorCode::kLimitExceeded) << failed->message;
  return false;
}

TEST(Djinnd, with_few_descriptors_everybody_is_answered) {
  const TestDaemon daemon;
  std::vector<TestClient> clients;
  ASSERT_TRUE(is_welcome(daemon, clients));
  let_open(daemon, 100);
  constexpr int kWaiting = 60;      // the listener's queue has room for them
  std::vector<TestClient> waiting;  // all are there before the first is looked at
  ::kill(daemon.pid(), SIGSTOP);
  for (int i = 0; i < kWaiting; ++i) {
    waiting.emplace_back(daemon);
    ASSERT_TRUE(waiting.back()
                    .try_send({1, ipc::Hello{ipc::kProtocolVersion, "one of many", 1 << 16}})
                    .ok());
  }
  ::kill(daemon.pid(), SIGCONT);
  int refused = 0;
  for (TestClient& client : waiting) {
    const auto reply = client.receive();
    ASSERT_TRUE(reply.has_value());
    const auto* failed = std::get_if<ipc::Failed>(&reply->body);
    if (failed == nullptr) continue;
    EXPECT_EQ(failed->code, ErrorCode::kLimitExceeded) << failed->message;
    ++refused;
  }
  EXPECT_GT(refused, kWaiting / 2);
  EXPECT_LT(refused, kWaiting);
  EXPECT_TRUE(clients[0].ask<ipc::ModelList>(ipc::ListModels{}).models.empty()) << "as ever";
  waiting.clear();
  EXPECT_TRUE(eventually([&] { return is_welcome(daemon, clients); }));
}

TEST(Djinnd, a_client_is_told_when_no_descriptor_at_all_is_left) {
  const TestDaemon daemon;
  TestClient observer(daemon);
  observer.greet(true);
  const uint32_t open = observer.ask<ipc::StatusReport>(ipc::GetStatus{}).descriptors;
  let_open(daemon, open / 2);
  std::vector<TestClient> clients;
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(is_welcome(daemon, clients));
  // The listener's reserve may be free for a moment: one descriptor may find room, so many cannot.
  const Fd file = model_file(daemon.directory(), 1000, 'a');
  const std::vector<int> files(limits::kControlDescriptors, file.get());
  observer.send({100, ipc::AddFiles{limits::kControlDescriptors}}, files);
  const auto notice = observer.receive();  // its session ends, and leaves what it had to others
  ASSERT_TRUE(notice.has_value());
  EXPECT_EQ(std::get<ipc::Failed>(notice->body).code, ErrorCode::kLimitExceeded);
}

TEST(Djinnd, a_payload_with_holes_is_refused) {
  const TestDaemon daemon;
  TestClient client(daemon);
  client.greet();
  const Fd sparse = *pal::make_memfd("graph", limits::kGraphBytes);
  ASSERT_TRUE(pal::add_seals(sparse, pal::Seals::kWrite).ok());
  EXPECT_EQ(client.ask<ipc::Failed>(ipc::DefineProgram{}, {sparse.get()}).code,
            ErrorCode::kInvalidArgument);
  const Fd file = model_file(daemon.directory(), 1000, 'a');
  client.ask<ipc::Done>(ipc::AddFiles{1}, {file.get()});
  EXPECT_EQ(client.ask<ipc::Failed>(ipc::OpenModel{"sparse", true}, {sparse.get()}).code,
            ErrorCode::kInvalidArgument);
}

TEST(Djinnd, what_follows_a_payload_waits_until_it_is_read) {
  const TestDaemon daemon;
  TestClient client(daemon);
  client.greet();
  const ModelId model = open_tiny(client, model_file(daemon.directory(), 1000, 'a')).model;
  const Fd graph = sealed(large_graph("large", kLargeGraphBytes));
  client.send({100, ipc::DefineProgram{model}}, {graph.get()});
  client.send({101, ipc::CloseModel{model}});
  for (int answers = 0; answers < 2; ++answers) {
    const auto reply = client.receive();
    ASSERT_TRUE(reply.has_value());
    EXPECT_FALSE(std::holds_alternative<ipc::Failed>(reply->body)) << reply->number;
  }
}

// As many questions as djinnd takes, while no answer is read.
int ask_and_read_nothing(TestClient& client, TestClient& neighbour) {
  constexpr int kEnough = 5000;
  int asked = 0;
  for (int turns = 0; turns < 300; ++turns) {
    Status sent;
    while (asked < kEnough && sent) {
      sent = client.try_send({static_cast<uint32_t>(asked + 1), ipc::ListDevices{}});
      if (sent) ++asked;
    }
    if (sent || sent.error().code != ErrorCode::kBusy) {
      ADD_FAILURE() << "djinnd heard it all, and keeps the answers";
      return asked;
    }
    neighbour.ask<ipc::DeviceList>(ipc::ListDevices{});  // whoever waits is heard meanwhile
  }
  return asked;
}

TEST(Djinnd, who_leaves_answers_unread_is_not_heard_until_they_are_read) {
  const TestDaemon daemon;
  TestClient client(daemon);
  client.greet(true);
  TestClient neighbour(daemon);
  neighbour.greet(true);
  const int asked = ask_and_read_nothing(client, neighbour);
  for (int number = 1; number <= asked; ++number) {
    const auto reply = client.receive();
    ASSERT_TRUE(reply.has_value());
    ASSERT_EQ(reply->number, static_cast<uint32_t>(number));
  }
  client.ask<ipc::DeviceList>(ipc::ListDevices{});
}

TEST(Djinnd, a_client_that_goes_while_its_payload_is_read_leaves_nothing) {
  const TestDaemon daemon;
  const Fd graph = sealed(large_graph("large", kLargeGraphBytes));
  {
    TestClient first(daemon);
    first.greet();
    first.ask<ipc::ProgramDefined>(ipc::DefineProgram{}, {graph.get()});
  }
  expect_to_leave_nothing(daemon, [&] {
    TestClient client(daemon);
    client.greet();
    client.send({100, ipc::DefineProgram{}}, {graph.get()});
  });
}

TEST(Djinnd, stops_when_told_and_takes_its_socket_and_children_along) {
  TestDaemon daemon;
  TestClient client(daemon);
  client.greet();
  const pid_t worker = worker_pid(daemon);
  EXPECT_EQ(daemon.stop(), 0);
  EXPECT_FALSE(std::filesystem::exists(daemon.socket_path()));
  EXPECT_TRUE(eventually([&] { return ::kill(worker, 0) != 0; }));
}

TEST(Djinnd, a_second_one_in_the_same_directory_is_refused) {
  const TestDaemon daemon;
  const std::string directory = daemon.directory() + "/run";
  const std::string program = testing::djinnd_program();
  const char* const arguments[] = {program.c_str(), "--user", "--runtime-dir", directory.c_str(),
                                   nullptr};
  pid_t pid = 0;
  ASSERT_EQ(::posix_spawn(&pid, arguments[0], nullptr, nullptr, const_cast<char* const*>(arguments),
                          environ),
            0);
  int status = 0;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 1);
  TestClient client(daemon);
  client.greet();
}

TEST(Djinnd, user_mode_refuses_other_users) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  const TestDaemon daemon;
  std::filesystem::permissions(daemon.directory(), std::filesystem::perms::all);
  std::filesystem::permissions(daemon.directory() + "/run", std::filesystem::perms::all);
  std::filesystem::permissions(daemon.socket_path(), std::filesystem::perms::all);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setresuid(65534, 65534, 65534) != 0) ::_exit(2);
    TestClient other(daemon);
    const auto notice = other.receive();
    const auto* failed = notice ? std::get_if<ipc::Failed>(&notice->body) : nullptr;
    ::_exit(failed != nullptr && failed->code == ErrorCode::kPermissionDenied ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(Djinnd, a_programs_graph_is_read_by_who_sees_it) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  const TestDaemon daemon({}, {"--socket-group", "root"});
  std::filesystem::permissions(daemon.directory(), std::filesystem::perms::all);
  TestClient client(daemon);
  client.greet();
  const ProgramId id =
      client.ask<ipc::ProgramDefined>(ipc::DefineProgram{}, {program("a").get()}).program;
  const auto part = [&](uint64_t offset) {
    return client.ask<ipc::GraphPart>(ipc::ReadGraph{id, offset}).bytes;
  };
  const std::vector<std::byte> content = part(0);
  const auto graph = ipc::decode_graph(content);
  ASSERT_TRUE(graph.ok());
  EXPECT_EQ(graph->outputs.size(), 1u);
  EXPECT_EQ(part(8), std::vector<std::byte>(content.begin() + 8, content.end()));
  EXPECT_TRUE(part(content.size()).empty());
  EXPECT_TRUE(part(UINT64_MAX).empty());
  EXPECT_EQ(client.ask<ipc::Failed>(ipc::ReadGraph{{id.value + 1}, 0}).code, ErrorCode::kNotFound);
  const auto refused_to_nobody = [&] {
    TestClient nobody(daemon);
    nobody.greet(true);
    const auto code = nobody.ask<ipc::Failed>(ipc::ReadGraph{id, 0}).code;
    return code == ErrorCode::kNotFound ? 0 : 1;
  };
  EXPECT_EQ(as_nobody(refused_to_nobody), 0);
}

TEST(Djinnd, who_does_not_see_a_model_reads_no_manifest) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  const TestDaemon daemon({}, {"--socket-group", "root"});
  std::filesystem::permissions(daemon.directory(), std::filesystem::perms::all);
  TestClient client(daemon);
  client.greet();
  const ModelId model = open_model(client, model_file(daemon.directory(), 1000, 'a')).model;
  const auto refused_to_nobody = [&] {
    TestClient nobody(daemon);
    nobody.greet(true);
    const auto code = nobody.ask<ipc::Failed>(ipc::ReadManifest{model, 0}).code;
    return code == ErrorCode::kNotFound ? 0 : 1;
  };
  EXPECT_EQ(as_nobody(refused_to_nobody), 0);
}

size_t reloads_of(const TestDaemon& daemon) {
  TestClient observer(daemon);
  observer.greet(true);
  const auto list = observer.ask<ipc::EventList>(ipc::FollowEvents{});
  return static_cast<size_t>(
      std::ranges::count(list.events, ipc::EventKind::kConfigReloaded, &ipc::EventReport::kind));
}

TEST(Djinnd, a_share_of_the_limit_is_of_the_limit_in_effect_after_a_reload_too) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  char root[] = "/tmp/djinnd-config-XXXXXX";
  ASSERT_NE(::mkdtemp(root), nullptr);
  write_config(root, "memory.limit = \"1GiB\"\n");
  const TestDaemon daemon({}, {"--socket-group", "root", "--root", root});
  std::filesystem::permissions(daemon.directory(), std::filesystem::perms::all);
  const Fd file = model_file(daemon.directory(), 200'000, 'a');
  const auto pins = [&](std::string_view text) {
    const size_t before = reloads_of(daemon);
    write_config(root, text);
    ::kill(daemon.pid(), SIGHUP);
    EXPECT_TRUE(eventually([&] { return reloads_of(daemon) > before; }));
    return as_nobody([&] {
      TestClient nobody(daemon);
      nobody.greet();
      const ModelId model = open_tiny(nobody, file).model;
      nobody.send({99, ipc::PinModel{model, true}});
      const auto reply = nobody.receive();
      if (!reply || !std::holds_alternative<ipc::Done>(reply->body)) return 1;
      nobody.ask<ipc::Done>(ipc::PinModel{model, false});
      return 0;
    });
  };
  EXPECT_EQ(pins("memory.limit = \"1MiB\"\n"), 0) << "half of 1 GiB";
  EXPECT_EQ(pins("memory.limit = \"1MiB\"\nmemory.pin_quota = \"1KiB\"\n"), 1);
  std::filesystem::remove_all(root);
}

// A file between whose last change and now lie the two seconds that sharing between users needs.
void let_settle(const Fd& file) {
  ASSERT_TRUE(eventually([&] {
    struct stat info {};
    timespec now{};
    ::fstat(file.get(), &info);
    ::clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec - info.st_ctim.tv_sec > 3;
  }));
}

TEST(Djinnd, ci_a_service_shares_what_both_users_open_and_nothing_else) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  const TestDaemon daemon({}, {"--socket-group", "root"});
  std::filesystem::permissions(daemon.directory(), std::filesystem::perms::all);
  const Fd settled_file = model_file(daemon.directory(), 1000, 'a');
  const Fd in_memory = model_file("/dev/shm", 1000, 'b');
  let_settle(settled_file);
  let_settle(in_memory);
  TestClient root(daemon);
  root.greet();
  const ModelId shared = open_tiny(root, settled_file).model;
  const ModelId compared = open_tiny(root, in_memory).model;
  const ModelId own = open_tiny(root, model_file(daemon.directory(), 1000, 'c')).model;
  const int outcome = as_nobody([&] {
    TestClient nobody(daemon);
    nobody.greet();
    const bool shares = open_tiny(nobody, settled_file).model == shared;
    const bool compares = open_tiny(nobody, in_memory).model == compared;
    const bool stranger =
        nobody.ask<ipc::Failed>(ipc::UnloadModel{own}).code == ErrorCode::kNotFound;
    const auto sessions = nobody.ask<ipc::SessionList>(ipc::ListSessions{});
    return (shares ? 0 : 1) + (compares ? 0 : 2) + (stranger && sessions.total == 1 ? 0 : 4);
  });
  EXPECT_EQ(outcome, 0) << "1: a disk's file is not shared, 2: nor one in memory, "
                           "4: sees what is not its own";
  EXPECT_EQ(status_of(daemon).workers_total, 2u) << "one worker a user";
}

TEST(Djinnd, who_opened_a_model_first_cannot_force_it_from_under_another_user) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  const TestDaemon daemon({}, {"--socket-group", "root"});
  std::filesystem::permissions(daemon.directory(), std::filesystem::perms::all);
  const Fd file = model_file(daemon.directory(), 1000, 'a');
  ASSERT_EQ(as_nobody([&] {
              TestClient nobody(daemon);
              nobody.greet(true);
              return open_tiny(nobody, file, true).model.valid() ? 0 : 1;
            }),
            0);
  TestClient root(daemon);
  root.greet(true);
  const ModelId model = open_tiny(root, file).model;
  EXPECT_EQ(as_nobody([&] {
              TestClient nobody(daemon);
              nobody.greet(true);
              nobody.send({99, ipc::EvictModel{model, ipc::Tier::kDisk, true}});
              const auto reply = nobody.receive();
              const auto* failed = reply ? std::get_if<ipc::Failed>(&reply->body) : nullptr;
              if (failed == nullptr) return 1;
              return failed->code == ErrorCode::kPermissionDenied ? 0 : 2;
            }),
            0);
}

}  // namespace
}  // namespace djinn::daemon
