// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_cuda/kernels.h"

#include <unistd.h>

#include <algorithm>
#include <array>

namespace djinn::fake_cuda {
namespace {

constexpr uint64_t kWordsAtOnce = uint64_t{1} << 14;

// The host may look at memory that a kernel writes, as on a GPU, so no race is to be reported.
[[gnu::no_sanitize("thread")]] void write_words(uint32_t* to, uint64_t words, uint32_t value) {
  for (uint64_t i = 0; i < words; ++i) to[i] = value;
}

// Writes `value` to `words` words; gives false if one of them must not be written.
bool fill(Memory& memory, DevicePtr address, uint64_t words, uint32_t value) {
  for (uint64_t first = 0; first < words; first += kWordsAtOnce) {
    const uint64_t count = std::min(words - first, kWordsAtOnce);
    const DevicePtr at = address + first * sizeof value;
    const bool done = memory.with(0, at, 0, count * sizeof value, [&] {
      write_words(reinterpret_cast<uint32_t*>(at), count, value);
    });
    if (!done) return false;
  }
  return true;
}

// scribble(address, words, rounds) writes the round's number, from 1 on, to every word, round after
// round; it never ends if rounds is 0.
Code scribble(Memory& memory, std::span<const uint64_t> arguments) {
  const uint64_t rounds = arguments[2];
  for (uint64_t round = 1; rounds == 0 || round <= rounds; ++round) {
    if (!fill(memory, arguments[0], arguments[1], static_cast<uint32_t>(round)))
      return Code::kIllegalAddress;
  }
  return Code::kSuccess;
}

// endless() never ends.
Code endless(Memory&, std::span<const uint64_t>) {
  for (;;) ::pause();
}

constexpr auto kKernels = std::to_array<Kernel>({
    {"scribble", 3, scribble},
    {"endless", 0, endless},
});

}  // namespace

const Kernel* find_kernel(std::string_view name) {
  const auto* const found = std::ranges::find(kKernels, name, &Kernel::name);
  return found == kKernels.end() ? nullptr : found;
}

}  // namespace djinn::fake_cuda
