// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_cuda/codes.h"

#include <algorithm>
#include <array>

namespace djinn::fake_cuda {
namespace {

constexpr auto kCodes = std::to_array<CodeInfo>({
    {Code::kSuccess, "CUDA_SUCCESS", "no error", false},
    {Code::kInvalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument", false},
    {Code::kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory", false},
    {Code::kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error", false},
    {Code::kDeviceUnavailable, "CUDA_ERROR_DEVICE_UNAVAILABLE", "device busy or unavailable",
     false},
    {Code::kNoDevice, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected", false},
    {Code::kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal", false},
    {Code::kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context", false},
    {Code::kEccUncorrectable, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error", true},
    {Code::kNvlinkUncorrectable, "CUDA_ERROR_NVLINK_UNCORRECTABLE", "uncorrectable NVLink error",
     true},
    {Code::kContained, "CUDA_ERROR_CONTAINED", "an exception was contained", true},
    {Code::kOperatingSystem, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed", false},
    {Code::kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle", false},
    {Code::kNotFound, "CUDA_ERROR_NOT_FOUND", "named symbol not found", false},
    {Code::kNotReady, "CUDA_ERROR_NOT_READY", "device not ready", false},
    {Code::kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS", "illegal memory access", true},
    {Code::kLaunchTimeout, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out", true},
    {Code::kAssert, "CUDA_ERROR_ASSERT", "device-side assert triggered", true},
    {kAlreadyRegistered, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "already registered", false},
    {kNotRegistered, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "not registered", false},
    {Code::kHardwareStackError, "CUDA_ERROR_HARDWARE_STACK_ERROR", "hardware stack error", true},
    {Code::kIllegalInstruction, "CUDA_ERROR_ILLEGAL_INSTRUCTION", "illegal instruction", true},
    {Code::kMisalignedAddress, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address", true},
    {Code::kInvalidAddressSpace, "CUDA_ERROR_INVALID_ADDRESS_SPACE", "wrong address space", true},
    {Code::kInvalidPc, "CUDA_ERROR_INVALID_PC", "invalid program counter", true},
    {Code::kLaunchFailed, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure", true},
    {Code::kTensorMemoryLeak, "CUDA_ERROR_TENSOR_MEMORY_LEAK", "tensor memory leaked", true},
    {Code::kNotPermitted, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted", false},
    {Code::kNotSupported, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported", false},
    {Code::kSystemDriverMismatch, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "driver mismatch", false},
    {Code::kMpsClientTerminated, "CUDA_ERROR_MPS_CLIENT_TERMINATED", "MPS client terminated", true},
    {Code::kExternalDevice, "CUDA_ERROR_EXTERNAL_DEVICE", "an external device failed", true},
    {Code::kUnknown, "CUDA_ERROR_UNKNOWN", "unknown error", false},
});

constexpr std::string_view kPrefix = "CUDA_ERROR_";

}  // namespace

const CodeInfo* find_code(Code code) {
  const auto* const found = std::ranges::find(kCodes, code, &CodeInfo::code);
  return found == kCodes.end() ? nullptr : found;
}

const CodeInfo* find_code(std::string_view name) {
  const auto is_named = [&](const CodeInfo& info) {
    const std::string_view full = info.name;
    return full.starts_with(kPrefix) && full.substr(kPrefix.size()) == name;
  };
  const auto* const found = std::ranges::find_if(kCodes, is_named);
  return found == kCodes.end() ? nullptr : found;
}

}  // namespace djinn::fake_cuda
