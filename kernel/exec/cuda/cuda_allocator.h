// SPDX-License-Identifier: Apache-2.0

// LibTorch's allocator of CUDA memory, which asks the sink of the calling thread, and where there
// is none the memory that install_device_memory() was given. It keeps nothing by itself: what is
// given back to it is free at once, for all that uses the memory is on one stream.
//
// Pools, captures' memory, history and memory of other processes are not offered: asked for, they
// are errors of LibTorch's.
#pragma once

namespace djinn::exec {

// Puts it in place of LibTorch's own. Once a process, before LibTorch opens the device. Until the
// device is open it can be taken away again, and then LibTorch has its own.
void install_cuda_allocator();
void remove_cuda_allocator();

}  // namespace djinn::exec
