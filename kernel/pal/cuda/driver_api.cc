// SPDX-License-Identifier: Apache-2.0
#include "kernel/pal/cuda/driver_api.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace djinn::pal::cuda {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

ErrorCode code_for(Code code) {
  if (is_sticky(code)) return ErrorCode::kDeviceLost;
  switch (code) {
    case Code::kOutOfMemory:
      return ErrorCode::kOutOfMemory;
    case Code::kNoDevice:
    case Code::kInvalidDevice:
      return ErrorCode::kNotFound;
    case Code::kInvalidValue:
    case Code::kInvalidHandle:
      return ErrorCode::kInvalidArgument;
    case Code::kDeviceUnavailable:
      return ErrorCode::kBusy;
    case Code::kNotPermitted:
      return ErrorCode::kPermissionDenied;
    case Code::kNotSupported:
    case Code::kSystemDriverMismatch:
      return ErrorCode::kUnsupported;
    default:
      return ErrorCode::kSystem;
  }
}

}  // namespace

Result<DriverApi> load_driver() {
  void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return Error{
        ErrorCode::kNotFound,
        fmt::format("no NVIDIA driver: {} does not open ({}). Install version 580 or newer "
                    "(Debian's name for its library is libcuda1), or leave cuda devices "
                    "out",
                    kLibrary, ::dlerror())};
  DriverApi api;
#define DJINN_CUDA_FIND(name, symbol, arguments)                                              \
  api.name = reinterpret_cast<decltype(api.name)>(::dlsym(library, #symbol));                 \
  if (api.name == nullptr)                                                                    \
    return Error{ErrorCode::kUnsupported,                                                     \
                 fmt::format("{} has no {}: the driver is too old. djinnd needs version 580 " \
                             "or newer",                                                      \
                             kLibrary, #symbol)};
  DJINN_CUDA_FUNCTIONS(DJINN_CUDA_FIND)
#undef DJINN_CUDA_FIND
  return api;
}

std::string describe(const DriverApi& api, Code code) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (api.get_error_name(code, &name) != Code::kSuccess || name == nullptr)
    return fmt::format("CUDA error {}", static_cast<int>(code));
  if (api.get_error_string(code, &text) != Code::kSuccess || text == nullptr) return name;
  return fmt::format("{} ({})", name, text);
}

Error driver_error(const DriverApi& api, std::string_view what, Code code) {
  return {code_for(code), fmt::format("{}: {}", what, describe(api, code))};
}

bool is_sticky(Code code) noexcept {
  switch (code) {
    case Code::kEccUncorrectable:
    case Code::kNvlinkUncorrectable:
    case Code::kContained:
    case Code::kIllegalAddress:
    case Code::kLaunchTimeout:
    case Code::kAssert:
    case Code::kHardwareStackError:
    case Code::kIllegalInstruction:
    case Code::kMisalignedAddress:
    case Code::kInvalidAddressSpace:
    case Code::kInvalidPc:
    case Code::kLaunchFailed:
    case Code::kTensorMemoryLeak:
    case Code::kMpsClientTerminated:
    case Code::kExternalDevice:
      return true;
    default:
      return false;
  }
}

}  // namespace djinn::pal::cuda
