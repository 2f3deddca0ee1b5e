// SPDX-License-Identifier: Apache-2.0
//
// How fast bytes move: within the device's memory, and between it and the host.
//
//   nvcc -O3 -std=c++20 -arch=sm_90 -o bandwidth bandwidth.cu && ./bandwidth [--seconds S]
//
// On the device: `pieces` operations of one size, one after the other in a graph, each on another
// part of an arena that is far larger than the L2; GB/s = bytes × pieces / time of the graph, and
// for a copy bytes are those read and those written. "in the L2": all of them on the same part.
// Of own kernels the best of several shapes counts, which the detail names.
//
// Between host and device: 1 GiB; GB/s = bytes / time, on the host's clock, from the first call to
// the end of the last copy. "of the pinned limit": of what 1 GiB of pinned memory at once reaches.

#include <cstring>
#include <memory>
#include <random>
#include <thread>

#include "stage.cuh"

namespace {

using stage::Buffer;
using stage::check;
using stage::check_launch;
using stage::Event;
using stage::fact;
using stage::Graph;
using stage::kGigabyte;
using stage::kMiB;
using stage::Pinned;
using stage::Stage;
using stage::Stream;

constexpr size_t kHalfBytes = 4096 * kMiB;  // of the arena: what is read, what is written
constexpr int kPiecesMax = 512;
constexpr int kRepetitions = 5;
constexpr size_t kTransferBytes = 1024 * kMiB;
constexpr size_t kSlotBytes = 16 * kMiB;
constexpr size_t kSlotsOfThread = 2;  // one is filled while the other is on its way
constexpr size_t kPieces = kTransferBytes / kSlotBytes;

__global__ void fill(uint4* words, size_t count) {
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    const uint32_t x = static_cast<uint32_t>(i) * 2654435761u;
    words[i] = make_uint4(x, x ^ 0x9e3779b9u, x * 40503u, ~x);
  }
}

template <bool kStreaming>
__device__ uint4 load(const uint4* word) {
  return kStreaming ? __ldcs(word) : __ldcg(word);
}

__device__ uint32_t folded(uint4 word) {
  return word.x ^ word.y ^ word.z ^ word.w;
}

/// Each thread asks for kLoads times 16 bytes a turn. kStreaming: evict first (ld.global.cs).
template <int kLoads, bool kStreaming>
__global__ void read(const uint4* words, size_t count, uint32_t* sink) {
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  uint32_t sum = 0;
  size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + (kLoads - 1) * stride < count; i += kLoads * stride) {
    uint4 loaded[kLoads];
#pragma unroll
    for (int j = 0; j < kLoads; ++j) loaded[j] = load<kStreaming>(words + i + j * stride);
#pragma unroll
    for (int j = 0; j < kLoads; ++j) sum ^= folded(loaded[j]);
  }
  for (; i < count; i += stride) sum ^= folded(load<kStreaming>(words + i));
  if (sum == 0x5bd1e995u) *sink = sum;  // so that the loads are not left out
}

template <int kStores>
__global__ void write(uint4* words, size_t count, uint32_t value) {
  const uint4 word = make_uint4(value, value + 1, value + 2, value + 3);
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + (kStores - 1) * stride < count; i += kStores * stride) {
#pragma unroll
    for (int j = 0; j < kStores; ++j) __stcs(words + i + j * stride, word);
  }
  for (; i < count; i += stride) __stcs(words + i, word);
}

template <int kLoads>
__global__ void copy(const uint4* source, uint4* target, size_t count) {
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + (kLoads - 1) * stride < count; i += kLoads * stride) {
    uint4 loaded[kLoads];
#pragma unroll
    for (int j = 0; j < kLoads; ++j) loaded[j] = __ldcs(source + i + j * stride);
#pragma unroll
    for (int j = 0; j < kLoads; ++j) __stcs(target + i + j * stride, loaded[j]);
  }
  for (; i < count; i += stride) __stcs(target + i, __ldcs(source + i));
}

struct Shape {
  int unroll;
  int threads;
  int blocks_a_multiprocessor;

  std::string text() const {
    return "best shape: " + std::to_string(unroll) + " × 16 bytes a thread and turn, " +
           std::to_string(threads) + " threads a block, at most " +
           std::to_string(blocks_a_multiprocessor) + " blocks a multiprocessor";
  }
};

class OnDevice {
 public:
  explicit OnDevice(const Stage& stage) : stage_(stage), arena_(half_bytes() * 2), sink_(4) {
    fill<<<stage.device.multiProcessorCount * 8, 256, 0, stream_>>>(arena_.as<uint4>(),
                                                                    arena_.bytes() / sizeof(uint4));
    check_launch();
    stream_.wait();
  }

  size_t largest() const { return arena_.bytes() / 2; }

  void measure_copy(size_t bytes, bool in_l2) {
    report(
        "device copy (cudaMemcpyAsync)", bytes, in_l2,
        2 * gb_per_second(bytes, in_l2, [&](size_t at) {
          check(cudaMemcpyAsync(target(at), source(at), bytes, cudaMemcpyDeviceToDevice, stream_));
        }));
  }

  void measure_copy_kernel(size_t bytes) {
    best("device copy (own kernel)", bytes, false, 2, [&](const Shape& shape, size_t at) {
      const auto run = shape.unroll == 8 ? copy<8> : shape.unroll == 4 ? copy<4> : copy<2>;
      run<<<blocks(shape, bytes), shape.threads, 0, stream_>>>(source(at), target(at),
                                                               bytes / sizeof(uint4));
    });
  }

  void measure_read(size_t bytes, bool in_l2) {
    best("device read", bytes, in_l2, 1, [&](const Shape& shape, size_t at) {
      const auto run = in_l2 ? (shape.unroll == 8   ? read<8, false>
                                : shape.unroll == 4 ? read<4, false>
                                                    : read<2, false>)
                             : (shape.unroll == 8   ? read<8, true>
                                : shape.unroll == 4 ? read<4, true>
                                                    : read<2, true>);
      run<<<blocks(shape, bytes), shape.threads, 0, stream_>>>(source(at), bytes / sizeof(uint4),
                                                               sink_.as<uint32_t>());
    });
  }

  void measure_memset(size_t bytes, bool in_l2) {
    report("device write (cudaMemsetAsync)", bytes, in_l2,
           gb_per_second(bytes, in_l2, [&](size_t at) {
             check(cudaMemsetAsync(target(at), 0x5a, bytes, stream_));
           }));
  }

  void measure_write(size_t bytes, bool in_l2) {
    best("device write (own kernel)", bytes, in_l2, 1, [&](const Shape& shape, size_t at) {
      const auto run = shape.unroll == 8 ? write<8> : shape.unroll == 4 ? write<4> : write<2>;
      run<<<blocks(shape, bytes), shape.threads, 0, stream_>>>(target(at), bytes / sizeof(uint4),
                                                               static_cast<uint32_t>(at));
    });
  }

 private:
  static size_t half_bytes() {
    size_t free = 0;
    size_t total = 0;
    check(cudaMemGetInfo(&free, &total));
    size_t half = kHalfBytes;
    while (half > 64 * kMiB && half * 2 > free / 10 * 9) half /= 2;
    return half;
  }

  uint4* source(size_t at) const { return arena_.as<uint4>(at); }
  uint4* target(size_t at) const { return arena_.as<uint4>(largest() + at); }

  unsigned blocks(const Shape& shape, size_t bytes) const {
    const size_t each = size_t(shape.threads) * shape.unroll * sizeof(uint4);
    const size_t most = size_t(stage_.device.multiProcessorCount) * shape.blocks_a_multiprocessor;
    return static_cast<unsigned>(std::clamp((bytes + each - 1) / each, size_t{1}, most));
  }

  double gb_per_second(size_t bytes, bool in_l2, const std::function<void(size_t)>& enqueue) {
    const size_t pieces =
        in_l2 ? 256 : std::clamp(largest() / bytes, size_t{1}, size_t{kPiecesMax});
    const Graph graph(stream_, [&] {
      for (size_t i = 0; i < pieces; ++i) {
        enqueue(in_l2 ? 0 : i * bytes);
        check_launch();
      }
    });
    const double ms = stage::device_ms(stream_, kRepetitions, [&] { graph.launch(stream_); });
    return static_cast<double>(bytes) * static_cast<double>(pieces) / (ms / 1e3) / kGigabyte;
  }

  void best(const std::string& name, size_t bytes, bool in_l2, int times,
            const std::function<void(const Shape&, size_t)>& launch) {
    double fastest = 0;
    Shape winner{};
    for (const int unroll : {2, 4, 8}) {
      for (const int threads : {256, 512}) {
        for (const int per_multiprocessor : {2, 4, 8}) {
          if (threads * per_multiprocessor > 2048) continue;
          const Shape shape{unroll, threads, per_multiprocessor};
          const double found =
              gb_per_second(bytes, in_l2, [&](size_t at) { launch(shape, at); }) * times;
          if (found > fastest) winner = shape;
          fastest = std::max(fastest, found);
        }
      }
    }
    report(name, bytes, in_l2, fastest, winner.text());
  }

  void report(const std::string& name, size_t bytes, bool in_l2, double found,
              const std::string& detail = "") {
    fact(name + ", " + std::to_string(bytes / kMiB) + " MiB each" + (in_l2 ? ", in the L2" : ""),
         found, "GB/s", detail);
  }

  const Stage& stage_;
  Stream stream_;
  Buffer arena_;
  Buffer sink_;
};

struct Span {
  char* host;
  char* device;
  size_t bytes;
};

class Transfers {
 public:
  Transfers() : device_(kTransferBytes), pinned_(kTransferBytes) {
    std::mt19937_64 random(7);
    for (size_t i = 0; i < kTransferBytes; i += 4096) {
      const uint64_t word = random();
      for (size_t j = 0; j < 4096; j += sizeof(word)) {
        std::memcpy(pinned_.data() + i + j, &word, sizeof(word));
      }
    }
  }

  void measure_pinned() {
    pinned_limit_ = gb_per_second([&] { copy_in_pieces(kTransferBytes, 1, true); });
    fact("host to device, pinned, 1 GiB at once", pinned_limit_, "GB/s");
    report("host to device, pinned, pieces of 16 MiB on 1 stream",
           gb_per_second([&] { copy_in_pieces(kSlotBytes, 1, true); }));
    report("host to device, pinned, pieces of 16 MiB on 2 streams",
           gb_per_second([&] { copy_in_pieces(kSlotBytes, 2, true); }));
    fact("device to host, pinned, 1 GiB at once",
         gb_per_second([&] { copy_in_pieces(kTransferBytes, 1, false); }), "GB/s");
    fact("device to host, pinned, pieces of 16 MiB on 1 stream",
         gb_per_second([&] { copy_in_pieces(kSlotBytes, 1, false); }), "GB/s");
    fact("device to host, pinned, pieces of 16 MiB on 2 streams",
         gb_per_second([&] { copy_in_pieces(kSlotBytes, 2, false); }), "GB/s");
  }

  void measure_ring() {
    make_ordinary();
    for (const size_t threads : {4, 8, 12, 2, 1}) {
      const Pinned ring(threads * kSlotsOfThread * kSlotBytes);
      check(cudaMemset(device_.as<char>(), 0, kTransferBytes));
      const std::string name = "host to device, " + std::to_string(threads) + " thread" +
                               (threads == 1 ? "" : "s") +
                               " copying into 2 × 16 MiB pinned each, 2 streams";
      report(name, gb_per_second([&] { copy_through(ring, threads); }));
      if (threads == 4) check_what_arrived();
    }
  }

  /// Ordinary memory is pinned where it lies: what a loader could do with its extents.
  void measure_registered() {
    make_ordinary();
    report("host to device, ordinary memory pinned in place for it", gb_per_second([&] {
             check(cudaHostRegister(ordinary_.get(), kTransferBytes, cudaHostRegisterDefault));
             check(cudaMemcpy(device_.as<char>(), ordinary_.get(), kTransferBytes,
                              cudaMemcpyHostToDevice));
             check(cudaHostUnregister(ordinary_.get()));
           }));
  }

  void measure_pageable() {
    make_ordinary();
    report("host to device, pageable, 1 GiB at once", gb_per_second([&] {
             check(cudaMemcpy(device_.as<char>(), ordinary_.get(), kTransferBytes,
                              cudaMemcpyHostToDevice));
           }));
    fact("device to host, pageable, 1 GiB at once", gb_per_second([&] {
           check(cudaMemcpy(ordinary_.get(), device_.as<char>(), kTransferBytes,
                            cudaMemcpyDeviceToHost));
         }),
         "GB/s");
  }

  void measure_host_copy() {
    make_ordinary();
    for (const size_t threads : {1, 2, 4, 8, 12}) {
      const double found = gb_per_second([&] {
        in_threads(threads, [&](size_t thread) {
          const size_t part = kTransferBytes / threads;
          std::memcpy(pinned_.data() + thread * part, ordinary_.get() + thread * part, part);
        });
      });
      fact("host memcpy from ordinary to pinned memory, " + std::to_string(threads) + " thread" +
               (threads == 1 ? "" : "s"),
           found, "GB/s", "bytes copied, counted once");
    }
  }

 private:
  void make_ordinary() {
    if (ordinary_) return;
    ordinary_ = std::make_unique_for_overwrite<char[]>(kTransferBytes);
    std::memcpy(ordinary_.get(), pinned_.data(), kTransferBytes);
  }

  static void in_threads(size_t count, const std::function<void(size_t)>& run) {
    std::vector<std::exception_ptr> errors(count);
    {
      std::vector<std::jthread> threads;
      for (size_t i = 0; i < count; ++i) {
        threads.emplace_back([&, i] {
          try {
            run(i);
          } catch (...) {
            errors[i] = std::current_exception();
          }
        });
      }
    }
    for (const std::exception_ptr& error : errors) {
      if (error) std::rethrow_exception(error);
    }
  }

  void copy_in_pieces(size_t piece, size_t streams, bool to_device) {
    for (size_t at = 0, i = 0; at < kTransferBytes; at += piece, ++i) {
      char* const host = pinned_.data() + at;
      char* const device = device_.as<char>(at);
      check(cudaMemcpyAsync(to_device ? device : host, to_device ? host : device, piece,
                            to_device ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost,
                            streams_[i % streams]));
    }
    for (const Stream& stream : streams_) stream.wait();
  }

  /// Each thread has slots of its own: it fills one while the copy of the other is under way.
  void copy_through(const Pinned& ring, size_t threads) {
    in_threads(threads, [&](size_t thread) {
      check(cudaSetDevice(0));
      std::vector<std::unique_ptr<Event>> taken(kSlotsOfThread);
      for (size_t i = thread, turn = 0; i < kPieces; i += threads, ++turn) {
        const size_t own = turn % kSlotsOfThread;
        char* const slot = ring.data() + (thread * kSlotsOfThread + own) * kSlotBytes;
        if (taken[own])
          check(cudaEventSynchronize(*taken[own]));
        else
          taken[own] = std::make_unique<Event>(cudaEventDisableTiming);
        std::memcpy(slot, ordinary_.get() + i * kSlotBytes, kSlotBytes);
        check(cudaMemcpyAsync(device_.as<char>(i * kSlotBytes), slot, kSlotBytes,
                              cudaMemcpyHostToDevice, streams_[i % 2]));
        check(cudaEventRecord(*taken[own], streams_[i % 2]));
      }
    });
    for (const Stream& stream : streams_) stream.wait();
  }

  void check_what_arrived() {
    std::memset(pinned_.data(), 0, kTransferBytes);
    check(cudaMemcpy(pinned_.data(), device_.as<char>(), kTransferBytes, cudaMemcpyDeviceToHost));
    stage::fact_bool("what went through the ring arrived equal",
                     std::memcmp(pinned_.data(), ordinary_.get(), kTransferBytes) == 0);
  }

  static double gb_per_second(const std::function<void()>& transfer) {
    std::vector<double> seconds;
    for (int i = 0; i <= 3; ++i) {
      const double begin = stage::seconds_now();
      transfer();
      if (i > 0) seconds.push_back(stage::seconds_now() - begin);
    }
    return static_cast<double>(kTransferBytes) / stage::median(seconds) / kGigabyte;
  }

  void report(const std::string& name, double found) {
    fact(name, found, "GB/s");
    if (pinned_limit_ > 0) fact(name + ", of the pinned limit", found / pinned_limit_ * 100, "%");
  }

  Buffer device_;
  Pinned pinned_;
  std::unique_ptr<char[]> ordinary_;
  Stream streams_[2];
  double pinned_limit_ = 0;
};

void measure_size(Stage& stage, OnDevice& device, size_t mib) {
  const size_t bytes = mib * kMiB;
  if (bytes > device.largest()) return;
  const std::string size = std::to_string(mib) + " MiB";
  stage.part("copies of " + size, [&] { device.measure_copy(bytes, false); });
  stage.part("reads of " + size, [&] { device.measure_read(bytes, false); });
  stage.part("memsets of " + size, [&] { device.measure_memset(bytes, false); });
  stage.part("writes of " + size, [&] { device.measure_write(bytes, false); });
  stage.part("own copies of " + size, [&] { device.measure_copy_kernel(bytes); });
}

void measure_l2(Stage& stage, OnDevice& device, size_t mib) {
  const size_t bytes = mib * kMiB;
  const std::string size = std::to_string(mib) + " MiB in the L2";
  stage.part("reads of " + size, [&] { device.measure_read(bytes, true); });
  stage.part("writes of " + size, [&] { device.measure_write(bytes, true); });
  if (mib > 8) return;  // what is read and what is written are to fit together
  stage.part("copies of " + size, [&] { device.measure_copy(bytes, true); });
}

void measure_transfers(Stage& stage) {
  std::unique_ptr<Transfers> transfers;
  stage.part("memory for transfers", [&] { transfers = std::make_unique<Transfers>(); });
  if (!transfers) return;
  stage.part("pinned transfers", [&] { transfers->measure_pinned(); });
  stage.part("the ring", [&] { transfers->measure_ring(); });
  stage.part("pinning in place", [&] { transfers->measure_registered(); });
  stage.part("pageable transfers", [&] { transfers->measure_pageable(); });
  stage.part("copies of the host", [&] { transfers->measure_host_copy(); });
}

void measure(Stage& stage) {
  std::unique_ptr<OnDevice> device;
  stage.part("the arena", [&] { device = std::make_unique<OnDevice>(stage); });
  if (device) measure_size(stage, *device, 1024);
  measure_transfers(stage);
  if (!device) return;
  for (const size_t mib : {128, 32, 8, 2}) measure_size(stage, *device, mib);
  for (const size_t mib : {2, 8, 32}) measure_l2(stage, *device, mib);
  measure_size(stage, *device, 4096);
}

}  // namespace

int main(int argc, char** argv) {
  return Stage(60).run(argc, argv, measure);
}
