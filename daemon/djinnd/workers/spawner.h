// SPDX-License-Identifier: Apache-2.0

// Spawner: starts programs from a thread that has none of djinnd's descriptors. A child begins with
// a copy of its parent's, and closes them as it begins its own program; one that does not close
// (deferred_close.h) would keep it there, and no signal ends that.
//
// invariant: the thread has the standard descriptors and its end of a socket, whatever djinnd
// opens. Made before there is a client. Its children may ask to die with it (PR_SET_PDEATHSIG): it
// lives as long as they do. What systemd gives djinnd as ambient capabilities no child has unasked.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kernel/base/fd.h"
#include "kernel/base/result.h"

namespace djinn::daemon {

class Spawner {
 public:
  struct Program {
    std::string path;
    std::vector<std::string> arguments;    // with the name of the program
    std::vector<std::string> environment;  // "NAME=VALUE": all of it
    bool takes_leases = false;             // it keeps CAP_LEASE, if we have it; no other capability
  };
  static constexpr int kChannelNumber = 3;

  // Where no thread can be had, every start says so.
  Spawner();
  ~Spawner();
  Spawner(const Spawner&) = delete;
  Spawner& operator=(const Spawner&) = delete;

  // Returns when the program has begun. It has stdin from nowhere, our stdout and stderr, the
  // channel as kChannelNumber, and no signal blocked. The channel stays the caller's. Errors:
  // kSystem and its kin.
  Result<pid_t> start(const Program& program, const Fd& channel);

 private:
  void serve(int socket);

  Fd socket_;  // descriptors go to the thread through it
  std::mutex mutex_;
  std::condition_variable changed_;
  Status ready_;  // or why there is no thread
  bool serving_ = false;
  bool stopping_ = false;
  const Program* order_ = nullptr;  // until it is carried out
  Result<pid_t> answer_ = pid_t{0};
  std::thread thread_;
};

}  // namespace djinn::daemon
