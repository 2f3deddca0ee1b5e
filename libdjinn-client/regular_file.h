// SPDX-License-Identifier: Apache-2.0

// Opening files that somebody names: a model's weights, its configuration.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kernel/base/fd.h"
#include "kernel/base/result.h"

namespace djinn::client {

// Opens a file for reading, under a description of its own. It never waits for what is no file: a
// FIFO would hold up whoever opens it until somebody writes. Errors name the path: kNotFound,
// kInvalidArgument (a FIFO, a device, a directory), kSystem. Any thread.
Result<Fd> open_regular_file(const std::string& path);

// All of such a file. Errors: as open_regular_file(), and kLimitExceeded for more than bytes_max.
Result<std::string> read_regular_file(const std::string& path, uint64_t bytes_max);
// Likewise, of one that has a key: kPermissionDenied, too, where others than its owner may read it.
Result<std::string> read_secret_file(const std::string& path, uint64_t bytes_max);

// An error about one of the files that were sent, whose number djinnd tells, with that file's name.
Error naming_file(const Error& error, std::span<const std::string> paths);
template <typename T>
Result<T> naming_file(Result<T> result, std::span<const std::string> paths) {
  if (result) return result;
  return naming_file(result.error(), paths);
}

}  // namespace djinn::client
