// SPDX-License-Identifier: Apache-2.0

// Loader: a simulated djinn-loader. It tells what files are, plans, reads and compares; it may
// fail, die, wait for files that do not answer, or say what it has no reason to say.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "daemon/djinnd/loop/loop.h"
#include "daemon/djinnd/simulation/files.h"
#include "daemon/djinnd/simulation/processes.h"
#include "ipc/messages.h"
#include "ipc/socket.h"
#include "kernel/base/fd.h"

namespace djinn::daemon::simulation {

class Loader final : public Child {
 public:
  Loader(Machine& machine, Loop& loop, Files& files, pid_t pid, Fd channel);

  void end() override;

 private:
  void readable();
  void work();
  void work_soon();
  void say(const ipc::LoaderEvent& event, const std::vector<int>& fds = {});
  void send(const ipc::LoaderEvent& event, const std::vector<int>& fds);
  void lie(const ipc::LoaderEvent& said, const std::vector<int>& fds);
  void answer(const ipc::Datagram& message);
  void take_files(const ipc::TakeFiles& command, const std::vector<Fd>& fds);
  void tell_files();
  void plan();
  void read(const std::vector<Fd>& extents);
  void hash();
  void compare(const std::vector<Fd>& fds);
  [[nodiscard]] bool has_silent_file();
  // What its files hold, one after the other.
  [[nodiscard]] std::vector<uint64_t> contents();

  Machine& machine_;
  Files& files_;
  Fd channel_;
  bool ready_ = false;
  bool ending_ = false;
  std::deque<ipc::Datagram> commands_;
  std::vector<uint64_t> taken_;
  Poll poll_;
  Timer work_;
  Timer hash_;  // which nobody waits for
};

}  // namespace djinn::daemon::simulation
