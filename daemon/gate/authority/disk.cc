// SPDX-License-Identifier: Apache-2.0

#include "daemon/gate/authority/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace djinn::authority {
namespace {

// A full disk is the caller's to mend, and says so where it is told.
Error failed(std::string_view what, const std::string& path, int error_number) {
  return system_error(fmt::format("{} {}", what, path), error_number);
}

Result<std::string> read_opened(const Fd& file, const std::string& path, uint64_t bytes_max) {
  std::string bytes(bytes_max + 1, '\0');
  size_t length = 0;
  while (length < bytes.size()) {
    const ssize_t got = ::read(file.get(), bytes.data() + length, bytes.size() - length);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failed("read", path, errno);
    if (got == 0) break;
    length += static_cast<size_t>(got);
  }
  if (length > bytes_max) {
    return Error{ErrorCode::kLimitExceeded,
                 fmt::format("{} has more than {} bytes. It is no file of an authority's: put back "
                             "the one that was there.",
                             path, bytes_max)};
  }
  bytes.resize(length);
  return bytes;
}

Result<Fd> open_file(const std::string& path, struct stat& status) {
  Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!file.valid() && errno == ENOENT) {
    return Error{ErrorCode::kNotFound, fmt::format("There is no {}.", path)};
  }
  if (!file.valid()) return failed("open", path, errno);
  if (::fstat(file.get(), &status) != 0) return failed("look at", path, errno);
  if (!S_ISREG(status.st_mode)) {
    return Error{ErrorCode::kInvalidArgument, fmt::format("{} is no regular file.", path)};
  }
  return file;
}

}  // namespace

Status Disk::write(const std::string& path, std::string_view bytes, Mode mode) {
  const Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file.valid()) return failed("make", path, errno);
  if (::fchmod(file.get(), mode) != 0) return failed("set the permissions of", path, errno);
  while (!bytes.empty()) {
    const ssize_t written = ::write(file.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failed("write", path, errno);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  if (::fsync(file.get()) != 0) return failed("bring to disk", path, errno);
  return {};
}

Status Disk::make_folder(const std::string& path, Mode mode) {
  if (::mkdir(path.c_str(), mode) != 0) return failed("make the folder", path, errno);
  if (::chmod(path.c_str(), mode) != 0) return failed("set the permissions of", path, errno);
  return {};
}

Status Disk::rename(const std::string& from, const std::string& to, Existing existing) {
  const unsigned flags = existing == Existing::kRefused ? RENAME_NOREPLACE : 0;
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) == 0) return {};
  if (errno == EEXIST) {
    return Error{ErrorCode::kAlreadyExists,
                 fmt::format("There is a {} already, and it is not replaced.", to)};
  }
  return failed("rename to", to, errno);
}

Status Disk::sync_folder(const std::string& path) {
  const Fd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid()) return failed("open the folder", path, errno);
  if (::fsync(folder.get()) != 0) return failed("bring to disk", path, errno);
  return {};
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string unfinished(const std::string& path) {
  const size_t name = path.rfind('/') + 1;  // 0 where there is none
  return fmt::format("{}.{}.new", path.substr(0, name), path.substr(name));
}

Status put(Disk& disk, const std::string& path, std::string_view bytes, Mode mode,
           Existing existing) {
  const std::string beside = unfinished(path);
  if (::unlink(beside.c_str()) != 0 && errno != ENOENT) return failed("remove", beside, errno);
  Status done = disk.write(beside, bytes, mode);
  if (done) done = disk.rename(beside, path, existing);
  if (!done) {
    ::unlink(beside.c_str());
    return done;
  }
  return disk.sync_folder(folder_of(path));
}

bool is_there(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0;
}

Result<std::string> read_file(const std::string& path, uint64_t bytes_max) {
  struct stat status {};
  DJINN_TRY(const Fd file, open_file(path, status));
  return read_opened(file, path, bytes_max);
}

Result<std::string> read_secret(const std::string& path, uint64_t bytes_max) {
  struct stat status {};
  DJINN_TRY(const Fd file, open_file(path, status));
  if ((status.st_mode & 077) != 0) {
    return Error{ErrorCode::kPermissionDenied,
                 fmt::format("{0} may be used by others than its owner, so it is no secret. If "
                             "nobody had it, 'chmod 600 {0}' mends that; else make another.",
                             path)};
  }
  return read_opened(file, path, bytes_max);
}

Result<Fd> lock_folder(const std::string& path) {
  Fd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid()) return failed("open the folder", path, errno);
  while (::flock(folder.get(), LOCK_EX) != 0) {
    if (errno != EINTR) return failed("lock", path, errno);
  }
  return folder;
}

}  // namespace djinn::authority
