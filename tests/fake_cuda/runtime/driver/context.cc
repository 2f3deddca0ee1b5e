// SPDX-License-Identifier: Apache-2.0

// What PyTorch wants of the driver itself before it computes, and CudaPal does not. For PyTorch the
// device has its context, and it is current everywhere.

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidDevice = 101;

}  // namespace

extern "C" {

[[gnu::visibility("default")]] int cuDevicePrimaryCtxGetState(int device, unsigned* flags,
                                                              int* is_active);
[[gnu::visibility("default")]] int cuCtxGetCurrent(void** context);

int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* is_active) {
  *flags = 0;
  *is_active = 1;
  return device == 0 ? kSuccess : kInvalidDevice;
}

int cuCtxGetCurrent(void** context) {
  static char the_context;
  *context = &the_context;
  return kSuccess;
}

}  // extern "C"
