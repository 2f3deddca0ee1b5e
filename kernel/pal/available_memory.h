// SPDX-License-Identifier: Apache-2.0

// AvailableMemory: what the machine can still give without killing anybody for it.
//
// fallocate and first touches on a memfd never say that memory has run out: the kernel's own tmpfs
// has no size, so they take pages until the OOM killer ends processes of its choice (GOTCHAS.md).
// So whoever commits memory asks here first. The answer is advice that ages: the grants of djinnd,
// whose total is set below the machine's, are what keeps several committers apart.
#pragma once

#include <cstdint>
#include <utility>

#include "kernel/base/fd.h"
#include "kernel/base/result.h"

namespace djinn::pal {

class AvailableMemory {
 public:
  // What stays free for everybody else: page tables, the kernel, the next fork.
  static constexpr uint64_t kHeadroomBytes = uint64_t{64} << 20;

  // Opens /proc/meminfo; a process that confines itself opens before.
  static Result<AvailableMemory> open();
  // Reads another file of that form: for tests.
  explicit AvailableMemory(Fd meminfo) noexcept : meminfo_(std::move(meminfo)) {}

  // MemAvailable. Any thread. Errors: kSystem, kMalformed.
  [[nodiscard]] Result<uint64_t> bytes() const;
  // Errors: kOutOfMemory with what was needed and what is free, and those of bytes().
  [[nodiscard]] Status check(uint64_t needed_bytes) const;

 private:
  Fd meminfo_;
};

}  // namespace djinn::pal
