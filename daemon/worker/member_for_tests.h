// SPDX-License-Identifier: Apache-2.0

// Member: a session with a sequence group of one row, whose memory it has, beside others of one
// runner. The test is its client.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "daemon/worker/worker_for_tests.h"

namespace djinn::worker {

struct Member {
  Member(uint64_t id, pal::DevicePal& with_pal, Grants& with_grants, gc::FaultPoints& with_faults)
      : client(SessionId{id}), pal(with_pal), grants(with_grants), faults(with_faults) {
    const auto layout = gc::SequenceLayout::make(1, 1, 2, 8, sizeof(float), kCapacity);
    bytes = layout->file_bytes();
    memory = *pal::make_memfd("group", bytes, pal::Seals::kShared);
    attach();
  }
  // As a new worker does.
  void attach() {
    session.reset();
    std::vector<Fd> fds;
    for (const int fd : client.fds()) fds.emplace_back(::dup(fd));
    session = *Session::attach(client.command(), std::move(fds), pal, grants, faults);
    session->add_sequence(*Sequence::map(client.id, kGroup,
                                         {1, 1, 2, 8, DType::kFloat32, kCapacity},
                                         *memory.duplicate(), bytes, Fd(), pal));
  }
  void generate(int32_t prompt, ProgramId program = kProgram) {
    copy_bytes(std::as_bytes(std::span(&prompt, 1)),
               client.staging().subspan(TestSession::kOutputAt));
    ipc::GenerateBlock block;
    block.prefill = block.decode = program.value;
    block.sequence = kGroup;
    block.rows = 1;
    block.prompt_tokens = 1;
    block.prompt = {TestSession::kOutputAt, sizeof prompt};
    block.padding = {0};
    block.max_new_tokens = 5;
    const std::vector<std::byte> encoded = ipc::encode(block);
    copy_bytes(encoded, client.staging());
    ipc::Submission submission;
    submission.operation = static_cast<uint16_t>(ipc::Operation::kGenerate);
    submission.run = ++client.last_run;
    submission.binding_bytes = static_cast<uint32_t>(encoded.size());
    ASSERT_TRUE(client.ring.publish(submission));
  }
  // A run that appends the token to the group, as the loop of a client submits it. Its logits
  // follow the token. symbols: rows, and tokens a row, which are in staging then.
  void run_step(int64_t token, const ipc::OutputBinding& logits, ProgramId program = kProgram,
                std::vector<int64_t> symbols = {1, 1}) {
    const std::array<int64_t, 2> ids{token, token};
    copy_bytes(std::as_bytes(std::span(ids)), client.staging().subspan(TestSession::kGraphAt));
    ipc::RunBlock block;
    block.sequence = kGroup;
    block.inputs = {{0,
                     ipc::InputKind::kStaging,
                     {TestSession::kGraphAt, static_cast<uint64_t>(symbols[1]) * sizeof token},
                     {}}};
    block.symbols = std::move(symbols);
    block.outputs = {logits};
    ipc::Submission submission;
    submission.operation = static_cast<uint16_t>(ipc::Operation::kRun);
    submission.program = program.value;
    submission.series = series;
    client.submit(block, submission);
  }
  static ipc::OutputBinding to_staging() {
    return {ipc::OutputKind::kStaging, {TestSession::kOutputAt, kLogitsBytes}, {}};
  }
  // The logits of the last run that ended well, which went to staging.
  [[nodiscard]] std::vector<std::byte> logits() {
    const auto made = client.staging().subspan(TestSession::kOutputAt, kLogitsBytes);
    return {made.begin(), made.end()};
  }
  [[nodiscard]] uint64_t length() const {
    return session->sequence_entry(**session->find_sequence(kGroup)).length;
  }
  // What was told since the last time; the end is how the submission did.
  std::vector<int32_t> told() {
    std::vector<int32_t> tokens;
    for (;;) {
      const auto taken = client.ring.take();
      EXPECT_TRUE(taken);
      if (!taken || !*taken) return tokens;
      if ((*taken)->kind == static_cast<uint16_t>(ipc::CompletionKind::kToken)) {
        tokens.push_back((*taken)->tokens[0]);
      } else {
        ended = static_cast<ErrorCode>((*taken)->error);
      }
    }
  }

  static constexpr ProgramId kProgram{5};
  static constexpr uint64_t kCapacity = 256;
  static constexpr uint64_t kLogitsBytes = 100 * sizeof(float);  // of counting_model()
  static constexpr SequenceHandle kGroup{3, 1};
  TestSession client;
  pal::DevicePal& pal;
  Grants& grants;
  gc::FaultPoints& faults;
  uint64_t bytes = 0;
  uint64_t series = 0;  // of runs
  Fd memory;
  std::unique_ptr<Session> session;
  std::optional<ErrorCode> ended;
};

}  // namespace djinn::worker
