// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/models/places.h"

#include <gtest/gtest.h>

#include <array>
#include <utility>

#include "daemon/djinnd/models/pins.h"
#include "daemon/djinnd/testing/no_extents.h"
#include "kernel/base/owned_state_for_tests.h"

namespace djinn::daemon {
namespace {

constexpr uint32_t kMost = 3;
constexpr Caller kHolder{Owner::of_user(1000)};
constexpr Caller kOtherHolder{Owner::of_user(1001)};
constexpr Caller kAdmin{Owner::of_user(0), true};

class PlacesTest : public ::testing::Test {
 protected:
  PlacesTest() {
    quotas_.set({{false, "ann", kHolder.user.user(), {{}, {}, {}, kMost}}}, {1 << 20});
  }

  Model& add(const Caller& owner, ModelPhase phase = ModelPhase::kResident) {
    Model fresh;
    fresh.id = {++last_};
    fresh.key().domain = owner.user;
    StateForTests::set(fresh.phase, phase);
    return table_.add(std::move(fresh));
  }
  static void hold(Model& model, const Caller& by) {
    ModelLease lease;
    lease.count = 1;
    lease.domain = by.user;
    StateForTests::value_of(model.leases)[SessionId{by.user.user().value_or(0) + uint64_t{1}}] =
        lease;
  }
  void let_ann_hold(uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) hold(add(kHolder), kHolder);
  }
  [[nodiscard]] bool may(const Caller& caller, const Model* model = nullptr) const {
    const Status status = places_.check(caller, model);
    EXPECT_TRUE(status || status.error().code == ErrorCode::kLimitExceeded);
    return status.ok();
  }

  uint64_t last_ = 0;
  ModelTable table_;
  Quotas quotas_;
  Places places_{table_, quotas_};
};

TEST_F(PlacesTest, a_user_keeps_as_many_models_as_their_quota_and_not_one_more) {
  let_ann_hold(kMost - 1);
  EXPECT_TRUE(may(kHolder));
  let_ann_hold(1);
  EXPECT_FALSE(may(kHolder));
  EXPECT_TRUE(may(kOtherHolder)) << "whose quota is another";
  EXPECT_TRUE(may(kAdmin)) << "whom none binds";
  EXPECT_NE(places_.check(kHolder, nullptr).error().message.find("user.ann.models_max"),
            std::string::npos);
}

TEST_F(PlacesTest, without_a_section_a_user_has_an_eighth_of_the_table) {
  for (uint32_t i = 0; i < limits::kModelsPerUser; ++i) {
    EXPECT_TRUE(may(kOtherHolder)) << i;
    hold(add(kOtherHolder), kOtherHolder);
  }
  EXPECT_FALSE(may(kOtherHolder));
}

TEST_F(PlacesTest, what_they_keep_already_takes_no_place_more) {
  let_ann_hold(kMost);
  Model& others = add(kOtherHolder);
  EXPECT_FALSE(may(kHolder, &others));
  EXPECT_TRUE(may(kHolder, &table_.all().begin()->second));
}

TEST_F(PlacesTest, a_pin_keeps_a_model_as_a_session_does_and_both_count_once) {
  Model& model = add(kOtherHolder);
  Pins::add(model, kHolder.user);
  hold(model, kHolder);
  EXPECT_EQ(places_.count(kHolder.user), 1u);
  EXPECT_EQ(places_.count(kOtherHolder.user), 0u) << "who opened it first, and keeps it no more";
}

TEST_F(PlacesTest, what_nobody_keeps_counts_unless_it_cannot_give_way) {
  for (const ModelPhase phase : {ModelPhase::kResident, ModelPhase::kOnDisk, ModelPhase::kEvicting,
                                 ModelPhase::kUnloading}) {
    add(kHolder, phase);
  }
  EXPECT_EQ(places_.count(kHolder.user), 0u);
  add(kHolder, ModelPhase::kLoading);
  EXPECT_EQ(places_.count(kHolder.user), 1u);
}

TEST_F(PlacesTest, a_pin_beyond_the_quota_is_refused) {
  testing::NoExtents extents;
  const Devices devices(std::array{DeviceMemory{kHostDevice, 1 << 20, extents}}, 1 << 20, quotas_);
  const Pins pins(table_, quotas_, devices, places_);
  let_ann_hold(kMost);
  Model& one_more = add(kOtherHolder);
  const Status refused = pins.pin(kHolder, one_more);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kLimitExceeded);
  EXPECT_FALSE(one_more.pinned());
}

}  // namespace
}  // namespace djinn::daemon
