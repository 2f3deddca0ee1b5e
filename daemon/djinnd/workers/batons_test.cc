// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/workers/batons.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <set>

namespace djinn::daemon {
namespace {

WorkerKey worker_of(uint32_t uid, DeviceId device = kHostDevice) {
  return {Owner::of_user(uid), device};
}

// What a worker maps.
pal::Mapping mapped(const Batons::Place& place) {
  const Fd copy(::fcntl(place.page, F_DUPFD_CLOEXEC, 0));
  return *pal::map_shared(copy, sizeof(ipc::BatonPage), pal::Access::kReadWrite);
}

ipc::BatonPage& page_of(const pal::Mapping& mapping) {
  return *reinterpret_cast<ipc::BatonPage*>(mapping.data());
}

TEST(Batons, each_worker_of_a_device_has_a_slot_of_its_own_in_one_page) {
  Batons batons;
  std::set<uint32_t> slots;
  std::set<int> pages;
  for (uint32_t uid = 0; uid < ipc::kBatonSlots; ++uid) {
    const auto place = *batons.enter(worker_of(uid));
    slots.insert(place.slot);
    pages.insert(place.page);
  }
  EXPECT_EQ(slots.size(), ipc::kBatonSlots);
  EXPECT_EQ(pages.size(), 1u);
  EXPECT_EQ(batons.enter(worker_of(1000)).error().code, ErrorCode::kLimitExceeded);
  batons.leave(worker_of(7));
  EXPECT_TRUE(batons.enter(worker_of(1000)).ok());
}

TEST(Batons, devices_have_pages_of_their_own) {
  Batons batons;
  const DeviceId other{DeviceKind::kFake, 0};
  const auto here = *batons.enter(worker_of(1));
  const auto there = *batons.enter(worker_of(1, other));
  EXPECT_NE(here.page, there.page);
  batons.leave(worker_of(1));
  const pal::Mapping mapping = mapped(there);
  EXPECT_TRUE(ipc::take_baton(page_of(mapping), there.slot, 0));
}

TEST(Batons, what_a_dead_worker_held_is_free) {
  Batons batons;
  const auto place = *batons.enter(worker_of(1));
  const pal::Mapping mapping = mapped(place);
  ASSERT_TRUE(ipc::take_baton(page_of(mapping), place.slot, 0));
  const auto other = *batons.enter(worker_of(2));
  EXPECT_FALSE(ipc::take_baton(page_of(mapping), other.slot, 0));
  batons.leave(worker_of(1));
  EXPECT_TRUE(ipc::take_baton(page_of(mapping), other.slot, 0));
  batons.leave(worker_of(1));  // again
  batons.leave(worker_of(99));
}

}  // namespace
}  // namespace djinn::daemon
