#include "daemon/djinnd/recovery.h"

#include <algorithm>

#include "ipc/limits.h"

namespace djinn::daemon {

void DeathCount::note(const gc::Progress& progress) {
  const bool same_step = deaths_ > 0 && progress.commit == commit_;
  commit_ = progress.commit;
  if (progress.running_step == 0) {
    deaths_ = 0;
  } else {
    deaths_ = same_step ? deaths_ + 1 : 1;
  }
}

bool DeathCount::exhausted() const {
  return deaths_ >= limits::kDeathsWithoutProgress;
}

uint64_t BackOff::after_death(bool progressed) {
  fruitless_ = progressed ? 0 : std::min(fruitless_ + 1, 16u);
  if (fruitless_ <= 1) return 0;
  return std::min(kMaxMs, kFirstMs << (fruitless_ - 2));
}

bool HangWatch::look(uint64_t now_ns, const Sample& sample) {
  if (!sample.has_work || sample.activity != activity_ || !since_) {
    activity_ = sample.activity;
    since_ = now_ns;
    return false;
  }
  return now_ns - *since_ >= timeout_ns_ * (sample.patient ? kPatience : 1);
}

}  // namespace djinn::daemon
