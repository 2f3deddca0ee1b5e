// SPDX-License-Identifier: Apache-2.0

// Files that somebody names, and small ones that must outlast a loss of power. Errors name the
// path: they are for who named it, and go nowhere else.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kernel/base/fd.h"
#include "kernel/base/result.h"

namespace djinn {

// Opens a file for reading, under a description of its own. It never waits for what is no file: a
// FIFO would hold up whoever opens it until somebody writes. Errors: kNotFound,
// kInvalidArgument (a FIFO, a device, a directory), kSystem. Any thread.
Result<Fd> open_regular_file(const std::string& path);

// All of such a file. Errors: as open_regular_file(), and kLimitExceeded for more than bytes_max.
Result<std::string> read_regular_file(const std::string& path, uint64_t bytes_max);
// Likewise, of one that has a key: kPermissionDenied, too, where others than its owner may read it.
Result<std::string> read_secret_file(const std::string& path, uint64_t bytes_max);

// All of bytes are behind file's position, and on the disk. path: what errors name.
Status write_to_disk(const Fd& file, std::string_view bytes, const std::string& path);
// What was made, renamed or removed in the folder at path is so on the disk, too.
Status sync_folder(const std::string& path);

}  // namespace djinn
