// SPDX-License-Identifier: Apache-2.0

// The words of the order of steps, which daemons, clients and people use alike: classes of
// sessions, policies of lanes, and why a step was taken (kernel/sched/queue.h does by them).
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

// By what a lane takes one step before another.
enum class SchedulePolicy : uint8_t { kFair = 0, kFifo = 1 };

inline constexpr size_t kSchedulePolicies = 2;
static_assert(kSchedulePolicies == static_cast<size_t>(SchedulePolicy::kFifo) + 1);

inline constexpr std::array<std::string_view, kSchedulePolicies> kSchedulePolicyNames{"fair",
                                                                                      "fifo"};

enum class PickReason : uint8_t {
  kOnly = 0,      // no other of its kind (idle or not) was ready
  kDeadline = 1,  // fair: the earliest
  kArrival = 2,   // fifo: the first to come
  kBatch = 3,     // it joined the one before
  kSlice = 4,     // its run goes on, which was paused or could have been
};

inline constexpr size_t kPickReasons = 5;
static_assert(kPickReasons == static_cast<size_t>(PickReason::kSlice) + 1);

inline constexpr std::array<std::string_view, kPickReasons> kPickReasonNames{
    "only", "deadline", "arrival", "batch", "slice"};

// Precondition, of each: it is one of them.
[[nodiscard]] constexpr std::string_view name_of(ServiceClass service) {
  return kServiceClassNames[static_cast<size_t>(service)];
}
[[nodiscard]] constexpr std::string_view name_of(SchedulePolicy policy) {
  return kSchedulePolicyNames[static_cast<size_t>(policy)];
}
[[nodiscard]] constexpr std::string_view name_of(PickReason reason) {
  return kPickReasonNames[static_cast<size_t>(reason)];
}

[[nodiscard]] constexpr std::optional<ServiceClass> service_class_of(std::string_view name) {
  for (size_t i = 0; i < kServiceClasses; ++i) {
    if (kServiceClassNames[i] == name) return static_cast<ServiceClass>(i);
  }
  return std::nullopt;
}
[[nodiscard]] constexpr std::optional<SchedulePolicy> schedule_policy_of(std::string_view name) {
  for (size_t i = 0; i < kSchedulePolicies; ++i) {
    if (kSchedulePolicyNames[i] == name) return static_cast<SchedulePolicy>(i);
  }
  return std::nullopt;
}

}  // namespace djinn
