// SPDX-License-Identifier: Apache-2.0

// run-graph [--planned|--late|--pieces|--again] GRAPH...: our interpreter on PyTorch's CUDA device.
// Admits each graph for cuda:0 and runs it twice; a run's calls are a section of the fake runtime's
// log, GRAPH/run 1 and GRAPH/run 2.
//
// Without --planned memory is PyTorch's allocator's. With it the lane has plans, and all memory is
// the device seam's (kernel/pal/cuda, on the fake driver). Then of a decode step a token is drawn,
// too: GRAPH/step 1 to GRAPH/step 4, each behind a token more, from its input to its token. --late:
// likewise, and each grant of memory is pending first, so that what asked for it is done again.
//
// --pieces: planned, and each graph is run so often that its pieces are captured and replayed
// (kernel/exec/cuda/capture_cache.h): GRAPH/again N, of the same step; GRAPH/moved N, with its
// inputs elsewhere; GRAPH/trimmed N, when all was dropped; GRAPH/step N, each behind a token more;
// GRAPH/anew N, of the program admitted once more, whose weights are elsewhere. What
// became of captures is printed, and of each run the sums of its outputs' bytes and of its inputs'.
//
// --again: planned, GRAPH/run 1 to GRAPH/run 4, each behind a token more and waited for. A run that
// fails is told with its error's name, and the others follow, unless the device is lost; in the end
// what the process has of memory and descriptors is printed.

#include <dlfcn.h>
#include <fmt/format.h>
#include <stdio.h>

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernel/exec/cuda/cuda_executor.h"
#include "kernel/exec/cuda/window_heap.h"
#include "kernel/exec/given_for_tests.h"
#include "kernel/exec/program.h"
#include "kernel/pal/cuda/cuda_pal.h"
#include "kernel/vmu/window.h"

namespace djinn::exec {
namespace {

constexpr int64_t kTokens = 7;
constexpr int kRuns = 2;
constexpr int kSteps = 4;
constexpr int kRunsOfPieces = 8;  // one that may be recorded, three, the capture, and three
constexpr int kStepsOfPieces = 14;
constexpr uint64_t kWindowBytes = uint64_t{4} << 30;

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

// Whoever makes a case waits for nothing; a run does.
bool is_in_run = false;

// Grants all that is asked for, as extents of the device.
class Extents final : public vmu::GrantSource {
 public:
  // is_late: each that a run asks for is on its way first.
  Extents(pal::DevicePal& pal, bool is_late) : pal_(pal), is_late_(is_late) {}
  Outcome<std::vector<vmu::Chunk>> ask(std::span<const vmu::Range> places, vmu::Amount) override {
    is_pending_ = is_late_ && is_in_run && !is_pending_;
    if (is_pending_) return Pending{};
    std::vector<vmu::Chunk> chunks;
    for (const vmu::Range& place : places) {
      DJINN_TRY(pal::Extent extent, pal_.create("run-graph", place.bytes));
      chunks.push_back({place.offset, std::move(extent)});
    }
    return chunks;
  }
  void give_back(uint64_t) override {}
  void give_back(vmu::Range) override {}
  void backed() override {}

 private:
  pal::DevicePal& pal_;
  bool is_late_;
  bool is_pending_ = false;
};

// What graphs are admitted and run by.
class Gpu {
 public:
  virtual ~Gpu() = default;
  virtual Result<std::unique_ptr<Program>> admit(srg::Graph graph, const WeightTable& weights) = 0;
  virtual Result<std::unique_ptr<Lane>> make_lane() = 0;
  [[nodiscard]] virtual CaptureStats captures() const { return {}; }
  [[nodiscard]] virtual uint64_t live_bytes() const { return 0; }
};

class UnplannedGpu final : public Gpu {
 public:
  static Status load() {
    // PyTorch registers its kernels for CUDA as it is loaded.
    if (::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) != nullptr) return {};
    return Error{ErrorCode::kUnsupported, ::dlerror()};
  }
  Result<std::unique_ptr<Program>> admit(srg::Graph graph, const WeightTable& weights) override {
    return admit_on(c10::Device(c10::kCUDA, 0), std::move(graph), weights, {UINT64_MAX});
  }
  Result<std::unique_ptr<Lane>> make_lane() override {
    LaneOptions options;
    options.planned = false;
    return CpuExecutor().make_lane(std::move(options));
  }
};

class PlannedGpu final : public Gpu {
 public:
  static Result<std::unique_ptr<Gpu>> make(bool is_late) {
    DJINN_TRY(const pal::cuda::DriverApi api, pal::cuda::load_driver());
    DJINN_TRY(auto pal, pal::cuda::CudaPal::make(api, 0));
    auto extents = std::make_unique<Extents>(*pal, is_late);
    DJINN_TRY(vmu::Window slab, vmu::Window::open(*pal, *extents, {kWindowBytes, {}, 0}, {}));
    DJINN_TRY(vmu::Window heap, vmu::Window::open(*pal, *extents, {kWindowBytes, {}, 0}, {}));
    auto memory = std::make_unique<WindowHeap>(std::move(heap));
    DJINN_TRY(auto executor, CudaExecutor::make(*memory, [](std::string_view notice) {
                fmt::print("notice: {}\n", notice);
              }));
    return std::unique_ptr<Gpu>(new PlannedGpu(std::move(pal), std::move(extents),
                                               std::move(memory), std::move(slab),
                                               std::move(executor)));
  }
  Result<std::unique_ptr<Program>> admit(srg::Graph graph, const WeightTable& weights) override {
    return executor_->admit(std::move(graph), weights, {UINT64_MAX});
  }
  // One lane at a time: all have one slab.
  Result<std::unique_ptr<Lane>> make_lane() override {
    LaneOptions options;
    options.grow_slab = [this](uint64_t bytes, const OnProgress&) -> Outcome<std::span<std::byte>> {
      const vmu::Range whole{0, bytes};
      DJINN_CHECK(slab_.cover({&whole, 1}));
      return std::span(slab_.address().on_host(), bytes);
    };
    return executor_->make_lane(std::move(options));
  }
  [[nodiscard]] CaptureStats captures() const override { return executor_->captures(); }
  [[nodiscard]] uint64_t live_bytes() const override { return memory_->live_bytes(); }

 private:
  PlannedGpu(std::unique_ptr<pal::DevicePal> pal, std::unique_ptr<Extents> extents,
             std::unique_ptr<WindowHeap> memory, vmu::Window slab,
             std::unique_ptr<CudaExecutor> executor)
      : pal_(std::move(pal)),
        extents_(std::move(extents)),
        memory_(std::move(memory)),
        slab_(std::move(slab)),
        executor_(std::move(executor)) {}

  std::unique_ptr<pal::DevicePal> pal_;
  std::unique_ptr<Extents> extents_;
  std::unique_ptr<WindowHeap> memory_;
  vmu::Window slab_;
  std::unique_ptr<CudaExecutor> executor_;
};

// A graph with what its runs are given, on the GPU.
struct Case {
  Case(std::string its_name, srg::Graph its_graph)
      : name(std::move(its_name)),
        graph(std::move(its_graph)),
        at(point_of(srg::Capture{name, graph}, kTokens)),
        given(given_to(graph, at.symbols)) {
    for (auto& [weight, tensor] : given.weights) tensor = on_gpu(tensor);
    for (at::Tensor& one : given.bound) one = on_gpu(one);
    for (const at::Tensor& one : given.bound) bindings.push_back(World::binding_of(one, true));
    bindings.resize(graph.storages.size());
  }
  // So many tokens later.
  [[nodiscard]] Point point(int64_t later) const {
    Point point = at;
    for (size_t i = 0; i < graph.symbols.size(); ++i) {
      if (graph.symbols[i].role == srg::SymbolRole::kPast) point.symbols[i] += later;
    }
    point.begin += later;
    point.end += later;
    return point;
  }

  std::string name;
  srg::Graph graph;
  Point at;
  Given given;
  std::vector<StorageBinding> bindings;
};

// A run that awaits memory is done again, each time with more.
Outcome<void> run_until_granted(Lane& lane, Program& program, const Case& of, const Point& at) {
  constexpr int kTries = 100;
  for (int tries = 0; tries < kTries; ++tries) {
    is_in_run = true;
    Outcome<void> ran = lane.run(program, {at.symbols, of.bindings, {}, at.begin, at.end});
    is_in_run = false;
    if (!ran.is_pending()) return ran;
  }
  return Error{ErrorCode::kInternal, "A run awaits memory for ever."};
}

Outcome<void> run(Gpu& gpu, const Case& of) {
  const WeightTable weights(weights_of(of.given.weights));
  DJINN_TRY(const auto program, gpu.admit(of.graph, weights));
  DJINN_TRY(const auto lane, gpu.make_lane());
  for (int i = 1; i <= kRuns; ++i) {
    mark(fmt::format("{}/run {}", of.name, i));
    DJINN_CHECK(run_until_granted(*lane, *program, of, of.at));
  }
  if (const auto second = gpu.make_lane(); !second) {
    fmt::print("{}: a second lane: {}\n", of.name, second.error().message);
  }
  mark("between graphs");
  return {};
}

// The graph, which gives logits, with the greatest one's number for its output.
Result<srg::Graph> with_token(const srg::Graph& graph) {
  std::string text = srg::print_text(graph);
  const size_t output = text.rfind("output ");
  const std::string logits =
      text.substr(output + 7, text.find_first_of(" \n", output + 7) - output - 7);
  text.resize(output);
  text += fmt::format("%token = aten::argmax({}, -1, false)\noutput %token\n", logits);
  return srg::parse_text(text);
}

Outcome<void> draw(Gpu& gpu, const Case& of) {
  DJINN_TRY(srg::Graph graph, with_token(of.graph));
  const WeightTable weights(weights_of(of.given.weights));
  DJINN_TRY(const auto program, gpu.admit(std::move(graph), weights));
  DJINN_TRY(const auto lane, gpu.make_lane());
  const auto ids =
      std::ranges::find(of.graph.storages, srg::StorageKind::kInput, &srg::Storage::kind);
  const StorageBinding& input =
      of.bindings.at(static_cast<size_t>(ids - of.graph.storages.begin()));
  std::vector<std::byte> token(sizeof(int64_t));
  for (int i = 1; i <= kSteps; ++i) {
    mark(fmt::format("{}/step {}", of.name, i));
    lane->copy_in(token, input.data);
    DJINN_CHECK(run_until_granted(*lane, *program, of, of.point(i - 1)));
    DJINN_CHECK(lane->copy_out(lane->outputs()[0], token));
    token.assign(sizeof(int64_t), {});  // the fake computes nothing: any number is there
  }
  mark("between graphs");
  const LaneStats stats = lane->stats();
  fmt::print("{} planned {} of {} records {} misses {} bytes {} peak {}\n", of.name,
             stats.planned_runs, stats.runs, stats.plan_records, stats.plan_misses,
             stats.planned_bytes, stats.peak_live_bytes);
  return {};
}

// --- pieces

uint64_t sum_of(std::span<const std::byte> bytes) {
  uint64_t sum = 14695981039346656037u;  // FNV-1a
  for (const std::byte byte : bytes) sum = (sum ^ std::to_integer<uint64_t>(byte)) * 1099511628211u;
  return sum;
}

Result<std::vector<std::byte>> bytes_of_output(Lane& lane, const OutputView& view) {
  uint64_t bytes = size_of(view.dtype);
  for (const int64_t size : view.sizes) bytes *= static_cast<uint64_t>(size);
  std::vector<std::byte> out(bytes);
  DJINN_CHECK(lane.copy_out(view, out));
  return out;
}

OutputView whole(const StorageBinding& storage) {
  OutputView view;
  view.dtype = DType::kUInt8;
  view.sizes = {static_cast<int64_t>(storage.bytes)};
  view.strides = {1};
  view.storage = storage.data;
  view.storage_bytes = storage.bytes;
  return view;
}

// Runs of one program, whose inputs have other bytes each time.
class Repeated {
 public:
  Repeated(Gpu& gpu, const Case& of, Lane& lane, Program& program)
      : gpu_(gpu), of_(of), lane_(lane), program_(program), bindings_(of.bindings) {}

  Outcome<void> run(std::string_view section, int number, const Point& at) {
    mark(fmt::format("{}/{} {}", of_.name, section, number));
    DJINN_CHECK(write_inputs());
    DJINN_CHECK(try_run(at));
    mark("outputs");
    std::string sums;
    for (const OutputView& view : lane_.outputs()) {
      DJINN_TRY(const auto bytes, bytes_of_output(lane_, view));
      sums += fmt::format(" {:016x}", sum_of(bytes));
    }
    for (const StorageBinding& one : bindings_) {
      if (one.data == DeviceAddress()) continue;
      DJINN_TRY(const auto bytes, bytes_of_output(lane_, whole(one)));
      sums += fmt::format(" {:016x}", sum_of(bytes));
    }
    const CaptureStats now = gpu_.captures();
    fmt::print(
        "{} {} {} captured {} replayed {} launches {} failed {} without room {} dropped {}"
        " graphs {} bytes {}{}\n",
        of_.name, section, number, now.captured, now.replayed, now.replayed_launches, now.failed,
        now.without_room, now.dropped, now.graphs, now.bytes, sums);
    return {};
  }

  // The inputs have other memory from now on; what they had is kept, so that nobody else has it.
  void move_inputs() {
    for (size_t i = 0; i < bindings_.size(); ++i) {
      if (of_.graph.storages[i].kind != srg::StorageKind::kInput) continue;
      moved_.push_back(of_.given.bound[i].clone());
      bindings_[i] = World::binding_of(moved_.back(), true);
    }
  }

 private:
  Status write_inputs() {
    ++runs_;
    for (size_t i = 0; i < bindings_.size(); ++i) {
      if (of_.graph.storages[i].kind != srg::StorageKind::kInput) continue;
      const std::vector<std::byte> content(bindings_[i].bytes, std::byte(runs_));
      lane_.copy_in(content, bindings_[i].data);
    }
    return {};
  }
  Outcome<void> try_run(const Point& at) {
    const LaneStats before = lane_.stats();
    DJINN_CHECK(lane_.run(program_, {at.symbols, bindings_, {}, at.begin, at.end}));
    const LaneStats after = lane_.stats();
    DJINN_ASSERT(after.plan_misses == before.plan_misses);
    return {};
  }

  Gpu& gpu_;
  const Case& of_;
  Lane& lane_;
  Program& program_;
  std::vector<StorageBinding> bindings_;
  std::vector<at::Tensor> moved_;
  uint8_t runs_ = 0;
};

Outcome<void> run_pieces(Gpu& gpu, const Case& of) {
  const WeightTable weights(weights_of(of.given.weights));
  DJINN_TRY(const auto program, gpu.admit(of.graph, weights));
  DJINN_TRY(const auto lane, gpu.make_lane());
  Repeated runs(gpu, of, *lane, *program);
  for (int i = 1; i <= kRunsOfPieces; ++i) DJINN_CHECK(runs.run("again", i, of.at));
  runs.move_inputs();
  for (int i = 1; i <= kRunsOfPieces; ++i) DJINN_CHECK(runs.run("moved", i, of.at));
  lane->trim();
  for (int i = 1; i <= kRunsOfPieces; ++i) DJINN_CHECK(runs.run("trimmed", i, of.at));
  for (int i = 1; i <= kStepsOfPieces; ++i) DJINN_CHECK(runs.run("step", i, of.point(i - 1)));
  lane->forget(*program);
  fmt::print("{} forgotten graphs {}\n", of.name, gpu.captures().graphs);
  mark("between graphs");
  auto elsewhere = of.given.weights;
  for (auto& [name, tensor] : elsewhere) tensor = tensor.clone();
  const WeightTable moved(weights_of(elsewhere));
  DJINN_TRY(const auto anew, gpu.admit(of.graph, moved));
  Repeated runs_anew(gpu, of, *lane, *anew);
  for (int i = 1; i <= kRunsOfPieces; ++i) DJINN_CHECK(runs_anew.run("anew", i, of.at));
  mark("between graphs");
  return {};
}

// --- runs that fail

size_t descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

Outcome<void> run_again(Gpu& gpu, const Case& of) {
  const WeightTable weights(weights_of(of.given.weights));
  DJINN_TRY(const auto program, gpu.admit(of.graph, weights));
  DJINN_TRY(const auto lane, gpu.make_lane());
  for (int i = 1; i <= kSteps; ++i) {
    mark(fmt::format("{}/run {}", of.name, i));
    Outcome<void> ran = run_until_granted(*lane, *program, of, of.point(i - 1));
    const Status waited = lane->wait();
    if (ran && !waited) ran = waited.error();
    if (ran) continue;
    fmt::print("{} run {}: {}: {}\n", of.name, i, name_of(ran.error().code), message_of(ran));
    if (!waited || ran.error().code == ErrorCode::kDeviceLost) return ran;
  }
  mark("between graphs");
  lane->trim();
  fmt::print("{} has {} bytes and {} descriptors\n", of.name, gpu.live_bytes(), descriptors());
  return {};
}

enum class Memory { kOfPyTorch, kPlanned, kLate, kPieces, kAgain };

Outcome<void> run_as(Gpu& gpu, Memory memory, const Case& of) {
  if (memory == Memory::kPieces) return run_pieces(gpu, of);
  if (memory == Memory::kAgain) return run_again(gpu, of);
  DJINN_CHECK(run(gpu, of));
  const bool draws = memory != Memory::kOfPyTorch && of.name.ends_with(".decode");
  return draws ? draw(gpu, of) : Outcome<void>();
}

Outcome<void> run_file(Gpu& gpu, Memory memory, const std::string& path) {
  DJINN_TRY(srg::Graph graph, srg::parse_text(srg::content_of(path)));
  const Case of(std::filesystem::path(path).stem(), std::move(graph));
  Outcome<void> ran = run_as(gpu, memory, of);
  if (ran.has_failed()) return located(std::move(ran).error(), of.name);
  return ran;
}

Result<std::unique_ptr<Gpu>> make_gpu(Memory memory) {
  if (memory != Memory::kOfPyTorch) return PlannedGpu::make(memory == Memory::kLate);
  DJINN_CHECK(UnplannedGpu::load());
  return std::unique_ptr<Gpu>(new UnplannedGpu);
}

Outcome<void> run_all(Memory memory, const std::vector<std::string>& paths) {
  auto made = make_gpu(memory);
  if (!made) made = make_gpu(memory);  // what failed has left nothing behind: it fails alike
  if (!made) return made.error();
  // Libraries give their memory back as the process ends, so it is never destroyed.
  Gpu& gpu = *made.value().release();
  at::globalContext().setSDPUseCuDNN(false);  // it answers nothing without a device
  const c10::InferenceMode inference_mode;
  for (const std::string& path : paths) {
    DJINN_CHECK(catching([&] { return run_file(gpu, memory, path); }));
  }
  return {};
}

Memory memory_of(std::string_view option) {
  if (option == "--planned") return Memory::kPlanned;
  if (option == "--pieces") return Memory::kPieces;
  if (option == "--again") return Memory::kAgain;
  return option == "--late" ? Memory::kLate : Memory::kOfPyTorch;
}

}  // namespace
}  // namespace djinn::exec

int main(int argc, char** argv) {
  using djinn::exec::Memory;
  const Memory memory = argc > 1 ? djinn::exec::memory_of(argv[1]) : Memory::kOfPyTorch;
  const int first = memory == Memory::kOfPyTorch ? 1 : 2;
  const auto ran =
      djinn::exec::run_all(memory, std::vector<std::string>(argv + first, argv + argc));
  if (ran) return 0;
  fmt::print(stderr, "run-graph: {}\n", djinn::exec::message_of(ran));
  return 1;
}
