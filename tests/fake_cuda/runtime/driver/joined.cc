// SPDX-License-Identifier: Apache-2.0

// The libcuda.so.1 of the fake runtime is the fake driver: calls of it are lines of the runtime's
// log, and the runtime knows an address that the driver has mapped.

#include "tests/fake_cuda/joined.h"

#include <dlfcn.h>

#include <string>

namespace djinn::fake_cuda {

void note_call(std::string_view function, Code answer) {
  using Note = void(const char* function, int answer);
  static auto* const note =
      reinterpret_cast<Note*>(::dlsym(RTLD_DEFAULT, "djinn_fake_driver_called"));
  if (note != nullptr) note(std::string(function).c_str(), static_cast<int>(answer));
}

}  // namespace djinn::fake_cuda

// False where no memory of the driver's is mapped.
extern "C" [[gnu::visibility("default")]] bool djinn_fake_driver_find(const void* address,
                                                                      uint64_t* reservation,
                                                                      uint64_t* offset) {
  const auto place = djinn::fake_cuda::find_place(address);
  if (!place) return false;
  *reservation = place->reservation;
  *offset = place->offset;
  return true;
}
