// SPDX-License-Identifier: Apache-2.0

// Memory that the process has mapped with the driver's functions. The driver is asked for it, if
// somebody has opened it.

#include <dlfcn.h>
#include <fmt/format.h>

#include "tests/fake_cuda/runtime/call.h"
#include "tests/fake_cuda/runtime/world.h"

namespace djinn::fake_runtime {
namespace {

using Find = bool(const void* address, uint64_t* reservation, uint64_t* offset);

Find* find_in_driver() {
  static Find* found = nullptr;
  if (found != nullptr) return found;
  void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (driver == nullptr) return nullptr;
  found = reinterpret_cast<Find*>(::dlsym(driver, "djinn_fake_driver_find"));
  ::dlclose(driver);  // whoever has opened it keeps it
  return found;
}

}  // namespace

std::optional<Mapped> find_mapped(const void* address) {
  Mapped mapped;
  Find* const find = find_in_driver();
  const bool is_there = find != nullptr && find(address, &mapped.reservation, &mapped.offset);
  return is_there ? std::optional(mapped) : std::nullopt;
}

}  // namespace djinn::fake_runtime

// The fake driver has been called.
extern "C" [[gnu::visibility("default")]] void djinn_fake_driver_called(const char* function,
                                                                        int answer) {
  using djinn::fake_runtime::world;
  const std::lock_guard lock(world().mutex);
  world().write(answer == 0 ? fmt::format("{}\n", function)
                            : fmt::format("{}\terror={}\n", function, answer));
}
