// SPDX-License-Identifier: Apache-2.0

// Token steps of sessions that decode with one program: begun one by one, computed together, told
// one by one. The model says that the next token is the last one, and one.
#include "daemon/worker/member_for_tests.h"
#include "daemon/worker/session_for_tests.h"

namespace djinn::worker {
namespace {

using Tokens = std::vector<int32_t>;
using Advance = Runner::Advance;

constexpr ProgramId kFast = Member::kProgram, kExact{6};

srg::Graph model(srg::Numerics numerics) {
  srg::Graph graph = counting_model();
  graph.numerics = numerics;
  return graph;
}

class JoinedTest : public SessionTest {
 protected:
  JoinedTest() {
    for (const auto& [id, numerics] :
         {std::pair{kFast, srg::Numerics::kFast}, std::pair{kExact, srg::Numerics::kExact}}) {
      auto admitted = admit_graph(executor_, ipc::encode(model(numerics)), nullptr);
      programs_.expect_program(id, {}, std::make_shared<const std::vector<std::byte>>());
      programs_.add_program(id, *std::move(admitted));
    }
    for (uint64_t id = 11; id < 14; ++id) {
      members_.push_back(std::make_unique<Member>(id, *pal_, grants_, faults_));
    }
  }

  Advance advance(Member& member, bool may_join = true) {
    const auto advanced = runner_.advance(*member.session, may_join);
    EXPECT_TRUE(advanced);
    return *advanced;
  }
  // Those that joined, in the order in which they ended.
  std::vector<SessionId> end_joined(Advance as = Advance::kWorked) {
    std::vector<SessionId> ended;
    runner_.end_joined([&](Session& session, Advance advance) {
      EXPECT_EQ(advance, as);
      ended.push_back(session.id());
    });
    EXPECT_FALSE(runner_.has_joined());
    return ended;
  }
  uint64_t together() { return counts_.read().runs_together; }

  std::vector<std::unique_ptr<Member>> members_;
};

TEST_F(JoinedTest, steps_behind_the_first_are_computed_together_and_each_is_told_its_own) {
  for (size_t i = 0; i < members_.size(); ++i) members_[i]->generate(10 * int32_t(i + 1));
  for (const auto& member : members_) {
    EXPECT_EQ(advance(*member), Advance::kWorked) << "a prompt is computed by itself";
  }
  for (int step = 1; step < 5; ++step) {
    for (const auto& member : members_) ASSERT_EQ(advance(*member), Advance::kJoins);
    EXPECT_EQ(end_joined().size(), 3u);
  }
  for (size_t i = 0; i < members_.size(); ++i) {
    const int32_t first = 10 * int32_t(i + 1);
    EXPECT_EQ(members_[i]->told(), (Tokens{first + 1, first + 2, first + 3, first + 4, first + 5}));
    EXPECT_EQ(members_[i]->ended, ErrorCode::kOk);
  }
  EXPECT_EQ(together(), 12u);
}

TEST_F(JoinedTest, one_that_joins_alone_is_computed_alone) {
  members_[0]->generate(10);
  ASSERT_EQ(advance(*members_[0]), Advance::kWorked);
  ASSERT_EQ(advance(*members_[0]), Advance::kJoins);
  EXPECT_EQ(end_joined(), (std::vector{members_[0]->client.id}));
  EXPECT_EQ(members_[0]->told(), (Tokens{11, 12}));
  EXPECT_EQ(together(), 0u);
}

TEST_F(JoinedTest, one_that_is_given_up_ends_and_the_others_go_on) {
  for (const auto& member : members_) member->generate(20);
  for (const auto& member : members_) ASSERT_EQ(advance(*member), Advance::kWorked);
  for (const auto& member : members_) ASSERT_EQ(advance(*member), Advance::kJoins);
  members_[1]->client.ring.cancel_through(1);
  EXPECT_EQ(end_joined().size(), 3u);
  EXPECT_EQ(members_[0]->told(), (Tokens{21, 22}));
  EXPECT_EQ(members_[1]->told(), (Tokens{21}));
  EXPECT_EQ(members_[1]->ended, ErrorCode::kCancelled);
  EXPECT_EQ(members_[2]->told(), (Tokens{21, 22}));
  EXPECT_EQ(members_[2]->ended, std::nullopt);
}

TEST_F(JoinedTest, who_was_in_flight_when_a_worker_died_is_computed_alone_for_a_while) {
  members_[0]->generate(10);
  ASSERT_EQ(advance(*members_[0]), Advance::kWorked);
  members_[0]->attach();
  for (int step = 1; step < 5; ++step) EXPECT_EQ(advance(*members_[0]), Advance::kWorked);
  EXPECT_EQ(members_[0]->told(), (Tokens{11, 12, 13, 14, 15}));
  // Another submission does not end it: who gives up the one that kills would kill with the next.
  for (int more = 0; more < 12; ++more) {
    members_[0]->generate(20 + more);
    for (int step = 0; step < 5; ++step) EXPECT_EQ(advance(*members_[0]), Advance::kWorked);
    ASSERT_EQ(members_[0]->told().size(), 5u);
  }
  members_[0]->generate(40);
  EXPECT_EQ(advance(*members_[0]), Advance::kWorked);
  EXPECT_EQ(advance(*members_[0]), Advance::kJoins) << "that is over";
  end_joined();
}

TEST_F(JoinedTest, what_is_exact_joins_nobody) {
  members_[0]->generate(10, kExact);
  for (int step = 0; step < 5; ++step) {
    EXPECT_EQ(runner_.batch_key_of(*members_[0]->session), 0u);
    EXPECT_EQ(advance(*members_[0]), Advance::kWorked);
  }
  EXPECT_EQ(members_[0]->told(), (Tokens{11, 12, 13, 14, 15}));
}

TEST_F(JoinedTest, a_key_is_of_steps_that_can_join) {
  members_[0]->generate(10);
  Session& session = *members_[0]->session;
  EXPECT_EQ(runner_.batch_key_of(session), 0u) << "a prompt comes next";
  ASSERT_EQ(advance(*members_[0]), Advance::kWorked);
  EXPECT_EQ(runner_.batch_key_of(session), kFast.value);
  for (int step = 1; step < 5; ++step) ASSERT_EQ(advance(*members_[0], false), Advance::kWorked);
  EXPECT_EQ(runner_.batch_key_of(session), 0u) << "nothing comes next";
}

}  // namespace
}  // namespace djinn::worker
