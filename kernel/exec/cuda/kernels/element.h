// SPDX-License-Identifier: Apache-2.0

// Element, Activation: what kernels of the device compute on, and with. The device's compiler
// reads this, too.
#pragma once

#include <stdint.h>

namespace djinn::cuda {

enum class Element : uint8_t { kFloat32, kBFloat16, kFloat16 };
inline constexpr uint8_t kElements = 3;

[[nodiscard]] constexpr int32_t bytes_of(Element element) {
  return element == Element::kFloat32 ? 4 : 2;
}

//   kNone       x
//   kSilu       x / (1 + exp(-x))
//   kGelu       x times the normal distribution function of x (Hendrycks and Gimpel, 2016)
//   kGeluTanh   x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))), which is near it
//   kRelu       the greater of x and 0
enum class Activation : uint8_t { kNone, kSilu, kGelu, kGeluTanh, kRelu };

// What a thread reads at once, and how many threads a warp has.
inline constexpr int32_t kVectorBytes = 16;
inline constexpr int32_t kWarp = 32;

}  // namespace djinn::cuda
