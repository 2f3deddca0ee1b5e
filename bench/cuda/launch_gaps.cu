// SPDX-License-Identifier: Apache-2.0
//
// What a launch costs, on the host and on the device, and what graphs and programmatic dependent
// launch (PDL) save.
//
//   nvcc -O3 -std=c++20 -arch=sm_90 -o launch_gaps launch_gaps.cu && ./launch_gaps [--seconds S]
//
// Chains: 200 kernels, each after the one before; µs a kernel = time between two events / 200.
//   empty   one block of 32 threads that does nothing
//   tiny    one block of 128 threads; wide: 264 blocks of 256; each thread adds 1 to a number that
//           the kernel before wrote
//   "queue filled": the stream first runs a kernel that waits until all 200 are enqueued, so that
//           the host's launches are not what is measured
//   "with PDL": a kernel may begin while the one before ends; it waits before it reads
// Host costs: the host's clock around the call alone, median; "to its end" has the wait for it.

#include <atomic>
#include <memory>

#include "stage.cuh"

namespace {

using stage::Buffer;
using stage::check;
using stage::check_launch;
using stage::Event;
using stage::fact;
using stage::Graph;
using stage::Pinned;
using stage::seconds_now;
using stage::Stage;
using stage::Stream;

constexpr int kChain = 200;
constexpr int kRepetitions = 21;
constexpr double kMicro = 1e6;
constexpr uint64_t kHoldNs = 3'000'000;  // far longer than the host needs to enqueue a chain

__global__ void empty() {}

__global__ void empty_pdl() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
#endif
}

__global__ void add_one(float* values) {
  values[blockIdx.x * blockDim.x + threadIdx.x] += 1;
}

__global__ void add_one_pdl(float* values) {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
#endif
  values[blockIdx.x * blockDim.x + threadIdx.x] += 1;
}

__device__ uint64_t nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

/// Holds the stream for some time, whatever the host does: it ends by itself.
__global__ void hold(uint64_t ns) {
  const uint64_t begin = nanoseconds();
  while (nanoseconds() - begin < ns) {
  }
}

__global__ void store_word(volatile uint32_t* word, uint32_t value) {
  *word = value;
}

struct Kind {
  std::string name;
  unsigned blocks;
  unsigned threads;
  bool is_empty;
};

const Kind kKinds[] = {{"empty", 1, 32, true}, {"tiny", 1, 128, false}, {"wide", 264, 256, false}};

class Chain {
 public:
  Chain() : values_(264 * 256 * sizeof(float)) { clear(); }

  void clear() {
    check(cudaMemset(values_.as<float>(), 0, values_.bytes()));
    check(cudaDeviceSynchronize());
  }

  void launch_one(const Kind& kind, bool pdl, cudaStream_t stream) const {
    if (!pdl) {
      if (kind.is_empty)
        empty<<<kind.blocks, kind.threads, 0, stream>>>();
      else
        add_one<<<kind.blocks, kind.threads, 0, stream>>>(values_.as<float>());
      check_launch();
      return;
    }
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(kind.blocks);
    config.blockDim = dim3(kind.threads);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    if (kind.is_empty)
      check(cudaLaunchKernelEx(&config, empty_pdl));
    else
      check(cudaLaunchKernelEx(&config, add_one_pdl, values_.as<float>()));
  }

  void launch(const Kind& kind, bool pdl, int count, cudaStream_t stream) const {
    for (int i = 0; i < count; ++i) launch_one(kind, pdl, stream);
  }

  /// Whether each thread of the kind counted so many kernels.
  bool counted(const Kind& kind, float kernels) const {
    std::vector<float> found(size_t{kind.blocks} * kind.threads);
    check(cudaMemcpy(found.data(), values_.as<float>(), found.size() * sizeof(float),
                     cudaMemcpyDeviceToHost));
    return std::all_of(found.begin(), found.end(), [=](float value) { return value == kernels; });
  }

 private:
  Buffer values_;
};

double host_us(int repetitions, const std::function<void()>& call,
               const std::function<void()>& after) {
  std::vector<double> times;
  for (int i = 0; i <= repetitions; ++i) {
    const double begin = seconds_now();
    call();
    const double end = seconds_now();
    after();
    if (i > 0) times.push_back((end - begin) * kMicro);
  }
  return stage::median(times);
}

class LaunchGaps {
 public:
  void measure_graphs_of_chains(bool pdl) {
    for (const Kind& kind : kKinds) {
      const double us = graph_us(kind, pdl, kChain) / kChain;
      fact("200 " + kind.name + " kernels in a graph" + with(pdl), us, "µs a kernel");
    }
    const Kind& wide = kKinds[2];
    const double slope =
        (graph_us(wide, pdl, 5 * kChain) - graph_us(wide, pdl, kChain)) / 4 / kChain;
    fact("wide kernels in a graph, each one more" + with(pdl), slope, "µs a kernel",
         "(graph of 1000 - graph of 200) / 800");
    chain_.clear();
    const Graph graph(stream_, [&] { chain_.launch(wide, pdl, kChain, stream_); });
    graph.launch(stream_);
    graph.launch(stream_);
    stream_.wait();
    stage::fact_bool("wide kernels in a graph count right" + with(pdl),
                     chain_.counted(wide, 2 * kChain));
  }

  void measure_stream(bool pdl) {
    for (const Kind& kind : kKinds) {
      const double us = stage::device_ms(stream_, kRepetitions,
                                         [&] { chain_.launch(kind, pdl, kChain, stream_); });
      fact("200 " + kind.name + " kernels on a stream" + with(pdl), us * 1e3 / kChain,
           "µs a kernel", "the host launches meanwhile");
      fact("200 " + kind.name + " kernels on a stream, queue filled" + with(pdl),
           filled_us(kind, pdl) / kChain, "µs a kernel");
    }
  }

  void measure_host_launch(bool pdl) {
    for (const Kind& kind : kKinds) {
      const double us = host_us(
          kRepetitions, [&] { chain_.launch(kind, pdl, kChain, stream_); },
          [&] { stream_.wait(); });
      fact("host time of a launch, " + kind.name + with(pdl), us / kChain, "µs");
    }
  }

  void measure_graph_launch() {
    for (const int nodes : {1, 10, 100, 1000}) {
      const Graph graph(stream_, [&] { chain_.launch(kKinds[1], false, nodes, stream_); });
      const std::string of =
          nodes == 1 ? "of 1 tiny kernel" : "of " + std::to_string(nodes) + " tiny kernels";
      const auto launch = [&] { graph.launch(stream_); };
      fact("host time of a launch of a graph " + of,
           host_us(kRepetitions, launch, [&] { stream_.wait(); }), "µs");
      fact("a graph " + of + ", from its launch to its end",
           host_us(
               kRepetitions,
               [&] {
                 launch();
                 stream_.wait();
               },
               [] {}),
           "µs");
    }
  }

  void measure_events() {
    const Event event(cudaEventDisableTiming);
    const Event timed;
    const auto wait = [&] { stream_.wait(); };
    fact("host time of an event record",
         host_us(
             200, [&] { record(event); }, wait),
         "µs");
    fact("host time of an event record with timing",
         host_us(
             200, [&] { record(timed); }, wait),
         "µs");
    record(event);
    stream_.wait();
    fact("host time of a query of an event that happened",
         host_us(
             200, [&] { check(cudaEventQuery(event)); }, [] {}),
         "µs");
    fact("host time of a query of an event to come", pending_query_us(event), "µs");
    const Stream other;
    fact("host time of a stream's wait for an event of another",
         host_us(
             200, [&] { check(cudaStreamWaitEvent(other, event, 0)); }, wait),
         "µs");
  }

  void measure_wait(const std::string& how, unsigned flags) {
    const std::string name =
        "an empty kernel, from its launch to the end of a stream synchronisation that " + how;
    const cudaError_t error = cudaSetDeviceFlags(flags);
    if (error == cudaErrorSetOnActiveProcess) {
      static_cast<void>(cudaGetLastError());
      stage::fact_text(name, "not possible: the flags of a device in use cannot be changed");
      return;
    }
    check(error);
    unsigned found = 0;
    check(cudaGetDeviceFlags(&found));
    const bool in_force = (found & cudaDeviceScheduleMask) == flags;
    fact(name, launch_and([&] { stream_.wait(); }), "µs",
         in_force ? "" : "the device's flags did not change");
    check(cudaSetDeviceFlags(cudaDeviceScheduleAuto));
  }

  void measure_blocking_event() {
    const Event event(cudaEventDisableTiming | cudaEventBlockingSync);
    fact("an empty kernel, from its launch to the end of a wait for a blocking event",
         launch_and([&] {
           record(event);
           check(cudaEventSynchronize(event));
         }),
         "µs");
    const Event polled(cudaEventDisableTiming);
    fact("an empty kernel, from its launch to an event's query that finds it done", launch_and([&] {
           record(polled);
           while (!happened(polled)) {
           }
         }),
         "µs");
  }

  void measure_polled_word() {
    const Pinned memory(64);
    auto* const word = reinterpret_cast<volatile uint32_t*>(memory.data());
    *word = 0;
    uint32_t value = 0;
    const double us = host_us(
        200,
        [&] {
          ++value;
          store_word<<<1, 1, 0, stream_>>>(word, value);
          check_launch();
          const double until = seconds_now() + 1;
          while (*word != value) {
            if (seconds_now() > until) throw stage::Failure("the stored word was not seen");
          }
        },
        [&] { stream_.wait(); });
    fact("a kernel that stores a word in pinned memory, from its launch until the host sees it", us,
         "µs");
  }

  void measure_host_function() {
    struct Call {
      std::atomic<double> at{0};
    } call;
    const auto run = [](void* data) { static_cast<Call*>(data)->at = seconds_now(); };
    std::vector<double> times;
    for (int i = 0; i <= 100; ++i) {
      const double begin = seconds_now();
      check(cudaLaunchHostFunc(stream_, run, &call));
      stream_.wait();
      if (i > 0) times.push_back((call.at - begin) * kMicro);
    }
    fact("a host function on an idle stream, from its launch until it runs", stage::median(times),
         "µs");
    const double ms = stage::device_ms(stream_, kRepetitions, [&] {
      for (int i = 0; i < 20; ++i) {
        chain_.launch_one(kKinds[0], false, stream_);
        check(cudaLaunchHostFunc(stream_, run, &call));
      }
    });
    fact("a host function between two kernels of a stream", ms * 1e3 / 20, "µs",
         "time between events of 20 times kernel and function, divided by 20");
  }

  void measure_update() {
    const Graph graph(stream_, [&] { chain_.launch(kKinds[1], false, 1000, stream_); });
    size_t count = 0;
    check(cudaGraphGetNodes(graph.graph(), nullptr, &count));
    std::vector<cudaGraphNode_t> nodes(count);
    check(cudaGraphGetNodes(graph.graph(), nodes.data(), &count));
    cudaKernelNodeParams parameters{};
    check(cudaGraphKernelNodeGetParams(nodes.at(0), &parameters));
    const auto relaunch = [&] {
      graph.launch(stream_);
      stream_.wait();
    };
    fact("host time of new parameters for one kernel of a graph of 1000",
         host_us(
             kRepetitions,
             [&] {
               check(cudaGraphExecKernelNodeSetParams(graph.exec(), nodes.at(0), &parameters));
             },
             relaunch),
         "µs");
    const double all = host_us(
        kRepetitions,
        [&] {
          for (const cudaGraphNode_t node : nodes) {
            check(cudaGraphExecKernelNodeSetParams(graph.exec(), node, &parameters));
          }
        },
        relaunch);
    fact("host time of new parameters for each kernel of a graph of 1000", all / 1000,
         "µs a kernel");
    fact("host time of cudaGraphExecUpdate of a graph of 1000 kernels",
         host_us(
             kRepetitions,
             [&] {
               cudaGraphExecUpdateResultInfo info{};
               check(cudaGraphExecUpdate(graph.exec(), graph.graph(), &info));
             },
             relaunch),
         "µs");
  }

  void measure_instantiation() {
    constexpr int kGraphs = 16;
    const Graph captured(stream_, [&] { chain_.launch(kKinds[1], false, 1000, stream_); });
    fact("host time of the capture of 1000 kernels",
         host_us(
             5, [&] { capture(1000); }, [] {}),
         "µs");
    std::vector<cudaGraphExec_t> execs(kGraphs, nullptr);
    std::vector<double> instantiate;
    std::vector<double> upload;
    const size_t before = free_bytes();
    for (cudaGraphExec_t& exec : execs) {
      const double begin = seconds_now();
      check(cudaGraphInstantiate(&exec, captured.graph(), 0));
      const double made = seconds_now();
      check(cudaGraphUpload(exec, stream_));
      stream_.wait();
      instantiate.push_back((made - begin) * kMicro);
      upload.push_back((seconds_now() - made) * kMicro);
    }
    const size_t after = free_bytes();
    for (const cudaGraphExec_t exec : execs) check(cudaGraphExecDestroy(exec));
    fact("host time of the instantiation of a graph of 1000 kernels", stage::median(instantiate),
         "µs");
    fact("the upload of a graph of 1000 kernels, to its end", stage::median(upload), "µs");
    fact("device memory of a graph of 1000 kernels",
         (static_cast<double>(before) - static_cast<double>(after)) / kGraphs / 1024, "KiB",
         "what cudaMemGetInfo lost for 16 uploaded graphs, divided by 16");
    fact("device memory that 16 such graphs keep when they are destroyed",
         (static_cast<double>(before) - static_cast<double>(free_bytes())) / 1024, "KiB");
  }

 private:
  static std::string with(bool pdl) { return pdl ? ", with PDL" : ""; }

  static size_t free_bytes() {
    size_t free = 0;
    size_t total = 0;
    check(cudaMemGetInfo(&free, &total));
    return free;
  }

  double graph_us(const Kind& kind, bool pdl, int count) {
    const Graph graph(stream_, [&] { chain_.launch(kind, pdl, count, stream_); });
    return stage::device_ms(stream_, kRepetitions, [&] { graph.launch(stream_); }) * 1e3;
  }

  double filled_us(const Kind& kind, bool pdl) {
    const Event begin;
    const Event end;
    std::vector<double> times;
    for (int i = 0; i <= kRepetitions; ++i) {
      hold<<<1, 1, 0, stream_>>>(kHoldNs);
      check_launch();
      record(begin);
      chain_.launch(kind, pdl, kChain, stream_);
      record(end);
      if (happened(begin)) throw stage::Failure("the stream was not held long enough");
      check(cudaEventSynchronize(end));
      float ms = 0;
      check(cudaEventElapsedTime(&ms, begin, end));
      if (i > 0) times.push_back(ms * 1e3);
    }
    return stage::median(times);
  }

  void record(cudaEvent_t event) const { check(cudaEventRecord(event, stream_)); }

  static bool happened(cudaEvent_t event) {
    const cudaError_t found = cudaEventQuery(event);
    if (found != cudaErrorNotReady)
      check(found);
    else
      static_cast<void>(cudaGetLastError());
    return found == cudaSuccess;
  }

  double pending_query_us(cudaEvent_t event) {
    hold<<<1, 1, 0, stream_>>>(kHoldNs);
    check_launch();
    record(event);
    bool pending = false;
    const double us = host_us(
        200, [&] { pending = !happened(event); }, [] {});
    if (!pending) throw stage::Failure("the event was over before it was queried");
    stream_.wait();
    return us;
  }

  double launch_and(const std::function<void()>& wait) {
    return host_us(
        200,
        [&] {
          chain_.launch_one(kKinds[0], false, stream_);
          wait();
        },
        [] {});
  }

  void capture(int count) {
    cudaGraph_t graph = nullptr;
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    chain_.launch(kKinds[1], false, count, stream_);
    check(cudaStreamEndCapture(stream_, &graph));
    check(cudaGraphDestroy(graph));
  }

  Stream stream_;
  Chain chain_;
};

void measure(Stage& stage) {
  std::unique_ptr<LaunchGaps> gaps;
  bool pdl = false;
  stage.part("preparations", [&] {
    gaps = std::make_unique<LaunchGaps>();
    pdl = stage::has_pdl();
    stage::fact_bool("programmatic dependent launch (PDL) is measured", pdl);
  });
  if (!gaps) return;
  const auto both = [&](const std::string& name, void (LaunchGaps::*measure)(bool)) {
    stage.part(name, [&] { (*gaps.*measure)(false); });
    if (pdl) stage.part(name + " with PDL", [&] { (*gaps.*measure)(true); });
  };
  both("chains in graphs", &LaunchGaps::measure_graphs_of_chains);
  both("chains on a stream", &LaunchGaps::measure_stream);
  both("the host's launches", &LaunchGaps::measure_host_launch);
  stage.part("launches of graphs", [&] { gaps->measure_graph_launch(); });
  stage.part("instantiation", [&] { gaps->measure_instantiation(); });
  stage.part("updates", [&] { gaps->measure_update(); });
  stage.part("events", [&] { gaps->measure_events(); });
  stage.part("spinning waits", [&] { gaps->measure_wait("spins", cudaDeviceScheduleSpin); });
  stage.part("yielding waits", [&] { gaps->measure_wait("yields", cudaDeviceScheduleYield); });
  stage.part("blocking waits",
             [&] { gaps->measure_wait("blocks", cudaDeviceScheduleBlockingSync); });
  stage.part("waits for events", [&] { gaps->measure_blocking_event(); });
  stage.part("a polled word", [&] { gaps->measure_polled_word(); });
  stage.part("host functions", [&] { gaps->measure_host_function(); });
}

}  // namespace

int main(int argc, char** argv) {
  return Stage(30).run(argc, argv, measure);
}
