// SPDX-License-Identifier: Apache-2.0

// Tiny models generate on a GPU with our own kernels, which are emulated, as they do on the host
// with PyTorch's: captures of their prompts and of their token steps, over one cache.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "kernel/exec/cuda/gpu_for_tests.h"
#include "kernel/exec/given_for_tests.h"
#include "kernel/exec/program.h"

namespace djinn::exec {
namespace {

constexpr int64_t kCapacity = 61;
constexpr int64_t kPrompt = 11;
constexpr int64_t kSteps = 12;

srg::Capture capture_of(const std::string& name) {
  Result<srg::Graph> graph =
      srg::parse_text(srg::content_of(srg::captures_folder() / (name + ".srg")));
  DJINN_ASSERT(graph.ok());
  return {name, *std::move(graph)};
}

// A device's programs of one model, with a cache of its own.
class Generator {
 public:
  Generator(Executor& executor, const srg::Capture& prefill, const srg::Capture& decode,
            srg::Numerics numerics, const std::map<std::string, at::Tensor>& weights)
      : weights_(table_of(weights)), executor_(executor) {
    programs_[0] = admit(prefill.graph, numerics);
    programs_[1] = admit(decode.graph, numerics);
    make_lane();
  }

  // As behind a worker's death: what is committed is the cache.
  void make_lane() {
    lane_.reset();
    LaneOptions options;
    options.threads = 2;
    options.grow_slab = slab_.grow();
    lane_ = *executor_.make_lane(std::move(options));
  }

  // The last logits of these tokens, behind `past` others.
  at::Tensor run(const std::vector<int64_t>& tokens, int64_t past) {
    Program& program = *programs_[past == 0 ? 0 : 1];
    const srg::Graph& graph = program.graph();
    const auto count = static_cast<int64_t>(tokens.size());
    const Point at = point(graph, count, past);
    std::vector<at::Tensor> bound;
    std::vector<StorageBinding> bindings;
    for (srg::StorageIndex i = 0; i < graph.storages.size(); ++i) {
      bound.push_back(bind(graph, i, at, tokens));
      bindings.push_back(World::binding_of(bound.back(), true));
    }
    EXPECT_EQ(message_of(lane_->run(program, {at.symbols, bindings, {}, at.begin, at.end})), "");
    const OutputView& view = lane_->outputs()[0];
    at::Tensor logits = at::zeros(view.sizes, *to_torch(view.dtype));
    const std::span<std::byte> bytes(static_cast<std::byte*>(logits.mutable_data_ptr()),
                                     logits.nbytes());
    EXPECT_TRUE(lane_->copy_out(view, bytes).ok());
    return logits.flatten().to(at::kDouble);
  }

  [[nodiscard]] const CpuProgram& program(size_t which) const {
    return dynamic_cast<const CpuProgram&>(*programs_[which]);
  }

 private:
  static WeightTable table_of(const std::map<std::string, at::Tensor>& tensors) {
    std::vector<Weight> list;
    for (const auto& [name, tensor] : tensors) {
      list.push_back({name, from_torch(tensor.scalar_type()), tensor.sizes().vec(),
                      static_cast<const std::byte*>(tensor.const_data_ptr())});
    }
    return WeightTable(std::move(list));
  }

  std::unique_ptr<Program> admit(srg::Graph graph, srg::Numerics numerics) {
    graph.numerics = numerics;
    auto admitted = executor_.admit(std::move(graph), weights_, {UINT64_MAX});
    DJINN_ASSERT(admitted.ok());
    return *std::move(admitted);
  }

  static Point point(const srg::Graph& graph, int64_t tokens, int64_t past) {
    Point at = point_of(graph, tokens, past);
    for (size_t i = 0; i < graph.symbols.size(); ++i) {
      if (graph.symbols[i].role == srg::SymbolRole::kCapacity) at.symbols[i] = kCapacity;
    }
    return at;
  }

  at::Tensor bind(const srg::Graph& graph, srg::StorageIndex i, const Point& at,
                  const std::vector<int64_t>& tokens) {
    const srg::Storage& storage = graph.storages[i];
    if (storage.kind == srg::StorageKind::kWeight) return {};
    if (storage.kind == srg::StorageKind::kSequence) {
      at::Tensor& kept = cache_[{storage.layer, storage.part}];
      if (!kept.defined()) kept = at::zeros_like(filled(graph, i, at.symbols, 1));
      return kept;
    }
    const auto count = static_cast<int64_t>(tokens.size());
    if (storage.role == srg::InputRole::kTokenIds) return int64s({count}, tokens);
    if (storage.role == srg::InputRole::kPositions) {
      return at::arange(at.begin, at.end, at::TensorOptions().dtype(at::kLong));
    }
    return filled(graph, i, at.symbols, 7);  // what the model keeps outside of its weights
  }

  WeightTable weights_;
  Executor& executor_;
  std::unique_ptr<Program> programs_[2];
  std::map<std::pair<uint32_t, srg::SequencePart>, at::Tensor> cache_;
  Slab slab_;
  std::unique_ptr<Lane> lane_;
};

std::map<std::string, at::Tensor> weights_of(const srg::Graph& graph) {
  std::map<std::string, at::Tensor> weights;
  for (srg::StorageIndex i = 0; i < graph.storages.size(); ++i) {
    if (graph.storages[i].kind != srg::StorageKind::kWeight) continue;
    weights[graph.storages[i].name] = filled(graph, i, std::vector<int64_t>(), i + 1);
  }
  return weights;
}

struct Model {
  const char* name;
  bool is_float32;
};

class FastGeneration : public ::testing::TestWithParam<Model> {
 protected:
  FastGeneration() {
    const std::string name = GetParam().name;
    prefill = capture_of(name + ".prefill");
    decode = capture_of(name + ".decode");
    if (GetParam().is_float32) {
      prefill = in_float32(prefill);
      decode = in_float32(decode);
    }
    weights = weights_of(prefill.graph);
    (void)gpu();
  }
  Generator on(Executor& device, srg::Numerics numerics) {
    return Generator(device, prefill, decode, numerics, weights);
  }
  // Of the greatest logit, how far a fast one may be from the exact one.
  [[nodiscard]] static double tolerance() { return GetParam().is_float32 ? 1e-5 : 0.1; }

  srg::Capture prefill, decode;
  std::map<std::string, at::Tensor> weights;
};

std::vector<int64_t> prompt() {
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < kPrompt; ++i) tokens.push_back((i * 37 + 5) % 128);
  return tokens;
}

// Greedy steps from the prompt on; before each, `between` may do something.
std::vector<int64_t> generate(Generator& generator,
                              const std::function<void(int64_t)>& between = nullptr) {
  std::vector<int64_t> tokens;
  std::vector<int64_t> next = prompt();
  int64_t past = 0;
  for (int64_t step = 0; step < kSteps; ++step) {
    if (between) between(step);
    const at::Tensor logits = generator.run(next, past);
    past += static_cast<int64_t>(next.size());
    next = {logits.argmax().item<int64_t>()};
    tokens.push_back(next[0]);
  }
  return tokens;
}

TEST_P(FastGeneration, ci_takes_the_host_s_exact_token_wherever_that_is_greater_by_a_margin) {
  Generator exact = on(executor(), srg::Numerics::kExact);
  Generator fast = on(gpu(), srg::Numerics::kFast);
  EXPECT_GT(fast.program(0).fast_nodes(), 0u);
  EXPECT_GT(fast.program(1).fast_nodes(), 0u);
  std::vector<int64_t> next = prompt();
  int64_t past = 0, decided = 0;
  for (int64_t step = 0; step < kSteps; ++step) {
    const at::Tensor wanted = exact.run(next, past), got = fast.run(next, past);
    past += static_cast<int64_t>(next.size());
    const double margin = tolerance() * wanted.abs().max().item<double>();
    EXPECT_LE((got - wanted).abs().max().item<double>(), margin) << "step " << step;
    next = {wanted.argmax().item<int64_t>()};
    const at::Tensor two = std::get<0>(wanted.topk(2));
    if ((two[0] - two[1]).item<double>() <= 2 * margin) continue;
    ++decided;
    EXPECT_EQ(got.argmax().item<int64_t>(), next[0]) << "step " << step;
  }
  EXPECT_GE(decided, GetParam().is_float32 ? kSteps / 2 : 1);
}

TEST_P(FastGeneration, ci_computes_all_products_norms_and_attention_by_our_own_kernels) {
  Generator fast = on(gpu(), srg::Numerics::kFast);
  for (size_t which = 0; which < 2; ++which) {
    for (const srg::PassReport& pass : fast.program(which).admitted().passes) {
      EXPECT_EQ(pass.missed, 0u) << pass.name;
      if (pass.name == "attend") {
        EXPECT_EQ(pass.fired, 2u);  // a layer
      }
    }
  }
  (void)fast.run(prompt(), 0);
  (void)fast.run({3}, kPrompt);
  const uint64_t before = own_launches();
  (void)fast.run({4}, kPrompt + 1);
  // Of a layer: two norms, four products at least, and three of attention.
  EXPECT_GE(own_launches() - before, 2u * 9u);
}

TEST_P(FastGeneration, ci_goes_on_alike_in_a_new_lane) {
  const std::vector<int64_t> wanted = [&] {
    Generator whole = on(gpu(), srg::Numerics::kFast);
    return generate(whole);
  }();
  Generator broken = on(gpu(), srg::Numerics::kFast);
  EXPECT_EQ(generate(broken,
                     [&](int64_t step) {
                       if (step % 4 == 3) broken.make_lane();
                     }),
            wanted);
}

// A prompt's token has the bits of a token step.
TEST_P(FastGeneration, ci_a_token_of_a_prompt_has_the_logits_that_it_has_as_a_step) {
  std::vector<int64_t> all = prompt();
  const at::Tensor wanted = on(gpu(), srg::Numerics::kFast).run(all, 0);
  Generator by_steps = on(gpu(), srg::Numerics::kFast);
  (void)by_steps.run({all.begin(), all.end() - 1}, 0);
  EXPECT_TRUE(same_bytes(by_steps.run({all.back()}, kPrompt - 1), wanted));
}

INSTANTIATE_TEST_SUITE_P(All, FastGeneration,
                         ::testing::Values(Model{"llama", true}, Model{"llama", false},
                                           Model{"qwen2", true}, Model{"qwen2", false},
                                           Model{"gpt2", true}, Model{"gpt2", false}),
                         [](const auto& model) {
                           return std::string(model.param.name) +
                                  (model.param.is_float32 ? "_float32" : "_bfloat16");
                         });

}  // namespace
}  // namespace djinn::exec
