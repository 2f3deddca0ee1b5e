// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/workers/child_process.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <signal.h>

namespace djinn::daemon {
namespace {

TEST(ChildProcess, may_be_ended_in_the_middle_of_its_own_words) {
  Loop loop;
  Traffic traffic;
  Spawner spawner;
  DeferredClose deferred_close;
  Stragglers stragglers(loop);
  auto started = ChildProcess::start({loop, spawner, deferred_close, stragglers},
                                     {FAKE_WORKER_PROGRAM, {"--threads", "1"}, {}}, traffic);
  ASSERT_TRUE(started) << started.error().message;
  std::unique_ptr<ChildProcess> child = *std::move(started);
  const pid_t pid = child->pid();
  int heard = 0;
  int exits = 0;
  const auto end = [&](const ipc::Datagram&) {
    ++heard;
    child->end();
    EXPECT_EQ(::kill(pid, 0), -1) << "it is dead, and waited for";
    EXPECT_EQ(errno, ESRCH);
    loop.dispose(std::move(child));
    loop.defer([&] { loop.stop(); });
  };
  child->listen({end, [&] { ++exits; }});
  loop.run();
  EXPECT_EQ(heard, 1);
  EXPECT_EQ(exits, 0);
}

}  // namespace
}  // namespace djinn::daemon
