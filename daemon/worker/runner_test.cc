// SPDX-License-Identifier: Apache-2.0

// A session's submissions, from the ring to the completion, with an executor that has no kernels.
// The test is the client and djinnd: what the runner publishes and asks for is taken here.
#include "daemon/worker/runner.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <array>

#include "daemon/worker/heap.h"
#include "ipc/codec/control_codec.h"
#include "ipc/codec/srg_codec.h"
#include "kernel/executor/fake_executor_for_tests.h"
#include "kernel/pal/host_pal.h"
#include "kernel/srg/builder.h"

namespace djinn::worker {
namespace {

constexpr SessionId kSession{7};
constexpr uint64_t kStagingBytes = uint64_t{1} << 20;
constexpr uint64_t kRefBytes = uint64_t{1} << 20;
constexpr gc::StateGeometry kGeometry{limits::kRefs, limits::kSequences};
// In staging.
constexpr uint64_t kBlockAt = 0;
constexpr uint64_t kGraphAt = 64 << 10;
constexpr uint64_t kInputAt = 128 << 10;
constexpr uint64_t kOutputAt = 192 << 10;
constexpr RefHandle kRef{1, 1};

using Numbers = std::array<float, 4>;
constexpr Numbers kInput{1, 2, 3, 4};
constexpr Numbers kInputAndOne{2, 3, 4, 5};

enum class After { kNothing, kFailure, kHeap };

// One more than each element of its input, and then what else the test wants.
srg::Graph add_one(After after = After::kNothing) {
  srg::GraphBuilder g("add_one");
  const srg::Tensor x = g.input("x", DType::kFloat32, {4});
  const srg::Tensor y = g.op("fake::add_one", {x});
  g.claim(y, DType::kFloat32, {4});
  g.output("y", y);
  if (after == After::kFailure) g.op_n(0, "fake::fail", {});
  if (after == After::kHeap) g.op_n(0, "fake::take_heap", {1 << 20});
  return *std::move(g).finish();
}

class RunnerTest : public ::testing::Test {
 protected:
  RunnerTest() {
    EXPECT_TRUE(gc::SessionState::format(
        pal::map_shared(state_, gc::state_bytes(kGeometry), pal::Access::kReadWrite)->bytes(),
        kGeometry));
    attach();
  }

  // As a new worker does that djinnd gives the session to.
  void attach() {
    session_.reset();
    ipc::AttachSession command;
    command.session = kSession;
    command.staging_bytes = kStagingBytes;
    command.ref_bytes_max = kRefBytes;
    std::vector<Fd> fds;
    for (const Fd* fd : {&memory_, &state_, &refs_, &submission_bell_, &completion_bell_.bell}) {
      fds.push_back(*fd->duplicate());
    }
    auto session = Session::attach(command, std::move(fds), *pal_, grants_, faults_);
    ASSERT_TRUE(session) << session.error().message;
    session_ = *std::move(session);
  }

  // --- the client
  std::span<std::byte> staging() { return view_.staging(); }
  template <typename Block>
  void submit(ipc::Operation operation, const Block& block, uint64_t run,
              const std::vector<std::byte>& graph = {}) {
    const std::vector<std::byte> bytes = ipc::encode(block);
    copy_bytes(bytes, staging().subspan(kBlockAt));
    copy_bytes(graph, staging().subspan(kGraphAt));
    ipc::Submission submission;
    submission.operation = static_cast<uint16_t>(operation);
    submission.run = run;
    submission.binding_offset = kBlockAt;
    submission.binding_bytes = static_cast<uint32_t>(bytes.size());
    submission.graph_offset = kGraphAt;
    submission.graph_bytes = graph.size();
    ASSERT_TRUE(client_.publish(submission));
  }
  void submit_run(const srg::Graph& graph, const ipc::OutputBinding& output, uint64_t run = 1) {
    ipc::RunBlock block;
    copy_bytes(std::as_bytes(std::span(kInput)), staging().subspan(kInputAt));
    block.inputs = {{0, ipc::InputKind::kStaging, {kInputAt, sizeof kInput}, {}}};
    block.outputs = {output};
    submit(ipc::Operation::kRunOnce, block, run, ipc::encode(graph));
  }
  static ipc::OutputBinding to_staging() {
    return {ipc::OutputKind::kStaging, {kOutputAt, sizeof(Numbers)}, {}};
  }
  static ipc::OutputBinding to_ref() { return {ipc::OutputKind::kRef, {}, kRef}; }
  void submit_read(uint64_t run) {
    ipc::ReadBlock block;
    block.ref = kRef;
    block.dtype = DType::kFloat32;
    block.sizes = {4};
    block.strides = {1};
    block.staging = {kOutputAt, sizeof(Numbers)};
    submit(ipc::Operation::kReadRef, block, run);
  }
  // The first half of the ref's bytes; another part has to follow.
  void submit_first_part(uint64_t run) {
    copy_bytes(std::as_bytes(std::span(kInput)), staging().subspan(kInputAt));
    submit(ipc::Operation::kWriteRef,
           ipc::WriteBlock{kRef, {kInputAt, sizeof(Numbers) / 2}, 0, sizeof(Numbers)}, run);
  }
  Numbers output() {
    Numbers numbers{};
    memcpy(numbers.data(), staging().data() + kOutputAt, sizeof numbers);
    return numbers;
  }
  // How the next submission to end did so; nothing where none has.
  std::optional<ErrorCode> ended() {
    const auto taken = client_.take();
    if (!taken || !*taken) return std::nullopt;
    return static_cast<ErrorCode>((*taken)->error);
  }

  // --- the lane
  Runner::Advance advance() {
    const auto advanced = runner_.advance(*session_);
    EXPECT_TRUE(advanced) << advanced.error().message;
    return advanced ? *advanced : Runner::Advance::kIdle;
  }

  // --- djinnd
  void answer(ErrorCode code = ErrorCode::kOk) {
    pollfd entry{djinnd_.socket().get(), POLLIN, 0};
    ASSERT_EQ(::poll(&entry, 1, 20'000), 1) << "nothing is asked for";
    const auto event = ipc::decode_worker_event(djinnd_.receive()->bytes);
    const auto& request = std::get<ipc::GrantRequest>(event->body);
    grants_.deliver(ipc::GrantAnswer{request.request, code, "djinnd says so."});
  }

  static Fd memfd(uint64_t bytes, pal::Seals seals) {
    return *pal::make_memfd("test", bytes, seals);
  }

  ipc::SocketPair pair_ = *ipc::make_socket_pair();
  child::Channel worker_{std::move(pair_.left)};
  child::Channel djinnd_{std::move(pair_.right)};
  Outbox outbox_{worker_};
  Waits waits_{[] {}};
  Grants grants_{outbox_, waits_};
  std::unique_ptr<pal::HostPal> pal_ = *pal::HostPal::make();
  gc::FaultPoints faults_;
  SystemClock clock_;

  Fd memory_ = memfd(ipc::SessionLayout::bytes(kStagingBytes), pal::Seals::kShared);
  Fd state_ = memfd(gc::state_bytes(kGeometry), pal::Seals::kSize);
  Fd refs_ = memfd(kRefBytes, pal::Seals::kSize);
  Fd submission_bell_ = *ipc::make_submission_bell();
  ipc::CompletionBell completion_bell_ = *ipc::make_completion_bell();
  pal::Mapping of_client_ =
      *pal::map_shared(memory_, ipc::SessionLayout::bytes(kStagingBytes), pal::Access::kReadWrite);
  ipc::SessionView view_ = *ipc::SessionView::over(of_client_.bytes());
  ipc::ClientRing client_{view_};

  exec::FakeExecutor executor_;
  GrantedHeap heap_{grants_};
  std::unique_ptr<exec::Lane> lane_ = *executor_.make_lane({.grow_slab = {}, .heap = &heap_});
  ProgramTable programs_{waits_};
  SequencePager pager_{grants_, outbox_, waits_};
  Binder binder_{*lane_};
  LaneCounts counts_;
  Runner runner_{{executor_, *lane_, programs_, pager_, binder_}, clock_, counts_};
  std::unique_ptr<Session> session_;
};

TEST_F(RunnerTest, nothing_is_done_where_nothing_is_submitted) {
  EXPECT_EQ(advance(), Runner::Advance::kIdle);
  EXPECT_EQ(ended(), std::nullopt);
}

TEST_F(RunnerTest, a_run_gives_its_client_what_the_lane_computed) {
  submit_run(add_one(), to_staging());
  EXPECT_EQ(advance(), Runner::Advance::kWorked);
  EXPECT_EQ(ended(), ErrorCode::kOk);
  EXPECT_EQ(output(), kInputAndOne);
}

TEST_F(RunnerTest, a_run_whose_ref_needs_memory_waits_before_it_computes_and_is_told_once) {
  submit_run(add_one(), to_ref());
  EXPECT_EQ(advance(), Runner::Advance::kWaiting);
  EXPECT_EQ(lane_->stats().begun, 0u);
  EXPECT_EQ(ended(), std::nullopt);
  answer();
  EXPECT_EQ(advance(), Runner::Advance::kWaited);
  EXPECT_EQ(ended(), ErrorCode::kOk);
  EXPECT_EQ(ended(), std::nullopt);
  submit_read(2);
  EXPECT_EQ(advance(), Runner::Advance::kWorked);
  EXPECT_EQ(ended(), ErrorCode::kOk);
  EXPECT_EQ(output(), kInputAndOne);
}

TEST_F(RunnerTest, a_run_that_is_refused_memory_fails_with_what_djinnd_says) {
  submit_run(add_one(), to_ref());
  // A refs section that is refused a large grant asks for what it needs.
  for (int asked = 0; asked < 3 && advance() == Runner::Advance::kWaiting; ++asked) {
    answer(ErrorCode::kQuotaExceeded);
  }
  EXPECT_EQ(ended(), ErrorCode::kQuotaExceeded);
  EXPECT_EQ(lane_->stats().begun, 0u);
}

TEST_F(RunnerTest, a_run_that_computed_before_its_heap_was_there_is_repeated_and_counted) {
  submit_run(add_one(After::kHeap), to_staging());
  EXPECT_EQ(advance(), Runner::Advance::kWaiting);
  EXPECT_EQ(counts_.read().runs_repeated, 1u);
  answer();
  EXPECT_EQ(advance(), Runner::Advance::kWaited);
  EXPECT_EQ(ended(), ErrorCode::kOk);
  EXPECT_EQ(output(), kInputAndOne);
}

TEST_F(RunnerTest, what_a_failed_run_would_have_made_is_poisoned) {
  submit_run(add_one(After::kFailure), to_ref());
  EXPECT_EQ(advance(), Runner::Advance::kWaiting);
  answer();
  EXPECT_EQ(advance(), Runner::Advance::kWaited);
  EXPECT_EQ(ended(), ErrorCode::kInvalidArgument);
  submit_read(2);
  EXPECT_EQ(advance(), Runner::Advance::kWorked);
  EXPECT_EQ(ended(), ErrorCode::kPoisoned);
}

TEST_F(RunnerTest, a_ref_that_lacks_its_last_part_is_refused_and_not_waited_for) {
  submit_first_part(1);
  EXPECT_EQ(advance(), Runner::Advance::kWaiting);
  answer();
  EXPECT_EQ(advance(), Runner::Advance::kWaited);
  EXPECT_EQ(ended(), ErrorCode::kOk);
  submit_read(2);
  EXPECT_EQ(advance(), Runner::Advance::kWorked);
  EXPECT_EQ(ended(), ErrorCode::kBusy);
}

TEST_F(RunnerTest, a_run_that_was_given_up_ends_before_its_next_operator) {
  submit_run(add_one(), to_staging());
  client_.cancel_through(1);
  EXPECT_EQ(advance(), Runner::Advance::kWorked);
  EXPECT_EQ(ended(), ErrorCode::kCancelled);
}

TEST_F(RunnerTest, a_worker_that_follows_another_tells_nothing_twice_and_goes_on) {
  submit_run(add_one(), to_staging());
  EXPECT_EQ(advance(), Runner::Advance::kWorked);
  attach();
  EXPECT_EQ(advance(), Runner::Advance::kIdle);
  EXPECT_EQ(ended(), ErrorCode::kOk);
  EXPECT_EQ(ended(), std::nullopt);
  submit_run(add_one(), to_staging(), 2);
  EXPECT_EQ(advance(), Runner::Advance::kWorked);
  EXPECT_EQ(ended(), ErrorCode::kOk);
}

TEST_F(RunnerTest, a_run_with_the_number_of_another_breaks_the_protocol) {
  submit_run(add_one(), to_staging());
  EXPECT_EQ(advance(), Runner::Advance::kWorked);
  submit_run(add_one(), to_staging());
  const auto advanced = runner_.advance(*session_);
  ASSERT_FALSE(advanced);
  EXPECT_EQ(advanced.error().code, ErrorCode::kProtocolViolation);
}

}  // namespace
}  // namespace djinn::worker
