// SPDX-License-Identifier: Apache-2.0

#include "kernel/pal/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <optional>
#include <string>

#include "kernel/base/assert.h"
#include "kernel/base/checked.h"
#include "kernel/base/size_text.h"
#include "kernel/pal/huge_pages.h"

#ifndef MFD_NOEXEC_SEAL  // Linux 6.3; Debian 12's headers are older than some of its kernels
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace djinn::pal {
namespace {

int seal_bits(Seals seals) {
  switch (seals) {
    case Seals::kNone:
      return 0;
    case Seals::kSize:
      return F_SEAL_SHRINK | F_SEAL_GROW;
    case Seals::kShared:
      return F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    case Seals::kWrite:
      return F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | F_SEAL_WRITE;
  }
  return 0;
}

int mmap_protection(Access access) {
  switch (access) {
    case Access::kNone:
      return PROT_NONE;
    case Access::kRead:
      return PROT_READ;
    case Access::kReadWrite:
      return PROT_READ | PROT_WRITE;
  }
  return PROT_NONE;
}

// Repeats a call that a signal interrupted; gives its result or -1 with errno.
template <typename Call>
auto uninterrupted(Call call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

Fd open_memfd(const std::string& name) {
  Fd fd(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL));
  if (fd.valid() || errno != EINVAL) return fd;
  return Fd(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
}

Result<uint64_t> size_of_file(const Fd& fd) {
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return system_error("read the size of shared memory", errno);
  if (!S_ISREG(info.st_mode)) {
    return Error{ErrorCode::kInvalidArgument, "the descriptor is not one of a memfd"};
  }
  return static_cast<uint64_t>(info.st_size);
}

Result<Mapping> map_bytes(const Fd& memfd, uint64_t bytes, int protection, int flags) {
  DJINN_TRY(Mapping addresses, reserve_addresses(bytes));
  if (::mmap(addresses.data(), bytes, protection, flags | MAP_FIXED, memfd.get(), 0) ==
      MAP_FAILED) {
    return system_error("map shared memory", errno);
  }
  return addresses;
}

Status write_all(const Fd& memfd, std::span<const std::byte> content) {
  for (uint64_t done = 0; done < content.size();) {
    const ssize_t wrote = uninterrupted([&] {
      return ::pwrite(memfd.get(), content.data() + done, content.size() - done,
                      static_cast<off_t>(done));
    });
    if (wrote < 0) return system_error("write shared memory", errno);
    done += static_cast<uint64_t>(wrote);
  }
  return {};
}

Status allocate_or_punch(const Fd& memfd, int mode, uint64_t offset, uint64_t bytes,
                         std::string_view what) {
  if (bytes == 0) return {};
  DJINN_TRY(const uint64_t size, size_of_file(memfd));
  if (!range_fits(offset, bytes, size)) {
    return Error{ErrorCode::kOutOfRange, fmt::format("{}: [{}, +{}) is not inside its {} bytes",
                                                     what, offset, bytes, size)};
  }
  const int failed = uninterrupted([&] {
    return ::fallocate(memfd.get(), mode | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                       static_cast<off_t>(bytes));
  });
  if (failed != 0) return system_error(what, errno);
  return {};
}

// A process can never have more memory than the machine, and asking for it would end in the OOM
// killer instead of an error (GOTCHAS.md). For less memory AvailableMemory decides.
Status refuse_the_hopeless(uint64_t bytes) {
  struct sysinfo machine {};
  if (::sysinfo(&machine) != 0) return system_error("ask for the size of the machine", errno);
  const auto total = checked_mul<uint64_t>(machine.totalram, machine.mem_unit);
  if (total && bytes < *total) return {};
  return Error{ErrorCode::kOutOfMemory,
               fmt::format("{} are more than the machine has", size_text(bytes))};
}

}  // namespace

void Mapping::reset() noexcept {
  if (data_ == nullptr) return;
  const int failed = ::munmap(std::exchange(data_, nullptr), std::exchange(bytes_, 0));
  DJINN_ASSERT(failed == 0);
}

Result<Fd> make_memfd(std::string_view name, uint64_t bytes, Seals seals) {
  if (bytes > INT64_MAX) {
    return Error{ErrorCode::kInvalidArgument, "shared memory cannot be larger than 2^63 bytes"};
  }
  Fd fd = open_memfd(std::string(name));
  if (!fd.valid()) return system_error("create shared memory", errno);
  if (uninterrupted([&] { return ::ftruncate(fd.get(), static_cast<off_t>(bytes)); }) != 0) {
    return system_error("size shared memory", errno);
  }
  if (seals != Seals::kNone) DJINN_CHECK(add_seals(fd, seals));
  return fd;
}

Result<Fd> make_sealed_memfd(std::string_view name, std::span<const std::byte> content) {
  DJINN_TRY(Fd fd, make_memfd(name, content.size()));
  DJINN_CHECK(write_all(fd, content));
  DJINN_CHECK(seal_content(fd));
  return fd;
}

Status add_seals(const Fd& memfd, Seals seals) {
  if (::fcntl(memfd.get(), F_ADD_SEALS, seal_bits(seals)) == 0) return {};
  if (errno == EBUSY) {
    return Error{ErrorCode::kBusy,
                 "seal shared memory: a writable mapping or a direct read is left. Unmap first."};
  }
  return system_error("seal shared memory", errno);
}

// In each try the kernel itself waits for some 100 ms. If there is a writable mapping, it refuses
// at once.
Status seal_content(const Fd& memfd) {
  constexpr int kTries = 10;
  Status sealed = add_seals(memfd, Seals::kWrite);
  for (int tries = 1; !sealed && sealed.error().code == ErrorCode::kBusy && tries < kTries;
       ++tries) {
    sealed = add_seals(memfd, Seals::kWrite);
  }
  return sealed;
}

Result<Mapping> map_shared(const Fd& memfd, uint64_t bytes, Access access) {
  return map_bytes(memfd, bytes, mmap_protection(access), MAP_SHARED);
}

Result<Mapping> map_sealed(const Fd& memfd, uint64_t bytes) {
  return map_bytes(memfd, bytes, PROT_READ, MAP_PRIVATE);
}

Status commit_ahead(const Fd& memfd, uint64_t offset, uint64_t bytes) {
  DJINN_CHECK(refuse_the_hopeless(bytes));
  return allocate_or_punch(memfd, 0, offset, bytes, "commit shared memory");
}

Status decommit(const Fd& memfd, uint64_t offset, uint64_t bytes) {
  return allocate_or_punch(memfd, FALLOC_FL_PUNCH_HOLE, offset, bytes, "give back shared memory");
}

Status populate_write(std::span<std::byte> range) {
  if (range.empty()) return {};
  const int failed =
      uninterrupted([&] { return ::madvise(range.data(), range.size(), MADV_POPULATE_WRITE); });
  if (failed == 0) return {};
  // With EFAULT a touch would have been a SIGBUS: the file system has no page left.
  return system_error("touch shared memory ahead", errno == EFAULT ? ENOSPC : errno);
}

Result<bool> has_seals(const Fd& memfd, Seals seals) {
  const int found = ::fcntl(memfd.get(), F_GET_SEALS);
  if (found < 0) return system_error("read the seals of shared memory", errno);
  return (found & seal_bits(seals)) == seal_bits(seals);
}

Status verify_memfd(const Fd& fd, uint64_t bytes, Seals required) {
  const int flags = ::fcntl(fd.get(), F_GETFL);
  if (flags < 0 || (flags & O_PATH) != 0 || (flags & O_ACCMODE) == O_WRONLY) {
    return Error{ErrorCode::kInvalidArgument, "the descriptor is not open for reading"};
  }
  // The virtual file system answers this call, before fstat could reach a file system that blocks.
  // A new file on tmpfs has F_SEAL_SEAL alone; so has a memfd that refuses seals, which we refuse
  // too.
  const int found = ::fcntl(fd.get(), F_GET_SEALS);
  if (found < 0 || found == F_SEAL_SEAL) {
    return Error{ErrorCode::kInvalidArgument,
                 "the descriptor is not one of a memfd that allows seals. Use memfd_create with "
                 "MFD_ALLOW_SEALING."};
  }
  if ((found & seal_bits(required)) != seal_bits(required)) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("the memfd lacks seals: it has {:#x} and needs {:#x}", found,
                             seal_bits(required))};
  }
  DJINN_TRY(const uint64_t size, size_of_file(fd));
  if (size != bytes) {
    return Error{ErrorCode::kOutOfRange,
                 fmt::format("the memfd has {} bytes, {} were announced", size, bytes)};
  }
  return {};
}

Result<std::vector<std::byte>> read_memfd(const Fd& memfd, uint64_t bytes, uint64_t offset) {
  std::vector<std::byte> content(bytes);
  for (uint64_t done = 0; done < bytes;) {
    const ssize_t got = uninterrupted([&] {
      return ::pread(memfd.get(), content.data() + done, bytes - done,
                     static_cast<off_t>(offset + done));
    });
    if (got < 0) return system_error("read shared memory", errno);
    if (got == 0) {
      return Error{ErrorCode::kOutOfRange,
                   fmt::format("the memfd ends at {} of {} bytes", offset + done, offset + bytes)};
    }
    done += static_cast<uint64_t>(got);
  }
  return content;
}

}  // namespace djinn::pal
