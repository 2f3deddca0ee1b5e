// SPDX-License-Identifier: Apache-2.0

// Random operators of ours, and how far each moves a generator. Randomness has no hidden state: an
// operator carries (seed, offset), and whoever calls it adds what it used to the offset.
//
//   block    128 random bits, Philox 4x32-10 of (seed, offset); one unit of offset
//   element  of the result: half a block, and for djinn::multinomial a block of its own
//
// So equal seeds and offsets give equal elements, whatever the dtype's width, the number of
// threads and the way that the elements are shared out among calls.
#pragma once

#include <cstdint>
#include <string_view>

namespace djinn::srg {

// Units of offset that a call of this operator uses for a result of so many elements. 0 for what is
// no random operator.
[[nodiscard]] constexpr uint64_t offsets_used(std::string_view op, uint64_t elements) noexcept {
  if (op == "djinn::multinomial") return elements;
  const bool draws_halves = op == "djinn::rand" || op == "djinn::randn" || op == "djinn::randint" ||
                            op == "djinn::randperm" || op == "djinn::bernoulli";
  return draws_halves ? elements / 2 + elements % 2 : 0;
}

}  // namespace djinn::srg
