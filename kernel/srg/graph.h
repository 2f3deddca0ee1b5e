// SPDX-License-Identifier: Apache-2.0

// SRG, the semantically rich graph: the portable program that a client submits.
//
//   Symbol    a named integer with a range, bound at each run: batch, tokens, past, ...
//   Expr      an affine integer expression in the symbols: every size, stride, offset and integer
//             argument is one
//   Storage   a run of bytes without dtype: a weight, an input, a buffer of a sequence group; the
//             bytes a node makes are local storages, which have no entry here
//   Value     a tensor: a view of a storage. Values of nodes get dtype and sizes by inference at
//             admission; what the graph says of them is a claim that admission checks
//   Node      one operator call; ATen's composite level, not decomposed
//
// invariant: values are numbered in the order of their definition, and a node uses only values with
// smaller numbers than those it defines; a value is defined once.
// Graphs are data: no field here is trusted before verify.h has passed it.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "kernel/base/dtype.h"

namespace djinn::srg {

using ValueId = uint32_t;
using StorageIndex = uint32_t;
using SymbolIndex = uint32_t;

// Names a local storage: one that a node makes.
inline constexpr StorageIndex kLocalStorage = UINT32_MAX;

struct Term {
  SymbolIndex symbol = 0;
  int64_t coefficient = 0;
  friend auto operator<=>(const Term&, const Term&) = default;
};

// constant + sum of coefficient * symbol. invariant (canonical form): terms sorted by symbol, each
// symbol once, no zero coefficient.
struct Expr {
  int64_t constant = 0;
  std::vector<Term> terms;

  Expr() = default;
  Expr(int64_t value) : constant(value) {}  // NOLINT: a number is an expression
  [[nodiscard]] bool is_constant() const noexcept { return terms.empty(); }
  friend bool operator==(const Expr&, const Expr&) = default;
};

// What a symbol stands for, so that the generation loop and the scheduler can bind and batch it.
enum class SymbolRole : uint8_t {
  kPlain = 0,
  kBatch = 1,     // rows of the call
  kTokens = 2,    // new tokens in this call
  kPast = 3,      // tokens already in the sequence group
  kCapacity = 4,  // token slots of the sequence group's buffers; bound by the daemon
};

struct Symbol {
  std::string name;
  int64_t min = 0;  // inclusive
  int64_t max = 0;  // inclusive
  SymbolRole role = SymbolRole::kPlain;
  friend bool operator==(const Symbol&, const Symbol&) = default;
};

enum class StorageKind : uint8_t {
  kWeight = 0,    // a named tensor of the program's model; read-only
  kInput = 1,     // bound at each run to staging bytes or to a ref; written only when it is a ref
  kSequence = 2,  // K or V of one layer of the run's sequence group
};

// Who fills an input. Roles other than kUser let the generation loop bind it without the client.
enum class InputRole : uint8_t {
  kUser = 0,
  kTokenIds = 1,   // int64 [batch, tokens]
  kPositions = 2,  // int64 [batch, tokens]: position of each token in its row, padding not counted
  kAttentionMask = 3,  // bool [batch, 1, tokens, past + tokens]: true where attention may look
};

enum class SequencePart : uint8_t { kKey = 0, kValue = 1 };

struct Storage {
  StorageKind kind = StorageKind::kInput;
  std::string name;                        // kWeight: the tensor's name; kInput: the input's name
  InputRole role = InputRole::kUser;       // kInput
  uint32_t layer = 0;                      // kSequence
  SequencePart part = SequencePart::kKey;  // kSequence
  // kWeight: the first view is the whole tensor, and is refused where the model's has another dtype
  // or other sizes. Without it the tensor's bytes may be seen in any way.
  bool is_declared = false;
  friend bool operator==(const Storage&, const Storage&) = default;
};

struct Value {
  std::string name;                      // for people; unique where not empty
  StorageIndex storage = kLocalStorage;  // kLocalStorage: defined by a node
  DType dtype = DType::kInvalid;         // kInvalid: not claimed (node outputs only)
  std::vector<Expr> sizes;
  std::vector<Expr> strides;  // in elements; empty: contiguous, or, of a node's output, not claimed
  Expr offset;                // in elements, from the storage's first byte
  // Node outputs: sizes is a claim to be checked. With strides it claims a layout: these strides
  // from offset 0 on a storage of its own, into which the executor copies where a kernel chose
  // otherwise. Views and in-place results carry none.
  bool claims_sizes = false;
  uint8_t criticality = 0;  // 0 (background) to 255 (a user waits for this edge)
  friend bool operator==(const Value&, const Value&) = default;
};

struct None {
  friend bool operator==(const None&, const None&) = default;
};
struct ValueRef {
  ValueId id = 0;
  friend bool operator==(const ValueRef&, const ValueRef&) = default;
};
// Tensor[] or Tensor?[]: an empty entry is None.
struct ValueList {
  std::vector<std::optional<ValueId>> ids;
  friend bool operator==(const ValueList&, const ValueList&) = default;
};
struct ExprList {
  std::vector<Expr> items;
  friend bool operator==(const ExprList&, const ExprList&) = default;
};
struct DoubleList {
  std::vector<double> items;
  friend bool operator==(const DoubleList&, const DoubleList&) = default;
};
struct BoolList {
  std::vector<bool> items;
  friend bool operator==(const BoolList&, const BoolList&) = default;
};

// One argument. Alternatives are distinct on purpose: 1, 1.0 and true promote differently in ATen.
using ArgumentValue = std::variant<None, ValueRef, ValueList, Expr, ExprList, double, DoubleList,
                                   bool, BoolList, std::string, DType>;

struct Argument {
  std::string name;  // empty: positional. Positional arguments come first.
  ArgumentValue value;
  friend bool operator==(const Argument&, const Argument&) = default;
};

enum class Phase : uint8_t {
  kUnknown = 0,
  kForward,  // in one pass, and nothing is kept
  kPrefill,
  kDecode,
  kTraining,
  kVisionEncoding,    // of an image, before text has met it
  kVisionDecoding,    // into an image
  kMultimodalFusion,  // where data of several kinds meet
};
enum class Residency : uint8_t { kUnknown = 0, kWeight, kActivation, kState, kGradient, kOutput };
enum class Modality : uint8_t { kUnknown = 0, kText, kVision, kAudio, kTabular, kFusion };

// What a node means. What the client leaves at its default, kernel/sched derives.
struct Annotation {
  std::string module_path;  // "encoder.layer.3.attention.self"
  std::string role;         // "attention", "kv_append", "mlp", "norm", "embedding", ...
  Phase phase = Phase::kUnknown;
  Residency residency = Residency::kUnknown;
  Modality modality = Modality::kUnknown;
  uint64_t flops = 0;  // at the symbols' upper bounds; 0: not known
  uint64_t bytes = 0;  // read and written, likewise
  uint32_t colocation_group = 0;
  int32_t priority = 0;
  friend bool operator==(const Annotation&, const Annotation&) = default;
};

struct Node {
  std::string
      op;  // the schema's qualified name: "aten::linear", "aten::add.Tensor", "djinn::kv_append"
  std::vector<Argument> arguments;
  std::vector<ValueId> outputs;
  Annotation annotation;
  friend bool operator==(const Node&, const Node&) = default;
};

// How a program computes. A graph that runs once is exact, whatever it says.
enum class Numerics : uint8_t {
  kExact = 0,  // PyTorch's own kernels, and its bits
  kFast = 1,   // our own where they fit: those give a row the same bits whatever rows are beside it
  kFastOnly = 2,  // likewise, and refused where they fit nowhere
};

struct Graph {
  std::string name;
  std::vector<Symbol> symbols;
  std::vector<Storage> storages;
  std::vector<Value> values;
  std::vector<Node> nodes;
  std::vector<ValueId> outputs;  // whose storages may leave the run; all others die
  Numerics numerics = Numerics::kExact;
  friend bool operator==(const Graph&, const Graph&) = default;
};

}  // namespace djinn::srg
