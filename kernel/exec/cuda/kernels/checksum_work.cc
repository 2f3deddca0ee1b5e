// SPDX-License-Identifier: Apache-2.0
#include "kernel/exec/cuda/kernels/checksum_work.h"

#include <algorithm>
#include <bit>

namespace djinn::cuda {
namespace {

constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;
constexpr uint64_t kBlocksAtOnce = 8;  // of a multiprocessor, at 32 registers a thread
constexpr uint64_t kWordBytes = 4;

uint64_t modulo_prime(unsigned __int128 value) {
  return static_cast<uint64_t>(value % kPrime);
}

uint64_t product(uint64_t a, uint64_t b) {
  return modulo_prime(static_cast<unsigned __int128>(a) * b);
}

uint64_t power(uint64_t base, uint64_t exponent) {
  uint64_t result = 1;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 != 0) result = product(result, base);
    base = product(base, base);
  }
  return result;
}

ChecksumPowers powers_of(uint64_t key, uint64_t blocks) {
  const uint64_t base = modulo_prime(key);
  ChecksumPowers powers;
  for (uint64_t i = 0; i < std::size(powers.of_word); ++i) powers.of_word[i] = power(base, i);
  powers.of_vector = power(base, kVectorBytes / kWordBytes);
  powers.of_stride = power(powers.of_vector, blocks * kChecksumThreads);
  return powers;
}

}  // namespace

uint32_t checksum_parts(uint64_t bytes, uint32_t multiprocessors) {
  const uint64_t vectors = std::max<uint64_t>(bytes / kVectorBytes, 1);
  const uint64_t wanted = (vectors + kChecksumThreads - 1) / kChecksumThreads;
  return static_cast<uint32_t>(std::min(wanted, std::max(multiprocessors, 1u) * kBlocksAtOnce));
}

Result<ChecksumWork> checksum_work(const void* memory, uint64_t bytes, const ChecksumKey& key,
                                   uint64_t* parts, uint32_t multiprocessors) {
  const bool is_aligned = std::bit_cast<uintptr_t>(memory) % kVectorBytes == 0;
  if (memory == nullptr || !is_aligned || bytes == 0 || bytes % kVectorBytes != 0) {
    return Error{ErrorCode::kInvalidArgument,
                 "A checksum is of memory that begins and ends at multiples of 16 bytes."};
  }
  if (parts == nullptr)
    return Error{ErrorCode::kInvalidArgument, "The checksum's parts have no place."};
  ChecksumWork work;
  const uint32_t blocks = checksum_parts(bytes, multiprocessors);
  work.call.memory = memory;
  work.call.parts = parts;
  work.call.vectors = static_cast<int64_t>(bytes / kVectorBytes);
  for (size_t i = 0; i < kChecksumKeys; ++i) work.call.powers[i] = powers_of(key[i], blocks);
  work.launch.kernel = "djinn_checksum";
  work.launch.grid_x = blocks;
  work.launch.threads = kChecksumThreads;
  work.launch.shared_bytes = kChecksumSharedBytes;
  return work;
}

Checksum checksum_of(std::span<const uint64_t> parts, uint64_t bytes, const ChecksumKey& key) {
  Checksum sum{};
  for (size_t i = 0; i < kChecksumKeys; ++i) {
    const uint64_t base = modulo_prime(key[i]);
    unsigned __int128 total = power(base, bytes / kWordBytes);  // the coefficient 1 before all
    for (size_t part = i; part < parts.size(); part += kChecksumKeys) total += parts[part];
    sum[i] = modulo_prime(total);
  }
  return sum;
}

}  // namespace djinn::cuda
