// djinn:: operators that live in this folder.
#pragma once

namespace djinn::exec {

// Registers djinn::kv_append for CPU and Meta, once a process; later calls do nothing. Called by
// initialise() and admission: a static library's registration object would be dropped by the
// linker.
//
//   kv_append(Tensor(a!) buffer, Tensor new, SymInt position) -> Tensor(a!)
//
// buffer [B, H, capacity, D], new [B, H, T, D], same dtype: copies new to
// buffer[:, :, position : position + T, :] and gives buffer back. Errors: position < 0 or
// position + T > capacity, shapes or dtypes that differ.
void register_operators();

}  // namespace djinn::exec
