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
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/djinnd/testing/programs.h"
#include "daemon/djinnd/testing/test_daemon.h"

namespace djinn::daemon {
namespace {

using ipc::DeviceState;
using testing::eventually;
using testing::graph_of;
using ::testing::HasSubstr;
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
      {{.driver = "memory=1M"}, "OUT_OF_MEMORY"},
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

TEST_F(Gpus, movers_that_are_killed_are_started_again_and_leave_nothing_behind) {
  Gpu gpu;
  ASSERT_TRUE(gpu.becomes(DeviceState::kReady)) << gpu.report().reason;
  const ptrdiff_t before = gpu.descriptors();
  pid_t last = 0;
  for (int i = 0; i < 12; ++i) {
    // The first while they are idle, the others wherever they are in their check.
    ASSERT_TRUE(i >= 8 || gpu.becomes(DeviceState::kReady)) << gpu.report().reason;
    pid_t next = 0;
    ASSERT_TRUE(eventually([&] {
      next = gpu.mover();
      return next != 0 && next != last;
    }));
    ASSERT_EQ(::kill(next, SIGKILL), 0);
    last = next;
  }
  ASSERT_TRUE(gpu.becomes(DeviceState::kReady)) << gpu.report().reason;
  EXPECT_TRUE(eventually([&] { return gpu.descriptors() == before; }))
      << gpu.descriptors() << " descriptors, and not " << before;
  gpu.expect_the_host_computes();
}

TEST_F(Gpus, a_fault_that_needs_a_reset_loses_the_device_and_others_do_not) {
  char path[] = "/tmp/djinn-xids-XXXXXX";
  const Fd file(::mkstemp(path));
  Gpu gpu({.nvml = std::string("xids=") + path});
  ASSERT_TRUE(gpu.becomes(DeviceState::kReady)) << gpu.report().reason;
  ASSERT_EQ(::write(file.get(), "31\n", 3), 3);
  for (int i = 0; i < 20; ++i) ASSERT_EQ(gpu.report().state, DeviceState::kReady);
  ASSERT_EQ(::write(file.get(), "79\n", 3), 3);
  ASSERT_TRUE(gpu.becomes(DeviceState::kLost));
  EXPECT_THAT(gpu.report().reason, HasSubstr("Xid 79"));
  EXPECT_EQ(gpu.refusal().code, ErrorCode::kDeviceLost);
  gpu.expect_the_host_computes();
  std::filesystem::remove(path);
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
      {"endless", ""},
      {"dies", "before it was ready"},
  };
  for (const auto& [lie, words] : lies) {
    SCOPED_TRACE(lie);
    Gpu gpu({.lie = lie}, testing::lying_mover_program());
    ASSERT_TRUE(gpu.becomes(DeviceState::kFailed));
    EXPECT_THAT(gpu.report().reason, HasSubstr(words));
    gpu.expect_the_host_computes();
  }
}

TEST_F(Gpus, an_honest_mover_of_the_tests_is_ready) {
  Gpu gpu({}, testing::lying_mover_program());
  EXPECT_TRUE(gpu.becomes(DeviceState::kReady)) << gpu.report().reason;
}

}  // namespace
}  // namespace djinn::daemon
