// SPDX-License-Identifier: Apache-2.0

#include "kernel/load/identity.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "kernel/load/lease.h"

namespace djinn::load {
namespace {

constexpr unsigned kWanted = STATX_TYPE | STATX_INO | STATX_SIZE | STATX_MTIME | STATX_CTIME;
// Debian 12's linux/magic.h lacks this number.
constexpr decltype(statfs::f_type) kFuseMagic = 0x65735546;
constexpr int kUnchangeable = F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK;
constexpr size_t kHashedAtOnce = size_t{1} << 20;
constexpr uint64_t kBlockBytes = 512;  // in which stat counts

int64_t nanoseconds(const statx_timestamp& time) {
  return time.tv_sec * 1'000'000'000 + static_cast<int64_t>(time.tv_nsec);
}

Status check_access(const Fd& fd) {
  const int flags = ::fcntl(fd.get(), F_GETFL);
  if (flags < 0) return system_error("look at a file's descriptor", errno);
  if ((flags & O_PATH) != 0) {
    return Error{ErrorCode::kInvalidArgument,
                 "The descriptor only names a file (O_PATH). Open the file for reading."};
  }
  if ((flags & O_ACCMODE) == O_WRONLY) {
    return Error{ErrorCode::kPermissionDenied, "The file is not open for reading."};
  }
  return {};
}

// On these file systems the device number proves nothing: overlay may give its lower layer's and
// FUSE (fuseblk) a disk's, while others decide what the file holds.
Result<bool> is_on_block_device(const Fd& fd, uint32_t device_major) {
  if (device_major == 0) return false;
  struct statfs info {};
  if (::fstatfs(fd.get(), &info) != 0) return system_error("look at a file's file system", errno);
  return info.f_type != OVERLAYFS_SUPER_MAGIC && info.f_type != kFuseMagic &&
         info.f_type != TMPFS_MAGIC;
}

// Tells whether the file is on one of these file systems. Gives false if that cannot be told.
bool is_on_any(const Fd& fd, std::initializer_list<decltype(statfs::f_type)> file_systems) {
  struct statfs info {};
  return ::fstatfs(fd.get(), &info) == 0 && std::ranges::count(file_systems, info.f_type) != 0;
}

bool settled_when_read(const FileIdentity& file) {
  return file.ctime_ns >= 0 && file.read_at_ns >= kSettledNs &&
         static_cast<uint64_t>(file.ctime_ns) <= file.read_at_ns - kSettledNs;
}

Status hash_file(const Fd& fd, uint64_t bytes, Sha256& hash) {
  std::vector<std::byte> buffer(std::min<uint64_t>(bytes, kHashedAtOnce));
  for (uint64_t done = 0; done < bytes;) {
    const ssize_t got = ::pread(fd.get(), buffer.data(), buffer.size(), static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return system_error("read a sealed file", got < 0 ? errno : EIO);
    DJINN_CHECK(hash.update(std::span(buffer).first(static_cast<size_t>(got))));
    done += static_cast<uint64_t>(got);
  }
  return {};
}

// A file with holes can be of any size, and costs its maker nothing.
bool has_holes(const Fd& fd, uint64_t bytes) {
  struct stat info {};
  return ::fstat(fd.get(), &info) != 0 ||
         static_cast<uint64_t>(info.st_blocks) < bytes / kBlockBytes;
}

bool is_same(const FileIdentity& before, const FileIdentity& after) {
  if (!before.content || !after.content) return unchanged(before, after);
  return before.bytes == after.bytes && *before.content == *after.content;
}

bool is_proof(const FileIdentity& file) {
  return file.content.has_value() || file.unwritten;
}

}  // namespace

Result<std::optional<Digest>> content_of(const Fd& fd, uint64_t bytes) {
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);  // -1: not a file that can be sealed
  const bool sealed = seals >= 0 && (seals & kUnchangeable) == kUnchangeable;
  if (!sealed || has_holes(fd, bytes)) return std::optional<Digest>();
  DJINN_TRY(Sha256 hash, Sha256::make());
  DJINN_CHECK(hash_file(fd, bytes, hash));
  DJINN_TRY(const Digest digest, hash.finish());
  return std::optional(digest);
}

Result<FileIdentity> identify(const Fd& fd, const Clock& clock) {
  DJINN_CHECK(check_access(fd));
  FileIdentity out;
  out.read_at_ns = clock.wall_ns();
  struct statx info {};
  if (::statx(fd.get(), "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, kWanted, &info) != 0) {
    return system_error("look at a file", errno);
  }
  if (!S_ISREG(info.stx_mode) || (info.stx_mask & kWanted) != kWanted) {
    return Error{ErrorCode::kInvalidArgument,
                 "This is not a regular file. Name one that holds a model's data."};
  }
  out.device_major = info.stx_dev_major;
  out.device_minor = info.stx_dev_minor;
  out.inode = info.stx_ino;
  out.bytes = info.stx_size;
  out.mtime_ns = nanoseconds(info.stx_mtime);
  out.ctime_ns = nanoseconds(info.stx_ctime);
  DJINN_TRY(out.on_block_device, is_on_block_device(fd, out.device_major));
  return out;
}

bool always_answers(const Fd& fd, const FileIdentity& file) {
  return file.on_block_device || is_on_any(fd, {BTRFS_SUPER_MAGIC, TMPFS_MAGIC});
}

bool is_unwritten(const Fd& fd, const FileIdentity& file) {
  return (file.on_block_device || is_on_any(fd, {BTRFS_SUPER_MAGIC})) && ReadLease::take(fd).held();
}

bool unchanged(const FileIdentity& before, const FileIdentity& after) {
  FileIdentity same_look = after;
  same_look.read_at_ns = before.read_at_ns;
  same_look.content = before.content;
  same_look.unwritten = before.unwritten;
  return before == same_look;
}

bool all_unchanged(std::span<const FileIdentity> before, std::span<const FileIdentity> after) {
  return std::ranges::equal(before, after, is_same);
}

bool were_settled(std::span<const FileIdentity> files) {
  return std::ranges::all_of(files, [](const FileIdentity& file) {
    return file.content.has_value() || settled_when_read(file);
  });
}

bool same_within_domain(std::span<const FileIdentity> resident,
                        std::span<const FileIdentity> opened) {
  return all_unchanged(resident, opened) && std::ranges::all_of(resident, is_proof) &&
         std::ranges::all_of(opened, is_proof);
}

bool same_across_domains(std::span<const FileIdentity> resident,
                         std::span<const FileIdentity> opened) {
  return same_within_domain(resident, opened) &&
         std::all_of(resident.begin(), resident.end(), [](const FileIdentity& file) {
           return file.on_block_device && settled_when_read(file);
         });
}

bool of_same_sizes(std::span<const FileIdentity> resident, std::span<const FileIdentity> opened) {
  return std::ranges::equal(resident, opened, {}, &FileIdentity::bytes, &FileIdentity::bytes);
}

}  // namespace djinn::load
