// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/interpreter.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "kernel/base/checked.h"
#include "kernel/exec/arguments.h"
#include "kernel/exec/convert.h"
#include "kernel/exec/expression.h"
#include "kernel/exec/fast_rows.h"
#include "kernel/exec/guard_dispatch.h"
#include "kernel/exec/inner_pulse.h"
#include "kernel/exec/joint_products.h"
#include "kernel/exec/layout.h"
#include "kernel/exec/one_thread.h"
#include "kernel/exec/pieces.h"
#include "kernel/exec/torch_headers.h"
#include "kernel/exec/whole_vectors.h"

namespace djinn::exec {
namespace {

Error bad_result(const Step& step) {
  return {ErrorCode::kInternal, fmt::format("{} gave back results unlike its schema.",
                                            step.op->handle.operator_name().name)};
}

Error other_count(const Step& step, uint64_t count) {
  return {ErrorCode::kShapeMismatch,
          fmt::format("gives {} tensors, the graph names {}", count, step.outputs.size())};
}

// Refuses a list of another length than the graph names, before any of it is made.
Status check_list_count(const Step& step, const Stack& stack) {
  const auto count = step.op->list_count(stack);
  if (!count || static_cast<uint64_t>(*count) == step.outputs.size()) return {};
  return other_count(step, static_cast<uint64_t>(*count));
}

// Moves the tensors out, so that nothing but the frame holds them.
Status store_list(const Step& step, Frame& frame, c10::IValue& result) {
  if (!result.isTensorList()) return bad_result(step);
  c10::List<at::Tensor> tensors = std::move(result).toTensorList();
  if (tensors.size() != step.outputs.size()) return other_count(step, tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) frame.values[step.outputs[i]] = tensors.extract(i);
  return {};
}

bool is_local(const at::Tensor& tensor) {
  return tensor.storage().allocator() != nullptr;
}

// Admission says which storage a step writes; this holds it to that, because a real kernel may
// alias where the meta kernel copied.
Status check_writes(const Step& step, std::span<const c10::Storage> storages, const Frame& frame) {
  for (size_t i = 0; i < step.written.size(); ++i) {
    const at::Tensor& target = frame.values[step.written[i]];
    const srg::StorageIndex root = step.written_storages[i];
    const bool expected = root == srg::kLocalStorage ? is_local(target)
                                                     : target.storage().is_alias_of(storages[root]);
    if (!expected) {
      return Error{ErrorCode::kPermissionDenied,
                   "It would write memory that admission did not see it write. Clone the tensor "
                   "first."};
    }
  }
  return {};
}

// A run may append its own tokens only: nobody undoes what was committed before them, and slots
// behind them have no memory that somebody granted.
Status check_append(const AdmittedGraph& program, const Step& step, const Frame& frame,
                    Stack& stack) {
  const srg::StorageIndex root = step.written_storages[0];
  const bool is_of_group = root != srg::kLocalStorage &&
                           program.graph.storages[root].kind == srg::StorageKind::kSequence;
  if (!is_of_group) return {};
  const int64_t begin = stack[2].toInt();
  const auto end = checked_add(begin, stack[1].toTensor().size(2));
  if (end && begin >= frame.tokens_begin && *end <= frame.tokens_end) {
    if (frame.kind == RunKind::kRehearsal) stack[1] = stack[1].toTensor().narrow(2, 0, 0);
    return {};
  }
  return Error{ErrorCode::kOutOfRange,
               fmt::format("It appends tokens {} to {} of its sequence group, and those of the run "
                           "are {} to {}. Append at past; to write others again, crop first.",
                           begin, end.value_or(INT64_MAX), frame.tokens_begin, frame.tokens_end)};
}

Status check_claims(const AdmittedGraph& program, const Step& step, const Frame& frame) {
  if (!step.claims_checked_at_run) return {};
  for (const srg::ValueId id : step.outputs) {
    DJINN_CHECK(check_claim(program.graph.values[id], frame.values[id], frame.symbols));
  }
  return {};
}

bool has_claimed_layouts(const Step& step, const Frame& frame) {
  for (const Layout& layout : step.layouts) {
    if (!agrees(layout, frame.values[step.outputs[layout.output]])) return false;
  }
  return true;
}

void offer_places(const Step& step, const Frame& frame) {
  frame.placer->withdraw();
  for (const Layout& layout : step.layouts) {
    if (!layout.leaves) continue;
    const OutputPlace& place = frame.places[*layout.leaves];
    if (place.bytes > 0 && place.bytes == layout.bytes) frame.placer->offer(place);
  }
}

// A row has the same bits whatever is beside it and however many threads there are: the row
// contract, which fast runs of the host keep.
bool is_by_row(const AdmittedGraph& program) {
  return program.graph.numerics != srg::Numerics::kExact && program.device.is_cpu();
}

int threads_at_most(const AdmittedGraph& program, const Step& step, const Stack& stack) {
  if (!step.written.empty() && writes_over_inputs(step.op->handle.schema(), stack)) return 1;
  if (!is_by_row(program)) return kAnyThreads;
  if (step.op->most_threads != nullptr) return step.op->most_threads(stack);
  return step.op->keeps_bits && !splits_in(step.splits, stack) ? kAnyThreads : 1;
}

// Calls the operator. Its results may be without their bytes until those of all runs are computed
// that go on together.
Status begin_step(const AdmittedGraph& program, const Step& step,
                  std::span<const c10::Storage> storages, Frame& frame, Stack& stack) {
  if (!step.written.empty()) DJINN_CHECK(check_writes(step, storages, frame));
  DJINN_CHECK(fill_stack(step, frame, stack));
  if (step.op->is_kv_append) DJINN_CHECK(check_append(program, step, frame, stack));
  if (frame.placer != nullptr) offer_places(step, frame);
  const ThreadsAtMost limited(threads_at_most(program, step, stack));
  if (!is_by_row(program) || !rounds_apart(step.splits, stack)) {
    return call_filled(step, frame, stack);
  }
  call_in_vectors(step.op->handle, stack);
  return store_results(step, frame, stack);
}

Status end_step(const AdmittedGraph& program, const Step& step, Frame& frame) {
  if (!has_claimed_layouts(step, frame)) {
    DJINN_CHECK(settle_layouts(program.graph, step, frame));
  }
  DJINN_CHECK(check_claims(program, step, frame));
  drop_dead(step, frame);
  return {};
}

}  // namespace

Status run_step(const AdmittedGraph& program, const Step& step,
                std::span<const c10::Storage> storages, Frame& frame, Stack& stack) {
  DJINN_CHECK(begin_step(program, step, storages, frame, stack));
  return end_step(program, step, frame);
}

at::Tensor view_of(const c10::Storage& storage, at::ScalarType type, c10::IntArrayRef sizes,
                   c10::IntArrayRef strides, int64_t offset) {
  const auto key = c10::computeDispatchKey(type, c10::kStrided, storage.device());
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(key), c10::scalarTypeToTypeMeta(type));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

Status call_filled(const Step& step, Frame& frame, Stack& stack) {
  if (step.op->list_count != nullptr) DJINN_CHECK(check_list_count(step, stack));
  step.op->handle.callBoxed(&stack);
  return store_results(step, frame, stack);
}

Status store_results(const Step& step, Frame& frame, Stack& stack) {
  if (step.op->list_output && stack.size() == 1) return store_list(step, frame, stack[0]);
  if (stack.size() != step.outputs.size()) return bad_result(step);
  for (size_t i = 0; i < stack.size(); ++i) {
    if (!stack[i].isTensor()) return bad_result(step);
    frame.values[step.outputs[i]] = std::move(stack[i]).toTensor();
  }
  return {};
}

void drop_dead(const Step& step, Frame& frame) {
  for (const srg::ValueId id : step.dead) frame.values[id].reset();
}

c10::Storage borrowed_storage(void* data, uint64_t bytes, c10::Device device) {
  return c10::Storage(c10::Storage::use_byte_size_t{}, c10::SymInt(static_cast<int64_t>(bytes)),
                      c10::DataPtr(data, device), nullptr, false);
}

Result<at::Tensor> bind_value(const srg::Value& value, const c10::Storage& storage,
                              std::span<const int64_t> symbols) {
  const auto type = to_torch(value.dtype);
  if (!type) return Error{ErrorCode::kInvalidArgument, "A bound value has no dtype."};
  Geometry geometry;
  DJINN_CHECK(evaluate_geometry(value, symbols, geometry));
  const auto elements = elements_reached(geometry);
  const auto bytes =
      elements ? checked_mul<uint64_t>(*elements, size_of(value.dtype)) : std::nullopt;
  if (!bytes || *bytes > storage.nbytes()) {
    return Error{ErrorCode::kOutOfRange,
                 fmt::format("Value {} of sizes [{}] reaches beyond the {} bytes bound to it.",
                             describe(value), fmt::join(geometry.sizes, ", "), storage.nbytes())};
  }
  if (reinterpret_cast<uintptr_t>(storage.data()) % size_of(value.dtype) != 0) {
    return Error{
        ErrorCode::kInvalidArgument,
        fmt::format("Value {} does not start at a multiple of its element size.", describe(value))};
  }
  return view_of(storage, *type, geometry.sizes, geometry.strides, geometry.offset);
}

Status check_claim(const srg::Value& value, const at::Tensor& tensor,
                   std::span<const int64_t> symbols) {
  const bool claims = value.claims_sizes || value.dtype != DType::kInvalid;
  if (!tensor.defined() && !claims) return {};
  if (!tensor.defined()) {
    return Error{ErrorCode::kShapeMismatch,
                 fmt::format("value {} is not made by this call, the graph claims its shape",
                             describe(value))};
  }
  const bool type_fits =
      value.dtype == DType::kInvalid || to_torch(value.dtype) == tensor.scalar_type();
  std::vector<int64_t> sizes;
  if (value.claims_sizes) DJINN_CHECK(evaluate(value.sizes, symbols, sizes));
  if (type_fits && (!value.claims_sizes || tensor.sizes().equals(sizes))) return {};
  return Error{
      ErrorCode::kShapeMismatch,
      fmt::format("value {} is {} [{}], the graph claims {} [{}]", describe(value),
                  name_of(from_torch(tensor.scalar_type())), fmt::join(tensor.sizes(), ", "),
                  name_of(value.dtype), fmt::join(sizes, ", "))};
}

Error given_up() {
  return {ErrorCode::kCancelled, "The run was given up before it had ended."};
}

Status run_steps(const AdmittedGraph& program, std::span<const c10::Storage> storages,
                 Frame& frame) {
  const GuardedCalls guarded;
  const InnerPulse pulse(frame.pulse);
  Stack stack;
  size_t at = 0;
  Status status = catching([&]() -> Status {
    while (at < program.steps.size()) {
      if (frame.pieces != nullptr) {
        const size_t before = at;
        DJINN_CHECK(frame.pieces->advance(program, storages, frame, at));
        if (at != before) continue;
      }
      const srg::Node& node = program.graph.nodes[program.steps[at].node];
      if (frame.pulse && !frame.pulse(node.op)) return given_up();
      DJINN_CHECK(run_step(program, program.steps[at], storages, frame, stack));
      ++at;
    }
    return {};
  });
  if (frame.pulse) frame.pulse({});
  if (status || status.error().code == ErrorCode::kCancelled) return status;
  frame.failed_at = program.steps[at].node;
  return located(std::move(status).error(), describe(program.graph.nodes[*frame.failed_at]));
}

namespace {

// Runs of one program that go on together.
class Company {
 public:
  Company(const AdmittedGraph& program, std::span<Companion> runs)
      : program_(program), runs_(runs), products_(runs.size()) {}

  void run() {
    const size_t count = program_.steps.size();
    for (size_t at = 0;;) {
      const size_t next = next_meeting(at);
      for_each_share(static_cast<int64_t>(runs_.size()), [&](int64_t i, int64_t) {
        const c10::InferenceMode inference_mode;
        const GuardedCalls guarded;
        go_on(static_cast<size_t>(i), at, next);
      });
      if (next == count) return;
      products_.compute();
      at = next + 1;
    }
  }

 private:
  // The next product: what is between two of them is every run's own affair.
  [[nodiscard]] size_t next_meeting(size_t at) const {
    while (at < program_.steps.size() && !program_.steps[at].op->joins) ++at;
    return at;
  }

  // Ends the product before `at`, if there is one, runs the steps to `next`, and begins that one if
  // it is a product.
  void go_on(size_t number, size_t at, size_t next) {
    Companion& run = runs_[number];
    const ScopedHeap heap(*run.heap);
    const ScopedSink sink(*run.sink);
    const JointProducts::OfRun company(products_, number);
    products_.drop(number);
    try_to(run, [&]() -> Status {
      Stack stack;
      if (at > 0 && program_.steps[at - 1].op->joins) {
        DJINN_CHECK(end_step(program_, program_.steps[at - 1], run.frame));
      }
      for (size_t i = at; i < next; ++i) DJINN_CHECK(call(run, i, stack));
      const bool joins = next < program_.steps.size() && program_.steps[next].op->joins;
      return joins ? begin(run, next, stack) : Status();
    });
    run.has_left = products_.has_left(number);
    if (!run.goes_on) products_.drop(number);
  }

  Status begin(Companion& run, size_t at, Stack& stack) {
    const Step& step = program_.steps[at];
    if (run.frame.pulse && !run.frame.pulse(program_.graph.nodes[step.node].op)) return given_up();
    return begin_step(program_, step, run.storages, run.frame, stack);
  }

  Status call(Companion& run, size_t at, Stack& stack) {
    DJINN_CHECK(begin(run, at, stack));
    return end_step(program_, program_.steps[at], run.frame);
  }

  template <typename F>
  static void try_to(Companion& run, const F& f) {
    if (run.goes_on) run.goes_on = catching([&]() -> Status { return f(); }).ok();
  }

  const AdmittedGraph& program_;
  std::span<Companion> runs_;
  JointProducts products_;
};

}  // namespace

void run_steps_together(const AdmittedGraph& program, std::span<Companion> runs) {
  Company(program, runs).run();
  for (const Companion& run : runs) {
    if (run.frame.pulse) run.frame.pulse({});
  }
}

}  // namespace djinn::exec
