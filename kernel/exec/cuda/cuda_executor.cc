// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/cuda/cuda_executor.h"

#include <ATen/Context.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <functional>
#include <thread>
#include <utility>

#include "kernel/exec/convert.h"
#include "kernel/exec/cpu_executor.h"
#include "kernel/exec/cuda/capture_cache.h"
#include "kernel/exec/cuda/cuda_allocator.h"
#include "kernel/exec/cuda/fast_operators.h"
#include "kernel/exec/cuda/only_device.h"
#include "kernel/exec/cuda/own_kernels.h"
#include "kernel/exec/lane_device.h"
#include "kernel/exec/program.h"
#include "kernel/srg/allowed.h"

namespace djinn::exec {
namespace {

// Of each kind that has a library's handle behind it.
void warm_up_products() {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(c10::kCUDA, kOnlyDevice);
  const at::Tensor x = at::zeros({16, 16}, options);
  (void)at::matmul(x, x);
  (void)at::linear(x, x, at::zeros({16}, options));
}

// What no device offers, admission says.
Status check_operator(const srg::Node& node) {
  if (srg::is_allowed_on_gpu(node.op) || !srg::is_allowed(node.op)) return {};
  return located(
      Error{ErrorCode::kUnsupported,
            fmt::format("Operator {} is not offered on a GPU. Run it on cpu:0.", node.op)},
      describe(node));
}

// For what is copied out. A row of logits is smaller.
constexpr size_t kRoomBytes = size_t{4} << 20;

Error lost(cudaError_t error) {
  return {ErrorCode::kDeviceLost,
          fmt::format("The GPU has failed, and this process can use it no more: {}.",
                      ::cudaGetErrorString(error))};
}

struct PinnedDeleter {
  void operator()(std::byte* memory) const { (void)::cudaFreeHost(memory); }
};
using Pinned = std::unique_ptr<std::byte, PinnedDeleter>;

Result<Pinned> make_room() {
  void* memory = nullptr;
  const cudaError_t error = ::cudaHostAlloc(&memory, kRoomBytes, cudaHostAllocDefault);
  if (error == cudaSuccess) return Pinned(static_cast<std::byte*>(memory));
  return Error{ErrorCode::kOutOfMemory, fmt::format("No memory of the host could be pinned: {}.",
                                                    ::cudaGetErrorString(error))};
}

}  // namespace

struct CudaExecutor::Stream {
  c10::cuda::CUDAStream stream;
  Notice notice;
  CaptureStats captures;
  bool has_lane = false;
};

namespace {

class CudaLaneDevice final : public LaneDevice {
 public:
  // ended: what becomes of the stream with this one.
  CudaLaneDevice(DeviceMemory& memory, c10::cuda::CUDAStream stream, Pinned room,
                 CaptureStats& captures, const Notice& notice, std::function<void()> ended)
      : memory_(memory),
        stream_(stream),
        room_(std::move(room)),
        ended_(std::move(ended)),
        captures_(stream.stream(), captures, notice) {}
  // What it gave back to the memory may still be in use.
  ~CudaLaneDevice() override {
    (void)wait();
    ended_();
  }
  CudaLaneDevice(const CudaLaneDevice&) = delete;
  CudaLaneDevice& operator=(const CudaLaneDevice&) = delete;

  [[nodiscard]] c10::Stream stream() const override { return stream_.unwrap(); }
  [[nodiscard]] DeviceMemory& memory() override { return memory_; }
  [[nodiscard]] LanePieces& pieces() override { return captures_; }
  void warm_up() override { warm_up_products(); }

  void copy_in(std::span<const std::byte> from, DeviceAddress to) override {
    note(::cudaMemcpyAsync(to.on_host(), from.data(), from.size(), cudaMemcpyHostToDevice,
                           stream_.stream()));
  }
  Status copy_out(DeviceAddress from, std::span<std::byte> to) override {
    const cudaError_t error = ::cudaMemcpyAsync(to.data(), from.on_host(), to.size(),
                                                cudaMemcpyDeviceToHost, stream_.stream());
    note(error);
    return wait();
  }
  void copy(DeviceAddress from, DeviceAddress to, uint64_t bytes) override {
    note(::cudaMemcpyAsync(to.on_host(), from.on_host(), bytes, cudaMemcpyDeviceToDevice,
                           stream_.stream()));
  }
  Status wait() override {
    note(::cudaStreamSynchronize(stream_.stream()));
    return failure_ == cudaSuccess ? Status() : lost(failure_);
  }
  [[nodiscard]] std::span<std::byte> room() override { return {room_.get(), kRoomBytes}; }

 private:
  // A copy that was refused is of a context that is gone, or of memory that is not there: what was
  // to be computed with it is not what was meant. Whoever waits next is told, and ends the process.
  void note(cudaError_t error) {
    if (failure_ == cudaSuccess) failure_ = error;
  }

  DeviceMemory& memory_;
  c10::cuda::CUDAStream stream_;
  cudaError_t failure_ = cudaSuccess;  // the first one
  Pinned room_;
  std::function<void()> ended_;  // it keeps what captures_ counts in
  CaptureCache captures_;
};

Status open_device() {
  return catching([]() -> Status {
    at::globalContext().lazyInitDevice(c10::kCUDA);
    return {};
  });
}

}  // namespace

CudaExecutor::CudaExecutor(DeviceMemory& memory, std::shared_ptr<Stream> stream)
    : memory_(memory), stream_(std::move(stream)) {}

Result<std::unique_ptr<CudaExecutor>> CudaExecutor::make(
    DeviceMemory& memory, std::function<void(std::string_view)> notice) {
  // PyTorch registers its kernels for CUDA as this is loaded.
  if (::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    return Error{ErrorCode::kUnsupported,
                 std::string("LibTorch's part for GPUs cannot be loaded: ") + ::dlerror()};
  }
  // Asked first, for where there is none LibTorch goes on with the memory that it has.
  DJINN_CHECK(catching([]() -> Status {
    if (c10::cuda::device_count() == 0) return Error{ErrorCode::kUnsupported, "There is no GPU."};
    return {};
  }));
  install_device_memory(memory);
  install_cuda_allocator();
  if (const Status opened = open_device(); !opened) {
    remove_cuda_allocator();
    remove_device_memory();
    return opened.error();
  }
  return catching([&]() -> Result<std::unique_ptr<CudaExecutor>> {
    auto stream = std::make_shared<Stream>(
        Stream{c10::cuda::getStreamFromPool(false, kOnlyDevice), std::move(notice), {}});
    return std::unique_ptr<CudaExecutor>(new CudaExecutor(memory, std::move(stream)));
  });
}

Status CudaExecutor::load_kernels(std::span<const std::byte> image) {
  DJINN_CHECK(load_own_kernels(image));
  register_cuda_operators();
  return {};
}

Result<std::unique_ptr<Program>> CudaExecutor::admit(srg::Graph graph, const WeightTable& weights,
                                                     const AdmissionLimits& limits) {
  for (const srg::Node& node : graph.nodes) DJINN_CHECK(check_operator(node));
  return admit_on(c10::Device(c10::kCUDA, kOnlyDevice), std::move(graph), weights, limits,
                  are_own_kernels_loaded() ? OwnKernels::kThere : OwnKernels::kNone);
}

std::vector<srg::StorageIndex> CudaExecutor::inputs_written(const srg::Graph& graph) const {
  return CpuExecutor().inputs_written(graph);  // it asks schemas, which are all devices'
}

Result<std::unique_ptr<Lane>> CudaExecutor::make_lane(LaneOptions options) {
  if (stream_->has_lane) {
    return Error{ErrorCode::kBusy,
                 "There is a lane on this GPU: memory that one gives back may be another's at "
                 "once, so a process has one. End it first."};
  }
  DJINN_TRY(Pinned room, make_room());
  stream_->has_lane = true;
  auto device = std::make_unique<CudaLaneDevice>(memory_, stream_->stream, std::move(room),
                                                 stream_->captures, stream_->notice,
                                                 [stream = stream_] { stream->has_lane = false; });
  return make_lane_on(std::move(device), std::move(options));
}

const CaptureStats& CudaExecutor::captures() const {
  return stream_->captures;
}

// By a thread of its own: when that ends, its handles are free for the lane's. What fails here, a
// lane's first run tells.
void CudaExecutor::warm_up(int) {
  std::thread([this] {
    const Status warmed = catching([&]() -> Status {
      const c10::cuda::CUDAStreamGuard guard(stream_->stream);
      warm_up_products();
      C10_CUDA_CHECK(::cudaStreamSynchronize(stream_->stream.stream()));
      return {};
    });
    (void)warmed;
  }).join();
}

}  // namespace djinn::exec
