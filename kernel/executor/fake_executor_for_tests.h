// SPDX-License-Identifier: Apache-2.0

// FakeExecutor: an executor without kernels, for tests of whoever runs graphs. What it computes is
// simple and the same each time; what else it does, the graph says by its operators. A node's
// result has the dtype and sizes that the graph claims of it.
//
//   fake::add_one(x)    float32: each element, and one
//   fake::add_one_(x)   likewise, in place: its input is written
//   fake::fail()        fails as an operator's refusal does
//   fake::take_heap(n)  asks the lane's heap owner for n bytes in all
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernel/executor/executor.h"
#include "kernel/executor/output.h"
#include "kernel/srg/expr.h"

namespace djinn::exec {

class FakeProgram final : public Program {
 public:
  explicit FakeProgram(srg::Graph graph) : graph_(std::move(graph)) {
    for (const srg::ValueId id : graph_.outputs) {
      const srg::Value& value = graph_.values[id];
      outputs_.push_back({value.name, value.dtype, value.sizes, true});
    }
    for (const srg::Node& node : graph_.nodes) {
      if (node.op == "fake::add_one_") written_.push_back(argument(node).storage);
    }
  }

  [[nodiscard]] const srg::Graph& graph() const override { return graph_; }
  [[nodiscard]] std::span<const OutputInfo> outputs() const override { return outputs_; }
  [[nodiscard]] uint64_t activation_bytes_estimate() const override { return 0; }
  Result<std::vector<WrittenRange>> written_ranges(
      std::span<const int64_t> symbols) const override {
    std::vector<WrittenRange> ranges;
    for (const srg::Value& value : graph_.values) {
      if (std::ranges::find(written_, value.storage) == written_.end()) continue;
      ranges.push_back({value.storage, 0, elements(value, symbols) * size_of(value.dtype)});
    }
    return ranges;
  }
  [[nodiscard]] bool writes_nothing() const override { return written_.empty(); }

  [[nodiscard]] const std::vector<srg::StorageIndex>& written() const { return written_; }
  // The value that is the node's first argument.
  [[nodiscard]] const srg::Value& argument(const srg::Node& node) const {
    return graph_.values[std::get<srg::ValueRef>(node.arguments[0].value).id];
  }
  static uint64_t elements(const srg::Value& value, std::span<const int64_t> symbols) {
    uint64_t count = 1;
    for (const srg::Expr& size : value.sizes) {
      count *= static_cast<uint64_t>(srg::evaluate(size, symbols).value());
    }
    return count;
  }

 private:
  srg::Graph graph_;
  std::vector<OutputInfo> outputs_;
  std::vector<srg::StorageIndex> written_;
};

class FakeLane final : public Lane {
 public:
  explicit FakeLane(LaneOptions options) : options_(std::move(options)) {}

  [[nodiscard]] Status check_size(const Program&) const override { return {}; }
  Status run(Program& program, const RunBindings& bindings) override {
    return run_once(program, bindings);
  }
  Status run_once(const Program& program, const RunBindings& bindings) override {
    trim();
    ++stats_.runs;
    ++stats_.begun;
    const auto& fake = static_cast<const FakeProgram&>(program);
    std::map<srg::ValueId, std::vector<std::byte>> made;
    for (const srg::Node& node : fake.graph().nodes) {
      if (pulse_ && !pulse_(node.op)) return Error{ErrorCode::kCancelled, "It was given up."};
      DJINN_CHECK(call(fake, node, bindings, made));
    }
    for (const srg::ValueId id : fake.graph().outputs) keep(fake, id, bindings, made[id]);
    return {};
  }
  [[nodiscard]] std::span<const OutputView> outputs() const override { return outputs_; }
  [[nodiscard]] LaneStats stats() const override { return stats_; }
  void set_owner(const LaneOwner&) override {}
  void set_pulse(std::function<bool(std::string_view)> pulse) override {
    pulse_ = std::move(pulse);
  }
  Result<HeapBytes> allocate(uint64_t bytes) override {
    constexpr std::align_val_t kAlignment{64};
    const auto release = [](std::byte* memory) { ::operator delete(memory, kAlignment); };
    auto* const memory = static_cast<std::byte*>(::operator new(bytes, kAlignment));
    return HeapBytes(memory, HeapDeleter{release});
  }
  void trim() override {
    outputs_.clear();
    kept_.clear();
  }
  void forget(const Program&) override {}
  Status copy_elements(const OutputView& view, std::span<std::byte> out) override {
    return exec::copy_elements(view, out);
  }
  void copy_past_caches(std::span<const std::byte> from, std::span<std::byte> to) override {
    std::memcpy(to.data(), from.data(), from.size());
  }

 private:
  using Made = std::map<srg::ValueId, std::vector<std::byte>>;

  Status call(const FakeProgram& program, const srg::Node& node, const RunBindings& bindings,
              Made& made) {
    if (node.op == "fake::fail")
      return Error{ErrorCode::kInvalidArgument, "fake::fail has failed."};
    if (node.op == "fake::take_heap") {
      const auto bytes = std::get<srg::Expr>(node.arguments[0].value).constant;
      return options_.heap->allow(static_cast<uint64_t>(bytes));
    }
    const srg::Value& x = program.argument(node);
    std::byte* const from = bindings.storages[x.storage].data;
    const uint64_t count = FakeProgram::elements(x, bindings.symbols);
    std::vector<float> numbers(count);
    std::memcpy(numbers.data(), from, count * sizeof(float));
    for (float& number : numbers) number += 1;
    std::vector<std::byte>& result = made[node.outputs[0]];
    const auto bytes = std::as_bytes(std::span(numbers));
    result.assign(bytes.begin(), bytes.end());
    if (node.op == "fake::add_one_") std::memcpy(from, result.data(), result.size());
    return {};
  }

  void keep(const FakeProgram& program, srg::ValueId id, const RunBindings& bindings,
            std::vector<std::byte> bytes) {
    const srg::Value& value = program.graph().values[id];
    OutputView view;
    view.dtype = value.dtype;
    for (const srg::Expr& size : value.sizes) {
      view.sizes.push_back(srg::evaluate(size, bindings.symbols).value());
    }
    view.strides.assign(view.sizes.size(), 1);
    for (size_t d = view.sizes.size(); d > 1; --d) {
      view.strides[d - 2] = view.strides[d - 1] * view.sizes[d - 1];
    }
    kept_.push_back(std::make_unique<std::vector<std::byte>>(std::move(bytes)));
    view.storage = kept_.back()->data();
    view.storage_bytes = kept_.back()->size();
    outputs_.push_back(std::move(view));
  }

  LaneOptions options_;
  LaneStats stats_;
  std::function<bool(std::string_view)> pulse_;
  std::vector<std::unique_ptr<std::vector<std::byte>>> kept_;  // what outputs_ points into
  std::vector<OutputView> outputs_;
};

class FakeExecutor final : public Executor {
 public:
  Result<std::unique_ptr<Program>> admit(srg::Graph graph, const WeightTable&,
                                         const AdmissionLimits&) override {
    return std::unique_ptr<Program>(new FakeProgram(std::move(graph)));
  }
  [[nodiscard]] std::vector<srg::StorageIndex> inputs_written(
      const srg::Graph& graph) const override {
    return FakeProgram(graph).written();
  }
  Result<std::unique_ptr<Lane>> make_lane(LaneOptions options) override {
    return std::unique_ptr<Lane>(new FakeLane(std::move(options)));
  }
  void warm_up(int) override {}
};

}  // namespace djinn::exec
