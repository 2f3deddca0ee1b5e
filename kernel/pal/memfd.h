// SPDX-License-Identifier: Apache-2.0

// memfd: anonymous shared memory that a descriptor names; what the host's extents, rings, staging
// slabs and sealed messages are made of.
//
//   Access    what a mapping permits
//   Seals     what can never be done to a memfd again; seals are only ever added
//   Mapping   owns an address range of this process and unmaps it
//
// invariant: a non-empty Mapping is mapped for as long as it lives; its range never moves.
// Every descriptor made here is close-on-exec. GOTCHAS.md says what these calls hide.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "kernel/base/fd.h"
#include "kernel/base/result.h"

namespace djinn::pal {

enum class Access : uint8_t { kNone = 0, kRead = 1, kReadWrite = 2 };

enum class Seals : uint8_t {
  kNone = 0,
  kSize,    // cannot shrink or grow; more seals may follow. An extent while it is written.
  kShared,  // kSize and no further seals. Memory shared with a client.
  kWrite,   // kShared and never written again, not by its maker either. Weights, plans, programs.
};

class Mapping {
 public:
  Mapping() = default;
  // Takes over [data, data + bytes), which mmap gave.
  Mapping(std::byte* data, uint64_t bytes) noexcept : data_(data), bytes_(bytes) {}
  ~Mapping() { reset(); }
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    if (this != &other) {
      reset();
      data_ = std::exchange(other.data_, nullptr);
      bytes_ = std::exchange(other.bytes_, 0);
    }
    return *this;
  }

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] uint64_t size() const noexcept { return bytes_; }
  [[nodiscard]] bool valid() const noexcept { return data_ != nullptr; }
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data_, bytes_}; }
  void reset() noexcept;
  // The range, which is the caller's to unmap from now on.
  [[nodiscard]] std::span<std::byte> release() noexcept {
    return {std::exchange(data_, nullptr), std::exchange(bytes_, 0)};
  }

 private:
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// A new memfd of so many bytes, all zero and none of them committed. The name is for people who
// read /proc/PID/maps. Errors: kLimitExceeded (descriptors), kOutOfMemory, kInvalidArgument (size).
Result<Fd> make_memfd(std::string_view name, uint64_t bytes, Seals seals = Seals::kNone);

// A memfd that holds content and is sealed Seals::kWrite: a message of any size.
Result<Fd> make_sealed_memfd(std::string_view name, std::span<const std::byte> content);

// Adds seals. Errors: kBusy for kWrite while anybody has a writable mapping or a direct read in
// flight; kPermissionDenied if further seals are sealed off.
Status add_seals(const Fd& memfd, Seals seals);

// Adds Seals::kWrite to a memfd that nobody else writes. The kernel itself holds pages for moments,
// longer ones where the machine is busy, and would refuse: it is asked some times, for about a
// second at most. Errors: as add_seals().
Status seal_content(const Fd& memfd);

// Maps the first bytes of a memfd, shared, at addresses where huge pages fit (huge_pages.h);
// likewise map_sealed. A memfd sealed kWrite goes through map_sealed. The caller knows that the
// memfd is at least so large and cannot shrink: touching what lies behind its end is SIGBUS.
// Errors: kInvalidArgument for no bytes, kPermissionDenied, kOutOfMemory.
Result<Mapping> map_shared(const Fd& memfd, uint64_t bytes, Access access);

// Maps the first bytes of a memfd that is sealed kWrite, for reading; same pages for all who map
// it.
Result<Mapping> map_sealed(const Fd& memfd, uint64_t bytes);

// Allocates the pages of [offset, offset + bytes), so that no later touch finds the machine without
// memory. Idempotent; keeps what is there. Refuses only what the whole machine does not have: the
// kernel takes the rest from whomever it kills, so ask AvailableMemory first, or use HostPal, which
// does. Errors: kOutOfMemory (nothing was added), kOutOfRange.
Status commit_ahead(const Fd& memfd, uint64_t offset, uint64_t bytes);

// Gives the pages of [offset, offset + bytes) back; the range reads as zeros. Whole pages only.
Status decommit(const Fd& memfd, uint64_t offset, uint64_t bytes);

// Takes the first-touch faults of a writable mapped range now. Page-aligned. Errors: kOutOfMemory.
Status populate_write(std::span<std::byte> range);

// Judges a descriptor that came from outside (ARCHITECTURE rule 3): open for reading, a memfd and
// nothing that only resembles one, of exactly so many bytes, with at least these seals. Never
// blocks: a descriptor of a foreign file system is told apart before any call reaches that file
// system. Errors: kInvalidArgument (kind, access, seals), kOutOfRange (size).
Status verify_memfd(const Fd& fd, uint64_t bytes, Seals required);

// So many bytes of a verified memfd from offset on, copied; reads holes without allocating them.
// Errors: kOutOfRange.
Result<std::vector<std::byte>> read_memfd(const Fd& memfd, uint64_t bytes, uint64_t offset = 0);

// Whether a memfd carries at least these seals.
Result<bool> has_seals(const Fd& memfd, Seals seals);

}  // namespace djinn::pal
