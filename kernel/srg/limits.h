// SPDX-License-Identifier: Apache-2.0

// What a graph may be at most, each with its reason (ARCHITECTURE rule 4). verify.h enforces all of
// them, text.h those that bound its own work. Where ipc/limits.h has the same quantity the numbers
// agree.
#pragma once

#include <cstdint>

namespace djinn::srg::limits {

inline constexpr uint32_t kNodes = 64 * 1024;      // 160 layers of 400 operators
inline constexpr uint32_t kValues = 256 * 1024;    // four a node: its outputs and its weights
inline constexpr uint32_t kStorages = 128 * 1024;  // every expert of every layer as its own weight
inline constexpr uint32_t kSymbols = 64;           // a run binds each by value (ipc: kSymbols)
inline constexpr uint32_t kRank = 8;               // as bindings (ipc: kRank); models use up to 6
inline constexpr uint32_t kTerms = 8;              // of one expression; sums of shapes have 2 or 3
inline constexpr uint32_t kArguments = 64;      // of one node; ATen's longest schema has about 30
inline constexpr uint32_t kListItems = 4096;    // of one argument: a cat or index of many parts
inline constexpr uint32_t kNodeOutputs = 1024;  // unbind and split of one tensor
inline constexpr uint32_t kOutputs = 1024;      // a binding each; a table of 64 KiB holds them
inline constexpr uint32_t kNameBytes = 256;     // names cross in messages (ipc: kNameBytes)
inline constexpr uint32_t kTextArgumentBytes = 1024;  // an einsum equation at most
inline constexpr uint32_t kLayers = 512;  // deeper than any published model (ipc: kLayers)

// All arguments, list items, terms and outputs of a graph together, 64 a node: bounds memory and
// time of every pass.
inline constexpr uint64_t kItems = 4u << 20;
// All names together: half of an encoded graph (ipc: kGraphBytes).
inline constexpr uint64_t kNamesBytes = 8u << 20;
// A source text: a graph of ipc's kGraphBytes prints to about twice its bytes.
inline constexpr uint64_t kSourceBytes = 32u << 20;

// A symbol's upper bound: counts of tokens and rows stay far below, int64 is far above.
inline constexpr int64_t kSymbolMax = int64_t{1} << 40;
// The farthest byte of a view: no device addresses more.
inline constexpr uint64_t kTensorBytes = uint64_t{1} << 48;

}  // namespace djinn::srg::limits
