// SPDX-License-Identifier: Apache-2.0

#include "kernel/sched/step_times.h"

#include <algorithm>

namespace djinn::sched {
namespace {

// The mean is of about so many of the last steps: a model that came back into caches, or a longer
// sequence, shows soon.
constexpr uint64_t kSteps = 8;
constexpr uint64_t kSure = 3;

size_t place_of(uint64_t kind, size_t places) {
  // Fibonacci hashing (Knuth, The Art of Computer Programming, volume 3, section 6.4).
  return static_cast<size_t>((kind * 0x9e3779b97f4a7c15) >> 32) % places;
}

}  // namespace

void StepTimes::Mean::note(uint64_t measured_ns) {
  count = std::min(count + 1, kSteps);
  ns = measured_ns > ns ? ns + (measured_ns - ns) / count : ns - (ns - measured_ns) / count;
}

bool StepTimes::is_sure(uint64_t kind) const {
  const Mean& mean = places_[place_of(kind, kPlaces)];
  return mean.kind == kind && mean.count >= kSure;
}

uint64_t StepTimes::predict_ns(uint64_t kind) const {
  const Mean& mean = places_[place_of(kind, kPlaces)];
  return mean.kind == kind && mean.count > 0 ? mean.ns : all_.ns;
}

void StepTimes::note(uint64_t kind, uint64_t measured_ns) {
  Mean& mean = places_[place_of(kind, kPlaces)];
  if (mean.kind != kind) mean = {kind, 0, 0};
  mean.note(measured_ns);
  all_.note(measured_ns);
}

}  // namespace djinn::sched
