// Generation on the device: the loop over tokens runs in djinnd, over two templates (capture.h).
#pragma once

#include <functional>
#include <vector>

#include "python/device/capture.h"

namespace djinn::device {

struct GenerationRequest {
  const Template& prefill;
  const Template& decode;
  ipc::SequenceGeometry geometry;
  std::vector<int32_t> prompt;  // [rows, prompt_tokens]
  uint32_t prompt_tokens = 0;
  std::vector<uint32_t> padding;  // by row
  // How to draw and when to stop; the fields that the others above decide are filled from them.
  ipc::GenerateBlock options;
};

struct GenerationResult {
  // [rows, steps]: what was drawn; padding behind a stop token.
  std::vector<std::vector<int32_t>> tokens;
  uint64_t random_offset = 0;  // the next unused one
};

// A sequence group of the device's session, dropped with the last that holds it.
class Group {
 public:
  explicit Group(const ipc::SequenceGeometry& geometry);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // Appends tokens to each row by a template's forward; its one output. ids: int64 [rows, tokens].
  at::Tensor step(const Template& program, const at::Tensor& ids);

 private:
  SequenceHandle handle_;
};

// Runs a generation on a sequence group of its own, and waits. on_step, if there is one, sees each
// step's tokens, one for each row, as they come; it may take the GIL, and must not use the device.
GenerationResult generate(const GenerationRequest& request,
                          const std::function<void(const std::vector<int32_t>&)>& on_step);

}  // namespace djinn::device
