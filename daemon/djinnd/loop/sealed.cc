// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/loop/sealed.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <span>
#include <utility>

#include "daemon/djinnd/loop/descriptors.h"
#include "kernel/pal/memfd.h"

namespace djinn::daemon {
namespace {

constexpr int kContentSeals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW;
constexpr uint64_t kBlockBytes = 512;  // in which stat counts

// A step is small enough that a payload's bytes stay in the cache between reading and writing.
constexpr uint64_t kStepBytes = uint64_t{256} << 10;

Status read_at(const Fd& memfd, uint64_t offset, std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t got = ::pread(memfd.get(), out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return system_error("read a memfd", got < 0 ? errno : EIO);
    offset += static_cast<uint64_t>(got);
    out = out.subspan(static_cast<size_t>(got));
  }
  return {};
}

Status write_at(const Fd& memfd, uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put =
        ::pwrite(memfd.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return system_error("write a memfd", put < 0 ? errno : EIO);
    offset += static_cast<uint64_t>(put);
    bytes = bytes.subspan(static_cast<size_t>(put));
  }
  return {};
}

}  // namespace

Result<uint64_t> size_of_sealed(const Fd& fd, uint64_t bytes_max, std::string_view what) {
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kContentSeals) != kContentSeals) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("The {} must come in a memfd sealed against writing, shrinking and "
                             "growing.",
                             what)};
  }
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return system_error("look at a memfd", errno);
  const auto bytes = static_cast<uint64_t>(info.st_size);
  if (bytes > bytes_max) {
    return Error{
        ErrorCode::kLimitExceeded,
        fmt::format("The {} has {} bytes; at most {} are accepted.", what, bytes, bytes_max)};
  }
  if (static_cast<uint64_t>(info.st_blocks) * kBlockBytes < bytes) {
    return Error{
        ErrorCode::kInvalidArgument,
        fmt::format("The memfd of the {} has holes. Write all its bytes, then seal it.", what)};
  }
  DJINN_CHECK(pal::verify_memfd(fd, bytes, pal::Seals::kNone));
  return bytes;
}

Result<std::vector<std::byte>> read_sealed(const Fd& fd, uint64_t bytes_max,
                                           std::string_view what) {
  DJINN_TRY(const uint64_t bytes, size_of_sealed(fd, bytes_max, what));
  return pal::read_memfd(fd, bytes);
}

Result<Payload> take_payload(const Fd& fd, uint64_t bytes_max, std::string_view what,
                             Closer& closer) {
  DJINN_TRY(const uint64_t bytes, size_of_sealed(fd, bytes_max, what));
  DJINN_TRY(Fd copy, for_client(pal::make_memfd("djinn-payload", bytes)));
  DJINN_CHECK(check_descriptors_left(copy));
  DJINN_TRY(load::Sha256 hash, load::Sha256::make());
  std::vector<std::byte> step(std::min(bytes, kStepBytes));
  for (uint64_t at = 0; at < bytes; at += step.size()) {
    step.resize(std::min(bytes - at, kStepBytes));
    DJINN_CHECK(read_at(fd, at, step));
    DJINN_CHECK(hash.update(step));
    DJINN_CHECK(write_at(copy, at, step));
  }
  DJINN_CHECK(pal::seal_content(copy));
  DJINN_TRY(const load::Digest digest, hash.finish());
  return Payload{digest, bytes, closer.own(std::move(copy))};
}

Result<Payload> no_payload() {
  DJINN_TRY(load::Sha256 hash, load::Sha256::make());
  DJINN_TRY(const load::Digest digest, hash.finish());
  return Payload{digest, 0, nullptr};
}

}  // namespace djinn::daemon
