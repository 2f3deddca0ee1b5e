// SPDX-License-Identifier: Apache-2.0

// LoadPlan: what a model's bytes are, said as data, so that the loader needs neither LibTorch nor
// anybody's code. Like a graph it is a program that a client submits, and it is trusted as little.
//
//   Source       one tensor of one safetensors file, by name, or a slice of it
//   Piece        a source, cast and transposed
//   Destination  one tensor of the model: pieces concatenated along one dimension
//   Alias        a second name of a destination (tied weights)
//   WeightForm   how a destination's bytes say its elements
//
// A plan without destinations means: every tensor of the files, under its own name, as it is, but
// for the form that the plan gives matrices: tensors of two dimensions, of a floating dtype of 16
// or 32 bits, whose names end in ".weight", but not in ".gate.weight" as routers' do, which choose
// experts. Two plans whose bytes differ make two models of the same files (ARCHITECTURE section 4,
// Identity).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernel/base/dtype.h"

namespace djinn::srg {

// Elements [start, start + length) of one dimension.
struct Slice {
  uint32_t dimension = 0;
  uint64_t start = 0;
  uint64_t length = 0;
  friend bool operator==(const Slice&, const Slice&) = default;
};

struct Piece {
  uint32_t file = 0;          // index into the files of the open request
  std::string tensor;         // its name in that file
  std::vector<Slice> slices;  // applied first; each dimension at most once
  bool transpose = false;     // then: swap the last two dimensions
  friend bool operator==(const Piece&, const Piece&) = default;
};

enum class WeightForm : uint8_t {
  kPlain = 0,  // each by itself
  kInt8 = 1,   // of two dimensions: 32 of a row are int8 and a scale (kernel/base/int8_rows.h)
};

struct Destination {
  std::string name;
  DType dtype = DType::kInvalid;  // pieces are cast to it: round to nearest even, PyTorch's bits
  std::vector<uint64_t> sizes;    // what the pieces must give
  uint32_t concat_dimension = 0;  // ignored for one piece
  std::vector<Piece> pieces;
  WeightForm form = WeightForm::kPlain;  // made of what the cast gives
  friend bool operator==(const Destination&, const Destination&) = default;
};

struct Alias {
  std::string name;
  std::string destination;
  friend bool operator==(const Alias&, const Alias&) = default;
};

struct LoadPlan {
  std::vector<Destination> destinations;
  std::vector<Alias> aliases;
  WeightForm matrices = WeightForm::kPlain;  // of files; kPlain beside destinations
  friend bool operator==(const LoadPlan&, const LoadPlan&) = default;
};

// One tensor of a loaded model: where its bytes lie. A loader reports it and a worker binds it.
struct TensorEntry {
  std::string name;
  DType dtype = DType::kInvalid;
  std::vector<uint64_t> sizes;
  uint32_t extent = 0;  // index into the model's extents
  uint64_t offset = 0;  // bytes, a multiple of 64
  uint64_t bytes = 0;   // in its form
  WeightForm form = WeightForm::kPlain;
  friend bool operator==(const TensorEntry&, const TensorEntry&) = default;
};

// invariant: every entry's range lies inside its extent; only aliases overlap.
struct ModelManifest {
  std::vector<uint64_t> extent_bytes;
  std::vector<TensorEntry> tensors;  // sorted by name
  friend bool operator==(const ModelManifest&, const ModelManifest&) = default;
};

}  // namespace djinn::srg
