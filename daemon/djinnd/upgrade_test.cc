// SPDX-License-Identifier: Apache-2.0

// djinnd whose worker and loader were exchanged for those of another build while it runs.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>

#include "daemon/djinnd/testing/programs.h"
#include "daemon/djinnd/testing/test_daemon.h"
#include "ipc/build_identity.h"

namespace djinn::daemon {
namespace {

using testing::ChildPrograms;
using testing::eventually;
using testing::model_file;
using testing::TestClient;
using testing::TestDaemon;

// Programs that are ours until exchange() is called, and then are told of another build than their
// own; with an argument that only the other build knows, so that they must not read on.
class Installed {
 public:
  Installed() {
    char directory[] = "/tmp/djinnd-installed-XXXXXX";
    directory_ = ::mkdtemp(directory);
    programs_ = {write_program("worker", testing::fake_worker_program()),
                 write_program("loader", testing::loader_program())};
  }
  ~Installed() { std::filesystem::remove_all(directory_); }
  Installed(const Installed&) = delete;
  Installed& operator=(const Installed&) = delete;

  void exchange() { write("other", "", 0600); }
  // From now on they end at once, for another reason.
  void take_away() { write("gone", "", 0600); }
  void put_back() { std::filesystem::remove(directory_ + "/other"); }
  [[nodiscard]] const ChildPrograms& programs() const { return programs_; }
  // How often a program of another build was started, and ended for that.
  [[nodiscard]] size_t refusals() const {
    std::error_code absent;
    const auto bytes = std::filesystem::file_size(directory_ + "/refusals", absent);
    return absent ? 0 : bytes / kRefusal.size();
  }

 private:
  static constexpr std::string_view kRefusal = "76\n";

  std::string write(const std::string& name, std::string_view content, mode_t mode) const {
    std::string path = directory_ + "/" + name;
    const Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, mode));
    EXPECT_EQ(::write(file.get(), content.data(), content.size()), std::ssize(content));
    return path;
  }
  [[nodiscard]] std::string write_program(const std::string& name,
                                          const std::string& program) const {
    const std::string script = fmt::format(
        "#!/bin/sh\n"
        "[ -e {0}/other ] || [ -e {0}/gone ] || exec {1} \"$@\"\n"
        "[ -e {0}/other ] || exit 1\n"
        "shift 2\n"
        "{1} {2} 9.9-other --a-later-option \"$@\"\n"
        "status=$?\n"
        "echo $status >>{0}/refusals\n"
        "exit $status\n",
        directory_, program, ipc::kBuildOption);
    return write(name, script, 0700);
  }

  std::string directory_;
  ChildPrograms programs_;
};

std::vector<ipc::EventReport> events_of(const TestDaemon& daemon, ipc::EventKind kind) {
  TestClient observer(daemon);
  observer.greet(true);
  std::vector<ipc::EventReport> events = observer.ask<ipc::EventList>(ipc::FollowEvents{}).events;
  std::erase_if(events, [&](const ipc::EventReport& event) { return event.kind != kind; });
  return events;
}

pid_t worker_pid(const TestDaemon& daemon) {
  TestClient observer(daemon);
  observer.greet(true);
  const auto status = observer.ask<ipc::StatusReport>(ipc::GetStatus{});
  return status.workers.empty() ? 0 : static_cast<pid_t>(status.workers[0].pid);
}

// The text of the error with which the session is ended.
ipc::Failed farewell(TestClient& client) {
  const auto notice = client.receive();
  if (!notice || !std::holds_alternative<ipc::Failed>(notice->body)) return {};
  return std::get<ipc::Failed>(notice->body);
}

ipc::ModelOpened open_tiny(TestClient& client, const Fd& file) {
  return testing::open_model(client, file, {"tiny", false, true});
}

ErrorCode run_once(TestClient& client) {
  client.submit_nothing();
  return client.completion();
}

// Kills the worker as long as there is a spare one of before.
void use_up_workers(const TestDaemon& daemon) {
  EXPECT_TRUE(eventually([&] {
    if (const pid_t worker = worker_pid(daemon); worker > 0) ::kill(worker, SIGKILL);
    return !events_of(daemon, ipc::EventKind::kDeviceLost).empty();
  }));
}

TEST(Upgrade, what_runs_goes_on_and_what_needs_another_process_is_told_why_not) {
  Installed installed;
  const TestDaemon daemon({}, {"--user"}, installed.programs());
  const Fd file = model_file(daemon.directory(), 1000, 'a');
  TestClient client(daemon);
  client.greet();
  const ModelId model = open_tiny(client, file).model;
  installed.exchange();
  EXPECT_EQ(run_once(client), ErrorCode::kOk);
  use_up_workers(daemon);
  const ipc::Failed told = farewell(client);
  EXPECT_EQ(told.code, ErrorCode::kWorkerLost);
  EXPECT_NE(told.message.find("Restart djinnd"), std::string::npos) << told.message;
  TestClient late(daemon);
  const auto refused =
      late.ask<ipc::Failed>(ipc::Hello{ipc::kProtocolVersion, "late", 1 << 16, false});
  EXPECT_EQ(refused.code, ErrorCode::kWorkerLost);
  EXPECT_EQ(refused.message, told.message);
  late.greet(true);
  const auto list = late.ask<ipc::ModelList>(ipc::ListModels{});
  ASSERT_EQ(list.models.size(), 1u) << "what is resident stays";
  EXPECT_EQ(list.models[0].model, model);
}

TEST(Upgrade, of_a_djinnd_whose_workers_fail_already_is_told_to_who_waits) {
  Installed installed;
  const TestDaemon daemon({}, {"--user"}, installed.programs());
  TestClient client(daemon);
  client.greet();
  installed.take_away();
  use_up_workers(daemon);
  installed.exchange();
  const ipc::Failed told = farewell(client);
  EXPECT_EQ(told.code, ErrorCode::kWorkerLost);
  EXPECT_NE(told.message.find("Restart djinnd"), std::string::npos) << told.message;
  EXPECT_EQ(events_of(daemon, ipc::EventKind::kUpgradePending).size(), 1u);
  EXPECT_EQ(events_of(daemon, ipc::EventKind::kDeviceLost).size(), 1u) << "it was lost before";
}

TEST(Upgrade, is_told_once_and_starts_get_rarer) {
  Installed installed;
  installed.exchange();
  const TestDaemon daemon({}, {"--user"}, installed.programs());
  // Worker and loader, at 0, 0, 50, 150 and 350 ms.
  ASSERT_TRUE(eventually([&] { return installed.refusals() >= 10; }));
  const auto told = events_of(daemon, ipc::EventKind::kUpgradePending);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_NE(told[0].text.find("restart it"), std::string::npos) << told[0].text;
  EXPECT_EQ(events_of(daemon, ipc::EventKind::kDeviceLost).size(), 1u);
}

TEST(Upgrade, a_model_that_would_have_to_be_read_is_refused) {
  Installed installed;
  const TestDaemon daemon({}, {"--user"}, installed.programs());
  TestClient client(daemon);
  client.greet(true);
  installed.exchange();
  const auto open = [&] {
    const Fd file = model_file(daemon.directory(), 1000, 'a');
    client.ask<ipc::Done>(ipc::AddFiles{1}, {file.get()});
    client.send({99, ipc::OpenModel{"tiny", false, true}});
    const auto reply = client.receive();
    EXPECT_TRUE(reply.has_value());
    const auto* const failed = reply ? std::get_if<ipc::Failed>(&reply->body) : nullptr;
    return failed != nullptr ? *failed : ipc::Failed{};
  };
  // A spare loader of before may still serve.
  EXPECT_TRUE(eventually([&] { return open().code == ErrorCode::kLoaderLost; }));
  EXPECT_NE(open().message.find("Restart djinnd"), std::string::npos);
  EXPECT_EQ(events_of(daemon, ipc::EventKind::kUpgradePending).size(), 1u);
}

TEST(Upgrade, that_is_taken_back_needs_no_restart) {
  Installed installed;
  installed.exchange();
  const TestDaemon daemon({}, {"--user"}, installed.programs());
  ASSERT_TRUE(eventually([&] { return installed.refusals() >= 2; }));
  installed.put_back();
  EXPECT_TRUE(eventually([&] { return !events_of(daemon, ipc::EventKind::kDeviceBack).empty(); }));
  TestClient client(daemon);
  client.greet();
  EXPECT_EQ(run_once(client), ErrorCode::kOk);
}

}  // namespace
}  // namespace djinn::daemon
