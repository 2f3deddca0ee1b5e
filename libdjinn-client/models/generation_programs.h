// SPDX-License-Identifier: Apache-2.0

// What a generator generates with: the programs of a builder, or of a bundle.
#pragma once

#include "ipc/binding.h"
#include "ipc/messages.h"
#include "kernel/base/result.h"

namespace djinn::client {

struct GeneratorSizes {
  uint32_t layers = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t vocabulary = 0;
  uint32_t positions = 0;  // prompt and new tokens of a row
  DType dtype = DType::kFloat32;

  // Of a sequence group with so many slots a row.
  [[nodiscard]] ipc::SequenceGeometry geometry(uint32_t rows, uint64_t capacity) const {
    return {rows, layers, kv_heads, head_dim, dtype, capacity};
  }
};

// One thread at a time, as the client.
class GenerationPrograms {
 public:
  GenerationPrograms() = default;
  virtual ~GenerationPrograms() = default;
  GenerationPrograms(const GenerationPrograms&) = delete;
  GenerationPrograms& operator=(const GenerationPrograms&) = delete;

  [[nodiscard]] virtual const GeneratorSizes& sizes() const = 0;
  // Of a block. More of them are generated one after the other.
  [[nodiscard]] virtual uint32_t rows_max() const = 0;
  // Names the programs of a block whose rows, prompt_tokens, padding and max_new_tokens are set,
  // and what they are given beside the group; each program is defined once. Precondition: as many
  // rows as a block may have. Errors: kUnsupported for what the programs are not for, djinnd's.
  virtual Status choose(ipc::GenerateBlock& block) = 0;
};

}  // namespace djinn::client
