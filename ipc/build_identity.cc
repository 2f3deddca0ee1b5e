// SPDX-License-Identifier: Apache-2.0

#include "ipc/build_identity.h"

namespace djinn::ipc {

std::string_view build_identity() {
  return DJINN_BUILD_IDENTITY;
}

bool started_by_other_build(int argc, const char* const* argv) {
  return argc > 2 && argv[1] == std::string_view(kBuildOption) && argv[2] != build_identity();
}

}  // namespace djinn::ipc
