// SPDX-License-Identifier: Apache-2.0

// Disk: what is written of files that must stay whole, step by step, so that a test can end the
// process, or the disk's room, at each one. What has a name has all of its bytes, and stays: a file
// is written beside its place under another name, synced, and renamed; then its folder is synced.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kernel/base/fd.h"
#include "kernel/base/file.h"
#include "kernel/base/result.h"

namespace djinn {

using Mode = unsigned;  // permission bits, whatever the umask is

enum class Existing : uint8_t { kReplaced, kRefused };

// The steps. Errors of each: what the system said; kAlreadyExists for what is there and refused.
// A file that is not there yet, synced.
Status write_new_file(const std::string& path, std::string_view bytes, Mode mode);
Status make_folder(const std::string& path, Mode mode);
Status rename_file(const std::string& from, const std::string& to, Existing existing);

// Its functions are here, and not in a .cc, since a test that derives from it wants type
// information, which this library has none of.
class Disk {
 public:
  Disk() = default;
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;
  virtual ~Disk() = default;

  virtual Status write(const std::string& path, std::string_view bytes, Mode mode) {
    return write_new_file(path, bytes, mode);
  }
  virtual Status make_folder(const std::string& path, Mode mode) {
    return djinn::make_folder(path, mode);
  }
  virtual Status rename(const std::string& from, const std::string& to, Existing existing) {
    return rename_file(from, to, existing);
  }
  virtual Status sync_folder(const std::string& path) { return djinn::sync_folder(path); }
};

// Where path is written before it is renamed; a remainder of a process that died may be there.
[[nodiscard]] std::string unfinished(const std::string& path);
[[nodiscard]] std::string folder_of(const std::string& path);

// The file at path has these bytes, or what it had before. Only one process at a time: callers hold
// a lock.
Status put(Disk& disk, const std::string& path, std::string_view bytes, Mode mode,
           Existing existing = Existing::kReplaced);

[[nodiscard]] bool is_there(const std::string& path);
// The folder, locked until the descriptor is closed; waits for who has it.
Result<Fd> lock_folder(const std::string& path);

}  // namespace djinn
