// SPDX-License-Identifier: Apache-2.0

// How many threads this process can keep busy: by its affinity, and by what its control groups
// allow (cgroups(7)). More threads than a quota's cores spin while the kernel holds them back.
#pragma once

#include <cstdint>
#include <string>

namespace djinn::daemon {

// What cpu.max (version 2) or cpu.cfs_quota_us (version 1) of this process's groups, and of those
// above them that it can see, allow: whole cores, at least 1; UINT32_MAX where nothing is said.
// root: before /proc and the paths of mounts; "" but in tests.
[[nodiscard]] uint32_t cores_of_quota(const std::string& root);

// The fewest of those that this process may run on, and of its quota; at least 1.
[[nodiscard]] uint32_t usable_cores();

}  // namespace djinn::daemon
