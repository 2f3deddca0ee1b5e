// SPDX-License-Identifier: Apache-2.0

#include "daemon/worker/session.h"

#include "daemon/worker/session_for_tests.h"

namespace djinn::worker {
namespace {

class AttachTest : public SessionTest {
 protected:
  std::vector<Fd> fds() {
    std::vector<Fd> fds;
    for (const Fd* fd : {&memory_, &state_, &submission_bell_, &completion_bell_.bell, &refs_}) {
      fds.push_back(*fd->duplicate());
    }
    return fds;
  }
  ErrorCode attached(std::vector<Fd> fds, uint64_t granted = 0) {
    ipc::AttachSession command;
    command.session = kSession;
    command.staging_bytes = kStagingBytes;
    command.ref_bytes_max = kRefBytes;
    command.ref_chunks = {{0, kRefBytes}};
    command.ref_bytes_granted = granted;
    return code_of(Session::attach(command, std::move(fds), *pal_, grants_, faults_));
  }
};

TEST_F(AttachTest, a_session_comes_with_all_its_descriptors_and_their_seals) {
  EXPECT_EQ(attached(fds()), ErrorCode::kOk);
  for (size_t missing = 0; missing < 5; ++missing) {
    std::vector<Fd> some = fds();
    some.erase(some.begin() + static_cast<ptrdiff_t>(missing));
    EXPECT_EQ(attached(std::move(some)), ErrorCode::kMalformed);
  }
  for (const size_t unsealed : {0, 1, 4}) {
    std::vector<Fd> some = fds();
    some[unsealed] = *pal::make_memfd("test", kRefBytes);
    EXPECT_NE(attached(std::move(some)), ErrorCode::kOk) << unsealed;
  }
  EXPECT_NE(attached(fds(), kRefBytes + 4096), ErrorCode::kOk) << "more than there is";
}

TEST_F(AttachTest, a_state_that_was_never_made_is_refused) {
  std::vector<Fd> some = fds();
  some[1] = memfd(gc::state_bytes(kGeometry), pal::Seals::kSize);
  EXPECT_EQ(attached(std::move(some)), ErrorCode::kMalformed);
}

TEST_F(AttachTest, a_range_of_staging_lies_inside_of_it) {
  EXPECT_TRUE(session_->staging_range({0, kStagingBytes}));
  EXPECT_TRUE(session_->staging_range({kStagingBytes, 0}));
  for (const ipc::StagingRange& range : {ipc::StagingRange{0, kStagingBytes + 1},
                                         {kStagingBytes, 1},
                                         {1, UINT64_MAX},
                                         {UINT64_MAX, 1}}) {
    EXPECT_EQ(code_of(session_->staging_range(range)), ErrorCode::kOutOfRange);
  }
}

TEST_F(AttachTest, a_group_is_found_by_the_handle_that_it_has) {
  EXPECT_EQ(code_of(session_->find_sequence({3, 1})), ErrorCode::kNotFound);
  const SequenceHandle group = make_group(3, 2, 16);
  ASSERT_TRUE(session_->find_sequence(group));
  EXPECT_EQ(code_of(session_->find_sequence({3, 2})), ErrorCode::kStaleHandle);
  EXPECT_EQ(code_of(session_->find_sequence({})), ErrorCode::kNotFound);
  const gc::SequenceEntry fresh = session_->sequence_entry(**session_->find_sequence(group));
  EXPECT_EQ(fresh.rows, 2u);
  EXPECT_EQ(fresh.length, 0u);
  session_->drop_sequence({3, 2});  // of another one
  EXPECT_TRUE(session_->find_sequence(group));
  session_->drop_sequence(group);
  EXPECT_FALSE(session_->find_sequence(group));
}

TEST_F(AttachTest, what_has_happened_in_a_session_is_counted_over_the_deaths_of_workers) {
  submit_run(add_one(), to_staging());
  ASSERT_EQ(finish(), ErrorCode::kOk);
  attach();
  submit_run(add_one("fake::fail"), to_staging());
  ASSERT_EQ(finish(), ErrorCode::kInvalidArgument);
  const gc::RunCounts counts = gc::read_progress(state_head())->counts;
  EXPECT_EQ(counts.graphs, 1u);
  EXPECT_EQ(counts.failed, 1u);
  EXPECT_EQ(counts.last_tier, 1u);
  EXPECT_GT(counts.bytes_in, 2 * (sizeof(ipc::Submission) + sizeof kInput));
  EXPECT_GT(counts.bytes_out, sizeof(Numbers) + 2 * sizeof(ipc::Completion));
}

}  // namespace
}  // namespace djinn::worker
