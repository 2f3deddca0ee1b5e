// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/baton.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "kernel/base/random.h"

namespace djinn::worker {
namespace {

// A device's page, and the workers that have joined it.
class BatonTest : public ::testing::Test {
 protected:
  BatonTest() : memfd_(*pal::make_memfd("djinn-baton", sizeof(ipc::BatonPage))), own_(map()) {}

  [[nodiscard]] pal::Mapping map() const {
    return *pal::map_shared(memfd_, sizeof(ipc::BatonPage), pal::Access::kReadWrite);
  }
  [[nodiscard]] ipc::BatonPage& page() const {
    return *reinterpret_cast<ipc::BatonPage*>(own_.data());
  }
  [[nodiscard]] std::unique_ptr<Baton> joined(uint32_t slot) const {
    auto baton = std::make_unique<Baton>(clock_);
    baton->join(map(), slot);
    return baton;
  }
  [[nodiscard]] uint64_t now() const { return clock_.monotonic_ns(); }
  // Until it holds it: on a busy machine it may lose its patience first, and is in line then.
  void take(Baton& baton) const {
    for (baton.take(now()); !baton.holds(); baton.take(now())) std::this_thread::yield();
  }
  // Until a worker sleeps there.
  void wait_for(uint32_t slot) const {
    while ((page().waiting.load() & ipc::baton_bit(slot)) == 0) std::this_thread::yield();
  }

  const SystemClock clock_;
  Fd memfd_;
  pal::Mapping own_;
};

TEST_F(BatonTest, who_is_of_no_device_computes_whenever_it_likes) {
  Baton baton(clock_);
  EXPECT_EQ(baton.take(now()), 0u);
  EXPECT_FALSE(baton.holds());
  EXPECT_EQ(baton.pass_if_due(0), 0u);
  EXPECT_EQ(baton.overruns(), 0u);
}

TEST_F(BatonTest, a_free_one_is_taken_at_once_and_kept_while_nobody_waits) {
  const auto baton = joined(3);
  EXPECT_EQ(baton->take(now()), 0u);
  EXPECT_TRUE(baton->holds());
  EXPECT_EQ(page().holder.load(), 4u);
  EXPECT_EQ(baton->pass_if_due(0), 0u);
  EXPECT_EQ(page().holder.load(), 4u);
  baton->pass(now());
  EXPECT_EQ(page().holder.load(), 0u);
}

TEST_F(BatonTest, one_computes_at_a_time) {
  constexpr uint32_t kWorkers = 8;
  std::atomic<int> inside{0};
  std::atomic<int> most{0};
  uint64_t sum = 0;  // of which each thread sees the others' additions
  std::vector<std::thread> threads;
  for (uint32_t slot = 0; slot < kWorkers; ++slot) {
    threads.emplace_back([&, slot] {
      const auto baton = joined(slot);
      for (int held = 0; held < 2000; ++held) {
        take(*baton);
        most = std::max(most.load(), ++inside);
        ++sum;
        --inside;
        baton->pass(now());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(most, 1);
  EXPECT_EQ(sum, kWorkers * 2000u);
  EXPECT_EQ(page().holder.load(), 0u);
  EXPECT_EQ(page().waiting.load(), 0u);
}

TEST_F(BatonTest, who_has_had_least_is_given_it) {
  ASSERT_TRUE(ipc::take_baton(page(), 0, 50));
  for (const auto& [slot, had] : {std::pair{1u, 30u}, {2u, 10u}, {3u, 20u}}) {
    page().slots[slot].virtual_ns = had;
    page().slots[slot].turn = static_cast<uint32_t>(ipc::BatonTurn::kWaits);
    page().waiting |= ipc::baton_bit(slot);
  }
  for (const uint32_t next : {2u, 3u, 1u}) {
    ipc::pass_baton(page(), page().holder.load() - 1);
    EXPECT_EQ(page().holder.load(), next + 1);
    page().waiting &= ~ipc::baton_bit(next);
  }
}

TEST_F(BatonTest, a_holder_that_is_due_gives_it_to_who_waits) {
  const auto first = joined(0);
  first->take(now());
  std::thread other([&] {
    const auto second = joined(1);
    take(*second);
    second->pass(now());
  });
  wait_for(1);
  EXPECT_EQ(first->pass_if_due(1'000'000), 0u);  // not for a long time
  EXPECT_TRUE(first->holds());
  first->pass_if_due(0);
  other.join();
}

TEST_F(BatonTest, a_holder_that_keeps_it_costs_others_their_patience_once) {
  ASSERT_TRUE(ipc::take_baton(page(), 9, 0));
  const auto baton = joined(0);
  EXPECT_GE(baton->take(now()), Baton::kPatienceNs / 2);
  EXPECT_FALSE(baton->holds());
  EXPECT_EQ(baton->overruns(), 1u);
  // A busy machine may keep this thread for as long, but not each time.
  int patient = 0;
  for (int i = 0; i < 1000; ++i) patient += baton->take(now()) >= Baton::kPatienceNs / 2;
  EXPECT_LT(patient, 100);
  EXPECT_EQ(baton->overruns(), 1u);
  ipc::pass_baton(page(), 9);
  EXPECT_EQ(baton->take(now()), 0u);
  EXPECT_TRUE(baton->holds());
}

TEST_F(BatonTest, who_computes_beside_the_holder_is_in_line_and_is_given_it) {
  ASSERT_TRUE(ipc::take_baton(page(), 9, 0));
  const auto baton = joined(0);
  baton->take(now());
  ASSERT_FALSE(baton->holds());
  EXPECT_EQ(page().waiting.load(), ipc::baton_bit(0)) << "so the holder sees that it is due";
  ipc::pass_baton(page(), 9);
  EXPECT_EQ(page().holder.load(), 1u);
  baton->take(now());
  EXPECT_TRUE(baton->holds());
  EXPECT_EQ(page().waiting.load(), 0u);
}

TEST_F(BatonTest, who_was_given_it_while_it_computed_and_has_nothing_to_do_passes_it_on) {
  ASSERT_TRUE(ipc::take_baton(page(), 9, 0));
  const auto baton = joined(0);
  baton->take(now());
  ipc::pass_baton(page(), 9);
  EXPECT_TRUE(baton->takes_part());
  baton->pass(now());
  EXPECT_EQ(page().holder.load(), 0u);
  EXPECT_FALSE(baton->takes_part());
}

TEST_F(BatonTest, one_that_is_gone_leaves_it_to_who_waits) {
  ASSERT_TRUE(ipc::take_baton(page(), 9, 0));
  std::thread waits([&] {
    const auto baton = joined(0);
    take(*baton);
  });
  wait_for(0);
  ipc::leave_baton(page(), 9);
  waits.join();
  page().slots[5].turn = static_cast<uint32_t>(ipc::BatonTurn::kWaits);  // it died in its sleep
  page().waiting = ipc::baton_bit(5);
  ipc::leave_baton(page(), 5);
  EXPECT_EQ(page().waiting.load(), 0u);
  EXPECT_EQ(page().holder.load(), 0u);
}

TEST_F(BatonTest, nonsense_keeps_nobody_for_longer_than_patience) {
  Random random(1);
  const auto baton = joined(0);
  for (int i = 0; i < 20; ++i) {
    auto* bytes = own_.data();
    for (size_t at = 0; at < sizeof(ipc::BatonPage); ++at) {
      bytes[at] = static_cast<std::byte>(random.next());
    }
    if (i % 2 == 0) page().holder = 0;
    EXPECT_LE(baton->take(now()), 10 * Baton::kPatienceNs);
    baton->pass_if_due(0);
    baton->pass(now());
  }
}

}  // namespace
}  // namespace djinn::worker
