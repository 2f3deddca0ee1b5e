// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/slab.h"

#include <algorithm>

#include "daemon/worker/djinnd_for_tests.h"
#include "kernel/pal/faulty_pal.h"
#include "kernel/pal/host_pal.h"
#include "kernel/pal/memfd.h"

namespace djinn::worker {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

class SlabTest : public DjinndTest {
 protected:
  std::optional<ErrorCode> grow(uint64_t bytes) {
    const auto slab = slab_.grow(bytes, [this] { ++pieces_; });
    if (slab) slab_bytes_ = *slab;
    return code_of(slab);
  }
  // Gives what is asked for. Of how many bytes that is.
  uint64_t give() {
    const auto request = heard<ipc::GrantRequest>();
    EXPECT_EQ(request.kind, ipc::GrantKind::kSlab);
    std::vector<Fd> memory;
    memory.push_back(*pal::make_memfd("slab", request.bytes, pal::Seals::kSize));
    grants_.deliver(ipc::GiveMemory{request.request, request.bytes}, std::move(memory));
    return request.bytes;
  }

  std::unique_ptr<pal::HostPal> host_ = *pal::HostPal::make();
  pal::FaultyPal pal_{*host_};
  Slab slab_{pal_, grants_};
  std::span<std::byte> slab_bytes_;
  int pieces_ = 0;
};

TEST_F(SlabTest, a_plan_that_fits_asks_for_nothing) {
  EXPECT_EQ(grow(kMiB / 2), kPending);
  EXPECT_EQ(give(), kMiB);
  ASSERT_EQ(grow(kMiB / 2), ErrorCode::kOk);
  EXPECT_TRUE(std::ranges::all_of(slab_bytes_, [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_EQ(grow(kMiB), ErrorCode::kOk);
  EXPECT_EQ(slab_bytes_.size(), kMiB);
  EXPECT_TRUE(nothing_is_said());
}

TEST_F(SlabTest, a_large_one_gives_signs_of_life_while_it_gets_its_pages) {
  constexpr uint64_t kLarge = 3 * pal::kPieceBytes;
  ASSERT_EQ(grow(kLarge), kPending);
  give();
  ASSERT_EQ(grow(kLarge), ErrorCode::kOk);
  EXPECT_EQ(pieces_, 3);
}

TEST_F(SlabTest, a_larger_one_takes_the_place_of_the_former_and_is_zeroed) {
  ASSERT_EQ(grow(kMiB), kPending);
  give();
  ASSERT_EQ(grow(kMiB), ErrorCode::kOk);
  std::ranges::fill(slab_bytes_, std::byte{7});
  ASSERT_EQ(grow(3 * kMiB), kPending);
  EXPECT_EQ(give(), 3 * kMiB) << "all of it, and not what is more";
  ASSERT_EQ(grow(3 * kMiB), ErrorCode::kOk);
  EXPECT_EQ(slab_bytes_.size(), 3 * kMiB);
  EXPECT_TRUE(std::ranges::all_of(slab_bytes_, [](std::byte b) { return b == std::byte{0}; }));
}

TEST_F(SlabTest, one_that_is_refused_leaves_the_former_in_use) {
  ASSERT_EQ(grow(kMiB), kPending);
  give();
  ASSERT_EQ(grow(kMiB), ErrorCode::kOk);
  ASSERT_EQ(grow(2 * kMiB), kPending);
  answer(heard<ipc::GrantRequest>(), ErrorCode::kOutOfMemory);
  EXPECT_EQ(grow(2 * kMiB), ErrorCode::kOutOfMemory);
  EXPECT_EQ(grow(kMiB), ErrorCode::kOk);
  EXPECT_EQ(slab_bytes_.size(), kMiB);
}

TEST_F(SlabTest, one_that_was_asked_for_by_a_step_of_less_is_given_back) {
  ASSERT_EQ(grow(kMiB), kPending);
  ASSERT_EQ(grow(4 * kMiB), kPending);
  give();
  EXPECT_EQ(grow(4 * kMiB), kPending);
  EXPECT_EQ(heard<ipc::GrantReturn>().bytes, kMiB);
  EXPECT_EQ(give(), 4 * kMiB);
  EXPECT_EQ(grow(4 * kMiB), ErrorCode::kOk);
}

TEST_F(SlabTest, whatever_call_fails_the_former_stays_and_the_rest_goes_back) {
  ASSERT_EQ(grow(kMiB), kPending);
  give();
  ASSERT_EQ(grow(kMiB), ErrorCode::kOk);
  uint64_t failures = 0;
  for (uint64_t n = 1;; ++n) {
    ASSERT_EQ(grow(4 * kMiB), kPending);
    give();
    pal_.fail_call(n, {ErrorCode::kOutOfMemory, "A test made this call fail."});
    const auto code = grow(4 * kMiB);
    const bool failed = pal_.calls() >= n;
    pal_.disarm();
    EXPECT_EQ(code, failed ? ErrorCode::kOutOfMemory : ErrorCode::kOk);
    if (!failed) break;
    ++failures;
    EXPECT_EQ(heard<ipc::GrantReturn>().bytes, 3 * kMiB);
    EXPECT_EQ(grow(kMiB), ErrorCode::kOk);
    EXPECT_EQ(slab_bytes_.size(), kMiB);
  }
  EXPECT_GE(failures, 4u);
}

TEST_F(SlabTest, what_came_for_who_has_gone_is_given_back_but_for_what_the_lane_keeps) {
  ASSERT_EQ(grow(kMiB), kPending);
  give();
  ASSERT_EQ(grow(kMiB), ErrorCode::kOk);
  ASSERT_EQ(grow(3 * kMiB), kPending);
  slab_.forget();
  give();
  EXPECT_EQ(heard<ipc::GrantReturn>().bytes, 2 * kMiB);
}

}  // namespace
}  // namespace djinn::worker
