// SPDX-License-Identifier: Apache-2.0

// djinn-mover as a process on the fake driver: what it answers, and how it ends.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/mover/device.h"
#include "daemon/mover/fault_pipe_for_tests.h"
#include "daemon/mover/mover_for_tests.h"
#include "ipc/exit_status.h"
#include "kernel/pal/pal_values_for_tests.h"

namespace djinn::mover {
namespace {

constexpr uint64_t kBytes = uint64_t{24} << 20;  // more than all slots of the staging
constexpr ChecksumKey kKey{0x1234'5678'9abc'def0, 77};

Fd memfd_with(std::span<const std::byte> content) {
  Fd memfd(::memfd_create("test", MFD_CLOEXEC));
  EXPECT_EQ(::pwrite(memfd.get(), content.data(), content.size(), 0),
            static_cast<ssize_t>(content.size()));
  return memfd;
}

Checksum sum_of(std::span<const std::byte> bytes) {
  KeyedChecksum sum(kKey);
  sum.add(bytes);
  return sum.value();
}

template <typename T>
const T* body_of(const std::optional<MoverProcess::Answer>& answer) {
  return answer ? std::get_if<T>(&answer->event.body) : nullptr;
}

// What a mover said that has no device, and how it ended.
struct Refusal {
  ErrorCode code = ErrorCode::kOk;
  std::string message;
  int status = -1;
};
Refusal refusal_of(const std::vector<std::string>& fakes) {
  MoverProcess mover(fakes);
  const auto answer = mover.receive();
  const auto* const failed = body_of<ipc::OrderFailed>(answer);
  EXPECT_NE(failed, nullptr);
  if (failed == nullptr) return {};
  EXPECT_EQ(answer->event.number, 0u);
  return {failed->code, failed->message, mover.end()};
}

bool says(const Refusal& refusal, std::string_view words) {
  return refusal.message.find(words) != std::string::npos;
}

TEST(mover, each_way_to_have_no_device_has_its_own_sentence) {
  const Refusal no_driver = refusal_of({"LD_LIBRARY_PATH="});
  EXPECT_EQ(no_driver.code, ErrorCode::kNotFound);
  EXPECT_TRUE(says(no_driver, "no NVIDIA driver")) << no_driver.message;
  const Refusal old = refusal_of({"DJINN_FAKE_CUDA=driver_version=12020"});
  EXPECT_EQ(old.code, ErrorCode::kUnsupported);
  EXPECT_TRUE(says(old, "12.2") && says(old, "13.0") && says(old, "580")) << old.message;
  const Refusal exclusive = refusal_of({"DJINN_FAKE_CUDA=compute_mode=3"});
  EXPECT_EQ(exclusive.code, ErrorCode::kBusy);
  EXPECT_TRUE(says(exclusive, "exclusive compute mode")) << exclusive.message;
  const Refusal prohibited = refusal_of({"DJINN_FAKE_CUDA=compute_mode=2"});
  EXPECT_TRUE(says(prohibited, "prohibited compute mode")) << prohibited.message;
  const Refusal part = refusal_of({"DJINN_FAKE_CUDA=name=A GPU MIG 1g.5gb"});
  EXPECT_TRUE(says(part, "a part of a GPU (MIG: A GPU MIG 1g.5gb)")) << part.message;
  const Refusal shared = refusal_of({"DJINN_FAKE_CUDA=mps=1"});
  EXPECT_TRUE(says(shared, "end MPS")) << shared.message;
  // What the nodes of this machine tell comes before the driver's words.
  const Refusal none = refusal_of({"DJINN_FAKE_CUDA=devices=0"});
  EXPECT_EQ(none.code, ErrorCode::kNotFound);
  EXPECT_TRUE(says(none, "CUDA_ERROR_NO_DEVICE")) << none.message;
  const Refusal broken = refusal_of({"DJINN_FAKE_CUDA=cuInit@1=UNKNOWN"});
  EXPECT_NE(says(broken, "/dev/nvidiactl is missing"), std::filesystem::exists("/dev/nvidiactl"))
      << broken.message;
  const std::vector<Refusal> all{no_driver, old, exclusive, prohibited, part, shared, none, broken};
  std::set<std::string> messages;
  for (const Refusal& one : all) {
    messages.insert(one.message);
    EXPECT_EQ(one.status, 1) << one.message;
  }
  EXPECT_EQ(messages.size(), all.size());
}

// Threads that the driver's libraries started before it asked are not bound by Landlock.
TEST(mover, says_what_it_has_and_that_seccomp_binds_it_and_landlock_the_thread_that_asks) {
  MoverProcess mover({"DJINN_FAKE_NVML=driver=580.7"});
  const auto answer = mover.receive();
  const auto* const ready = body_of<ipc::MoverReady>(answer);
  ASSERT_NE(ready, nullptr);
  EXPECT_TRUE(ready->seccomp);
  EXPECT_EQ(ready->name, "Fake GPU");
  EXPECT_EQ(ready->uuid, "GPU-646a696e-6e20-6661-6b65-206770750000");
  EXPECT_EQ(ready->driver, "580.7");
  EXPECT_EQ(ready->granularity_bytes, uint64_t{2} << 20);
  EXPECT_EQ(mover.end(), 0);
}

TEST(mover, without_nvml_it_works_and_tells_cudas_version) {
  for (const char* fails :
       {"nvmlInit_v2", "nvmlSystemGetDriverVersion", "nvmlDeviceGetHandleByUUID",
        "nvmlEventSetCreate", "nvmlDeviceRegisterEvents"}) {
    MoverProcess mover({std::string("DJINN_FAKE_NVML=fails=") + fails});
    const auto answer = mover.receive();
    const auto* const ready = body_of<ipc::MoverReady>(answer);
    ASSERT_NE(ready, nullptr) << fails;
    EXPECT_EQ(ready->driver, "CUDA 13.0") << fails;
    EXPECT_NE(body_of<ipc::DeviceMeasured>(mover.ask({1, ipc::MeasureDevice{}})), nullptr);
  }
  MoverProcess mover({"DJINN_FAKE_NVML=unsupported=1;driver=580.7"});
  const auto answer = mover.receive();
  const auto* const ready = body_of<ipc::MoverReady>(answer);
  ASSERT_NE(ready, nullptr);
  EXPECT_EQ(ready->driver, "580.7");
}

TEST(mover, an_extent_is_zero_and_holds_what_is_uploaded_also_for_the_next_mover) {
  const std::vector<std::byte> content = pal::pattern(kBytes), zeros(kBytes);
  const Fd memfd = memfd_with(content);
  Fd extent;
  {
    MoverProcess mover({});
    ASSERT_NE(body_of<ipc::MoverReady>(mover.receive()), nullptr);
    auto made = mover.ask({1, ipc::CreateExtent{kBytes}});
    ASSERT_NE(body_of<ipc::OrderDone>(made), nullptr);
    ASSERT_EQ(made->fds.size(), 1u);
    extent = std::move(made->fds[0]);
    const auto fresh = mover.ask({2, ipc::ChecksumExtent{kBytes, kKey}}, std::array{extent.get()});
    ASSERT_NE(body_of<ipc::Checksummed>(fresh), nullptr);
    EXPECT_EQ(fresh->event.number, 2u);
    EXPECT_EQ(body_of<ipc::Checksummed>(fresh)->sum, sum_of(zeros));
    const std::vector<ipc::UploadRange> ranges{{0, 0, 12}, {12, 12, kBytes - 12}};
    for (int again = 0; again < 2; ++again) {
      ASSERT_NE(body_of<ipc::OrderDone>(mover.ask({3, ipc::UploadExtent{kBytes, ranges}},
                                                  std::array{memfd.get(), extent.get()})),
                nullptr);
    }
    mover.kill();
  }
  MoverProcess next({});
  ASSERT_NE(body_of<ipc::MoverReady>(next.receive()), nullptr);
  const std::array fds{extent.get()};
  const auto there = next.ask({1, ipc::ChecksumExtent{kBytes, kKey}}, fds);
  ASSERT_NE(body_of<ipc::Checksummed>(there), nullptr);
  EXPECT_EQ(body_of<ipc::Checksummed>(there)->sum, sum_of(content));
  ASSERT_NE(body_of<ipc::OrderDone>(next.ask({2, ipc::ZeroExtent{kBytes}}, fds)), nullptr);
  const auto empty = next.ask({3, ipc::ChecksumExtent{kBytes, kKey}}, fds);
  ASSERT_NE(body_of<ipc::Checksummed>(empty), nullptr);
  EXPECT_EQ(body_of<ipc::Checksummed>(empty)->sum, sum_of(zeros));
}

TEST(mover, an_order_that_cannot_be_carried_out_is_refused_and_the_next_is_done) {
  MoverProcess mover({"DJINN_FAKE_CUDA=memory=64M"});
  ASSERT_NE(body_of<ipc::MoverReady>(mover.receive()), nullptr);
  auto made = mover.ask({1, ipc::CreateExtent{kBytes}});
  ASSERT_EQ(made->fds.size(), 1u);
  const Fd extent = std::move(made->fds[0]);
  const Fd memfd = memfd_with(pal::pattern(100));
  const int both[] = {memfd.get(), extent.get()};
  const auto code_of = [&](const ipc::MoverOrder& order, std::span<const int> fds) {
    const auto answer = mover.ask(order, fds);
    const auto* const failed = body_of<ipc::OrderFailed>(answer);
    return failed == nullptr ? ErrorCode::kOk : failed->code;
  };
  const std::span<const int> one(both + 1, 1);
  EXPECT_EQ(code_of({2, ipc::CreateExtent{uint64_t{1} << 40}}, {}), ErrorCode::kOutOfMemory);
  EXPECT_EQ(code_of({3, ipc::CreateExtent{1000}}, {}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of({4, ipc::CreateExtent{kBytes}}, one), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of({5, ipc::ZeroExtent{kBytes}}, {}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of({6, ipc::ZeroExtent{2 * kBytes}}, one), ErrorCode::kOutOfRange);
  EXPECT_EQ(code_of({7, ipc::ZeroExtent{kBytes}}, {both, 1}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of({8, ipc::UploadExtent{kBytes, {{0, 0, 101}}}}, both), ErrorCode::kIo);
  EXPECT_EQ(code_of({9, ipc::UploadExtent{kBytes, {{0, kBytes - 4, 8}}}}, both),
            ErrorCode::kOutOfRange);
  EXPECT_EQ(code_of({10, ipc::UploadExtent{kBytes, {{0, UINT64_MAX - 4, 8}}}}, both),
            ErrorCode::kOutOfRange);
  EXPECT_EQ(code_of({11, ipc::ZeroExtent{kBytes}}, one), ErrorCode::kOk);
}

TEST(mover, what_is_no_order_ends_it) {
  MoverProcess mover({});
  ASSERT_NE(body_of<ipc::MoverReady>(mover.receive()), nullptr);
  mover.send_bytes(pal::pattern(64));
  EXPECT_EQ(mover.receive(), std::nullopt);
  EXPECT_EQ(mover.end(), 1);
}

TEST(mover, tells_a_fault_that_needs_a_reset_once_it_happened_and_no_other) {
  FaultPipe faults;
  MoverProcess mover(
      {"DJINN_FAKE_NVML=" + faults.option(), "DJINN_FAKE_CUDA=cuMemGetInfo@3=ILLEGAL_ADDRESS"});
  ASSERT_NE(body_of<ipc::MoverReady>(mover.receive()), nullptr);
  const auto xid = [&] {
    const auto answer = mover.ask({1, ipc::MeasureDevice{}});
    const auto* const measured = body_of<ipc::DeviceMeasured>(answer);
    EXPECT_NE(measured, nullptr);
    return measured == nullptr ? 0 : measured->xid;
  };
  EXPECT_EQ(xid(), 0u);
  faults.tell("13\n31\n");
  EXPECT_EQ(xid(), 0u) << "faults of one process";
  EXPECT_TRUE(faults.all_heard());
  faults.tell("79\n");
  EXPECT_EQ(xid(), 79u) << "also where the driver answers no more";
  EXPECT_EQ(xid(), 79u) << "it stays";
}

TEST(mover, opens_the_node_of_its_own_gpu_alone_where_its_number_is_known) {
  char directory[] = "/tmp/djinn-nodes-XXXXXX";
  const std::filesystem::path nodes = ::mkdtemp(directory);
  for (const char* name : {"nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "null"}) {
    std::filesystem::create_symlink("/dev/null", nodes / name);
  }
  const Fd file(::open((nodes / "nvidia2").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  const auto names_of = [&](std::optional<uint32_t> minor) {
    std::set<std::string> names;
    for (const std::string& path : driver_nodes(minor, nodes)) {
      names.insert(std::filesystem::path(path).filename());
    }
    return names;
  };
  EXPECT_EQ(names_of(1), (std::set<std::string>{"nvidia-uvm", "nvidia1", "nvidiactl"}));
  EXPECT_EQ(names_of(std::nullopt),
            (std::set<std::string>{"nvidia-uvm", "nvidia0", "nvidia1", "nvidia10", "nvidiactl"}));
  std::filesystem::remove_all(nodes);
}

TEST(mover, says_which_node_is_its_own_where_nvml_does) {
  const std::pair<const char*, std::optional<uint32_t>> ways[] = {
      {"minor=7", 7}, {"fails=nvmlDeviceGetMinorNumber", std::nullopt}};
  for (const auto& [option, minor] : ways) {
    MoverProcess mover({std::string("DJINN_FAKE_NVML=") + option});
    const auto answer = mover.receive();
    const auto* const ready = body_of<ipc::MoverReady>(answer);
    ASSERT_NE(ready, nullptr) << option;
    EXPECT_EQ(ready->minor, minor) << option;
  }
}

// --- every call of the driver fails once

struct Life {
  bool was_ready = false;
  bool was_told = false;  // that something failed
  ErrorCode told = ErrorCode::kOk;
  bool was_wrong = false;  // an answer that is not true
  bool was_whole = false;  // each order was carried out
  int status = -1;
};

// As djinnd checks a device at its start.
Life live(const std::string& fault) {
  constexpr uint64_t kSmall = uint64_t{2} << 20;
  static const std::vector<std::byte> content = pal::pattern(kSmall);
  static const Checksum filled = sum_of(content), empty = sum_of(std::vector<std::byte>(kSmall));
  static const Fd memfd = memfd_with(content);
  MoverProcess mover({"DJINN_FAKE_CUDA=delay_us=0;" + fault});
  Life life;
  Fd extent;
  const auto tell = [&](const std::optional<MoverProcess::Answer>& answer) {
    const auto* const failed = body_of<ipc::OrderFailed>(answer);
    if (failed == nullptr) return answer.has_value();
    life.was_told = true;
    life.told = failed->code;
    return false;
  };
  const auto done = [&](const ipc::MoverOrder& order, std::span<const int> fds) {
    return tell(mover.ask(order, fds));
  };
  const auto holds = [&](const Checksum& expected) {
    const auto answer = mover.ask({1, ipc::ChecksumExtent{kSmall, kKey}}, std::array{extent.get()});
    if (!tell(answer)) return false;
    const auto* const sum = body_of<ipc::Checksummed>(answer);
    life.was_wrong |= sum == nullptr || sum->sum != expected;
    return true;
  };
  const auto all = [&] {
    if (!tell(mover.receive())) return false;
    life.was_ready = true;
    auto made = mover.ask({1, ipc::CreateExtent{kSmall}});
    if (!tell(made)) return false;
    if (made->fds.size() != 1) return !(life.was_wrong = true);
    extent = std::move(made->fds[0]);
    const int fds[] = {memfd.get(), extent.get()};
    return holds(empty) && done({1, ipc::UploadExtent{kSmall, {{0, 0, kSmall}}}}, fds) &&
           holds(filled) && done({1, ipc::ZeroExtent{kSmall}}, {fds + 1, 1}) && holds(empty) &&
           done({1, ipc::MeasureDevice{}}, {});
  };
  life.was_whole = all();
  life.status = mover.end();
  return life;
}

class mover_faults : public testing::TestWithParam<const char*> {};

TEST_P(mover_faults, are_told_or_end_it_and_no_answer_is_wrong) {
  const bool is_sticky = std::string_view(GetParam()) == "ILLEGAL_ADDRESS";
  int told = 0, call = 0;
  for (int beyond = 0; beyond < 3; ++call) {
    const Life life = live("*@" + std::to_string(call + 1) + "=" + GetParam());
    SCOPED_TRACE("call " + std::to_string(call + 1));
    EXPECT_FALSE(life.was_wrong);
    EXPECT_TRUE(life.was_whole || life.was_told) << "status " << life.status;
    told += life.was_told ? 1 : 0;
    // What fails as the mover ends, and what is asked twice where one answer is enough, is not
    // told.
    beyond = life.was_told ? 0 : beyond + 1;
    if (!life.was_told) continue;
    EXPECT_TRUE(!is_sticky || life.told == ErrorCode::kDeviceLost) << name_of(life.told);
    const bool is_lost = life.told == ErrorCode::kDeviceLost;
    EXPECT_EQ(life.status, is_lost ? ipc::kDeviceLostStatus : life.was_ready ? 0 : 1);
    ASSERT_LT(call, 300);
  }
  EXPECT_GT(told, 60) << "of " << call;
}

#if defined(__SANITIZE_ADDRESS__)
// A mover takes ten times as long to start: one code that stays and one that passes.
const auto kCodes = testing::Values("OUT_OF_MEMORY", "ILLEGAL_ADDRESS");
#else
const auto kCodes = testing::Values("OUT_OF_MEMORY", "UNKNOWN", "ILLEGAL_ADDRESS");
#endif
INSTANTIATE_TEST_SUITE_P(codes, mover_faults, kCodes,
                         [](const auto& each) { return std::string(each.param); });

}  // namespace
}  // namespace djinn::mover
