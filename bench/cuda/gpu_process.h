// SPDX-License-Identifier: Apache-2.0

// GpuProcess: a process of its own that uses the GPU and does what it is told, so that a probe can
// kill it, change its user, or confine it, and never touches the driver itself. It is this program
// started again.
//
// A command is a JSON object {"do": NAME, ...}, an answer {"value": ...} or {"refused": WHY}; one
// descriptor may go with either. Commands, with what they answer:
//
//   init                     the device's name; loads the driver, makes no context
//   context                  free bytes of the device, after a context is there
//   free                     free bytes of the device
//   create bytes             number of the allocation; its descriptor goes along
//   import bytes (+ fd)      number of the allocation
//   map index, write         maps it, for reading and writing or for reading alone
//   fill index, seed         writes words that follow from the seed
//   unlike index, seed       how many words differ from those
//   not_zero index           how many words are not zero
//   write_all keep           writes to nine tenths of the device's free memory; gives back what it
//                            took, unless it is to keep it; how many GiB
//   not_zero_all gib         how many words of so many GiB of new memory are not zero
//   sample index             one word in the middle
//   kernels                  loads the kernels
//   scribble index, rounds   starts a kernel that writes all of it; wait waits for it
//   wild                     starts one that writes where nothing is mapped
//   wait                     until all kernels have ended
//   drop index               unmaps and releases it
//   rule NAME                one thing that may be refused, by its name; see rules() in the source
//   become uid               changes the user of this process
//   confine how              "paths", "no-open", "worker", "cuda-worker": for good
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "kernel/base/fd.h"

namespace djinn::bench::cuda {

// main() of a program that starts GpuProcesses: is one, or measures. Gives the exit status.
int run_with_gpu_processes(int count, char** arguments, const std::function<int()>& measure);

// What a process said, or why it did not. Never both.
struct Answer {
  nlohmann::json value;
  std::string refused;  // empty: done
  bool lost = false;    // refused because it ended, or said nothing in time: ask it nothing more
  Fd fd;

  [[nodiscard]] bool ok() const { return refused.empty(); }
  // For a fact: the value, or the refusal as text.
  [[nodiscard]] nlohmann::json said() const { return ok() ? value : nlohmann::json(refused); }
};

class GpuProcess {
 public:
  // Throws std::runtime_error where it cannot be started.
  GpuProcess();
  ~GpuProcess();  // kills it and waits for its end
  GpuProcess(const GpuProcess&) = delete;
  GpuProcess& operator=(const GpuProcess&) = delete;

  // Waits for the answer, at most seconds: then, and where the process is gone, that is the
  // refusal.
  Answer ask(nlohmann::json command, int fd = -1, double seconds = 60);
  // The same, and throws std::runtime_error where it is refused.
  Answer must(nlohmann::json command, int fd = -1, double seconds = 60);
  // SIGKILL. Gives the seconds until the process was gone; nothing if it was not within the limit.
  std::optional<double> kill(double limit_s = 20);
  [[nodiscard]] int pid() const { return pid_; }

 private:
  Answer lost(std::string why);
  // How it ended, once it has: "exit status 1", "signal 6".
  std::string wait_for_end();

  Fd socket_;
  int pid_ = -1;
};

// Has the process start the driver, and says the device's name. Where there is none it says so on
// stderr, and gives false: the stage cannot measure here.
bool start_driver(GpuProcess& process);

}  // namespace djinn::bench::cuda
