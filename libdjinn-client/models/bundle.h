// SPDX-License-Identifier: Apache-2.0

// Bundle: a model's generation as `python3 -m djinn export` wrote it, so that it runs without
// Python: DIRECTORY/djinn.json names the files of the weights and how they become the model's, and
// has the programs as SRG text and the small tensors that are in no file.
//
// djinn.json is trusted as little as any file: numbers are checked here, and what it says of the
// weights and the programs is for djinnd to check, as if a client had said it.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ipc/messages.h"
#include "kernel/base/fd.h"
#include "kernel/base/result.h"
#include "kernel/srg/graph.h"
#include "kernel/srg/load_plan.h"

namespace djinn::client {

enum class BundlePhase : uint8_t {
  kPrefill,
  kExtend,  // takes its place behind the first part of a prompt that is read in parts
  kDecode,
};

struct BundleProgram {
  BundlePhase phase = BundlePhase::kPrefill;
  uint64_t from = 0;  // tokens of the prompt, or before the step, from which on it is the one
  srg::Graph graph;
  std::vector<std::pair<srg::StorageIndex, size_t>> inputs;  // and which constant each is
};

// invariant: for prompts, and for tokens behind them, there is at least one program each, and they
// are in the order of `from`; at most two are for tokens, and one extends.
struct Bundle {
  std::string label;
  std::vector<std::string> paths;  // of the weights' files
  std::vector<Fd> files;
  bool is_stored_so = false;  // the weights are all tensors of the files, and no plan is sent
  srg::LoadPlan weights;      // what the model's tensors are to be; without pieces if stored so
  ipc::SequenceGeometry geometry;  // of one row; the capacity is a generation's
  uint32_t vocabulary = 0;
  uint32_t positions = 0;  // prompt and new tokens of a row
  int32_t begin_token = -1;
  std::vector<int64_t> end_tokens;
  std::vector<std::vector<std::byte>> constants;
  std::vector<BundleProgram> programs;

  [[nodiscard]] const srg::LoadPlan* plan() const { return is_stored_so ? nullptr : &weights; }
};

// Whether the directory has a djinn.json.
[[nodiscard]] bool is_bundle(const std::string& directory);

// Errors: kNotFound (the weights' files), kUnsupported (another version), kFileChanged (another
// config.json beside the weights), kMalformed and kLimitExceeded, each naming the file.
Result<Bundle> read_bundle(const std::string& directory);

// The model has the tensors that the bundle was made of. Errors: kFileChanged, naming one.
Status check_tensors(const Bundle& bundle, const srg::ModelManifest& manifest);

// A model's files as a directory has them: of its bundle, or a Hugging Face directory's.
struct WeightFiles {
  std::string label;
  std::vector<std::string> paths;
  std::vector<Fd> files;
  std::optional<srg::LoadPlan> plan;

  [[nodiscard]] std::vector<int> numbers() const;
  [[nodiscard]] const srg::LoadPlan* plan_or_null() const { return plan ? &*plan : nullptr; }
};

// Errors: those of read_bundle(), or of open_model_directory().
Result<WeightFiles> open_weight_files(const std::string& directory);

}  // namespace djinn::client
