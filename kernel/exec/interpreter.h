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

// Calls a step that is complete in the frame: fills its stack, stores its results and frees what
// dies. Errors: what the step is not allowed, or claims and does not keep. Throws what the operator
// throws.
Status run_step(const AdmittedGraph& program, const Step& step,
                std::span<const c10::Storage> storages, Frame& frame, Stack& stack);

// The stack's results into the frame, as call_filled does.
Status store_results(const Step& step, Frame& frame, Stack& stack);

// Frees the values that nothing after the step uses.
void drop_dead(const Step& step, Frame& frame);

// A storage over bytes that somebody else owns; it cannot be resized, and its allocator is null,
// which is how a run tells it from its own.
[[nodiscard]] c10::Storage borrowed_storage(void* data, uint64_t bytes, c10::Device device);

// The caller has checked that the storage has the bytes.
[[nodiscard]] at::Tensor view_of(const c10::Storage& storage, at::ScalarType type,
                                 c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset);

// A bound value as a tensor on its storage, checked against the storage's bytes. Errors:
// kOutOfRange, kInvalidArgument (misaligned, no dtype).
Result<at::Tensor> bind_value(const srg::Value& value, const c10::Storage& storage,
                              std::span<const int64_t> symbols);

// value's dtype and sizes against a tensor that a node made, or against an undefined one. Error:
// kShapeMismatch.
Status check_claim(const srg::Value& value, const at::Tensor& tensor,
                   std::span<const int64_t> symbols);

// What a run says whose pulse was false.
[[nodiscard]] Error given_up();

// Runs all steps. storages: one for each graph storage. Errors name the node. Throws nothing.
Status run_steps(const AdmittedGraph& program, std::span<const c10::Storage> storages,
                 Frame& frame);

// A run that goes on together with others of its program.
struct Companion {
  std::span<const c10::Storage> storages;  // as of run_steps()
  Frame frame;
  Sink* sink = nullptr;   // of its allocations
  Heap* heap = nullptr;   // of what its kernels take for themselves; no other run's
  bool goes_on = true;    // false: it has failed, or was given up, at some step
  bool has_left = false;  // likewise: it computes what needs all threads, and would again
};

// Runs all steps of all runs, each in its own frame. Products that our kernels compute are computed
// for all runs at once (joint_products.h). Between two of them each run goes on by itself, with one
// thread, as far as operators keep their bits so (one_thread.h); of the others each is called for
// one run after the other. A run's allocations come in the order that they have when it is alone.
// Throws nothing. Pulses come from any of the lane's threads, one at a time of a run.
void run_steps_together(const AdmittedGraph& program, std::span<Companion> runs);

}  // namespace djinn::exec
