// SPDX-License-Identifier: Apache-2.0

// Footprint: how many bytes of its own a run of a graph holds at once at least, for any values of
// the graph's symbols, from the shapes that were inferred at a few. Kernels' own scratch is not in
// it.
//
//   Piece   memory that a node made: born with it, released when the last value on it dies. Its
//           size is a number times sizes that are affine in the symbols; one that is not, such as
//           rows times tokens, counts for nothing, and so do all where meta runs took another
//           course
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernel/srg/graph.h"

namespace djinn::exec {

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
  explicit Footprint(const Inference& inference);

  // The most of what is known that is alive at once, each piece rounded up to kTensorAlignment.
  // symbols: one for each. Linear in the graph's size.
  [[nodiscard]] uint64_t peak_bytes(std::span<const int64_t> symbols) const;

 private:
  struct Piece {
    uint64_t bytes = 0;              // times the factors
    std::vector<srg::Expr> factors;  // none of them constant
  };
  static Piece piece_of(const Inference& inference, size_t number);

  std::vector<Piece> pieces_;
  std::vector<PieceEvent> events_;
};

}  // namespace djinn::exec
