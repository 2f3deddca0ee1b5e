// SPDX-License-Identifier: Apache-2.0

// These are the figures of the local path, through a daemon of our own: the ring, a forward pass,
// an attach.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>  // style: /proc and one file, outside of what is measured
#include <numeric>
#include <string>
#include <thread>

#include "bench/daemon_process.h"
#include "kernel/base/alignment.h"
#include "kernel/base/bytes.h"
#include "kernel/exec/cpu_executor.h"
#include "kernel/load/identity.h"
#include "kernel/srg/builder.h"
#include "libdjinn-client/run_builder.h"
#include "libdjinn-client/transfer.h"

namespace djinn::bench {
namespace {

using std::chrono::steady_clock;

template <typename T>
T must(Result<T> result, benchmark::State& state) {
  if (!result) {
    state.SkipWithError(result.error().message.c_str());
    ::exit(1);
  }
  return *std::move(result);
}

double seconds_since(steady_clock::time_point begin) {
  return std::chrono::duration<double>(steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

void pause_ms(int ms) {
  ::poll(nullptr, 0, ms);
}

// --- the ring

void nop(client::Client& client, benchmark::State& state) {
  const client::Run run = must(client.submit({}, {}), state);
  must(client.wait(run), state);
}

void ring_spinning(benchmark::State& state) {
  const auto client = DaemonProcess::shared().connect();
  for (auto _ : state) nop(*client, state);
}
BENCHMARK(ring_spinning)
    ->Name("ring_round_trip/spinning")
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();

// Sessions that have submitted something once, and nothing since.
std::vector<std::unique_ptr<client::Client>> idle_sessions(size_t count, benchmark::State& state) {
  std::vector<std::unique_ptr<client::Client>> sessions;
  for (size_t i = 0; i < count; ++i) {
    sessions.push_back(DaemonProcess::shared().connect());
    nop(*sessions.back(), state);
  }
  return sessions;
}

constexpr size_t kIdle = 120;
constexpr int kSettleMs = 20;  // until the worker takes them for idle, or has let go of them
constexpr int kRingBlocks = 10;
constexpr int kRingBlock = 1000;  // as long as many of the worker's looks at the others are apart

// An empty run, alone and while others are there that submit nothing. The arms take turns. A time
// is the mean of a block of runs: a median of runs would not know of looks that few of them see.
void ring_beside_idle(benchmark::State& state) {
  const auto client = DaemonProcess::shared().connect();
  std::vector<double> alone_us, beside_us;
  const auto take = [&](std::vector<double>& times_us) {
    pause_ms(kSettleMs);
    for (int block = 0; block < kRingBlocks; ++block) {
      const auto begin = steady_clock::now();
      for (int i = 0; i < kRingBlock; ++i) nop(*client, state);
      times_us.push_back(seconds_since(begin) * 1e6 / kRingBlock);
    }
  };
  for (auto _ : state) {
    take(alone_us);
    const size_t before = must(client->sessions(), state).size();
    auto others = idle_sessions(kIdle, state);
    take(beside_us);
    others.clear();
    while (must(client->sessions(), state).size() > before) pause_ms(1);
  }
  state.counters["alone_us"] = median(alone_us);
  state.counters["beside_us"] = median(beside_us);
  state.counters["of_alone"] = median(beside_us) / median(alone_us);
}
BENCHMARK(ring_beside_idle)
    ->Name("ring_round_trip/beside_idle")
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime()
    ->Iterations(10);

// Makes each call when both sides have been asleep for a while, and tells the median time as
// `median_us`.
template <typename Call>
void measure_asleep(benchmark::State& state, const Call& call) {
  std::vector<double> times_us;
  for (auto _ : state) {
    pause_ms(1);
    const auto begin = steady_clock::now();
    call();
    times_us.push_back(seconds_since(begin) * 1e6);
    state.SetIterationTime(times_us.back() * 1e-6);
  }
  state.counters["median_us"] = median(std::move(times_us));
}

void ring_asleep(benchmark::State& state) {
  const auto client = DaemonProcess::shared().connect();
  measure_asleep(state, [&] { nop(*client, state); });
}
BENCHMARK(ring_asleep)
    ->Name("ring_round_trip/asleep")
    ->Unit(benchmark::kMicrosecond)
    ->UseManualTime()
    ->Iterations(500);

// Measures what the kernel alone takes to let two threads wake each other.
void eventfd_asleep(benchmark::State& state) {
  const Fd there(::eventfd(0, EFD_CLOEXEC)), back(::eventfd(0, EFD_CLOEXEC));
  constexpr uint64_t kStop = 2;
  const auto send = [](const Fd& fd, uint64_t value) {
    if (::write(fd.get(), &value, sizeof value) != sizeof value) ::abort();
  };
  const auto receive = [](const Fd& fd) {
    uint64_t value = 0;
    if (::read(fd.get(), &value, sizeof value) != sizeof value) ::abort();
    return value;
  };
  std::thread peer([&] {
    while (receive(there) != kStop) send(back, 1);
  });
  measure_asleep(state, [&] {
    send(there, 1);
    receive(back);
  });
  send(there, kStop);
  peer.join();
}
BENCHMARK(eventfd_asleep)
    ->Name("eventfd_round_trip/asleep")
    ->Unit(benchmark::kMicrosecond)
    ->UseManualTime()
    ->Iterations(500);

// Counts how often the threads of a process went to sleep by themselves. A wake-up precedes each of
// these.
uint64_t sleeps_of(uint32_t pid) {
  uint64_t total = 0;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
    std::ifstream status(task.path() / "status");
    for (std::string word; status >> word;) {
      uint64_t count = 0;
      if (word == "voluntary_ctxt_switches:" && status >> count) total += count;
    }
  }
  return total;
}

void idle_session(benchmark::State& state) {
  const auto client = DaemonProcess::shared().connect();
  nop(*client, state);
  const uint32_t worker = DaemonProcess::shared().worker_pid();
  pause_ms(100);  // spins end
  for (auto _ : state) {
    const uint64_t before = sleeps_of(worker);
    pause_ms(1000);
    state.counters["wakeups"] = static_cast<double>(sleeps_of(worker) - before);
  }
}
BENCHMARK(idle_session)->Iterations(3)->UseRealTime();

// --- a client that waits for a long run

srg::Graph long_graph() {
  srg::GraphBuilder g("long");
  srg::Tensor x = g.op("aten::ones", {srg::ints({1024, 1024})});
  for (int i = 0; i < 60; ++i) x = g.op("aten::matmul", {x, x});
  g.output("x", g.op("aten::sum", {x}));
  return *std::move(g).finish();
}

double thread_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void waiting_client(benchmark::State& state) {
  const auto client = DaemonProcess::shared().connect();
  const srg::Graph graph = long_graph();
  const auto program = must(client->define_program(graph, {}), state).program;
  for (auto _ : state) {
    client::RunBuilder run(*client, graph);
    const auto begin = steady_clock::now();
    const double before = thread_seconds();
    if (const Status ran = run.run(program); !ran) state.SkipWithError(ran.error().message.c_str());
    state.counters["core_share"] = (thread_seconds() - before) / seconds_since(begin);
  }
}
BENCHMARK(waiting_client)->Iterations(3)->UseRealTime();

// --- a forward pass, here and there

constexpr int64_t kRows = 16;
constexpr int64_t kWidth = 384;
constexpr int kLayers = 4;

srg::Graph forward_graph() {
  srg::GraphBuilder g("forward");
  const srg::Tensor w = g.input("w", DType::kFloat32, {kWidth, kWidth});
  srg::Tensor x = g.input("x", DType::kFloat32, {kRows, kWidth});
  for (int i = 0; i < kLayers; ++i) {
    x = g.op("aten::gelu", {g.op("aten::linear", {x, w, srg::none})});
  }
  g.output("y", x);
  return *std::move(g).finish();
}

std::vector<float> ramp(int64_t count) {
  std::vector<float> out(static_cast<size_t>(count));
  std::iota(out.begin(), out.end(), 0.0f);
  for (float& value : out) value = value / static_cast<float>(count) - 0.5f;
  return out;
}

class ForwardInDaemon {
 public:
  explicit ForwardInDaemon(benchmark::State& state)
      : client_(DaemonProcess::shared().connect()),
        program_(must(client_->define_program(graph_, {}), state).program),
        // The weights of a model do not cross either: w goes to a ref once.
        w_(must(client::put(*client_, std::as_bytes(std::span<const float>(ramp(kWidth * kWidth)))),
                state)) {}

  Status run() {
    client::RunBuilder run(*client_, graph_);
    DJINN_CHECK(run.input_ref("w", w_.ref()));
    DJINN_CHECK(run.input("x", std::as_bytes(std::span(x_))));
    DJINN_CHECK(run.output(0, x_.size() * sizeof(float)));
    return run.run(program_);
  }

 private:
  std::unique_ptr<client::Client> client_;
  srg::Graph graph_ = forward_graph();
  ProgramId program_;
  client::RefLease w_;
  std::vector<float> x_ = ramp(kRows * kWidth);
};

class ForwardHere {
 public:
  ForwardHere(int threads, benchmark::State& state) {
    exec::LaneOptions options;
    options.threads = threads;
    options.grow_slab = [this](uint64_t bytes,
                               const exec::OnProgress&) -> Outcome<std::span<std::byte>> {
      slab_.resize(bytes + kTensorAlignment);
      void* at = slab_.data();
      size_t room = slab_.size();
      return std::span(static_cast<std::byte*>(std::align(kTensorAlignment, bytes, at, room)),
                       bytes);
    };
    lane_ = must(executor_.make_lane(std::move(options)), state);
    program_ = must(executor_.admit(forward_graph(), weights_, {UINT64_MAX}), state);
  }

  Outcome<void> run() {
    const std::array storages{bound(w_), bound(x_)};
    DJINN_CHECK(lane_->run(*program_, {{}, storages}));
    return lane_->copy_out(lane_->outputs()[0], out_);
  }

 private:
  static exec::StorageBinding bound(std::vector<float>& values) {
    return {reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(float), false};
  }

  std::vector<std::byte> slab_;
  exec::CpuExecutor executor_;
  std::unique_ptr<exec::Lane> lane_;
  exec::WeightTable weights_{{}};
  std::unique_ptr<exec::Program> program_;
  std::vector<float> w_ = ramp(kWidth * kWidth), x_ = ramp(kRows * kWidth);
  std::vector<std::byte> out_ = std::vector<std::byte>(kRows * kWidth * sizeof(float));
};

constexpr int kBlock = 25;

// The arms take turns, so that whatever else the machine does affects both. They do so in blocks,
// because a client that has one forward to do mostly has a next one, too.
void forward(benchmark::State& state) {
  static const int threads = [] {
    const auto count = static_cast<int>(DaemonProcess::shared().connect()->welcome().threads);
    exec::initialise(count);
    return count;
  }();
  ForwardInDaemon there(state);
  ForwardHere here(threads, state);
  std::vector<double> here_us, there_us;
  const auto take = [&state](auto& arm, std::vector<double>& times_us) {
    const auto begin = steady_clock::now();
    if (const Outcome<void> ran = arm.run(); !ran) state.SkipWithError(ran.error().message.c_str());
    times_us.push_back(seconds_since(begin) * 1e6);
  };
  for (auto _ : state) {
    for (int i = 0; i < kBlock; ++i) take(here, here_us);
    for (int i = 0; i < kBlock; ++i) take(there, there_us);
  }
  state.counters["in_process_us"] = median(here_us);
  state.counters["daemon_us"] = median(there_us);
  state.counters["over_us"] = median(there_us) - median(here_us);
}
BENCHMARK(forward)->Unit(benchmark::kMicrosecond)->UseRealTime()->Iterations(100);

// A run of one cheap operator copies input and output as a forward does, so it shows what a run
// costs beside its computing.
void small_run(benchmark::State& state) {
  const auto client = DaemonProcess::shared().connect();
  srg::GraphBuilder g("small");
  const srg::Tensor x = g.input("x", DType::kFloat32, {kRows, kWidth});
  g.output("y", g.op("aten::neg", {x}));
  const srg::Graph graph = *std::move(g).finish();
  const auto program = must(client->define_program(graph, {}), state).program;
  const auto values = ramp(kRows * kWidth);
  for (auto _ : state) {
    client::RunBuilder run(*client, graph);
    Status ran = run.input("x", std::as_bytes(std::span(values)));
    if (ran) ran = run.output(0, values.size() * sizeof(float));
    if (ran) ran = run.run(program);
    if (!ran) state.SkipWithError(ran.error().message.c_str());
  }
}
BENCHMARK(small_run)->Unit(benchmark::kMicrosecond)->UseRealTime();

// Defining a program again costs the client's hash of the graph and a look at what it remembers.
void define_again(benchmark::State& state) {
  const auto client = DaemonProcess::shared().connect();
  const srg::Graph graph = forward_graph();
  must(client->define_program(graph, {}), state);
  for (auto _ : state) {
    if (!must(client->define_program(graph, {}), state).was_cached) {
      state.SkipWithError("the program was not known");
    }
  }
}
BENCHMARK(define_again)->Name("define/again")->Unit(benchmark::kMicrosecond)->UseRealTime();

// --- attach

constexpr uint64_t kModelBytes = uint64_t{2} << 30;

// Makes a file with one tensor of zeros. It is sparse, and small on disk. Its times are set so far
// back that they prove what it holds: a file that was young when it was read is compared when it is
// opened again.
std::string make_model(const std::string& directory) {
  const std::string header = "{\"w\":{\"dtype\":\"U8\",\"shape\":[" + std::to_string(kModelBytes) +
                             "],\"data_offsets\":[0," + std::to_string(kModelBytes) + "]}}";
  const std::string path = directory + "/model.safetensors";
  std::ofstream file(path, std::ios::binary);
  const uint64_t length = header.size();
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file << header;
  file.close();
  std::filesystem::resize_file(path, sizeof length + header.size() + kModelBytes);
  std::this_thread::sleep_for(std::chrono::nanoseconds(load::kSettledNs));
  return path;
}

void attach_resident(benchmark::State& state) {
  const std::string path = make_model(DaemonProcess::shared().directory());
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const auto client = DaemonProcess::shared().connect();
  const int fd = file.get();
  const auto first = must(client->open_model({"zeros", std::span(&fd, 1)}), state);
  for (auto _ : state) {
    const auto again = must(client->open_model({"zeros", std::span(&fd, 1)}), state);
    if (!again.was_resident) state.SkipWithError("the model was read again");
  }
  if (!client->close_model(first.id)) state.SkipWithError("the model did not close");
}
BENCHMARK(attach_resident)->Unit(benchmark::kMillisecond)->UseRealTime()->Iterations(200);

}  // namespace
}  // namespace djinn::bench

BENCHMARK_MAIN();
