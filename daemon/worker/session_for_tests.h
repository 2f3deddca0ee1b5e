// SPDX-License-Identifier: Apache-2.0

// SessionTest: one session, its lane with an executor that has no kernels, and the rest of the
// world. The test is the client and djinnd: what the lane publishes and asks for is taken here.
// Nothing computes but in advance() and finish().
#pragma once

#include <array>
#include <future>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "daemon/worker/djinnd_for_tests.h"
#include "daemon/worker/heap.h"
#include "daemon/worker/runner.h"
#include "ipc/codec/srg_codec.h"
#include "kernel/base/clock_for_tests.h"
#include "kernel/executor/fake_executor_for_tests.h"
#include "kernel/pal/host_pal.h"
#include "kernel/srg/builder.h"

namespace djinn::worker {

using Numbers = std::array<float, 4>;
inline constexpr Numbers kInput{1, 2, 3, 4};
inline constexpr Numbers kInputAndOne{2, 3, 4, 5};
inline constexpr Numbers kInputAndTwo{3, 4, 5, 6};

inline StepBatch batch_of_next_step(Session& session, const ProgramTable& programs) {
  auto next = NextStep::of(session, programs);
  return next ? next->batch() : StepBatch{};
}

// One more than each element of its input. then: an operator without results that follows.
inline srg::Graph add_one(std::string_view then = {}, std::vector<srg::Arg> arguments = {}) {
  srg::GraphBuilder g("add_one");
  const srg::Tensor x = g.input("x", DType::kFloat32, {4});
  const srg::Tensor y = g.op("fake::add_one", {x});
  g.claim(y, DType::kFloat32, {4});
  g.output("y", y);
  if (!then.empty()) g.op_n(0, then, std::move(arguments));
  return *std::move(g).finish();
}

// Likewise, in place.
inline srg::Graph add_one_in_place(std::string_view then = {}) {
  srg::GraphBuilder g("add_one_");
  g.op("fake::add_one_", {g.input("x", DType::kFloat32, {4})});
  if (!then.empty()) g.op_n(0, then, {});
  return *std::move(g).finish();
}

// The next token is the last one, and one. writes: an input, too.
inline srg::Graph counting_model(bool writes = false, int64_t vocabulary = 100) {
  srg::GraphBuilder g("model");
  const srg::Expr rows = g.symbol("rows", 1, limits::kRows, srg::SymbolRole::kBatch);
  const srg::Expr tokens = g.symbol("tokens", 1, 64, srg::SymbolRole::kTokens);
  const srg::Tensor ids = g.input("ids", DType::kInt64, {rows, tokens}, srg::InputRole::kTokenIds);
  const srg::Tensor logits = g.op("fake::logits", {ids});
  g.claim(logits, DType::kFloat32, {rows, vocabulary});
  g.output("logits", logits);
  if (writes) g.op("fake::add_one_", {g.input("x", DType::kFloat32, {4})});
  return *std::move(g).finish();
}

class SessionTest : public DjinndTest {
 protected:
  static constexpr SessionId kSession{7};
  static constexpr uint64_t kStagingBytes = uint64_t{1} << 20;
  static constexpr uint64_t kRefBytes = uint64_t{1} << 20;
  static constexpr gc::StateGeometry kGeometry{limits::kRefs, limits::kSequences};
  // In staging.
  static constexpr uint64_t kBlockAt = 0;
  static constexpr uint64_t kGraphAt = 64 << 10;
  static constexpr uint64_t kInputAt = 128 << 10;
  static constexpr uint64_t kOutputAt = 192 << 10;
  static constexpr RefHandle kRef{1, 1};

  SessionTest() {
    EXPECT_TRUE(gc::SessionState::format(
        pal::map_shared(state_, gc::state_bytes(kGeometry), pal::Access::kReadWrite)->bytes(),
        kGeometry));
    attach();
  }

  // As a new worker does that djinnd gives the session to.
  void attach() {
    session_.reset();
    grants_.forget(ipc::GrantKind::kRefs, kSession);
    grant_all();
    ipc::AttachSession command;
    command.session = kSession;
    command.staging_bytes = kStagingBytes;
    command.ref_bytes_max = kRefBytes;
    command.ref_chunks = {{0, kRefBytes}};
    command.ref_bytes_granted = granted_bytes_[ipc::GrantKind::kRefs];
    command.refusal = refusal_;
    std::vector<Fd> fds;
    for (const Fd* fd : {&memory_, &state_, &submission_bell_, &completion_bell_.bell, &refs_}) {
      fds.push_back(*fd->duplicate());
    }
    auto session = Session::attach(command, std::move(fds), *pal_, grants_, faults_);
    ASSERT_TRUE(session) << session.error().message;
    session_ = *std::move(session);
    for (const auto& [index, group] : groups_) map_group(index);
  }

  // --- the client
  std::span<std::byte> staging() { return view_.staging(); }
  template <typename Block>
  void submit(ipc::Operation operation, const Block& block, ipc::Submission submission = {}) {
    const std::vector<std::byte> bytes = ipc::encode(block);
    copy_bytes(bytes, staging().subspan(kBlockAt));
    submission.operation = static_cast<uint16_t>(operation);
    submission.run = next_run_++;
    submission.binding_offset = kBlockAt;
    submission.binding_bytes = static_cast<uint32_t>(bytes.size());
    submission.begin_by_ns = begin_by_ns_;
    ASSERT_TRUE(client_.publish(submission));
  }
  // series_ is that of the runs.
  void submit_graph(const srg::Graph& graph, const ipc::RunBlock& block) {
    const std::vector<std::byte> bytes = ipc::encode(graph);
    copy_bytes(bytes, staging().subspan(kGraphAt));
    ipc::Submission submission;
    submission.series = series_;
    submission.graph_offset = kGraphAt;
    submission.graph_bytes = bytes.size();
    submit(ipc::Operation::kRunOnce, block, submission);
  }
  void submit_run(const srg::Graph& graph, const ipc::OutputBinding& output) {
    ipc::RunBlock block;
    block.inputs = {from_staging()};
    block.outputs = {output};
    submit_graph(graph, block);
  }
  // kInput, for the first storage.
  ipc::InputBinding from_staging() {
    copy_bytes(std::as_bytes(std::span(kInput)), staging().subspan(kInputAt));
    return {0, ipc::InputKind::kStaging, {kInputAt, sizeof kInput}, {}};
  }
  static ipc::InputBinding from_ref(RefHandle ref) { return {0, ipc::InputKind::kRef, {}, ref}; }
  static ipc::OutputBinding to_staging() {
    return {ipc::OutputKind::kStaging, {kOutputAt, sizeof(Numbers)}, {}};
  }
  static ipc::OutputBinding to_ref(RefHandle ref = kRef) {
    return {ipc::OutputKind::kRef, {}, ref};
  }
  // kInput becomes a ref.
  void submit_write(RefHandle ref) {
    from_staging();
    submit(ipc::Operation::kWriteRef,
           ipc::WriteBlock{ref, {kInputAt, sizeof kInput}, 0, sizeof kInput});
  }
  // A ref of so many bytes, whose last part is missing.
  void submit_first_part(RefHandle ref, uint64_t bytes) {
    submit(ipc::Operation::kWriteRef, ipc::WriteBlock{ref, {kInputAt, 8}, 0, bytes});
  }
  void submit_read(RefHandle ref = kRef) {
    ipc::ReadBlock block;
    block.ref = ref;
    block.dtype = DType::kFloat32;
    block.sizes = {4};
    block.strides = {1};
    block.staging = {kOutputAt, sizeof(Numbers)};
    submit(ipc::Operation::kReadRef, block);
  }
  void submit_release(std::vector<RefHandle> refs) {
    submit(ipc::Operation::kReleaseRefs, ipc::ReleaseBlock{std::move(refs)});
  }
  Numbers output() {
    Numbers numbers{};
    memcpy(numbers.data(), staging().data() + kOutputAt, sizeof numbers);
    return numbers;
  }
  // How the next submission to end did so; nothing where none has. What it told on the way is in
  // told_.
  std::optional<ErrorCode> ended() {
    for (;;) {
      const auto taken = client_.take();
      EXPECT_TRUE(taken);
      if (!taken || !*taken) return std::nullopt;
      told_.push_back(**taken);
      if (told_.back().kind != static_cast<uint16_t>(ipc::CompletionKind::kDone)) continue;
      return static_cast<ErrorCode>(told_.back().error);
    }
  }

  // --- the lane
  Runner::Advance advance() {
    const auto advanced = runner_.advance(*session_);
    EXPECT_TRUE(advanced) << advanced.error().message;
    return advanced ? *advanced : Runner::Advance::kIdle;
  }
  // Advances, and grants all that is asked for, until a submission ends.
  ErrorCode finish() {
    for (;;) {
      if (const auto code = ended()) return *code;
      const Runner::Advance advanced = advance();
      if (advanced == Runner::Advance::kWaiting) {
        if (!grant_all()) {
          ADD_FAILURE() << "it waits for nothing";
          return ErrorCode::kTimeout;
        }
      } else if (advanced == Runner::Advance::kIdle) {
        if (const auto code = ended()) return *code;
        ADD_FAILURE() << "nothing is submitted";
        return ErrorCode::kTimeout;
      }
    }
  }
  ErrorCode write(RefHandle ref) {
    submit_write(ref);
    return finish();
  }
  ErrorCode read(RefHandle ref) {
    submit_read(ref);
    return finish();
  }
  ErrorCode release(RefHandle ref) {
    submit_release({ref});
    return finish();
  }

  // --- sequence groups
  // An empty one.
  SequenceHandle make_group(uint32_t index, uint32_t rows, uint64_t capacity, uint32_t banks = 1) {
    Group& group = groups_[index];
    group.geometry = {rows, 1, 2, 8, DType::kFloat32, capacity, banks};
    const auto layout = gc::SequenceLayout::make(banks * rows, 1, 2, 8, sizeof(float), capacity);
    group.memfd = memfd(layout->file_bytes(), pal::Seals::kShared);
    map_group(index);
    return {index, 1};
  }
  [[nodiscard]] uint64_t length_of(SequenceHandle group) {
    return session_->sequence_entry(**session_->find_sequence(group)).length;
  }
  // The committed tokens of a row.
  [[nodiscard]] std::vector<int32_t> tokens_of(SequenceHandle handle, uint32_t row = 0) {
    const auto group = *session_->find_sequence(handle);
    const gc::SequenceEntry entry = session_->sequence_entry(*group);
    std::vector<int32_t> tokens(entry.length);
    EXPECT_TRUE(group->read_tokens(entry.bank, row, 0, tokens));
    return tokens;
  }

  // --- djinnd
  // What it reads of the session's state.
  [[nodiscard]] std::vector<std::byte> state_head() const {
    return *pal::read_memfd(state_, gc::kStateHeadBytes);
  }
  // Answers the next request; bytes that are given back are counted on the way.
  void answer(ErrorCode code = ErrorCode::kOk) {
    while (!take_event(code)) {
    }
  }
  // True for a request, which is answered.
  bool take_event(ErrorCode code) {
    pollfd entry{djinnd_.socket().get(), POLLIN, 0};
    if (::poll(&entry, 1, 20'000) != 1) {
      ADD_FAILURE() << "nothing is asked for";
      return true;
    }
    const auto event = ipc::decode_worker_event(djinnd_.receive()->bytes);
    if (const auto* back = std::get_if<ipc::GrantReturn>(&event->body)) {
      granted_bytes_[back->kind] -= back->bytes;
      return false;
    }
    const auto& request = std::get<ipc::GrantRequest>(event->body);
    if (refused_.contains(request.kind)) code = ErrorCode::kOutOfMemory;
    if (code == ErrorCode::kOk) {
      granted_bytes_[request.kind] += request.bytes;
      if (request.kind == ipc::GrantKind::kSequence) {
        groups_[request.sequence.index].granted_bytes += request.bytes;
      }
    }
    if (code != ErrorCode::kOk && !request.or_less) ++refusals_told_;
    grants_.deliver(ipc::GrantAnswer{request.request, code, "djinnd says so."});
    return true;
  }
  // Whether anything was asked for.
  bool grant_all() {
    wait_for_moves();
    bool asked = false;
    for (; !nothing_is_said(); wait_for_moves()) asked |= take_event(ErrorCode::kOk);
    return asked;
  }
  // Returns when the pager has nothing to do.
  void wait_for_moves() {
    std::promise<void> done;
    pager_.after_moves([&] { done.set_value(); });
    done.get_future().wait();
  }

  static Fd memfd(uint64_t bytes, pal::Seals seals) {
    return *pal::make_memfd("test", bytes, seals);
  }

  std::unique_ptr<pal::HostPal> pal_ = *pal::HostPal::make();
  gc::FaultPoints faults_;
  ClockAhead clock_;

  Fd memory_ = memfd(ipc::SessionLayout::bytes(kStagingBytes), pal::Seals::kShared);
  Fd state_ = memfd(gc::state_bytes(kGeometry), pal::Seals::kSize);
  Fd refs_ = memfd(kRefBytes, pal::Seals::kSize);
  Fd submission_bell_ = *ipc::make_submission_bell();
  ipc::CompletionBell completion_bell_ = *ipc::make_completion_bell();
  pal::Mapping of_client_ =
      *pal::map_shared(memory_, ipc::SessionLayout::bytes(kStagingBytes), pal::Access::kReadWrite);
  ipc::SessionView view_ = *ipc::SessionView::over(of_client_.bytes());
  ipc::ClientRing client_{view_};
  uint64_t next_run_ = 1;
  uint64_t series_ = 0;
  uint64_t begin_by_ns_ = 0;  // of what is submitted
  std::vector<ipc::Completion> told_;
  std::map<ipc::GrantKind, uint64_t> granted_bytes_;
  std::set<ipc::GrantKind> refused_;    // of which djinnd grants nothing
  int refusals_told_ = 0;               // those that others hear of
  ErrorCode refusal_ = ErrorCode::kOk;  // what attach() is told of the submission in flight

  struct Group {
    ipc::SequenceGeometry geometry;
    Fd memfd;
    uint64_t granted_bytes = 0;
  };
  std::map<uint32_t, Group> groups_;

  exec::FakeExecutor executor_;
  GrantedHeap heap_{grants_};
  std::unique_ptr<exec::Lane> lane_ = *executor_.make_lane({.grow_slab = {}, .heap = &heap_});
  ProgramTable programs_{waits_};
  SequencePager pager_{grants_, outbox_, waits_};
  Binder binder_{*lane_};
  LaneCounts counts_;
  // What the lane does between two operators of a run; nothing: it goes on.
  Runner::BetweenOperators between_;
  Runner runner_{{executor_, *lane_, waits_, programs_, pager_, binder_, clock_, grants_},
                 clock_,
                 counts_,
                 [this](Session& session) { return !between_ || between_(session); }};
  std::unique_ptr<Session> session_;

 private:
  void map_group(uint32_t index) {
    const Group& group = groups_.at(index);
    auto mapped = Sequence::map(kSession, {index, 1}, group.geometry, *group.memfd.duplicate(),
                                group.granted_bytes, Fd(), *pal_);
    ASSERT_TRUE(mapped) << mapped.error().message;
    session_->add_sequence(*std::move(mapped));
  }
};

}  // namespace djinn::worker
