// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/cuda/cuda_executor.h"

#include <ATen/Context.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include "kernel/exec/convert.h"
#include "kernel/exec/cpu_executor.h"
#include "kernel/exec/cuda/cuda_allocator.h"
#include "kernel/exec/cuda/cuda_check.h"
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

class CudaLaneDevice final : public LaneDevice {
 public:
  explicit CudaLaneDevice(DeviceMemory& memory)
      : memory_(memory), stream_(c10::cuda::getStreamFromPool(false, kOnlyDevice)) {}

  [[nodiscard]] c10::Stream stream() const override { return stream_.unwrap(); }
  [[nodiscard]] DeviceMemory& memory() override { return memory_; }
  void warm_up() override { warm_up_products(); }

  void copy_in(std::span<const std::byte> from, DeviceAddress to) override {
    check_cuda(::cudaMemcpyAsync(to.on_host(), from.data(), from.size(), cudaMemcpyHostToDevice,
                                 stream_.stream()));
  }
  Status copy_out(DeviceAddress from, std::span<std::byte> to) override {
    cudaError_t error = ::cudaMemcpyAsync(to.data(), from.on_host(), to.size(),
                                          cudaMemcpyDeviceToHost, stream_.stream());
    if (error == cudaSuccess) error = ::cudaStreamSynchronize(stream_.stream());
    if (error == cudaSuccess) return {};
    return Error{ErrorCode::kDeviceLost,
                 fmt::format("The GPU has failed, and this process can use it no more: {}.",
                             ::cudaGetErrorString(error))};
  }
  void copy(DeviceAddress from, DeviceAddress to, uint64_t bytes) override {
    check_cuda(::cudaMemcpyAsync(to.on_host(), from.on_host(), bytes, cudaMemcpyDeviceToDevice,
                                 stream_.stream()));
  }

 private:
  DeviceMemory& memory_;
  c10::cuda::CUDAStream stream_;
};

}  // namespace

Result<std::unique_ptr<CudaExecutor>> CudaExecutor::make(DeviceMemory& memory) {
  // PyTorch registers its kernels for CUDA as this is loaded.
  if (::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    return Error{ErrorCode::kUnsupported,
                 std::string("LibTorch's part for GPUs cannot be loaded: ") + ::dlerror()};
  }
  install_device_memory(memory);
  install_cuda_allocator();
  DJINN_CHECK(catching([]() -> Status {
    if (c10::cuda::device_count() == 0) return Error{ErrorCode::kUnsupported, "There is no GPU."};
    at::globalContext().lazyInitDevice(c10::kCUDA);
    return {};
  }));
  return std::unique_ptr<CudaExecutor>(new CudaExecutor(memory));
}

Result<std::unique_ptr<Program>> CudaExecutor::admit(srg::Graph graph, const WeightTable& weights,
                                                     const AdmissionLimits& limits) {
  for (const srg::Node& node : graph.nodes) DJINN_CHECK(check_operator(node));
  return admit_on(c10::Device(c10::kCUDA, kOnlyDevice), std::move(graph), weights, limits);
}

std::vector<srg::StorageIndex> CudaExecutor::inputs_written(const srg::Graph& graph) const {
  return CpuExecutor().inputs_written(graph);  // it asks schemas, which are all devices'
}

Result<std::unique_ptr<Lane>> CudaExecutor::make_lane(LaneOptions options) {
  return catching([&]() -> Result<std::unique_ptr<Lane>> {
    return make_lane_on(std::make_unique<CudaLaneDevice>(memory_), std::move(options));
  });
}

void CudaExecutor::warm_up(int) {
  warm_up_products();
}

}  // namespace djinn::exec
