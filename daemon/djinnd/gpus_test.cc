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
#include "daemon/djinnd/workers/mover.h"
#include "daemon/mover/fault_pipe_for_tests.h"

namespace djinn::daemon {
namespace {

using ipc::DeviceState;
using ::testing::AllOf;
using testing::eventually;
using testing::graph_of;
using ::testing::HasSubstr;
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

class Gpu {
 public:
  explicit Gpu(const Fakes& fakes = {}, const std::string& mover = testing::mover_program())
      : path_("LD_LIBRARY_PATH", fakes.library_path),
        driver_("DJINN_FAKE_CUDA", fakes.driver),
        nvml_("DJINN_FAKE_NVML", fakes.nvml),
        lie_("DJINN_LIE", fakes.lie),
        daemon_({"--memory", "256MiB", "--devices", "cuda:0"}, {"--user"}, {.mover = mover}),
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
  [[nodiscard]] pid_t mover() const {
    for (const auto& process : std::filesystem::directory_iterator("/proc")) {
      const Fd file(::open((process.path() / "stat").c_str(), O_RDONLY | O_CLOEXEC));
      char text[256] = {};
      if (!file.valid() || ::read(file.get(), text, sizeof text - 1) <= 0) continue;
      // PID (NAME) STATE PARENT
      const std::string_view rest(text);
      const std::string ours = fmt::format(" {} ", daemon_.pid());
      const std::string_view before = rest.substr(0, rest.find(ours));
      const bool runs = before.ends_with("(djinn-mover) S") || before.ends_with("(djinn-mover) R");
      if (before.size() < rest.size() && runs) return static_cast<pid_t>(std::stoi(text));
    }
    return 0;
  }

 private:
  EnvironmentVariable path_, driver_, nvml_, lie_;
  TestDaemon daemon_;
  TestClient observer_;
};

class Gpus : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(testing::fake_cuda_directory()))
      GTEST_SKIP() << "there are no fakes";
  }
};

TEST_F(Gpus, one_that_answers_as_it_should_is_ready_and_told_with_its_driver_and_memory) {
  Gpu gpu({.driver = "memory=8G"});
  ASSERT_TRUE(gpu.becomes(DeviceState::kReady)) << gpu.report().reason;
  const ipc::DeviceReport report = gpu.report();
  EXPECT_EQ(report.name, "Fake GPU");
  EXPECT_EQ(report.driver, "580.7");
  EXPECT_EQ(report.total_bytes, uint64_t{8} << 30);
  EXPECT_LT(report.used_bytes, uint64_t{1} << 30);
  EXPECT_EQ(report.reason, "");
}

TEST_F(Gpus, who_names_one_is_told_that_nothing_computes_there_and_computes_nowhere) {
  Gpu gpu;
  ASSERT_TRUE(gpu.becomes(DeviceState::kReady)) << gpu.report().reason;
  const ipc::Failed refused = gpu.refusal();
  EXPECT_EQ(refused.code, ErrorCode::kUnsupported);
  EXPECT_THAT(refused.message, HasSubstr("no worker for GPUs"));
  gpu.expect_the_host_computes();
}

TEST_F(Gpus, each_way_to_have_none_is_told_in_its_own_words_and_the_host_computes) {
  const std::pair<Fakes, const char*> ways[] = {
      {{.library_path = ""}, "no NVIDIA driver"},
      {{.driver = "driver_version=12020"}, "for CUDA 12.2, and 13.0 is needed"},
      {{.driver = "compute_mode=3"}, "exclusive compute mode"},
      {{.driver = "devices=0"}, "start the driver"},
      {{.driver = "cuInit@1=UNKNOWN"},
       std::filesystem::exists("/dev/nvidia-uvm") ? "start the driver"
                                                  : "/dev/nvidia-uvm is missing"},
      {{.driver = "cuMemcpyHtoDAsync@1=ILLEGAL_ADDRESS"}, "ILLEGAL_ADDRESS"},
      {{.driver = "memory=1M"}, "nvidia-smi lists who has it"},
  };
  for (const auto& [fakes, words] : ways) {
    SCOPED_TRACE(words);
    Gpu gpu(fakes);
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

TEST_F(Gpus, without_the_program_for_them_djinnd_says_what_to_install) {
  Gpu gpu({}, "/nonexistent/djinn-mover");
  ASSERT_TRUE(gpu.becomes(DeviceState::kFailed));
  EXPECT_THAT(gpu.report().reason, HasSubstr("djinn-cuda"));
  gpu.expect_the_host_computes();
}

void kill_movers(Gpu& gpu) {
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

TEST_F(Gpus, movers_that_are_killed_are_started_again_and_later_and_leave_nothing_but_a_line) {
  ::testing::internal::CaptureStderr();
  {
    Gpu gpu;
    kill_movers(gpu);
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  const size_t first = log.find("the mover of cuda:0 ended");
  EXPECT_NE(first, log.npos) << log;
  EXPECT_EQ(log.find("the mover of cuda:0 ended", first + 1), log.npos) << log;
}

TEST_F(Gpus, a_fault_that_needs_a_reset_loses_the_device_and_others_do_not) {
  mover::FaultPipe faults;
  Gpu gpu({.nvml = faults.option()});
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
TEST_F(Gpus, one_that_is_lost_gets_no_other_mover_and_stays_lost) {
  mover::FaultPipe faults;
  Gpu gpu({.nvml = faults.option()});
  ASSERT_TRUE(gpu.becomes(DeviceState::kReady)) << gpu.report().reason;
  faults.tell("79\n");
  ASSERT_TRUE(gpu.becomes(DeviceState::kLost));
  ASSERT_TRUE(eventually([&] { return gpu.descriptors_without_mover().has_value(); }));
  gpu.expect_the_host_computes();
  EXPECT_EQ(gpu.mover(), 0);
  EXPECT_EQ(gpu.report().state, DeviceState::kLost);
}

TEST_F(Gpus, who_asks_while_one_is_looked_at_is_refused_and_not_put_off) {
  Gpu gpu({.lie = "silent"}, testing::lying_mover_program());
  EXPECT_EQ(gpu.report().state, DeviceState::kStarting);
  EXPECT_EQ(gpu.refusal().code, ErrorCode::kUnsupported);
}

TEST_F(Gpus, a_lost_context_is_followed_by_a_new_one_at_once_and_each_new_reason_is_told) {
  Gpu gpu({.lie = "changes"}, testing::lying_mover_program());
  EXPECT_TRUE(eventually([&] {
    return std::ranges::count_if(gpu.events(), [](const ipc::EventReport& event) {
             return event.kind == ipc::EventKind::kDeviceLost;
           }) >= 3;
  }));
}

TEST_F(Gpus, a_long_reason_keeps_its_end_that_says_what_to_do) {
  Gpu gpu({}, "/nonexistent/" + std::string(300, 'm'));
  ASSERT_TRUE(gpu.becomes(DeviceState::kFailed));
  EXPECT_THAT(gpu.report().reason, HasSubstr("or leave cuda:0 out."));
}

TEST_F(Gpus, a_program_that_is_there_and_does_not_start_is_not_to_be_installed) {
  Gpu gpu({}, "/dev/null");
  ASSERT_TRUE(gpu.becomes(DeviceState::kFailed));
  EXPECT_THAT(gpu.report().reason, Not(HasSubstr("djinn-cuda")));
}

TEST_F(Gpus, a_mover_that_lies_is_ended_and_djinnd_serves_on) {
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
      {"name", "cannot be understood"},
      {"endless", "cannot be understood"},
      {"dies", "before it was ready"},
  };
  std::optional<ptrdiff_t> without;
  {
    Gpu gpu({}, "/nonexistent/djinn-mover");
    ASSERT_TRUE(gpu.becomes(DeviceState::kFailed));
    ASSERT_TRUE(
        eventually([&] { return (without = gpu.descriptors_without_mover()).has_value(); }));
  }
  for (const auto& [lie, words] : lies) {
    SCOPED_TRACE(lie);
    Gpu gpu({.lie = lie}, testing::lying_mover_program());
    ASSERT_TRUE(gpu.becomes(DeviceState::kFailed));
    EXPECT_THAT(gpu.report().reason, HasSubstr(words));
    EXPECT_TRUE(eventually([&] {
      const auto left = gpu.descriptors_without_mover();
      return left && *left <= *without;
    }));
    gpu.expect_the_host_computes();
  }
}

// And hears of no variable that would number devices anew.
TEST_F(Gpus, an_honest_mover_of_the_tests_is_ready) {
  const EnvironmentVariable visible("CUDA_VISIBLE_DEVICES", "1");
  const EnvironmentVariable served("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent");
  Gpu gpu({}, testing::lying_mover_program());
  EXPECT_TRUE(gpu.becomes(DeviceState::kReady)) << gpu.report().reason;
}

}  // namespace
}  // namespace djinn::daemon
