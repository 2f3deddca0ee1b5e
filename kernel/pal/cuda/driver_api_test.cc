// SPDX-License-Identifier: Apache-2.0
#include "kernel/pal/cuda/driver_api.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <type_traits>
#include <utility>

#if __has_include(<cuda.h>)
#include <cuda.h>
#endif

namespace djinn::pal::cuda {
namespace {

#if __has_include(<cuda.h>)

// --- our declarations and NVIDIA's
// ----------------------------------------------------------------

static_assert(CUDA_VERSION >= 13'000);

// Ours<T>: what a type of NVIDIA's header is here, through pointers and const. Numbers are
// themselves, and so are the header's names for numbers.
template <typename T>
struct OursFor {
  using Type = T;
};
template <typename T>
using Ours = typename OursFor<T>::Type;
template <typename T>
struct OursFor<T*> {
  using Type = Ours<T>*;
};
template <typename T>
struct OursFor<const T> {
  using Type = const Ours<T>;
};
template <typename T, typename... Arguments>
struct OursFor<T(Arguments...)> {
  using Type = Ours<T>(Ours<Arguments>...);
};

#define DJINN_CUDA_TYPE(theirs, ours) \
  template <>                         \
  struct OursFor<theirs> {            \
    using Type = ours;                \
  };                                  \
  static_assert(sizeof(theirs) == sizeof(ours) && alignof(theirs) == alignof(ours))
DJINN_CUDA_TYPE(CUresult, Code);
DJINN_CUDA_TYPE(CUcontext, Context);
DJINN_CUDA_TYPE(CUstream, Stream);
DJINN_CUDA_TYPE(CUevent, Event);
DJINN_CUDA_TYPE(CUmodule, Module);
DJINN_CUDA_TYPE(CUfunction, Function);
DJINN_CUDA_TYPE(CUuuid, Uuid);
DJINN_CUDA_TYPE(CUdevice_attribute, Attribute);
DJINN_CUDA_TYPE(CUmemLocationType, LocationType);
DJINN_CUDA_TYPE(CUmemAllocationType, AllocationType);
DJINN_CUDA_TYPE(CUmemAllocationHandleType, HandleType);
DJINN_CUDA_TYPE(CUmemAccess_flags, AccessFlags);
DJINN_CUDA_TYPE(CUmemAllocationGranularity_flags, Granularity);
DJINN_CUDA_TYPE(CUmemLocation, Location);
DJINN_CUDA_TYPE(CUmemAllocationProp, AllocationProperties);
DJINN_CUDA_TYPE(CUmemAccessDesc, AccessDescription);
#undef DJINN_CUDA_TYPE

// Each function's arguments have the header's types, const and pointers included.
#define DJINN_CUDA_COMPARE(name, symbol, arguments) \
  static_assert(std::is_same_v<Ours<decltype(&::symbol)>, decltype(DriverApi::name)>, #symbol);
DJINN_CUDA_FUNCTIONS(DJINN_CUDA_COMPARE)
#undef DJINN_CUDA_COMPARE

// Each field of a structure lies where the header's does, and has its type.
#define DJINN_CUDA_FIELD(theirs, their_field, ours, our_field)                                  \
  static_assert(offsetof(theirs, their_field) == offsetof(ours, our_field));                    \
  static_assert(std::is_same_v<                                                                 \
                Ours<std::remove_reference_t<decltype((std::declval<theirs&>().their_field))>>, \
                std::remove_reference_t<decltype((std::declval<ours&>().our_field))>>)
DJINN_CUDA_FIELD(CUmemLocation, type, Location, type);
DJINN_CUDA_FIELD(CUmemLocation, id, Location, id);
DJINN_CUDA_FIELD(CUmemAccessDesc, location, AccessDescription, location);
DJINN_CUDA_FIELD(CUmemAccessDesc, flags, AccessDescription, flags);
#define DJINN_CUDA_PROPERTY(theirs, ours) \
  DJINN_CUDA_FIELD(CUmemAllocationProp, theirs, AllocationProperties, ours)
DJINN_CUDA_PROPERTY(type, type);
DJINN_CUDA_PROPERTY(requestedHandleTypes, requested_handle_types);
DJINN_CUDA_PROPERTY(location, location);
DJINN_CUDA_PROPERTY(win32HandleMetaData, win32_metadata);
DJINN_CUDA_PROPERTY(allocFlags.compressionType, flags.compression_type);
DJINN_CUDA_PROPERTY(allocFlags.gpuDirectRDMACapable, flags.gpu_direct_rdma_capable);
DJINN_CUDA_PROPERTY(allocFlags.usage, flags.usage);
DJINN_CUDA_PROPERTY(allocFlags.reserved, flags.reserved);
#undef DJINN_CUDA_PROPERTY
#undef DJINN_CUDA_FIELD

#define DJINN_CUDA_EQUAL(theirs, ours) static_assert(int(theirs) == int(ours))
DJINN_CUDA_EQUAL(CUDA_SUCCESS, Code::kSuccess);
DJINN_CUDA_EQUAL(CUDA_ERROR_INVALID_VALUE, Code::kInvalidValue);
DJINN_CUDA_EQUAL(CUDA_ERROR_OUT_OF_MEMORY, Code::kOutOfMemory);
DJINN_CUDA_EQUAL(CUDA_ERROR_NOT_INITIALIZED, Code::kNotInitialized);
DJINN_CUDA_EQUAL(CUDA_ERROR_DEVICE_UNAVAILABLE, Code::kDeviceUnavailable);
DJINN_CUDA_EQUAL(CUDA_ERROR_NO_DEVICE, Code::kNoDevice);
DJINN_CUDA_EQUAL(CUDA_ERROR_INVALID_DEVICE, Code::kInvalidDevice);
DJINN_CUDA_EQUAL(CUDA_ERROR_INVALID_CONTEXT, Code::kInvalidContext);
DJINN_CUDA_EQUAL(CUDA_ERROR_ECC_UNCORRECTABLE, Code::kEccUncorrectable);
DJINN_CUDA_EQUAL(CUDA_ERROR_NVLINK_UNCORRECTABLE, Code::kNvlinkUncorrectable);
DJINN_CUDA_EQUAL(CUDA_ERROR_CONTAINED, Code::kContained);
DJINN_CUDA_EQUAL(CUDA_ERROR_OPERATING_SYSTEM, Code::kOperatingSystem);
DJINN_CUDA_EQUAL(CUDA_ERROR_INVALID_HANDLE, Code::kInvalidHandle);
DJINN_CUDA_EQUAL(CUDA_ERROR_NOT_FOUND, Code::kNotFound);
DJINN_CUDA_EQUAL(CUDA_ERROR_NOT_READY, Code::kNotReady);
DJINN_CUDA_EQUAL(CUDA_ERROR_ILLEGAL_ADDRESS, Code::kIllegalAddress);
DJINN_CUDA_EQUAL(CUDA_ERROR_LAUNCH_TIMEOUT, Code::kLaunchTimeout);
DJINN_CUDA_EQUAL(CUDA_ERROR_ASSERT, Code::kAssert);
DJINN_CUDA_EQUAL(CUDA_ERROR_HARDWARE_STACK_ERROR, Code::kHardwareStackError);
DJINN_CUDA_EQUAL(CUDA_ERROR_ILLEGAL_INSTRUCTION, Code::kIllegalInstruction);
DJINN_CUDA_EQUAL(CUDA_ERROR_MISALIGNED_ADDRESS, Code::kMisalignedAddress);
DJINN_CUDA_EQUAL(CUDA_ERROR_INVALID_ADDRESS_SPACE, Code::kInvalidAddressSpace);
DJINN_CUDA_EQUAL(CUDA_ERROR_INVALID_PC, Code::kInvalidPc);
DJINN_CUDA_EQUAL(CUDA_ERROR_LAUNCH_FAILED, Code::kLaunchFailed);
DJINN_CUDA_EQUAL(CUDA_ERROR_TENSOR_MEMORY_LEAK, Code::kTensorMemoryLeak);
DJINN_CUDA_EQUAL(CUDA_ERROR_NOT_PERMITTED, Code::kNotPermitted);
DJINN_CUDA_EQUAL(CUDA_ERROR_NOT_SUPPORTED, Code::kNotSupported);
DJINN_CUDA_EQUAL(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, Code::kSystemDriverMismatch);
DJINN_CUDA_EQUAL(CUDA_ERROR_MPS_CLIENT_TERMINATED, Code::kMpsClientTerminated);
DJINN_CUDA_EQUAL(CUDA_ERROR_EXTERNAL_DEVICE, Code::kExternalDevice);
DJINN_CUDA_EQUAL(CUDA_ERROR_UNKNOWN, Code::kUnknown);
DJINN_CUDA_EQUAL(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, Attribute::kComputeMode);
DJINN_CUDA_EQUAL(CU_COMPUTEMODE_DEFAULT, ComputeMode::kDefault);
DJINN_CUDA_EQUAL(CU_COMPUTEMODE_PROHIBITED, ComputeMode::kProhibited);
DJINN_CUDA_EQUAL(CU_COMPUTEMODE_EXCLUSIVE_PROCESS, ComputeMode::kExclusiveProcess);
DJINN_CUDA_EQUAL(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                 Attribute::kVirtualMemoryManagement);
DJINN_CUDA_EQUAL(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                 Attribute::kPosixFileDescriptors);
DJINN_CUDA_EQUAL(CU_DEVICE_ATTRIBUTE_MPS_ENABLED, Attribute::kMpsEnabled);
DJINN_CUDA_EQUAL(CU_MEM_LOCATION_TYPE_DEVICE, LocationType::kDevice);
DJINN_CUDA_EQUAL(CU_MEM_ALLOCATION_TYPE_PINNED, AllocationType::kPinned);
DJINN_CUDA_EQUAL(CU_MEM_HANDLE_TYPE_NONE, HandleType::kNone);
DJINN_CUDA_EQUAL(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, HandleType::kPosixFileDescriptor);
DJINN_CUDA_EQUAL(CU_MEM_ACCESS_FLAGS_PROT_NONE, AccessFlags::kNone);
DJINN_CUDA_EQUAL(CU_MEM_ACCESS_FLAGS_PROT_READ, AccessFlags::kRead);
DJINN_CUDA_EQUAL(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, AccessFlags::kReadWrite);
DJINN_CUDA_EQUAL(CU_MEM_ALLOC_GRANULARITY_MINIMUM, Granularity::kMinimum);
DJINN_CUDA_EQUAL(CU_MEMHOSTALLOC_PORTABLE, kHostAllocPortable);
DJINN_CUDA_EQUAL(CU_STREAM_NON_BLOCKING, kStreamNonBlocking);
DJINN_CUDA_EQUAL(CU_EVENT_DISABLE_TIMING, kEventDisableTiming);
#undef DJINN_CUDA_EQUAL

#else

TEST(driver_api, is_compared_with_nvidias_header) {
  GTEST_SKIP() << "cuda.h is not here: it comes with the tests' Python packages";
}

#endif

TEST(driver_api, codes_after_which_a_context_is_gone_are_told_from_refusals) {
  EXPECT_TRUE(is_sticky(Code::kIllegalAddress));
  EXPECT_TRUE(is_sticky(Code::kAssert));
  EXPECT_FALSE(is_sticky(Code::kOutOfMemory));
  EXPECT_FALSE(is_sticky(Code::kNotReady));
}

}  // namespace
}  // namespace djinn::pal::cuda
