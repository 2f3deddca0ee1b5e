// SPDX-License-Identifier: Apache-2.0

// Why NVIDIA's driver does not start, as far as its nodes tell: /dev/nvidiactl, one for each GPU,
// /dev/nvidia-uvm. The driver has one code for most of it.
#pragma once

#include <optional>
#include <string>

#include "kernel/base/result.h"

namespace djinn::pal::cuda {

// The first node in `directory` that is missing, has no module behind it or may not be opened, and
// what to do about it; nothing where each can be opened, which is tried. Codes: kNotFound,
// kPermissionDenied, else that of the errno.
[[nodiscard]] std::optional<Error> fault_of_nodes(const std::string& directory);

// The same of one node, whose opening failed with this errno.
[[nodiscard]] Error fault_of_node(const std::string& path, int number);

}  // namespace djinn::pal::cuda
