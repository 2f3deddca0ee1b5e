// SPDX-License-Identifier: Apache-2.0

// ChecksumWork: a keyed checksum (kernel/base/keyed_checksum.h) of memory of the device: what is
// launched there, and what becomes of its parts here.
#pragma once

#include <cstdint>
#include <span>

#include "kernel/base/keyed_checksum.h"
#include "kernel/base/result.h"
#include "kernel/exec/cuda/kernels/checksum.h"
#include "kernel/exec/cuda/kernels/launches.h"

namespace djinn::cuda {

struct ChecksumWork {
  ChecksumParts call;
  Launch launch;  // its grid has as many blocks as there are parts
};

// How many parts that takes, each of kChecksumKeys numbers.
[[nodiscard]] uint32_t checksum_parts(uint64_t bytes, uint32_t multiprocessors);

// Of `bytes` at `memory`, with place for checksum_parts() at `parts`, all of the device. Errors:
// kInvalidArgument unless both are multiples of 16 bytes, and there are some.
[[nodiscard]] Result<ChecksumWork> checksum_work(const void* memory, uint64_t bytes,
                                                 const ChecksumKey& key, uint64_t* parts,
                                                 uint32_t multiprocessors);

// What KeyedChecksum says of the same bytes, from the parts that the kernel wrote.
[[nodiscard]] Checksum checksum_of(std::span<const uint64_t> parts, uint64_t bytes,
                                   const ChecksumKey& key);

}  // namespace djinn::cuda
