// SPDX-License-Identifier: Apache-2.0

// CudaPal is a correct pal: on the fake driver, and on a GPU where LD_LIBRARY_PATH does not name
// the fake's folder. Where there is neither, the tests say so and are skipped. What only a driver
// that fails shows is tested in tests/fake_cuda.

#include "kernel/pal/cuda/cuda_pal.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "kernel/pal/pal_conformance_for_tests.h"

namespace djinn::pal::cuda {
namespace {

// One for the whole program: a context costs a GPU some tenths of a second.
const Result<std::unique_ptr<CudaPal>>& the_pal() {
  static const auto* const pal =
      new Result<std::unique_ptr<CudaPal>>([]() -> Result<std::unique_ptr<CudaPal>> {
        DJINN_TRY(const DriverApi api, load_driver());
        return CudaPal::make(api, 0);
      }());
  return *pal;
}

// Whether the driver is that of tests/fake_cuda.
bool is_fake() {
  std::array<char, 64> name{};
  const auto api = load_driver();
  return api && api->device_get_name(name.data(), name.size(), 0) == Code::kSuccess &&
         std::string_view(name.data()) == "Fake GPU";
}

void expect_no_driver() {
  ASSERT_EQ(::getenv("DJINN_FAKE_CUDA"), nullptr) << "the fake driver is meant to be here";
}

struct CudaWorld {
  std::string absent() {
    if (the_pal()) return {};
    expect_no_driver();
    return the_pal().error().message;
  }
  DevicePal& pal() { return **the_pal(); }
  // A real driver keeps mappings for itself.
  ProcessState state() {
    const ProcessState all = read_process_state();
    return is_fake() ? all : ProcessState{.descriptors = all.descriptors};
  }
};

}  // namespace
}  // namespace djinn::pal::cuda

namespace djinn::pal {
INSTANTIATE_TYPED_TEST_SUITE_P(cuda, pal_conformance, cuda::CudaWorld);
}  // namespace djinn::pal
