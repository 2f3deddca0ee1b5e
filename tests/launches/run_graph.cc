// SPDX-License-Identifier: Apache-2.0

// run-graph GRAPH...: our interpreter on PyTorch's CUDA device. Admits each graph for cuda:0 and
// runs it twice, with weights and inputs that PyTorch's allocator gives; a run's calls are a
// section of the fake runtime's log, GRAPH/run 1 and GRAPH/run 2.

#include <dlfcn.h>
#include <fmt/format.h>
#include <stdio.h>

#include <filesystem>
#include <string>
#include <vector>

#include "kernel/exec/given_for_tests.h"
#include "kernel/exec/program.h"

namespace djinn::exec {
namespace {

constexpr int64_t kTokens = 7;
constexpr int kRuns = 2;

void mark(const std::string& text) {
  using Mark = void(const char*);
  static auto* const mark = reinterpret_cast<Mark*>(::dlsym(RTLD_DEFAULT, "djinn_fake_mark"));
  DJINN_ASSERT(mark != nullptr);
  mark(text.c_str());
}

at::Tensor on_gpu(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.to(at::kCUDA) : tensor;
}

std::vector<Weight> weights_of(const std::map<std::string, at::Tensor>& tensors) {
  std::vector<Weight> weights;
  for (const auto& [name, tensor] : tensors) {
    weights.push_back({name, from_torch(tensor.scalar_type()), tensor.sizes().vec(),
                       static_cast<const std::byte*>(tensor.const_data_ptr())});
  }
  return weights;
}

Outcome<void> run(const std::string& name, srg::Graph graph) {
  const Point at = point_of(srg::Capture{name, graph}, kTokens);
  Given given = given_to(graph, at.symbols);
  for (auto& [weight, tensor] : given.weights) tensor = on_gpu(tensor);
  for (at::Tensor& one : given.bound) one = on_gpu(one);
  DJINN_TRY(const auto program, admit_on(c10::Device(c10::kCUDA, 0), std::move(graph),
                                         WeightTable(weights_of(given.weights)), {UINT64_MAX}));
  CpuExecutor executor;
  LaneOptions options;
  options.threads = 1;
  options.planned = false;
  DJINN_TRY(const auto lane, executor.make_lane(std::move(options)));
  std::vector<StorageBinding> bindings;
  for (const at::Tensor& one : given.bound) bindings.push_back(World::binding_of(one, true));
  bindings.resize(program->graph().storages.size());
  for (int i = 1; i <= kRuns; ++i) {
    mark(fmt::format("{}/run {}", name, i));
    const Outcome<void> ran = lane->run(*program, {at.symbols, bindings, {}, at.begin, at.end});
    if (!ran) return ran;
  }
  mark("between graphs");
  return {};
}

int run_all(const std::vector<std::string>& paths) {
  // PyTorch registers its kernels for CUDA as it is loaded.
  if (::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    fmt::print(stderr, "run-graph: {}\n", ::dlerror());
    return 1;
  }
  at::globalContext().setSDPUseCuDNN(false);  // it answers nothing without a device
  const c10::InferenceMode inference_mode;
  for (const std::string& path : paths) {
    const std::string name = std::filesystem::path(path).stem();
    auto graph = srg::parse_text(srg::content_of(path));
    const Outcome<void> ran = graph ? run(name, *std::move(graph)) : graph.error();
    if (ran) continue;
    fmt::print(stderr, "run-graph: {}: {}\n", name, message_of(ran));
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace djinn::exec

int main(int argc, char** argv) {
  return djinn::exec::run_all(std::vector<std::string>(argv + 1, argv + argc));
}
