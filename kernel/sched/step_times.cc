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

uint64_t StepTimes::predict_ns(uint64_t kind) const {
  const Place& place = places_[place_of(kind, kPlaces)];
  if (place.mean.kind != kind) return all_.ns;
  if (place.mean.count > 0) return place.mean.ns;
  if (!place.work) return all_.ns;
  const Rates& rates = rates_[static_cast<size_t>(place.kernels)];
  const double ns =
      static_cast<double>(rates.predict_ns(*place.work)) * rates.first_factor(*place.work);
  return static_cast<uint64_t>(std::min(ns, kPredictedNsMax));
}

bool StepTimes::knows(uint64_t kind) const {
  const Place& place = places_[place_of(kind, kPlaces)];
  return place.mean.kind == kind && (place.mean.count > 0 || place.work);
}

bool StepTimes::is_sure(uint64_t kind) const {
  const Mean& mean = places_[place_of(kind, kPlaces)].mean;
  return mean.kind == kind && mean.count >= kSure;
}

void StepTimes::expect(uint64_t kind, const Work& work, Kernels kernels) {
  places_[place_of(kind, kPlaces)] = {{kind, 0, 0}, 0, work, kernels};
}

void StepTimes::note(uint64_t kind, uint64_t measured_ns) {
  Place& place = places_[place_of(kind, kPlaces)];
  if (place.mean.kind != kind) place = {{kind, 0, 0}, 0, std::nullopt, Kernels::kExact};
  if (place.work) {
    Rates& rates = rates_[static_cast<size_t>(place.kernels)];
    // Of a kind that goes on for ever its first steps tell all that there is to learn.
    if (place.ran == 1) rates.note_first(*place.work, place.mean.ns, measured_ns);
    if (place.ran >= 1 && place.ran <= kSteps) rates.note(*place.work, measured_ns);
  }
  // A first run of a program records its plan: the second alone says how long the others take.
  if (place.work && place.ran == 1) place.mean = {kind, 0, 0};
  place.ran = std::min(place.ran + 1, 2 * kSteps);
  place.mean.note(measured_ns);
  all_.note(measured_ns);
}

}  // namespace djinn::sched
