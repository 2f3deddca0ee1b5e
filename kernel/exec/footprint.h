// SPDX-License-Identifier: Apache-2.0

// Footprint: how many bytes of its own a run of a graph holds at once at least, for any values of
// the graph's symbols, from the shapes that were inferred at a few. Kernels' own scratch is in it
// where that is asked for, and can be told (held.h).
//
//   Piece   memory that a node made: born with it, released when the last value on it dies. Its
//           size is a number times sizes that are affine in the symbols; one that is not, such as
//           rows times tokens, counts for nothing, and so do all where meta runs took another
//           course
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernel/exec/held.h"
#include "kernel/srg/graph.h"

namespace djinn::exec {

struct AdmittedGraph;
struct Inference;

// A piece, by its number in the order of births, is made, or released.
struct PieceEvent {
  uint32_t piece = 0;
  bool is_birth = false;
  friend bool operator==(const PieceEvent&, const PieceEvent&) = default;
};

class Footprint {
 public:
  Footprint() = default;
  // Of a graph with symbols; inference is of its meta runs.
  Footprint(const AdmittedGraph& program, const Inference& inference);

  // The most of what is known that is alive at once, each piece rounded up to kTensorAlignment.
  // symbols: one for each. Linear in the graph's size.
  [[nodiscard]] uint64_t peak_bytes(std::span<const int64_t> symbols) const {
    return peak_of(symbols, {});
  }
  // Likewise, with what products hold beside. The lane's thread.
  [[nodiscard]] uint64_t peak_bytes_held(std::span<const int64_t> symbols) const {
    return peak_of(symbols, held_);
  }

 private:
  // At so many events.
  struct Held {
    uint32_t events = 0;
    HeldBeside beside;
  };
  struct Piece {
    uint64_t bytes = 0;              // times the factors
    std::vector<srg::Expr> factors;  // none of them constant
  };
  static Piece piece_of(const Inference& inference, size_t number);
  [[nodiscard]] uint64_t peak_of(std::span<const int64_t> symbols,
                                 std::span<const Held> all_held) const;

  std::vector<Piece> pieces_;
  std::vector<PieceEvent> events_;
  std::vector<Held> held_;  // in the order of events
};

}  // namespace djinn::exec
