// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/inference.h"

#include <ATen/ops/empty_strided.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <unordered_map>

#include "kernel/base/alignment.h"
#include "kernel/base/checked.h"
#include "kernel/exec/arguments.h"
#include "kernel/exec/claims.h"
#include "kernel/exec/convert.h"
#include "kernel/exec/expression.h"
#include "kernel/exec/guard_dispatch.h"
#include "kernel/exec/interpreter.h"
#include "kernel/exec/layout.h"
#include "kernel/exec/shape_rules.h"
#include "kernel/exec/torch_headers.h"

namespace djinn::exec {
namespace {

// This is more than any bound storage has; meta storages have sizes but no memory.
constexpr uint64_t kMetaBytes = uint64_t{1} << 62;

Result<at::Tensor> claimed(const srg::Value& value, at::ScalarType type,
                           std::span<const int64_t> symbols) {
  Geometry geometry;
  DJINN_CHECK(evaluate_geometry(value, symbols, geometry));
  return at::empty_strided(geometry.sizes, geometry.strides,
                           at::TensorOptions().dtype(type).device(c10::kMeta));
}

// Tells whether nobody uses the value, as with an output that a mask leaves out.
bool dies_at(const Step& step, srg::ValueId id) {
  return std::find(step.dead.begin(), step.dead.end(), id) != step.dead.end();
}

// An operator without a shape rule in C++ has the shapes that the client claims; each run checks
// them.
Status adopt_claims(const srg::Graph& graph, Step& step, Frame& frame, bool is_last) {
  step.claims_checked_at_run = true;
  for (const srg::ValueId id : step.outputs) {
    const srg::Value& value = graph.values[id];
    const auto type = to_torch(value.dtype);
    if (type && value.claims_sizes) {
      DJINN_TRY(frame.values[id], claimed(value, *type, frame.symbols));
    } else if (!is_last && !dies_at(step, id)) {
      return Error{ErrorCode::kUnsupported,
                   "Nothing tells the shape of its result, and only the last node may leave it "
                   "open. Claim dtype and sizes."};
    }
  }
  return {};
}

// Strides of results that the schema calls fresh have been settled; a view must have its claim by
// itself.
Status check_strides(const srg::Value& value, const at::Tensor& tensor,
                     std::span<const int64_t> symbols) {
  Geometry geometry;
  DJINN_CHECK(evaluate_geometry(value, symbols, geometry));
  if (tensor.strides().equals(geometry.strides) && tensor.storage_offset() == 0) return {};
  return Error{ErrorCode::kShapeMismatch,
               fmt::format("value {} is a view of strides [{}] from element {}, the graph claims "
                           "[{}] from 0; views need no such claim",
                           describe(value), fmt::join(tensor.strides(), ", "),
                           tensor.storage_offset(), fmt::join(geometry.strides, ", "))};
}

// Sums the bytes of local storages while values on them live, as a slab has room for them.
class LiveBytes {
 public:
  explicit LiveBytes(Sample& sample) : sample_(sample) {}

  void define(srg::ValueId id, const at::Tensor& tensor) {
    if (tensor.storage().allocator() == nullptr) return;  // bound, not made by the run
    const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    Live& live = lives_[storage];
    if (live.uses++ > 0) return;
    live.piece = static_cast<uint32_t>(sample_.pieces.size());
    sample_.pieces.push_back({id, storage->nbytes()});
    sample_.events.push_back({live.piece, true});
    now_ += room_of(live);
    sample_.peak_bytes = std::max(sample_.peak_bytes, now_);
  }

  void kill(const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    const auto found = lives_.find(tensor.storage().unsafeGetStorageImpl());
    if (found == lives_.end() || --found->second.uses > 0) return;
    sample_.events.push_back({found->second.piece, false});
    now_ -= room_of(found->second);
    lives_.erase(found);
  }

 private:
  struct Live {
    uint32_t uses = 0;  // values on it
    uint32_t piece = 0;
  };
  [[nodiscard]] uint64_t room_of(const Live& live) const {
    return align_up(sample_.pieces[live.piece].bytes, kTensorAlignment).value_or(UINT64_MAX);
  }

  Sample& sample_;
  std::unordered_map<const c10::StorageImpl*, Live> lives_;
  uint64_t now_ = 0;
};

// This is one meta run at one point.
class MetaRun {
 public:
  MetaRun(AdmittedGraph& program, std::span<const int64_t> point,
          const std::function<Status()>& go_on)
      : program_(program), go_on_(go_on) {
    frame_.values.resize(program.graph.values.size());
    frame_.symbols = point;
    frame_.device = c10::kMeta;
    frame_.keeps_values = true;  // so that LiveBytes sees them die
    sample_.shapes.resize(program.graph.values.size());
  }

  Result<Sample> run() {
    DJINN_CHECK(bind_all());
    for (size_t i = 0; i < program_.steps.size(); ++i) {
      DJINN_CHECK(go_on_());
      Status status = catching([&] { return run_step(i); });
      if (!status) return located(std::move(status).error(), describe(program_.graph.nodes[i]));
    }
    sample_.passing_peak_bytes = sample_.peak_bytes;  // with symbols no layout is plain
    return std::move(sample_);
  }

 private:
  Status bind_all() {
    for (srg::StorageIndex i = 0; i < program_.graph.storages.size(); ++i) {
      storages_.push_back(borrowed_storage(nullptr, kMetaBytes, c10::kMeta));
      roots_[storages_.back().unsafeGetStorageImpl()] = i;
    }
    for (const srg::ValueId id : program_.bound) DJINN_CHECK(bind(id));
    for (srg::ValueId id = 0; id < program_.constants.size(); ++id) {
      if (program_.constants[id].defined()) DJINN_CHECK(bind(id));
    }
    return {};
  }

  Status bind(srg::ValueId id) {
    const srg::Value& value = program_.graph.values[id];
    DJINN_TRY(frame_.values[id], bind_value(value, storages_[value.storage], frame_.symbols));
    define(id);
    return {};
  }

  void define(srg::ValueId id) {
    const at::Tensor& tensor = frame_.values[id];
    const auto root = roots_.find(tensor.storage().unsafeGetStorageImpl());
    ValueShape& shape = sample_.shapes[id];
    shape.known = true;
    shape.type = tensor.scalar_type();
    shape.sizes = tensor.sizes().vec();
    shape.strides = tensor.strides().vec();
    shape.offset = tensor.storage_offset();
    shape.root = root == roots_.end() ? srg::kLocalStorage : root->second;
    live_.define(id, tensor);
  }

  Status run_step(size_t index) {
    Step& step = program_.steps[index];
    Stack stack;
    DJINN_CHECK(fill_stack(step, frame_, stack));
    DJINN_CHECK(infer(step, stack, index + 1 == program_.steps.size()));
    sample_.at_steps.push_back(static_cast<uint32_t>(sample_.events.size()));
    drop(step);
    return {};
  }

  Status infer(Step& step, Stack& stack, bool is_last) {
    DJINN_CHECK(run_on_meta(program_.graph, step, frame_, stack, is_last));
    for (const srg::ValueId id : step.outputs) {
      if (frame_.values[id].defined()) define(id);
    }
    return step.claims_checked_at_run ? Status() : check_outputs(step);
  }

  Status check_outputs(const Step& step) {
    for (const srg::ValueId id : step.outputs) {
      const srg::Value& value = program_.graph.values[id];
      DJINN_CHECK(check_on_meta(value, frame_.values[id], frame_.symbols));
      if (frame_.values[id].defined() && value.storage != srg::kLocalStorage &&
          value.storage != sample_.shapes[id].root) {
        return Error{ErrorCode::kShapeMismatch,
                     fmt::format("value {} is no view of the storage that the graph claims",
                                 describe(value))};
      }
    }
    return {};
  }

  void drop(const Step& step) {
    for (const Patch& patch : step.patches) {
      if (patch.moves) kill(patch.value);
    }
    for (const srg::ValueId id : step.dead) kill(id);
  }

  void kill(srg::ValueId id) {
    live_.kill(frame_.values[id]);
    frame_.values[id].reset();
  }

  AdmittedGraph& program_;
  const std::function<Status()>& go_on_;
  Frame frame_;
  std::vector<c10::Storage> storages_;
  std::unordered_map<const c10::StorageImpl*, srg::StorageIndex> roots_;
  Sample sample_;
  LiveBytes live_{sample_};
};

struct SequenceSymbols {
  std::optional<size_t> tokens;
  std::optional<size_t> past;
  std::optional<size_t> capacity;
};

SequenceSymbols sequence_symbols(const srg::Graph& graph) {
  SequenceSymbols found;
  for (size_t i = 0; i < graph.symbols.size(); ++i) {
    if (graph.symbols[i].role == srg::SymbolRole::kTokens) found.tokens = i;
    if (graph.symbols[i].role == srg::SymbolRole::kPast) found.past = i;
    if (graph.symbols[i].role == srg::SymbolRole::kCapacity) found.capacity = i;
  }
  return found;
}

int64_t bottom(const srg::Symbol& symbol) {
  return symbol.min;
}
int64_t just_above(const srg::Symbol& symbol) {
  return std::min(symbol.min + 1, symbol.max);
}
int64_t middle(const srg::Symbol& symbol) {
  return symbol.min + (symbol.max - symbol.min) / 2;
}
int64_t top(const srg::Symbol& symbol) {
  return symbol.max;
}

// The capacity stays at its top, so that past and tokens may grow alone.
std::vector<int64_t> point_at(const srg::Graph& graph, int64_t (*pick)(const srg::Symbol&)) {
  std::vector<int64_t> point;
  for (const srg::Symbol& symbol : graph.symbols) {
    point.push_back(symbol.role == srg::SymbolRole::kCapacity ? symbol.max : pick(symbol));
  }
  respect_capacity(graph, point);
  return point;
}

void choose_points(const srg::Graph& graph, Inference& inference) {
  const std::vector<int64_t> base = point_at(graph, bottom);
  inference.points.push_back(base);
  for (srg::SymbolIndex i = 0; i < graph.symbols.size(); ++i) {
    const srg::Symbol& symbol = graph.symbols[i];
    if (symbol.min == symbol.max) continue;
    inference.points.push_back(base);
    inference.points.back()[i] = base[i] == symbol.max ? symbol.min : symbol.max;
  }
  if (inference.points.size() == 1) return;
  for (const auto pick : {just_above, middle, top}) {
    inference.points.push_back(point_at(graph, pick));
  }
}

// This is decided before the work, and by numbers that the graph alone has: each worker admits the
// same graphs, however busy its host is.
Status check_evaluations(const srg::Graph& graph, size_t points, uint64_t evaluations_max) {
  const uint64_t evaluations = uint64_t{graph.nodes.size()} * points;
  if (evaluations <= evaluations_max) return {};
  return Error{
      ErrorCode::kLimitExceeded,
      fmt::format("To infer the shapes of the graph, {} nodes would be looked at for {} choices of "
                  "its {} symbols, {} in all, of which {} may be. Give it fewer symbols, or split "
                  "it.",
                  graph.nodes.size(), points, graph.symbols.size(), evaluations, evaluations_max)};
}

// Gives get(shape) as an expression that holds for all samples.
template <typename Get>
std::optional<srg::Expr> fit(const Inference& inference, srg::ValueId id, Get&& get) {
  std::vector<int64_t> values;
  for (const Sample& sample : inference.samples) values.push_back(get(sample.shapes[id]));
  return inference.affine->through(values);
}

std::optional<std::vector<srg::Expr>> fit_list(const Inference& inference, srg::ValueId id,
                                               std::vector<int64_t> ValueShape::*list) {
  std::vector<srg::Expr> exprs;
  for (size_t i = 0; i < (inference.samples[0].shapes[id].*list).size(); ++i) {
    auto expr = fit(inference, id, [&](const ValueShape& shape) { return (shape.*list)[i]; });
    if (!expr) return std::nullopt;
    exprs.push_back(*std::move(expr));
  }
  return exprs;
}

// Tells whether dtype, rank and origin are the same at every point.
bool is_uniform(const Inference& inference, srg::ValueId id) {
  const ValueShape& first = inference.samples[0].shapes[id];
  return std::all_of(inference.samples.begin(), inference.samples.end(), [&](const Sample& sample) {
    const ValueShape& shape = sample.shapes[id];
    return shape.known && shape.type == first.type && shape.sizes.size() == first.sizes.size() &&
           shape.root == first.root;
  });
}

}  // namespace

Status run_on_meta(const srg::Graph& graph, Step& step, Frame& frame,
                   std::vector<c10::IValue>& stack, bool is_last) {
  try {
    if (step.op->shape_rule != nullptr) {
      if (step.op->guard != nullptr) step.op->guard(stack);
      const std::vector<at::Tensor> results = step.op->shape_rule(stack);
      stack.assign(results.begin(), results.end());
      DJINN_CHECK(store_results(step, frame, stack));
    } else {
      DJINN_CHECK(call_filled(step, frame, stack));
    }
  } catch (const c10::NotImplementedError&) {
    return adopt_claims(graph, step, frame, is_last);
  }
  return settle_layouts(graph, step, frame);
}

Status check_on_meta(const srg::Value& value, const at::Tensor& tensor,
                     std::span<const int64_t> symbols) {
  DJINN_CHECK(check_claim(value, tensor, symbols));
  return value.strides.empty() || !tensor.defined() ? Status()
                                                    : check_strides(value, tensor, symbols);
}

void respect_capacity(const srg::Graph& graph, std::vector<int64_t>& symbols) {
  const SequenceSymbols found = sequence_symbols(graph);
  if (!found.tokens || !found.past) return;
  const srg::Symbol& tokens = graph.symbols[*found.tokens];
  const srg::Symbol& past = graph.symbols[*found.past];
  // Without a capacity symbol the symbols' ranges bound it: a full sequence and the fewest tokens,
  // or the most tokens in one call.
  const auto full = checked_add(past.max, tokens.min);
  int64_t capacity = std::max(full.value_or(INT64_MAX), tokens.max);
  if (found.capacity) capacity = std::min(capacity, symbols[*found.capacity]);
  const int64_t room = capacity - symbols[*found.tokens];
  symbols[*found.past] = std::max(past.min, std::min(symbols[*found.past], room));
}

Result<Inference> infer_shapes(AdmittedGraph& program, const AdmissionLimits& limits) {
  c10::InferenceMode inference_mode;
  const GuardedCalls guarded;
  Inference inference;
  choose_points(program.graph, inference);
  DJINN_CHECK(check_evaluations(program.graph, inference.points.size(), limits.evaluations_max));
  DJINN_TRY(inference.affine, srg::AffineFit::make(inference.points, program.graph.symbols));
  const bool by_claims = program.graph.symbols.empty();
  for (const std::vector<int64_t>& point : inference.points) {
    DJINN_TRY(Sample sample, by_claims ? infer_from_claims(program, limits.go_on)
                                       : MetaRun(program, point, limits.go_on).run());
    inference.samples.push_back(std::move(sample));
  }
  return inference;
}

std::optional<std::vector<srg::Expr>> fit_sizes(const Inference& inference, srg::ValueId id) {
  if (!is_uniform(inference, id)) return std::nullopt;
  return fit_list(inference, id, &ValueShape::sizes);
}

std::optional<ViewExprs> fit_view(const Inference& inference, srg::ValueId id) {
  auto sizes = fit_sizes(inference, id);
  auto strides = sizes ? fit_list(inference, id, &ValueShape::strides) : std::nullopt;
  if (!strides) return std::nullopt;
  auto offset = fit(inference, id, [](const ValueShape& shape) { return shape.offset; });
  if (!offset) return std::nullopt;
  return ViewExprs{from_torch(inference.samples[0].shapes[id].type), *std::move(sizes),
                   *std::move(strides), *std::move(offset)};
}

}  // namespace djinn::exec
