// SPDX-License-Identifier: Apache-2.0
#include "bench/cuda/gpu_process.h"

#include <fmt/format.h>
#include <grp.h>
#include <poll.h>
#include <seccomp.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <span>

#include "bench/cuda/facts.h"
#include "bench/cuda/gpu.h"
#include "daemon/child/confinement.h"
#include "ipc/socket.h"
#include "kernel/pal/memfd.h"

extern char** environ;

namespace djinn::bench::cuda {
namespace {

using nlohmann::json;
using SteadyClock = std::chrono::steady_clock;

constexpr int kSocket = 3;
constexpr const char* kGpuProcessArgument = "--gpu-process";

double seconds_since(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

template <typename T>
T value_of(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return std::move(result).value();
}

void must_work(const Status& status) {
  if (!status) throw std::runtime_error(status.error().message);
}

// --- the process
// -----------------------------------------------------------------------------------

// From now on no path can be opened, no socket made and no program started; all else works.
void forbid_opening() {
  const std::unique_ptr<void, void (*)(void*)> filter(seccomp_init(SCMP_ACT_ALLOW),
                                                      [](void* f) { seccomp_release(f); });
  bool added = filter != nullptr;
  for (const int call : {SCMP_SYS(open), SCMP_SYS(openat), SCMP_SYS(openat2), SCMP_SYS(socket),
                         SCMP_SYS(connect), SCMP_SYS(execve), SCMP_SYS(execveat)})
    added = added && seccomp_rule_add(filter.get(), SCMP_ACT_ERRNO(EPERM), call, 0) == 0;
  if (!added || seccomp_attr_set(filter.get(), SCMP_FLTATR_CTL_TSYNC, 1) != 0 ||
      seccomp_load(filter.get()) != 0)
    throw std::runtime_error("seccomp: the filter could not be loaded");
}

class Server {
 public:
  // Carries out one command. If the answer has a descriptor, it is left in `sent`.
  json obey(const json& command, Fd received, Fd& sent) {
    const std::string what = command.at("do");
    if (what == "init") {
      gpu_ = std::make_unique<Gpu>();
      return gpu_->name();
    }
    if (what == "become") return become(command.at("uid"));
    if (what == "confine") return confine(command.at("how"));
    if (gpu_ == nullptr) throw std::runtime_error("init comes first");
    return obey_with_gpu(what, command, std::move(received), sent);
  }

 private:
  json obey_with_gpu(const std::string& what, const json& command, Fd received, Fd& sent) {
    Gpu& gpu = *gpu_;
    if (what == "context") {
      gpu.make_context();
      return gpu.free_bytes();
    }
    if (what == "free") return gpu.free_bytes();
    if (what == "write_all") return gpu.write_all(command.at("keep"));
    if (what == "not_zero_all") return gpu.words_not_zero_in_new(command.at("gib"));
    if (what == "create") {
      const size_t index = gpu.create(command.at("bytes"));
      sent = gpu.export_allocation(index);
      return index;
    }
    if (what == "import") return gpu.import(received.get(), command.at("bytes"));
    if (what == "kernels") {
      gpu.load_kernels();
      return true;
    }
    if (what == "wait") {
      gpu.wait();
      return true;
    }
    if (what == "wild") {
      gpu.scribble(0x1000, 1, 1);
      return true;
    }
    if (what == "rule") return try_rule(command.at("name"));
    return obey_about(what, command, command.at("index"));
  }

  json obey_about(const std::string& what, const json& command, size_t index) {
    Gpu& gpu = *gpu_;
    if (what == "map") {
      gpu.map(index,
              command.at("write") ? driver::AccessFlags::kReadWrite : driver::AccessFlags::kRead);
    } else if (what == "fill") {
      gpu.fill(index, command.at("seed"));
    } else if (what == "unlike") {
      return gpu.words_unlike(index, command.at("seed"));
    } else if (what == "not_zero") {
      return gpu.words_not_zero(index);
    } else if (what == "sample") {
      return gpu.sample(index);
    } else if (what == "scribble") {
      gpu.scribble(gpu.address(index), command.at("words"), command.at("rounds"));
    } else if (what == "drop") {
      gpu.drop(index);
    } else {
      throw std::runtime_error("no such command: " + what);
    }
    return true;
  }

  json try_rule(const std::string& name) {
    const auto rule = rules().find(name);
    if (rule == rules().end()) throw std::runtime_error("no such rule: " + name);
    return rule->second(*gpu_);
  }

  // Each rule tries something that the documentation leaves open, or says in words that a program
  // should not rely on.
  static const std::map<std::string, std::function<json(Gpu&)>>& rules() {
    static const std::map<std::string, std::function<json(Gpu&)>> table = {
        {"map the second half of an allocation",
         [](Gpu& gpu) { return map_part(gpu, gpu.granularity(), gpu.granularity()); }},
        {"map the first half of an allocation",
         [](Gpu& gpu) { return map_part(gpu, 0, gpu.granularity()); }},
        {"map more than an allocation has",
         [](Gpu& gpu) { return map_part(gpu, 0, 3 * gpu.granularity()); }},
        {"import a memfd",
         [](Gpu& gpu) {
           const Fd memfd = value_of(pal::make_memfd("djinn-probe", 2u << 20));
           return json(gpu.import(memfd.get(), 2u << 20));
         }},
        {"import a pipe",
         [](Gpu& gpu) {
           int ends[2];
           if (::pipe(ends) != 0) throw std::runtime_error("pipe");
           const Fd read_end(ends[0]);
           const Fd write_end(ends[1]);
           return json(gpu.import(read_end.get(), 2u << 20));
         }},
        {"export after the allocation was imported",
         [](Gpu& gpu) {
           const size_t first = gpu.create(gpu.granularity());
           const Fd fd = gpu.export_allocation(first);
           const size_t second = gpu.import(fd.get(), gpu.granularity());
           return json(gpu.export_allocation(second).valid());
         }},
        {"import one descriptor twice in one process",
         [](Gpu& gpu) {
           const size_t first = gpu.create(gpu.granularity());
           const Fd fd = gpu.export_allocation(first);
           const size_t a = gpu.import(fd.get(), gpu.granularity());
           const size_t b = gpu.import(fd.get(), gpu.granularity());
           gpu.map(a, driver::AccessFlags::kReadWrite);
           gpu.map(b, driver::AccessFlags::kRead);
           gpu.fill(a, 5);
           return json(gpu.words_unlike(b, 5) == 0);
         }},
        {"create less than the granularity",
         [](Gpu& gpu) { return json(gpu.create(gpu.granularity() / 2)); }},
        {"host memory of a pinned allocation",
         [](Gpu& gpu) {
           void* address = nullptr;
           gpu.must("cuMemHostAlloc",
                    gpu.api().mem_host_alloc(&address, 16u << 20, driver::kHostAllocPortable));
           gpu.must("cuMemFreeHost", gpu.api().mem_free_host(address));
           return json(true);
         }},
        {"a stream and an event",
         [](Gpu& gpu) {
           driver::Stream stream = nullptr;
           driver::Event event = nullptr;
           gpu.must("cuStreamCreate", gpu.api().stream_create(&stream, driver::kStreamNonBlocking));
           gpu.must("cuEventCreate", gpu.api().event_create(&event, driver::kEventDisableTiming));
           gpu.must("cuEventRecord", gpu.api().event_record(event, stream));
           gpu.must("cuEventSynchronize", gpu.api().event_synchronize(event));
           gpu.must("cuEventDestroy", gpu.api().event_destroy(event));
           gpu.must("cuStreamDestroy", gpu.api().stream_destroy(stream));
           return json(true);
         }},
        {"seal a memfd while it is registered for copies", registered_seal},
    };
    return table;
  }

  static json map_part(Gpu& gpu, uint64_t offset, uint64_t bytes) {
    driver::Allocation allocation = 0;
    const driver::AllocationProperties properties = gpu.properties();
    gpu.must("cuMemCreate",
             gpu.api().mem_create(&allocation, 2 * gpu.granularity(), &properties, 0));
    driver::DevicePtr address = 0;
    gpu.must("cuMemAddressReserve",
             gpu.api().mem_address_reserve(&address, 4 * gpu.granularity(), 0, 0, 0));
    gpu.must("cuMemMap", gpu.api().mem_map(address, bytes, offset, allocation, 0));
    return true;
  }

  static json registered_seal(Gpu& gpu) {
    const uint64_t bytes = 4u << 20;
    const Fd memfd = value_of(pal::make_memfd("djinn-probe", bytes));
    {
      const pal::Mapping mapping = value_of(pal::map_shared(memfd, bytes, pal::Access::kReadWrite));
      gpu.must("cuMemHostRegister", gpu.api().mem_host_register(mapping.bytes().data(), bytes, 0));
      gpu.must("cuMemHostUnregister", gpu.api().mem_host_unregister(mapping.bytes().data()));
    }
    must_work(pal::add_seals(memfd, pal::Seals::kWrite));
    return true;
  }

  static json become(uid_t uid) {
    if (::setgroups(0, nullptr) != 0 || ::setgid(uid) != 0 || ::setuid(uid) != 0)
      throw std::runtime_error(system_error("become another user", errno).message);
    return ::getuid();
  }

  static json confine(const std::string& how) {
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
      throw std::runtime_error(system_error("no new privileges", errno).message);
    if (how == "paths") return value_of(child::confine_paths());
    if (how == "no-open") {
      forbid_opening();
      return true;
    }
    if (how == "worker") return value_of(child::confine(child::Role::kWorker)).seccomp;
    if (how == "cuda-worker") return value_of(child::confine(child::Role::kCudaWorker)).seccomp;
    throw std::runtime_error("no such confinement: " + how);
  }

  std::unique_ptr<Gpu> gpu_;
};

bool is_readable(int socket, int timeout_ms) {
  pollfd waiting{.fd = socket, .events = POLLIN, .revents = 0};
  return ::poll(&waiting, 1, timeout_ms) > 0;
}

// Gives nothing when the conversation has ended.
std::optional<ipc::Datagram> next_message(int socket) {
  auto message = ipc::receive_datagram(socket);
  if (!message) return std::nullopt;
  return std::move(message).value();
}

json parsed(const ipc::Datagram& message) {
  const auto* text = reinterpret_cast<const char*>(message.bytes.data());
  return json::parse(text, text + message.bytes.size());
}

Status send(int socket, const json& message, int fd) {
  const std::string text = message.dump();
  const std::span<const int> fds(&fd, fd >= 0 ? 1 : 0);
  return ipc::send_datagram(socket, std::as_bytes(std::span(text)), fds);
}

// Serves the socket until it closes.
int serve() {
  Server server;
  while (is_readable(kSocket, -1)) {
    auto message = next_message(kSocket);
    if (!message) break;
    json answer;
    Fd sent;
    try {
      Fd received = message->fds.empty() ? Fd() : std::move(message->fds.front());
      answer["value"] = server.obey(parsed(*message), std::move(received), sent);
    } catch (const std::exception& error) {
      answer = {{"refused", error.what()}};
    }
    if (!send(kSocket, answer, sent.get())) return 1;
  }
  return 0;
}

}  // namespace

int run_with_gpu_processes(int count, char** arguments, const std::function<int()>& measure) {
  const bool is_one = count == 2 && std::string_view(arguments[1]) == kGpuProcessArgument;
  return is_one ? serve() : measure();
}

// --- who tells it what to do
// -----------------------------------------------------------------------

GpuProcess::GpuProcess() {
  auto pair = value_of(ipc::make_socket_pair());
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pair.right.get(), kSocket);
  const char* arguments[] = {"/proc/self/exe", kGpuProcessArgument, nullptr};
  const int failed =
      ::posix_spawn(&pid_, arguments[0], &actions, nullptr, const_cast<char**>(arguments), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) throw std::runtime_error(system_error("start a process", failed).message);
  socket_ = std::move(pair.left);
}

GpuProcess::~GpuProcess() {
  if (pid_ > 0) (void)kill();
}

Answer GpuProcess::ask(json command, int fd, double seconds) {
  if (const Status sent = send(socket_.get(), command, fd); !sent) return lost(wait_for_end());
  if (!is_readable(socket_.get(), static_cast<int>(seconds * 1000)))
    return lost(fmt::format("no answer from the process within {} s", seconds));
  auto message = next_message(socket_.get());
  if (!message) return lost(wait_for_end());
  const json said = parsed(*message);
  Answer answer;
  if (!message->fds.empty()) answer.fd = std::move(message->fds.front());
  if (said.contains("refused"))
    answer.refused = said.at("refused");
  else
    answer.value = said.at("value");
  return answer;
}

Answer GpuProcess::lost(std::string why) {
  Answer answer;
  answer.refused = std::move(why);
  answer.lost = true;
  return answer;
}

std::string GpuProcess::wait_for_end() {
  int status = 0;
  if (::waitpid(std::exchange(pid_, -1), &status, 0) < 0) return "the process is gone";
  if (WIFSIGNALED(status)) return fmt::format("the process ended by signal {}", WTERMSIG(status));
  return fmt::format("the process ended with exit status {}", WEXITSTATUS(status));
}

Answer GpuProcess::must(json command, int fd, double seconds) {
  Answer answer = ask(command, fd, seconds);
  if (!answer.ok()) throw std::runtime_error(command.dump() + ": " + answer.refused);
  return answer;
}

std::optional<double> GpuProcess::kill(double limit_s) {
  if (pid_ < 0) return 0;
  const auto start = SteadyClock::now();
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, WNOHANG) == 0) {
    if (seconds_since(start) > limit_s) return std::nullopt;
    ::poll(nullptr, 0, 1);
  }
  pid_ = -1;
  return seconds_since(start);
}

bool start_driver(GpuProcess& process) {
  const Answer named = process.ask({{"do", "init"}});
  if (named.ok())
    say("device", named.value);
  else
    fmt::print(stderr, "{}\n", named.refused);
  return named.ok();
}

}  // namespace djinn::bench::cuda
