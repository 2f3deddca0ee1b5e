// SPDX-License-Identifier: Apache-2.0

// Baton: this worker's part in who computes on the device (ipc/baton.h). Workers of several users
// whose threads all want the same cores at once would hold each other up at every barrier; so one
// computes at a time, and they take turns.
//
//   take     before a unit of work. Free: a compare-and-swap. Held: sleeps until it is given, or
//            its patience has run out, and then computes beside the holder, still in line
//   due      it has had its time, and somebody waits
//   pass     when there is nothing to do, or it is due
//
// The time that a worker had counts against it while others want some too; who comes back from
// doing nothing has no more owed to it than a unit.
//
// invariant: no wait is longer than kPatienceNs, and for one holder that keeps the baton there is
// one such wait. The lane's thread alone calls this.
#pragma once

#include <cstdint>

#include "ipc/baton.h"
#include "kernel/base/clock.h"
#include "kernel/pal/memfd.h"

namespace djinn::worker {

class Baton {
 public:
  // A unit of computing: how long a holder goes on while others wait, between two steps. Within
  // one, which would find cold caches after, it is twice that.
  static constexpr uint64_t kUnitNs = 20'000'000;
  static constexpr uint64_t kPatienceNs = 4 * kUnitNs;

  // Of no device: computes whenever it likes.
  explicit Baton(const Clock& clock) : clock_(clock) {}
  ~Baton() { pass(clock_.monotonic_ns()); }
  Baton(const Baton&) = delete;
  Baton& operator=(const Baton&) = delete;

  // Joins those of a device. page: of at least sizeof(ipc::BatonPage), writable.
  void join(pal::Mapping page, uint32_t slot);

  // Gives how long it slept, in ns. now_ns: of the clock, now.
  uint64_t take(uint64_t now_ns);
  void pass(uint64_t now_ns);
  // Somebody waits, and it has held it for so many units.
  [[nodiscard]] bool is_due(uint32_t units) const;
  // Passes it if it is due, and takes it again. Gives how long it slept, in ns.
  uint64_t pass_if_due(uint32_t units);

  // How long it has slept, in ns, and how often it went on without the baton.
  [[nodiscard]] uint64_t waited_ns() const { return waited_ns_; }
  [[nodiscard]] uint64_t overruns() const { return overruns_; }
  [[nodiscard]] bool holds() const { return holds_; }
  // It holds it, or is in line.
  [[nodiscard]] bool takes_part() const { return holds_ || in_line_; }

 private:
  [[nodiscard]] ipc::BatonPage* page() const;
  bool wait(ipc::BatonPage& page, uint64_t now_ns);
  bool leave_line(ipc::BatonPage& page);

  const Clock& clock_;
  pal::Mapping mapping_;
  uint32_t slot_ = 0;
  bool holds_ = false;
  bool in_line_ = false;
  uint64_t taken_ns_ = 0;
  uint64_t virtual_ns_ = 0;     // what it has had
  bool lost_patience_ = false;  // with the holder of that change
  uint32_t with_change_ = 0;
  uint64_t waited_ns_ = 0;
  uint64_t overruns_ = 0;
};

}  // namespace djinn::worker
