// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/staging.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernel/base/random.h"

namespace djinn::client {
namespace {

constexpr uint64_t kLine = 64;

uint64_t rounded(uint64_t bytes) {
  return (std::max<uint64_t>(bytes, 1) + kLine - 1) / kLine * kLine;
}

// What a slab of this size must do, the slow and plain way: a flag for each line of it.
class Model {
 public:
  explicit Model(uint64_t bytes) : used_(bytes / kLine) {}

  [[nodiscard]] bool is_free(const ipc::StagingRange& range) const {
    const uint64_t first = range.offset / kLine;
    for (uint64_t i = first; i < first + rounded(range.bytes) / kLine; ++i) {
      if (i >= used_.size() || used_[i]) return false;
    }
    return true;
  }
  void mark(const ipc::StagingRange& range, bool used) {
    const uint64_t first = range.offset / kLine;
    for (uint64_t i = 0; i < rounded(range.bytes) / kLine; ++i) used_[first + i] = used;
  }
  [[nodiscard]] uint64_t free_bytes() const {
    return static_cast<uint64_t>(std::ranges::count(used_, false)) * kLine;
  }
  [[nodiscard]] uint64_t longest_free() const {
    uint64_t longest = 0;
    uint64_t run = 0;
    for (const bool used : used_) {
      run = used ? 0 : run + kLine;
      longest = std::max(longest, run);
    }
    return longest;
  }

 private:
  std::vector<bool> used_;
};

class World {
 public:
  explicit World(uint64_t seed) : random_(seed) {}

  void step() {
    if (held_.empty() || random_.below(2) == 0) {
      allocate(1 + random_.below(1 + random_.below(kSlabBytes / 2)));
    } else {
      free(random_.below(held_.size()));
    }
    ASSERT_EQ(staging_.free_bytes(), model_.free_bytes());
  }

  void free_all() {
    while (!held_.empty()) free(random_.below(held_.size()));
  }

  Staging& staging() { return staging_; }
  static constexpr uint64_t kSlabBytes = 64 * kLine;

 private:
  void allocate(uint64_t bytes) {
    const auto range = staging_.allocate(bytes);
    ASSERT_EQ(range.ok(), rounded(bytes) <= model_.longest_free()) << bytes;
    if (!range) {
      ASSERT_EQ(range.error().code, ErrorCode::kQueueFull);
      return;
    }
    ASSERT_EQ(range->offset % kLine, 0u);
    ASSERT_EQ(range->bytes, bytes);
    ASSERT_TRUE(model_.is_free(*range));
    ASSERT_EQ(staging_.bytes(*range).size(), bytes);
    model_.mark(*range, true);
    held_.push_back(*range);
  }

  void free(size_t index) {
    staging_.free(held_[index]);
    model_.mark(held_[index], false);
    held_.erase(held_.begin() + static_cast<ptrdiff_t>(index));
  }

  Random random_;
  std::vector<std::byte> slab_ = std::vector<std::byte>(kSlabBytes);
  Staging staging_{slab_};
  Model model_{kSlabBytes};
  std::vector<ipc::StagingRange> held_;
};

TEST(Staging, any_sequence_of_calls_hands_out_what_a_plain_model_says) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    World world(seed);
    for (int i = 0; i < 300; ++i) world.step();
    ASSERT_FALSE(::testing::Test::HasFatalFailure());
  }
}

TEST(Staging, when_all_came_back_the_whole_slab_is_one_range_again) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    World world(seed);
    for (int i = 0; i < 100; ++i) world.step();
    world.free_all();
    EXPECT_TRUE(world.staging().allocate(World::kSlabBytes)) << seed;
  }
}

TEST(Staging, what_could_never_fit_is_told_apart_from_what_does_not_now) {
  std::vector<std::byte> slab(256);
  Staging staging(slab);
  EXPECT_EQ(staging.allocate(257).error().code, ErrorCode::kLimitExceeded);
  EXPECT_EQ(staging.allocate(UINT64_MAX).error().code, ErrorCode::kLimitExceeded);
  const auto held = staging.allocate(1);
  ASSERT_TRUE(held);
  const auto refused = staging.allocate(256);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kQueueFull);
  EXPECT_NE(refused.error().message.find("256"), std::string::npos) << "how much it is about";
  EXPECT_NE(refused.error().message.find("more staging"), std::string::npos) << "no run is there";
  staging.free(*held);
  EXPECT_TRUE(staging.allocate(256));
}

TEST(Staging, a_range_of_no_bytes_is_still_a_place_of_its_own) {
  std::vector<std::byte> slab(128);
  Staging staging(slab);
  const auto first = staging.allocate(0);
  const auto second = staging.allocate(0);
  ASSERT_TRUE(first && second);
  EXPECT_NE(first->offset, second->offset);
  staging.free(*first);
  staging.free(*second);
  EXPECT_EQ(staging.free_bytes(), 128u);
}

TEST(Staging, an_empty_slab_hands_out_nothing) {
  Staging staging({});
  EXPECT_EQ(staging.allocate(1).error().code, ErrorCode::kLimitExceeded);
}

}  // namespace
}  // namespace djinn::client
