// SPDX-License-Identifier: Apache-2.0

// The kernel of AttendRows (attend_rows.h): djinn_attend_rows, a warp for each row.
#include "kernel/exec/cuda/kernels/attend_rows.h"
#include "kernel/exec/cuda/kernels/device.cuh"

namespace djinn::cuda {
namespace {

// The first key that the row sees, or `length`; in each lane.
__device__ inline int32_t first_seen(const AttendRows& call, const uint8_t* mask, int32_t length) {
  int32_t first = length;
  for (int32_t j = static_cast<int32_t>(threadIdx.x); j < length; j += kWarp) {
    if (mask[j * call.mask_key] != 0 && j < first) first = j;
  }
#pragma unroll
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) {
    const int32_t other = __shfl_xor_sync(kAllLanes, first, lanes);
    if (other < first) first = other;
  }
  return first;
}

__device__ inline const void* moved(const void* from, int64_t bytes) {
  return static_cast<const char*>(from) + bytes;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kWarp)
    djinn_attend_rows(const __grid_constant__ AttendRows call) {
  const int64_t m = blockIdx.x;
  const int64_t token = (call.begin + m) % call.tokens;
  const int64_t row = (call.begin + m) / call.tokens;
  let_the_next_begin();
  wait_for_the_one_before();
  const bool ends_earlier = call.causal && token + 1 < call.keys;
  const int32_t length = ends_earlier ? static_cast<int32_t>(token + 1) : call.keys;
  const uint8_t* const mask =
      call.mask == nullptr ? nullptr : call.mask + row * call.mask_row + token * call.mask_token;
  const int32_t first = mask == nullptr ? 0 : first_seen(call, mask, length);
  if (threadIdx.x != 0) return;
  call.cache[m] = {const_cast<void*>(moved(call.key, row * call.row_bytes)),
                   const_cast<void*>(moved(call.value, row * call.row_bytes)), call.head_stride};
  call.lengths[m] = length;
  call.firsts[m] = first;
  if (mask != nullptr) call.masks[m] = mask;
}

}  // namespace djinn::cuda
