// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/crew.h"

#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <sys/mman.h>

#include <filesystem>
#include <functional>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "kernel/exec/fast_linear.h"
#include "kernel/exec/next_weights.h"
#include "kernel/exec/one_thread.h"

namespace djinn::exec {
namespace {

using ::testing::Each;
using ::testing::Eq;
using ::testing::IsEmpty;

// LibTorch has so many threads for the calling one while it lives.
class LaneOf {
 public:
  explicit LaneOf(int threads) : former_(at::get_num_threads()) { at::set_num_threads(threads); }
  ~LaneOf() { at::set_num_threads(former_); }
  LaneOf(const LaneOf&) = delete;
  LaneOf& operator=(const LaneOf&) = delete;

 private:
  int former_;
};

// Which threads have had which numbers in a call.
std::vector<std::thread::id> who_has(Crew& crew, int threads) {
  std::vector<std::thread::id> had(static_cast<size_t>(threads));
  crew.call(threads, [&](int i) {
    EXPECT_EQ(had[static_cast<size_t>(i)], std::thread::id());
    had[static_cast<size_t>(i)] = std::this_thread::get_id();
  });
  return had;
}

int64_t threads_of_process() {
  const std::filesystem::directory_iterator all("/proc/self/task");
  return std::distance(begin(all), end(all));
}

TEST(Crew, each_number_is_a_thread_of_its_own_and_the_callers_is_0_in_each_call) {
  Crew crew;
  const std::vector<std::thread::id> first = who_has(crew, 5);
  EXPECT_EQ(first[0], std::this_thread::get_id());
  EXPECT_EQ(std::set<std::thread::id>(first.begin(), first.end()).size(), 5);
  for (int i = 0; i < 1000; ++i) {
    const int threads = 1 + i % 5;
    const auto has = who_has(crew, threads);
    EXPECT_TRUE(std::equal(has.begin(), has.end(), first.begin())) << threads;
  }
}

TEST(Crew, all_that_members_wrote_is_there_behind_a_call_and_what_was_before_is_there_in_it) {
  Crew crew;
  constexpr size_t kThreads = 4;
  std::vector<uint64_t> numbers(kThreads);
  for (uint64_t round = 0; round < 2'000; ++round) {
    crew.call(kThreads, [&](int) {
      EXPECT_THAT(numbers, Each(round));  // of other threads, too: nobody has begun
    });
    crew.call(kThreads, [&](int i) { ++numbers[static_cast<size_t>(i)]; });
  }
}

TEST(Crew, a_call_within_a_call_is_one_threads) {
  const LaneOf lane(3);
  Crew crew;
  std::mutex mutex;
  std::multiset<int> inner;
  crew.call(3, [&](int) {
    const std::thread::id mine = std::this_thread::get_id();
    Crew::mine().call(2, [&](int i) {
      EXPECT_EQ(std::this_thread::get_id(), mine);
      const std::scoped_lock lock(mutex);
      inner.insert(i);
    });
  });
  EXPECT_EQ(inner, (std::multiset<int>{0, 0, 0, 1, 1, 1}));
}

TEST(Crew, libtorch_has_one_thread_in_it_and_the_lane_as_many_as_outside) {
  const LaneOf lane(3);
  Crew crew;
  crew.call(3, [](int) {
    EXPECT_EQ(at::get_num_threads(), 1);
    EXPECT_EQ(lane_threads(), 3);
  });
  EXPECT_EQ(at::get_num_threads(), 3);
  EXPECT_EQ(lane_threads(), 3);
  const OneThread alone(true);
  EXPECT_EQ(lane_threads(), 1);
}

TEST(Crew, two_callers_have_other_members_which_end_with_them) {
  const int64_t before = threads_of_process();
  std::mutex mutex;
  std::set<std::thread::id> seen;
  const auto caller = [&] {
    for (const std::thread::id one : who_has(Crew::mine(), 3)) {
      const std::scoped_lock lock(mutex);
      EXPECT_TRUE(seen.insert(one).second);
    }
  };
  std::thread first(caller), second(caller);
  first.join();
  second.join();
  EXPECT_EQ(seen.size(), 6);
  // A thread is seen for a moment after it has ended.
  while (threads_of_process() > before) std::this_thread::yield();
}

TEST(Crew, what_is_ahead_need_not_be_there) {
  void* const gone = ::mmap(nullptr, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(gone, MAP_FAILED);
  ASSERT_EQ(::munmap(gone, 1 << 20), 0);
  const Ahead nowhere{{{{nullptr, 4096}, {static_cast<const std::byte*>(gone), 1 << 20}}}};
  const std::vector<Ahead> ahead(2, nowhere);
  Crew crew;
  std::atomic<int> calls = 0;
  for (int i = 0; i < 100; ++i)
    crew.call(
        2, [&](int) { ++calls; }, ahead);
  EXPECT_EQ(calls, 200);
}

std::function<Ahead(int)> at_place(const std::byte* place) {
  return [place](int thread) { return Ahead{{{{place + thread, 1}}}}; };
}

TEST(NextWeights, what_followed_a_product_is_told_when_it_is_computed_again) {
  NextWeights next;
  const std::byte weights[8] = {};
  const auto* const a = weights;
  const auto* const b = weights + 4;
  EXPECT_THAT(next.after(a, 2, at_place(a)), IsEmpty());
  EXPECT_THAT(next.after(b, 2, at_place(b)), IsEmpty());
  for (int i = 0; i < 2; ++i) {
    const auto behind_a = next.after(a, 2, at_place(a));
    ASSERT_EQ(behind_a.size(), 2);
    EXPECT_EQ(behind_a[0].parts[0].begin, b);
    EXPECT_EQ(behind_a[1].parts[0].begin, b + 1);
    EXPECT_EQ(next.after(b, 2, at_place(b))[1].parts[0].begin, a + 1);
  }
}

TEST(NextWeights, another_follower_takes_its_place_and_so_does_another_number_of_threads) {
  NextWeights next;
  const std::byte weights[12] = {};
  const auto* const a = weights;
  const auto* const b = weights + 4;
  const auto* const c = weights + 8;
  for (const auto* const one : {a, b, a, c}) (void)next.after(one, 2, at_place(one));
  EXPECT_EQ(next.after(a, 2, at_place(a))[0].parts[0].begin, c);
  (void)next.after(c, 3, at_place(c));
  EXPECT_EQ(next.after(a, 3, at_place(a)).size(), 3);
}

TEST(NextWeights, of_many_weights_old_ones_are_forgotten) {
  NextWeights next;
  const std::vector<std::byte> weights(10'000);
  for (const std::byte& one : weights) (void)next.after(&one, 1, at_place(&one));
  EXPECT_THAT(next.after(&weights[0], 1, at_place(&weights[0])), IsEmpty());
}

// Where each of two threads begins with b's product when a's is computed, and b was behind a.
void expect_halves_behind(const at::Tensor& a, const at::Tensor& b, bool turned) {
  const LaneOf lane(2);
  const at::Tensor row = at::ones({1, turned ? a.size(0) : a.size(1)});
  for (const at::Tensor& weight : {a, b}) (void)product_by(ProductBy::kOwn, row, weight, turned);
  const auto* const begin = static_cast<const std::byte*>(b.const_data_ptr());
  const auto ahead = NextWeights::mine().after(a.const_data_ptr(), 2, at_place(begin));
  ASSERT_EQ(ahead.size(), 2);
  const auto half = static_cast<int64_t>(b.nbytes()) / 2;
  for (int64_t i = 0; i < 2; ++i) {
    const Ahead::Part& first = ahead[static_cast<size_t>(i)].parts[0];
    EXPECT_EQ(first.begin, begin + i * half) << turned;
    EXPECT_EQ(first.bytes, std::min((2 - i) * half, ahead_bytes())) << turned;
  }
}

TEST(NextWeights, each_thread_fetches_what_its_share_of_the_next_product_begins_with) {
  for (const bool turned : {false, true}) {
    expect_halves_behind(at::ones({1024, 256}), at::ones({1024, 256}), turned);
  }
}

}  // namespace
}  // namespace djinn::exec
