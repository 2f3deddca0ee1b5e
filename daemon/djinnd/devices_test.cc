// SPDX-License-Identifier: Apache-2.0

// Two devices in one djinnd, the host and fake:0, a process of its own with workers without
// kernels: what is exhausted or lost on one is felt on the other by nobody.
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "daemon/djinnd/testing/contested_memory.h"
#include "daemon/djinnd/testing/programs.h"
#include "daemon/djinnd/testing/test_daemon.h"

namespace djinn::daemon {
namespace {

using testing::eventually;
using testing::graph_of;
using testing::model_file;
using testing::open_model;
using testing::TestClient;
using testing::TestDaemon;
using testing::want_refs;
using testing::write_config;

using testing::kMiB;
constexpr uint64_t kFakeBytes = 64 * kMiB;
constexpr uint64_t kElements = 6 * kMiB;  // of four bytes: three such models do not fit

class DevicesTest : public ::testing::Test {
 protected:
  explicit DevicesTest(const std::string& worker = testing::fake_worker_program(),
                       std::vector<std::string> mode = {"--user"})
      : daemon_({"--memory", "256MiB", "--test-device-bytes", std::to_string(kFakeBytes),
                 "--test-device-worker", worker},
                std::move(mode)),
        host_(daemon_),
        observer_(daemon_) {
    host_.greet();
    observer_.greet(true);
  }

  ipc::DeviceReport device(const std::string& name) {
    const auto list = observer_.ask<ipc::DeviceList>(ipc::ListDevices{});
    const auto found = std::ranges::find(list.devices, name, &ipc::DeviceReport::device);
    EXPECT_NE(found, list.devices.end()) << name;
    return found == list.devices.end() ? ipc::DeviceReport{} : *found;
  }
  ipc::ModelReport model(ModelId id) {
    const auto list = observer_.ask<ipc::ModelList>(ipc::ListModels{});
    const auto found = std::ranges::find(list.models, id, &ipc::ModelReport::model);
    EXPECT_NE(found, list.models.end());
    return found == list.models.end() ? ipc::ModelReport{} : *found;
  }
  // Of idle models, so that they can come back.
  bool is_hashed(ModelId id) {
    return eventually([&] { return model(id).hashed; });
  }
  [[nodiscard]] Fd file(char fill) const {
    return model_file(daemon_.directory(), kElements, fill);
  }

  TestDaemon daemon_;
  TestClient host_;  // of the first device
  TestClient observer_;
};

TEST_F(DevicesTest, one_that_djinnd_has_not_is_refused_and_those_it_has_are_named) {
  TestClient client(daemon_);
  for (const char* name : {"fake:1", "cuda:0", "cpu", "cpu:00", "cpu:0 "}) {
    const auto refused =
        client.ask<ipc::Failed>(ipc::Hello{ipc::kProtocolVersion, "test", 1 << 16, false, name});
    EXPECT_EQ(refused.code, ErrorCode::kNotFound) << name;
    EXPECT_NE(refused.message.find("cpu:0 and fake:0"), std::string::npos) << refused.message;
  }
  client.greet(false, 1 << 16, "fake:0");
}

TEST_F(DevicesTest, each_has_models_sessions_and_groups_of_its_own_in_its_own_books) {
  TestClient client(daemon_);
  client.greet(false, 1 << 16, "fake:0");
  const Fd weights = file('a');
  const uint64_t host_before = device("cpu:0").used_bytes;
  const ModelId there = open_model(client, weights).model;
  EXPECT_EQ(model(there).device, "fake:0");
  EXPECT_EQ(device("cpu:0").used_bytes, host_before);
  EXPECT_GE(device("fake:0").used_bytes, kElements * 4);
  const ipc::ModelOpened here = open_model(host_, weights);
  EXPECT_NE(here.model, there) << "the same files, on another device";
  EXPECT_FALSE(here.was_resident);
  EXPECT_EQ(model(here.model).device, "cpu:0");
  EXPECT_EQ(client.ask<ipc::OwnMemory>(ipc::GetOwnMemory{}).total_bytes, kFakeBytes);
  client.ask<ipc::SequenceMade>(ipc::MakeSequence{{1, 2, 2, 64, DType::kFloat32, 128}});
  for (const auto& session : observer_.ask<ipc::SessionList>(ipc::ListSessions{}).sessions) {
    EXPECT_EQ(session.device, session.sequences > 0 ? "fake:0" : "cpu:0");
  }
  for (TestClient* one : {&client, &host_}) {
    one->submit_graph(graph_of("fake::nothing"));
    EXPECT_EQ(one->completion(), ErrorCode::kOk);
  }
  EXPECT_EQ(device("cpu:0").lanes, 1u);
  EXPECT_EQ(device("fake:0").lanes, 1u);
  client.disconnect();
  EXPECT_TRUE(eventually([&] { return device("fake:0").used_bytes <= kElements * 4; }));
}

TEST_F(DevicesTest, who_exhausts_one_takes_nothing_from_the_other) {
  TestClient client(daemon_);
  client.greet(false, 1 << 16, "fake:0");
  const Fd first = file('a'), second = file('b'), third = file('c'), fourth = file('e');
  const ModelId idle = open_model(host_, first).model;
  ASSERT_TRUE(is_hashed(idle));
  host_.ask<ipc::Done>(ipc::CloseModel{idle});
  const ModelId gives_way = open_model(client, second).model;
  ASSERT_TRUE(is_hashed(gives_way));
  client.ask<ipc::Done>(ipc::CloseModel{gives_way});
  open_model(client, third, ipc::OpenModel{"", false, true});
  open_model(client, fourth, ipc::OpenModel{"", false, true});
  EXPECT_EQ(model(gives_way).state, ipc::ModelState::kDisk) << "what was idle there";
  EXPECT_EQ(model(idle).state, ipc::ModelState::kResident) << "and not what is idle here";
  client.ask<ipc::Done>(ipc::AddFiles{1}, {second.get()});
  const auto refused = client.ask<ipc::Failed>(ipc::OpenModel{});
  EXPECT_EQ(refused.code, ErrorCode::kOutOfMemory) << refused.message;
  EXPECT_EQ(model(idle).state, ipc::ModelState::kResident);
  EXPECT_TRUE(open_model(host_, first).was_resident);
  for (const auto& event : observer_.ask<ipc::EventList>(ipc::FollowEvents{}).events) {
    const bool is_of_memory = event.kind == ipc::EventKind::kMemoryPressure ||
                              event.kind == ipc::EventKind::kMemoryRefused;
    EXPECT_TRUE(!is_of_memory || event.device == "fake:0") << event.text;
  }
}

TEST_F(DevicesTest, a_worker_that_dies_on_one_is_missed_by_nobody_on_the_other) {
  TestClient client(daemon_);
  client.greet(false, 1 << 16, "fake:0");
  client.submit_graph(graph_of("fake::die"));
  EXPECT_EQ(client.completion(), ErrorCode::kWorkerLost);
  host_.submit_graph(graph_of("fake::nothing"));
  EXPECT_EQ(host_.completion(), ErrorCode::kOk);
  const auto status = observer_.ask<ipc::StatusReport>(ipc::GetStatus{});
  ASSERT_EQ(status.workers.size(), 2u);
  for (const ipc::WorkerReport& worker : status.workers) {
    EXPECT_EQ(worker.restarts == 0, worker.device == "cpu:0") << worker.device;
  }
}

// Extents of fake:0 have no parts, so memory for refs comes and goes by the chunk.
TEST_F(DevicesTest, refs_in_chunks_outlive_workers) {
  TestClient client(daemon_);
  client.greet(false, 1 << 16, "fake:0");
  const auto write = [&](auto what) {
    client.submit_write(what);
    return client.completion();
  };
  ASSERT_EQ(write("in the first chunk"), ErrorCode::kOk);
  ASSERT_EQ(write(18 * kMiB), ErrorCode::kOk);
  ASSERT_EQ(write("in the second one"), ErrorCode::kOk);
  EXPECT_GE(device("fake:0").used_bytes, 32 * kMiB);
  client.submit_graph(graph_of("fake::die"));
  EXPECT_EQ(client.completion(), ErrorCode::kWorkerLost);
  EXPECT_EQ(client.read_text(1, 18), "in the first chunk");
  EXPECT_EQ(client.read_text(3, 17), "in the second one");
  ASSERT_EQ(write("behind them"), ErrorCode::kOk);
  EXPECT_EQ(client.read_text(4, 11), "behind them");
}

TEST_F(DevicesTest, a_chunk_that_holds_no_ref_any_more_is_anothers_who_asks) {
  TestClient client(daemon_), other(daemon_);
  for (TestClient* one : {&client, &other}) one->greet(false, 1 << 16, "fake:0");
  client.submit_write("stays");
  ASSERT_EQ(client.completion(), ErrorCode::kOk);
  client.submit_write(20 * kMiB);
  ASSERT_EQ(client.completion(), ErrorCode::kOk);
  other.submit_write(40 * kMiB);
  EXPECT_EQ(other.completion(), ErrorCode::kOutOfMemory) << "it is in use";
  client.submit_release(2);
  ASSERT_EQ(client.completion(), ErrorCode::kOk);
  other.submit_write(40 * kMiB);
  EXPECT_EQ(other.completion(), ErrorCode::kOk);
  EXPECT_EQ(client.read_text(1, 5), "stays");
  client.disconnect();
  other.disconnect();
  EXPECT_TRUE(eventually([&] { return device("fake:0").used_bytes == 0; }));
}

TEST_F(DevicesTest, an_idle_group_gives_way_to_who_wants_memory_of_its_own_and_comes_back) {
  TestClient client(daemon_), other(daemon_);
  for (TestClient* one : {&client, &other}) one->greet(false, 1 << 16, "fake:0");
  const auto use = [](TestClient& of, SequenceHandle group) {
    of.submit_reorder(group);
    return of.completion();
  };
  const auto make_group = [&](TestClient& of) {
    const ipc::SequenceGeometry geometry{1, 10, 8, 64, DType::kFloat32, 256, 2};
    const SequenceHandle group = of.ask<ipc::SequenceMade>(ipc::MakeSequence{geometry}).sequence;
    EXPECT_EQ(use(of, group), ErrorCode::kOk);
    return group;
  };
  const auto evictable = [&](const std::string& device) {
    uint64_t bytes = 0;
    for (const auto& pool : observer_.ask<ipc::MemoryList>(ipc::ListMemory{}).pools) {
      if (pool.device == device) bytes += pool.evictable_bytes;
    }
    return bytes;
  };
  const auto told = [&](ipc::EventKind kind) {
    uint64_t count = 0;
    for (const auto& event : observer_.ask<ipc::EventList>(ipc::FollowEvents{}).events) {
      if (event.kind != kind) continue;
      EXPECT_EQ(event.device, "fake:0") << event.text;
      if (kind == ipc::EventKind::kSequenceSpilled) {
        EXPECT_GT(event.bytes, kMiB) << event.text;
      }
      ++count;
    }
    return count;
  };
  const SequenceHandle here = make_group(host_), there = make_group(client);
  ASSERT_TRUE(eventually([&] { return evictable("cpu:0") > 0 && evictable("fake:0") > 0; }));
  // A worker takes what it is granted a little later; it drops a group after that.
  client.ask<ipc::Done>(ipc::DropSequence{make_group(client)});
  const uint64_t host_used = device("cpu:0").used_bytes;
  EXPECT_EQ(want_refs(other, 48 * kMiB), ErrorCode::kOk);
  EXPECT_EQ(told(ipc::EventKind::kSequenceSpilled), 1u);
  EXPECT_EQ(told(ipc::EventKind::kMemoryPressure), 1u);
  EXPECT_EQ(device("cpu:0").used_bytes, host_used);
  EXPECT_EQ(use(host_, here), ErrorCode::kOk);
  EXPECT_EQ(use(client, there), ErrorCode::kOutOfMemory) << "refs do not give way";
  other.disconnect();
  ASSERT_TRUE(eventually([&] { return device("fake:0").used_bytes < 48 * kMiB; }));
  EXPECT_EQ(use(client, there), ErrorCode::kOk);
  EXPECT_TRUE(eventually([&] { return told(ipc::EventKind::kSequenceRestored) == 1; }));
}

class DevicesWithQuotas : public DevicesTest {
 protected:
  DevicesWithQuotas() : DevicesWithQuotas(root_with("[user.root]\nmemory_quota = \"16MiB\"\n")) {}
  ~DevicesWithQuotas() override { std::filesystem::remove_all(root_); }

 private:
  explicit DevicesWithQuotas(const std::string& root)
      : DevicesTest(testing::fake_worker_program(), {"--socket-group", "root", "--root", root}),
        root_(root) {}
  static std::string root_with(std::string_view config) {
    char root[] = "/tmp/djinnd-config-XXXXXX";
    EXPECT_NE(::mkdtemp(root), nullptr);
    write_config(root, config);
    return root;
  }
  std::string root_;
};

TEST_F(DevicesWithQuotas, of_a_user_bind_on_each_by_itself) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root: only the service reads a configuration";
  TestClient client(daemon_);
  client.greet(false, 1 << 16, "fake:0");
  for (TestClient* one : {&client, &host_}) {
    one->submit_write(9 * kMiB);
    EXPECT_EQ(one->completion(), ErrorCode::kOk) << "whatever is held on the other";
    EXPECT_LT(one->ask<ipc::OwnMemory>(ipc::GetOwnMemory{}).free_bytes, 7 * kMiB);
    one->submit_write(9 * kMiB);
    EXPECT_EQ(one->completion(), ErrorCode::kQuotaExceeded);
  }
}

class LostDevice : public DevicesTest {
 protected:
  LostDevice() : DevicesTest("/bin/false") {}
};

TEST_F(LostDevice, is_refused_with_its_reason_and_the_other_serves) {
  EXPECT_TRUE(eventually([&] { return device("fake:0").state == ipc::DeviceState::kFailed; }));
  EXPECT_EQ(device("cpu:0").state, ipc::DeviceState::kReady);
  TestClient client(daemon_);
  const auto refused =
      client.ask<ipc::Failed>(ipc::Hello{ipc::kProtocolVersion, "test", 1 << 16, false, "fake:0"});
  EXPECT_EQ(refused.code, ErrorCode::kWorkerLost) << refused.message;
  host_.submit_graph(graph_of("fake::nothing"));
  EXPECT_EQ(host_.completion(), ErrorCode::kOk);
  EXPECT_EQ(model(open_model(host_, file('a')).model).state, ipc::ModelState::kResident);
}

}  // namespace
}  // namespace djinn::daemon
