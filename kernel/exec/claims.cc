// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/claims.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernel/base/alignment.h"
#include "kernel/base/assert.h"
#include "kernel/base/checked.h"
#include "kernel/exec/arguments.h"
#include "kernel/exec/convert.h"
#include "kernel/exec/expression.h"
#include "kernel/exec/interpreter.h"
#include "kernel/exec/layout.h"

namespace djinn::exec {
namespace {

// This is more than any storage has; meta storages have sizes but no memory.
constexpr uint64_t kMetaBytes = uint64_t{1} << 62;

// This numbers storages: the graph's come first, then those that nodes make.
using StorageNumber = uint32_t;

class ClaimRun {
 public:
  ClaimRun(AdmittedGraph& program, const std::function<Status()>& go_on)
      : program_(program), go_on_(go_on) {
    const size_t count = program.graph.values.size();
    sample_.shapes.resize(count);
    storage_of_.resize(count);
    frame_.values.resize(count);
    frame_.device = c10::kMeta;
    frame_.keeps_values = true;
    local_.resize(program.graph.storages.size());
  }

  Result<Sample> run() {
    for (const srg::ValueId id : program_.bound) DJINN_CHECK(bind(id));
    for (srg::ValueId id = 0; id < program_.constants.size(); ++id) {
      if (program_.constants[id].defined()) DJINN_CHECK(bind(id));
    }
    for (size_t i = 0; i < program_.steps.size(); ++i) {
      DJINN_CHECK(go_on_());
      Status status = catching([&] { return run_step(i); });
      if (!status) return located(std::move(status).error(), describe(program_.graph.nodes[i]));
    }
    sample_.peak_bytes = all_.peak;
    sample_.passing_peak_bytes = passing_.peak;
    return std::move(sample_);
  }

 private:
  // This is a storage that a node made: its bytes, and the values on it that live.
  struct Local {
    uint64_t bytes = 0;
    uint32_t values = 0;
    bool leaves = false;
  };

  struct LiveBytes {
    uint64_t now = 0;
    uint64_t peak = 0;
    void add(uint64_t bytes) {
      now += bytes;
      peak = std::max(peak, now);
    }
  };

  Status bind(srg::ValueId id) {
    const srg::Value& value = program_.graph.values[id];
    ValueShape& shape = sample_.shapes[id];
    DJINN_CHECK(take_claim(value, shape));
    shape.root = value.storage;
    put_on(value.storage, id);
    return {};
  }

  static Status take_claim(const srg::Value& value, ValueShape& shape) {
    Geometry geometry;
    DJINN_CHECK(evaluate_geometry(value, {}, geometry));
    const auto type = to_torch(value.dtype);
    DJINN_ASSERT(type);
    shape.known = true;
    shape.type = *type;
    shape.sizes = std::move(geometry.sizes);
    shape.strides = std::move(geometry.strides);
    shape.offset = geometry.offset;
    return {};
  }

  Status run_step(size_t index) {
    Step& step = program_.steps[index];
    if (is_claimed_whole(step)) {
      for (const Layout& layout : step.layouts) DJINN_CHECK(take_layout(step, layout));
    } else if (is_in_place(step)) {
      DJINN_CHECK(take_argument(step));
    } else {
      DJINN_CHECK(ask_meta(step, index + 1 == program_.steps.size()));
    }
    drop(step);
    return {};
  }

  [[nodiscard]] bool is_claimed_whole(const Step& step) const {
    return !step.layouts.empty() && step.layouts.size() + unclaimed(step) == step.outputs.size() &&
           std::all_of(step.layouts.begin(), step.layouts.end(), [](const Layout& layout) {
             return layout.type != at::ScalarType::Undefined;
           });
  }

  // Counts the results that nobody claims and nobody uses, because a mask left them out.
  [[nodiscard]] size_t unclaimed(const Step& step) const {
    return static_cast<size_t>(
        std::count_if(step.outputs.begin(), step.outputs.end(), [&](srg::ValueId id) {
          const srg::Value& value = program_.graph.values[id];
          return !value.claims_sizes && value.dtype == DType::kInvalid &&
                 std::find(step.dead.begin(), step.dead.end(), id) != step.dead.end();
        }));
  }

  // Tells whether the step has one result, and that is one of its arguments.
  static bool is_in_place(const Step& step) {
    return step.outputs.size() == 1 && !step.op->list_output && step.op->returns[0].is_argument &&
           argument_of(step, step.op->returns[0].argument) != nullptr;
  }

  static const Patch* argument_of(const Step& step, uint32_t position) {
    for (const Patch& patch : step.patches) {
      if (patch.position == position && patch.kind == PatchKind::kValue) return &patch;
    }
    return nullptr;
  }

  Status take_layout(const Step& step, const Layout& layout) {
    const srg::ValueId id = step.outputs[layout.output];
    ValueShape& shape = sample_.shapes[id];
    shape.known = true;
    shape.type = layout.type;
    shape.sizes.assign(layout.sizes.begin(), layout.sizes.end());
    shape.strides.assign(layout.strides.begin(), layout.strides.end());
    const auto bytes = checked_mul<uint64_t>(layout.reached, c10::elementSize(layout.type));
    if (!bytes) return overflow_error();
    put_on(make_local(*bytes, layout.leaves.has_value()), id);
    return {};
  }

  Status take_argument(const Step& step) {
    const srg::ValueId id = step.outputs[0];
    const srg::ValueId from = argument_of(step, step.op->returns[0].argument)->value;
    sample_.shapes[id] = sample_.shapes[from];
    put_on(storage_of_[from], id);
    const srg::Value& value = program_.graph.values[id];
    if (!value.claims_sizes && value.dtype == DType::kInvalid) return {};
    return check_on_meta(value, on_meta(from), {});
  }

  Status ask_meta(Step& step, bool is_last) {
    for (const Patch& patch : step.patches) {
      if (patch.kind == PatchKind::kValue) frame_.values[patch.value] = on_meta(patch.value);
      for (const auto& id : patch.values) {
        if (id) frame_.values[*id] = on_meta(*id);
      }
    }
    std::vector<c10::IValue> stack;
    DJINN_CHECK(fill_stack(step, frame_, stack));
    DJINN_CHECK(run_on_meta(program_.graph, step, frame_, stack, is_last));
    for (const srg::ValueId id : step.outputs) DJINN_CHECK(take_result(step, id));
    forget_tensors(step);
    return {};
  }

  Status take_result(const Step& step, srg::ValueId id) {
    const at::Tensor& tensor = frame_.values[id];
    if (!tensor.defined()) return {};
    if (!step.claims_checked_at_run) {
      DJINN_CHECK(check_on_meta(program_.graph.values[id], tensor, {}));
    }
    ValueShape& shape = sample_.shapes[id];
    shape.known = true;
    shape.type = tensor.scalar_type();
    shape.sizes = tensor.sizes().vec();
    shape.strides = tensor.strides().vec();
    shape.offset = tensor.storage_offset();
    const auto shared = number_of(tensor.storage());
    put_on(shared ? *shared : make_local(tensor.storage().nbytes(), false), id);
    return {};
  }

  void forget_tensors(const Step& step) {
    for (const Patch& patch : step.patches) {
      if (patch.kind == PatchKind::kValue) frame_.values[patch.value].reset();
      for (const auto& id : patch.values) {
        if (id) frame_.values[*id].reset();
      }
    }
    for (const srg::ValueId id : step.outputs) frame_.values[id].reset();
    lent_.clear();
  }

  // Makes a meta tensor of a value. Within one step, values that share a storage share one here,
  // too.
  at::Tensor on_meta(srg::ValueId id) {
    const ValueShape& shape = sample_.shapes[id];
    TORCH_CHECK_VALUE(shape.known, "Nothing tells the shape of an argument.");
    at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(lend(storage_of_[id])), c10::DispatchKeySet(c10::DispatchKey::Meta),
        c10::scalarTypeToTypeMeta(shape.type));
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(shape.sizes, shape.strides, shape.offset);
    return tensor;
  }

  const c10::Storage& lend(StorageNumber number) {
    for (const auto& [lent, storage] : lent_) {
      if (lent == number) return storage;
    }
    return lent_.emplace_back(number, borrowed_storage(nullptr, kMetaBytes, c10::kMeta)).second;
  }

  [[nodiscard]] std::optional<StorageNumber> number_of(const c10::Storage& storage) const {
    for (const auto& [lent, known] : lent_) {
      if (known.is_alias_of(storage)) return lent;
    }
    return std::nullopt;
  }

  // A storage takes the room that a slab has for it.
  StorageNumber make_local(uint64_t of_values, bool leaves) {
    const uint64_t bytes = align_up(of_values, kTensorAlignment).value_or(UINT64_MAX);
    local_.push_back({bytes, 0, leaves});
    all_.add(bytes);
    if (!leaves) passing_.add(bytes);
    return static_cast<StorageNumber>(local_.size() - 1);
  }

  void put_on(StorageNumber number, srg::ValueId id) {
    storage_of_[id] = number;
    ++local_[number].values;
    const bool is_local = number >= program_.graph.storages.size();
    sample_.shapes[id].root = is_local ? srg::kLocalStorage : number;
  }

  void drop(const Step& step) {
    for (const Patch& patch : step.patches) {
      if (patch.moves) kill(patch.value);
    }
    for (const srg::ValueId id : step.dead) kill(id);
  }

  void kill(srg::ValueId id) {
    if (!sample_.shapes[id].known) return;
    Local& local = local_[storage_of_[id]];
    if (--local.values > 0) return;
    all_.now -= local.bytes;
    if (!local.leaves) passing_.now -= local.bytes;
  }

  AdmittedGraph& program_;
  const std::function<Status()>& go_on_;
  Frame frame_;
  Sample sample_;
  std::vector<StorageNumber> storage_of_;  // one for each value
  std::vector<Local> local_;               // by number; those of the graph's storages have no bytes
  std::vector<std::pair<StorageNumber, c10::Storage>> lent_;  // to the step that is asked on meta
  LiveBytes all_;
  LiveBytes passing_;
};

}  // namespace

Result<Sample> infer_from_claims(AdmittedGraph& program, const std::function<Status()>& go_on) {
  return ClaimRun(program, go_on).run();
}

}  // namespace djinn::exec
