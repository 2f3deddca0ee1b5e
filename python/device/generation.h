// SPDX-License-Identifier: Apache-2.0

// Generation on the device: the loop over tokens runs in djinnd, over two templates (capture.h).
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "python/device/capture.h"

namespace djinn::device {

// A program, and what it reads and writes beside the group, by the numbers of Capture::beside().
struct GenerationPart {
  const Template& program;
  std::vector<at::Tensor> beside = {};
};

struct GenerationRequest {
  GenerationPart prefill;
  GenerationPart decode;
  std::optional<GenerationPart> late;    // from options.late_from tokens on
  std::optional<GenerationPart> extend;  // of a prompt that may run in parts
  std::vector<int32_t> prompt;           // [rows, prompt_tokens]; what the group holds goes before
  uint32_t prompt_tokens = 0;
  std::vector<uint32_t> padding;  // by row; zero if the group holds tokens
  // How to draw and when to stop; the fields that the others above decide are filled from them.
  ipc::GenerateBlock options;
  uint64_t begin_within_ms = 0;  // as client::SubmissionTarget's
};

struct GenerationResult {
  // [rows, steps]: what was drawn; padding behind a stop token.
  std::vector<std::vector<int32_t>> tokens;
  uint64_t random_offset = 0;  // the next unused one, if the generation ended by itself
  bool waited = false;         // on_step used the device, and waited for the generation's end
};

using OnStep = std::function<bool(const std::vector<int32_t>&)>;

// A sequence group of the device's session, dropped with the last that holds it.
class Group {
 public:
  explicit Group(const ipc::SequenceGeometry& geometry);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // Appends tokens to each row by a template's forward; its one output. ids: int64 [rows, tokens].
  // padding: by row, when the group is empty; or none.
  at::Tensor step(const Template& program, const at::Tensor& ids,
                  const std::vector<uint32_t>& padding);
  // Keys and values of its first tokens, layer by layer: copies [rows, kv_heads, tokens, head_dim].
  // tokens: at most as many as it holds.
  std::vector<at::Tensor> contents(int64_t tokens);
  // Forgets all but the first tokens. Waits.
  void crop(uint64_t tokens);
  // Row r becomes what row rows[r] was, in a group of two banks. Waits.
  void reorder(const std::vector<uint32_t>& rows);
  // Runs a generation that appends to the group, and waits. on_step, if there is one, sees each
  // step's tokens, one for each row, as they come; it may take the GIL and use the device, and ends
  // the generation with false: the result has the tokens that it saw, and the group may hold more.
  GenerationResult generate(const GenerationRequest& request, const OnStep& on_step);

 private:
  // The session that both the group and the program need to be there.
  [[nodiscard]] uint64_t session_with(const Template& program) const;

  const ipc::SequenceGeometry geometry_;
  uint64_t session_ = 0;
  SequenceHandle handle_;
};

}  // namespace djinn::device
