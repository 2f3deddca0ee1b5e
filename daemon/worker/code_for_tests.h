// SPDX-License-Identifier: Apache-2.0

// code_of: how a call ended.
#pragma once

#include "kernel/base/result.h"

namespace djinn::worker {

// Of a Status or Result: kOk, or the error's.
inline ErrorCode code_of(const auto& result) {
  return result.ok() ? ErrorCode::kOk : result.error().code;
}

}  // namespace djinn::worker
