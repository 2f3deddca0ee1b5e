// The operators that a graph may call. What is not here is refused (DESIGN rule 8).
//
// An operator belongs here if its CPU kernel checks every index it reads from a tensor, returns no
// uninitialised bytes, keeps no state, draws no random number and gives back tensors only.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "kernel/base/result.h"
#include "kernel/exec/torch_headers.h"

namespace djinn::exec {

// Sorted; "namespace::name" or "namespace::name.overload".
[[nodiscard]] std::span<const std::string_view> allowed_operators();

// The operator of that qualified name. Errors: kUnsupported, with what to use instead where there
// is something.
Result<c10::OperatorHandle> resolve_operator(std::string_view qualified);

}  // namespace djinn::exec
