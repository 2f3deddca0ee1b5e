// SPDX-License-Identifier: Apache-2.0

// Capture: a model's code run once for its operators, at chosen sizes; nothing of it is executed.
// Several captures at different sizes become one program with symbols (kernel/srg/unify.h).
//
//   Capture    what this thread records now, instead of the device's log
//   Recording  a finished one: its graph, and what it reads beside inputs with roles
//   Template   recordings as a program that djinnd has admitted
//   Guard      an input at whose values the code looked: a template holds for those of which it
//              would see the same (looks.h)
//
// invariant: a capture changes nothing outside of itself, and leaves no tensor behind: code that
// writes a tensor it did not make, asks for a value, or keeps one of its results is refused.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernel/srg/graph.h"
#include "kernel/srg/pass_report.h"
#include "python/device/device.h"
#include "python/device/looks.h"

namespace djinn::device {

struct Recording {
  srg::Graph graph;
  std::vector<StoragePtr> inputs;  // by graph storage; null: weights, roles and sequence buffers
  uint64_t model = 0;
  uint64_t guards = 0;  // inputs of given(), a bit each
  Looks looks;          // at them
  // Outputs: views of storages that the graph makes, by number of graph output.
  std::vector<std::pair<size_t, Product>> outputs;
  std::vector<std::pair<uint64_t, at::ScalarType>> stores;  // those storages: bytes, dtype
  std::vector<Product> views;  // for a generation: its outputs; bytes: of their storages
};

class Capture {
 public:
  // This thread records into a new capture from now on. Throws if it does so already.
  static void begin();
  // Ends it: what leads to `outputs`, in their order, as a graph. Throws what is said above.
  // For a generation the outputs are the graph's, as they are; else each storage leaves once.
  static std::shared_ptr<const Recording> finish(const std::vector<at::Tensor>& outputs,
                                                 bool for_generation);
  // Ends it, and forgets it.
  static void abort();
  // This thread's; null: none.
  static Capture* active();

  // A tensor that a run binds by its role. known: contiguous values on the CPU that code may look
  // at, as an example; undefined: looking at it is refused.
  static at::Tensor input(srg::InputRole role, at::ScalarType type, at::IntArrayRef sizes,
                          const at::Tensor& known);
  // A tensor that a replay is given: its `number`-th, of the same dtype and sizes as this one,
  // whose values code may look at where they are known.
  static at::Tensor given(uint32_t number, const at::Tensor& tensor);
  // A tensor that a generation binds beside its group, the `number`-th of its program. is_written:
  // each run may write it, for the next to read. known: as input()'s.
  static at::Tensor beside(uint32_t number, bool is_written, at::ScalarType type,
                           at::IntArrayRef sizes, const at::Tensor& known);
  // The keys or values of one layer of the run's sequence group.
  static at::Tensor buffer(uint32_t layer, srg::SequencePart part, at::ScalarType type,
                           at::IntArrayRef sizes);

  Capture() = default;
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  // Throws what is said above. Called under the device's lock.
  void append(Entry entry);

  Log log;
  uint64_t guards = 0;
  Looks looks;
};

struct Template {
  ProgramId id;
  uint64_t session = 0;
  std::vector<ipc::InputBinding> inputs;
  std::vector<StoragePtr> held;  // whose refs the inputs name
  // Graph storage, number of the tensor that is given, or bound beside a group.
  std::vector<std::pair<uint32_t, uint32_t>> given;
  std::vector<std::pair<size_t, Product>> outputs;
  std::vector<std::pair<uint64_t, at::ScalarType>> stores;
  std::vector<Product> views;         // for a generation; empty if they differ from size to size
  std::optional<uint32_t> token_ids;  // the graph storage of that role
  Looks looks;                        // at what is given; of a template of one recording
  size_t operators = 0;
  srg::Numerics numerics = srg::Numerics::kExact;
  uint32_t fast_nodes = 0;              // of one that is not exact: what passes made
  std::vector<srg::PassReport> passes;  // and what each left
};

// The graph that holds at all sizes. recordings: of the same code, in the same session. points: the
// symbols' values at each. Throws what srg::unify() says against it.
srg::Graph unified(const std::vector<std::shared_ptr<const Recording>>& recordings,
                   const std::vector<std::vector<int64_t>>& points,
                   std::vector<srg::Symbol> symbols);

// The same graph, defined in djinnd. numerics: nothing for those that its user has said of the
// model, or else djinnd's configuration.
std::shared_ptr<const Template> make_template(
    const std::vector<std::shared_ptr<const Recording>>& recordings,
    const std::vector<std::vector<int64_t>>& points, std::vector<srg::Symbol> symbols,
    std::optional<srg::Numerics> numerics);

// A tensor in the form in which a run binds it: bytes from the storage's start, in order, of no
// weight. bound: the storages that the run has, to which the result's is added; it is none of them.
at::Tensor bindable(const at::Tensor& tensor, std::vector<const void*>& bound);

// Runs a template of one recording on tensors like those that its capture was given.
std::vector<at::Tensor> replay(const Template& program, std::vector<at::Tensor> given);

}  // namespace djinn::device
