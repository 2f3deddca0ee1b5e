// SPDX-License-Identifier: Apache-2.0

// The djinn:: operators, and kernels that LibTorch lacks on a CPU. Each file of them defines its
// own; register_operators() does it for all, once a process.
#pragma once

#include "kernel/exec/torch_headers.h"

namespace djinn::exec {

struct OwnLibraries {
  torch::Library definition{torch::Library::DEF, "djinn", std::nullopt, __FILE__, __LINE__};
  torch::Library cpu{torch::Library::IMPL, "djinn", c10::DispatchKey::CPU, __FILE__, __LINE__};
  torch::Library cuda{torch::Library::IMPL, "djinn", c10::DispatchKey::CUDA, __FILE__, __LINE__};
  torch::Library meta{torch::Library::IMPL, "djinn", c10::DispatchKey::Meta, __FILE__, __LINE__};
  torch::Library any{torch::Library::IMPL, "djinn", c10::DispatchKey::CompositeExplicitAutograd,
                     __FILE__, __LINE__};
  torch::Library aten_cpu{torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__};
};

// Later calls do nothing. Called by initialise() and admission: a static library's registration
// object would be dropped by the linker.
void register_operators();

void define_kv_append(OwnLibraries& libraries);
void define_linear_backward(OwnLibraries& libraries);
void define_fast_attend(OwnLibraries& libraries);
void define_fast_linear(OwnLibraries& libraries);
void define_fast_rows(OwnLibraries& libraries);
void define_random(OwnLibraries& libraries);

}  // namespace djinn::exec
