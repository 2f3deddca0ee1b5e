// SPDX-License-Identifier: Apache-2.0

// AdmissionMark: while one lives, a crash of its thread ends the process with a status of its own
// (ipc/exit_status.h), so that djinnd blames the graph that was looked at, and no session whose
// step was under way on the lane. Crashes of other threads end the process as they did.
#pragma once

#include <signal.h>

#include <cstddef>
#include <vector>

#include "ipc/exit_status.h"

namespace djinn::worker {

class AdmissionMark {
 public:
  // Once in a process, before it is confined; without it marks say nothing.
  static void install();

  // Of the thread that serves the desk.
  explicit AdmissionMark(ipc::AdmissionDesk desk);
  ~AdmissionMark();
  AdmissionMark(const AdmissionMark&) = delete;
  AdmissionMark& operator=(const AdmissionMark&) = delete;

 private:
  std::vector<std::byte> stack_;  // to say it on: the thread's own may be what has run out
  stack_t former_{};              // a sanitizer's, maybe
};

}  // namespace djinn::worker
