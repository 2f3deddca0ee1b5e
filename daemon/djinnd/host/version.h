// SPDX-License-Identifier: Apache-2.0

// The version that djinnd tells.
#pragma once

namespace djinn::daemon {

inline constexpr const char* kVersion = DJINN_VERSION;

}  // namespace djinn::daemon
