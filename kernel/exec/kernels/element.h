// SPDX-License-Identifier: Apache-2.0

// Element: what our kernels compute on. Sums are float32 whatever it is, and rounded once.
#pragma once

#include <stdint.h>

namespace djinn::kernels {

enum class Element : uint8_t { kFloat32, kBFloat16, kFloat16 };
inline constexpr uint8_t kElements = 3;

}  // namespace djinn::kernels
