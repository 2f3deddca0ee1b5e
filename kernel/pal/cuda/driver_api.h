// SPDX-License-Identifier: Apache-2.0

// DriverApi: the functions of NVIDIA's driver library that djinnd calls, as a table filled by
// dlopen. Nothing of ours links libcuda, so that every program starts on a host without a GPU, and
// needs no header of NVIDIA's to be built. The declarations are ours, of the driver's binary
// interface since CUDA 12; driver_api_test.cc compares them with NVIDIA's header where it is there.
//
// The names are the driver's, without `cu`; the documentation is NVIDIA's "CUDA Driver API".
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernel/base/result.h"

namespace djinn::pal::cuda {

// CUresult. Only those are named that are told apart; the driver says the names of all others.
enum class Code : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kDeviceUnavailable = 46,  // exclusive compute mode, and somebody has the device
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kEccUncorrectable = 214,
  kNvlinkUncorrectable = 220,
  kContained = 226,
  kOperatingSystem = 304,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kLaunchTimeout = 702,
  kAssert = 710,
  kHardwareStackError = 714,
  kIllegalInstruction = 715,
  kMisalignedAddress = 716,
  kInvalidAddressSpace = 717,
  kInvalidPc = 718,
  kLaunchFailed = 719,
  kTensorMemoryLeak = 721,
  kNotPermitted = 800,
  kNotSupported = 801,
  kSystemDriverMismatch = 803,
  kMpsClientTerminated = 810,
  kExternalDevice = 911,
  kUnknown = 999,
};

using Device = int;
using DevicePtr = unsigned long long;  // an address of the device
using Allocation = unsigned long long;
using Context = struct ContextTag*;
using Stream = struct StreamTag*;
using Event = struct EventTag*;
using Module = struct ModuleTag*;
using Function = struct FunctionTag*;

// CUdevice_attribute
enum class Attribute : int {
  kComputeMode = 20,
  kVirtualMemoryManagement = 102,
  kPosixFileDescriptors = 103,
  kMpsEnabled = 133,
};

// CUcomputemode
enum class ComputeMode : int { kDefault = 0, kProhibited = 2, kExclusiveProcess = 3 };

// CUuuid
struct Uuid {
  char bytes[16];
};

enum class LocationType : int { kDevice = 1 };
struct Location {
  LocationType type = LocationType::kDevice;
  int id = 0;
};

enum class AllocationType : int { kPinned = 1 };
enum class HandleType : int { kNone = 0, kPosixFileDescriptor = 1 };
enum class AccessFlags : int { kNone = 0, kRead = 1, kReadWrite = 3 };
enum class Granularity : int { kMinimum = 0 };

// CUmemAllocationProp
struct AllocationProperties {
  AllocationType type = AllocationType::kPinned;
  HandleType requested_handle_types = HandleType::kPosixFileDescriptor;
  Location location;
  void* win32_metadata = nullptr;
  struct {
    unsigned char compression_type = 0;
    unsigned char gpu_direct_rdma_capable = 0;
    unsigned short usage = 0;
    unsigned char reserved[4] = {};
  } flags;
};

// CUmemAccessDesc
struct AccessDescription {
  Location location;
  AccessFlags flags = AccessFlags::kNone;
};

inline constexpr unsigned kHostAllocPortable = 1;   // CU_MEMHOSTALLOC_PORTABLE
inline constexpr unsigned kStreamNonBlocking = 1;   // CU_STREAM_NON_BLOCKING
inline constexpr unsigned kEventDisableTiming = 2;  // CU_EVENT_DISABLE_TIMING
inline constexpr int kDriverVersionMin = 13'000;    // what PyTorch of CUDA 13.0 needs: 580

// One line a function: our name, the driver's symbol, its arguments.
#define DJINN_CUDA_FUNCTIONS(F)                                                                   \
  F(init, cuInit, (unsigned flags))                                                               \
  F(driver_get_version, cuDriverGetVersion, (int* version))                                       \
  F(get_error_name, cuGetErrorName, (Code code, const char** name))                               \
  F(get_error_string, cuGetErrorString, (Code code, const char** text))                           \
  F(device_get, cuDeviceGet, (Device * device, int ordinal))                                      \
  F(device_get_name, cuDeviceGetName, (char* name, int bytes, Device device))                     \
  F(device_get_uuid, cuDeviceGetUuid_v2, (Uuid * uuid, Device device))                            \
  F(device_get_attribute, cuDeviceGetAttribute, (int* value, Attribute attribute, Device device)) \
  F(primary_ctx_retain, cuDevicePrimaryCtxRetain, (Context * context, Device device))             \
  F(primary_ctx_release, cuDevicePrimaryCtxRelease_v2, (Device device))                           \
  F(ctx_set_current, cuCtxSetCurrent, (Context context))                                          \
  F(ctx_synchronize, cuCtxSynchronize, ())                                                        \
  F(mem_get_info, cuMemGetInfo_v2, (size_t * free, size_t * total))                               \
  F(mem_get_allocation_granularity, cuMemGetAllocationGranularity,                                \
    (size_t * bytes, const AllocationProperties* properties, Granularity option))                 \
  F(mem_create, cuMemCreate,                                                                      \
    (Allocation * allocation, size_t bytes, const AllocationProperties* properties,               \
     unsigned long long flags))                                                                   \
  F(mem_release, cuMemRelease, (Allocation allocation))                                           \
  F(mem_address_reserve, cuMemAddressReserve,                                                     \
    (DevicePtr * address, size_t bytes, size_t alignment, DevicePtr wanted,                       \
     unsigned long long flags))                                                                   \
  F(mem_address_free, cuMemAddressFree, (DevicePtr address, size_t bytes))                        \
  F(mem_map, cuMemMap,                                                                            \
    (DevicePtr address, size_t bytes, size_t offset, Allocation allocation,                       \
     unsigned long long flags))                                                                   \
  F(mem_unmap, cuMemUnmap, (DevicePtr address, size_t bytes))                                     \
  F(mem_set_access, cuMemSetAccess,                                                               \
    (DevicePtr address, size_t bytes, const AccessDescription* descriptions, size_t count))       \
  F(mem_export, cuMemExportToShareableHandle,                                                     \
    (void* handle, Allocation allocation, HandleType type, unsigned long long flags))             \
  F(mem_import, cuMemImportFromShareableHandle,                                                   \
    (Allocation * allocation, void* handle, HandleType type))                                     \
  F(mem_host_alloc, cuMemHostAlloc, (void** address, size_t bytes, unsigned flags))               \
  F(mem_free_host, cuMemFreeHost, (void* address))                                                \
  F(mem_host_register, cuMemHostRegister_v2, (void* address, size_t bytes, unsigned flags))       \
  F(mem_host_unregister, cuMemHostUnregister, (void* address))                                    \
  F(memcpy_htod, cuMemcpyHtoD_v2, (DevicePtr to, const void* from, size_t bytes))                 \
  F(memcpy_dtoh, cuMemcpyDtoH_v2, (void* to, DevicePtr from, size_t bytes))                       \
  F(memcpy_htod_async, cuMemcpyHtoDAsync_v2,                                                      \
    (DevicePtr to, const void* from, size_t bytes, Stream stream))                                \
  F(memcpy_dtoh_async, cuMemcpyDtoHAsync_v2,                                                      \
    (void* to, DevicePtr from, size_t bytes, Stream stream))                                      \
  F(memcpy_dtod_async, cuMemcpyDtoDAsync_v2,                                                      \
    (DevicePtr to, DevicePtr from, size_t bytes, Stream stream))                                  \
  F(memset_d8, cuMemsetD8_v2, (DevicePtr to, unsigned char value, size_t bytes))                  \
  F(memset_d8_async, cuMemsetD8Async,                                                             \
    (DevicePtr to, unsigned char value, size_t bytes, Stream stream))                             \
  F(stream_create, cuStreamCreate, (Stream * stream, unsigned flags))                             \
  F(stream_destroy, cuStreamDestroy_v2, (Stream stream))                                          \
  F(stream_synchronize, cuStreamSynchronize, (Stream stream))                                     \
  F(stream_query, cuStreamQuery, (Stream stream))                                                 \
  F(event_create, cuEventCreate, (Event * event, unsigned flags))                                 \
  F(event_destroy, cuEventDestroy_v2, (Event event))                                              \
  F(event_record, cuEventRecord, (Event event, Stream stream))                                    \
  F(event_synchronize, cuEventSynchronize, (Event event))                                         \
  F(module_load_data, cuModuleLoadData, (Module * module, const void* image))                     \
  F(module_get_function, cuModuleGetFunction,                                                     \
    (Function * function, Module module, const char* name))                                       \
  F(launch_kernel, cuLaunchKernel,                                                                \
    (Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,      \
     unsigned block_y, unsigned block_z, unsigned shared_bytes, Stream stream, void** arguments,  \
     void** extra))

// Every pointer is set. A value: the library stays loaded as long as the process lives.
struct DriverApi {
#define DJINN_CUDA_MEMBER(name, symbol, arguments) Code(*name) arguments = nullptr;
  DJINN_CUDA_FUNCTIONS(DJINN_CUDA_MEMBER)
#undef DJINN_CUDA_MEMBER
};

// Opens the driver library and finds every function; initialises nothing. Errors: kNotFound where
// there is no driver, kUnsupported where a function is missing in it (an older one).
[[nodiscard]] Result<DriverApi> load_driver();

// "CUDA_ERROR_OUT_OF_MEMORY (out of memory)", in the driver's words.
[[nodiscard]] std::string describe(const DriverApi& api, Code code);

// "create 2 MiB on cuda:0: CUDA_ERROR_OUT_OF_MEMORY (out of memory)", as the Error that it is:
// kOutOfMemory, kNotFound (no device), kInvalidArgument, kBusy (exclusive compute mode),
// kPermissionDenied, kUnsupported, kDeviceLost exactly where it is sticky, else kSystem.
[[nodiscard]] Error driver_error(const DriverApi& api, std::string_view what, Code code);

// True for codes after which the context answers nothing else for ever: its process has to end.
// tests/style compares them with the comments of NVIDIA's header.
[[nodiscard]] bool is_sticky(Code code) noexcept;

}  // namespace djinn::pal::cuda
