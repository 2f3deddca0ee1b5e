// SPDX-License-Identifier: Apache-2.0

// Sealed memfds that clients and loaders send: graphs, plans, manifests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "kernel/base/fd.h"
#include "kernel/base/result.h"

namespace djinn::daemon {

// Says how large a memfd is whose content nobody can change any more. Touches no foreign file
// system: the seals tell a memfd from everything else first. Errors: kInvalidArgument for another
// kind of descriptor or missing seals, kLimitExceeded.
Result<uint64_t> size_of_sealed(const Fd& fd, uint64_t bytes_max, std::string_view what);

Result<std::vector<std::byte>> read_sealed(const Fd& fd, uint64_t bytes_max, std::string_view what);

}  // namespace djinn::daemon
