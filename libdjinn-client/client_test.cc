// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/client.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <numeric>
#include <thread>

#include "ipc/codec/srg_codec.h"
#include "kernel/srg/builder.h"
#include "libdjinn-client/testing/fake_daemon.h"

namespace djinn::client {
namespace {

constexpr ModelId kModel{testing::FakeDaemon::kModel};

srg::Graph graph_of(const char* op) {
  srg::GraphBuilder g("test");
  g.output("y", g.op(op, {g.input("x", DType::kFloat32, {4})}));
  return *std::move(g).finish();
}

class ClientTest : public ::testing::Test {
 protected:
  ClientTest() {
    ConnectOptions options;
    options.host = daemon_.host();
    options.staging_bytes = 1 << 16;
    client_ = *Client::connect(options);
  }

  testing::FakeDaemon daemon_;
  std::unique_ptr<Client> client_;
};

class DefineProgram : public ClientTest {
 protected:
  bool define(const srg::Graph& graph, ModelId model = {}) {
    return client_->define_program(graph, model)->was_cached;
  }
};

TEST_F(DefineProgram, djinnd_is_asked_once_for_each_graph_and_model) {
  EXPECT_FALSE(define(graph_of("aten::neg")));
  EXPECT_TRUE(define(graph_of("aten::neg")));
  EXPECT_FALSE(define(graph_of("aten::abs")));
  EXPECT_FALSE(define(graph_of("aten::neg"), kModel));
  EXPECT_TRUE(define(graph_of("aten::neg"), kModel));
  EXPECT_EQ(daemon_.defines(), 3u);
}

TEST_F(DefineProgram, a_model_that_is_closed_takes_its_programs_along) {
  define(graph_of("aten::neg"));
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(define(graph_of("aten::neg"), kModel));
    ASSERT_TRUE(client_->close_model(kModel).ok());
  }
  EXPECT_TRUE(define(graph_of("aten::neg"))) << "it is of no model";
}

TEST_F(DefineProgram, a_session_that_is_over_defines_nothing_that_it_knows) {
  define(graph_of("aten::neg"));
  daemon_.stop();
  EXPECT_TRUE(testing::eventually([&] { return !client_->check(); }));
  EXPECT_FALSE(client_->define_program(graph_of("aten::neg"), {}));
}

class LeaseProgram : public ClientTest {
 protected:
  ProgramLease lease(const char* op, ModelId model = {}) {
    return std::move(client_->lease_program(graph_of(op), model)->lease);
  }
  // With whatever is submitted next, of which nobody waits for the end.
  void submit() { ASSERT_TRUE(client_->submit({}, std::vector<std::byte>(8))); }
  using Ids = std::vector<uint64_t>;
};

TEST_F(LeaseProgram, djinnd_hears_of_the_last_ones_end_with_the_next_submission) {
  ProgramLease first = lease("aten::neg");
  ProgramLease second = lease("aten::neg");
  EXPECT_EQ(daemon_.defines(), 1u) << "it is known here";
  first = {};
  submit();
  EXPECT_EQ(daemon_.dropped(), Ids{});
  ProgramLease moved = std::move(second);
  submit();
  EXPECT_EQ(daemon_.dropped(), Ids{});
  moved = {};
  EXPECT_EQ(daemon_.dropped(), Ids{});
  EXPECT_TRUE(client_->wait(client_->last_run()));
  submit();
  EXPECT_TRUE(testing::eventually([&] { return daemon_.dropped() == Ids{1}; }));
  const ProgramLease anew = lease("aten::neg");
  EXPECT_EQ(daemon_.defines(), 2u);
  submit();
  EXPECT_EQ(daemon_.dropped(), Ids{1}) << "once";
}

TEST_F(LeaseProgram, djinnd_hears_of_it_before_the_next_definition) {
  lease("aten::neg") = {};
  const ProgramLease other = lease("aten::abs");
  EXPECT_EQ(daemon_.dropped(), Ids{1});
}

TEST_F(LeaseProgram, a_program_that_a_run_under_way_may_name_stays) {
  daemon_.set_stuck(true);
  {
    const ProgramLease gone = lease("aten::neg");
    submit();
  }
  submit();
  const ProgramLease other = lease("aten::abs");
  EXPECT_EQ(daemon_.dropped(), Ids{});
  daemon_.set_stuck(false);
  EXPECT_TRUE(client_->wait(client_->last_run()));
  submit();
  EXPECT_TRUE(testing::eventually([&] { return daemon_.dropped() == Ids{1}; }));
}

TEST_F(LeaseProgram, what_is_to_stay_for_the_session_stays) {
  ASSERT_TRUE(client_->define_program(graph_of("aten::abs"), {}));
  lease("aten::abs") = {};
  submit();
  const ProgramLease other = lease("aten::exp");
  EXPECT_EQ(daemon_.dropped(), Ids{});
}

TEST_F(LeaseProgram, many_ends_are_told_at_once) {
  std::vector<ProgramLease> leases;
  for (uint64_t model = 1; model <= 100; ++model) {
    leases.push_back(lease("aten::neg", ModelId{model}));
  }
  leases.clear();
  submit();
  EXPECT_TRUE(client_->wait(client_->last_run()));
  EXPECT_TRUE(testing::eventually([&] { return daemon_.dropped().size() == 100; }));
}

TEST_F(ClientTest, tokens_that_were_made_before_djinnd_went_are_told_before_its_end) {
  daemon_.set_stuck(true);
  SubmissionTarget generation;
  generation.operation = ipc::Operation::kGenerate;
  const auto run = client_->submit(generation, {});
  ASSERT_TRUE(run);
  ASSERT_TRUE(testing::eventually([&] { return daemon_.run_waits(); }));
  uint32_t said = 0;
  std::thread killer([&] { said = daemon_.stop_after_a_token(); });
  std::vector<int32_t> told;
  const auto outcome =
      client_->wait(*run, [&](const TokenEvent& event) { told.push_back(event.token); });
  killer.join();
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, ErrorCode::kDisconnected);
  std::vector<int32_t> expected(said);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(told, expected);
}

TEST_F(ClientTest, with_a_deadline_nobody_waits_for_room_among_the_submissions) {
  daemon_.set_stuck(true);
  const SubmissionTarget patient;
  for (uint32_t run = 0; run < limits::kSubmissionSlots; ++run) {
    ASSERT_TRUE(client_->submit(patient, {}));
  }
  SubmissionTarget target;
  target.begin_within_ms = 60'000;
  const auto refused = client_->submit(target, {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kQueueFull);
  EXPECT_TRUE(refused.error().message.starts_with("256 submissions of this session are not done"));
  EXPECT_TRUE(refused.error().message.ends_with("Wait for some of them, and submit it again."));
  daemon_.set_stuck(false);
  EXPECT_TRUE(client_->wait(client_->last_run()));
  EXPECT_EQ(daemon_.runs(), limits::kSubmissionSlots) << "each of those before, and no other";
}

// Each may stand on the one before, so none of them can be refused for want of room.
TEST_F(ClientTest, without_a_deadline_a_submission_waits_for_room_and_is_done) {
  daemon_.set_stuck(true);
  for (uint32_t run = 0; run < limits::kSubmissionSlots; ++run) {
    ASSERT_TRUE(client_->submit(SubmissionTarget{}, {}));
  }
  std::thread unstick([&] { daemon_.set_stuck(false); });
  const auto last = client_->submit(SubmissionTarget{}, {});
  EXPECT_GE(daemon_.runs(), 1u) << "there was no room before";
  unstick.join();
  ASSERT_TRUE(last) << last.error().message;
  EXPECT_TRUE(client_->wait(*last));
  EXPECT_EQ(daemon_.runs(), limits::kSubmissionSlots + 1);
}

TEST_F(ClientTest, runs_that_are_done_leave_room_for_one_with_a_deadline) {
  for (uint32_t run = 0; run < limits::kSubmissionSlots; ++run) {
    ASSERT_TRUE(client_->submit(SubmissionTarget{}, {}));
  }
  ASSERT_TRUE(testing::eventually([&] { return daemon_.runs() == limits::kSubmissionSlots; }));
  SubmissionTarget target;
  target.begin_within_ms = 60'000;
  EXPECT_TRUE(client_->submit(target, {}));
}

// Of a session whose calls are interrupted before they wait, while djinnd stands still.
class Interrupted : public ::testing::Test {
 protected:
  Interrupted() {
    ConnectOptions options;
    options.host = daemon_.host();
    options.staging_bytes = 1 << 16;
    options.interrupt = &interrupt_;
    client_ = *Client::connect(options);
  }
  // How a call ends that was given up before djinnd came to it.
  template <typename Ask>
  ErrorCode given_up(const Ask& ask) {
    daemon_.set_paused(true);
    const Interrupt::Call call(interrupt_);
    interrupt_.raise();
    const auto asked = ask();
    return asked ? ErrorCode::kOk : asked.error().code;
  }
  // djinnd has answered all that it was asked before.
  void go_on() {
    daemon_.set_paused(false);
    ASSERT_TRUE(client_->status());
    ASSERT_TRUE(client_->status()) << "and what the answers made the client send";
  }

  testing::FakeDaemon daemon_;
  Interrupt interrupt_;
  std::unique_ptr<Client> client_;
};

TEST_F(Interrupted, every_request_ends_and_its_answer_is_not_taken_for_anothers) {
  const auto status_of = [](const auto& result) {
    return result ? Status() : Status(result.error());
  };
  const std::vector<std::function<Status()>> requests{
      [&] { return status_of(client_->status()); },
      [&] { return status_of(client_->sessions()); },
      [&] {
        return status_of(client_->open_model({"model", {}}));
      },
      [&] { return client_->close_model(kModel); },
      [&] { return status_of(client_->define_program(graph_of("aten::neg"), {})); },
      [&] { return status_of(client_->make_sequence({})); },
      [&] { return client_->pin_model(kModel, true); },
      [&] { return client_->evict_model({}); },
      [&] { return status_of(client_->events(0, false)); }};
  for (const auto& request : requests) {
    EXPECT_EQ(given_up(request), ErrorCode::kCancelled);
    daemon_.set_paused(false);
    const auto status = client_->status();
    ASSERT_TRUE(status) << status.error().message;
    EXPECT_EQ(status->sessions, 1u);
  }
}

TEST_F(Interrupted, a_sequence_that_comes_late_is_dropped) {
  EXPECT_EQ(given_up([&] { return client_->make_sequence({}); }), ErrorCode::kCancelled);
  go_on();
  EXPECT_EQ(daemon_.sequences(), 0u);
  const auto kept = client_->make_sequence({});
  ASSERT_TRUE(kept);
  EXPECT_EQ(daemon_.sequences(), 1u);
}

// So many that the socket takes no more of them: the rest goes as djinnd makes room.
TEST_F(Interrupted, what_is_to_be_dropped_is_dropped_however_much_there_is) {
  constexpr size_t kSequences = 2000;
  std::vector<SequenceHandle> sequences;
  for (size_t i = 0; i < kSequences; ++i) sequences.push_back(*client_->make_sequence({}));
  ASSERT_EQ(daemon_.sequences(), kSequences);
  for (const SequenceHandle sequence : sequences) {
    ASSERT_EQ(given_up([&] { return client_->drop_sequence(sequence); }), ErrorCode::kCancelled);
  }
  EXPECT_EQ(given_up([&] { return client_->status(); }), ErrorCode::kCancelled);
  daemon_.set_paused(false);
  EXPECT_TRUE(
      testing::eventually([&] { return client_->status().ok() && daemon_.sequences() == 0; }));
}

TEST_F(Interrupted, files_of_a_model_that_is_not_opened_are_taken_back) {
  const int file = ::open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  const std::vector<int> files(100, file);  // more than one message has
  EXPECT_EQ(given_up([&] { return client_->open_model({"model", files}); }), ErrorCode::kCancelled);
  go_on();
  EXPECT_EQ(daemon_.files_added(), 0u);
  EXPECT_EQ(daemon_.opens().size(), 0u);
  EXPECT_TRUE(client_->open_model({"model", files}));
  ::close(file);
}

TEST_F(Interrupted, a_model_that_comes_late_is_closed) {
  EXPECT_EQ(given_up([&] { return client_->open_model({"model", {}}); }), ErrorCode::kCancelled);
  go_on();
  EXPECT_EQ(daemon_.opens().size(), 1u);
  EXPECT_EQ(daemon_.closes(), 1u);
}

TEST_F(Interrupted, a_model_whose_manifest_does_not_come_is_closed) {
  daemon_.set_manifest({}, 1);
  EXPECT_FALSE(client_->open_model({"model", {}}));
  go_on();
  EXPECT_EQ(daemon_.closes(), 1u);
}

TEST_F(Interrupted, a_program_that_comes_late_is_dropped_unless_it_was_defined_again) {
  const auto define = [&] { return client_->lease_program(graph_of("aten::neg"), {}); };
  EXPECT_EQ(given_up(define), ErrorCode::kCancelled);
  go_on();
  EXPECT_EQ(daemon_.defines(), 1u);
  const auto other = client_->lease_program(graph_of("aten::abs"), {});
  ASSERT_TRUE(other);
  EXPECT_TRUE(testing::eventually([&] { return daemon_.dropped() == std::vector<uint64_t>{1}; }));
}

TEST_F(Interrupted, a_run_that_does_not_end_is_left_to_itself) {
  daemon_.set_paused(true);
  const auto run = client_->submit({}, {});
  ASSERT_TRUE(run);
  const auto ended = [&]() -> Result<Outcome> {
    const Interrupt::Call call(interrupt_);
    interrupt_.raise();
    return client_->wait(*run);
  }();
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->error, ErrorCode::kCancelled);
  daemon_.set_paused(false);
  const auto next = client_->submit({}, {});
  ASSERT_TRUE(next);
  EXPECT_EQ(client_->wait(*next)->error, ErrorCode::kOk);
  EXPECT_EQ(client_->wait(*run).error().code, ErrorCode::kNotFound);
}

TEST_F(Interrupted, a_wait_for_room_ends) {
  daemon_.set_paused(true);
  while (client_->has_room(0, 1)) ASSERT_TRUE(client_->submit({}, {}));
  const Interrupt::Call call(interrupt_);
  interrupt_.raise();
  ErrorCode code = ErrorCode::kOk;
  for (int i = 0; i < 1000 && code == ErrorCode::kOk; ++i) {
    const auto submitted = client_->submit({}, std::vector<std::byte>(64));
    if (!submitted) code = submitted.error().code;
  }
  EXPECT_EQ(code, ErrorCode::kCancelled);
  daemon_.set_paused(false);
}

TEST_F(Interrupted, what_a_call_asks_while_it_waits_ends_it) {
  daemon_.set_paused(true);
  int asked = 0;
  {
    const Interrupt::Call call(interrupt_, [&] { return ++asked == 3; });
    EXPECT_EQ(client_->status().error().code, ErrorCode::kCancelled);
    EXPECT_EQ(asked, 3);
  }
  daemon_.set_paused(false);
  EXPECT_TRUE(client_->status());
  EXPECT_EQ(asked, 3) << "it is asked of its own call alone";
}

class OpenModel : public ClientTest {
 protected:
  Result<OpenedModel> open() { return client_->open_model({"model", {}}); }
};

srg::ModelManifest large_manifest() {
  srg::ModelManifest manifest;
  for (int i = 0; i < 5000; ++i) {
    srg::TensorEntry entry;
    entry.name = "layers." + std::to_string(i);
    entry.dtype = DType::kInt8;
    manifest.tensors.push_back(entry);
  }
  return manifest;
}

TEST_F(OpenModel, a_manifest_of_several_parts_is_whole) {
  const srg::ModelManifest manifest = large_manifest();
  const std::vector<std::byte> encoded = ipc::encode(manifest);
  ASSERT_GT(encoded.size(), 2 * limits::kManifestPartBytes);
  daemon_.set_manifest(encoded, encoded.size());
  const auto opened = open();
  ASSERT_TRUE(opened);
  EXPECT_EQ(opened->manifest, manifest);
}

TEST_F(OpenModel, a_manifest_of_another_size_than_was_said_is_refused) {
  const std::vector<std::byte> encoded = ipc::encode(large_manifest());
  for (const uint64_t said : {uint64_t{0}, uint64_t{1}, encoded.size() - 1, encoded.size() + 1,
                              limits::kManifestBytes, limits::kManifestBytes + 1, UINT64_MAX}) {
    daemon_.set_manifest(encoded, said);
    const auto opened = open();
    ASSERT_FALSE(opened) << said;
    EXPECT_EQ(opened.error().code, ErrorCode::kProtocolViolation) << said;
  }
}

TEST_F(OpenModel, a_manifest_that_comes_byte_by_byte_is_refused_at_the_first) {
  const std::vector<std::byte> encoded = ipc::encode(large_manifest());
  daemon_.set_manifest(encoded, encoded.size());
  daemon_.set_endless(true);
  const auto opened = open();
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, ErrorCode::kProtocolViolation);
}

TEST_F(OpenModel, a_manifest_is_read_without_an_open) {
  EXPECT_EQ(client_->manifest(ModelId{1}).value(), srg::ModelManifest{}) << "it is being loaded";
  const srg::ModelManifest manifest = large_manifest();
  const std::vector<std::byte> encoded = ipc::encode(manifest);
  daemon_.set_manifest(encoded, encoded.size());
  EXPECT_EQ(client_->manifest(ModelId{1}).value(), manifest);
  daemon_.set_manifest(std::vector<std::byte>(limits::kManifestBytes + 1), 0);
  EXPECT_EQ(client_->manifest(ModelId{1}).error().code, ErrorCode::kProtocolViolation);
}

class Lists : public ClientTest {
 protected:
  template <typename Report>
  static void expect_refused(const Result<Report>& list) {
    ASSERT_FALSE(list);
    EXPECT_EQ(list.error().code, ErrorCode::kProtocolViolation);
    EXPECT_NE(list.error().message.find("it is no djinnd of this version"), std::string::npos);
  }
};

TEST_F(Lists, that_have_no_end_are_ended) {
  daemon_.set_endless(true);
  expect_refused(client_->status());
  expect_refused(client_->sessions());
  expect_refused(client_->models());
  expect_refused(client_->uses(ModelId{1}));
  EXPECT_TRUE(client_->events(4, false));
  expect_refused(client_->events(5, false));
}

TEST_F(Lists, a_daemon_that_answers_no_request_is_told_of_once) {
  std::atomic<int> told{0};
  ConnectOptions options;
  options.host = daemon_.host();
  options.observer = true;
  options.on_silence = [&] {
    ++told;
    daemon_.set_silent(false);
    daemon_.stop();
  };
  auto client = Client::connect(options);
  ASSERT_TRUE(client);
  daemon_.set_silent(true);
  EXPECT_EQ((*client)->status().error().code, ErrorCode::kDisconnected);
  EXPECT_EQ(told, 1);
}

TEST_F(Lists, what_a_daemon_says_steers_no_terminal) {
  daemon_.end_sessions(static_cast<uint16_t>(ErrorCode::kCancelled), "so\x1b]0;x\a\nit is");
  ASSERT_TRUE(testing::eventually([&] { return !client_->check(); }));
  EXPECT_EQ(client_->check().error().message, "so?]0;x?\nit is");
}

}  // namespace
}  // namespace djinn::client
