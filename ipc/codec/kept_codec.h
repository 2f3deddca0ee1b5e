// SPDX-License-Identifier: Apache-2.0

// KeptModel as bytes and back. Errors: kUnsupported for a record of another format than this
// version's, kLimitExceeded, kMalformed.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "ipc/kept_model.h"
#include "kernel/base/result.h"

namespace djinn::ipc {

[[nodiscard]] std::vector<std::byte> encode(const KeptModel& model);
Result<KeptModel> decode_kept_model(std::span<const std::byte> bytes);

}  // namespace djinn::ipc
