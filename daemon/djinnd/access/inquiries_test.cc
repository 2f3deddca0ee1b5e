// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/access/inquiries.h"

#include <gtest/gtest.h>

#include <vector>

namespace djinn::daemon {
namespace {

TEST(InquiriesTest, an_answer_comes_once_and_to_whom_it_belongs) {
  Inquiries inquiries;
  std::vector<int> answered;
  const Waiter first = inquiries.ask([&](const ipc::DaemonReply&) { answered.push_back(1); });
  const Waiter second = inquiries.ask([&](const ipc::DaemonReply&) { answered.push_back(2); });
  EXPECT_FALSE(first.session.valid());
  EXPECT_NE(first.number, second.number);
  inquiries.answer(second.number, {second.number, ipc::Done{}});
  inquiries.answer(second.number, {second.number, ipc::Done{}});
  inquiries.answer(0, {0, ipc::Done{}});
  EXPECT_EQ(answered, std::vector<int>{2});
  EXPECT_EQ(inquiries.waiting(), 1u);
}

TEST(InquiriesTest, an_answer_may_ask_again) {
  Inquiries inquiries;
  int answers = 0;
  const Waiter first = inquiries.ask([&](const ipc::DaemonReply&) {
    const Waiter again = inquiries.ask([&](const ipc::DaemonReply&) { ++answers; });
    inquiries.answer(again.number, {again.number, ipc::Done{}});
    ++answers;
  });
  inquiries.answer(first.number, {first.number, ipc::Done{}});
  EXPECT_EQ(answers, 2);
  EXPECT_EQ(inquiries.waiting(), 0u);
}

}  // namespace
}  // namespace djinn::daemon
