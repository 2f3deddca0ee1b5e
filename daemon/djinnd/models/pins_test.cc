// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/models/pins.h"

#include <gtest/gtest.h>

#include <array>
#include <utility>

#include "daemon/djinnd/testing/no_extents.h"
#include "ipc/limits.h"
#include "kernel/base/owned_state_for_tests.h"

namespace djinn::daemon {
namespace {

constexpr uint64_t kQuota = 1000;
constexpr DeviceId kOtherDevice{DeviceKind::kFake, 0};
constexpr Caller kPinner{Owner::of_user(1000)};
constexpr Caller kOtherPinner{Owner::of_user(1001)};
constexpr Caller kRootPinner{Owner::of_user(0), true};

class PinsTest : public ::testing::Test {
 protected:
  PinsTest() { quotas_.set({}, {kQuota}); }

  Model& add(uint64_t id, uint64_t bytes, ModelPhase phase = ModelPhase::kResident) {
    Model fresh;
    fresh.id = {id};
    fresh.bytes = bytes;
    StateForTests::set(fresh.phase, phase);
    return table_.add(std::move(fresh));
  }
  static ErrorCode code_of(const Status& status) {
    return status.ok() ? ErrorCode::kOk : status.error().code;
  }

  ModelTable table_;
  Quotas quotas_;
  testing::NoExtents extents_;
  const Devices devices_{std::array{DeviceMemory{kHostDevice, 1 << 20, extents_}}, 1 << 20,
                         quotas_};
  Places places_{table_, quotas_};
  Pins pins_{table_, quotas_, devices_, places_};
};

TEST_F(PinsTest, what_is_pinned_on_one_device_leaves_the_quota_of_another) {
  const Devices devices{std::array{DeviceMemory{kHostDevice, 1 << 20, extents_},
                                   DeviceMemory{kOtherDevice, 1 << 20, extents_}},
                        1 << 20, quotas_};
  const Pins pins{table_, quotas_, devices, places_};
  Model& here = add(1, kQuota);
  Model& there = add(2, kQuota);
  there.key().device = kOtherDevice;
  EXPECT_TRUE(pins.pin(kPinner, here).ok());
  EXPECT_TRUE(pins.pin(kPinner, there).ok());
  EXPECT_EQ(pins.bytes_of(kPinner.user, kOtherDevice), kQuota);
  EXPECT_EQ(code_of(pins.pin(kPinner, add(3, 1))), ErrorCode::kQuotaExceeded);
}

TEST_F(PinsTest, a_user_pins_as_much_as_their_quota_and_no_byte_more) {
  Model& first = add(1, kQuota - 1);
  Model& second = add(2, 1);
  Model& third = add(3, 1);
  EXPECT_EQ(code_of(pins_.pin(kPinner, first)), ErrorCode::kOk);
  EXPECT_EQ(code_of(pins_.pin(kPinner, second)), ErrorCode::kOk);
  EXPECT_EQ(code_of(pins_.pin(kPinner, third)), ErrorCode::kQuotaExceeded);
  EXPECT_FALSE(third.pinned());
  EXPECT_EQ(pins_.bytes_of(kPinner.user, kHostDevice), kQuota);
  EXPECT_EQ(code_of(pins_.pin(kOtherPinner, third)), ErrorCode::kOk) << "whose quota is another";
  EXPECT_EQ(code_of(Pins::unpin(kPinner, second)), ErrorCode::kOk);
  EXPECT_EQ(code_of(pins_.pin(kPinner, third)), ErrorCode::kOk);
}

TEST_F(PinsTest, a_model_counts_once_for_each_user) {
  Model& model = add(1, kQuota);
  EXPECT_EQ(code_of(pins_.pin(kPinner, model)), ErrorCode::kOk);
  EXPECT_EQ(code_of(pins_.pin(kPinner, model)), ErrorCode::kOk) << "again";
  EXPECT_EQ(code_of(pins_.pin(kOtherPinner, model)), ErrorCode::kOk);
  EXPECT_EQ(pins_.bytes_of(kPinner.user, kHostDevice), kQuota);
  EXPECT_EQ(code_of(pins_.check_quota(kPinner, model, kQuota)), ErrorCode::kOk) << "their own";
}

TEST_F(PinsTest, of_a_first_load_only_administrators_may_pin_what_it_will_come_to) {
  Model& model = add(1, 0, ModelPhase::kLoading);
  EXPECT_EQ(code_of(pins_.pin(kPinner, model)), ErrorCode::kBusy);
  EXPECT_EQ(code_of(pins_.pin(kRootPinner, model)), ErrorCode::kOk);
}

TEST_F(PinsTest, what_leaves_is_neither_pinned_nor_unpinned) {
  Model& model = add(1, 1, ModelPhase::kUnloading);
  EXPECT_EQ(code_of(pins_.pin(kRootPinner, model)), ErrorCode::kBusy);
  EXPECT_EQ(code_of(Pins::unpin(kRootPinner, model)), ErrorCode::kBusy);
}

TEST_F(PinsTest, only_an_administrator_ends_the_pins_of_others) {
  Model& model = add(1, 1);
  EXPECT_EQ(code_of(Pins::unpin(kOtherPinner, model)), ErrorCode::kOk) << "there is none";
  EXPECT_EQ(code_of(pins_.pin(kPinner, model)), ErrorCode::kOk);
  EXPECT_EQ(code_of(Pins::unpin(kOtherPinner, model)), ErrorCode::kPermissionDenied);
  EXPECT_TRUE(model.pinned());
  EXPECT_EQ(code_of(Pins::unpin(kRootPinner, model)), ErrorCode::kOk);
  EXPECT_FALSE(model.pinned());
}

TEST_F(PinsTest, a_model_has_no_more_pins_than_users) {
  Model& model = add(1, 1);
  for (uint32_t user = 1; user <= limits::kModelUsers; ++user) {
    ASSERT_EQ(code_of(pins_.pin({Owner::of_user(user)}, model)), ErrorCode::kOk);
  }
  const Caller next{Owner::of_user(limits::kModelUsers + 1)};
  EXPECT_EQ(code_of(pins_.pin(next, model)), ErrorCode::kLimitExceeded);
  EXPECT_EQ(code_of(pins_.pin({Owner::of_user(1)}, model)), ErrorCode::kOk) << "who has one";
}

}  // namespace
}  // namespace djinn::daemon
