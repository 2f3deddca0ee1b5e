// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/job_thread.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <vector>

namespace djinn::worker {
namespace {

TEST(JobThread, runs_what_is_posted_once_and_in_order) {
  std::vector<int> ran;
  std::promise<void> done;
  {
    JobThread thread;
    for (int i = 0; i < 100; ++i) thread.post([&ran, i] { ran.push_back(i); });
    thread.post([&] { done.set_value(); });
    done.get_future().wait();
  }
  ASSERT_EQ(ran.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(ran[static_cast<size_t>(i)], i);
}

TEST(JobThread, a_job_may_post_another) {
  std::promise<void> done;
  JobThread thread;
  thread.post([&] { thread.post([&] { done.set_value(); }); });
  done.get_future().wait();
}

TEST(JobThread, ends_after_the_job_that_runs_and_keeps_nothing) {
  std::promise<void> begun;
  std::promise<void> go_on;
  bool ended = false;
  const auto held = std::make_shared<int>(0);
  auto thread = std::make_unique<JobThread>();
  thread->post([&] {
    begun.set_value();
    go_on.get_future().wait();
    ended = true;
  });
  thread->post([held] {});
  begun.get_future().wait();
  std::thread destroyer([&] { thread.reset(); });
  go_on.set_value();
  destroyer.join();
  EXPECT_TRUE(ended);
  EXPECT_EQ(held.use_count(), 1) << "whether or not its turn came";
}

}  // namespace
}  // namespace djinn::worker
