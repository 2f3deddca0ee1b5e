#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "kernel/base/assert.h"
#include "kernel/base/checked.h"
#include "kernel/exec/convert.h"
#include "kernel/exec/executor.h"
#include "kernel/exec/interpreter.h"
#include "kernel/exec/program.h"
#include "kernel/exec/torch_headers.h"

namespace djinn::exec {
namespace {

Status check_symbols(const srg::Graph& graph, std::span<const int64_t> symbols) {
  if (symbols.size() != graph.symbols.size()) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("The graph has {} symbols, the run binds {}.", graph.symbols.size(),
                             symbols.size())};
  }
  for (size_t i = 0; i < symbols.size(); ++i) {
    const srg::Symbol& symbol = graph.symbols[i];
    if (symbols[i] < symbol.min || symbols[i] > symbol.max) {
      return Error{ErrorCode::kOutOfRange,
                   fmt::format("Symbol {} is {}, outside [{}, {}].", symbol.name, symbols[i],
                               symbol.min, symbol.max)};
    }
  }
  return {};
}

}  // namespace

struct Lane::Impl {
  LaneOptions options;
  LaneStats stats;
  std::vector<at::Tensor> kept;  // what outputs points into
  std::vector<OutputView> outputs;
};

namespace {

Status check_storages(const Program::Impl& program, std::span<const StorageBinding> bindings) {
  if (bindings.size() != program.graph.storages.size()) {
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("The graph has {} storages, the run binds {}.",
                             program.graph.storages.size(), bindings.size())};
  }
  const auto writable = [&](srg::StorageIndex storage) { return bindings[storage].writable; };
  const auto same_storage = [&](const auto& range) { return writable(range.storage); };
  if (std::all_of(program.writes.begin(), program.writes.end(), same_storage) &&
      std::all_of(program.appends.begin(), program.appends.end(), same_storage)) {
    return {};
  }
  return Error{ErrorCode::kPermissionDenied,
               "The graph writes an input that is bound read-only. Bind a ref to it."};
}

std::vector<c10::Storage> storages_of(const Program::Impl& program,
                                      std::span<const StorageBinding> bindings) {
  std::vector<c10::Storage> storages = program.weights;
  for (size_t i = 0; i < storages.size(); ++i) {
    if (storages[i]) continue;
    storages[i] = borrowed_storage(bindings[i].data, bindings[i].bytes, c10::kCPU);
  }
  return storages;
}

Status bind_frame(const Program::Impl& program, std::span<const c10::Storage> storages,
                  Frame& frame) {
  frame.values = program.constants;
  for (const srg::ValueId id : program.bound) {
    const srg::Value& value = program.graph.values[id];
    DJINN_TRY(frame.values[id], bind_value(value, storages[value.storage], frame.symbols));
  }
  return {};
}

OutputView view_of_output(const at::Tensor& tensor, std::span<const c10::Storage> storages) {
  OutputView view;
  view.dtype = from_torch(tensor.scalar_type());
  view.sizes = tensor.sizes().vec();
  view.strides = tensor.strides().vec();
  view.storage_offset = static_cast<uint64_t>(tensor.storage_offset());
  view.storage = static_cast<const std::byte*>(tensor.storage().data());
  view.storage_bytes = tensor.storage().nbytes();
  for (srg::StorageIndex i = 0; i < storages.size(); ++i) {
    if (tensor.storage().is_alias_of(storages[i])) view.aliases = i;
  }
  return view;
}

Status keep_outputs(const Program::Impl& program, std::span<const c10::Storage> storages,
                    const Frame& frame, Lane::Impl& lane) {
  for (const srg::ValueId id : program.graph.outputs) {
    const at::Tensor& tensor = frame.values[id];
    DJINN_ASSERT(tensor.defined());
    if (from_torch(tensor.scalar_type()) == DType::kInvalid) {
      return Error{ErrorCode::kUnsupported, "An output has a dtype that does not leave a run."};
    }
    lane.kept.push_back(tensor);
    lane.outputs.push_back(view_of_output(tensor, storages));
  }
  return {};
}

Status execute(const Program::Impl& program, const RunBindings& bindings, Lane::Impl& lane) {
  DJINN_CHECK(check_symbols(program.graph, bindings.symbols));
  DJINN_CHECK(check_storages(program, bindings.storages));
  const std::vector<c10::Storage> storages = storages_of(program, bindings.storages);
  Frame frame;
  frame.symbols = bindings.symbols;
  DJINN_CHECK(bind_frame(program, storages, frame));
  DJINN_CHECK(run_steps(program, storages, frame));
  return keep_outputs(program, storages, frame, lane);
}

}  // namespace

Lane::Lane(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Lane::~Lane() = default;

Result<std::unique_ptr<Lane>> Lane::make(LaneOptions options) {
  if (options.threads < 1) {
    return Error{ErrorCode::kInvalidArgument, "A lane needs one thread or more."};
  }
  auto impl = std::make_unique<Impl>();
  impl->options = std::move(options);
  return std::unique_ptr<Lane>(new Lane(std::move(impl)));
}

Status Lane::run(Program& program, const RunBindings& bindings) {
  impl_->outputs.clear();
  impl_->kept.clear();
  return catching([&]() -> Status {
    c10::InferenceMode inference_mode;
    if (at::get_num_threads() != impl_->options.threads) {
      at::set_num_threads(impl_->options.threads);
    }
    ++impl_->stats.runs;
    return execute(program.impl(), bindings, *impl_);
  });
}

std::span<const OutputView> Lane::outputs() const {
  return impl_->outputs;
}
LaneStats Lane::stats() const {
  return impl_->stats;
}
void Lane::forget(const Program&) {}

}  // namespace djinn::exec
