// SPDX-License-Identifier: Apache-2.0

// GPUs in djinnd, as a process with a real mover on the fake driver, or with one that lies: what is
// told of a device, and that nothing of it hurts who computes on the host.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "daemon/djinnd/testing/programs.h"
#include "daemon/djinnd/testing/test_daemon.h"
#include "daemon/djinnd/workers/gpu.h"
#include "daemon/mover/fault_pipe_for_tests.h"

namespace djinn::daemon {
namespace {

using ipc::DeviceState;
using ::testing::AllOf;
using testing::eventually;
using testing::graph_of;
using ::testing::HasSubstr;
using testing::kMiB;
using ::testing::Not;
using testing::TestClient;
using testing::TestDaemon;

// Set as long as this lives; djinnd and its mover inherit it.
class EnvironmentVariable {
 public:
  EnvironmentVariable(const char* name, const std::string& value) : name_(name) {
    if (const char* const before = ::getenv(name)) before_ = before;
    ::setenv(name, value.c_str(), 1);
  }
  ~EnvironmentVariable() { before_ ? ::setenv(name_, before_->c_str(), 1) : ::unsetenv(name_); }
  EnvironmentVariable(const EnvironmentVariable&) = delete;
  EnvironmentVariable& operator=(const EnvironmentVariable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

// What the driver, its library of faults, or a mover that lies is told.
struct Fakes {
  std::string driver{};
  std::string nvml = "driver=580.7";
  std::string lie{};
  std::string library_path = testing::fake_cuda_directory();
};

class GpuDaemon {
 public:
  explicit GpuDaemon(const Fakes& fakes = {}, const std::string& mover = testing::mover_program(),
                     const std::vector<std::string>& more = {}, const std::string& worker = {})
      : path_("LD_LIBRARY_PATH", fakes.library_path),
        driver_("DJINN_FAKE_CUDA", fakes.driver),
        nvml_("DJINN_FAKE_NVML", fakes.nvml),
        lie_("DJINN_LIE", fakes.lie),
        daemon_(arguments(more), {"--user"}, programs(mover, worker)),
        observer_(daemon_) {
    observer_.greet(true);
  }

  ipc::DeviceReport report() {
    const auto list = observer_.ask<ipc::DeviceList>(ipc::ListDevices{});
    EXPECT_EQ(list.devices.size(), 2u);
    EXPECT_EQ(list.devices.front().device, "cpu:0");
    EXPECT_EQ(list.devices.back().device, "cuda:0");
    return list.devices.back();
  }
  bool becomes(DeviceState state) {
    return eventually([&] { return report().state == state; });
  }
  ipc::Failed refusal() {
    TestClient client(daemon_);
    return client.ask<ipc::Failed>(
        ipc::Hello{ipc::kProtocolVersion, "test", 1 << 16, false, "cuda:0"});
  }
  void expect_the_host_computes() {
    TestClient client(daemon_);
    client.greet();
    client.submit_graph(graph_of("fake::nothing"));
    EXPECT_EQ(client.completion(), ErrorCode::kOk);
  }
  // --- models

  // Of so many MiB in two tensors; the host has it as long as it is pinned.
  ModelId load(uint64_t mib, char fill, bool pin = true) {
    const Fd file = testing::model_file(daemon_.directory(), mib << 17, fill, 2);
    const auto opened = testing::open_model(observer_, file, {.label = "model", .pin = pin});
    observer_.ask<ipc::Done>(ipc::CloseModel{opened.model});
    return opened.model;
  }
  ipc::ModelPlaced place(ModelId model) {
    return observer_.ask<ipc::ModelPlaced>(ipc::PlaceModel{model, "cuda:0"});
  }
  ipc::Failed refusal_to_place(ModelId model) {
    return observer_.ask<ipc::Failed>(ipc::PlaceModel{model, "cuda:0"});
  }
  void evict_to_host(ModelId model) {
    observer_.ask<ipc::Done>(ipc::EvictModel{model, ipc::Tier::kHost});
  }
  ipc::ModelReport model(ModelId id) {
    for (const ipc::ModelReport& one : observer_.ask<ipc::ModelList>(ipc::ListModels{}).models) {
      if (one.model == id) return one;
    }
    ADD_FAILURE() << "there is no such model";
    return {};
  }
  // From files, since djinnd started.
  uint64_t bytes_read() { return observer_.ask<ipc::StatusReport>(ipc::GetStatus{}).bytes_read; }
  TestClient& observer() { return observer_; }
  TestDaemon& daemon() { return daemon_; }
  // Writes a byte into each extent of a copy that djinnd holds, as a worker that somebody took over
  // could. How many there are.
  int tamper() {
    int extents = 0;
    const std::string fds = "/proc/" + std::to_string(daemon_.pid()) + "/fd";
    std::error_code closed;  // meanwhile
    for (const auto& entry : std::filesystem::directory_iterator(fds)) {
      const std::string target = std::filesystem::read_symlink(entry.path(), closed).string();
      if (target.find("fake-cuda") == target.npos) continue;
      const Fd extent(::open(entry.path().c_str(), O_RDWR | O_CLOEXEC));
      extents += ::pwrite(extent.get(), "!", 1, 4099) == 1;
    }
    return extents;
  }

  std::vector<ipc::EventReport> events() {
    return observer_.ask<ipc::EventList>(ipc::FollowEvents{}).events;
  }

  // Of djinnd.
  [[nodiscard]] ptrdiff_t descriptors() const {
    const std::filesystem::directory_iterator all("/proc/" + std::to_string(daemon_.pid()) + "/fd");
    return std::distance(begin(all), end(all));
  }
  // The same with a spare worker and a spare loader, and no other child.
  [[nodiscard]] std::optional<ptrdiff_t> descriptors_without_mover() const {
    ptrdiff_t all = 0, children = 0;
    std::error_code closed;  // meanwhile
    for (const auto& fd :
         std::filesystem::directory_iterator("/proc/" + std::to_string(daemon_.pid()) + "/fd")) {
      children += std::filesystem::read_symlink(fd.path(), closed).string().ends_with("[pidfd]");
      ++all;
    }
    return children == 2 ? std::optional(all) : std::nullopt;
  }
  // 0: there is none.
  [[nodiscard]] pid_t mover() const { return child({"(djinn-mover) S", "(djinn-mover) R"}); }
  [[nodiscard]] pid_t stopped_mover() const { return child({"(djinnd-lying-mo) T"}); }
  // The GPU's, of this process' user.
  [[nodiscard]] pid_t worker() const {
    return child({"(djinnd-fake-wor) S", "(djinnd-fake-wor) R"}, "cuda:0");
  }

 private:
  static testing::ChildPrograms programs(const std::string& mover, const std::string& worker) {
    testing::ChildPrograms programs{.mover = mover};
    if (!worker.empty()) programs.cuda_worker = worker;
    return programs;
  }
  static std::vector<std::string> arguments(const std::vector<std::string>& more) {
    std::vector<std::string> all{"--memory", "256MiB", "--devices", "cuda:0"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  // Its name and state are one of these, and one of its arguments is that.
  [[nodiscard]] pid_t child(const std::vector<std::string_view>& states,
                            std::string_view argument = {}) const {
    for (const auto& process : std::filesystem::directory_iterator("/proc")) {
      // PID (NAME) STATE PARENT
      const std::string text = text_of(process.path() / "stat");
      const std::string ours = fmt::format(" {} ", daemon_.pid());
      const std::string_view before = std::string_view(text).substr(0, text.find(ours));
      const bool is_child = before.size() < text.size();
      const auto is_it = [before](std::string_view state) { return before.ends_with(state); };
      if (!is_child || std::ranges::none_of(states, is_it)) continue;
      if (text_of(process.path() / "cmdline").find(argument) == std::string::npos) continue;
      return static_cast<pid_t>(std::stoi(text));
    }
    return 0;
  }
  static std::string text_of(const std::filesystem::path& path) {
    const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    char text[1024] = {};
    const ssize_t length = file.valid() ? ::read(file.get(), text, sizeof text) : 0;
    return {text, static_cast<size_t>(std::max<ssize_t>(length, 0))};
  }

  EnvironmentVariable path_, driver_, nvml_, lie_;
  TestDaemon daemon_;
  TestClient observer_;
};

class GpusOfDjinnd : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(testing::fake_cuda_directory()))
      GTEST_SKIP() << "there are no fakes";
  }
};

TEST_F(GpusOfDjinnd, one_that_answers_as_it_should_is_ready_and_told_with_its_driver_and_memory) {
  GpuDaemon gpu({.driver = "memory=8G"});
  ASSERT_TRUE(gpu.becomes(DeviceState::kReady)) << gpu.report().reason;
  const ipc::DeviceReport report = gpu.report();
  EXPECT_EQ(report.name, "Fake GPU");
  EXPECT_EQ(report.driver, "580.7");
  EXPECT_EQ(report.hardware_bytes, uint64_t{8} << 30);
  EXPECT_GT(report.hardware_free_bytes, uint64_t{7} << 30);
  EXPECT_EQ(report.total_bytes, report.hardware_bytes) << "no limit is written";
  EXPECT_EQ(report.used_bytes, 0u);
}

TEST_F(GpusOfDjinnd, without_a_program_that_computes_there_who_names_one_computes_nowhere) {
  GpuDaemon gpu;
  ASSERT_TRUE(gpu.becomes(DeviceState::kReady)) << gpu.report().reason;
  const ipc::Failed refused = gpu.refusal();
  EXPECT_EQ(refused.code, ErrorCode::kUnsupported);
  EXPECT_THAT(refused.message, HasSubstr("no worker for GPUs"));
  EXPECT_THAT(refused.message, HasSubstr("djinn-torch-cuda ('./dev deb --cuda'"));
  EXPECT_EQ(gpu.report().reason, refused.message) << "whole, and before somebody tries";
  gpu.expect_the_host_computes();
}

TEST_F(GpusOfDjinnd, each_way_to_have_none_is_told_in_its_own_words_and_the_host_computes) {
  const std::pair<Fakes, const char*> ways[] = {
      {{.library_path = ""}, "no NVIDIA driver"},
      {{.driver = "driver_version=12020"}, "for CUDA 12.2, and 13.0 is needed"},
      {{.driver = "compute_mode=3"}, "exclusive compute mode"},
      {{.driver = "name=A GPU MIG 1g.5gb"}, "a part of a GPU (MIG: A GPU MIG 1g.5gb)"},
      {{.driver = "mps=1"}, "end MPS"},
      {{.driver = "devices=0"}, "CUDA_ERROR_NO_DEVICE"},
      {{.driver = "cuInit@1=UNKNOWN"},
       std::filesystem::exists("/dev/nvidiactl") ? "start the driver"
                                                 : "/dev/nvidiactl is missing"},
      {{.driver = "cuMemcpyHtoDAsync@1=ILLEGAL_ADDRESS"}, "ILLEGAL_ADDRESS"},
      {{.driver = "memory=1M"}, "nvidia-smi lists who has it"},
  };
  for (const auto& [fakes, words] : ways) {
    SCOPED_TRACE(words);
    GpuDaemon gpu(fakes);
    ASSERT_TRUE(gpu.becomes(DeviceState::kFailed));
    EXPECT_THAT(gpu.report().reason, HasSubstr(words));
    const ipc::Failed refused = gpu.refusal();
    EXPECT_EQ(refused.code, ErrorCode::kDeviceLost);
    EXPECT_THAT(refused.message, HasSubstr(words));
    gpu.expect_the_host_computes();
    EXPECT_TRUE(std::ranges::any_of(gpu.events(), [](const ipc::EventReport& event) {
      return event.kind == ipc::EventKind::kDeviceLost && event.device == "cuda:0";
    }));
  }
}

TEST_F(GpusOfDjinnd, without_the_program_for_them_djinnd_says_what_to_install) {
  GpuDaemon gpu({}, "/nonexistent/djinn-mover");
  ASSERT_TRUE(gpu.becomes(DeviceState::kFailed));
  EXPECT_THAT(gpu.report().reason, HasSubstr("djinn-cuda"));
  gpu.expect_the_host_computes();
}

void kill_movers(GpuDaemon& gpu) {
  ASSERT_TRUE(gpu.becomes(DeviceState::kReady)) << gpu.report().reason;
  // With what the first check leaves a thread to close. Each life would add to it what it leaks.
  const ptrdiff_t before = gpu.descriptors();
  pid_t last = 0;
  std::chrono::steady_clock::time_point killed;
  for (int i = 0; i < 7; ++i) {
    // The first while they are idle, the others wherever they are in their check.
    ASSERT_TRUE(i >= 4 || gpu.becomes(DeviceState::kReady)) << gpu.report().reason;
    pid_t next = 0;
    ASSERT_TRUE(eventually([&] {
      next = gpu.mover();
      return next != 0 && next != last;
    }));
    // That the ones before had been ready, for a moment, changes nothing.
    const auto waited = std::chrono::steady_clock::now() - killed;
    EXPECT_TRUE(i < 6 || waited >= std::chrono::milliseconds(800)) << "no back-off";
    killed = std::chrono::steady_clock::now();
    ASSERT_EQ(::kill(next, SIGKILL), 0);
    last = next;
  }
  ASSERT_TRUE(gpu.becomes(DeviceState::kReady)) << gpu.report().reason;
  EXPECT_TRUE(eventually([&] { return gpu.descriptors() <= before; }))
      << gpu.descriptors() << " descriptors, and more than " << before;
  gpu.expect_the_host_computes();
}

TEST_F(GpusOfDjinnd,
       movers_that_are_killed_are_started_again_and_later_and_leave_nothing_but_a_line) {
  ::testing::internal::CaptureStderr();
  {
    GpuDaemon gpu;
    kill_movers(gpu);
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  const size_t first = log.find("the mover of cuda:0 ended");
  EXPECT_NE(first, log.npos) << log;
  EXPECT_EQ(log.find("the mover of cuda:0 ended", first + 1), log.npos) << log;
}

TEST_F(GpusOfDjinnd, a_fault_that_needs_a_reset_loses_the_device_and_others_do_not) {
  mover::FaultPipe faults;
  GpuDaemon gpu({.nvml = faults.option()});
  ASSERT_TRUE(gpu.becomes(DeviceState::kReady)) << gpu.report().reason;
  // Of the second it is heard at a measure after the one that told the first.
  for (const char* xid : {"31\n", "13\n"}) {
    faults.tell(xid);
    ASSERT_TRUE(eventually([&] {
      EXPECT_EQ(gpu.report().state, DeviceState::kReady);
      return faults.all_heard();
    }));
  }
  faults.tell("79\n");
  ASSERT_TRUE(gpu.becomes(DeviceState::kLost));
  EXPECT_THAT(gpu.report().reason, AllOf(HasSubstr("Xid 79"), HasSubstr("and then djinnd")));
  EXPECT_EQ(gpu.refusal().code, ErrorCode::kDeviceLost);
  gpu.expect_the_host_computes();
}

TEST(MoverRestarts,
     follow_deaths_later_each_time_refusals_in_half_a_minute_and_a_lost_device_never) {
  using End = MoverRestarts::End;
  MoverRestarts restarts;
  EXPECT_EQ(restarts.wait_after(End::kEarly), 0u);
  EXPECT_EQ(restarts.wait_after(End::kEarly), 50u);
  EXPECT_EQ(restarts.wait_after(End::kEarly), 100u);
  EXPECT_EQ(restarts.wait_after(End::kRefused), 30'000u);
  EXPECT_EQ(restarts.wait_after(End::kEarly), 200u);
  EXPECT_EQ(restarts.wait_after(End::kSettled), 0u);
  EXPECT_EQ(restarts.wait_after(End::kEarly), 0u);
  EXPECT_EQ(restarts.wait_after(End::kLost), std::nullopt);
}

// Its next mover would be ready: NVML does not tell it what another one heard.
TEST_F(GpusOfDjinnd, one_that_is_lost_gets_no_other_mover_and_stays_lost) {
  mover::FaultPipe faults;
  GpuDaemon gpu({.nvml = faults.option()});
  ASSERT_TRUE(gpu.becomes(DeviceState::kReady)) << gpu.report().reason;
  (void)gpu.place(gpu.load(1, 'a'));
  faults.tell("79\n");
  ASSERT_TRUE(gpu.becomes(DeviceState::kLost));
  EXPECT_TRUE(eventually([&] { return gpu.report().used_bytes == 0; })) << "a copy is lost with it";
  ASSERT_TRUE(eventually([&] { return gpu.descriptors_without_mover().has_value(); }));
  gpu.expect_the_host_computes();
  EXPECT_EQ(gpu.mover(), 0);
  EXPECT_EQ(gpu.report().state, DeviceState::kLost);
}

TEST_F(GpusOfDjinnd, who_is_on_one_that_is_lost_is_told_once_and_who_is_elsewhere_goes_on) {
  mover::FaultPipe faults;
  GpuDaemon gpu({.nvml = faults.option()}, testing::mover_program(), {},
                testing::fake_worker_program());
  ASSERT_TRUE(gpu.becomes(DeviceState::kReady)) << gpu.report().reason;
  TestClient host(gpu.daemon());
  host.greet();
  {
    TestClient there(gpu.daemon());
    there.greet(false, 1 << 16, "cuda:0");
    ASSERT_NE(gpu.worker(), 0);
    faults.tell("79\n");
    const auto told = there.receive();
    ASSERT_TRUE(told.has_value());
    const auto* const failed = std::get_if<ipc::Failed>(&told->body);
    ASSERT_NE(failed, nullptr);
    EXPECT_EQ(told->number, 0u) << "it answers no request";
    EXPECT_EQ(failed->code, ErrorCode::kDeviceLost);
    EXPECT_THAT(failed->message,
                AllOf(HasSubstr("Xid 79"), HasSubstr("Reset the GPU"), HasSubstr("cpu:0")));
    EXPECT_FALSE(there.receive().has_value()) << "and that is all";
    EXPECT_TRUE(eventually([&] { return gpu.worker() == 0; })) << "its worker has nothing to do";
    EXPECT_TRUE(std::ranges::none_of(gpu.events(), [](const ipc::EventReport& event) {
      return event.kind == ipc::EventKind::kWorkerLost;
    })) << "nobody is to blame for that";
  }
  EXPECT_TRUE(eventually([&] { return gpu.report().used_bytes == 0; }));
  host.submit_graph(graph_of("fake::nothing"));
  EXPECT_EQ(host.completion(), ErrorCode::kOk);
  EXPECT_EQ(gpu.refusal().code, ErrorCode::kDeviceLost);
  EXPECT_EQ(gpu.worker(), 0) << "none comes in its place";
}

TEST_F(GpusOfDjinnd, who_asks_while_one_is_looked_at_is_refused_and_not_put_off) {
  GpuDaemon gpu({.lie = "silent"}, testing::lying_mover_program());
  EXPECT_EQ(gpu.report().state, DeviceState::kStarting);
  EXPECT_EQ(gpu.refusal().code, ErrorCode::kBusy);
}

TEST_F(GpusOfDjinnd, a_lost_context_is_followed_by_a_new_one_at_once_and_each_new_reason_is_told) {
  GpuDaemon gpu({.lie = "changes"}, testing::lying_mover_program());
  EXPECT_TRUE(eventually([&] {
    return std::ranges::count_if(gpu.events(), [](const ipc::EventReport& event) {
             return event.kind == ipc::EventKind::kDeviceLost;
           }) >= 3;
  }));
}

TEST_F(GpusOfDjinnd, a_long_reason_keeps_its_end_that_says_what_to_do) {
  GpuDaemon gpu({}, "/nonexistent/" + std::string(300, 'm'));
  ASSERT_TRUE(gpu.becomes(DeviceState::kFailed));
  EXPECT_THAT(gpu.report().reason, HasSubstr("or leave cuda:0 out."));
}

TEST_F(GpusOfDjinnd, a_program_that_is_there_and_does_not_start_is_not_to_be_installed) {
  GpuDaemon gpu({}, "/dev/null");
  ASSERT_TRUE(gpu.becomes(DeviceState::kFailed));
  EXPECT_THAT(gpu.report().reason, Not(HasSubstr("djinn-cuda")));
}

TEST_F(GpusOfDjinnd, a_mover_that_lies_is_ended_and_djinnd_serves_on) {
  const std::pair<const char*, const char*> lies[] = {
      {"garbage", "cannot be understood"},
      {"unasked", "was not asked"},
      {"ready-twice", "was not asked"},
      {"flood", "was not asked"},
      {"granules", "granules of 3 bytes"},
      {"huge-granules", "granules of"},
      {"early-extent", "was not asked"},
      {"no-extent", "was not asked"},
      {"two-extents", "was not asked"},
      {"file", "before it was ready"},
      {"pipe", "before it was ready"},
      {"wrong-number", "was not asked"},
      {"wrong-kind", "was not asked"},
      {"wrong-sum", "comes back as other bytes"},
      {"more-free", "more memory than there can be"},
      {"unconfined", "not confined by a filter"},
      {"no-landlock", "not confined by Landlock"},
      {"large-extent", "of another size than was ordered"},
      {"growing-extent", "of another size than was ordered"},
      {"name", "cannot be understood"},
      {"endless", "cannot be understood"},
      {"dies", "before it was ready"},
  };
  std::optional<ptrdiff_t> without;
  {
    GpuDaemon gpu({}, "/nonexistent/djinn-mover");
    ASSERT_TRUE(gpu.becomes(DeviceState::kFailed));
    ASSERT_TRUE(
        eventually([&] { return (without = gpu.descriptors_without_mover()).has_value(); }));
  }
  for (const auto& [lie, words] : lies) {
    SCOPED_TRACE(lie);
    GpuDaemon gpu({.lie = lie}, testing::lying_mover_program());
    ASSERT_TRUE(gpu.becomes(DeviceState::kFailed));
    EXPECT_THAT(gpu.report().reason, HasSubstr(words));
    EXPECT_TRUE(eventually([&] {
      const auto left = gpu.descriptors_without_mover();
      return left && *left <= *without;
    }));
    gpu.expect_the_host_computes();
  }
}

TEST_F(GpusOfDjinnd, one_that_has_another_uuid_after_a_restart_is_not_taken_for_the_old_one) {
  GpuDaemon gpu({.lie = "other-uuid"}, testing::lying_mover_program());
  ASSERT_TRUE(gpu.becomes(DeviceState::kFailed));
  EXPECT_THAT(gpu.report().reason, AllOf(HasSubstr("Another GPU"), HasSubstr("Restart djinnd")));
  EXPECT_EQ(gpu.refusal().code, ErrorCode::kDeviceLost);
}

// And hears of no variable that would number devices anew.
TEST_F(GpusOfDjinnd, an_honest_mover_of_the_tests_is_ready) {
  const EnvironmentVariable visible("CUDA_VISIBLE_DEVICES", "1");
  const EnvironmentVariable served("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent");
  GpuDaemon gpu({}, testing::lying_mover_program());
  EXPECT_TRUE(gpu.becomes(DeviceState::kReady)) << gpu.report().reason;
}

// --- copies of models

TEST_F(GpusOfDjinnd,
       a_model_is_copied_from_the_hosts_memory_once_for_all_and_dropped_and_copied_again) {
  GpuDaemon gpu;
  ASSERT_TRUE(gpu.becomes(DeviceState::kReady)) << gpu.report().reason;
  const ModelId id = gpu.load(11, 'a');
  const uint64_t read = gpu.bytes_read(), bytes = gpu.model(id).bytes;
  EXPECT_GE(bytes, 11 * kMiB);
  const ipc::ModelPlaced first = gpu.place(id);
  EXPECT_EQ(first.uploaded_bytes, bytes);
  EXPECT_GE(first.bytes, bytes);
  EXPECT_EQ(first.bytes % (2 * kMiB), 0u) << "whole granules";
  EXPECT_EQ(gpu.report().used_bytes, first.bytes);
  EXPECT_EQ(gpu.model(id).on_gpus, 1u);
  TestClient second(gpu.daemon());
  second.greet(true);
  EXPECT_EQ(second.ask<ipc::ModelPlaced>(ipc::PlaceModel{id, "cuda:0"}).uploaded_bytes, 0u);
  EXPECT_EQ(gpu.report().uploaded_bytes, bytes) << "once";
  gpu.evict_to_host(id);
  EXPECT_EQ(gpu.report().used_bytes, 0u);
  EXPECT_EQ(gpu.model(id).on_gpus, 0u);
  EXPECT_EQ(gpu.model(id).state, ipc::ModelState::kResident);
  EXPECT_EQ(gpu.place(id).uploaded_bytes, bytes);
  EXPECT_EQ(gpu.bytes_read(), read) << "no file was read for it";
  gpu.observer().ask<ipc::Done>(ipc::UnloadModel{id});
  EXPECT_EQ(gpu.report().used_bytes, 0u) << "a copy leaves with its model";
}

TEST_F(GpusOfDjinnd, a_copy_that_somebody_wrote_to_is_told_and_made_anew_from_the_host) {
  GpuDaemon gpu;
  ASSERT_TRUE(gpu.becomes(DeviceState::kReady)) << gpu.report().reason;
  const ModelId id = gpu.load(5, 'b');
  const uint64_t read = gpu.bytes_read(), bytes = gpu.model(id).bytes;
  (void)gpu.place(id);
  ASSERT_GE(gpu.tamper(), 1);
  EXPECT_EQ(gpu.place(id).uploaded_bytes, bytes);
  EXPECT_TRUE(std::ranges::any_of(gpu.events(), [&](const ipc::EventReport& event) {
    return event.kind == ipc::EventKind::kCopyDiffered && event.model == id;
  }));
  EXPECT_EQ(gpu.place(id).uploaded_bytes, 0u) << "it is whole again";
  EXPECT_EQ(gpu.bytes_read(), read);
}

void kill_while_filling(int kills) {
  GpuDaemon gpu({.driver = "delay_us=2000"});
  ASSERT_TRUE(gpu.becomes(DeviceState::kReady)) << gpu.report().reason;
  const ModelId id = gpu.load(24, 'c');
  const uint64_t read = gpu.bytes_read();
  for (int i = 0; i < kills; ++i) {
    const pid_t mover = gpu.mover();
    ASSERT_NE(mover, 0);
    TestClient placer(gpu.daemon());
    placer.greet(true);
    placer.send({99, ipc::PlaceModel{id, "cuda:0"}});
    // It has its memory, and is made, filled or compared.
    ASSERT_TRUE(eventually([&] { return gpu.report().used_bytes > 0; }));
    ASSERT_EQ(::kill(mover, SIGKILL), 0);
    const auto reply = placer.receive();
    ASSERT_TRUE(reply.has_value());
    const auto* const placed = std::get_if<ipc::ModelPlaced>(&reply->body);
    ASSERT_NE(placed, nullptr) << "kill " << i;
    ASSERT_TRUE(gpu.becomes(DeviceState::kReady)) << gpu.report().reason;
    EXPECT_EQ(gpu.place(id).uploaded_bytes, 0u) << "it holds what the host has";
    gpu.evict_to_host(id);
  }
  EXPECT_EQ(gpu.bytes_read(), read);
  EXPECT_EQ(gpu.report().used_bytes, 0u);
  gpu.expect_the_host_computes();
}

TEST_F(GpusOfDjinnd, movers_that_are_killed_while_they_fill_a_copy_cost_neither_a_file_nor_a_byte) {
  kill_while_filling(10);
}

TEST_F(GpusOfDjinnd, full_a_hundred_movers_that_are_killed_cost_no_more) {
  kill_while_filling(100);
}

TEST_F(GpusOfDjinnd, an_order_that_ends_each_mover_is_refused_and_the_device_stays) {
  GpuDaemon gpu({.lie = "dies-uploading"}, testing::lying_mover_program());
  ASSERT_TRUE(gpu.becomes(DeviceState::kReady)) << gpu.report().reason;
  const ipc::Failed failed = gpu.refusal_to_place(gpu.load(1, 'd'));
  EXPECT_EQ(failed.code, ErrorCode::kDeviceLost);
  EXPECT_THAT(failed.message, HasSubstr("at the same order"));
  EXPECT_TRUE(eventually([&] { return gpu.report().used_bytes == 0; }));
  EXPECT_TRUE(gpu.becomes(DeviceState::kReady));
  gpu.expect_the_host_computes();
}

TEST_F(GpusOfDjinnd, any_call_of_the_driver_that_fails_is_an_error_of_its_own_or_none) {
  for (const char* code : {"UNKNOWN", "OUT_OF_MEMORY", "ILLEGAL_ADDRESS"}) {
    int refused = 0;
    // The check of the device makes the calls before.
    for (const int call : {60, 80, 100, 120, 140, 160, 180, 200, 230}) {
      SCOPED_TRACE(fmt::format("call {} is {}", call, code));
      GpuDaemon gpu({.driver = fmt::format("*@{}={}", call, code)});
      if (!eventually([&] { return gpu.report().state != DeviceState::kStarting; })) FAIL();
      if (gpu.report().state != DeviceState::kReady) continue;
      const ModelId id = gpu.load(5, 'e');
      const uint64_t read = gpu.bytes_read();
      gpu.observer().send({50, ipc::PlaceModel{id, "cuda:0"}});
      const auto reply = gpu.observer().receive();
      ASSERT_TRUE(reply.has_value());
      const auto* const failed = std::get_if<ipc::Failed>(&reply->body);
      refused += failed != nullptr;
      if (failed != nullptr) {
        EXPECT_TRUE(eventually([&] { return gpu.report().used_bytes == 0; }));
        EXPECT_FALSE(failed->message.empty());
      }
      EXPECT_EQ(gpu.bytes_read(), read);
      gpu.expect_the_host_computes();
    }
    EXPECT_GT(refused, 0) << code;
  }
}

TEST_F(GpusOfDjinnd, a_limit_holds_and_who_was_placed_first_gives_way_unless_its_model_is_pinned) {
  GpuDaemon gpu({}, testing::mover_program(), {"--device-limit", "cuda:0=20MiB"});
  ASSERT_TRUE(gpu.becomes(DeviceState::kReady)) << gpu.report().reason;
  EXPECT_EQ(gpu.report().total_bytes, 20 * kMiB);
  const ModelId pinned = gpu.load(5, 'f'), first = gpu.load(5, 'g', false),
                second = gpu.load(5, 'h', false), large = gpu.load(21, 'i');
  for (const ModelId id : {pinned, first, second}) (void)gpu.place(id);
  EXPECT_TRUE(eventually([&] { return gpu.model(first).on_gpus == 0; }))
      << "18 of 20 MiB are above what idle ones may have";
  EXPECT_EQ(gpu.model(second).on_gpus, 1u);
  ASSERT_TRUE(eventually([&] { return gpu.report().used_bytes == 12 * kMiB; }));
  (void)gpu.place(first);
  EXPECT_TRUE(eventually([&] { return gpu.model(second).on_gpus == 0; }));
  EXPECT_EQ(gpu.model(pinned).on_gpus, 1u);
  const ipc::Failed failed = gpu.refusal_to_place(large);
  EXPECT_EQ(failed.code, ErrorCode::kOutOfMemory);
  EXPECT_THAT(failed.message, HasSubstr("device.cuda:0.limit"));
}

// What the mover has read of it before, the worker may have written to after that.
TEST_F(GpusOfDjinnd, a_copy_whose_worker_dies_while_it_is_compared_is_compared_once_more) {
  GpuDaemon gpu({.lie = "stops-summing"}, testing::lying_mover_program(), {},
                testing::fake_worker_program());
  ASSERT_TRUE(gpu.becomes(DeviceState::kReady)) << gpu.report().reason;
  const auto goes_on_when_stopped = [&] {
    pid_t mover = 0;
    EXPECT_TRUE(eventually([&] { return (mover = gpu.stopped_mover()) != 0; }));
    EXPECT_TRUE(mover != 0 && ::kill(mover, SIGCONT) == 0);
  };
  TestClient client(gpu.daemon());
  client.greet(false, 1 << 16, "cuda:0");
  const Fd file = testing::model_file(gpu.daemon().directory(), 1 << 18, 'k');
  client.ask<ipc::Done>(ipc::AddFiles{1}, {file.get()});
  client.send({50, ipc::OpenModel{.label = "model"}});
  goes_on_when_stopped();
  const auto opened = client.receive();
  ASSERT_TRUE(opened.has_value());
  ASSERT_TRUE(std::holds_alternative<ipc::ModelOpened>(opened->body));
  const ModelId id = std::get<ipc::ModelOpened>(opened->body).model;
  TestClient placer(gpu.daemon());
  placer.greet(true);
  placer.send({50, ipc::PlaceModel{id, "cuda:0"}});
  ASSERT_TRUE(eventually([&] { return gpu.stopped_mover() != 0; }));
  const pid_t worker = gpu.worker();
  ASSERT_NE(worker, 0);
  ASSERT_EQ(::kill(worker, SIGKILL), 0);
  ASSERT_TRUE(eventually([&] {
    return std::ranges::any_of(gpu.events(), [](const ipc::EventReport& event) {
      return event.kind == ipc::EventKind::kWorkerLost;
    });
  }));
  goes_on_when_stopped();
  ASSERT_TRUE(eventually([&] { return placer.has_reply() || gpu.stopped_mover() != 0; }));
  EXPECT_FALSE(placer.has_reply()) << "it is told to be there, and was not compared since";
  goes_on_when_stopped();
  const auto placed = placer.receive();
  ASSERT_TRUE(placed.has_value());
  EXPECT_TRUE(std::holds_alternative<ipc::ModelPlaced>(placed->body));
}

TEST_F(GpusOfDjinnd, a_copy_whose_opener_does_not_have_it_yet_gives_way_to_nobody) {
  GpuDaemon gpu({}, testing::lying_mover_program(), {}, testing::fake_worker_program());
  ASSERT_TRUE(gpu.becomes(DeviceState::kReady)) << gpu.report().reason;
  const ModelId large = gpu.load(40, 'l');
  TestClient client(gpu.daemon());
  client.greet(false, 1 << 16, "cuda:0");
  const Fd file = testing::model_file(gpu.daemon().directory(), 6 << 20, 'm');
  const pid_t worker = gpu.worker();
  ASSERT_NE(worker, 0);
  ASSERT_EQ(::kill(worker, SIGSTOP), 0);
  client.ask<ipc::Done>(ipc::AddFiles{1}, {file.get()});
  client.send({50, ipc::OpenModel{.label = "model"}});
  EXPECT_TRUE(eventually([&] {
    const auto models = gpu.observer().ask<ipc::ModelList>(ipc::ListModels{}).models;
    return std::ranges::any_of(models, [](const auto& one) { return one.on_gpus == 1; });
  }));
  EXPECT_EQ(gpu.refusal_to_place(large).code, ErrorCode::kOutOfMemory);
  EXPECT_FALSE(client.has_reply());
  ASSERT_EQ(::kill(worker, SIGCONT), 0);
  const auto opened = client.receive();
  ASSERT_TRUE(opened.has_value());
  EXPECT_TRUE(std::holds_alternative<ipc::ModelOpened>(opened->body));
}

TEST_F(GpusOfDjinnd, what_cannot_be_placed_is_refused_and_says_why) {
  GpuDaemon gpu;
  const ModelId id = gpu.load(1, 'j');
  ASSERT_TRUE(gpu.becomes(DeviceState::kReady)) << gpu.report().reason;
  TestClient& asks = gpu.observer();
  EXPECT_EQ(asks.ask<ipc::Failed>(ipc::PlaceModel{id, "cuda:1"}).code, ErrorCode::kNotFound);
  EXPECT_EQ(asks.ask<ipc::Failed>(ipc::PlaceModel{id, "cpu:0"}).code, ErrorCode::kNotFound);
  EXPECT_EQ(gpu.refusal_to_place({id.value + 1}).code, ErrorCode::kNotFound);
  EXPECT_EQ(asks.ask<ipc::Failed>(ipc::EvictModel{id, ipc::Tier::kHost}).code,
            ErrorCode::kUnsupported)
      << "there is no copy";
}

}  // namespace
}  // namespace djinn::daemon
