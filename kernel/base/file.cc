// SPDX-License-Identifier: Apache-2.0

#include "kernel/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernel/base/size_text.h"

namespace djinn {
namespace {

Error not_regular(const std::string& path) {
  return {ErrorCode::kInvalidArgument, path + " is not a regular file. Name one that is."};
}

}  // namespace

Result<Fd> open_regular_file(const std::string& path) {
  Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!file.valid() && errno == ENOENT) {
    return Error{ErrorCode::kNotFound, "There is no " + path + "."};
  }
  if (!file.valid() && errno == EACCES) {
    return Error{ErrorCode::kPermissionDenied,
                 path +
                     " may not be read by this user. Let them read it, and enter the "
                     "directories above it, or run the program as somebody who can."};
  }
  if (!file.valid() && errno == ENXIO) return not_regular(path);  // a socket
  if (!file.valid()) return system_error("open " + path, errno);
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return system_error("look at " + path, errno);
  if (!S_ISREG(info.st_mode)) return not_regular(path);
  // Reads of a regular file do not depend on the flag, though a file system may think otherwise.
  if (::fcntl(file.get(), F_SETFL, O_RDONLY) != 0) return system_error("open " + path, errno);
  return file;
}

namespace {

Result<std::string> read_all(const std::string& path, uint64_t bytes_max, bool is_secret) {
  DJINN_TRY(const Fd fd, open_regular_file(path));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return system_error("look at " + path, errno);
  if (is_secret && (info.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return Error{ErrorCode::kPermissionDenied,
                 path + " has a key, and others may read it. If nobody did, 'chmod 600 " + path +
                     "' mends that; else ask for another one."};
  }
  if (static_cast<uint64_t>(info.st_size) > bytes_max) {
    return Error{
        ErrorCode::kLimitExceeded,
        fmt::format("{} has more than {}, and no file of its kind has. Name the right one.", path,
                    size_text(bytes_max))};
  }
  std::string text(static_cast<size_t>(info.st_size), '\0');
  for (size_t at = 0; at < text.size();) {
    const ssize_t got = ::read(fd.get(), text.data() + at, text.size() - at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error("read " + path, errno);
    if (got == 0) {
      return Error{ErrorCode::kFileChanged, path + " became shorter while it was read. Try again."};
    }
    at += static_cast<size_t>(got);
  }
  return text;
}

}  // namespace

Result<std::string> read_regular_file(const std::string& path, uint64_t bytes_max) {
  return read_all(path, bytes_max, false);
}

Result<std::string> read_secret_file(const std::string& path, uint64_t bytes_max) {
  return read_all(path, bytes_max, true);
}

Status write_to_disk(const Fd& file, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return system_error("write " + path, errno);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  if (::fsync(file.get()) != 0) return system_error("bring to disk " + path, errno);
  return {};
}

Status sync_folder(const std::string& path) {
  const Fd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid()) return system_error("open the folder " + path, errno);
  if (::fsync(folder.get()) != 0) return system_error("bring to disk " + path, errno);
  return {};
}

}  // namespace djinn
