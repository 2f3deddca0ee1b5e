// SPDX-License-Identifier: Apache-2.0

// Children that are started for nobody, from scripts that the test exchanges.
#include "daemon/djinnd/workers/spare_pool.h"

#include <fmt/os.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "daemon/djinnd/testing/programs.h"
#include "daemon/djinnd/testing/run_until.h"
#include "ipc/build_identity.h"
#include "ipc/exit_status.h"

namespace djinn::daemon {
namespace {

namespace fs = std::filesystem;

class SparePoolTest : public ::testing::Test {
 protected:
  // What a child is: a program of another build, one that does not find its device, one that ends
  // at once, one that is not there, or one that gets ready.
  enum class Child { kOtherBuild, kOtherDevice, kBroken, kMissing, kReady };
  using State = std::pair<bool, bool>;  // fails, has another build

  SparePoolTest() {
    std::string pattern = fs::temp_directory_path() / "djinn-spare.XXXXXX";
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    pool_.on_change([this] { told_.push_back(state()); });
  }
  ~SparePoolTest() override { fs::remove_all(directory_); }

  // Starts them, one after the other, and runs the loop until all have ended or the last is ready.
  void start(std::vector<Child> children) {
    children_ = std::move(children);
    pool_.start();
    // One more is asked for when the last has failed.
    testing::run_until(loop_, "all have ended or one is ready", [&] {
      return started_ > children_.size() || pool_.last_ready() != nullptr;
    });
  }

  [[nodiscard]] State state() const { return {pool_.fails(), pool_.has_other_build()}; }
  // Of this process.
  [[nodiscard]] static bool has_children() {
    siginfo_t ended{};
    return ::waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) == 0;
  }

 private:
  ChildProgram next() {
    const Child child = started_ < children_.size() ? children_[started_] : children_.back();
    ++started_;
    switch (child) {
      case Child::kMissing:
        return {directory_ + "/missing", {}, {}};
      case Child::kReady:
        return {testing::loader_program(), {}, {}};
      case Child::kOtherBuild:
        return {script(ipc::kOtherBuildStatus), {}, {}};
      case Child::kOtherDevice:
        return {script(ipc::kOtherDeviceStatus), {}, {}};
      case Child::kBroken:
        return {script(1), {}, {}};
    }
    return {};
  }

  [[nodiscard]] std::string script(int status) const {
    const std::string path = fmt::format("{}/exits-{}", directory_, status);
    fmt::output_file(path).print("#!/bin/sh\nexit {}\n", status);
    EXPECT_EQ(::chmod(path.c_str(), 0700), 0);
    return path;
  }

  std::string directory_;
  Traffic traffic_;

 protected:
  Loop loop_;
  std::vector<Child> children_;
  size_t started_ = 0;
  Spawner spawner_;
  Stragglers stragglers_{loop_};
  DeferredClose deferred_close_;
  SparePool::Kind kind(bool is_on_demand) {
    return {"child",
            ErrorCode::kWorkerLost,
            0,
            [this] { return next(); },
            [](const ipc::Datagram&) { return ChildReady(); },
            traffic_,
            is_on_demand};
  }
  SparePool pool_{{loop_, spawner_, deferred_close_, stragglers_}, kind(false)};
  SparePool on_demand_{{loop_, spawner_, deferred_close_, stragglers_}, kind(true)};
  std::vector<State> told_;
};

TEST_F(SparePoolTest, a_program_that_is_missing_for_a_moment_ends_no_upgrade) {
  start({Child::kOtherBuild, Child::kMissing, Child::kOtherBuild, Child::kMissing});
  EXPECT_EQ(told_, (std::vector<State>{{true, true}}));
  EXPECT_EQ(state(), State(true, true));
}

TEST_F(SparePoolTest, that_fails_and_then_meets_another_build_says_so) {
  start({Child::kBroken, Child::kMissing, Child::kBroken, Child::kOtherBuild});
  EXPECT_EQ(told_, (std::vector<State>{{true, false}, {true, true}}));
}

TEST_F(SparePoolTest, a_child_that_is_ready_ends_all_that) {
  start({Child::kOtherBuild, Child::kBroken, Child::kReady});
  EXPECT_EQ(told_, (std::vector<State>{{true, true}, {false, false}}));
}

TEST_F(SparePoolTest, who_wants_no_child_any_more_takes_none_from_who_stands_behind) {
  start({Child::kReady});
  std::vector<std::shared_ptr<const bool>> all;
  size_t started_for_it = 0;
  for (int i = 0; i < 5; ++i) {
    all.push_back(std::make_shared<const bool>(true));
    pool_.take(all.back(), [](const ReadyChild&) { ADD_FAILURE() << "nobody waits for it"; });
  }
  const auto wanted = std::make_shared<const bool>(true);
  pool_.take(wanted, [&](const ReadyChild&) { started_for_it = started_; });
  EXPECT_FALSE(pool_.has_spare());
  all.clear();
  testing::run_until(loop_, "one is taken", [&] { return started_for_it > 0; });
  EXPECT_EQ(started_for_it, 1u);
}

TEST_F(SparePoolTest, a_child_that_is_kept_for_nobody_ends_where_nobody_waits_for_it_any_more) {
  children_ = {Child::kReady};
  auto wanted = std::make_shared<const bool>(true);
  on_demand_.take(wanted, [](const ReadyChild&) { ADD_FAILURE() << "nobody waits for it"; });
  testing::run_until(loop_, "one is started", [&] { return started_ == 1; });
  wanted.reset();
  testing::run_until(loop_, "it is ready", [&] { return on_demand_.last_ready() != nullptr; });
  testing::run_until(loop_, "it has ended", [&] { return !has_children(); });
  EXPECT_EQ(started_, 1u);
  const auto next = std::make_shared<const bool>(true);
  bool taken = false;
  on_demand_.take(next, [&](const ReadyChild&) { taken = true; });
  testing::run_until(loop_, "the next one is taken", [&] { return taken; });
  EXPECT_EQ(started_, 2u);
}

TEST_F(SparePoolTest, who_needs_a_child_is_told_that_the_last_did_not_find_its_device) {
  start({Child::kBroken, Child::kBroken, Child::kOtherDevice});
  EXPECT_NE(pool_.failure().message.find("UUID"), std::string::npos);
}

TEST_F(SparePoolTest, one_that_fails_otherwise_ends_that) {
  start({Child::kOtherDevice, Child::kOtherDevice, Child::kBroken});
  EXPECT_EQ(pool_.failure().message.find("UUID"), std::string::npos);
}

TEST_F(SparePoolTest, few_failures_are_not_told) {
  start({Child::kBroken, Child::kMissing, Child::kReady});
  EXPECT_TRUE(told_.empty());
}

}  // namespace
}  // namespace djinn::daemon
