// SPDX-License-Identifier: Apache-2.0

// What runs on the emulator as CUDA says, and what it finds in kernels that are wrong.
#include "tests/fake_cuda/emulator/emulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "tests/fake_cuda/emulator/device/cuda_runtime.h"

extern uint4 dynamic_shared[];

namespace djinn::emulator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Order kOrders[] = {Order::kAscending, Order::kDescending};

std::string error_of(const Status& status) {
  return status.ok() ? "" : status.error().message;
}

Launch one_block(uint32_t threads, size_t shared_bytes = 0) {
  return {{}, {threads}, shared_bytes, Order::kAscending};
}

float* shared_floats() {
  return reinterpret_cast<float*>(dynamic_shared);
}

TEST(Emulator, each_thread_of_each_block_runs_once) {
  for (const Order order : kOrders) {
    std::vector<int> times(2 * 3 * 4 * 64);
    const Launch launch{{2, 3, 4}, {64}, 0, order};
    const Status done = emulate(launch, [&] {
      const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
      ++times[block * blockDim.x + threadIdx.x];
    });
    ASSERT_TRUE(done.ok()) << error_of(done);
    EXPECT_THAT(times, ::testing::Each(1));
  }
}

TEST(Emulator, shuffles_give_the_value_of_another_lane) {
  for (const Order order : kOrders) {
    std::vector<unsigned> sums(128), firsts(128);
    std::vector<double> halves(128);
    const Launch launch{{}, {128}, 0, order};
    const Status done = emulate(launch, [&] {
      const unsigned self = threadIdx.x;
      unsigned sum = self;
      for (unsigned lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
      sums[self] = sum;
      firsts[self] = __shfl_sync(~0u, self, 0);
      halves[self] = __shfl_xor_sync(~0u, self / 2.0, 1u);
    });
    ASSERT_TRUE(done.ok()) << error_of(done);
    for (unsigned i = 0; i < 128; ++i) {
      const unsigned first = i / 32 * 32;
      EXPECT_EQ(sums[i], 32 * first + 31 * 16);
      EXPECT_EQ(firsts[i], first);
      EXPECT_EQ(halves[i], (i ^ 1) / 2.0);
    }
  }
}

// The values of a block, turned round by way of shared memory.
std::vector<float> reversed(Order order, bool with_barrier) {
  std::vector<float> found(96);
  const Launch launch{{}, {96}, 96 * sizeof(float), order};
  const Status done = emulate(launch, [&] {
    shared_floats()[threadIdx.x] = static_cast<float>(threadIdx.x);
    if (with_barrier) __syncthreads();
    found[threadIdx.x] = shared_floats()[95 - threadIdx.x];
  });
  EXPECT_TRUE(done.ok()) << error_of(done);
  return found;
}

TEST(Emulator, behind_a_barrier_all_see_what_all_wrote) {
  std::vector<float> expected(96);
  std::iota(expected.rbegin(), expected.rend(), 0.0f);
  for (const Order order : kOrders) EXPECT_EQ(reversed(order, true), expected);
}

TEST(Emulator, without_one_the_orders_differ) {
  EXPECT_NE(reversed(Order::kAscending, false), reversed(Order::kDescending, false));
}

TEST(Emulator, a_thread_that_misses_a_barrier_is_told) {
  const Status done = emulate(one_block(64), [] {
    if (threadIdx.x == 40) return;
    __syncthreads();
  });
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().code, ErrorCode::kInternal);
  EXPECT_THAT(error_of(done), AllOf(HasSubstr("wait for ever"), HasSubstr("emulator_test.cc:"),
                                    HasSubstr("thread 40 of block 0 has ended")));
}

TEST(Emulator, a_warp_that_waits_for_a_lane_at_the_barrier_is_told) {
  const Status done = emulate(one_block(32), [] {
    if (threadIdx.x < 7) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  });
  EXPECT_THAT(error_of(done), AllOf(HasSubstr("thread 0 of"), HasSubstr("thread 7 of")));
}

TEST(Emulator, lanes_that_meet_at_different_places_are_told) {
  const Status done = emulate(one_block(32), [] {
    const unsigned self = threadIdx.x;
    const unsigned other =
        self % 2 == 0 ? __shfl_xor_sync(~0u, self, 1u) : __shfl_xor_sync(~0u, self + 1, 1u);
    EXPECT_NE(other, self);
  });
  EXPECT_THAT(error_of(done), HasSubstr("different places"));
}

TEST(Emulator, a_shuffle_without_all_lanes_is_told) {
  const Status done = emulate(one_block(32), [] { (void)__shfl_xor_sync(1u, 0u, 0u); });
  EXPECT_THAT(error_of(done), HasSubstr("without all lanes"));
}

TEST(Emulator, what_nobody_wrote_to_shared_memory_is_no_number) {
  int numbers = 0;
  const Launch two_blocks{{2}, {32}, 32 * sizeof(float), Order::kAscending};
  const Status done = emulate(two_blocks, [&] {
    numbers += !std::isnan(shared_floats()[threadIdx.x]);
    shared_floats()[threadIdx.x] = 1;
  });
  ASSERT_TRUE(done.ok()) << error_of(done);
  EXPECT_EQ(numbers, 0);
}

TEST(Emulator, a_write_behind_shared_memory_is_told) {
  const Status done =
      emulate(one_block(32, 31 * sizeof(float)), [] { shared_floats()[threadIdx.x] = 1; });
  EXPECT_THAT(error_of(done), HasSubstr("behind its 124 bytes"));
}

TEST(Emulator, a_vector_that_lies_askew_is_told) {
  alignas(16) static constexpr std::byte kBytes[32]{};
  const Status done =
      emulate(one_block(32), [] { (void)__ldcs(reinterpret_cast<const uint4*>(kBytes + 8)); });
  EXPECT_THAT(error_of(done), HasSubstr("multiple of its size"));
}

TEST(Emulator, after_a_wrong_kernel_the_next_one_runs) {
  for (int round = 0; round < 3; ++round) {
    EXPECT_FALSE(emulate(one_block(64), [] {
                   if (threadIdx.x != 0) __syncthreads();
                 }).ok());
    EXPECT_TRUE(emulate(one_block(64), [] { __syncthreads(); }).ok());
  }
}

TEST(Emulator, a_launch_that_is_none_is_refused) {
  const auto code_of = [](const Launch& launch) {
    const Status done = emulate(launch, [] { FAIL() << "the kernel ran"; });
    return done.ok() ? ErrorCode::kOk : done.error().code;
  };
  for (const Launch& launch :
       {one_block(0), one_block(33), one_block(kThreadsMax + kWarp),
        one_block(32, kSharedBytesMax + 1), Launch{{0}, {32}}, Launch{{}, {32, 2}}}) {
    EXPECT_EQ(code_of(launch), ErrorCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace djinn::emulator
