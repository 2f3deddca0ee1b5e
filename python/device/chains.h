// SPDX-License-Identifier: Apache-2.0

// Chains: the order in which entries of a log are handed over. An optimizer calls one operator for
// all parameters, then the next one for all. What is computed for one parameter does not need what
// is computed for another, so each may have its operators one after the other: a run then writes
// few of them, and little has to be saved of it, or kept between its operators, at a time.
//
//   chain   an entry that no other entry needs, behind all those that it needs
//
// invariant: an entry comes behind the last writer of all that it reads, and behind all that read
// what it writes, so the values are those of the order in which the operators were called.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "python/device/log.h"

namespace djinn::device {

// What a run may write in place: all of it is saved first.
inline constexpr uint64_t kWrittenBytesMax = uint64_t{32} << 20;
// Behind so much no other chain begins in a run: what one computes should stay in the caches.
inline constexpr uint64_t kWrittenBytesEnough = uint64_t{4} << 20;

// Bytes from the first to the last element of a view.
[[nodiscard]] uint64_t hull_bytes(const Operand& view);

// Puts numbers of entries of the log into another order where entries that are no part of a
// gradient's computation, and do not fail by what their arguments hold, write more than a run may,
// of what tensors hold. Chains come in the order
// of their last entries. Gives where chains begin, as many as there are numbers.
[[nodiscard]] std::vector<bool> order_in_chains(const Log& log, std::vector<size_t>& numbers);

}  // namespace djinn::device
