// SPDX-License-Identifier: Apache-2.0
#include "kernel/pal/cuda/driver_api.h"

#include <gtest/gtest.h>

#if __has_include(<cuda.h>)
#include <cuda.h>
#endif

namespace djinn::pal::cuda {
namespace {

#if __has_include(<cuda.h>)

// --- our declarations and NVIDIA's
// ----------------------------------------------------------------

static_assert(CUDA_VERSION >= 13'000);

// What a type of NVIDIA's header is here. A pointer to it is a pointer to ours, and a scalar or a
// structure has the size of ours; structures are compared field by field below.
template <typename Theirs, typename Ours>
constexpr bool is_same_argument() {
  if constexpr (std::is_pointer_v<Theirs> != std::is_pointer_v<Ours>) return false;
  return sizeof(Theirs) == sizeof(Ours);
}

template <typename Theirs, typename Ours>
struct same_function : std::false_type {};
template <typename... Theirs, typename... Ours>
struct same_function<CUresult (*)(Theirs...), Code (*)(Ours...)>
    : std::bool_constant<(sizeof...(Theirs) == sizeof...(Ours)) &&
                         (is_same_argument<Theirs, Ours>() && ...)> {};

#define DJINN_CUDA_COMPARE(name, symbol, arguments) \
  static_assert(same_function<decltype(&::symbol), decltype(DriverApi::name)>::value, #symbol);
DJINN_CUDA_FUNCTIONS(DJINN_CUDA_COMPARE)
#undef DJINN_CUDA_COMPARE

static_assert(sizeof(CUmemLocation) == sizeof(Location));
static_assert(offsetof(CUmemLocation, id) == offsetof(Location, id));
static_assert(sizeof(CUmemAllocationProp) == sizeof(AllocationProperties));
static_assert(offsetof(CUmemAllocationProp, requestedHandleTypes) ==
              offsetof(AllocationProperties, requested_handle_types));
static_assert(offsetof(CUmemAllocationProp, location) == offsetof(AllocationProperties, location));
static_assert(offsetof(CUmemAllocationProp, win32HandleMetaData) ==
              offsetof(AllocationProperties, win32_metadata));
static_assert(offsetof(CUmemAllocationProp, allocFlags) == offsetof(AllocationProperties, flags));
static_assert(sizeof(CUmemAccessDesc) == sizeof(AccessDescription));
static_assert(offsetof(CUmemAccessDesc, flags) == offsetof(AccessDescription, flags));

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
DJINN_CUDA_EQUAL(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                 Attribute::kVirtualMemoryManagement);
DJINN_CUDA_EQUAL(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                 Attribute::kPosixFileDescriptors);
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
