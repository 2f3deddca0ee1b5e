// SPDX-License-Identifier: Apache-2.0

// Binding blocks: the arguments of a submission, as bytes in staging. The worker copies a block
// once into the state extent and decodes the copy; a decoder is a pure function over a byte span.
//
// Wire form: little-endian, each block a fixed head (with counts) and arrays behind it in the order
// of the struct, every array element padded to a multiple of 8 bytes. The byte count must match
// exactly. Offsets and lengths of staging are checked by who uses them, against the staging size.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ipc/limits.h"
#include "ipc/session_memory.h"
#include "kernel/base/dtype.h"
#include "kernel/base/ids.h"
#include "kernel/base/result.h"

namespace djinn::ipc {

// A range of the session's staging slab.
struct StagingRange {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  friend bool operator==(const StagingRange&, const StagingRange&) = default;
};

enum class InputKind : uint8_t { kStaging = 1, kRef = 2 };

// Bytes for one input storage of the graph.
struct InputBinding {
  uint32_t storage = 0;  // index into Graph::storages
  InputKind kind = InputKind::kStaging;
  StagingRange staging;  // kStaging
  RefHandle ref;         // kRef: the whole storage
  friend bool operator==(const InputBinding&, const InputBinding&) = default;
};

enum class OutputKind : uint8_t { kNone = 0, kStaging = 1, kRef = 2 };

// What becomes of one output of the graph, in the graph's order.
struct OutputBinding {
  OutputKind kind = OutputKind::kNone;
  StagingRange staging;  // kStaging: the elements, contiguous; the range may be larger
  RefHandle ref;  // kRef: a free slot and its next generation, chosen by the client. It takes the
                  // output's storage; which view of it the output is, `result` tells
  friend bool operator==(const OutputBinding&, const OutputBinding&) = default;
};

// kRun and kRunOnce.
struct RunBlock {
  SequenceHandle sequence;  // invalid when the graph binds no sequence storage
  StagingRange result;  // where output descriptions go (OutputDescription each); bytes 0: nowhere
  std::vector<int64_t> symbols;  // one for each graph symbol; the entries of roles past, capacity
                                 // are set by the daemon when a sequence is bound, and ignored here
  std::vector<InputBinding> inputs;
  std::vector<OutputBinding> outputs;
  std::vector<uint32_t> padding{};  // of each row of an empty sequence group, on the left; or none
  friend bool operator==(const RunBlock&, const RunBlock&) = default;
};

// How an output turned out; written to RunBlock::result. 144 bytes on the wire, as here.
struct OutputDescription {
  uint32_t dtype = 0;
  uint32_t rank = 0;
  uint64_t offset = 0;  // elements into the storage
  std::array<int64_t, limits::kRank> sizes{};
  std::array<int64_t, limits::kRank> strides{};
};
static_assert(sizeof(OutputDescription) == 144);
// Reads the description of output `index` from a copy of what the worker wrote to RunBlock::result.
// The elements of a good one, and the places of all of them, are numbers of at most 63 bits.
// Errors: output_cannot_be() for any other.
Result<OutputDescription> decode_description(std::span<const std::byte> result, size_t index);
// description: a good one.
uint64_t bytes_of(const OutputDescription& description);
// kMalformed, of what a worker said of an output.
Error output_cannot_be();

// A prompt's parts end at multiples of so many tokens of a row, those before the prompt included.
inline constexpr uint32_t kPromptPart = 128;

// kGenerate. Rows shorter than the longest are padded on the left with pad_token.
struct GenerateBlock {
  uint64_t prefill = 0;  // ProgramId; tokens > 1 or = 1
  uint64_t decode = 0;   // ProgramId; tokens = 1
  // What takes decode's place from late_from tokens before the step's on, where a row outgrows a
  // window; 0: nothing does.
  uint64_t late_decode = 0;
  uint64_t late_from = 0;
  // ProgramId: takes prefill's place for what of a prompt comes behind its first part, where
  // prompts of fast numerics run in parts (kPromptPart); 0: this one runs in one pass.
  uint64_t extend = 0;
  SequenceHandle sequence;
  uint32_t rows = 1;
  uint32_t prompt_tokens = 0;     // a row, padding included
  StagingRange prompt;            // int32 [rows, prompt_tokens]
  std::vector<uint32_t> padding;  // rows entries: left padding of each
  uint32_t min_new_tokens = 0;    // stop tokens are not drawn before
  uint32_t max_new_tokens = 0;
  std::vector<int32_t> stop_tokens;
  int32_t pad_token = 0;  // what a finished row goes on with
  bool greedy = true;
  float temperature = 1.0f;
  uint32_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  uint64_t seed = 0;
  uint64_t random_offset = 0;  // of the first draw
  // What the programs read, and may write, beside the group: refs only, for every token anew. What
  // one token wrote the next one finds; a token that fails leaves them as they were before it.
  std::vector<InputBinding> prefill_inputs;
  std::vector<InputBinding> decode_inputs;
  std::vector<InputBinding> late_inputs;
  std::vector<InputBinding> extend_inputs;
  // Values of the programs' symbols without a role, in the order that each program has them in.
  std::vector<int64_t> symbols;
  friend bool operator==(const GenerateBlock&, const GenerateBlock&) = default;
};

// kReadRef: elements of a view, contiguous and in order, to staging.
struct ReadBlock {
  RefHandle ref;
  DType dtype = DType::kInvalid;
  std::vector<uint64_t> sizes;
  std::vector<int64_t> strides;  // elements, one for each size
  uint64_t offset = 0;           // elements
  StagingRange staging;          // exactly the elements' bytes
  friend bool operator==(const ReadBlock&, const ReadBlock&) = default;
};

// kWriteRef: staging bytes become those of the storage `ref` from `offset` on. The part at 0 makes
// it, each other begins where the one before it ended, the one that reaches its end completes it:
// until then nothing else can name it. A part that fails poisons it.
struct WriteBlock {
  RefHandle ref;
  StagingRange staging;
  uint64_t offset = 0;
  uint64_t bytes = 0;  // of the whole storage
  friend bool operator==(const WriteBlock&, const WriteBlock&) = default;
};

struct ReleaseBlock {
  std::vector<RefHandle> refs;
  friend bool operator==(const ReleaseBlock&, const ReleaseBlock&) = default;
};

struct CropBlock {
  SequenceHandle sequence;
  uint64_t length = 0;  // not above the committed one
  friend bool operator==(const CropBlock&, const CropBlock&) = default;
};

// Row r becomes what row rows[r] was (beam search).
struct ReorderBlock {
  SequenceHandle sequence;
  std::vector<uint32_t> rows;
  friend bool operator==(const ReorderBlock&, const ReorderBlock&) = default;
};

// Encoders cannot fail for blocks within limits.h; decoders answer kMalformed with what is wrong,
// or kLimitExceeded.
std::vector<std::byte> encode(const RunBlock& block);
std::vector<std::byte> encode(const GenerateBlock& block);
std::vector<std::byte> encode(const ReadBlock& block);
std::vector<std::byte> encode(const WriteBlock& block);
std::vector<std::byte> encode(const ReleaseBlock& block);
std::vector<std::byte> encode(const CropBlock& block);
std::vector<std::byte> encode(const ReorderBlock& block);

Result<RunBlock> decode_run(std::span<const std::byte> bytes);
Result<GenerateBlock> decode_generate(std::span<const std::byte> bytes);
Result<ReadBlock> decode_read(std::span<const std::byte> bytes);
Result<WriteBlock> decode_write(std::span<const std::byte> bytes);
Result<ReleaseBlock> decode_release(std::span<const std::byte> bytes);
Result<CropBlock> decode_crop(std::span<const std::byte> bytes);
Result<ReorderBlock> decode_reorder(std::span<const std::byte> bytes);

// What of staging a submission is about, but for its block.
struct StagingUse {
  std::vector<StagingRange> read;     // holds its arguments
  std::vector<StagingRange> written;  // by its worker before it is complete, or less of it
  friend bool operator==(const StagingUse&, const StagingUse&) = default;
};
// A pure function, for who keeps a copy of staging elsewhere. block: the submission's, copied. The
// ranges are as the block has them: they may overlap, and lie outside of staging. Errors: those of
// the decoders, kUnsupported for an unknown operation.
Result<StagingUse> staging_of(const Submission& submission, std::span<const std::byte> block);

}  // namespace djinn::ipc
