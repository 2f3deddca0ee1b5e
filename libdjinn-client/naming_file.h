// SPDX-License-Identifier: Apache-2.0

// Errors about files that were sent: djinnd tells a number, who named them knows the names.
#pragma once

#include <span>
#include <string>

#include "kernel/base/result.h"

namespace djinn::client {

// An error about one of the files that were sent, whose number djinnd tells, with that file's name.
Error naming_file(const Error& error, std::span<const std::string> paths);
template <typename T>
Result<T> naming_file(Result<T> result, std::span<const std::string> paths) {
  if (result) return result;
  return naming_file(result.error(), paths);
}

}  // namespace djinn::client
