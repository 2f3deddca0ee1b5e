// SPDX-License-Identifier: Apache-2.0

// Calling steps, and giving graph values their memory.
#pragma once

#include "kernel/base/result.h"
#include "kernel/exec/allocator_hook.h"
#include "kernel/exec/program.h"

namespace djinn::exec {

using Stack = std::vector<c10::IValue>;

// Calls the operator of a step whose stack is filled and stores its results in the frame; those
// that an output_mask leaves out are undefined. Throws what the operator throws. Errors: kInternal
// for results that the schema does not promise.
Status call_filled(const Step& step, Frame& frame, Stack& stack);

// The stack's results into the frame, as call_filled does.
Status store_results(const Step& step, Frame& frame, Stack& stack);

// Frees the values that nothing after the step uses.
void drop_dead(const Step& step, Frame& frame);

// A storage over bytes that somebody else owns; it cannot be resized, and its allocator is null,
// which is how a run tells it from its own.
[[nodiscard]] c10::Storage borrowed_storage(void* data, uint64_t bytes, c10::Device device);

// A bound value as a tensor on its storage, checked against the storage's bytes. Errors:
// kOutOfRange, kInvalidArgument (misaligned, no dtype).
Result<at::Tensor> bind_value(const srg::Value& value, const c10::Storage& storage,
                              std::span<const int64_t> symbols);

// value's dtype and sizes against a tensor that a node made, or against an undefined one. Error:
// kShapeMismatch.
Status check_claim(const srg::Value& value, const at::Tensor& tensor,
                   std::span<const int64_t> symbols);

// Runs all steps. storages: one for each graph storage. Errors name the node. Throws nothing.
Status run_steps(const AdmittedGraph& program, std::span<const c10::Storage> storages,
                 Frame& frame);

// A run that goes on together with others of its program.
struct Companion {
  std::span<const c10::Storage> storages;  // as of run_steps()
  Frame frame;
  Sink* sink = nullptr;  // of its allocations
  bool goes_on = true;   // false: it has failed, or was given up, at some step
};

// Runs all steps of all runs, each in its own frame, step by step as far as products are concerned:
// those that our kernels compute are computed for all runs at once (joint_products.h). A run's
// allocations come in the order that they have when it is alone. Throws nothing.
void run_steps_together(const AdmittedGraph& program, std::span<Companion> runs);

}  // namespace djinn::exec
