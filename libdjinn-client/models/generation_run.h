// SPDX-License-Identifier: Apache-2.0

// GenerationRun: one generation of a session under way: its block, its sequence group, and what it
// has said. Of a call for several rows there may be several, each of a session of its own.
#pragma once

#include <functional>
#include <vector>

#include "libdjinn-client/client.h"
#include "libdjinn-client/models/generation_programs.h"

namespace djinn::client {

struct GenerateOptions {
  uint32_t max_new_tokens = 64;
  uint32_t min_new_tokens = 0;
  std::vector<int32_t> stop_tokens;
  int32_t pad_token = 0;
  bool greedy = true;
  float temperature = 1.0f;
  uint32_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  uint64_t seed = 0;
  uint64_t random_offset = 0;
};

using Prompts = std::vector<std::vector<int32_t>>;
// False gives the rest up, which is no error.
using OnToken = std::function<bool(const TokenEvent&)>;

// One thread at a time, as the client.
class GenerationRun {
 public:
  // Submits it: the prompts are rows of one block, padded on the left. client and programs, which
  // are of its session, outlive the run, and on_token, which may be empty, is asked until it ends.
  // Errors: of what the programs are not for, and djinnd's; then there is no run.
  static Result<GenerationRun> begin(Client& client, GenerationPrograms& programs,
                                     const Prompts& prompts, const GenerateOptions& options,
                                     uint64_t begin_within_ms, OnToken on_token);

  // Waits for its end. Errors: how it failed; what it said before is in tokens() all the same.
  Status finish();
  // Takes what has arrived without waiting. True: it has ended, and finish() waits no more.
  Result<bool> poll();
  // It ends soon; what it says from now on is dropped.
  void give_up();
  // It ends soon, and finish() tells how. Who ends several cancels all before it waits for one.
  void cancel() { client_->cancel_through(run_); }
  // In place of finish(), for one that was cancelled and does not end: waits for nothing, and what
  // it held goes when it ends. Gives kCancelled.
  Error leave();

  [[nodiscard]] Client& client() const { return *client_; }
  // Of each row, up to and with a stop token; padding behind it is dropped.
  [[nodiscard]] const Prompts& tokens() const { return tokens_; }
  [[nodiscard]] bool is_given_up() const { return given_up_; }
  // The next unused one, once it has ended well.
  [[nodiscard]] uint64_t random_offset() const { return random_offset_; }

 private:
  GenerationRun(Client& client, ipc::GenerateBlock block, OnToken on_token)
      : client_(&client), block_(std::move(block)), on_token_(std::move(on_token)) {}
  void take(const TokenEvent& event);
  Status wait();
  Status drop_sequence(Status ended);

  Client* client_;
  ipc::GenerateBlock block_;
  OnToken on_token_;
  Run run_ = 0;
  Prompts tokens_;
  std::vector<bool> finished_;  // by row
  bool given_up_ = false;
  uint64_t random_offset_ = 0;
};

}  // namespace djinn::client
