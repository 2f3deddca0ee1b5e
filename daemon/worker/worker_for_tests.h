// SPDX-License-Identifier: Apache-2.0

// WorkerTest: a worker with all its threads in this process, but without its confinement, and an
// executor that has no kernels. The test is djinnd: it sends commands and takes events.
// TestSession: a session, of which the test is the client.
#pragma once

#include <sys/socket.h>

#include <future>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/worker/control_loop.h"
#include "daemon/worker/djinnd_for_tests.h"
#include "ipc/codec/srg_codec.h"
#include "kernel/executor/fake_executor_for_tests.h"
#include "kernel/pal/host_pal.h"
#include "kernel/srg/builder.h"

namespace djinn::worker {

inline srg::Graph one_operator(std::string_view op, std::vector<srg::Arg> arguments = {}) {
  srg::GraphBuilder g("test");
  g.op_n(0, op, std::move(arguments));
  return *std::move(g).finish();
}

class TestSession {
 public:
  static constexpr uint64_t kStagingBytes = uint64_t{1} << 18;
  static constexpr uint64_t kRefBytes = uint64_t{1} << 20;
  static constexpr gc::StateGeometry kGeometry{limits::kRefs, limits::kSequences};

  explicit TestSession(SessionId session, ServiceClass of = ServiceClass::kNormal)
      : id(session), service(of) {
    EXPECT_TRUE(gc::SessionState::format(
        pal::map_shared(state_, gc::state_bytes(kGeometry), pal::Access::kReadWrite)->bytes(),
        kGeometry));
  }

  [[nodiscard]] ipc::AttachSession command() const {
    ipc::AttachSession command;
    command.session = id;
    command.staging_bytes = kStagingBytes;
    command.ref_bytes_max = kRefBytes;
    command.ref_chunks = {{0, kRefBytes}};
    command.service = service;
    return command;
  }
  [[nodiscard]] std::vector<int> fds() const {
    return {memory_.get(), state_.get(), submission_bell_.get(), bell_.bell.get(), refs_.get()};
  }

  // A run of the program, or of the graph; rings where the worker sleeps.
  void run(const srg::Graph& graph) {
    const std::vector<std::byte> bytes = ipc::encode(graph);
    copy_bytes(bytes, staging().subspan(kGraphAt));
    ipc::Submission submission;
    submission.operation = static_cast<uint16_t>(ipc::Operation::kRunOnce);
    submission.graph_offset = kGraphAt;
    submission.graph_bytes = bytes.size();
    submit({}, submission);
  }
  void run(ProgramId program, std::vector<ipc::OutputBinding> outputs) {
    ipc::Submission submission;
    submission.operation = static_cast<uint16_t>(ipc::Operation::kRun);
    submission.program = program.value;
    ipc::RunBlock block;
    block.outputs = std::move(outputs);
    submit(block, submission);
  }
  void submit(const ipc::RunBlock& block, ipc::Submission submission) {
    submit_bytes(ipc::encode(block), submission);
  }
  // Of an encoded block, which is copied to where the submission says.
  void submit_bytes(std::span<const std::byte> bytes, ipc::Submission submission) {
    copy_bytes(bytes, staging().subspan(submission.binding_offset));
    submission.run = ++last_run;
    submission.binding_bytes = static_cast<uint32_t>(bytes.size());
    submission.begin_by_ns = begin_by_ns;
    ASSERT_TRUE(ring.publish(submission));
    if (ring.worker_must_be_woken()) ring_bell();
  }
  void ring_bell() const { ipc::ring_submission_bell(submission_bell_); }
  // How the next submission to end did so; waits for it on the bell, as clients do.
  ErrorCode completion() {
    for (;;) {
      const auto taken = ring.take();
      EXPECT_TRUE(taken);
      if (taken && *taken) return static_cast<ErrorCode>((*taken)->error);
      pollfd entry{bell_.listener.get(), POLLIN, 0};
      if (ring.prepare_to_sleep() && ::poll(&entry, 1, 20'000) != 1) {
        ADD_FAILURE() << "no completion came";
        return ErrorCode::kTimeout;
      }
      ring.finish_sleep();
      ipc::take_rings(bell_.listener);
    }
  }
  std::span<std::byte> staging() { return view_.staging(); }
  // What the client may write of it.
  ipc::SessionControl& control() { return view_.control(); }
  // The name of the operator that it is in.
  [[nodiscard]] std::string op() const {
    return gc::read_progress(*pal::read_memfd(state_, gc::kStateHeadBytes))->op;
  }

  static constexpr uint64_t kGraphAt = 64 << 10;
  static constexpr uint64_t kOutputAt = 128 << 10;
  const SessionId id;
  const ServiceClass service;
  uint64_t last_run = 0;
  uint64_t begin_by_ns = 0;  // of what is submitted

 private:
  Fd memory_ =
      *pal::make_memfd("memory", ipc::SessionLayout::bytes(kStagingBytes), pal::Seals::kShared);
  Fd state_ = *pal::make_memfd("state", gc::state_bytes(kGeometry), pal::Seals::kSize);
  Fd refs_ = *pal::make_memfd("refs", kRefBytes, pal::Seals::kSize);
  Fd submission_bell_ = *ipc::make_submission_bell();
  ipc::CompletionBell bell_ = *ipc::make_completion_bell();
  pal::Mapping mapped_ =
      *pal::map_shared(memory_, ipc::SessionLayout::bytes(kStagingBytes), pal::Access::kReadWrite);
  ipc::SessionView view_ = *ipc::SessionView::over(mapped_.bytes());

 public:
  ipc::ClientRing ring{view_};
};

class WorkerTest : public DjinndTest {
 protected:
  explicit WorkerTest(SchedulePolicy policy = SchedulePolicy::kFair) : policy_(policy) {
    on_arrival_ = [this] { loop_->wake(); };
    loop_->on_model_wanted([this](ModelId model) { outbox_.send({ipc::ModelWanted{model}}); });
    loop_->start(pager_);
    control_ = std::thread([this] { ended_ = control_loop_.run().error().code; });
  }
  ~WorkerTest() override { end(); }

  // As djinnd does with a worker that it does not need any more.
  void end() {
    if (!control_.joinable()) return;
    ::shutdown(djinnd_.socket().get(), SHUT_WR);
    control_.join();
    grants_.close();
    loop_->stop();
  }
  void command(const ipc::WorkerCommand& command, const std::vector<int>& fds = {}) {
    ASSERT_TRUE(djinnd_.send(ipc::encode(command), fds));
  }
  // Runs on the lane's thread between two steps, or operators, and is over when this returns.
  void on_lane(const std::function<void(LaneLoop::State&)>& job) {
    std::promise<void> done;
    loop_->post([&](LaneLoop::State& state) {
      job(state);
      done.set_value();
    });
    done.get_future().wait();
  }
  // The session, which the worker has taken in.
  std::unique_ptr<TestSession> attach(uint64_t id, ServiceClass of = ServiceClass::kNormal) {
    auto session = std::make_unique<TestSession>(SessionId{id}, of);
    command({session->command()}, session->fds());
    EXPECT_EQ(heard<ipc::Attached>().session, session->id);
    return session;
  }
  void grant(const ipc::GrantRequest& request) {
    command({ipc::GrantAnswer{request.request, ErrorCode::kOk, {}}});
  }

  const SchedulePolicy policy_;
  gc::FaultPoints faults_;
  SystemClock clock_;
  std::unique_ptr<pal::HostPal> pal_ = *pal::HostPal::make();
  Slab slab_{*pal_, grants_};
  GrantedHeap heap_{grants_};
  exec::FakeExecutor executor_;
  std::unique_ptr<exec::Lane> lane_ =
      *executor_.make_lane({.grow_slab =
                                [this](uint64_t bytes, const exec::OnProgress& on_progress) {
                                  return slab_.grow(bytes, on_progress);
                                },
                            .heap = &heap_});
  std::unique_ptr<LaneLoop> loop_ =
      *LaneLoop::make(executor_, *lane_, clock_, {waits_, grants_, slab_, heap_}, policy_,
                      [this](SessionId id, const Error& error) {
                        outbox_.send({ipc::SessionBroken{id, error.code, error.message}});
                      });
  SequencePager pager_{grants_, outbox_, waits_};
  ControlLoop control_loop_{
      {worker_, outbox_, grants_, *loop_, faults_, *pal_, pager_, executor_, clock_}};
  ErrorCode ended_ = ErrorCode::kOk;
  std::thread control_;
};

}  // namespace djinn::worker
