// SPDX-License-Identifier: Apache-2.0

// DaemonProcess: a djinnd of our own, in a private runtime directory, for one benchmark program. It
// stands beside this program in the build's bin/, and dies with it.
#pragma once

#include <string>
#include <vector>

#include "kernel/base/result.h"
#include "libdjinn-client/client.h"

namespace djinn::bench {

class DaemonProcess {
 public:
  // Started once for all benchmarks of this program; ends with it. Aborts where it cannot start:
  // there is nothing to measure then.
  static DaemonProcess& shared();

  // mode: --user, or what makes it a service, which takes root.
  explicit DaemonProcess(const std::vector<std::string>& mode);
  ~DaemonProcess();
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;

  // A new session. Aborts where there is none to be had.
  [[nodiscard]] std::unique_ptr<client::Client> connect(bool observer = false) const;
  [[nodiscard]] const std::string& directory() const { return directory_; }
  [[nodiscard]] std::string socket_path() const { return directory_ + "/djinnd.sock"; }
  // The process of the worker that serves us; 0 when none is ready.
  [[nodiscard]] uint32_t worker_pid() const;

 private:
  std::string directory_;
  int pid_ = -1;
};

}  // namespace djinn::bench
