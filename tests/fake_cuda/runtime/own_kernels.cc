// SPDX-License-Identifier: Apache-2.0

// Our own kernels (kernel/exec/cuda/kernels), found by name whatever image is loaded, and run on
// the processor by the emulator when they are launched. PyTorch's are not.

#include "tests/fake_cuda/runtime/own_kernels.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <bit>
#include <functional>
#include <string_view>

#include "kernel/exec/cuda/kernels/launches.h"
#include "tests/fake_cuda/emulator/emulator.h"
#include "tests/fake_cuda/runtime/call.h"
#include "tests/fake_cuda/runtime/streams.h"
#include "tests/fake_cuda/runtime/world.h"

namespace djinn::fake_runtime {
namespace {

using Bind = std::function<void()>(const void* function, const void* call);

// A launch has its call as it was then, whenever it is done.
template <typename Call>
std::function<void()> bind(const void* function, const void* call) {
  return [kernel = std::bit_cast<void (*)(Call)>(function), at = *static_cast<const Call*>(call)] {
    kernel(at);
  };
}

struct Family {
  std::string_view prefix;
  Bind* bind;
};

// The first whose prefix a kernel's name has is its own.
constexpr std::array kFamilies{
    Family{"djinn_attend_rows", &bind<cuda::AttendRows>},
    Family{"djinn_attend_", &bind<cuda::Attend>},
    Family{"djinn_draw", &bind<cuda::Draw>},
    Family{"djinn_gate_", &bind<cuda::Gate>},
    Family{"djinn_gemv_", &bind<cuda::Gemv>},
    Family{"djinn_norm_", &bind<cuda::Norm>},
    Family{"djinn_rope_append_", &bind<cuda::RopeAppend>},
    Family{"djinn_turn_", &bind<cuda::Turn>},
    Family{"djinn_turned_gemv_", &bind<cuda::TurnedGemv>},
};

Bind* bind_of(std::string_view name) {
  for (const Family& family : kFamilies) {
    if (name.starts_with(family.prefix)) return family.bind;
  }
  return nullptr;
}

std::string_view name_of_own(const void* kernel) {
  const auto found = world().kernels.find(kernel);
  return found == world().kernels.end() ? std::string_view() : found->second;
}

}  // namespace

bool is_own(const void* kernel) {
  return bind_of(name_of_own(kernel)) != nullptr;
}

static uint64_t launches = 0;

std::function<void()> work_of_own(const void* kernel, const emulator::Launch& launch,
                                  void** arguments) {
  return [name = name_of_own(kernel), launch,
          thread = bind_of(name_of_own(kernel))(kernel, arguments[0])] {
    ++launches;
    const Status done = emulator::emulate(launch, thread);
    if (done.ok()) return;
    fmt::print(stderr, "{}: {}\n", name, done.error().message);
    world().fate = Code::kIllegalAddress;
  };
}

}  // namespace djinn::fake_runtime

// Whether anybody captures.
extern "C" [[gnu::visibility("default")]] bool djinn_fake_is_capturing() {
  using djinn::fake_runtime::Stream;
  using djinn::fake_runtime::world;
  const std::lock_guard lock(world().mutex);
  bool is_capturing = false;
  world().for_each<Stream>([&](Stream& stream) { is_capturing |= stream.capture != nullptr; });
  return is_capturing;
}

// How many launches of our own kernels were run.
extern "C" [[gnu::visibility("default")]] uint64_t djinn_fake_own_launches() {
  const std::lock_guard lock(djinn::fake_runtime::world().mutex);
  return djinn::fake_runtime::launches;
}

extern "C" cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* code, cudaJitOption*,
                                           void**, unsigned, cudaLibraryOption*, void**, unsigned) {
  using djinn::fake_runtime::Call;
  Call call("cudaLibraryLoadData");
  return call.run([&] {
    *library = static_cast<cudaLibrary_t>(const_cast<void*>(code));
    return cudaSuccess;
  });
}

extern "C" cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t, const char* name) {
  using djinn::fake_runtime::Call;
  using djinn::fake_runtime::world;
  Call call("cudaLibraryGetKernel");
  call.show("name", name);
  return call.run([&] {
    void* const function = ::dlsym(RTLD_DEFAULT, name);
    const bool is_known = function != nullptr && djinn::fake_runtime::bind_of(name) != nullptr;
    if (!is_known) return cudaErrorSymbolNotFound;
    // The name of the symbol, which stays.
    Dl_info info{};
    if (::dladdr(function, &info) == 0) return cudaErrorSymbolNotFound;
    world().kernels.emplace(function, info.dli_sname);
    *kernel = static_cast<cudaKernel_t>(function);
    return cudaSuccess;
  });
}
