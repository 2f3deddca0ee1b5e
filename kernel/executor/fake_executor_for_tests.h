// SPDX-License-Identifier: Apache-2.0

// FakeExecutor: an executor without kernels, for tests of whoever runs graphs. What it computes is
// simple and the same each time; what else it does, the graph says by its operators. A node's
// result has the dtype and sizes that the graph claims of it.
//
//   fake::add_one(x)         float32: each element, and one
//   fake::add_one_(x)        likewise, in place: its input is written
//   fake::logits(ids)        float32 [rows, vocabulary] of int64 [rows, tokens]: the likeliest
//   token
//                            is the one after the row's last
//   fake::nothing(...)       computes nothing
//   fake::refuse()           is not admitted
//   fake::fail()             fails as an operator's refusal does
//   fake::take_heap(n)       asks the lane's heap owner for n bytes in all
//   fake::take_slab(n)       asks for a slab of n bytes
//   fake::wait()             computes until the run is given up
//   fake::wait_in_admission() likewise, until its admission is
//
// In a process of its own:
//
//   fake::hang()             computes for ever, without a sign of life
//   fake::stop()             stops the process
//   fake::die()              ends the process
//   fake::die_in_admission() crashes, instead of being admitted
//   fake::hang_in_admission() computes for ever instead
//   fake::stick()            computes nothing; the lane that forgets its program hangs
#pragma once

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernel/base/assert.h"
#include "kernel/executor/executor.h"
#include "kernel/executor/host_lane.h"
#include "kernel/srg/expr.h"
#include "kernel/srg/sequence_reach.h"

namespace djinn::exec {

class FakeProgram final : public Program {
 public:
  // weights: of the graph's, or null where nothing is to be run.
  explicit FakeProgram(srg::Graph graph, const WeightTable* weights = nullptr)
      : graph_(std::move(graph)), weights_(weights) {
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
  [[nodiscard]] uint64_t activation_bytes_at(std::span<const int64_t>) const override { return 0; }
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
  [[nodiscard]] bool reaches_capacity() const override { return !srg::stays_in_tokens(graph_); }
  [[nodiscard]] uint32_t fast_nodes() const override {
    return graph_.numerics == srg::Numerics::kExact ? 0 : 1;
  }

  [[nodiscard]] const std::vector<srg::StorageIndex>& written() const { return written_; }
  [[nodiscard]] bool has(std::string_view op) const {
    return std::ranges::any_of(graph_.nodes, [&](const srg::Node& node) { return node.op == op; });
  }
  // The first weight that the graph names and its model does not have.
  [[nodiscard]] const srg::Storage* missing_weight() const {
    for (const srg::Storage& storage : graph_.storages) {
      const bool is_weight = storage.kind == srg::StorageKind::kWeight;
      if (is_weight && weights_->find(storage.name) == nullptr) return &storage;
    }
    return nullptr;
  }
  [[nodiscard]] DeviceAddress data(srg::StorageIndex storage, const RunBindings& bindings) const {
    const srg::Storage& from = graph_.storages[storage];
    return from.kind == srg::StorageKind::kWeight ? weights_->find(from.name)->data
                                                  : bindings.storages[storage].data;
  }
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
  const WeightTable* weights_;
  std::vector<OutputInfo> outputs_;
  std::vector<srg::StorageIndex> written_;
};

// What does not come back.
[[noreturn]] inline void hang() {
  for (;;) ::getppid();
}

class FakeLane final : public HostLane {
 public:
  explicit FakeLane(LaneOptions options) : options_(std::move(options)) {}

  [[nodiscard]] Status check_size(const Program&, std::span<const int64_t>) const override {
    return {};
  }
  Outcome<void> run(Program& program, const RunBindings& bindings) override {
    return run_once(program, bindings);
  }
  Outcome<void> run_once(const Program& program, const RunBindings& bindings) override {
    drop_outputs();
    ++stats_.runs;
    ++stats_.begun;
    const auto& fake = static_cast<const FakeProgram&>(program);
    std::map<srg::ValueId, std::vector<std::byte>> made;
    failed_at_.reset();
    const auto pulse = pulse_;  // inside of it, runs may have another
    for (size_t i = 0; i < fake.graph().nodes.size(); ++i) {
      const srg::Node& node = fake.graph().nodes[i];
      if (pulse && !pulse(node.op)) return Error{ErrorCode::kCancelled, "It was given up."};
      Outcome<void> called = call(fake, node, bindings, made);
      if (!called) {
        failed_at_ = i;
        return called;
      }
    }
    for (const srg::ValueId id : fake.graph().outputs) keep(fake, id, bindings, made[id]);
    if (options_.heap != nullptr) options_.heap->settle(0);
    return {};
  }
  // One after the other.
  std::vector<bool> run_together(const Program& program,
                                 std::span<const RunTogether> runs) override {
    std::vector<bool> done;
    const auto alone = std::exchange(pulse_, nullptr);
    std::vector<OutputsOfOne> made;
    for (const RunTogether& one : runs) {
      pulse_ = one.pulse;
      done.push_back(run_once(program, one.bindings).ok());
      made.push_back({std::move(kept_), std::move(outputs_)});
    }
    drop_outputs();
    together_ = std::move(made);
    pulse_ = alone;
    stats_.runs_together += static_cast<uint64_t>(std::ranges::count(done, true));
    return done;
  }
  [[nodiscard]] std::span<const OutputView> outputs_of(size_t run) const override {
    return together_[run].views;
  }
  [[nodiscard]] std::span<const OutputView> outputs() const override { return outputs_; }
  [[nodiscard]] std::optional<size_t> failed_at() const override { return failed_at_; }
  [[nodiscard]] LaneStats stats() const override { return stats_; }
  void set_owner(const LaneOwner&) override {}
  void set_pulse(std::function<bool(std::string_view)> pulse) override {
    pulse_ = std::move(pulse);
  }
  void pause() override {
    DJINN_ASSERT(!aside_);
    aside_.emplace(Aside{std::move(pulse_), failed_at_});
    pulse_ = nullptr;
  }
  void resume() override {
    drop_outputs();
    pulse_ = std::move(aside_->pulse);
    failed_at_ = aside_->failed_at;
    aside_.reset();
  }
  [[nodiscard]] bool is_paused() const { return aside_.has_value(); }
  Outcome<HeapBytes> allocate(uint64_t bytes) override {
    constexpr std::align_val_t kAlignment{64};
    const auto release = [](DeviceAddress memory) {
      ::operator delete(memory.on_host(), kAlignment);
    };
    const auto* const memory = static_cast<std::byte*>(::operator new(bytes, kAlignment));
    return HeapBytes(DeviceAddress(memory), HeapDeleter{release});
  }
  void trim() override {
    drop_outputs();
    if (options_.heap != nullptr) options_.heap->trim(0);
  }
  void forget(const Program& program) override {
    if (static_cast<const FakeProgram&>(program).has("fake::stick")) hang();
  }
  void copy_past_caches(std::span<const DeviceCopy> copies) override {
    for (const DeviceCopy& one : copies) copy(one.from, one.to, one.bytes);
  }

 private:
  using Made = std::map<srg::ValueId, std::vector<std::byte>>;
  using Kept = std::vector<std::unique_ptr<std::vector<std::byte>>>;
  struct OutputsOfOne {
    Kept kept;
    std::vector<OutputView> views;
  };

  void drop_outputs() {
    together_.clear();
    outputs_.clear();
    kept_.clear();
  }

  Outcome<void> call(const FakeProgram& program, const srg::Node& node, const RunBindings& bindings,
                     Made& made) {
    if (node.op == "fake::add_one" || node.op == "fake::add_one_") {
      add_one(program, node, bindings, made[node.outputs[0]]);
    } else if (node.op == "fake::logits") {
      make_logits(program, node, bindings, made[node.outputs[0]]);
    } else if (node.op == "fake::take_heap") {
      return options_.heap->allow(number(node));
    } else if (node.op == "fake::take_slab") {
      return take_slab(number(node));
    } else {
      return misbehave(node.op);
    }
    return {};
  }
  static uint64_t number(const srg::Node& node) {
    return static_cast<uint64_t>(std::get<srg::Expr>(node.arguments[0].value).constant);
  }

  Status misbehave(const std::string& op) const {
    if (op == "fake::fail") return Error{ErrorCode::kInvalidArgument, "fake::fail has failed."};
    if (op == "fake::hang") hang();
    if (op == "fake::stop") ::raise(SIGSTOP);
    if (op == "fake::die") ::_exit(6);
    const auto pulse = pulse_;
    while (op == "fake::wait") {
      if (!pulse(op)) return Error{ErrorCode::kCancelled, "It was given up."};
      std::this_thread::yield();
    }
    return {};
  }

  Outcome<void> take_slab(uint64_t bytes) {
    DJINN_TRY(const std::span<std::byte> slab, options_.grow_slab(bytes, [this] {
      if (pulse_) pulse_({});
    }));
    DJINN_ASSERT(slab.size() >= bytes);
    stats_.planned_bytes = slab.size();
    return {};
  }

  static void add_one(const FakeProgram& program, const srg::Node& node,
                      const RunBindings& bindings, std::vector<std::byte>& result) {
    const srg::Value& x = program.argument(node);
    std::vector<float> numbers(FakeProgram::elements(x, bindings.symbols));
    std::memcpy(numbers.data(), program.data(x.storage, bindings).on_host(),
                numbers.size() * sizeof(float));
    for (float& element : numbers) element += 1;
    const auto bytes = std::as_bytes(std::span(numbers));
    result.assign(bytes.begin(), bytes.end());
    if (node.op == "fake::add_one_") {
      std::memcpy(bindings.storages[x.storage].data.on_host(), result.data(), result.size());
    }
  }

  static void make_logits(const FakeProgram& program, const srg::Node& node,
                          const RunBindings& bindings, std::vector<std::byte>& result) {
    const srg::Value& ids = program.argument(node);
    const srg::Value& logits = program.graph().values[node.outputs[0]];
    const auto size = [&](const srg::Expr& expr) {
      return static_cast<uint64_t>(srg::evaluate(expr, bindings.symbols).value());
    };
    const uint64_t tokens = size(ids.sizes[1]);
    const uint64_t vocabulary = size(logits.sizes[1]);
    std::vector<float> scores(size(logits.sizes[0]) * vocabulary);
    for (uint64_t row = 0; row * vocabulary < scores.size(); ++row) {
      int64_t last = 0;
      std::memcpy(
          &last,
          (program.data(ids.storage, bindings) + ((row + 1) * tokens - 1) * sizeof last).on_host(),
          sizeof last);
      scores[row * vocabulary + (static_cast<uint64_t>(last) + 1) % vocabulary] = 1;
    }
    const auto bytes = std::as_bytes(std::span(scores));
    result.assign(bytes.begin(), bytes.end());
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
  Kept kept_;  // what outputs_ points into
  std::vector<OutputsOfOne> together_;
  std::vector<OutputView> outputs_;
  std::optional<size_t> failed_at_;
  // A run has no outputs before it ends.
  struct Aside {
    std::function<bool(std::string_view)> pulse;
    std::optional<size_t> failed_at;
  };
  std::optional<Aside> aside_;
};

class FakeExecutor final : public Executor {
 public:
  Result<std::unique_ptr<Program>> admit(srg::Graph graph, const WeightTable& weights,
                                         const AdmissionLimits& limits) override {
    auto program = std::make_unique<FakeProgram>(std::move(graph), &weights);
    if (program->has("fake::die_in_admission")) ::raise(SIGSEGV);
    if (program->has("fake::hang_in_admission")) hang();
    while (program->has("fake::wait_in_admission")) DJINN_CHECK(limits.go_on());
    if (program->has("fake::refuse")) {
      return Error{ErrorCode::kUnsupported, "fake::refuse is not admitted."};
    }
    if (const srg::Storage* const missing = program->missing_weight(); missing != nullptr) {
      return Error{ErrorCode::kNotFound, "The model has no weight '" + missing->name + "'."};
    }
    return std::unique_ptr<Program>(std::move(program));
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
