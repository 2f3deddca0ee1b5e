// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/streaming_copy.h"

#include <ATen/Parallel.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <cstdint>
#include <cstring>

#include "kernel/base/assert.h"

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

}  // namespace

void copy_past_caches(std::span<const std::byte> from, std::span<std::byte> to) {
  constexpr int64_t kGrain = 256 << 10;  // a second thread is asleep for as long as that takes
  DJINN_ASSERT(from.size() <= to.size());
  at::parallel_for(0, static_cast<int64_t>(from.size()), kGrain, [&](int64_t begin, int64_t end) {
    const auto bytes = static_cast<size_t>(end - begin);
    stream(from.data() + begin, to.data() + begin, bytes);
  });
}

}  // namespace djinn::exec
