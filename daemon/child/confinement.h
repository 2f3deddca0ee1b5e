// SPDX-License-Identifier: Apache-2.0

// Confinement: what a child of djinnd gives up once it has warmed up, so that hostile input that
// takes it over finds nothing to take (ARCHITECTURE section 1).
//
//   Landlock   no path of the file system can be opened, made or removed; no TCP; no signals or
//              abstract sockets out of this process
//   seccomp    a list of allowed system calls; all others fail with EPERM. No open, socket, exec,
//              fork, ptrace, or reaching into other processes
//
// Descriptors that are open already, and those that the control channel brings, keep working.
// Neither can be taken back.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kernel/base/result.h"

namespace djinn::child {

// What was confined, as djinnd reports it.
struct Confinement {
  uint32_t landlock_abi = 0;  // 0: this kernel has no Landlock, which is said and is not an error
  bool seccomp = false;
};

// oom_score_adj of children (proc(5)), at most 1000; djinnd's own is set by its unit.
inline constexpr int kOomScore = 500;

enum class Role : uint8_t {
  kLoader = 1,
  kWorker = 2,  // may also make pages executable: oneDNN generates code for each new shape
  // May also make those requests of NVIDIA's driver that a worker with a context needs, on any
  // descriptor that it has.
  kCudaWorker = 3,
  // May also open the nodes of NVIDIA's driver, and make any request of it.
  kMover = 4,
};

// First thing in main(): not dumpable (no core, no ptrace, no /proc/PID/fd for others), no new
// privileges, dead as soon as djinnd is (if it died before this, its channel has ended), and killed
// before djinnd is where the host's memory runs out: a child that dies loses nothing.
// Errors: kSystem.
Status become_child();

// Both confinements. Landlock binds this thread and those that it makes later, seccomp all threads.
// nodes: what can still be opened to be read and written, of a mover alone; where the kernel has no
// Landlock, a mover opens what its user may. Errors: kNotConfined when a confinement that this
// kernel has is refused.
Result<Confinement> confine(Role role, std::span<const std::string> nodes = {});

// The first of the two: no path can be reached any more, but the nodes. Gives Landlock's version; 0
// for none.
Result<uint32_t> confine_paths(std::span<const std::string> nodes = {});

// The version of Landlock's interface that this kernel offers; 0 for none.
[[nodiscard]] uint32_t landlock_abi();

}  // namespace djinn::child
