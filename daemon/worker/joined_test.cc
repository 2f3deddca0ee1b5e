// SPDX-License-Identifier: Apache-2.0

// Token steps of sessions that decode with one program, of generations and of clients' own loops:
// begun one by one, computed together, told one by one. The model says that the next token is the
// last one, and one.
#include <string.h>

#include <algorithm>

#include "daemon/worker/member_for_tests.h"
#include "daemon/worker/session_for_tests.h"

namespace djinn::worker {
namespace {

using Tokens = std::vector<int32_t>;
using Advance = Runner::Advance;

constexpr ProgramId kFast = Member::kProgram, kExact{6};
constexpr StepBatch kOne{kFast.value, 1};

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

  StepBatch batch(Member& member) { return batch_of_next_step(*member.session, programs_); }
  Advance advance(Member& member) { return advance(member, batch(member)); }
  Advance advance(Member& member, const StepBatch& unit) {
    const auto advanced = runner_.advance(*member.session, unit);
    EXPECT_TRUE(advanced);
    return *advanced;
  }
  // Of a run of the token, computed by itself.
  std::vector<std::byte> logits_alone(Member& member, int64_t token) {
    member.run_step(token, Member::to_staging());
    EXPECT_EQ(advance(member, {}), Advance::kWorked);
    EXPECT_EQ(end_of(member), ErrorCode::kOk);
    return member.logits();
  }
  // How the submission in flight has ended, if it has.
  static std::optional<ErrorCode> end_of(Member& member) {
    member.ended.reset();
    member.told();
    return member.ended;
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
    EXPECT_EQ(batch(*members_[0]), StepBatch());
    EXPECT_EQ(advance(*members_[0]), Advance::kWorked);
  }
  EXPECT_EQ(members_[0]->told(), (Tokens{11, 12, 13, 14, 15}));
}

TEST_F(JoinedTest, a_key_is_of_steps_that_can_join) {
  Member& member = *members_[0];
  member.generate(10);
  EXPECT_EQ(batch(member), StepBatch()) << "a prompt comes next";
  ASSERT_EQ(advance(member), Advance::kWorked);
  EXPECT_EQ(batch(member), kOne);
  for (int step = 1; step < 5; ++step) ASSERT_EQ(advance(member, {}), Advance::kWorked);
  EXPECT_EQ(batch(member), StepBatch()) << "nothing comes next";
}

// --- runs

TEST_F(JoinedTest, runs_of_a_token_are_computed_together_and_each_has_what_it_has_alone) {
  std::vector<std::vector<std::byte>> alone;
  for (size_t i = 0; i < members_.size(); ++i) {
    alone.push_back(logits_alone(*members_[i], 10 * int64_t(i + 1)));
  }
  for (int step = 0; step < 3; ++step) {
    for (size_t i = 0; i < members_.size(); ++i) {
      members_[i]->run_step(10 * int64_t(i + 1), Member::to_staging());
      std::ranges::fill(
          members_[i]->client.staging().subspan(TestSession::kOutputAt, Member::kLogitsBytes),
          std::byte{0xff});
      ASSERT_EQ(advance(*members_[i]), Advance::kJoins);
    }
    EXPECT_EQ(end_joined().size(), 3u);
    for (size_t i = 0; i < members_.size(); ++i) {
      EXPECT_EQ(end_of(*members_[i]), ErrorCode::kOk);
      EXPECT_EQ(members_[i]->logits(), alone[i]);
      EXPECT_EQ(members_[i]->length(), 2u + uint64_t(step));
    }
  }
  EXPECT_EQ(together(), 9u);
}

TEST_F(JoinedTest, runs_and_steps_of_generations_are_computed_together) {
  const std::vector<std::byte> alone = logits_alone(*members_[0], 30);
  members_[1]->generate(10);
  ASSERT_EQ(advance(*members_[1]), Advance::kWorked);
  for (int step = 1; step < 5; ++step) {
    members_[0]->run_step(30, Member::to_staging());
    ASSERT_EQ(advance(*members_[0]), Advance::kJoins);
    ASSERT_EQ(advance(*members_[1]), Advance::kJoins);
    EXPECT_EQ(end_joined().size(), 2u);
    EXPECT_EQ(end_of(*members_[0]), ErrorCode::kOk);
    EXPECT_EQ(members_[0]->logits(), alone);
  }
  EXPECT_EQ(members_[1]->told(), (Tokens{11, 12, 13, 14, 15}));
  EXPECT_EQ(together(), 8u);
}

// Memory for a ref is asked for before anything is computed, and comes with some for the next one.
TEST_F(JoinedTest, what_a_run_makes_becomes_a_ref_that_has_its_bytes) {
  const std::vector<std::byte> alone = logits_alone(*members_[0], 30);
  for (const size_t i : {0, 1}) {
    members_[i]->run_step(30, to_ref());
    ASSERT_EQ(advance(*members_[i]), Advance::kWaiting);
    ASSERT_TRUE(grant_all());
    ASSERT_EQ(advance(*members_[i]), Advance::kWaited) << "by itself";
    EXPECT_EQ(end_of(*members_[i]), ErrorCode::kOk);
    members_[i]->run_step(30, to_ref({2, 1}));
  }
  for (const size_t i : {0, 1}) ASSERT_EQ(advance(*members_[i]), Advance::kJoins);
  EXPECT_EQ(end_joined().size(), 2u);
  EXPECT_EQ(together(), 2u);
  for (const size_t i : {0, 1}) {
    EXPECT_EQ(end_of(*members_[i]), ErrorCode::kOk);
    Session& session = *members_[i]->session;
    const auto made = session.refs().find(session.state(), {2, 1});
    ASSERT_TRUE(made);
    ASSERT_EQ(made->bytes, alone.size());
    EXPECT_EQ(memcmp(made->data.on_host(), alone.data(), alone.size()), 0);
  }
}

TEST_F(JoinedTest, a_run_that_is_refused_memory_fails_by_itself) {
  const std::vector<std::byte> alone = logits_alone(*members_[0], 30);
  for (const size_t i : {0, 2}) members_[i]->run_step(30, Member::to_staging());
  members_[1]->run_step(30, to_ref());
  ASSERT_EQ(advance(*members_[0]), Advance::kJoins);
  ASSERT_EQ(advance(*members_[1]), Advance::kWaiting);
  ASSERT_EQ(advance(*members_[2]), Advance::kJoins);
  EXPECT_EQ(end_joined().size(), 2u);
  EXPECT_EQ(batch(*members_[1]), StepBatch()) << "it goes on by itself";
  Advance advanced = Advance::kWaiting;
  for (; advanced == Advance::kWaiting; advanced = advance(*members_[1])) {
    answer(ErrorCode::kOutOfMemory);  // less will do
  }
  EXPECT_EQ(advanced, Advance::kWaited);
  EXPECT_EQ(end_of(*members_[1]), ErrorCode::kOutOfMemory);
  EXPECT_EQ(members_[1]->length(), 0u);
  for (const size_t i : {0, 2}) {
    EXPECT_EQ(end_of(*members_[i]), ErrorCode::kOk);
    EXPECT_EQ(members_[i]->logits(), alone);
  }
}

TEST_F(JoinedTest, a_run_that_is_given_up_ends_and_the_others_go_on) {
  const std::vector<std::byte> alone = logits_alone(*members_[0], 30);
  for (const auto& member : members_) {
    member->run_step(30, Member::to_staging());
    ASSERT_EQ(advance(*member), Advance::kJoins);
  }
  members_[1]->client.ring.cancel_through(members_[1]->client.last_run);
  EXPECT_EQ(end_joined().size(), 3u);
  EXPECT_EQ(end_of(*members_[1]), ErrorCode::kCancelled);
  EXPECT_EQ(members_[1]->length(), 0u);
  for (const size_t i : {0, 2}) {
    EXPECT_EQ(end_of(*members_[i]), ErrorCode::kOk);
    EXPECT_EQ(members_[i]->logits(), alone);
  }
}

TEST_F(JoinedTest, a_run_that_is_another_one_when_it_is_picked_up_is_computed_by_itself) {
  members_[0]->run_step(30, Member::to_staging());
  ASSERT_EQ(advance(*members_[0]), Advance::kJoins);
  for (const auto& [program, tokens] :
       {std::pair{kFast, int64_t{2}}, std::pair{kExact, int64_t{1}}}) {
    Member& liar = *members_[1];
    const uint64_t before = liar.length();
    liar.run_step(30, Member::to_staging(), program, {1, tokens});
    ASSERT_EQ(batch(liar), StepBatch());
    EXPECT_EQ(advance(liar, kOne), Advance::kAbandoned);
    EXPECT_EQ(end_of(liar), std::nullopt);
    EXPECT_EQ(liar.length(), before);
    EXPECT_EQ(batch(liar), StepBatch());
    EXPECT_EQ(advance(liar), Advance::kWorked);
    EXPECT_EQ(end_of(liar), ErrorCode::kOk);
    EXPECT_EQ(liar.length(), before + uint64_t(tokens));
  }
  EXPECT_EQ(end_joined().size(), 1u);
  EXPECT_EQ(end_of(*members_[0]), ErrorCode::kOk);
}

TEST_F(JoinedTest, runs_that_a_worker_died_in_are_repeated_one_by_one) {
  const std::vector<std::byte> alone = logits_alone(*members_[0], 30);
  {
    Runner dying({executor_, *lane_, waits_, programs_, pager_, binder_, clock_, grants_}, clock_,
                 counts_);
    for (const size_t i : {1, 2}) {
      members_[i]->run_step(30, Member::to_staging());
      ASSERT_EQ(*dying.advance(*members_[i]->session, batch(*members_[i])), Advance::kJoins);
    }
  }
  for (const size_t i : {1, 2}) {
    for (int death = 0; death < 3; ++death) {  // nothing is committed between them
      members_[i]->attach();
      EXPECT_EQ(batch(*members_[i]), StepBatch());
    }
    EXPECT_EQ(advance(*members_[i]), Advance::kWorked);
    EXPECT_EQ(end_of(*members_[i]), ErrorCode::kOk);
    EXPECT_EQ(members_[i]->logits(), alone);
    EXPECT_EQ(members_[i]->length(), 1u);
    members_[i]->run_step(30, Member::to_staging());
    EXPECT_EQ(batch(*members_[i]), StepBatch()) << "for a while";
    EXPECT_EQ(advance(*members_[i]), Advance::kWorked);
    EXPECT_EQ(end_of(*members_[i]), ErrorCode::kOk);
  }
  EXPECT_EQ(together(), 0u);
}

TEST_F(JoinedTest, a_run_that_comes_too_late_is_refused_and_joins_nobody) {
  members_[0]->client.begin_by_ns = 1;
  members_[0]->run_step(30, Member::to_staging());
  EXPECT_EQ(batch(*members_[0]), kOne);
  EXPECT_EQ(advance(*members_[0]), Advance::kAbandoned);
  EXPECT_EQ(advance(*members_[0]), Advance::kWorked);
  EXPECT_EQ(end_of(*members_[0]), ErrorCode::kQueueFull);
}

TEST_F(JoinedTest, a_run_behind_one_of_its_series_that_failed_is_not_computed) {
  members_[0]->series = 4;
  members_[0]->run_step(30, Member::to_staging(), ProgramId{99});
  EXPECT_EQ(advance(*members_[0]), Advance::kWorked);
  EXPECT_EQ(end_of(*members_[0]), ErrorCode::kNotFound);
  members_[0]->run_step(30, Member::to_staging());
  EXPECT_EQ(advance(*members_[0], kOne), Advance::kAbandoned);
  EXPECT_EQ(advance(*members_[0]), Advance::kWorked);
  EXPECT_EQ(end_of(*members_[0]), ErrorCode::kPoisoned);
  members_[0]->series = 5;
  members_[0]->run_step(30, Member::to_staging());
  EXPECT_EQ(advance(*members_[0]), Advance::kJoins);
  end_joined();
  EXPECT_EQ(end_of(*members_[0]), ErrorCode::kOk);
}

TEST_F(JoinedTest, a_key_is_of_runs_of_a_token_that_can_join) {
  Member& member = *members_[0];
  member.run_step(30, Member::to_staging());
  EXPECT_EQ(batch(member), kOne);
  ASSERT_EQ(advance(member, {}), Advance::kWorked);
  member.run_step(30, Member::to_staging(), kFast, {1, 2});
  EXPECT_EQ(batch(member), StepBatch()) << "two tokens";
  ASSERT_EQ(advance(member, {}), Advance::kWorked);
  member.run_step(30, Member::to_staging(), kExact);
  EXPECT_EQ(batch(member), StepBatch()) << "it is exact";
  ASSERT_EQ(advance(member, {}), Advance::kWorked);
  member.run_step(30, Member::to_staging());
  std::ranges::fill(member.client.staging().first(64), std::byte{0xff});
  EXPECT_EQ(batch(member), StepBatch()) << "its block says nonsense";
}

}  // namespace
}  // namespace djinn::worker
