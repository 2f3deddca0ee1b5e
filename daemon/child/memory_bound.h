// SPDX-License-Identifier: Apache-2.0

// The last bound on a child's own memory, behind the grants: what a library allocates past them
// fails there, as an error of the run that asked for it. It bounds what one fault takes, and is no
// account: several children may each come near it.
#pragma once

#include <cstdint>

#include "kernel/base/result.h"

namespace djinn::child {

// Lets this process have at most so many bytes more from now on of private writable memory
// (RLIMIT_DATA): more is ENOMEM, std::bad_alloc in C++. Shared mappings, as of extents and of the
// slab, and address space that is only reserved do not count. Called before confine(), because it
// reads /proc. Errors: kSystem.
Status bound_private_memory(uint64_t more_bytes);

}  // namespace djinn::child
