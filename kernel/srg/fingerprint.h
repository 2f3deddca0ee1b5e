// SPDX-License-Identifier: Apache-2.0

// A 128-bit hash of a graph's content, for a client's cache of programs.
//
// Equal graphs have equal fingerprints; two that differ in anything, symbols, names and annotations
// included, have the same one by accident only. Doubles count by their bits, so that 0.0 and -0.0
// are two graphs. They are not for graphs from an adversary (XXH3 resists none; the daemon knows
// programs by SHA-256), and not for the wire or for files: another version of this code may hash
// differently.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "kernel/srg/graph.h"

namespace djinn::srg {

struct Fingerprint {
  uint64_t high = 0;
  uint64_t low = 0;
  friend auto operator<=>(const Fingerprint&, const Fingerprint&) = default;
};

// Any graph, verified or not; linear in its size.
[[nodiscard]] Fingerprint fingerprint_of(const Graph& graph);

}  // namespace djinn::srg

template <>
struct std::hash<djinn::srg::Fingerprint> {
  size_t operator()(const djinn::srg::Fingerprint& print) const noexcept { return print.low; }
};
