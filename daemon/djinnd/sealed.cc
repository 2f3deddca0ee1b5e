// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/sealed.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <utility>

#include "daemon/djinnd/descriptors.h"
#include "kernel/pal/memfd.h"

namespace djinn::daemon {
namespace {

constexpr int kContentSeals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW;
constexpr uint64_t kBlockBytes = 512;  // in which stat counts

Result<load::Digest> hash_of(std::span<const std::byte> bytes) {
  DJINN_TRY(load::Sha256 hash, load::Sha256::make());
  DJINN_CHECK(hash.update(bytes));
  return hash.finish();
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
  DJINN_TRY(const auto bytes, read_sealed(fd, bytes_max, what));
  DJINN_TRY(const load::Digest hash, hash_of(bytes));
  DJINN_TRY(Fd copy, pal::make_sealed_memfd("djinn-payload", bytes));
  DJINN_CHECK(check_descriptors_left(copy));
  return Payload{hash, bytes.size(), closer.own(std::move(copy))};
}

Result<Payload> no_payload() {
  DJINN_TRY(const load::Digest hash, hash_of({}));
  return Payload{hash, 0, nullptr};
}

}  // namespace djinn::daemon
