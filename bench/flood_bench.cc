// SPDX-License-Identifier: Apache-2.0

// This measures what a user pays for another's flood: their connect and status, alone and beside 20
// sessions of somebody who repeats one control request as fast as possible, each request in turn.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "bench/daemon_process.h"
#include "ipc/codec/control_codec.h"
#include "ipc/socket.h"
#include "kernel/pal/memfd.h"

namespace djinn::bench {
namespace {

using std::chrono::steady_clock;

constexpr int kFlooders = 20;           // sessions, each of a process of its own
constexpr uid_t kFloodingUser = 65534;  // nobody
constexpr uid_t kNeighbour = 1;         // no administrator, who sees all workers and waits for them
constexpr uint32_t kPipelined = limits::kRequestsPending / 2;
constexpr int kRounds = 5;
constexpr int kSamples = 200;  // of each arm, beside each flood, a round
constexpr int kPatienceMs = 10'000;

// --- the flood

// This process and the flooders share the count of djinnd's answers.
std::atomic<uint64_t>* shared_count() {
  void* const at = ::mmap(nullptr, sizeof(std::atomic<uint64_t>), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) ::abort();
  return new (at) std::atomic<uint64_t>(0);
}

std::atomic<uint64_t>& answers = *shared_count();

struct Request {
  const char* name;
  decltype(ipc::ClientRequest::body) body;
  enum class Payload : uint8_t { kNone, kFiles, kGraph, kSparseGraph } payload{};
};

// These are all kinds of ipc::ClientRequest but Hello, with which reconnect() floods. Two kinds
// come a second time, with a payload that has holes.
auto requests() {
  using enum Request::Payload;
  const ModelId model{1};
  const SessionId session{1};
  ipc::SequenceGeometry geometry;
  geometry.layers = geometry.kv_heads = geometry.head_dim = 1;
  geometry.capacity = 64;
  auto rows = std::to_array<Request>(
      {{"add files", ipc::AddFiles{limits::kControlDescriptors}, kFiles},
       {"open model", ipc::OpenModel{"flood"}},
       {"open model, sparse plan", ipc::OpenModel{"flood", true}, kSparseGraph},
       {"close model", ipc::CloseModel{model}},
       {"read manifest", ipc::ReadManifest{model}},
       {"unload model", ipc::UnloadModel{model}},
       {"define program", ipc::DefineProgram{}, kGraph},
       {"define program, sparse", ipc::DefineProgram{}, kSparseGraph},
       {"read graph", ipc::ReadGraph{ProgramId{1}}},
       {"drop programs", ipc::DropPrograms{{ProgramId{1}}}},
       {"make sequence", ipc::MakeSequence{geometry}},
       {"drop sequence", ipc::DropSequence{{0, 1}}},
       {"status", ipc::GetStatus{}},
       {"list sessions", ipc::ListSessions{}},
       {"list models", ipc::ListModels{}},
       {"list programs", ipc::ListPrograms{}},
       {"list devices", ipc::ListDevices{}},
       {"list memory", ipc::ListMemory{}},
       {"pin model", ipc::PinModel{model, true}},
       {"cancel run", ipc::CancelRun{session}},
       {"terminate session", ipc::TerminateSession{session}},
       {"evict model", ipc::EvictModel{model}},
       {"drain", ipc::SetDraining{true}},
       {"collect garbage", ipc::CollectGarbage{}},
       {"follow events", ipc::FollowEvents{}},
       {"list uses", ipc::ListUses{model}},
       {"own memory", ipc::GetOwnMemory{}},
       {"schedule", ipc::GetSchedule{}},
       {"place model", ipc::PlaceModel{model, "cuda:0"}},
       {"import model", ipc::ImportModel{"flood"}},
       {"list published", ipc::ListPublished{}},
       {"remove published", ipc::RemovePublished{"flood"}}});
  static_assert(rows.size() == std::variant_size_v<decltype(Request::body)> - 1 + 2);
  return rows;
}

// Waits for events on a session's socket. Gives false once the session has ended.
bool wait_for(const Fd& socket, short events) {
  pollfd waiting{socket.get(), events, 0};
  return ::poll(&waiting, 1, -1) == 1;
}

Fd greeted(const std::string& path) {
  auto socket = ipc::connect_unix(path);
  if (!socket) return {};
  const auto hello =
      ipc::encode(ipc::ClientRequest{1, ipc::Hello{ipc::kProtocolVersion, "flood", 1 << 16}});
  if (!ipc::send_datagram(socket->get(), hello)) return {};
  if (!wait_for(*socket, POLLIN) || !ipc::receive_datagram(socket->get())) return {};
  ++answers;
  return *std::move(socket);
}

[[noreturn]] void reconnect(const std::string& path) {
  for (;;) greeted(path);
}

std::vector<Fd> payload_of(const Request& request) {
  std::vector<Fd> fds;
  const auto add = [&](Fd fd) { fds.push_back(std::move(fd)); };
  switch (request.payload) {
    case Request::Payload::kNone:
      break;
    case Request::Payload::kFiles:
      for (uint32_t i = 0; i < limits::kControlDescriptors; ++i) {
        add(Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC)));
      }
      break;
    case Request::Payload::kGraph:
      add(*pal::make_sealed_memfd("flood", std::vector<std::byte>(limits::kGraphBytes)));
      break;
    case Request::Payload::kSparseGraph:
      add(*pal::make_memfd("flood", limits::kGraphBytes, pal::Seals::kWrite));
      break;
  }
  return fds;
}

// Keeps this many requests in flight until the session ends.
void repeat(const Fd& socket, const Request& request, std::span<const int> fds) {
  uint32_t asked = 0;
  for (uint32_t answered = 0;;) {
    const auto bytes = ipc::encode(ipc::ClientRequest{asked + 1, request.body});
    Status sent = Error{ErrorCode::kBusy, ""};
    if (asked - answered < kPipelined) sent = ipc::send_datagram(socket.get(), bytes, fds);
    if (sent) {
      ++asked;
      continue;
    }
    if (sent.error().code != ErrorCode::kBusy || !wait_for(socket, POLLIN)) return;
    const auto answer = ipc::receive_datagram(socket.get());
    if (!answer) return;
    if (!answer->has_value()) continue;
    ++answered;
    ++answers;
  }
}

[[noreturn]] void flood(const std::string& path, const Request& request) {
  const std::vector<Fd> payload = payload_of(request);
  std::vector<int> fds;
  for (const Fd& fd : payload) fds.push_back(fd.get());
  for (;;) {
    if (const Fd socket = greeted(path); socket.valid()) repeat(socket, request, fds);
  }
}

class Flood {
 public:
  explicit Flood(const std::function<void()>& body) {
    for (int i = 0; i < kFlooders; ++i) {
      const pid_t child = ::fork();
      if (child == 0) {
        // The process keeps its group, which may connect. The signal is set last, because a change
        // of user clears it.
        if (::setresuid(kFloodingUser, kFloodingUser, kFloodingUser) == 0 &&
            ::prctl(PR_SET_PDEATHSIG, SIGKILL) == 0) {
          body();
        }
        ::_exit(1);
      }
      children_.push_back(child);
    }
  }
  Flood(const Flood&) = delete;
  Flood& operator=(const Flood&) = delete;
  ~Flood() {
    for (const pid_t child : children_) ::kill(child, SIGKILL);
    for (const pid_t child : children_) ::waitpid(child, nullptr, 0);
  }

 private:
  std::vector<pid_t> children_;
};

// --- the user beside it

// While it lives, this process connects as the user.
class ActingAs {
 public:
  explicit ActingAs(uid_t user) {
    if (::seteuid(user) != 0) ::abort();
  }
  ActingAs(const ActingAs&) = delete;
  ActingAs& operator=(const ActingAs&) = delete;
  ~ActingAs() {
    if (::seteuid(0) != 0) ::abort();
  }
};

struct Times {
  std::vector<double> connect_ms, status_ms;
};

double p99(std::vector<double> values) {
  const auto at = values.begin() + static_cast<ptrdiff_t>(values.size() * 99 / 100);
  std::ranges::nth_element(values, at);
  return *at;
}

void sample(const DaemonProcess& daemon, client::Client& observer, Times& times) {
  const ActingAs neighbour(kNeighbour);
  const auto time = [](std::vector<double>& out, const auto& call) {
    const auto begin = steady_clock::now();
    call();
    out.push_back(std::chrono::duration<double>(steady_clock::now() - begin).count() * 1e3);
  };
  for (int i = 0; i < kSamples; ++i) {
    time(times.connect_ms, [&] { benchmark::DoNotOptimize(daemon.connect()); });
    time(times.status_ms, [&] { benchmark::DoNotOptimize(observer.status()); });
  }
}

bool answered_beyond(uint64_t count) {
  for (int i = 0; i < kPatienceMs && answers <= count; ++i) ::poll(nullptr, 0, 1);
  return answers > count;
}

struct Kind {
  std::string name;
  std::function<void()> body;
};

// The two arms alternate, so each sample of one has a sample of the other near it in time. A
// percentile is of all rounds.
void flooded(benchmark::State& state) {
  if (::geteuid() != 0) return state.SkipWithError("needs root, to be two users");
  const DaemonProcess daemon({"--socket-group", "root"});
  std::filesystem::permissions(daemon.directory(), std::filesystem::perms::all);
  const std::string path = daemon.socket_path();
  std::vector<Kind> kinds{{"hello", [&] { reconnect(path); }}};
  for (const Request& request : requests()) {
    kinds.push_back({request.name, [&path, request] { flood(path, request); }});
  }
  const auto observer = [&] {
    const ActingAs neighbour(kNeighbour);
    return daemon.connect(true);
  }();
  for (auto _ : state) {
    Times alone;
    std::vector<Times> beside(kinds.size());
    for (size_t i = 0; i < kRounds * kinds.size(); ++i) {
      const size_t kind = i % kinds.size();
      sample(daemon, *observer, alone);
      answers = 0;
      const Flood flood(kinds[kind].body);
      const bool began = answered_beyond(kFlooders);  // they say hello first
      const uint64_t before = answers;
      sample(daemon, *observer, beside[kind]);
      if (began && answered_beyond(before)) continue;
      return state.SkipWithError(("nobody floods with " + kinds[kind].name).c_str());
    }
    const auto judge = [&](const char* what, std::vector<double> Times::*arm) {
      const auto of_kind = [&](const Times& times) { return p99(times.*arm); };
      const auto worst = std::ranges::max_element(beside, {}, of_kind);
      const double alone_ms = of_kind(alone);
      const std::string name(what);
      state.counters[name + "_alone_ms"] = alone_ms;
      state.counters[name + "_ms"] = of_kind(*worst);
      state.counters[name + "_over_ms"] = of_kind(*worst) - 2 * alone_ms;
      return name + ": " + kinds[static_cast<size_t>(worst - beside.begin())].name;
    };
    state.SetLabel("worst " + judge("connect", &Times::connect_ms) + ", " +
                   judge("status", &Times::status_ms));
  }
}
BENCHMARK(flooded)
    ->Name("flooded_neighbour")
    ->Iterations(1)
    ->Repetitions(1)
    ->Unit(benchmark::kSecond);

}  // namespace
}  // namespace djinn::bench
