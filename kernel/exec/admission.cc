// SPDX-License-Identifier: Apache-2.0

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "kernel/base/assert.h"
#include "kernel/base/checked.h"
#include "kernel/base/int8_rows.h"
#include "kernel/base/size_text.h"
#include "kernel/exec/allow_list.h"
#include "kernel/exec/arguments.h"
#include "kernel/exec/convert.h"
#include "kernel/exec/cpu_executor.h"
#include "kernel/exec/expression.h"
#include "kernel/exec/formed_biases.h"
#include "kernel/exec/guard_dispatch.h"
#include "kernel/exec/inference.h"
#include "kernel/exec/interpreter.h"
#include "kernel/exec/layout.h"
#include "kernel/exec/own_operators.h"
#include "kernel/exec/program.h"
#include "kernel/exec/torch_headers.h"
#include "kernel/srg/expr.h"
#include "kernel/srg/operands.h"
#include "kernel/srg/rewrite/rewrite.h"
#include "kernel/srg/sequence_reach.h"

namespace djinn::exec {
namespace {

class Admission {
 public:
  Admission(AdmittedGraph& program, const WeightTable& weights, const AdmissionLimits& limits,
            Author author)
      : program_(program), weights_(weights), limits_(limits), author_(author) {}

  Status run() {
    DJINN_CHECK(map_weights());
    DJINN_CHECK(check_declared_weights());
    DJINN_CHECK(bind_values());
    DJINN_CHECK(make_steps());
    note_outputs();
    end_lives();
    DJINN_TRY(const Inference inference, infer_shapes(program_, limits_));
    if (author_ == Author::kRewrite) {
      DJINN_CHECK(check_formed_biases(program_, weights_, inference));
    }
    DJINN_CHECK(check_limits(inference));
    DJINN_CHECK(find_writes(inference));
    program_.reaches_capacity = !srg::stays_in_tokens(program_.graph);
    return describe_outputs(inference);
  }

 private:
  Status map_weights() {
    for (const srg::Storage& storage : program_.graph.storages) {
      program_.weights.emplace_back();
      if (storage.kind != srg::StorageKind::kWeight) continue;
      const Weight* weight = weights_.find(storage.name);
      if (weight == nullptr) {
        return weights_.size() == 0
                   ? no_model()
                   : Error{ErrorCode::kNotFound,
                           fmt::format("The model has no weight {}.", storage.name.substr(0, 200))};
      }
      DJINN_TRY(const uint64_t bytes, exec::bytes_of(*weight));
      // LibTorch has no const storage: the check of writes at run time keeps weights read-only.
      program_.weights.back() = borrowed_storage(weight->data.on_host(), bytes, program_.device);
    }
    return {};
  }

  static Error no_model() {
    return {ErrorCode::kNotFound, "The graph names weights, and no model was given."};
  }

  // A graph that takes a tensor for another would read its bytes as garbage.
  Status check_declared_weights() const {
    const srg::Graph& graph = program_.graph;
    std::vector<bool> viewed(graph.storages.size(), false);
    for (const srg::Value& value : graph.values) {
      if (value.storage == srg::kLocalStorage || viewed[value.storage]) continue;
      viewed[value.storage] = true;
      const srg::Storage& storage = graph.storages[value.storage];
      if (storage.is_declared) DJINN_CHECK(check_declared(*weights_.find(storage.name), value));
    }
    return {};
  }

  Status check_declared(const Weight& weight, const srg::Value& value) const {
    const bool same_sizes = std::ranges::equal(weight.sizes, value.sizes, {},
                                               [](int64_t size) { return srg::Expr(size); });
    if (weight.dtype == value.dtype && same_sizes) return {};
    std::vector<std::string> sizes;
    for (const srg::Expr& size : value.sizes) {
      sizes.push_back(srg::text_of(size, program_.graph.symbols));
    }
    return Error{
        ErrorCode::kShapeMismatch,
        fmt::format("The weight {} is {}[{}], and the graph says {}[{}].",
                    weight.name.substr(0, 200), name_of(weight.dtype),
                    fmt::join(weight.sizes, ", "), name_of(value.dtype), fmt::join(sizes, ", "))};
  }

  // Values that no node defines are views of storages: those of weights are bound now, the others
  // at each run.
  Status bind_values() {
    const size_t count = program_.graph.values.size();
    // Of a rewritten graph a value may be inside of a node that stands for several.
    std::vector<bool> defined(count, false), is_inside(count, author_ == Author::kRewrite);
    for (const srg::ValueId id : program_.graph.outputs) is_inside[id] = false;
    for (const srg::Node& node : program_.graph.nodes) {
      for (const srg::ValueId id : node.outputs) {
        DJINN_ASSERT(id < count);
        defined[id] = true;
      }
      srg::for_each_operand(node, [&](srg::ValueId id) { is_inside[id] = false; });
    }
    program_.constants.resize(count);
    for (srg::ValueId id = 0; id < count; ++id) {
      if (!defined[id] && !is_inside[id]) DJINN_CHECK(bind_value_of(id));
    }
    return {};
  }

  Status bind_value_of(srg::ValueId id) {
    const srg::Value& value = program_.graph.values[id];
    if (value.storage == srg::kLocalStorage) {
      return Error{ErrorCode::kInvalidArgument,
                   fmt::format("Nothing defines value {} ({}).", id, describe(value))};
    }
    DJINN_ASSERT(value.storage < program_.weights.size());
    const srg::Storage& storage = program_.graph.storages[value.storage];
    if (storage.kind == srg::StorageKind::kWeight) {
      const Weight& weight = *weights_.find(storage.name);
      if (weight.form != srg::WeightForm::kPlain) return bind_formed(id, weight);
    }
    if (!program_.weights[value.storage] || !has_constant_geometry(value)) {
      program_.bound.push_back(id);
      return {};
    }
    DJINN_TRY(program_.constants[id], bind_value(value, program_.weights[value.storage], {}));
    return {};
  }

  // What rewritten graphs read of a weight in int8, where its bytes are: its values, in rows that
  // lie apart as far as the form's. A client's graph is never run with one, so nothing is bound
  // that it could read.
  Status bind_formed(srg::ValueId id, const Weight& weight) {
    if (author_ == Author::kClient) {
      program_.constants[id] = at::empty({0}, at::kChar);
      return {};
    }
    srg::Value values;
    values.name = program_.graph.values[id].name;
    values.dtype = DType::kInt8;
    values.sizes = {weight.sizes[0], weight.sizes[1]};
    values.strides = {int8_row_bytes(weight.sizes[1]), 1};
    const srg::Value& view = program_.graph.values[id];
    const std::vector<srg::Expr> around{values.sizes[1], values.sizes[0]},
        around_strides{1, values.sizes[1]}, in_order_strides{values.sizes[1], 1};
    const bool is_in_order = view.sizes == values.sizes && view.strides == in_order_strides;
    if (view.sizes == around && view.strides == around_strides && !is_in_order) {
      std::swap(values.sizes[0], values.sizes[1]);
      std::swap(values.strides[0], values.strides[1]);
    }
    const c10::Storage& storage = program_.weights[program_.graph.values[id].storage];
    DJINN_TRY(program_.constants[id], bind_value(values, storage, {}));
    return {};
  }

  static bool has_constant_geometry(const srg::Value& value) {
    const auto constant = [](const srg::Expr& expr) { return expr.is_constant(); };
    return std::all_of(value.sizes.begin(), value.sizes.end(), constant) &&
           std::all_of(value.strides.begin(), value.strides.end(), constant) &&
           value.offset.is_constant();
  }

  Status make_steps() {
    program_.steps.reserve(program_.graph.nodes.size());
    for (const srg::Node& node : program_.graph.nodes) {
      DJINN_CHECK(limits_.go_on());
      auto step = make_step(node);
      if (!step) return located(std::move(step).error(), describe(node));
      step->node = program_.steps.size();
      program_.steps.push_back(*std::move(step));
    }
    return {};
  }

  Result<Step> make_step(const srg::Node& node) {
    DJINN_TRY(const Operator* const op, resolve_operator(node.op, author_));
    Step step(*op);
    step.outputs = node.outputs;
    DJINN_CHECK(check_returns(step));
    DJINN_CHECK(bind_arguments(program_.device, node, step));
    DJINN_CHECK(note_layouts(program_.graph, step));
    return step;
  }

  static Status check_returns(const Step& step) {
    const size_t returns = step.op->returns.size();
    if (step.op->list_output || returns == step.outputs.size()) return {};
    return Error{
        ErrorCode::kInvalidArgument,
        fmt::format("It gives {} results, the graph names {}.", returns, step.outputs.size())};
  }

  void note_outputs() {
    std::vector<std::optional<uint32_t>> numbers(program_.graph.values.size());
    for (uint32_t i = 0; i < program_.graph.outputs.size(); ++i) {
      numbers[program_.graph.outputs[i]] = i;
    }
    for (Step& step : program_.steps) {
      for (Layout& layout : step.layouts) {
        if (layout.is_plain) layout.leaves = numbers[step.outputs[layout.output]];
      }
    }
  }

  void end_lives() {
    std::vector<bool> leaves(program_.graph.values.size(), false);
    for (const srg::ValueId id : program_.graph.outputs) leaves[id] = true;
    std::vector<bool> used_later = leaves;
    for (size_t i = program_.steps.size(); i-- > 0;) end_lives_at(program_.steps[i], used_later);
  }

  static void end_lives_at(Step& step, std::vector<bool>& used_later) {
    for (const srg::ValueId id : step.outputs) {
      if (!used_later[id]) step.dead.push_back(id);
    }
    std::vector<srg::ValueId> last_uses;
    for (const Patch& patch : step.patches) {
      if (patch.kind == PatchKind::kValue) last_uses.push_back(patch.value);
      for (const auto& id : patch.values) {
        if (id) last_uses.push_back(*id);
      }
    }
    std::erase_if(last_uses, [&](srg::ValueId id) { return used_later[id]; });
    for (const srg::ValueId id : last_uses) end_life(step, id, last_uses);
    for (const srg::ValueId id : last_uses) used_later[id] = true;
  }

  // A value that the step uses once and directly is moved into the call; others die after it.
  static void end_life(Step& step, srg::ValueId id, const std::vector<srg::ValueId>& last_uses) {
    const auto direct = std::find_if(step.patches.begin(), step.patches.end(), [&](const Patch& p) {
      return p.kind == PatchKind::kValue && p.value == id;
    });
    const bool once = std::count(last_uses.begin(), last_uses.end(), id) == 1;
    if (once && direct != step.patches.end()) {
      direct->moves = true;
    } else if (std::find(step.dead.begin(), step.dead.end(), id) == step.dead.end()) {
      step.dead.push_back(id);
    }
  }

  Status check_limits(const Inference& inference) {
    for (const Sample& sample : inference.samples) {
      program_.activation_bytes = std::max(program_.activation_bytes, sample.peak_bytes);
      program_.passing_bytes = std::max(program_.passing_bytes, sample.passing_peak_bytes);
    }
    if (!program_.graph.symbols.empty()) program_.footprint = Footprint(program_, inference);
    if (program_.activation_bytes <= limits_.activation_bytes_max) return {};
    return Error{
        ErrorCode::kQuotaExceeded,
        fmt::format("At its largest shapes the graph needs {} for activations; the limit is "
                    "{}. Narrow the symbols' ranges.",
                    size_text(program_.activation_bytes), size_text(limits_.activation_bytes_max))};
  }

  Status find_writes(const Inference& inference) {
    for (size_t i = 0; i < program_.steps.size(); ++i) {
      DJINN_CHECK(limits_.go_on());
      Step& step = program_.steps[i];
      for (const srg::ValueId id : step.written) {
        Status status = note_write(inference, step, id);
        if (!status) return located(std::move(status).error(), describe(program_.graph.nodes[i]));
      }
    }
    return {};
  }

  Status note_write(const Inference& inference, Step& step, srg::ValueId id) {
    const srg::StorageIndex root = inference.samples[0].shapes[id].root;
    step.written_storages.push_back(root);
    if (root == srg::kLocalStorage) return {};
    switch (program_.graph.storages[root].kind) {
      case srg::StorageKind::kWeight:
        return Error{ErrorCode::kPermissionDenied,
                     "It writes a weight, and weights are sealed. Clone the tensor first."};
      case srg::StorageKind::kSequence:
        return note_append(inference, step, root);
      case srg::StorageKind::kInput:
        break;
    }
    auto view = fit_view(inference, id);
    if (!view) {
      return Error{ErrorCode::kUnsupported,
                   "It writes a view of an input whose bounds are not affine in the symbols."};
    }
    program_.writes.push_back({root, *std::move(view)});
    return {};
  }

  Status note_append(const Inference& inference, const Step& step, srg::StorageIndex root) {
    if (!step.op->is_kv_append) {
      return Error{ErrorCode::kPermissionDenied,
                   "Buffers of a sequence are written by djinn::kv_append only."};
    }
    const auto fresh = std::find_if(step.patches.begin(), step.patches.end(),
                                    [](const Patch& patch) { return patch.position == 1; });
    DJINN_ASSERT(fresh != step.patches.end());
    const auto sizes = fit_sizes(inference, fresh->value);
    if (!sizes || sizes->size() != 4) {
      return Error{ErrorCode::kUnsupported,
                   "The number of tokens that it appends is not affine in the symbols."};
    }
    program_.appended.push_back(root);
    return {};
  }

  Status describe_outputs(const Inference& inference) {
    for (const srg::ValueId id : program_.graph.outputs) {
      DJINN_CHECK(describe_output(inference, id));
    }
    return {};
  }

  Status describe_output(const Inference& inference, srg::ValueId id) {
    OutputInfo info;
    info.name = program_.graph.values[id].name;
    const ValueShape& shape = inference.samples[0].shapes[id];
    info.dtype = shape.known ? from_torch(shape.type) : program_.graph.values[id].dtype;
    auto sizes = fit_sizes(inference, id);
    info.sizes_known = sizes.has_value();
    if (sizes) {
      info.sizes = *std::move(sizes);
    } else if (!is_of_last_node(id)) {
      return Error{ErrorCode::kUnsupported,
                   fmt::format("The sizes of output {} are not affine in the symbols, and only the "
                               "last node may leave its shape open.",
                               info.name.empty() ? fmt::format("value {}", id) : info.name)};
    }
    program_.outputs.push_back(std::move(info));
    return {};
  }

  [[nodiscard]] bool is_of_last_node(srg::ValueId id) const {
    if (program_.steps.empty()) return false;
    const auto& last = program_.steps.back().outputs;
    return std::find(last.begin(), last.end(), id) != last.end();
  }

  AdmittedGraph& program_;
  const WeightTable& weights_;
  const AdmissionLimits& limits_;
  const Author author_;
};

// Gives the ranges sorted. Those of one storage that overlap or touch become one, however often it
// is written.
std::vector<WrittenRange> joined(std::vector<WrittenRange> ranges) {
  const auto place = [](const WrittenRange& range) {
    return std::pair(range.storage, range.offset);
  };
  std::ranges::sort(ranges, {}, place);
  std::vector<WrittenRange> all;
  for (const WrittenRange& range : ranges) {
    const bool touches = !all.empty() && all.back().storage == range.storage &&
                         all.back().offset + all.back().bytes >= range.offset;
    if (!touches) {
      all.push_back(range);
    } else {
      WrittenRange& last = all.back();
      last.bytes = std::max(last.bytes, range.offset + range.bytes - last.offset);
    }
  }
  return all;
}

Result<AdmittedGraph> admit_graph(c10::Device device, srg::Graph graph, const WeightTable& weights,
                                  const AdmissionLimits& limits, Author author) {
  AdmittedGraph admitted;
  admitted.device = device;
  admitted.graph = std::move(graph);
  DJINN_CHECK(catching([&]() -> Status {
    register_operators();
    register_guards();
    c10::InferenceMode inference_mode;
    return Admission(admitted, weights, limits, author).run();
  }));
  return admitted;
}

// Tells whether whoever binds and reads the one can do so with the other.
bool have_one_interface(const AdmittedGraph& one, const AdmittedGraph& other) {
  const auto same_output = [](const OutputInfo& a, const OutputInfo& b) {
    return a.name == b.name && a.dtype == b.dtype && a.sizes_known == b.sizes_known &&
           a.sizes == b.sizes;
  };
  const auto same_write = [](const Write& a, const Write& b) {
    return a.storage == b.storage && a.view.dtype == b.view.dtype && a.view.sizes == b.view.sizes &&
           a.view.strides == b.view.strides && a.view.offset == b.view.offset;
  };
  return std::ranges::equal(one.outputs, other.outputs, same_output) &&
         std::ranges::equal(one.writes, other.writes, same_write) &&
         one.appended == other.appended && one.reaches_capacity == other.reaches_capacity;
}

srg::FormedWeights formed_weights(const srg::Graph& graph, const WeightTable& weights) {
  srg::FormedWeights formed(graph.storages.size());
  for (size_t i = 0; i < formed.size(); ++i) {
    if (graph.storages[i].kind != srg::StorageKind::kWeight) continue;
    const Weight* const weight = weights.find(graph.storages[i].name);
    if (weight == nullptr || weight->form == srg::WeightForm::kPlain) continue;
    formed[i] = {weight->dtype, weight->sizes.at(0), weight->sizes.at(1)};
  }
  return formed;
}

Error unreadable(const std::string& why) {
  return {ErrorCode::kUnsupported,
          why +
              " Products with the whole of such a weight, and lookups of its rows, are all that "
              "can be computed. Load the model's weights as the files have them."};
}

// Admits another form of the program's graph, as one that binds and gives the same.
Result<AdmittedGraph> admit_form(const AdmittedGraph& program, srg::Rewriting& rewriting,
                                 const WeightTable& weights, const AdmissionLimits& limits) {
  auto form =
      admit_graph(program.device, std::move(rewriting.graph), weights, limits, Author::kRewrite);
  if (form && !have_one_interface(program, *form)) {
    return Error{ErrorCode::kInternal, "The form has another interface."};
  }
  return form;
}

// Puts such a form in the graph's place.
void take_form(AdmittedGraph& program, AdmittedGraph form, const srg::Rewriting& rewriting) {
  // Whoever is told of a node is told of the client's.
  for (Step& step : form.steps) step.node = rewriting.origins.at(step.node);
  form.graph.nodes = std::move(program.graph.nodes);
  program = std::move(form);
  program.fast_nodes = rewriting.made;
}

// Puts the graph's fast form in its place. A form that is not admitted, or not as the exact one
// is, is a mistake in a pass: the program stays exact, and says why. Where it needs the fast form,
// because of weights in int8, it is refused.
Status make_fast(AdmittedGraph& program, const WeightTable& weights,
                 const AdmissionLimits& limits) {
  const bool needs_fast = reads_forms(program.graph, weights);
  const srg::Target target = program.device.is_cpu() ? srg::Target::kHost : srg::Target::kGpu;
  srg::Rewriting rewriting =
      srg::rewrite(program.graph, formed_weights(program.graph, weights), target);
  if (!rewriting.left_with_forms.empty()) return unreadable(rewriting.left_with_forms);
  if (rewriting.made > 0) {
    auto fast = admit_form(program, rewriting, weights, limits);
    DJINN_CHECK(limits.go_on());  // the admission may have ended with what this says
    if (fast) {
      take_form(program, *std::move(fast), rewriting);
    } else if (needs_fast) {
      return std::move(fast).error();
    } else {
      ++rewriting.passes.back().reasons[fast.error().message];
    }
  }
  program.passes = std::move(rewriting.passes);
  return {};
}

// Of exact programs of a GPU: casts are launched as PyTorch launches them. Likewise where a form is
// not admitted. The host's programs stay as clients wrote them.
Status make_native(AdmittedGraph& program, const WeightTable& weights,
                   const AdmissionLimits& limits) {
  srg::Rewriting rewriting = srg::restore_casts(program.graph);
  if (rewriting.passes.front().fired == 0) return {};
  auto native = admit_form(program, rewriting, weights, limits);
  DJINN_CHECK(limits.go_on());
  if (native) {
    take_form(program, *std::move(native), rewriting);
  } else {
    ++rewriting.passes.back().reasons[native.error().message];
    program.passes = std::move(rewriting.passes);
  }
  return {};
}

// Of a program that was to be fast, and stays as it is.
srg::PassReport without_kernels() {
  srg::PassReport report{"kernels", 0, {}};
  report.leave("this device has no kernels of djinn's, so PyTorch's compute all of it");
  return report;
}

bool is_fast(const AdmittedGraph& program) {
  return program.fast_nodes > 0 &&
         std::ranges::none_of(program.passes, [](const auto& pass) { return pass.missed > 0; });
}

Error not_fast(const AdmittedGraph& program) {
  std::string why;
  for (const srg::PassReport& pass : program.passes) {
    for (const auto& [reason, nodes] : pass.reasons) {
      why += fmt::format(" {}: {} ({} nodes).", pass.name, reason, nodes);
    }
  }
  const char* const what = program.fast_nodes == 0 ? "no part of it has a fast form"
                                                   : "products with its weights have no fast form";
  return {ErrorCode::kUnsupported, fmt::format("The graph's numerics are fast-only, and {}.{} "
                                               "Define it with the numerics fast, or exact.",
                                               what, why)};
}

}  // namespace

Result<std::unique_ptr<Program>> CpuExecutor::admit(srg::Graph graph, const WeightTable& weights,
                                                    const AdmissionLimits& limits) {
  return admit_on(c10::kCPU, std::move(graph), weights, limits, OwnKernels::kThere);
}

Result<std::unique_ptr<Program>> admit_on(c10::Device device, srg::Graph graph,
                                          const WeightTable& weights, const AdmissionLimits& limits,
                                          OwnKernels kernels) {
  const srg::Numerics numerics = graph.numerics;
  if (!device.is_cpu() && reads_forms(graph, weights)) {
    return Error{ErrorCode::kUnsupported,
                 "Weights of the model are int8, which kernels of the host alone compute with. "
                 "Load the model's weights as the files have them."};
  }
  if (numerics == srg::Numerics::kExact && reads_forms(graph, weights)) {
    return Error{ErrorCode::kUnsupported,
                 "The graph's numerics are exact, and weights of the model are int8, which fast "
                 "kernels alone compute with. Define it with the numerics fast, or load the "
                 "model's weights as the files have them."};
  }
  DJINN_TRY(AdmittedGraph admitted,
            admit_graph(device, std::move(graph), weights, limits, Author::kClient));
  if (numerics != srg::Numerics::kExact && kernels == OwnKernels::kThere) {
    DJINN_CHECK(make_fast(admitted, weights, limits));
  } else if (!device.is_cpu()) {
    DJINN_CHECK(make_native(admitted, weights, limits));
    if (numerics != srg::Numerics::kExact) admitted.passes.push_back(without_kernels());
  }
  if (numerics == srg::Numerics::kFastOnly && !is_fast(admitted)) return not_fast(admitted);
  return std::unique_ptr<Program>(new CpuProgram(std::move(admitted)));
}

Result<std::vector<WrittenRange>> CpuProgram::written_ranges(
    std::span<const int64_t> symbols) const {
  std::vector<WrittenRange> ranges;
  for (const Write& write : admitted_.writes) {
    srg::Value view;
    view.dtype = write.view.dtype;
    view.sizes = write.view.sizes;
    view.strides = write.view.strides;
    view.offset = write.view.offset;
    Geometry geometry;
    DJINN_CHECK(evaluate_geometry(view, symbols, geometry));
    const uint64_t element = size_of(view.dtype);
    const auto end = elements_reached(geometry);
    const auto end_bytes = end ? checked_mul(*end, element) : std::nullopt;
    if (!end_bytes) return Error{ErrorCode::kOutOfRange, "A written range overflows."};
    const uint64_t start = std::min(static_cast<uint64_t>(geometry.offset) * element, *end_bytes);
    if (*end_bytes > start) ranges.push_back({write.storage, start, *end_bytes - start});
  }
  return joined(std::move(ranges));
}

}  // namespace djinn::exec
