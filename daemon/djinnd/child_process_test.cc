// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/workers/child_process.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "daemon/djinnd/testing/programs.h"
#include "daemon/djinnd/testing/run_until.h"
#include "daemon/djinnd/testing/test_daemon.h"
#include "kernel/pal/memfd.h"

namespace djinn::daemon {
namespace {

class ChildProcessTest : public ::testing::Test {
 protected:
  std::unique_ptr<ChildProcess> start(const std::string& sends) {
    auto started = ChildProcess::start(
        {loop_, spawner_, deferred_close_, stragglers_},
        {testing::fake_worker_program(), {"--device", "cpu:0", "--sends", sends}, {}}, traffic_);
    EXPECT_TRUE(started) << started.error().message;
    return *std::move(started);
  }

  // What the first word of a child that sends such a descriptor brings; nothing: it is killed.
  std::optional<size_t> descriptors_heard(const std::string& sends, SentFds expected) {
    std::unique_ptr<ChildProcess> child = start(sends);
    std::optional<size_t> heard;
    bool over = false;
    child->listen({[&](const ipc::Datagram& message) {
                     heard = message.fds.size();
                     over = true;
                   },
                   [&] { over = true; }, expected});
    testing::run_until(loop_, "the child is heard or killed", [&] { return over; });
    EXPECT_TRUE(heard || child->how_it_ended() == "of SIGKILL");
    child->end();
    return heard;
  }

  Loop loop_;
  std::atomic<size_t> closed_by_a_thread_ = 0;

 private:
  Traffic traffic_;
  Spawner spawner_;
  DeferredClose deferred_close_{[this](Fd fd) {
    const bool is_memory = pal::has_seals(fd, pal::Seals::kNone).ok();
    fd.reset();
    if (is_memory) ++closed_by_a_thread_;
  }};
  Stragglers stragglers_{loop_};
};

TEST_F(ChildProcessTest, is_heard_without_descriptors_whatever_is_expected) {
  EXPECT_EQ(descriptors_heard("nothing", SentFds::kNone), 0u);
  EXPECT_EQ(descriptors_heard("nothing", SentFds::kMemory), 0u);
}

TEST_F(ChildProcessTest, is_heard_with_descriptors_of_the_kind_that_is_expected) {
  EXPECT_EQ(descriptors_heard("memory", SentFds::kMemory), 1u);
}

// The loop waits for no memory that is freed: what a listener takes is its own, the rest a
// thread's.
TEST_F(ChildProcessTest, what_it_sent_and_nobody_took_is_closed_by_a_thread) {
  for (const bool takes : {true, false}) {
    std::unique_ptr<ChildProcess> child = start("memory");
    Fd taken;
    bool over = false;
    child->listen({[&](ipc::Datagram& message) {
                     ASSERT_EQ(message.fds.size(), 1u);
                     if (takes) taken = std::move(message.fds.front());
                     over = true;
                   },
                   {},
                   SentFds::kMemory});
    testing::run_until(loop_, "the child is heard", [&] { return over; });
    child->end();
    EXPECT_EQ(taken.valid(), takes);
    if (takes) continue;
    EXPECT_TRUE(testing::eventually([&] { return closed_by_a_thread_ == 1; }));
  }
}

TEST_F(ChildProcessTest, is_killed_for_descriptors_of_another_kind) {
  EXPECT_EQ(descriptors_heard("memory", SentFds::kNone), std::nullopt);
  EXPECT_EQ(descriptors_heard("file", SentFds::kMemory), std::nullopt);
  EXPECT_EQ(descriptors_heard("file", SentFds::kNone), std::nullopt);
}

TEST_F(ChildProcessTest, may_be_ended_in_the_middle_of_its_own_words) {
  std::unique_ptr<ChildProcess> child = start("nothing");
  const pid_t pid = child->pid();
  int heard = 0;
  int exits = 0;
  const auto end = [&](const ipc::Datagram&) {
    ++heard;
    child->end();
    EXPECT_EQ(::kill(pid, 0), -1) << "it is dead, and waited for";
    EXPECT_EQ(errno, ESRCH);
    loop_.dispose(std::move(child));
    loop_.defer([&] { loop_.stop(); });
  };
  child->listen({end, [&] { ++exits; }});
  loop_.run();
  EXPECT_EQ(heard, 1);
  EXPECT_EQ(exits, 0);
}

}  // namespace
}  // namespace djinn::daemon
