// SPDX-License-Identifier: Apache-2.0

#include "daemon/store/blob_disk.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

namespace djinn::store {
namespace {

constexpr size_t kCopyStepBytes = size_t{1} << 20;
constexpr size_t kCopyBytesMax = size_t{1} << 30;  // of one copy_file_range

Error failed(const char* what) {
  return system_error(what, errno);
}

Error has_changed() {
  return {ErrorCode::kFileChanged,
          "A file was written to, or became shorter, while it was imported. Import the model again "
          "when nothing writes to it."};
}

Status write_at(const Fd& to, const std::byte* bytes, size_t count, uint64_t at) {
  for (size_t done = 0; done < count;) {
    const ssize_t written =
        ::pwrite(to.get(), bytes + done, count - done, static_cast<off_t>(at + done));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failed("write a file of the store of models");
    done += static_cast<size_t>(written);
  }
  return {};
}

// By reading and writing: between any two file systems.
Status copy_through_memory(const Fd& from, const Fd& to, uint64_t at, uint64_t bytes) {
  std::vector<std::byte> step(kCopyStepBytes);
  while (at < bytes) {
    const auto wanted = static_cast<size_t>(std::min<uint64_t>(bytes - at, kCopyStepBytes));
    const ssize_t got = ::pread(from.get(), step.data(), wanted, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failed("read a file of a model");
    if (got == 0) return has_changed();
    DJINN_CHECK(write_at(to, step.data(), static_cast<size_t>(got), at));
    at += static_cast<uint64_t>(got);
  }
  return {};
}

// Whether the kernel says that it cannot copy between these two, and not that copying failed.
bool is_not_offered(int error_number) {
  return error_number == EXDEV || error_number == ENOSYS || error_number == EINVAL ||
         error_number == EOPNOTSUPP || error_number == EPERM;
}

Result<struct stat> look_at(const Fd& file) {
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return failed("look at a file of a model");
  return info;
}

bool is_same_time(const timespec& a, const timespec& b) {
  return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

Status set_time(const Fd& file, timespec modified) {
  const timespec times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT}, modified};
  if (::futimens(file.get(), times) != 0) return failed("set the time of a file of the store");
  return {};
}

}  // namespace

Result<Fd> make_unnamed_file(const std::string& folder) {
  Fd file(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0400));
  if (file.valid()) return file;
  if (errno != EOPNOTSUPP && errno != EISDIR) return failed("make a file in the store of models");
  return Error{ErrorCode::kUnsupported,
               "The file system of the store of models makes no files without a name (O_TMPFILE). "
               "Put the store on ext4, XFS, Btrfs or tmpfs."};
}

Status reserve_room(const Fd& file, uint64_t bytes) {
  if (bytes == 0) return {};
  while (::fallocate(file.get(), 0, 0, static_cast<off_t>(bytes)) != 0) {
    if (errno == EINTR) continue;
    if (errno == EOPNOTSUPP) return {};  // a full disk is then found by copy_bytes() or seal_blob()
    return failed("find room in the store of models");
  }
  return {};
}

Status copy_bytes(const Fd& from, const Fd& to, uint64_t bytes) {
  if (::ioctl(to.get(), FICLONE, from.get()) == 0) return {};
  loff_t in = 0;
  loff_t out = 0;
  while (static_cast<uint64_t>(in) < bytes) {
    const uint64_t at = static_cast<uint64_t>(in);
    const auto wanted = static_cast<size_t>(std::min<uint64_t>(bytes - at, kCopyBytesMax));
    const ssize_t copied = ::copy_file_range(from.get(), &in, to.get(), &out, wanted, 0);
    if (copied > 0 || (copied < 0 && errno == EINTR)) continue;
    // Some file systems say that there is nothing more where there is: reading tells.
    if (copied == 0 || is_not_offered(errno)) return copy_through_memory(from, to, at, bytes);
    return failed("copy a file into the store of models");
  }
  return {};
}

Status seal_blob(const Fd& file) {
  DJINN_CHECK(set_time(file, {.tv_sec = kBlobTime, .tv_nsec = 0}));
  if (::fsync(file.get()) != 0) return failed("bring a file of the store of models to disk");
  return {};
}

Status link_file(const Fd& file, const std::string& path) {
  // Linking by the descriptor alone (AT_EMPTY_PATH) wants a capability that djinnd has not.
  const std::string unnamed = fmt::format("/proc/self/fd/{}", file.get());
  if (::linkat(AT_FDCWD, unnamed.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0) {
    return {};
  }
  if (errno == EEXIST) return Error{ErrorCode::kAlreadyExists, "The store has that file."};
  return failed("name a file of the store of models");
}

Status remove_file(const std::string& path) {
  if (::unlink(path.c_str()) != 0) return failed("remove a file of the store of models");
  return {};
}

Status distrust_blob(const Fd& blob) {
  return set_time(blob, {.tv_sec = 0, .tv_nsec = UTIME_NOW});
}

Result<Digest> take_in(BlobDisk& disk, const Fd& from, const Fd& to, uint64_t bytes) {
  DJINN_TRY(const struct stat before, look_at(from));
  if (!S_ISREG(before.st_mode)) {
    return Error{ErrorCode::kInvalidArgument, "Only regular files are imported."};
  }
  if (static_cast<uint64_t>(before.st_size) != bytes) return has_changed();
  DJINN_CHECK(disk.copy(from, to, bytes));
  DJINN_TRY(const struct stat after, look_at(from));
  // Who writes and sets the time back still changes st_ctim.
  if (after.st_size != before.st_size || !is_same_time(after.st_mtim, before.st_mtim) ||
      !is_same_time(after.st_ctim, before.st_ctim)) {
    return has_changed();
  }
  DJINN_TRY(const struct stat made, look_at(to));
  if (static_cast<uint64_t>(made.st_size) != bytes) return has_changed();
  DJINN_TRY(const Digest digest, digest_of_file(to, bytes));
  DJINN_CHECK(disk.seal(to));
  return digest;
}

}  // namespace djinn::store
