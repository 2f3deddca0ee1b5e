// SPDX-License-Identifier: Apache-2.0

// ChildProcess: a worker, a loader or a mover: a process that djinnd started, and the channel to
// it.
//
// invariant: what is heard of it comes with the descriptors that whoever listens expects of it, and
// no others; a child that sends any is killed.
// invariant: exited() is called once, after the last message of the child; from then on nobody but
// djinnd has the child's memory and descriptors.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "daemon/djinnd/loop/channel.h"
#include "daemon/djinnd/loop/deferred_close.h"
#include "daemon/djinnd/loop/loop.h"
#include "daemon/djinnd/loop/stragglers.h"
#include "daemon/djinnd/workers/spawner.h"
#include "ipc/exit_status.h"
#include "kernel/base/fd.h"
#include "kernel/base/result.h"

namespace djinn::daemon {

// What to start. Before the arguments come `--build IDENTITY` and `--channel-fd N`.
struct ChildProgram {
  std::string path;
  std::vector<std::string> arguments;
  std::vector<std::string> environment;  // "NAME=VALUE", before djinnd's own
  bool takes_leases = false;             // as Spawner::Program
  std::vector<std::string> withheld{};   // how names begin of what it does not get of djinnd's
};

// Where children run; all of it outlives them.
struct ChildHost {
  Loop& loop;
  Spawner& spawner;
  DeferredClose& deferred_close;
  Stragglers& stragglers;
};

// What kind of descriptors a child may send. One is told by what the kernel says without asking a
// file system, since it may be a client's.
enum class SentFds : uint8_t {
  kNone,
  kMemory,   // memfds
  kExtents,  // memfds, and memory of GPUs
};

// Whether a descriptor is what NVIDIA's driver exports memory as. Of so many bytes? That only a
// mover can tell; of a memfd, which stands for it in tests, this does, and that it cannot grow.
[[nodiscard]] bool is_extent_of_gpu(const Fd& fd, uint64_t bytes);

class ChildProcess {
 public:
  struct Events {
    // Descriptors that are left in it are closed by a thread.
    std::function<void(ipc::Datagram&)> message;
    std::function<void()> exited;
    SentFds expected = SentFds::kNone;  // with any message
  };

  // traffic: outlives the child. Errors: kSystem and its kin.
  static Result<std::unique_ptr<ChildProcess>> start(const ChildHost& host,
                                                     const ChildProgram& program, Traffic& traffic);
  // Kills the child if it lives; it becomes a straggler.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Whoever owns the child says here who listens; before that messages are lost.
  void listen(Events events) { events_ = std::move(events); }
  void send(std::span<const std::byte> bytes, std::span<const int> fds = {});
  void send_shared(std::span<const std::byte> bytes, std::vector<SharedFd> fds);
  void kill();
  // Where it was stopped.
  void go_on();
  // Kills the child and waits for its end, however long that takes; nobody hears of it, nor of
  // anything more. Events may call it, too.
  void end();

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] bool dead() const { return reaped_; }
  // What its threads have computed so far; 0 where the kernel does not say.
  [[nodiscard]] uint64_t cpu_ns() const;
  // How a child that is dead ended, for people: "of SIGSEGV", "with status 1".
  [[nodiscard]] std::string how_it_ended() const;
  // Where it admitted a program as it crashed of that.
  [[nodiscard]] std::optional<ipc::AdmissionDesk> crashed_at() const;
  // It ended because it is of another build than we are (ipc/build_identity.h).
  [[nodiscard]] bool refused_our_build() const;
  // It ended because it does not find the device that it was started for.
  [[nodiscard]] bool found_other_device() const;

 private:
  [[nodiscard]] bool ended_with(int status) const;
  ChildProcess(const ChildHost& host, pid_t pid, Fd pidfd, Fd socket, Traffic& traffic);
  void silence();
  void heard(ipc::Datagram message);
  void on_exit();
  void reap();

  pid_t pid_;
  Fd pidfd_;
  Stragglers& stragglers_;
  std::shared_ptr<Closer> closer_;
  bool reaped_ = false;
  bool ended_ = false;   // nobody listens any more
  int wait_status_ = 0;  // once reaped, waitpid's
  Events events_;
  std::optional<Channel> channel_;
  std::optional<Poll> exit_;
};

}  // namespace djinn::daemon
