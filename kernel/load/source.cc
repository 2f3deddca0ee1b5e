// SPDX-License-Identifier: Apache-2.0

#include "kernel/load/source.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "kernel/base/checked.h"

namespace djinn::load {
namespace {

// A smaller file is read through the page cache, because direct reads would save nothing.
constexpr uint64_t kDirectFileBytesMin = uint64_t{4} << 20;

Error changed() {
  return {ErrorCode::kFileChanged,
          "The file was changed while it was read. Load it again when its writer is done."};
}

Error unreadable(int error_number) {
  Error error = system_error("read a file", error_number);
  error.message += ". Check the disk or server that it lies on, then load it again.";
  return error;
}

Error headers_too_large() {
  return {ErrorCode::kLimitExceeded,
          "The headers of the model's files have together more bytes than the limit of " +
              std::to_string(kHeadersBytesMax) + "."};
}

ssize_t pread_some(const Fd& fd, std::span<std::byte> out, uint64_t offset) {
  ssize_t count = -1;
  do {
    count = ::pread(fd.get(), out.data(), out.size(), static_cast<off_t>(offset));
  } while (count < 0 && errno == EINTR);
  return count;
}

Status read_whole(const Fd& fd, std::span<std::byte> out, uint64_t offset) {
  while (!out.empty()) {
    const ssize_t count = pread_some(fd, out, offset);
    if (count < 0) return unreadable(errno);
    if (count == 0) return changed();
    out = out.subspan(static_cast<size_t>(count));
    offset += static_cast<uint64_t>(count);
  }
  return {};
}

Result<int> flags_of(const Fd& fd) {
  const int flags = ::fcntl(fd.get(), F_GETFL);
  if (flags < 0) return system_error("look at a file's descriptor", errno);
  return flags;
}

bool set_flags(const Fd& fd, int flags) {
  return ::fcntl(fd.get(), F_SETFL, flags) == 0;
}

Status clear_direct(const Fd& fd, int flags) {
  if ((flags & O_DIRECT) == 0 || set_flags(fd, flags & ~O_DIRECT)) return {};
  return system_error("read a file through the page cache", errno);
}

// A read of one byte comes back without waiting if its page is in the cache.
bool is_cached(const Fd& fd, uint64_t offset) {
  std::byte probe{};
  const iovec into{&probe, 1};
  return ::preadv2(fd.get(), &into, 1, static_cast<off_t>(offset), RWF_NOWAIT) == 1;
}

// Probes evenly spaced places, so that neither a header that was just read nor one dropped page
// decides.
bool is_mostly_cached(const Fd& fd, uint64_t file_bytes) {
  constexpr uint64_t kProbes = 32;
  constexpr uint64_t kEnough = 29;
  uint64_t hits = 0;
  for (uint64_t i = 0; i < kProbes; ++i) {
    hits += is_cached(fd, file_bytes / kProbes * i + file_bytes / (2 * kProbes)) ? 1 : 0;
  }
  return hits >= kEnough;
}

}  // namespace

Result<SafetensorsIndex> read_index(const SourceFile& file, uint64_t header_bytes_left) {
  DJINN_TRY(const int flags, flags_of(*file.fd));
  DJINN_CHECK(clear_direct(*file.fd, flags));
  std::array<std::byte, kHeaderLengthBytes> length{};
  const uint64_t file_bytes = file.identity.bytes;
  if (file_bytes >= kHeaderLengthBytes) DJINN_CHECK(read_whole(*file.fd, length, 0));
  DJINN_TRY(const uint64_t header_bytes, safetensors_header_bytes(length, file_bytes));
  if (header_bytes > header_bytes_left) return headers_too_large();
  std::vector<std::byte> header(header_bytes);
  DJINN_CHECK(read_whole(*file.fd, header, 0));
  return parse_safetensors_header(header, file_bytes);
}

Status check_unchanged(const SourceFile& file, const Clock& clock) {
  DJINN_TRY(const FileIdentity now, identify(*file.fd, clock));
  if (!unchanged(file.identity, now)) return changed();
  return {};
}

Result<SourceReader> SourceReader::make(const SourceFile& file, bool direct) {
  DJINN_TRY(const int flags, flags_of(*file.fd));
  SourceReader reader(file.fd, flags, file.identity.bytes);
  DJINN_CHECK(clear_direct(*file.fd, flags));
  reader.choose_mode(direct);
  return reader;
}

void SourceReader::choose_mode(bool direct) {
  if (!direct || file_bytes_ < kDirectFileBytesMin || is_mostly_cached(*fd_, file_bytes_)) return;
  if (set_flags(*fd_, flags_ | O_DIRECT)) {
    mode_ = ReadMode::kDirect;
    return;
  }
  fall_back();
}

void SourceReader::fall_back() {
  mode_ = ReadMode::kBuffered;
  // This is only advice: a file system without readahead loses nothing by refusing it.
  static_cast<void>(::posix_fadvise(fd_->get(), 0, 0, POSIX_FADV_SEQUENTIAL));
}

Result<const std::byte*> SourceReader::read(uint64_t offset, uint64_t bytes,
                                            std::span<std::byte> buffer) {
  DJINN_ASSERT(range_fits(offset, bytes, file_bytes_));
  DJINN_ASSERT(buffer.size() >= bytes + 2 * kDirectAlignment);
  if (mode_ == ReadMode::kDirect) return read_direct(offset, bytes, buffer);
  DJINN_CHECK(read_whole(*fd_, buffer.first(bytes), offset));
  return buffer.data();
}

Result<const std::byte*> SourceReader::read_direct(uint64_t offset, uint64_t bytes,
                                                   std::span<std::byte> buffer) {
  const uint64_t lead = offset % kDirectAlignment;
  const uint64_t wanted = lead + bytes;
  const uint64_t span = (wanted + kDirectAlignment - 1) & ~(kDirectAlignment - 1);
  uint64_t done = 0;
  while (done < wanted) {
    const ssize_t count = pread_some(*fd_, buffer.subspan(done, span - done), offset - lead + done);
    if (count < 0 && errno == EINVAL) return read_refused(offset, bytes, buffer);
    if (count < 0) return unreadable(errno);
    done += static_cast<uint64_t>(count);
    // After a short read that ends at a whole block, reading goes on. One that ends inside a block
    // has met the file's end.
    if (done < wanted && (count == 0 || done % kDirectAlignment != 0)) return changed();
  }
  return buffer.data() + lead;
}

// Direct reads fail although the flag was accepted: the block size is larger, or the file system
// only pretends. So the file is read through the page cache.
Result<const std::byte*> SourceReader::read_refused(uint64_t offset, uint64_t bytes,
                                                    std::span<std::byte> buffer) {
  DJINN_CHECK(clear_direct(*fd_, flags_ | O_DIRECT));
  fall_back();
  return read(offset, bytes, buffer);
}

void SourceReader::restore_flags() noexcept {
  // A refusal is ignored: nobody is left to act on it, and a client's own description loses
  // nothing.
  if (fd_ != nullptr) static_cast<void>(set_flags(*fd_, flags_));
}

}  // namespace djinn::load
