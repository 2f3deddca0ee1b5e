// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/streaming_copy.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernel/exec/fast_rows.h"

namespace djinn::exec {
namespace {

// Uses stores that do not read what they overwrite into the caches first, where the processor has
// them.
void stream(const std::byte* from, std::byte* to, size_t bytes) {
  size_t done = 0;
#ifdef __SSE2__
  const bool is_aligned = reinterpret_cast<uintptr_t>(to) % sizeof(__m128i) == 0;
  for (; is_aligned && bytes - done >= sizeof(__m128i); done += sizeof(__m128i)) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + done),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + done)));
  }
  _mm_sfence();
#endif
  std::memcpy(to + done, from + done, bytes - done);
}

// Tells how many threads copy this many bytes: the second is asleep for as long as a grain takes.
uint64_t shares_of(uint64_t bytes, uint64_t threads) {
  constexpr uint64_t kGrainBytes = 256 << 10;
  return std::clamp<uint64_t>((bytes + kGrainBytes - 1) / kGrainBytes, 1, threads);
}

void copy_share(const DeviceCopy& copy, uint64_t share, uint64_t threads) {
  constexpr uint64_t kLineBytes = 64;  // whole ones, so that all shares can be streamed
  const uint64_t shares = shares_of(copy.bytes, threads);
  if (share >= shares) return;
  const uint64_t lines = (copy.bytes + kLineBytes - 1) / kLineBytes;
  const uint64_t size = (lines + shares - 1) / shares * kLineBytes;
  const uint64_t begin = std::min(share * size, copy.bytes);
  const uint64_t end = std::min(begin + size, copy.bytes);
  stream(copy.from.on_host() + begin, copy.to.on_host() + begin, end - begin);
}

}  // namespace

void copy_past_caches(std::span<const DeviceCopy> copies) {
  const auto threads = static_cast<uint64_t>(at::get_num_threads());
  uint64_t shares = 1;
  for (const DeviceCopy& copy : copies) shares = std::max(shares, shares_of(copy.bytes, threads));
  for_each_part(static_cast<int64_t>(shares), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t share = begin; share < end; ++share) {
      for (const DeviceCopy& copy : copies) copy_share(copy, static_cast<uint64_t>(share), threads);
    }
  });
}

}  // namespace djinn::exec
