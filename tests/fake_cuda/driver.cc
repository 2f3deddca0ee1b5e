// SPDX-License-Identifier: Apache-2.0

// These functions are what the fake driver exports, in the order of the table in driver_api.h.
//
// Every call but those that name an error goes through call(): it is counted, fails where a fault
// is planted, and answers a sticky code that came before. What gives something back is done all the
// same then, so that a test sees what its caller left behind.
//
// A fault stands before the work, or after it where it says so.

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/fake_cuda/joined.h"
#include "tests/fake_cuda/kernels.h"
#include "tests/fake_cuda/memory.h"
#include "tests/fake_cuda/options.h"
#include "tests/fake_cuda/streams.h"

#define DJINN_FAKE_DECLARE(name, symbol, arguments) \
  extern "C" djinn::pal::cuda::Code symbol arguments;
namespace djinn::pal::cuda {
DJINN_CUDA_FUNCTIONS(DJINN_FAKE_DECLARE)
}  // namespace djinn::pal::cuda
#undef DJINN_FAKE_DECLARE

namespace djinn::fake_cuda {
namespace {

enum class Needs {
  kNothing,
  kInit,
  kContext,  // current on the calling thread
  kCleanUp,  // kInit, and done after a sticky code, too
};

const char* environment() {
  const char* const text = ::getenv("DJINN_FAKE_CUDA");
  return text == nullptr ? "" : text;
}

class Driver {
 public:
  using Context = pal::cuda::Context;

  Driver() : options(read_options(environment())) {}

  // Gives kSuccess, or what the call must answer instead of being made.
  Code admit(Needs needs) {
    if (needs == Needs::kNothing) return Code::kSuccess;
    if (process != ::getpid()) return Code::kNotInitialized;  // a fork's child counts, too
    if (needs == Needs::kCleanUp) return Code::kSuccess;
    if (const Code fate = streams.fate(); fate != Code::kSuccess) return fate;
    if (needs != Needs::kContext) return Code::kSuccess;
    return has_current() ? Code::kSuccess : Code::kInvalidContext;
  }

  // Counts a call. Gives the fault that is planted there, or null.
  const Fault* count(std::string_view function) {
    const std::lock_guard lock(calls_mutex_);
    const uint64_t of_all = ++calls_, of_its_own = ++calls_of_[std::string(function)];
    for (const Fault& fault : options.faults) {
      if (fault.function == "*" && fault.number == of_all) return &fault;
      if (fault.function == function && fault.number == of_its_own) return &fault;
    }
    return nullptr;
  }

  Code fail(const Fault& fault) {
    streams.doom(fault.code);
    return fault.code;
  }

  Context context() { return reinterpret_cast<Context>(this); }
  [[nodiscard]] bool has_current() { return current == context() && retained > 0; }

  static thread_local Context current;

  const Options options;
  std::atomic<pid_t> process = -1;
  std::atomic<int> retained = 0;
  Memory memory{options};
  Streams streams{options.delay_us};
  std::mutex host_mutex;
  std::map<void*, size_t> allocated;   // cuMemHostAlloc
  std::map<void*, size_t> registered;  // cuMemHostRegister
  std::set<void*> modules;

 private:
  std::mutex calls_mutex_;
  uint64_t calls_ = 0;
  std::map<std::string, uint64_t> calls_of_;
};

thread_local Driver::Context Driver::current = nullptr;

// The driver is never destroyed, because threads of streams may outlive main().
Driver& driver() {
  static Driver* const it = new Driver;
  return *it;
}

template <typename Work>
Code answer(std::string_view symbol, Needs needs, Work work) {
  const Fault* const fault = driver().count(plain_name(symbol));
  if (fault != nullptr && !fault->is_done) return driver().fail(*fault);
  const Code refused = driver().admit(needs);
  if (refused != Code::kSuccess) return refused;
  const Code done = work();
  if (fault != nullptr) return driver().fail(*fault);
  const Code fate = needs == Needs::kNothing ? Code::kSuccess : driver().streams.fate();
  return fate == Code::kSuccess ? done : fate;
}

template <typename Work>
Code call(std::string_view symbol, Needs needs, Work work) {
  const Code code = answer(symbol, needs, work);
  if (note_call != nullptr) note_call(plain_name(symbol), code);
  return code;
}

bool is_device(pal::cuda::Device device) {
  return device == 0 && driver().options.devices == 1;
}

Code copy_text(char* to, int bytes, std::string_view text) {
  if (to == nullptr || bytes <= 0) return Code::kInvalidValue;
  const size_t count = std::min(text.size(), static_cast<size_t>(bytes) - 1);
  ::memcpy(to, text.data(), count);
  to[count] = '\0';
  return Code::kSuccess;
}

template <typename T>
Code give(T* to, T value) {
  if (to == nullptr) return Code::kInvalidValue;
  *to = value;
  return Code::kSuccess;
}

// Names the memory of the device that a piece of work reads and writes; none if the bytes are 0.
struct Ranges {
  DevicePtr read = 0;
  uint64_t read_bytes = 0;
  DevicePtr written = 0;
  uint64_t written_bytes = 0;
};

// Ranges that are refused at once are INVALID_VALUE. If they are unmapped or protected before the
// work's turn comes, the context ends.
Code submit(const Ranges& ranges, pal::cuda::Stream stream, std::function<void()> work) {
  Memory& memory = driver().memory;
  const auto run = [&memory, ranges](const auto& what) {
    return memory.with(ranges.read, ranges.written, ranges.read_bytes, ranges.written_bytes, what);
  };
  if (!run([] {})) return Code::kInvalidValue;
  return driver().streams.submit(stream, [run, work = std::move(work)] {
    return run(work) ? Code::kSuccess : Code::kIllegalAddress;
  });
}

void* host_address(DevicePtr address) {
  return reinterpret_cast<void*>(address);
}

Code copy(DevicePtr to, const void* from, size_t bytes, pal::cuda::Stream stream) {
  return submit({.written = to, .written_bytes = bytes}, stream,
                [=] { ::memcpy(host_address(to), from, bytes); });
}

Code copy(void* to, DevicePtr from, size_t bytes, pal::cuda::Stream stream) {
  return submit({.read = from, .read_bytes = bytes}, stream,
                [=] { ::memcpy(to, host_address(from), bytes); });
}

Code copy(DevicePtr to, DevicePtr from, size_t bytes, pal::cuda::Stream stream) {
  const Ranges ranges{from, bytes, to, bytes};
  return submit(ranges, stream, [=] { ::memmove(host_address(to), host_address(from), bytes); });
}

Code set_bytes(DevicePtr to, unsigned char value, size_t bytes, pal::cuda::Stream stream) {
  return submit({.written = to, .written_bytes = bytes}, stream,
                [=] { ::memset(host_address(to), value, bytes); });
}

Code and_wait(Code submitted) {
  return submitted == Code::kSuccess ? driver().streams.synchronize(nullptr) : submitted;
}

// --- pinned memory of the host
// -------------------------------------------------------------------

Code allocate_host(void** out, size_t bytes) {
  if (out == nullptr || bytes == 0) return Code::kInvalidValue;
  void* const at =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return Code::kOutOfMemory;
  const std::lock_guard lock(driver().host_mutex);
  driver().allocated.emplace(at, bytes);
  *out = at;
  return Code::kSuccess;
}

Code free_host(void* address) {
  const std::lock_guard lock(driver().host_mutex);
  const auto found = driver().allocated.find(address);
  if (found == driver().allocated.end()) return Code::kInvalidValue;
  ::munmap(address, found->second);
  driver().allocated.erase(found);
  return Code::kSuccess;
}

Code register_host(void* address, size_t bytes) {
  if (address == nullptr || bytes == 0) return Code::kInvalidValue;
  const std::lock_guard lock(driver().host_mutex);
  return driver().registered.emplace(address, bytes).second ? Code::kSuccess : kAlreadyRegistered;
}

Code unregister_host(void* address) {
  const std::lock_guard lock(driver().host_mutex);
  return driver().registered.erase(address) == 1 ? Code::kSuccess : kNotRegistered;
}

// --- modules and kernels
// -------------------------------------------------------------------------

// A module is only an address: its kernels are those of the fake, whatever the image.
Code load_module(pal::cuda::Module* out, const void* image) {
  if (out == nullptr || image == nullptr) return Code::kInvalidValue;
  const std::lock_guard lock(driver().host_mutex);
  void* const handle = *driver().modules.insert(new char).first;
  *out = static_cast<pal::cuda::Module>(handle);
  return Code::kSuccess;
}

Code find_function(pal::cuda::Function* out, pal::cuda::Module module, const char* name) {
  const std::lock_guard lock(driver().host_mutex);
  if (!driver().modules.contains(module)) return Code::kInvalidHandle;
  if (out == nullptr || name == nullptr) return Code::kInvalidValue;
  const Kernel* const kernel = find_kernel(name);
  if (kernel == nullptr) return Code::kNotFound;
  *out = reinterpret_cast<pal::cuda::Function>(const_cast<Kernel*>(kernel));
  return Code::kSuccess;
}

Code launch(pal::cuda::Function function, std::span<const unsigned> sizes, void** arguments,
            pal::cuda::Stream stream) {
  const auto* const kernel = reinterpret_cast<const Kernel*>(function);
  if (kernel == nullptr) return Code::kInvalidHandle;
  if (std::ranges::count(sizes, 0u) != 0) return Code::kInvalidValue;
  if (kernel->arguments > 0 && arguments == nullptr) return Code::kInvalidValue;
  std::vector<uint64_t> values(kernel->arguments);
  for (size_t i = 0; i < values.size(); ++i) ::memcpy(&values[i], arguments[i], sizeof values[i]);
  return driver().streams.submit(stream, [kernel, values = std::move(values)] {
    return kernel->run(driver().memory, values);
  });
}

}  // namespace

std::optional<Place> find_place(const void* address) {
  return driver().memory.find(reinterpret_cast<DevicePtr>(address));
}

}  // namespace djinn::fake_cuda

namespace djinn::pal::cuda {

using fake_cuda::call;
using fake_cuda::driver;
using fake_cuda::find_code;
using fake_cuda::give;
using fake_cuda::is_device;
using fake_cuda::Needs;

// --- the driver and its device
// -------------------------------------------------------------------

Code cuInit(unsigned flags) {
  return call(__func__, Needs::kNothing, [=] {
    if (flags != 0) return Code::kInvalidValue;
    if (driver().options.devices == 0) return Code::kNoDevice;
    driver().process = ::getpid();
    return Code::kSuccess;
  });
}

Code cuDriverGetVersion(int* version) {
  return call(__func__, Needs::kNothing,
              [=] { return give(version, driver().options.driver_version); });
}

Code cuGetErrorName(Code code, const char** name) {
  const auto* const info = find_code(code);
  if (info == nullptr) return Code::kInvalidValue;
  return give(name, info->name);
}

Code cuGetErrorString(Code code, const char** text) {
  const auto* const info = find_code(code);
  if (info == nullptr) return Code::kInvalidValue;
  return give(text, info->text);
}

Code cuDeviceGet(Device* device, int ordinal) {
  return call(__func__, Needs::kInit,
              [=] { return is_device(ordinal) ? give(device, ordinal) : Code::kInvalidDevice; });
}

Code cuDeviceGetName(char* name, int bytes, Device device) {
  return call(__func__, Needs::kInit, [=] {
    if (!is_device(device)) return Code::kInvalidDevice;
    return fake_cuda::copy_text(name, bytes, driver().options.name);
  });
}

Code cuDeviceGetUuid_v2(Uuid* uuid, Device device) {
  return call(__func__, Needs::kInit, [=] {
    if (!is_device(device)) return Code::kInvalidDevice;
    if (uuid == nullptr) return Code::kInvalidValue;
    ::memcpy(uuid->bytes, driver().options.uuid.data(), sizeof uuid->bytes);
    return Code::kSuccess;
  });
}

Code cuDeviceGetAttribute(int* value, Attribute attribute, Device device) {
  return call(__func__, Needs::kInit, [=] {
    if (!is_device(device)) return Code::kInvalidDevice;
    switch (attribute) {
      case Attribute::kComputeMode:
        return give(value, driver().options.compute_mode);
      case Attribute::kMpsEnabled:
        return give(value, driver().options.mps);
      case Attribute::kVirtualMemoryManagement:
      case Attribute::kPosixFileDescriptors:
        return give(value, 1);
    }
    return Code::kInvalidValue;
  });
}

Code cuDevicePrimaryCtxRetain(Context* context, Device device) {
  return call(__func__, Needs::kInit, [=] {
    if (!is_device(device)) return Code::kInvalidDevice;
    const Code given = give(context, driver().context());
    driver().retained += given == Code::kSuccess ? 1 : 0;
    return given;
  });
}

Code cuDevicePrimaryCtxRelease_v2(Device device) {
  return call(__func__, Needs::kCleanUp, [=] {
    if (!is_device(device)) return Code::kInvalidDevice;
    if (driver().retained == 0) return Code::kInvalidContext;
    driver().retained -= 1;
    return Code::kSuccess;
  });
}

Code cuCtxSetCurrent(Context context) {
  return call(__func__, Needs::kInit, [=] {
    if (context != nullptr && (context != driver().context() || driver().retained == 0))
      return Code::kInvalidContext;
    driver().current = context;
    return Code::kSuccess;
  });
}

Code cuCtxSynchronize() {
  return call(__func__, Needs::kContext, [] {
    driver().streams.synchronize_all();
    return Code::kSuccess;
  });
}

// --- memory and addresses
// ------------------------------------------------------------------------

Code cuMemGetInfo_v2(size_t* free, size_t* total) {
  return call(__func__, Needs::kContext, [=] {
    if (free == nullptr) return Code::kInvalidValue;
    *free = driver().memory.free_bytes();
    return give(total, size_t{driver().memory.total_bytes()});
  });
}

Code cuMemGetAllocationGranularity(size_t* bytes, const AllocationProperties* properties,
                                   Granularity) {
  return call(__func__, Needs::kInit, [=] {
    if (properties == nullptr) return Code::kInvalidValue;
    return give(bytes, size_t{fake_cuda::kGranuleBytes});
  });
}

Code cuMemCreate(Allocation* allocation, size_t bytes, const AllocationProperties* properties,
                 unsigned long long flags) {
  return call(__func__, Needs::kInit, [=] {
    if (allocation == nullptr || properties == nullptr || flags != 0) return Code::kInvalidValue;
    return driver().memory.create(allocation, bytes, *properties);
  });
}

Code cuMemRelease(Allocation allocation) {
  return call(__func__, Needs::kCleanUp, [=] { return driver().memory.release(allocation); });
}

Code cuMemAddressReserve(DevicePtr* address, size_t bytes, size_t alignment, DevicePtr,
                         unsigned long long flags) {
  return call(__func__, Needs::kInit, [=] {
    if (address == nullptr || flags != 0) return Code::kInvalidValue;
    return driver().memory.reserve(address, bytes, alignment);
  });
}

Code cuMemAddressFree(DevicePtr address, size_t bytes) {
  return call(__func__, Needs::kCleanUp,
              [=] { return driver().memory.free_addresses(address, bytes); });
}

Code cuMemMap(DevicePtr address, size_t bytes, size_t offset, Allocation allocation,
              unsigned long long flags) {
  return call(__func__, Needs::kInit, [=] {
    if (flags != 0) return Code::kInvalidValue;
    return driver().memory.map(address, bytes, offset, allocation);
  });
}

Code cuMemUnmap(DevicePtr address, size_t bytes) {
  return call(__func__, Needs::kCleanUp, [=] { return driver().memory.unmap(address, bytes); });
}

Code cuMemSetAccess(DevicePtr address, size_t bytes, const AccessDescription* descriptions,
                    size_t count) {
  return call(__func__, Needs::kInit, [=] {
    if (descriptions == nullptr || count != 1) return Code::kInvalidValue;
    return driver().memory.set_access(address, bytes, *descriptions);
  });
}

Code cuMemExportToShareableHandle(void* handle, Allocation allocation, HandleType type,
                                  unsigned long long flags) {
  return call(__func__, Needs::kInit, [=] {
    if (handle == nullptr || flags != 0 || type != HandleType::kPosixFileDescriptor)
      return Code::kInvalidValue;
    return driver().memory.export_handle(static_cast<int*>(handle), allocation);
  });
}

Code cuMemImportFromShareableHandle(Allocation* allocation, void* handle, HandleType type) {
  return call(__func__, Needs::kInit, [=] {
    if (allocation == nullptr || type != HandleType::kPosixFileDescriptor)
      return Code::kInvalidValue;
    const auto fd = static_cast<int>(reinterpret_cast<intptr_t>(handle));
    return driver().memory.import_handle(allocation, fd);
  });
}

Code cuMemHostAlloc(void** address, size_t bytes, unsigned) {
  return call(__func__, Needs::kContext, [=] { return fake_cuda::allocate_host(address, bytes); });
}

Code cuMemFreeHost(void* address) {
  return call(__func__, Needs::kCleanUp, [=] { return fake_cuda::free_host(address); });
}

Code cuMemHostRegister_v2(void* address, size_t bytes, unsigned) {
  return call(__func__, Needs::kContext, [=] { return fake_cuda::register_host(address, bytes); });
}

Code cuMemHostUnregister(void* address) {
  return call(__func__, Needs::kCleanUp, [=] { return fake_cuda::unregister_host(address); });
}

// --- copies
// --------------------------------------------------------------------------------------

Code cuMemcpyHtoD_v2(DevicePtr to, const void* from, size_t bytes) {
  return call(__func__, Needs::kContext,
              [=] { return fake_cuda::and_wait(fake_cuda::copy(to, from, bytes, nullptr)); });
}

Code cuMemcpyDtoH_v2(void* to, DevicePtr from, size_t bytes) {
  return call(__func__, Needs::kContext,
              [=] { return fake_cuda::and_wait(fake_cuda::copy(to, from, bytes, nullptr)); });
}

Code cuMemcpyHtoDAsync_v2(DevicePtr to, const void* from, size_t bytes, Stream stream) {
  return call(__func__, Needs::kContext, [=] { return fake_cuda::copy(to, from, bytes, stream); });
}

Code cuMemcpyDtoHAsync_v2(void* to, DevicePtr from, size_t bytes, Stream stream) {
  return call(__func__, Needs::kContext, [=] { return fake_cuda::copy(to, from, bytes, stream); });
}

Code cuMemcpyDtoDAsync_v2(DevicePtr to, DevicePtr from, size_t bytes, Stream stream) {
  return call(__func__, Needs::kContext, [=] { return fake_cuda::copy(to, from, bytes, stream); });
}

Code cuMemsetD8_v2(DevicePtr to, unsigned char value, size_t bytes) {
  return call(__func__, Needs::kContext,
              [=] { return fake_cuda::set_bytes(to, value, bytes, nullptr); });
}

Code cuMemsetD8Async(DevicePtr to, unsigned char value, size_t bytes, Stream stream) {
  return call(__func__, Needs::kContext,
              [=] { return fake_cuda::set_bytes(to, value, bytes, stream); });
}

// --- streams and events
// --------------------------------------------------------------------------

Code cuStreamCreate(Stream* stream, unsigned) {
  return call(__func__, Needs::kContext, [=] {
    return stream == nullptr ? Code::kInvalidValue : driver().streams.create(stream);
  });
}

Code cuStreamDestroy_v2(Stream stream) {
  return call(__func__, Needs::kCleanUp, [=] { return driver().streams.destroy(stream); });
}

Code cuStreamSynchronize(Stream stream) {
  return call(__func__, Needs::kContext, [=] { return driver().streams.synchronize(stream); });
}

Code cuStreamQuery(Stream stream) {
  return call(__func__, Needs::kContext, [=] { return driver().streams.query(stream); });
}

Code cuEventCreate(Event* event, unsigned) {
  return call(__func__, Needs::kContext, [=] {
    return event == nullptr ? Code::kInvalidValue : driver().streams.create_event(event);
  });
}

Code cuEventDestroy_v2(Event event) {
  return call(__func__, Needs::kCleanUp, [=] { return driver().streams.destroy_event(event); });
}

Code cuEventRecord(Event event, Stream stream) {
  return call(__func__, Needs::kContext, [=] { return driver().streams.record(event, stream); });
}

Code cuEventSynchronize(Event event) {
  return call(__func__, Needs::kContext, [=] { return driver().streams.synchronize_event(event); });
}

// --- kernels
// -------------------------------------------------------------------------------------

Code cuModuleLoadData(Module* module, const void* image) {
  return call(__func__, Needs::kContext, [=] { return fake_cuda::load_module(module, image); });
}

Code cuModuleGetFunction(Function* function, Module module, const char* name) {
  return call(__func__, Needs::kContext,
              [=] { return fake_cuda::find_function(function, module, name); });
}

Code cuLaunchKernel(Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                    unsigned block_x, unsigned block_y, unsigned block_z, unsigned, Stream stream,
                    void** arguments, void** extra) {
  return call(__func__, Needs::kContext, [=] {
    if (extra != nullptr) return Code::kNotSupported;
    const std::array sizes{grid_x, grid_y, grid_z, block_x, block_y, block_z};
    return fake_cuda::launch(function, sizes, arguments, stream);
  });
}

}  // namespace djinn::pal::cuda
