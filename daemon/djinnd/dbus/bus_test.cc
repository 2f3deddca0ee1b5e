// SPDX-License-Identifier: Apache-2.0

// Against a bus in this process.
#include "daemon/djinnd/dbus/bus.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/eventfd.h>

#include <array>
#include <map>
#include <optional>

#include "daemon/djinnd/dbus/bus_callers.h"
#include "daemon/djinnd/dbus/bus_frames.h"
#include "daemon/djinnd/dbus/bus_reports.h"
#include "daemon/djinnd/dbus/bus_subscribers.h"
#include "daemon/djinnd/testing/fake_bus.h"
#include "daemon/djinnd/testing/run_until.h"
#include "kernel/base/owned_state_for_tests.h"

namespace djinn::daemon {
namespace {

using testing::FakeBus;

constexpr gid_t kAdmins = 77;

class BusTest : public ::testing::Test {
 protected:
  void run_until(const std::function<bool()>& condition) {
    testing::run_until(loop_, "the condition holds", condition);
  }

  void start() {
    bus_.start();
    run_until([this] { return bus_.serving(); });
  }

  // What a caller is known as, once it is.
  std::function<void(const Result<Caller>&)> note() {
    return [this](const Result<Caller>& caller) { known_.push_back(caller); };
  }

  Loop loop_;
  SystemClock clock_;
  FakeBus fake_{loop_};
  size_t opened_ = 0;
  size_t lost_ = 0;
  Authority authority_{kAdmins};
  Bus bus_{loop_,
           clock_,
           BusKind::kSystem,
           "org.djinn.Test",
           {[this](sd_bus*) { return static_cast<int>(++opened_); },
            [this] {
              ++lost_;
              callers_.forget();
            }}};
  BusCallers callers_{bus_, authority_, {50, 50}};
  std::vector<Result<Caller>> known_;
};

int answer_credentials(sd_bus_message* call, uint32_t user, uint32_t group) {
  return ::sd_bus_reply_method_return(call, "a{sv}", 4, "ProcessID", "u", 5, "UnixUserID", "u",
                                      user, "LinuxSecurityLabel", "ay", 2, 'a', 0, "UnixGroupIDs",
                                      "au", 2, 5, group);
}

TEST(BusPhase, a_bus_serves_once_the_name_is_ours_and_may_be_gone_at_any_time) {
  using enum BusPhase;
  constexpr std::array kStates{kAbsent, kOpening, kServing};
  constexpr auto kLegal = std::to_array<Transition<BusPhase>>({
      {kAbsent, kAbsent},
      {kAbsent, kOpening},
      {kOpening, kAbsent},
      {kOpening, kServing},
      {kServing, kAbsent},
  });
  StateForTests::expect_legal<BusPhase>(kStates, kLegal);
}

TEST(BusErrorTest, errors_are_named_as_their_codes) {
  EXPECT_EQ(bus_error_of(ErrorCode::kNotFound), "org.djinn.Error.NotFound");
  EXPECT_EQ(bus_error_of(ErrorCode::kInvalidArgument), "org.djinn.Error.InvalidArgument");
  EXPECT_EQ(bus_error_of(ErrorCode::kIo), "org.djinn.Error.Io");
}

TEST_F(BusTest, a_bus_that_dies_is_found_again) {
  start();
  for (size_t times = 1; times <= 2; ++times) {
    fake_.close_guest();
    run_until([&] { return lost_ == times; });
    EXPECT_FALSE(bus_.serving());
    run_until([this] { return bus_.serving(); });
    EXPECT_EQ(opened_, times + 1);
  }
}

TEST_F(BusTest, a_name_that_another_has_is_asked_for_again) {
  fake_.name_outcome = 3;
  bus_.start();
  run_until([this] { return lost_ == 1; });
  EXPECT_FALSE(bus_.serving());
  fake_.name_outcome = 1;
  run_until([this] { return bus_.serving(); });
  EXPECT_EQ(fake_.times_called("RequestName"), 2u);
}

TEST_F(BusTest, what_waits_is_forgotten_with_the_connection) {
  start();
  callers_.identify(":1.9", note());
  run_until([this] { return fake_.times_called("GetConnectionCredentials") == 1; });
  fake_.close_guest();
  run_until([this] { return lost_ == 1; });
  EXPECT_TRUE(known_.empty());
  fake_.answers["GetConnectionCredentials"] = [](sd_bus_message* call) {
    return answer_credentials(call, 1000, 6);
  };
  run_until([this] { return bus_.serving(); });
  callers_.identify(":1.9", note());
  run_until([this] { return known_.size() == 1; });
}

TEST_F(BusTest, a_bus_that_reads_nothing_is_given_up) {
  start();
  fake_.stop_reading();
  const std::string bytes(4096, 'x');
  size_t sent = 0;
  for (; lost_ == 0 && sent < 100'000; ++sent) {
    bus_.use([&](sd_bus* bus) {
      return ::sd_bus_emit_signal(bus, "/", "org.djinn.Test", "Signal", "s", bytes.c_str());
    });
  }
  EXPECT_EQ(lost_, 1u) << sent;
}

// What the filter below heard.
struct Heard {
  std::vector<std::string> texts;  // "no text" where there was none to read
  uint32_t turn = 0;
  std::map<uint32_t, size_t> in_turn;
};

int note_text(sd_bus_message* message, void* heard, sd_bus_error*) {
  if (::sd_bus_message_is_method_call(message, "org.djinn.Test", "Say") <= 0) return 0;
  const char* text = nullptr;
  const bool read = ::sd_bus_message_read(message, "s", &text) > 0;
  auto& of_bus = *static_cast<Heard*>(heard);
  of_bus.texts.emplace_back(read ? text : "no text");
  ++of_bus.in_turn[of_bus.turn];
  return 1;
}

// Calls Say.
std::function<int(sd_bus*)> say(const std::string& text) {
  return [text](sd_bus* bus) {
    return ::sd_bus_call_method_async(bus, nullptr, "org.djinn.Test", "/", "org.djinn.Test", "Say",
                                      nullptr, nullptr, "s", text.c_str());
  };
}

TEST_F(BusTest, a_call_over_the_limit_comes_without_its_arguments_and_the_next_as_it_is) {
  start();
  Heard heard;
  bus_.use([&](sd_bus* bus) { return ::sd_bus_add_filter(bus, nullptr, &note_text, &heard); });
  fake_.send(say(std::string(3 << 20, 'x')));
  fake_.send(say(std::string(1000, 'y')));
  fake_.send(say(std::string(BusFrames::kCallBytesMax, 'z')));
  fake_.send(say("last"));
  run_until([&] { return heard.texts.size() == 4; });
  EXPECT_EQ(heard.texts,
            (std::vector<std::string>{"no text", std::string(1000, 'y'), "no text", "last"}));
  EXPECT_TRUE(bus_.serving());
}

// Of a turn of the loop: by the bus's socket, and by what was passed on.
TEST_F(BusTest, calls_that_come_together_are_not_heard_together) {
  start();
  Heard heard;
  bus_.use([&](sd_bus* bus) { return ::sd_bus_add_filter(bus, nullptr, &note_text, &heard); });
  // Ready in each turn.
  const Fd always(::eventfd(1, EFD_CLOEXEC));
  Poll turns(loop_, always.get(), [&] { ++heard.turn; });
  turns.watch_readable();
  for (int i = 0; i < 40; ++i) fake_.send(say("one of many"));
  run_until([&] { return heard.texts.size() == 40; });
  for (const auto& [turn, calls] : heard.in_turn) EXPECT_LE(calls, 2u) << turn;
}

TEST_F(BusTest, an_address_may_be_one_of_many_and_escaped) {
  const std::string address = ::getenv("DBUS_SYSTEM_BUS_ADDRESS");
  const std::string name = address.substr(address.find('=') + 1);
  std::string escaped;
  for (const unsigned char byte : name) escaped += fmt::format("%{:02x}", byte);
  const std::string many =
      "tcp:host=localhost,port=1;unix:path=/nowhere;unix:guid=1,abstract=" + escaped + ",more=2;";
  ::setenv("DBUS_SYSTEM_BUS_ADDRESS", many.c_str(), 1);
  start();
}

TEST_F(BusTest, a_caller_is_asked_for_once_and_judged_by_all_groups) {
  fake_.answers["GetConnectionCredentials"] = [](sd_bus_message* call) {
    return answer_credentials(call, 1000, kAdmins);
  };
  start();
  for (int i = 0; i < 3; ++i) callers_.identify(":1.9", note());
  run_until([this] { return known_.size() == 3; });
  callers_.identify(":1.9", note());
  ASSERT_EQ(known_.size(), 4u);
  for (const auto& caller : known_) {
    ASSERT_TRUE(caller.ok());
    EXPECT_EQ(caller->user, Owner::of_user(1000));
    EXPECT_TRUE(caller->admin);
  }
  EXPECT_EQ(fake_.times_called("GetConnectionCredentials"), 1u);
}

TEST_F(BusTest, a_sender_has_few_calls_wait) {
  start();
  for (size_t i = 0; i < BusCallers::kWaitingMax; ++i) callers_.identify(":1.9", note());
  EXPECT_TRUE(known_.empty());
  callers_.identify(":1.9", note());
  ASSERT_EQ(known_.size(), 1u);
  EXPECT_EQ(known_[0].error().code, ErrorCode::kQueueFull);
  callers_.identify(":1.10", note());
  EXPECT_EQ(known_.size(), 1u);
}

TEST_F(BusTest, whom_the_bus_does_not_know_is_refused) {
  start();
  for (const int failure : {ESRCH, 0}) {
    fake_.answers["GetConnectionCredentials"] = [&](sd_bus_message* call) {
      return failure != 0 ? ::sd_bus_reply_method_errno(call, failure, nullptr)
                          : ::sd_bus_reply_method_return(call, "a{sv}", 0);
    };
    known_.clear();
    callers_.identify(":1.9", note());
    run_until([this] { return !known_.empty(); });
    EXPECT_EQ(known_[0].error().code, ErrorCode::kPermissionDenied);
  }
}

TEST_F(BusTest, polkit_allows_what_it_says_and_nothing_where_there_is_none) {
  start();
  for (const int answer : {0, 1, -1}) {
    fake_.answers["CheckAuthorization"] = [&](sd_bus_message* call) {
      return answer < 0 ? ::sd_bus_reply_method_errno(call, ENOENT, nullptr)
                        : ::sd_bus_reply_method_return(call, "(bba{ss})", answer, 1 - answer, 0);
    };
    std::optional<bool> allowed;
    callers_.ask_polkit(":1.9", "org.djinn.steer", Prompt::kNever,
                        [&](bool yes) { allowed = yes; });
    run_until([&] { return allowed.has_value(); });
    EXPECT_EQ(*allowed, answer == 1) << answer;
  }
  EXPECT_EQ(fake_.times_called("CancelCheckAuthorization"), 0u);
}

// The last argument of CheckAuthorization.
std::string cancellation_id(sd_bus_message* call) {
  const char* id = "";
  EXPECT_GE(::sd_bus_message_skip(call, "(sa{sv})sa{ss}u"), 0);
  EXPECT_GT(::sd_bus_message_read(call, "s", &id), 0);
  return id;
}

TEST_F(BusTest, a_question_that_polkit_does_not_answer_in_time_is_withdrawn) {
  std::vector<std::string> asked;
  std::vector<std::string> withdrawn;
  fake_.answers["CheckAuthorization"] = [&](sd_bus_message* call) {
    asked.push_back(cancellation_id(call));
    return 1;
  };
  fake_.answers["CancelCheckAuthorization"] = [&](sd_bus_message* call) {
    const char* id = "";
    EXPECT_GT(::sd_bus_message_read(call, "s", &id), 0);
    EXPECT_EQ(::sd_bus_message_get_expect_reply(call), 0);
    withdrawn.emplace_back(id);
    return 1;
  };
  start();
  std::vector<bool> answers;
  for (const Prompt prompt : {Prompt::kNever, Prompt::kAllowed}) {
    callers_.ask_polkit(":1.9", "org.djinn.steer", prompt,
                        [&](bool yes) { answers.push_back(yes); });
  }
  run_until([&] { return withdrawn.size() == 2; });
  EXPECT_EQ(withdrawn, asked);
  EXPECT_NE(asked[0], asked[1]);
  EXPECT_EQ(answers, std::vector<bool>({false, false}));
  run_until([&] { return fake_.times_called("RemoveMatch") == 2; });
}

// As a bus says it.
int tell_that_left(sd_bus* bus, const char* name) {
  sd_bus_message* raw = nullptr;
  EXPECT_GE(::sd_bus_message_new_signal(bus, &raw, "/org/freedesktop/DBus", "org.freedesktop.DBus",
                                        "NameOwnerChanged"),
            0);
  const Message signal(raw);
  EXPECT_GE(::sd_bus_message_set_sender(raw, "org.freedesktop.DBus"), 0);
  EXPECT_GE(::sd_bus_message_append(raw, "sss", name, name, ""), 0);
  return ::sd_bus_send(bus, raw, nullptr);
}

TEST_F(BusTest, a_question_of_a_caller_who_left_is_withdrawn) {
  sd_bus_message* question = nullptr;
  fake_.answers["CheckAuthorization"] = [&](sd_bus_message* call) {
    question = ::sd_bus_message_ref(call);
    return tell_that_left(::sd_bus_message_get_bus(call), ":1.9");
  };
  fake_.answers["CancelCheckAuthorization"] = [&](sd_bus_message*) {
    return ::sd_bus_reply_method_errno(question, ECANCELED, nullptr);
  };
  fake_.answers["AddMatch"] = [](sd_bus_message* call) {
    return ::sd_bus_reply_method_return(call, "");
  };
  start();
  std::optional<bool> allowed;
  BusCallers patient(bus_, authority_);
  patient.ask_polkit(":1.9", "org.djinn.steer", Prompt::kAllowed, [&](bool yes) { allowed = yes; });
  run_until([&] { return allowed.has_value(); });
  EXPECT_FALSE(*allowed);
  EXPECT_EQ(fake_.times_called("CancelCheckAuthorization"), 1u);
  ::sd_bus_message_unref(question);
}

TEST_F(BusTest, a_question_of_a_caller_who_had_left_before_is_withdrawn) {
  sd_bus_message* question = nullptr;
  fake_.answers["CheckAuthorization"] = [&](sd_bus_message* call) {
    question = ::sd_bus_message_ref(call);
    return 1;
  };
  fake_.answers["CancelCheckAuthorization"] = [&](sd_bus_message*) {
    return ::sd_bus_reply_method_errno(question, ECANCELED, nullptr);
  };
  fake_.answers["NameHasOwner"] = [](sd_bus_message* call) {
    return ::sd_bus_reply_method_return(call, "b", 0);
  };
  start();
  std::optional<bool> allowed;
  BusCallers patient(bus_, authority_);
  patient.ask_polkit(":1.9", "org.djinn.steer", Prompt::kAllowed, [&](bool yes) { allowed = yes; });
  run_until([&] { return allowed.has_value(); });
  EXPECT_FALSE(*allowed);
  EXPECT_EQ(fake_.times_called("CancelCheckAuthorization"), 1u);
  ::sd_bus_message_unref(question);
}

TEST_F(BusTest, a_subscriber_for_whom_the_bus_takes_no_rule_is_dropped_and_no_other) {
  size_t rules = 0;
  fake_.answers["AddMatch"] = [&](sd_bus_message* call) {
    return ++rules == 1
               ? ::sd_bus_reply_method_return(call, "")
               : ::sd_bus_reply_method_errorf(call, SD_BUS_ERROR_LIMITS_EXCEEDED, "no more rules");
  };
  start();
  BusSubscribers subscribers(bus_);
  for (const char* const name : {":1.9", ":1.10"}) {
    EXPECT_TRUE(subscribers.add(name, {Owner::of_user(1000), false}));
  }
  EXPECT_EQ(subscribers.size(), 2u);
  run_until([&] { return lost_ > 0 || subscribers.size() < 2; });
  EXPECT_EQ(lost_, 0u) << "the connection is closed for all";
  EXPECT_EQ(subscribers.size(), 1u);
  subscribers.forget();
}

}  // namespace
}  // namespace djinn::daemon
