// SPDX-License-Identifier: Apache-2.0

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <set>
#include <utility>

#include "kernel/base/fd.h"
#include "kernel/exec/allocator_hook.h"
#include "kernel/exec/attention_for_tests.h"
#include "kernel/exec/plan_cache.h"
#include "kernel/exec/torch_headers.h"

namespace djinn::exec {
namespace {

// What may be asked for of a small run beside what it holds.
constexpr uint64_t kTinyBytes = uint64_t{128} << 10;

// Allows up to a bound, and remembers the most that was asked for.
struct Bound final : HeapOwner {
  uint64_t bytes_max = 0;
  uint64_t most = 0;
  uint64_t settled = UINT64_MAX;
  NotDone refusal = Error{ErrorCode::kQuotaExceeded, "not so much"};
  Outcome<void> allow(uint64_t bytes) override {
    most = std::max(most, bytes);
    if (bytes <= bytes_max) return {};
    return refusal;
  }
  void settle(uint64_t bytes) override { settled = bytes; }
  std::optional<Pending> prepare(uint64_t bytes) override {
    prepared.push_back(bytes);
    return std::nullopt;
  }
  std::vector<uint64_t> prepared;
};

// A lane whose heap has that owner.
void give_lane(World& world, HeapOwner& owner) {
  LaneOptions options;
  options.threads = 2;
  options.grow_slab = world.slab.grow();
  options.heap = &owner;
  world.lane = *executor().make_lane(std::move(options));
}

at::Tensor empty_cache(const AttentionShape& shape) {
  return at::zeros({1, shape.kv_heads, shape.capacity, shape.dim},
                   at::TensorOptions().dtype(shape.type));
}

// One token after the other, 1 to 1024: only the first step of a bucket may record.
TEST(Plan, a_growing_sequence_misses_nothing_after_each_buckets_first_step) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const AttentionShape shape{.heads = 8, .kv_heads = 4, .dim = 32, .type = type};
    World world(attention_weights(shape), true);
    ASSERT_EQ(message_of(world.admit(attention_graph(shape))), "");
    const at::Tensor keys = empty_cache(shape), values = empty_cache(shape);
    const at::Tensor x = noise({1, 1, shape.hidden()}, 9, type);
    std::set<uint64_t> buckets;
    for (int64_t past = 0; past < 1024; ++past) {
      ASSERT_EQ(message_of(world.run({1, past}, {x, keys, values}, true)), "");
      const LaneStats stats = world.lane->stats();
      buckets.insert(std::bit_ceil(static_cast<uint64_t>(past)) + (past == 0 ? 1000000 : 0));
      ASSERT_EQ(stats.plan_misses, 0u) << past;
      ASSERT_EQ(stats.plan_records, buckets.size()) << past;
      const bool at_top =
          past == 1023 || (past > 0 && std::has_single_bit(static_cast<uint64_t>(past)));
      if (at_top) {
        EXPECT_LE(static_cast<double>(stats.planned_bytes),
                  1.02 * static_cast<double>(stats.peak_live_bytes))
            << past;
      }
    }
    EXPECT_EQ(world.lane->stats().planned_runs, 1024u);
  }
}

// Parts of a prompt, behind which are more keys each time; the attention is our own kernel's.
TEST(Plan, neither_do_parts_of_a_prompt_whose_numerics_are_fast) {
  const AttentionShape shape{
      .heads = 2, .kv_heads = 1, .dim = 128, .capacity = 4096, .type = at::kFloat};
  World plain(attention_weights(shape), true), world(attention_weights(shape), true);
  srg::Graph graph = attention_graph(shape);
  graph.numerics = srg::Numerics::kFast;
  ASSERT_EQ(message_of(plain.admit(graph)), "");
  for (srg::Node& node : graph.nodes) {
    if (node.op != "aten::scaled_dot_product_attention") continue;
    node.arguments.resize(3);
    for (const srg::ArgumentValue& value :
         {srg::ArgumentValue(srg::None{}), srg::ArgumentValue(0.0), srg::ArgumentValue(false)}) {
      node.arguments.push_back({"", value});
    }
    node.arguments.push_back({"scale", 0.25});
    node.arguments.push_back({"enable_gqa", true});
  }
  ASSERT_EQ(message_of(world.admit(graph)), "");
  ASSERT_EQ(world.program->fast_nodes(), plain.program->fast_nodes() + 1);
  const at::Tensor keys = empty_cache(shape), values = empty_cache(shape);
  constexpr int64_t kPart = 128;
  const at::Tensor x = noise({1, kPart, shape.hidden()}, 9);
  for (int64_t past = 0; past < shape.capacity; past += kPart) {
    ASSERT_EQ(message_of(world.run({kPart, past}, {x, keys, values}, true)), "");
    ASSERT_EQ(world.lane->stats().plan_misses, 0u) << past;
  }
}

TEST(Plan, a_replayed_step_gives_the_bytes_of_malloc_from_a_poisoned_slab) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const AttentionShape shape{.capacity = 128, .type = type};
    World planned(attention_weights(shape), true);
    World plain(attention_weights(shape), false);
    ASSERT_EQ(message_of(planned.admit(attention_graph(shape))), "");
    ASSERT_EQ(message_of(plain.admit(attention_graph(shape))), "");
    const at::Tensor keys = empty_cache(shape), values = empty_cache(shape);
    const at::Tensor keys2 = empty_cache(shape), values2 = empty_cache(shape);
    for (int64_t past = 0, tokens = 37; past + tokens <= 128; past += tokens, tokens = 1) {
      const at::Tensor x = noise({1, tokens, shape.hidden()}, 100 + past, type);
      planned.slab.poison();
      ASSERT_EQ(message_of(planned.run({tokens, past}, {x, keys, values}, true)), "");
      ASSERT_EQ(message_of(plain.run({tokens, past}, {x, keys2, values2}, true)), "");
      ASSERT_TRUE(same_bytes(planned.output(0), plain.output(0))) << past;
    }
    EXPECT_TRUE(same_bytes(keys, keys2));
    // oneDNN with AMX takes other scratch memory for one of the lengths, which is recorded then.
    EXPECT_LE(planned.lane->stats().plan_misses, 1u);
  }
}

TEST(Plan, a_rehearsal_touches_no_bound_bytes) {
  const AttentionShape shape{.capacity = 16};
  World world(attention_weights(shape), true);
  ASSERT_EQ(message_of(world.admit(attention_graph(shape))), "");
  const at::Tensor keys = noise({1, shape.kv_heads, 16, shape.dim}, 5);
  const at::Tensor before = keys.clone();
  ASSERT_EQ(message_of(world.run({1, 4}, {noise({1, 1, shape.hidden()}, 1), keys, keys}, true)),
            "");
  EXPECT_EQ(world.lane->stats().plan_records, 1u);
  EXPECT_TRUE(same_bytes(keys.narrow(2, 0, 4), before.narrow(2, 0, 4)));
  EXPECT_TRUE(same_bytes(keys.narrow(2, 5, 11), before.narrow(2, 5, 11)));
}

TEST(Plan, a_slab_that_nobody_grants_is_the_runs_error) {
  const AttentionShape shape{.capacity = 16};
  World world(attention_weights(shape), true);
  LaneOptions options;
  options.grow_slab = [](uint64_t, const OnProgress&) -> Outcome<std::span<std::byte>> {
    return Error{ErrorCode::kQuotaExceeded, "no"};
  };
  world.lane = *executor().make_lane(std::move(options));
  ASSERT_EQ(message_of(world.admit(attention_graph(shape))), "");
  const at::Tensor cache = empty_cache(shape);
  const Outcome<void> status =
      world.run({1, 0}, {noise({1, 1, shape.hidden()}, 1), cache, cache}, true);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kQuotaExceeded);
}

TEST(Plan, a_rehearsal_takes_no_more_than_its_heap_allows) {
  const AttentionShape shape{.capacity = 16};
  Bound bound;
  World world(attention_weights(shape), true);
  give_lane(world, bound);
  ASSERT_EQ(message_of(world.admit(attention_graph(shape))), "");
  const at::Tensor cache = empty_cache(shape), x = noise({1, 1, shape.hidden()}, 1);
  const uint64_t before = Heap::live_bytes();
  const Outcome<void> refused = world.run({1, 0}, {x, cache, cache}, true);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "not so much");
  EXPECT_EQ(Heap::live_bytes(), before);
  bound.bytes_max = UINT64_MAX;
  ASSERT_EQ(message_of(world.run({1, 0}, {x, cache, cache}, true)), "");
  EXPECT_EQ(bound.settled, before);
  EXPECT_GT(bound.most, before);
  bound.bytes_max = 0;  // a warm run needs none
  EXPECT_EQ(message_of(world.run({1, 0}, {x, cache, cache}, true)), "");
}

// Sets all of x, of n bytes, to zero.
srg::Graph clearing() {
  GraphBuilder b;
  const srg::Expr n = b.symbol("n", 1, 1 << 30);
  b.call("aten::zero_", {arg(b.input("x", DType::kUInt8, {n}))});
  b.output(b.call("aten::max", {arg(b.input("y", DType::kUInt8, {n}))}));
  return b.graph;
}

// A world with that graph whose lane's heap has an owner.
struct Clearing {
  explicit Clearing(Bound& bound) : world({}, true) {
    give_lane(world, bound);
    admitted = world.admit(clearing());
  }
  Outcome<void> run() { return world.run({kBytes}, {x, y}, true); }

  static constexpr int64_t kBytes = 3 << 20;
  static constexpr uint64_t kTopBytes = 4 << 20;
  World world;
  Status admitted;
  at::Tensor x = at::full({kBytes}, 1, at::kByte);
  at::Tensor y = at::full({kBytes}, 1, at::kByte);
};

TEST(Plan, inputs_that_a_rehearsal_writes_are_taken_from_the_heap) {
  Bound bound;
  Clearing clearing(bound);
  ASSERT_EQ(message_of(clearing.admitted), "");
  bound.bytes_max = UINT64_MAX;
  const uint64_t before = Heap::live_bytes();
  ASSERT_EQ(message_of(clearing.run()), "");
  EXPECT_GE(bound.most, before + Clearing::kTopBytes);
  EXPECT_LT(bound.most, before + 2 * Clearing::kTopBytes);  // what is only read takes none
  EXPECT_EQ(bound.settled, before);
  EXPECT_EQ(clearing.world.lane->stats().plan_records, 1u);
}

TEST(Plan, a_run_whose_rehearsal_may_not_have_so_much_is_recorded_itself) {
  Bound bound;
  Clearing clearing(bound);
  ASSERT_EQ(message_of(clearing.admitted), "");
  // Too little for what it writes, and for what it computes then.
  for (const auto& [code, beside_top] :
       {std::pair(ErrorCode::kQuotaExceeded, Clearing::kTopBytes - 1),
        std::pair(ErrorCode::kOutOfMemory, Clearing::kTopBytes)}) {
    bound.refusal = Error{code, "not so much"};
    clearing.world.lane->trim();
    bound.bytes_max = Heap::live_bytes() + beside_top;
    clearing.world.lane->forget(*clearing.world.program);
    ASSERT_EQ(message_of(clearing.run()), "");
    EXPECT_EQ(clearing.x.count_nonzero().item<int64_t>(), 0);
  }
  EXPECT_EQ(clearing.world.lane->stats().plan_records, 2u);
}

TEST(Plan, a_rehearsal_whose_memory_is_on_its_way_is_waited_for_before_anything_is_written) {
  Bound bound;
  Clearing clearing(bound);
  ASSERT_EQ(message_of(clearing.admitted), "");
  bound.refusal = Pending{};
  EXPECT_TRUE(clearing.run().is_pending());
  EXPECT_EQ(clearing.world.lane->stats().begun, 0u);
  EXPECT_EQ(clearing.x.count_nonzero().item<int64_t>(), Clearing::kBytes);
}

uint64_t resident_bytes() {
  const Fd statm(::open("/proc/self/statm", O_RDONLY | O_CLOEXEC));
  std::array<char, 256> text{};
  EXPECT_GT(::read(statm.get(), text.data(), text.size() - 1), 0);
  char* next = nullptr;
  ::strtoull(text.data(), &next, 10);  // the size
  return ::strtoull(next, nullptr, 10) * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

// One token of each head lies on a page of its own.
TEST(Plan, a_rehearsal_writes_no_sequence_buffer) {
  constexpr int64_t kHeads = 16384, kCapacity = 64, kDim = 16;
  constexpr uint64_t kBufferBytes = uint64_t{kHeads} * kCapacity * kDim * 4;
  GraphBuilder b;
  const srg::Expr past = b.symbol("past", 0, kCapacity - 1, srg::SymbolRole::kPast);
  const auto fresh = b.input("x", DType::kFloat32, {1, kHeads, 1, kDim});
  const auto keys = b.storage(srg::StorageKind::kSequence, "keys");
  b.call("djinn::kv_append",
         {arg(b.on_storage(keys, DType::kFloat32, {1, kHeads, kCapacity, kDim})), arg(fresh),
          arg(past)});
  b.output(b.call("aten::sum", {arg(fresh)}));
  World world({}, true);
  ASSERT_EQ(message_of(world.admit(b.graph)), "");
  const at::Tensor buffer = at::zeros({1, kHeads, kCapacity, kDim});
  const at::Tensor x = noise({1, kHeads, 1, kDim}, 3);
  std::vector<uint64_t> resident;
  world.lane->set_pulse([&](std::string_view) {
    resident.push_back(resident_bytes());
    return true;
  });
  ASSERT_EQ(message_of(world.run({2}, {x, buffer}, true)), "");
  ASSERT_GE(resident.size(), 4u);  // before each operator of the rehearsal, and of the run
  EXPECT_LT(resident[1], resident[0] + kBufferBytes / 4);
  EXPECT_TRUE(same_bytes(buffer.narrow(2, 2, 1), x));
  EXPECT_EQ(world.lane->stats().plan_misses, 0u);
  EXPECT_EQ(world.lane->stats().planned_runs, 1u);
}

// Three products of up to 1,024 rows, and what is between them.
srg::Graph layers(DType dtype) {
  GraphBuilder b;
  const srg::Expr tokens = b.symbol("tokens", 1, 1024);
  auto x = b.input("x", dtype, {tokens, 256});
  for (int i = 0; i < 3; ++i) {
    const auto up = b.weight("up", dtype, {1024, 256}), down = b.weight("down", dtype, {256, 1024});
    const auto wide = b.call("aten::gelu", {arg(b.call("aten::linear", {arg(x), arg(up)}))});
    x = b.call("aten::add.Tensor", {arg(x), arg(b.call("aten::linear", {arg(wide), arg(down)}))});
  }
  b.output(x);
  return b.graph;
}

// At the run's own bucket, however much more the program holds at its largest shapes.
TEST(Plan, a_buckets_first_run_asks_at_once_for_what_it_will_hold) {
  World world({{"up", noise({1024, 256}, 1)}, {"down", noise({256, 1024}, 2)}}, true);
  Bound bound;
  bound.bytes_max = UINT64_MAX;
  give_lane(world, bound);
  ASSERT_EQ(message_of(world.admit(layers(DType::kFloat32))), "");
  for (const int64_t tokens : {256, 8, 1024, 64}) {
    bound.prepared.clear();
    ASSERT_EQ(message_of(world.run({tokens}, {noise({tokens, 256}, 3), {}, {}})), "");
    const auto held = static_cast<double>(world.lane->stats().peak_live_bytes);
    ASSERT_FALSE(bound.prepared.empty());
    EXPECT_GE(static_cast<double>(bound.prepared[0]), held) << tokens;
    EXPECT_LE(static_cast<double>(bound.prepared[0]), 1.3 * held + kTinyBytes) << tokens;
  }
}

// Rows times tokens are no affine size: nothing is known of them, so nothing is refused for it.
TEST(Plan, a_small_run_of_sizes_that_cannot_be_foreseen_is_not_refused) {
  GraphBuilder b;
  const srg::Expr rows = b.symbol("rows", 1, 64), tokens = b.symbol("tokens", 1, 4096);
  const auto x = b.input("x", DType::kFloat32, {rows, tokens, 16});
  const auto flat = b.call("aten::flatten.using_ints", {arg(x), integer(0), integer(1)});
  const auto fresh = b.call("aten::neg", {arg(flat)});
  b.output(b.call("aten::sum", {arg(fresh)}));
  World world({}, true);
  ASSERT_EQ(message_of(world.admit(b.graph)), "");
  ASSERT_GT(world.program->activation_bytes_estimate(), uint64_t{16} << 20);
  world.lane->set_owner({.id = 1, .bytes_max = uint64_t{1} << 20});
  EXPECT_EQ(message_of(world.run({1, 8}, {noise({1, 8, 16}, 1)})), "");
}

TEST(Plan, what_cannot_fit_at_the_runs_own_symbols_is_refused_before_it_computes) {
  World world({{"up", noise({1024, 256}, 1)}, {"down", noise({256, 1024}, 2)}}, true);
  ASSERT_EQ(message_of(world.admit(layers(DType::kFloat32))), "");
  world.lane->set_owner({.id = 1, .bytes_max = uint64_t{1} << 20});
  const auto run = [&](int64_t tokens) {
    return world.run({tokens}, {noise({tokens, 256}, 3), {}, {}});
  };
  EXPECT_EQ(message_of(run(90)), "");  // of 128 it would be too large
  const uint64_t begun = world.lane->stats().begun;
  const Outcome<void> refused = run(1000);
  ASSERT_TRUE(refused.has_failed());
  EXPECT_EQ(refused.error().code, ErrorCode::kQuotaExceeded);
  EXPECT_EQ(world.lane->stats().begun, begun);
  EXPECT_EQ(message_of(run(7)), "");
}

// The last token of each row, whose product is one of batches in 16 bits: oneDNN copies the weight
// for each. Nobody knows what it holds beside that, but it is little.
TEST(Plan, a_first_run_asks_for_what_a_product_of_batches_copies) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
    for (const int64_t rows : {1, 3}) {
      GraphBuilder b;
      const srg::Expr n = b.symbol("n", 1, 512);
      const auto all = b.on_storage(b.storage(srg::StorageKind::kInput, "x"), dtype, {rows, n, 256},
                                    {n * 256, 256, 1});
      const auto last = b.call("aten::slice.Tensor", {arg(all), integer(1), integer(-1)});
      const auto w = b.weight("w", dtype, {8192, 256});
      b.output(b.call("aten::linear", {arg(last), arg(w)}));
      World world({{"w", noise({8192, 256}, 3, *to_torch(dtype))}}, true);
      ASSERT_EQ(message_of(world.admit(b.graph)), "");
      Bound bound;
      bound.bytes_max = UINT64_MAX;
      give_lane(world, bound);
      const at::Tensor input = noise({rows, 64, 256}, 4, *to_torch(dtype));
      ASSERT_EQ(message_of(world.run({64}, {input, {}})), "");
      EXPECT_TRUE(same_bytes(world.output(0), at::linear(input.slice(1, -1),
                                                         noise({8192, 256}, 3, *to_torch(dtype)))));
      const uint64_t peak = world.lane->stats().peak_live_bytes;
      const uint64_t asked = bound.prepared.front();
      SCOPED_TRACE(std::string(name_of(dtype)) + ", " + std::to_string(rows));
      EXPECT_LE(10 * asked, 13 * peak + 10 * kTinyBytes);
      EXPECT_GE(asked, peak);
    }
  }
}

// Sums of chunks, for weights whose outputs lie side by side.
TEST(Plan, a_first_run_asks_for_what_our_own_products_hold) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    GraphBuilder b;
    const srg::Expr n = b.symbol("n", 1, 32);
    const auto x =
        b.on_storage(b.storage(srg::StorageKind::kInput, "x"), dtype, {n, srg::Expr(768)});
    const auto w = b.weight("w", dtype, {768, 2304});
    b.output(b.call("aten::mm", {arg(x), arg(w)}));
    b.graph.numerics = srg::Numerics::kFast;
    World world({{"w", noise({768, 2304}, 3, *to_torch(dtype))}}, true);
    ASSERT_EQ(message_of(world.admit(b.graph)), "");
    ASSERT_EQ(world.program->fast_nodes(), 1u);
    for (const int64_t rows : {1, 32}) {
      Bound bound;
      bound.bytes_max = UINT64_MAX;
      give_lane(world, bound);
      ASSERT_EQ(message_of(world.run({rows}, {noise({rows, 768}, 4, *to_torch(dtype)), {}})), "");
      const uint64_t peak = world.lane->stats().peak_live_bytes;
      SCOPED_TRACE(std::string(name_of(dtype)) + ", " + std::to_string(rows));
      EXPECT_LE(10 * bound.prepared.front(), 13 * peak + 10 * kTinyBytes);
      EXPECT_GE(bound.prepared.front(), peak);
    }
  }
}

// As where one product of experts gives both halves.
TEST(Plan, a_first_run_asks_for_what_a_gate_of_parts_of_a_tensor_copies) {
  constexpr int64_t kWide = 4096;
  GraphBuilder b;
  const srg::Expr n = b.symbol("n", 1, 64);
  const auto both = b.storage(srg::StorageKind::kInput, "both");
  const auto half = [&] {
    return b.on_storage(both, DType::kFloat32, {n, srg::Expr(kWide)}, {2 * kWide, 1});
  };
  const auto x = half(), factor = half();
  b.graph.values.back().offset = kWide;
  b.output(b.call("aten::mul.Tensor", {arg(b.call("aten::silu", {arg(x)})), arg(factor)}));
  b.graph.numerics = srg::Numerics::kFast;
  World world({}, true);
  ASSERT_EQ(message_of(world.admit(b.graph)), "");
  ASSERT_EQ(world.program->fast_nodes(), 1u);
  for (const int64_t rows : {1, 64}) {
    Bound bound;
    bound.bytes_max = UINT64_MAX;
    give_lane(world, bound);
    ASSERT_EQ(message_of(world.run({rows}, {noise({rows, 2 * kWide}, 3)})), "");
    const uint64_t peak = world.lane->stats().peak_live_bytes;
    EXPECT_GE(peak, (rows == 1 ? 1 : 3) * rows * kWide * sizeof(float));
    EXPECT_LE(10 * bound.prepared.front(), 13 * peak + 10 * kTinyBytes);
    EXPECT_GE(bound.prepared.front(), peak);
  }
}

// At whatever point of it a run was refused memory: ATen would leave oneDNN for good.
TEST(Plan, a_run_that_was_refused_memory_leaves_later_runs_the_same_kernels) {
  GraphBuilder b;
  // The last of two tokens: a product of batches, which takes memory inside of oneDNN.
  const auto x = b.on_storage(b.storage(srg::StorageKind::kInput, "x"), DType::kBFloat16,
                              {1, 1, 896}, std::vector<srg::Expr>{2 * 896, 896, 1});
  const auto w = b.weight("w", DType::kBFloat16, {4096, 896});
  b.output(b.call("aten::linear", {arg(x), arg(w)}));
  b.symbol("n", 1, 1);  // so that it is rehearsed, with the heap's memory
  World world({{"w", noise({4096, 896}, 3, at::kBFloat16)}}, true);
  ASSERT_EQ(message_of(world.admit(b.graph)), "");
  const at::Tensor input = noise({1, 2, 896}, 4, at::kBFloat16).slice(1, 0, 1);
  const at::Tensor expected = at::linear(input, noise({4096, 896}, 3, at::kBFloat16));
  Bound bound;
  uint64_t refusals = 0;
  for (Outcome<void> ended = Error{ErrorCode::kQuotaExceeded, "not yet"}; !ended; ++refusals) {
    give_lane(world, bound);
    ended = world.run({1}, {input, {}});
    if (!ended) {
      ASSERT_EQ(message_of(ended), "not so much");
    }
    bound.bytes_max += 65536;
  }
  EXPECT_GT(refusals, 1u);
  EXPECT_TRUE(at::globalContext().userEnabledMkldnn());
  EXPECT_TRUE(same_bytes(world.output(0), expected));
}

TEST(Plan, a_slab_that_failed_to_grow_serves_on) {
  const AttentionShape shape{.capacity = 64};
  World world(attention_weights(shape), true);
  bool may_grow = true;
  std::vector<uint64_t> grown;
  LaneOptions options;
  options.grow_slab = [&](uint64_t bytes,
                          const OnProgress& on_progress) -> Outcome<std::span<std::byte>> {
    grown.push_back(bytes);
    if (may_grow) return world.slab.grow()(bytes, on_progress);
    return Error{ErrorCode::kQuotaExceeded, "no"};
  };
  world.lane = *executor().make_lane(std::move(options));
  ASSERT_EQ(message_of(world.admit(attention_graph(shape))), "");
  const at::Tensor cache = empty_cache(shape);
  const at::Tensor one = noise({1, 1, shape.hidden()}, 1), many = noise({1, 32, shape.hidden()}, 1);
  ASSERT_EQ(message_of(world.run({1, 0}, {one, cache, cache}, true)), "");
  may_grow = false;
  ASSERT_FALSE(world.run({32, 0}, {many, cache, cache}, true));
  ASSERT_EQ(message_of(world.run({1, 0}, {one, cache, cache}, true)), "");
  EXPECT_EQ(grown.size(), 2u);
}

// The number of ones decides how much nonzero allocates: the plan of zeros cannot fit.
TEST(Plan, a_run_unlike_its_plan_falls_back_counts_a_miss_and_is_recorded_anew) {
  GraphBuilder b;
  const auto x = b.input("x", DType::kFloat32, {16});
  b.output(b.call("aten::nonzero", {arg(x)}));
  World world({}, true);
  ASSERT_EQ(message_of(world.admit(b.graph)), "");
  const at::Tensor ones = at::full({16}, 1.0f);
  ASSERT_EQ(message_of(world.run({}, {at::zeros({16})})), "");
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(message_of(world.run({}, {ones})), "");
    EXPECT_EQ(world.output(0).size(0), 16);
  }
  const LaneStats stats = world.lane->stats();
  EXPECT_EQ(stats.plan_misses, 1u);
  EXPECT_EQ(stats.plan_records, 2u);
  EXPECT_EQ(stats.planned_runs, 2u);
}

// Six products of matrices, each of the two before.
srg::Graph products() {
  GraphBuilder b;
  auto before = b.input("x", DType::kFloat32, {33, 33});
  auto last = before;
  for (int i = 0; i < 6; ++i) {
    before = std::exchange(last, b.call("aten::mm", {arg(last), arg(before)}));
  }
  b.output(last);
  return b.graph;
}

TEST(Plan, a_program_without_symbols_is_computed_once_in_its_first_run_and_planned_in_the_next) {
  World planned({}, true), plain({}, false);
  ASSERT_EQ(message_of(planned.admit(products())), "");
  ASSERT_EQ(message_of(plain.admit(products())), "");
  int operators = 0;
  planned.lane->set_pulse([&](std::string_view name) {
    operators += name.empty() ? 0 : 1;
    return true;
  });
  for (int runs = 1; runs <= 3; ++runs) {
    const at::Tensor x = noise({33, 33}, static_cast<uint64_t>(runs));
    planned.slab.poison();
    ASSERT_EQ(message_of(planned.run({}, {x})), "");
    ASSERT_EQ(message_of(plain.run({}, {x})), "");
    EXPECT_TRUE(same_bytes(planned.output(0), plain.output(0)));
    EXPECT_EQ(operators, 6 * runs);
    EXPECT_EQ(planned.lane->stats().plan_records, 1u);
    EXPECT_EQ(planned.lane->stats().planned_runs, static_cast<uint64_t>(runs - 1));
  }
  EXPECT_EQ(planned.lane->stats().plan_misses, 0u);
}

// One operator, and some allocations a step.
srg::Graph recurrence(srg::Expr steps) {
  GraphBuilder b;
  const auto x = b.input("x", DType::kFloat32, {std::move(steps), 1, 4});
  const auto h = b.input("h", DType::kFloat32, {1, 1, 4});
  const auto input_weight = b.input("a", DType::kFloat32, {12, 4});
  const auto hidden_weight = b.input("b", DType::kFloat32, {12, 4});
  const auto results =
      b.call_many("aten::gru.input",
                  {arg(x), arg(h), arg(srg::ValueList{{input_weight.id, hidden_weight.id}}),
                   arg(false), arg(1), arg(0.0), arg(false), arg(false), arg(false)},
                  2);
  b.output(results[0]);
  return b.graph;
}

TEST(Plan, a_run_of_too_many_allocations_is_served_by_an_arena_of_its_peak) {
  constexpr int64_t kSteps = 4096;
  World plain({}, false);
  ASSERT_EQ(message_of(plain.admit(recurrence(kSteps))), "");
  const at::Tensor h = noise({1, 1, 4}, 2), a = noise({12, 4}, 3), b = noise({12, 4}, 4);
  Bound bound;
  World world({}, true);
  give_lane(world, bound);
  ASSERT_EQ(message_of(world.admit(recurrence(kSteps))), "");
  bound.bytes_max = UINT64_MAX;
  for (uint64_t runs = 0; runs < 3; ++runs) {
    const at::Tensor x = noise({kSteps, 1, 4}, 10 + runs);
    ASSERT_EQ(message_of(plain.run({}, {x, h, a, b})), "");
    world.slab.poison();
    ASSERT_EQ(message_of(world.run({}, {x, h, a, b})), "");
    EXPECT_TRUE(same_bytes(world.output(0), plain.output(0)));
    EXPECT_EQ(world.lane->stats().plan_records, 1u);
    EXPECT_EQ(world.lane->stats().plan_misses, runs);
    bound.bytes_max = 0;  // the arena's memory is all that later runs take
  }
}

TEST(RunOnce, gives_the_bytes_of_malloc_from_a_poisoned_slab) {
  World planned({}, true), plain({}, false);
  ASSERT_EQ(message_of(planned.admit(products())), "");
  ASSERT_EQ(message_of(plain.admit(products())), "");
  const at::Tensor x = noise({33, 33}, 7);
  ASSERT_EQ(message_of(plain.run({}, {x})), "");
  for (int i = 0; i < 3; ++i) {
    planned.slab.poison();
    ASSERT_EQ(message_of(planned.run_once({x})), "");
    EXPECT_TRUE(same_bytes(planned.output(0), plain.output(0)));
  }
}

TEST(RunOnce, computes_each_operator_once_and_keeps_no_plan) {
  World world({}, true);
  ASSERT_EQ(message_of(world.admit(products())), "");
  int operators = 0;
  world.lane->set_pulse([&](std::string_view name) {
    operators += name.empty() ? 0 : 1;
    return true;
  });
  ASSERT_EQ(message_of(world.run_once({noise({33, 33}, 7)})), "");
  EXPECT_EQ(operators, 6);
  EXPECT_EQ(world.lane->stats().plan_records, 0u);
  EXPECT_EQ(world.lane->stats().plan_misses, 0u);
}

TEST(RunOnce, a_slab_that_is_on_its_way_is_waited_for_before_anything_is_computed) {
  World world({}, true);
  ASSERT_EQ(message_of(world.admit(products())), "");
  LaneOptions options;
  options.grow_slab = [](uint64_t, const OnProgress&) -> Outcome<std::span<std::byte>> {
    return Pending{};
  };
  world.lane = *executor().make_lane(std::move(options));
  bool computed = false;
  world.lane->set_pulse([&](std::string_view) { return computed = true; });
  EXPECT_TRUE(world.run_once({noise({33, 33}, 7)}).is_pending());
  EXPECT_FALSE(computed);
  EXPECT_EQ(world.lane->stats().runs, 0u);
}

TEST(Arena, gives_places_that_are_free_and_leaves_the_rest_to_the_heap) {
  constexpr size_t kPlace = kTensorAlignment;
  alignas(kPlace) std::array<std::byte, 4 * kPlace> slab{};
  const RegisteredSlab registered(slab);
  NoBound bound;
  Heap heap(bound);
  Arena arena(slab, heap);
  const ScopedSink scope(arena);
  void* const first = arena.allocate(2 * kPlace - 1);
  void* const second = arena.allocate(2 * kPlace);
  EXPECT_EQ(first, slab.data());
  EXPECT_EQ(second, slab.data() + 2 * kPlace);
  EXPECT_EQ(arena.allocate(0), nullptr);
  void* const none_left = arena.allocate(1);
  EXPECT_FALSE(none_left >= slab.data() && none_left < slab.data() + slab.size());
  release(first);
  EXPECT_EQ(arena.allocate(kPlace), first);
  release(none_left);
  release(second);
  EXPECT_EQ(arena.allocate(3 * kPlace), slab.data() + kPlace);
}

TEST(Replayer, serves_the_nth_allocation_at_its_place_and_leaves_the_plan_on_a_misfit) {
  alignas(64) std::array<std::byte, 256> slab{};
  const RegisteredSlab registered(slab);
  const std::vector<Placement> plan{{0, 64}, {0, 0}, {64, 128}};
  NoBound owner;
  Heap heap(owner);
  Replayer replayer(plan, slab, heap);
  EXPECT_EQ(replayer.allocate(10), slab.data());
  EXPECT_EQ(replayer.allocate(0), nullptr);
  EXPECT_TRUE(replayer.fits());
  void* const large = replayer.allocate(129);
  EXPECT_FALSE(replayer.fits());
  EXPECT_NE(large, slab.data() + 64);
  release(large);
}

TEST(Replayer, never_hands_out_a_byte_that_is_still_alive) {
  alignas(64) std::array<std::byte, 64> slab{};
  const std::vector<Placement> plan{{0, 64}, {0, 64}};
  NoBound owner;
  Heap heap(owner);
  Replayer replayer(plan, slab, heap);
  void* const first = replayer.allocate(64);
  void* const second = replayer.allocate(64);  // the first was to be dead by now
  EXPECT_NE(first, second);
  EXPECT_FALSE(replayer.fits());
  release(second);
}

TEST(Recorder, writes_down_sizes_and_lifetimes) {
  NoBound owner;
  Heap heap(owner);
  Arena without_slab({}, heap);
  Recorder recorder(without_slab);
  void* const a = recorder.allocate(100);
  EXPECT_EQ(recorder.allocate(0), nullptr);
  void* const b = recorder.allocate(50);
  recorder.released(a);
  void* const c = recorder.allocate(30);
  const auto lifetimes = recorder.finish();
  ASSERT_EQ(lifetimes.size(), 4u);
  EXPECT_EQ(lifetimes[0], (vmu::Lifetime{100, 0, 3}));
  EXPECT_EQ(lifetimes[1].bytes, 0u);
  EXPECT_EQ(lifetimes[3].first, 4u);
  EXPECT_GE(lifetimes[2].last, lifetimes[3].first);
  EXPECT_EQ(recorder.peak_live_bytes(), 2 * kTensorAlignment);
  for (void* memory : {a, b, c}) release(memory);
}

TEST(Recorder, keeps_the_peak_alone_of_a_run_of_too_many_allocations) {
  NoBound owner;
  Heap heap(owner);
  Arena without_slab({}, heap);
  Recorder recorder(without_slab);
  void* const lasting = recorder.allocate(1000);
  for (size_t i = 1; i < Recorder::kAllocationsMax; ++i) recorder.skip();
  EXPECT_FALSE(recorder.is_too_long());
  EXPECT_EQ(recorder.finish().size(), Recorder::kAllocationsMax);
  void* const late = recorder.allocate(kTensorAlignment);
  EXPECT_TRUE(recorder.is_too_long());
  EXPECT_TRUE(recorder.finish().empty());
  for (void* memory : {lasting, late}) {
    recorder.released(memory);
    release(memory);
  }
  void* const last = recorder.allocate(1000);
  EXPECT_EQ(recorder.peak_live_bytes(), 3 * kTensorAlignment);
  release(last);
}

// Its programs are addresses that nobody reads.
TEST(PlanCache, keeps_the_plans_that_were_used_last_within_its_limit) {
  constexpr size_t kFit = kPlacesMax / Recorder::kAllocationsMax;
  std::array<char, kFit + 2> programs{};
  const std::vector<vmu::Lifetime> many(Recorder::kAllocationsMax);
  PlanCache cache;
  for (size_t i = 0; i < kFit; ++i) cache.learn(cache.plan(&programs[i], {}), many);
  EXPECT_EQ(cache.places(), kPlacesMax);
  EXPECT_FALSE(cache.plan(programs.data(), {}).needs_record);
  cache.learn(cache.plan(&programs[kFit], {}), many);
  EXPECT_EQ(cache.places(), kPlacesMax);
  EXPECT_TRUE(cache.plan(&programs[1], {}).needs_record);
  EXPECT_FALSE(cache.plan(programs.data(), {}).needs_record);
  cache.use_arena(cache.plan(programs.data(), {}), 64);
  cache.forget(&programs[2]);
  cache.forget(&programs[2]);
  EXPECT_EQ(cache.places(), kPlacesMax - 2 * Recorder::kAllocationsMax);
}

TEST(Buckets, round_up_to_a_power_of_two_within_the_range) {
  GraphBuilder b;
  b.symbol("n", 0, 100);
  for (const auto& [value, top] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 0}, {1, 1}, {3, 4}, {64, 64}, {65, 100}, {100, 100}}) {
    EXPECT_EQ(bucket_top(b.graph, std::vector<int64_t>{value}), (std::vector<int64_t>{top}));
  }
}

}  // namespace
}  // namespace djinn::exec
