// SPDX-License-Identifier: Apache-2.0

// cuda-confinement shows what the driver needs of the kernel once a process has its context. First
// it traces a process through the phases of a worker's life: its system calls, the requests of
// ioctl with their devices, and the paths. Then it tries what still works under four confinements:
// no paths (Landlock), no opening at all (seccomp), and those of the workers of a GPU and of the
// host.

#include "daemon/child/confinement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <seccomp.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "bench/cuda/facts.h"
#include "bench/cuda/gpu_process.h"

namespace djinn::bench::cuda {
namespace {

using nlohmann::json;

constexpr uint64_t kBytes = 2u << 20;
constexpr double kStepLimitS = 5;  // a driver that is refused a call may wait for ever

// --- tracing
// ---------------------------------------------------------------------------------------

// This is what one phase asked of the kernel.
struct Seen {
  std::map<std::string, int> calls;
  std::map<std::string, int> ioctls;  // "/dev/nvidiactl 0xc00846d6"
  std::set<std::string> paths;        // that did open
};

std::string name_of_call(uint64_t number) {
  char* const name = seccomp_syscall_resolve_num_arch(SCMP_ARCH_NATIVE, static_cast<int>(number));
  const std::string text = name != nullptr ? name : std::to_string(number);
  std::free(name);
  return text;
}

std::string link_of(pid_t thread, uint64_t fd) {
  std::array<char, 256> target{};
  const std::string link = fmt::format("/proc/{}/fd/{}", thread, fd);
  const ssize_t length = ::readlink(link.c_str(), target.data(), target.size() - 1);
  return length > 0 ? std::string(target.data(), static_cast<size_t>(length)) : "closed";
}

std::string text_of(pid_t thread, uint64_t address) {
  std::array<char, 256> text{};
  iovec local{text.data(), text.size() - 1};
  iovec remote{reinterpret_cast<void*>(address), text.size() - 1};
  if (::process_vm_readv(thread, &local, 1, &remote, 1, 0) <= 0) return "unreadable";
  return text.data();
}

// Traces a process and all its threads from a thread of its own, as ptrace wants it.
class Tracer {
 public:
  explicit Tracer(pid_t pid) : thread_([this, pid] { run(pid); }) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return state_ != State::kStarting; });
  }
  ~Tracer() { thread_.join(); }  // ends with the process

  [[nodiscard]] bool traces() {
    const std::lock_guard lock(mutex_);
    return state_ == State::kTracing;
  }
  // Gives what was seen since the last call.
  Seen take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(seen_, {});
  }

 private:
  enum class State : uint8_t { kStarting, kTracing, kFailed };

  void enter(State state) {
    const std::lock_guard lock(mutex_);
    state_ = state;
    changed_.notify_all();
  }

  void run(pid_t pid) {
    const long options =
        PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK;
    if (::ptrace(PTRACE_SEIZE, pid, nullptr, options) != 0 ||
        ::ptrace(PTRACE_INTERRUPT, pid, nullptr, nullptr) != 0)
      return enter(State::kFailed);
    int status = 0;
    ::waitpid(pid, &status, __WALL);
    ::ptrace(PTRACE_SYSCALL, pid, nullptr, nullptr);
    enter(State::kTracing);
    // Ends when no traced thread is left. Other children are not this thread's to wait for.
    for (pid_t thread = 0; (thread = ::waitpid(-1, &status, __WALL | __WNOTHREAD)) > 0;)
      if (WIFSTOPPED(status)) go_on(thread, status);
  }

  void go_on(pid_t thread, int status) {
    const int signal = WSTOPSIG(status);
    if (signal == (SIGTRAP | 0x80)) note(thread);
    const bool of_ptrace = signal == SIGTRAP || signal == (SIGTRAP | 0x80) || status >> 16 != 0;
    ::ptrace(PTRACE_SYSCALL, thread, nullptr, of_ptrace ? 0L : static_cast<long>(signal));
  }

  void note(pid_t thread) {
    __ptrace_syscall_info info{};
    if (::ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof(info), &info) <= 0) return;
    const std::lock_guard lock(mutex_);
    if (info.op == PTRACE_SYSCALL_INFO_EXIT) return note_exit(thread, info.exit.is_error != 0);
    if (info.op != PTRACE_SYSCALL_INFO_ENTRY) return;
    const auto& arguments = info.entry.args;
    ++seen_.calls[name_of_call(info.entry.nr)];
    if (info.entry.nr == SYS_ioctl)
      ++seen_.ioctls[fmt::format("{} {:#x}", link_of(thread, arguments[0]), arguments[1])];
    if (info.entry.nr == SYS_openat) opening_[thread] = text_of(thread, arguments[1]);
    if (info.entry.nr == SYS_open) opening_[thread] = text_of(thread, arguments[0]);
  }

  void note_exit(pid_t thread, bool failed) {
    const auto opened = opening_.extract(thread);
    if (!opened.empty() && !failed) seen_.paths.insert(opened.mapped());
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::kStarting;
  Seen seen_;
  std::map<pid_t, std::string> opening_;  // what each thread is about to open
  std::thread thread_;
};

std::string counted(const std::map<std::string, int>& counts) {
  std::string text;
  for (const auto& [name, count] : counts)
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ", name,
                        count > 1 ? fmt::format(" x{}", count) : "");
  return text;
}

void report(const std::string& phase, const Seen& seen) {
  say(fmt::format("system calls to {}", phase), counted(seen.calls));
  say(fmt::format("ioctls to {}", phase), counted(seen.ioctls));
  say(fmt::format("paths opened to {}", phase), fmt::format("{}", fmt::join(seen.paths, ", ")));
}

// Goes through the phases of a worker's life. `after` is called after each, with the phase's name
// and what it gave.
void live(GpuProcess& process, const Fd& foreign,
          const std::function<void(const char*, const Answer&)>& after) {
  const auto step = [&](const char* phase, json command, int fd = -1) {
    Answer answer = process.ask(std::move(command), fd, kStepLimitS);
    after(phase, answer);
    if (answer.lost) throw std::runtime_error(phase + (": " + answer.refused));
    return answer;
  };
  const Answer imported =
      step("import an extent", {{"do", "import"}, {"bytes", kBytes}}, foreign.get());
  if (imported.ok()) {
    step("map an extent", {{"do", "map"}, {"index", imported.value}, {"write", true}});
    step("copy in", {{"do", "fill"}, {"index", imported.value}, {"seed", 1}});
    step("copy out", {{"do", "unlike"}, {"index", imported.value}, {"seed", 1}});
    step("launch a kernel",
         {{"do", "scribble"}, {"index", imported.value}, {"words", 1024}, {"rounds", 3}});
    step("wait for a kernel", {{"do", "wait"}});
    step("unmap and release an extent", {{"do", "drop"}, {"index", imported.value}});
  }
  step("make and export an extent", {{"do", "create"}, {"bytes", kBytes}});
  step("make pinned host memory", {{"do", "rule"}, {"name", "host memory of a pinned allocation"}});
  step("make a stream and an event", {{"do", "rule"}, {"name", "a stream and an event"}});
  step("ask for free memory", {{"do", "free"}});
}

void trace(const Fd& foreign) {
  GpuProcess process;
  Tracer tracer(process.pid());
  if (!tracer.traces()) return say("tracing", "refused: ptrace of a child is not allowed here");
  const auto phase = [&](const char* name, const Answer& answer) {
    report(name, tracer.take());
    if (!answer.ok()) say(fmt::format("refused: {}", name), answer.refused);
  };
  phase("load and initialise the driver", process.ask({{"do", "init"}}));
  phase("make a context", process.ask({{"do", "context"}}));
  phase("load a kernel", process.ask({{"do", "kernels"}}));
  live(process, foreign, phase);
  (void)process.kill();
}

// If `warm`, every kind of call is made once before the confinement.
void confined(const char* how, bool warm, const Fd& foreign) {
  GpuProcess process;
  process.must({{"do", "init"}});
  process.must({{"do", "context"}});
  process.must({{"do", "kernels"}});
  if (warm) live(process, foreign, [](const char*, const Answer&) {});
  const std::string under = fmt::format("under confinement '{}'{}", how, warm ? ", warm" : "");
  const json done = process.must({{"do", "confine"}, {"how", how}}).value;
  if (done == 0) throw std::runtime_error("this kernel has no Landlock");
  say(fmt::format("confine {}", under), done);
  live(process, foreign, [&](const char* phase, const Answer& answer) {
    say(fmt::format("{} {}", phase, under), answer.ok() ? json("works") : json(answer.refused));
  });
}

int measure() {
  GpuProcess maker;
  if (!start_driver(maker)) return kNotHere;
  say("version of Landlock", child::landlock_abi());
  Fd foreign;
  attempt("an extent", [&] {
    maker.must({{"do", "context"}});
    foreign = maker.must({{"do", "create"}, {"bytes", kBytes}}).fd;
  });
  attempt("tracing", [&] { trace(foreign); });
  for (const char* how : {"cuda-worker", "paths", "no-open", "worker"}) {
    attempt(how, [&] { confined(how, false, foreign); });
    attempt(how, [&] { confined(how, true, foreign); });
  }
  return 0;
}

}  // namespace
}  // namespace djinn::bench::cuda

int main(int count, char** arguments) {
  namespace cuda = djinn::bench::cuda;
  return cuda::run_with_gpu_processes(count, arguments, &cuda::measure);
}
