// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/events/events.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "daemon/djinnd/events/journal.h"
#include "kernel/base/clock_for_tests.h"

namespace djinn::daemon {
namespace {

constexpr Owner kAnn = Owner::of_user(1000);
constexpr Owner kBob = Owner::of_user(1001);

Event event_of(Owner owner) {
  Event event{EventKind::kModelLoaded, "model 00000000002a is resident: 7 B", owner};
  event.model = ModelId{42};
  event.bytes = 7;
  return event;
}

TEST(EventsTest, numbers_rise_by_one_and_listeners_hear_in_order) {
  const SystemClock clock;
  Events events(clock);
  std::vector<uint64_t> heard;
  events.listen([&](const Event& event) { heard.push_back(event.number); });
  for (size_t i = 0; i < Events::kRecent + 3; ++i) events.emit(event_of(kAnn));
  EXPECT_EQ(events.last(), Events::kRecent + 3);
  EXPECT_EQ(heard.size(), Events::kRecent + 3);
  EXPECT_TRUE(std::is_sorted(heard.begin(), heard.end()));
  EXPECT_EQ(events.recent().size(), Events::kRecent);
  EXPECT_EQ(events.recent().front().number, 4u);
  EXPECT_GT(events.recent().front().wall_ns, 0u);
}

TEST(EventsTest, who_brought_an_event_about_is_for_the_log) {
  Event event = event_of(kAnn);
  event.by = "user bob";
  EXPECT_EQ(text_of(event), event.text + ", by user bob");
  EXPECT_EQ(event.text.find("bob"), std::string::npos);
}

TEST(EventsTest, a_users_events_are_seen_by_them_and_administrators) {
  EXPECT_TRUE(seen_by(event_of(kAnn), {kAnn, false}));
  EXPECT_FALSE(seen_by(event_of(kAnn), {kBob, false}));
  EXPECT_TRUE(seen_by(event_of(kAnn), {kBob, true}));
  EXPECT_TRUE(seen_by({EventKind::kDaemonStarted, "", {}}, {kBob, false}));
}

TEST(EventsTest, a_users_refusals_are_told_until_they_are_too_many_and_nobody_elses_are_kept_back) {
  ClockByHand clock;
  Events events(clock);
  for (uint64_t i = 0; i < Events::kLimitedAtOnce + 7; ++i) events.emit_limited(event_of(kAnn));
  EXPECT_EQ(events.last(), Events::kLimitedAtOnce);
  events.emit_limited(event_of(kBob));
  EXPECT_EQ(events.last(), Events::kLimitedAtOnce + 1);
  clock.now_ns += 1'000'000'000;
  events.emit_limited(event_of(kAnn));
  EXPECT_EQ(events.last(), Events::kLimitedAtOnce + 2);
  EXPECT_NE(events.recent().back().text.find("and 7 more"), std::string::npos);
  events.emit_limited(event_of(kAnn));
  EXPECT_EQ(events.last(), Events::kLimitedAtOnce + 2) << "one a second";
}

TEST(EventsTest, each_kind_has_a_name_and_a_message_id_of_its_own) {
  std::set<std::string_view> names;
  std::set<std::string_view> ids;
  for (uint8_t kind = 0; kind < ipc::kEventKinds; ++kind) {
    names.insert(name_of(static_cast<EventKind>(kind)));
    ids.insert(message_id_of(static_cast<EventKind>(kind)));
    EXPECT_EQ(message_id_of(static_cast<EventKind>(kind)).size(), 32u);
  }
  EXPECT_EQ(names.size(), ipc::kEventKinds);
  EXPECT_EQ(ids.size(), ipc::kEventKinds);
  EXPECT_FALSE(names.contains(""));
}

TEST(JournalTest, an_event_has_the_fields_that_apply_to_it) {
  const std::vector<std::string> fields = journal_fields(event_of(kAnn));
  const auto has = [&](const char* field) {
    return std::find(fields.begin(), fields.end(), field) != fields.end();
  };
  EXPECT_TRUE(has("DJINN_MODEL=00000000002a"));
  EXPECT_TRUE(has("DJINN_BYTES=7"));
  EXPECT_TRUE(has("MESSAGE=model 00000000002a is resident: 7 B"));
  EXPECT_TRUE(has("DJINN_USER=1000"));
  EXPECT_EQ(fields.size(), 6u);  // with MESSAGE_ID and PRIORITY, and no other
}

TEST(JournalTest, an_event_of_a_principal_has_their_name_and_no_number_of_a_user) {
  const SystemClock clock;
  Events events(clock);
  const Owner ann = Owner::of_principal(1);
  EXPECT_EQ(events.user_text(ann), "principal " + std::to_string(ann.number()));
  events.set_names([](Owner) { return "spiffe://lab/ann"; });
  EXPECT_EQ(events.user_text(ann), "principal spiffe://lab/ann");
  events.emit(event_of(ann));
  const std::vector<std::string> fields = journal_fields(events.recent().back());
  EXPECT_NE(std::ranges::find(fields, "DJINN_PRINCIPAL=spiffe://lab/ann"), fields.end());
  EXPECT_TRUE(std::ranges::none_of(
      fields, [](const std::string& field) { return field.starts_with("DJINN_USER="); }));
}

TEST(JournalTest, an_event_of_a_device_names_it) {
  const auto fields =
      journal_fields(device_event(kHostDevice, EventKind::kDeviceLost, "it is lost"));
  EXPECT_NE(std::ranges::find(fields, "DJINN_DEVICE=cpu:0"), fields.end());
}

TEST(JournalTest, a_load_that_failed_is_told_with_its_path_and_reason) {
  Event event = event_of(kAnn);
  event.text = "a model could not be loaded: malformed";
  event.path = "/srv/bad";
  event.sentence = "It is cut short.";
  const std::vector<std::string> fields = journal_fields(event);
  const auto has = [&](const char* field) {
    return std::find(fields.begin(), fields.end(), field) != fields.end();
  };
  EXPECT_TRUE(has("DJINN_PATH=/srv/bad"));
  EXPECT_TRUE(has("DJINN_REASON=It is cut short."));
  EXPECT_TRUE(
      has("MESSAGE=a model could not be loaded: malformed, from /srv/bad: It is cut short."));
}

}  // namespace
}  // namespace djinn::daemon
