// SPDX-License-Identifier: Apache-2.0

// The text of /metrics: a snapshot in Prometheus' exposition format.
//
// Names begin with djinn_, units are seconds and bytes, and counters end in _total. Nothing is told
// of single users, sessions or models.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "daemon/djinnd/metrics/metrics_snapshot.h"

namespace djinn::daemon {

// Numbers that the metrics' thread has seen itself.
struct ScrapeCounts {
  uint64_t answers = 0;          // with status 200
  uint64_t refusals = 0;         // with another
  uint64_t timeouts = 0;         // who was too slow
  uint64_t connections_cut = 0;  // silent ones that gave way to a new one
};

// What /proc says of this process.
struct ProcessBasics {
  double cpu_seconds = 0;
  uint64_t resident_bytes = 0;
  uint64_t virtual_bytes = 0;
  uint64_t threads = 0;
  uint64_t descriptors = 0;
  uint64_t descriptors_max = 0;
};
// A number that cannot be read is 0. Any thread.
[[nodiscard]] ProcessBasics read_process_basics();

// Pure. now_ns: of the clock that the snapshot was taken by.
[[nodiscard]] std::string text_of(const MetricsSnapshot& snapshot, const ScrapeCounts& scrapes,
                                  const ProcessBasics& process, uint64_t now_ns);

}  // namespace djinn::daemon
