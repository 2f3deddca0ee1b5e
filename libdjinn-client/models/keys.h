// SPDX-License-Identifier: Apache-2.0

// The keys of a config.json, as transformers 5 reads them for the models that the builders build.
// Each one is read by the builder, or changes nothing of what is computed, or is refused unless
// its value is one that the builder computes. All others are unknown: transformers passes over
// them, and so do the builders, who name them to whoever opened the model.
#pragma once

#include <string>
#include <vector>

#include "kernel/base/result.h"
#include "libdjinn-client/models/directory.h"

namespace djinn::client {

enum class Builder : uint8_t { kLlama, kBert };

// The unknown keys, "rope_parameters.factor" for nested ones, in their order.
// Errors: kUnsupported for a value that changes the result and is not computed, naming its key.
Result<std::vector<std::string>> check_keys(Builder builder, const ModelConfig& config);

// A sentence that names them, in printable ASCII; empty for none.
std::string tell_unknown(const std::vector<std::string>& keys);

}  // namespace djinn::client
