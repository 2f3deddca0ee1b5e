// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/mailbox.h"

#include <gtest/gtest.h>

#include <string>

#include "ipc/bell.h"

namespace djinn::worker {
namespace {

class MailboxTest : public testing::Test {
 protected:
  void post(Mailbox::Subject subject, char name) {
    mailbox_.post(subject, [this, name] { done_ += name; });
  }
  // While the run that is set aside uses that session.
  Mailbox::Mail run_beside(SessionId aside) {
    return mailbox_.run([aside](const Mailbox::Subject& subject) {
      const auto* const id = std::get_if<SessionId>(&subject);
      return id != nullptr && *id == aside;
    });
  }

  Mailbox mailbox_{*ipc::make_submission_bell()};
  std::string done_;
};

TEST_F(MailboxTest, jobs_run_once_in_the_order_in_which_they_came) {
  EXPECT_EQ(run_beside({}), Mailbox::Mail::kNone);
  post({}, 'a');
  post(SessionId{1}, 'b');
  post(ModelId{1}, 'c');
  EXPECT_TRUE(mailbox_.has_mail());
  EXPECT_EQ(run_beside({}), Mailbox::Mail::kDone);
  EXPECT_EQ(done_, "abc");
  EXPECT_FALSE(mailbox_.has_mail());
  EXPECT_EQ(run_beside({}), Mailbox::Mail::kNone);
}

TEST_F(MailboxTest, what_lets_go_of_what_is_used_waits_and_so_does_all_that_came_behind_it) {
  post({}, 'a');
  post(SessionId{7}, 'b');
  post({}, 'c');
  EXPECT_EQ(run_beside(SessionId{7}), Mailbox::Mail::kWaits);
  EXPECT_EQ(done_, "a");
  EXPECT_TRUE(mailbox_.has_mail());
  post({}, 'd');
  EXPECT_EQ(run_beside(SessionId{7}), Mailbox::Mail::kWaits);
  EXPECT_EQ(done_, "a");
  EXPECT_EQ(run_beside({}), Mailbox::Mail::kDone);
  EXPECT_EQ(done_, "abcd");
}

TEST_F(MailboxTest, a_job_may_post_another_which_runs_next_time) {
  mailbox_.post({}, [this] { post({}, 'z'); });
  EXPECT_EQ(run_beside({}), Mailbox::Mail::kDone);
  EXPECT_EQ(done_, "");
  EXPECT_TRUE(mailbox_.has_mail());
  EXPECT_EQ(run_beside({}), Mailbox::Mail::kDone);
  EXPECT_EQ(done_, "z");
}

}  // namespace
}  // namespace djinn::worker
