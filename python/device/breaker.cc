// SPDX-License-Identifier: Apache-2.0

#include "python/device/breaker.h"

#include <algorithm>

#include "python/device/recipe.h"

namespace djinn::device {
namespace {

constexpr uint32_t kStrikesMax = 10;
// This is four times the slowest known inference: that of attention when its kernel in Python is
// new.
constexpr std::chrono::milliseconds kSlow(500);

}  // namespace

bool Breaker::is_tripped(const c10::OperatorHandle& op) const {
  const std::lock_guard lock(mutex_);
  const auto found = records_.find(op);
  return found != records_.end() && found->second.is_tripped;
}

void Breaker::note_success(const c10::OperatorHandle& op, std::chrono::nanoseconds took) {
  const std::lock_guard lock(mutex_);
  Record& record = records_[op];
  record.strikes = took > kSlow ? record.strikes + 1 : 0;
  if (record.strikes >= kStrikesMax) record.is_tripped = true;
}

bool Breaker::note_failure(const c10::OperatorHandle& op) {
  const std::lock_guard lock(mutex_);
  Record& record = records_[op];
  if (++record.strikes < kStrikesMax) return false;
  record.strikes = 0;
  return true;
}

void Breaker::trip(const c10::OperatorHandle& op) {
  const std::lock_guard lock(mutex_);
  records_[op].is_tripped = true;
}

std::vector<std::string> Breaker::tripped() const {
  std::vector<std::string> names;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [op, record] : records_) {
      if (record.is_tripped) names.push_back(qualified(op.operator_name()));
    }
  }
  std::ranges::sort(names);
  return names;
}

Breaker& breaker() {
  static auto* const instance = new Breaker;
  return *instance;
}

}  // namespace djinn::device
