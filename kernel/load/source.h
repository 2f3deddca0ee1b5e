// SPDX-License-Identifier: Apache-2.0

// One safetensors file as bytes: opened by somebody else, read here with pread only, never mapped.
//
//   SourceFile   a descriptor and what identify() said of it before the load
//   ReadMode     how a file's bytes come: kCached from the page cache; kDirect from the disk and
//                past it (O_DIRECT); kBuffered from the disk through it, as O_DIRECT was refused
//   SourceReader reads units of one file in the mode that suits it, and puts the descriptor's flags
//                back when it goes
//
// O_DIRECT lies on the open file description: setting it changes the sender's descriptor too. So
// the client's library opens a description of its own for each load.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "kernel/base/fd.h"
#include "kernel/base/result.h"
#include "kernel/load/identity.h"
#include "kernel/load/safetensors.h"

namespace djinn::load {

// What direct reads are aligned to, in the file and in memory: the largest logical block in use.
constexpr uint64_t kDirectAlignment = 4096;

struct SourceFile {
  const Fd* fd = nullptr;
  FileIdentity identity;
};

// A limit on all headers of a model together, which are in memory at once: more than so many
// tensors as a model may have (limits::kModelTensors) fill with the longest names.
constexpr uint64_t kHeadersBytesMax = 2 * kHeaderBytesMax;

// Reads and parses the header. Clears O_DIRECT, which a client may have left on the descriptor.
// header_bytes_left: of kHeadersBytesMax; kLimitExceeded if the header has more.
Result<SafetensorsIndex> read_index(const SourceFile& file, uint64_t header_bytes_left);

// kFileChanged if the file is no longer what it was when it was identified.
Status check_unchanged(const SourceFile& file, const Clock& clock);

enum class ReadMode : uint8_t { kCached, kDirect, kBuffered };

class SourceReader {
 public:
  // Asks the page cache and the file system what suits the file. Where direct is false the file is
  // never read directly.
  static Result<SourceReader> make(const SourceFile& file, bool direct = true);
  ~SourceReader() { restore_flags(); }
  SourceReader(SourceReader&& other) noexcept
      : fd_(std::exchange(other.fd_, nullptr)),
        flags_(other.flags_),
        mode_(other.mode_.load()),
        file_bytes_(other.file_bytes_) {}
  SourceReader& operator=(SourceReader&&) = delete;

  [[nodiscard]] ReadMode mode() const noexcept { return mode_; }

  // Reads the range [offset, offset + bytes) of the file, which lies inside it, to somewhere in
  // buffer and returns where. buffer is aligned to kDirectAlignment and holds bytes + 2 *
  // kDirectAlignment. Errors: kFileChanged (the file ended early), kIo. One thread at a time.
  Result<const std::byte*> read(uint64_t offset, uint64_t bytes, std::span<std::byte> buffer);

 private:
  SourceReader(const Fd* fd, int flags, uint64_t file_bytes)
      : fd_(fd), flags_(flags), file_bytes_(file_bytes) {}
  void choose_mode(bool direct);
  void fall_back();
  Result<const std::byte*> read_refused(uint64_t offset, uint64_t bytes,
                                        std::span<std::byte> buffer);
  Result<const std::byte*> read_direct(uint64_t offset, uint64_t bytes,
                                       std::span<std::byte> buffer);
  void restore_flags() noexcept;

  const Fd* fd_;
  int flags_;                                       // the descriptor's own
  std::atomic<ReadMode> mode_ = ReadMode::kCached;  // changes once, when reads are refused
  uint64_t file_bytes_;
};

}  // namespace djinn::load
