// SPDX-License-Identifier: Apache-2.0

#include "kernel/base/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace djinn {
namespace {

// A full disk is the caller's to mend, and says so where it is told.
Error failed(std::string_view what, const std::string& path, int error_number) {
  return system_error(fmt::format("{} {}", what, path), error_number);
}

}  // namespace

Status write_new_file(const std::string& path, std::string_view bytes, Mode mode) {
  const Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file.valid()) return failed("make", path, errno);
  if (::fchmod(file.get(), mode) != 0) return failed("set the permissions of", path, errno);
  return write_to_disk(file, bytes, path);
}

Status make_folder(const std::string& path, Mode mode) {
  if (::mkdir(path.c_str(), mode) != 0) return failed("make the folder", path, errno);
  if (::chmod(path.c_str(), mode) != 0) return failed("set the permissions of", path, errno);
  return {};
}

Status rename_file(const std::string& from, const std::string& to, Existing existing) {
  const unsigned flags = existing == Existing::kRefused ? RENAME_NOREPLACE : 0;
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) == 0) return {};
  if (errno == EEXIST) {
    return Error{ErrorCode::kAlreadyExists,
                 fmt::format("There is a {} already, and it is not replaced.", to)};
  }
  return failed("rename to", to, errno);
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

Result<Fd> lock_folder(const std::string& path) {
  Fd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid()) return failed("open the folder", path, errno);
  while (::flock(folder.get(), LOCK_EX) != 0) {
    if (errno != EINTR) return failed("lock", path, errno);
  }
  return folder;
}

}  // namespace djinn
