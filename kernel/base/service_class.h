// SPDX-License-Identifier: Apache-2.0

// ServiceClass: how much of a busy lane a session gets beside others.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace djinn {

// From the one that gets most to the one that gets least. kIdle: nothing while another could run.
enum class ServiceClass : uint8_t { kInteractive = 0, kNormal = 1, kBatch = 2, kIdle = 3 };

inline constexpr size_t kServiceClasses = 4;
static_assert(kServiceClasses == static_cast<size_t>(ServiceClass::kIdle) + 1);

inline constexpr std::array<std::string_view, kServiceClasses> kServiceClassNames{
    "interactive", "normal", "batch", "idle"};

// Precondition: it is one of them.
[[nodiscard]] constexpr std::string_view name_of(ServiceClass service) {
  return kServiceClassNames[static_cast<size_t>(service)];
}

[[nodiscard]] constexpr std::optional<ServiceClass> service_class_of(std::string_view name) {
  for (size_t i = 0; i < kServiceClasses; ++i) {
    if (kServiceClassNames[i] == name) return static_cast<ServiceClass>(i);
  }
  return std::nullopt;
}

}  // namespace djinn
