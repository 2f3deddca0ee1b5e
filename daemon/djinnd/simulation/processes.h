// SPDX-License-Identifier: Apache-2.0

// Processes: djinnd's children, simulated in its own process.
//
//   child    a simulated worker or loader: it has the other end of a channel
//   ending   it was killed, or ends by itself; it says nothing any more
//   dead     it has let go of all that it had, and its pidfd is readable
//
// invariant: a child that is dead was told of once, by its pidfd, unless a mistake was planted.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "daemon/djinnd/loop/loop.h"
#include "kernel/base/fd.h"
#include "kernel/base/result.h"

namespace djinn::daemon::simulation {

class Machine;
class Processes;

class Child {
 public:
  explicit Child(pid_t pid) : pid_(pid) {}
  virtual ~Child() = default;
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  // It says and does nothing any more, until it is destroyed.
  virtual void end() = 0;
  [[nodiscard]] virtual uint64_t cpu_ns() const { return 0; }

 private:
  const pid_t pid_;
};

class Processes {
 public:
  using Make =
      std::function<std::unique_ptr<Child>(const std::string& path, pid_t pid, Fd channel)>;

  explicit Processes(Machine& machine) : machine_(machine) {}

  // make: of the child that a program is. loop: where deaths are told of; both outlive this.
  void set_programs(Loop& loop, Make make);

  Result<pid_t> start(const std::string& path, Fd channel);
  Result<Fd> open_pidfd(pid_t pid);
  void send_signal(pid_t pid, int signal);
  // The child ends by itself. status: waitpid's.
  void exit(pid_t pid, int status);
  // Gives waitpid's status; one that has not ended does so now.
  int reap(pid_t pid);
  [[nodiscard]] uint64_t cpu_ns_of(pid_t pid) const;

  // Children that were killed end at once from now on, and those that were killed before.
  void hurry();
  // Those that are left go at once: the parent is dead.
  void forget() {
    all_.clear();
    hurries_ = false;
  }
  // That are not dead.
  [[nodiscard]] size_t alive() const;
  void for_each(const std::function<void(Child&)>& call) const;

 private:
  struct Process {
    std::unique_ptr<Child> child;  // null: dead
    Fd told;                       // becomes readable then
    int status = 0;
    bool ending = false;
    std::unique_ptr<Timer> end;
  };
  void begin_end(Process& process, int status, uint64_t after_ms);
  void die(pid_t pid);

  Machine& machine_;
  Loop* loop_ = nullptr;
  Make make_;
  std::map<pid_t, Process> all_;
  pid_t last_pid_ = 100;
  bool hurries_ = false;
};

}  // namespace djinn::daemon::simulation
