// SPDX-License-Identifier: Apache-2.0

// MirroredMemory: one of the two session memories of a remote session, with what is needed to keep
// its staging slab like the other one's. The slab is not mapped but read and written by system
// calls, so that a machine without memory is an error here, and never a SIGBUS.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ipc/binding.h"
#include "ipc/ring.h"
#include "kernel/pal/memfd.h"

namespace djinn::rpc {

class MirroredMemory {
 public:
  // A new one. Errors: those of pal::make_memfd().
  static Result<MirroredMemory> make(uint64_t staging_bytes);
  // One that another process has made. Errors: those of pal::verify_memfd().
  static Result<MirroredMemory> adopt(Fd memfd, uint64_t staging_bytes);

  [[nodiscard]] const Fd& fd() const { return fd_; }
  // Its staging is empty.
  [[nodiscard]] ipc::SessionView view() const { return view_; }
  [[nodiscard]] uint64_t staging_bytes() const { return staging_bytes_; }

  // Precondition of both: the range is of the slab (has()). Errors: kOutOfMemory, kIo.
  Result<std::vector<std::byte>> read(const ipc::StagingRange& range) const;
  Status write(uint64_t offset, std::span<const std::byte> bytes);
  [[nodiscard]] bool has(const ipc::StagingRange& range) const;
  // What of the slab a submission is about, its block among what it reads; nothing where that lies
  // elsewhere, and the block alone where it cannot be read. Errors: those of read().
  Result<ipc::StagingUse> use_of(const ipc::Submission& submission) const;

 private:
  MirroredMemory(Fd fd, pal::Mapping head, ipc::SessionView view, uint64_t staging_bytes)
      : fd_(std::move(fd)), head_(std::move(head)), view_(view), staging_bytes_(staging_bytes) {}

  Fd fd_;
  pal::Mapping head_;
  ipc::SessionView view_;
  uint64_t staging_bytes_;
};

// The same bytes as ranges that are apart and not longer than `most`, in order; those that do not
// lie in a slab of so many bytes are left out.
std::vector<ipc::StagingRange> pieces_of(std::vector<ipc::StagingRange> ranges,
                                         uint64_t staging_bytes, uint64_t most);
uint64_t bytes_of(std::span<const ipc::StagingRange> ranges);

}  // namespace djinn::rpc
