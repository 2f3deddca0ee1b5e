// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/workers/recovery.h"

#include <algorithm>
#include <utility>

#include "ipc/limits.h"
#include "kernel/base/assert.h"

namespace djinn::daemon {

void DeathCount::note(const gc::Progress& progress) {
  if (progress.commit != commit_) deaths_ = 0;
  commit_ = progress.commit;
  // A death between two tries of a step neither counts nor forgives, because nothing ran.
  if (progress.running_step != 0) ++deaths_;
}

static_assert(limits::kDeathsWithoutProgress > 0, "A session would be refused that killed nobody.");

bool DeathCount::exhausted() const {
  return deaths_ >= limits::kDeathsWithoutProgress;
}

bool DeathCount::hopeless() const {
  return deaths_ >= 2 * limits::kDeathsWithoutProgress;
}

uint64_t BackOff::after_death(bool progressed) {
  constexpr uint32_t kFruitlessMax = 16;
  static_assert(kFirstMs << kFruitlessMax >= kMaxMs, "No count of deaths makes the wait shorter.");
  DJINN_ASSERT(fruitless_ <= kFruitlessMax);
  fruitless_ = progressed ? 0 : std::min(fruitless_ + 1, kFruitlessMax);
  if (fruitless_ <= 1) return 0;
  return std::min(kMaxMs, kFirstMs << (fruitless_ - 2));
}

void Quarantine::note_death(bool went_on, uint64_t now_ns) {
  const uint64_t wait_ms = back_off_.after_death(went_on);
  until_ns_ = now_ns + wait_ms * 1'000'000;
  needs_spare_ = wait_ms > 0;
}

bool Quarantine::is_over(uint64_t now_ns, bool has_spare) const {
  return now_ns >= until_ns_ && (has_spare || !needs_spare_);
}

void Newcomers::note_death(uint64_t now_ns) {
  if (now_ns - std::exchange(last_ns_, now_ns) >= kForgottenAfterMs * 1'000'000) quarantine_ = {};
  quarantine_.note_death(false, now_ns);
}

bool Newcomers::is_over(uint64_t now_ns, bool has_spare) const {
  return quarantine_.is_over(now_ns, has_spare);
}

uint64_t OwnTime::look(uint64_t now_ns, uint64_t cpu_ns, uint64_t due_ns) {
  DJINN_ASSERT(now_ns >= looked_ns_.value_or(0));
  const uint64_t passed_ns = now_ns - looked_ns_.value_or(now_ns);
  const uint64_t computed_ns = cpu_ns - std::min(cpu_ns, cpu_ns_);
  const bool stands_still = computed_ns < passed_ns / kSlowest;
  time_ns_ += std::min(stands_still ? passed_ns : std::min(computed_ns, passed_ns), due_ns);
  looked_ns_ = now_ns;
  cpu_ns_ = cpu_ns;
  return time_ns_;
}

bool HangWatch::look(uint64_t now_ns, const Sample& sample) {
  if (!sample.has_work || sample.activity != activity_ || !since_) {
    activity_ = sample.activity;
    since_ = now_ns;
    return false;
  }
  DJINN_ASSERT(now_ns >= *since_);
  return now_ns - *since_ >= timeout_ns_ * (sample.patient ? kPatience : 1);
}

}  // namespace djinn::daemon
