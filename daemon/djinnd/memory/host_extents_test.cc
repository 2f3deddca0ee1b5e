// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/memory/host_extents.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <optional>

#include "daemon/djinnd/testing/late_extents.h"
#include "daemon/djinnd/testing/run_until.h"
#include "kernel/pal/memfd.h"
#include "kernel/pal/process_state.h"

namespace djinn::daemon {
namespace {

constexpr uint64_t kBytes = 1 << 20;

class HostExtentsTest : public ::testing::Test {
 protected:
  Result<Fd> made(ExtentUse use) {
    std::optional<Result<Fd>> given;
    extents_.create(use, kBytes, [&](Result<Fd> extent) { given.emplace(std::move(extent)); });
    EXPECT_TRUE(given.has_value()) << "at once";
    return *std::move(given);
  }
  void free_all() {
    bool done = false;
    work_.close({}, [&] { done = true; });
    testing::run_until(loop_, "all is freed", [&] { return done; });
  }
  static uint64_t committed_bytes(const Fd& extent) {
    struct stat info {};
    EXPECT_EQ(::fstat(extent.get(), &info), 0);
    return static_cast<uint64_t>(info.st_blocks) * 512;
  }

  Loop loop_;
  WorkQueue work_{loop_, "memory"};
  HostExtents extents_{work_};
};

TEST_F(HostExtentsTest, an_extent_has_its_size_for_ever_and_no_memory_yet) {
  for (const auto use :
       {ExtentUse::kRefs, ExtentUse::kSequence, ExtentUse::kSlab, ExtentUse::kWeights}) {
    const Fd extent = *made(use);
    EXPECT_TRUE(pal::verify_memfd(extent, kBytes, pal::Seals::kSize).ok());
    EXPECT_EQ(committed_bytes(extent), 0u);
  }
}

TEST_F(HostExtentsTest, only_weights_can_be_sealed_and_nobody_writes_them_then) {
  for (const auto use : {ExtentUse::kRefs, ExtentUse::kSequence, ExtentUse::kSlab}) {
    EXPECT_FALSE(extents_.seal(*made(use)).ok());
  }
  const Fd weights = *made(ExtentUse::kWeights);
  EXPECT_FALSE(extents_.check_sealed(weights, kBytes).ok());
  ASSERT_TRUE(extents_.seal(weights).ok());
  EXPECT_TRUE(extents_.check_sealed(weights, kBytes).ok());
  EXPECT_FALSE(extents_.check_sealed(weights, 2 * kBytes).ok());
  EXPECT_FALSE(pal::map_shared(weights, kBytes, pal::Access::kReadWrite).ok());
}

TEST_F(HostExtentsTest, memory_that_is_given_back_is_free_once_that_is_told) {
  const Fd extent = *made(ExtentUse::kSequence);
  ASSERT_TRUE(pal::commit_ahead(extent, 0, kBytes).ok());
  std::optional<bool> told;
  extents_.decommit(std::span(&extent, 1), [&](bool done) { told = done; });
  testing::run_until(loop_, "it is given back", [&] { return told.has_value(); });
  EXPECT_EQ(told, true);
  EXPECT_EQ(committed_bytes(extent), 0u);
}

TEST_F(HostExtentsTest, without_a_descriptor_left_memory_is_given_back_and_told_later_too) {
  const Fd extent = *made(ExtentUse::kSequence);
  ASSERT_TRUE(pal::commit_ahead(extent, 0, kBytes).ok());
  free_all();  // the queue has its thread
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  std::optional<bool> told;
  extents_.decommit(std::span(&extent, 1), [&](bool done) { told = done; });
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(told, std::nullopt) << "who asks may stand in a loop over what the answer removes";
  testing::run_until(loop_, "it is given back", [&] { return told.has_value(); });
  EXPECT_EQ(told, true);
  EXPECT_EQ(committed_bytes(extent), 0u);
}

TEST_F(HostExtentsTest, sealed_memory_is_not_given_back) {
  const Fd weights = *made(ExtentUse::kWeights);
  ASSERT_TRUE(pal::commit_ahead(weights, 0, kBytes).ok());
  ASSERT_TRUE(extents_.seal(weights).ok());
  std::optional<bool> told;
  extents_.decommit(std::span(&weights, 1), [&](bool done) { told = done; });
  testing::run_until(loop_, "it is told", [&] { return told.has_value(); });
  EXPECT_EQ(told, false);
  EXPECT_EQ(committed_bytes(weights), kBytes);
}

TEST_F(HostExtentsTest, of_several_all_are_made_or_none) {
  testing::LateExtents late(extents_);
  const std::vector<uint64_t> sizes{kBytes, 2 * kBytes, 3 * kBytes};
  free_all();  // the queue has its thread
  const pal::ProcessState before = pal::read_process_state();
  for (const bool is_late : {false, true}) {
    for (uint64_t fault = 0; fault <= sizes.size(); ++fault) {
      late.fail_at(fault);
      std::optional<Result<std::vector<Fd>>> told;
      if (is_late) late.hold();
      create_all(late, ExtentUse::kWeights, sizes,
                 [&](Result<std::vector<Fd>> all) { told.emplace(std::move(all)); });
      while (late.untold() > 0) late.tell_all();
      ASSERT_TRUE(told.has_value());
      ASSERT_EQ(told->ok(), fault == 0);
      if (told->ok()) {
        for (size_t i = 0; i < sizes.size(); ++i) {
          EXPECT_TRUE(pal::verify_memfd((**told)[i], sizes[i], pal::Seals::kSize).ok());
        }
      } else {
        EXPECT_EQ(told->error().code, ErrorCode::kOutOfMemory);
      }
      told.reset();
      free_all();
      EXPECT_EQ(pal::read_process_state(), before);
    }
  }
}

TEST_F(HostExtentsTest, none_of_no_size_is_made_and_that_is_told) {
  bool told = false;
  create_all(extents_, ExtentUse::kWeights, {},
             [&](const Result<std::vector<Fd>>& all) { told = all.ok() && all.value().empty(); });
  EXPECT_TRUE(told);
}

}  // namespace
}  // namespace djinn::daemon
