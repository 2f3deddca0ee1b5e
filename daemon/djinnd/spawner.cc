#include "daemon/djinnd/spawner.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "daemon/djinnd/background.h"
#include "ipc/socket.h"

namespace djinn::daemon {
namespace {

// It waits in start() until this is done, so that the thread may use what is the caller's.
struct Order {
  const Spawner::Program* program;
  pid_t pid = 0;
  int failed = 0;  // errno
};

std::vector<char*> pointers_to(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& text : strings) pointers.push_back(const_cast<char*>(text.data()));
  pointers.push_back(nullptr);
  return pointers;
}

void carry_out(Order& order, int channel) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, channel, Spawner::kChannelNumber);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  const Spawner::Program& program = *order.program;
  order.failed =
      ::posix_spawn(&order.pid, program.path.c_str(), &actions, &attributes,
                    pointers_to(program.arguments).data(), pointers_to(program.environment).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
}

// dup2 to its own number would leave close-on-exec set.
Fd away_from_channel_number(Fd fd) {
  if (fd.get() != Spawner::kChannelNumber) return fd;
  return Fd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, Spawner::kChannelNumber + 1));
}

// From here on the thread has a table of its own. False if it cannot be had.
bool keep_only(int fd) {
  if (::unshare(CLONE_FILES) != 0) return false;
  const auto first = static_cast<unsigned>(STDERR_FILENO + 1);
  const auto kept = static_cast<unsigned>(fd);
  if (kept > first && ::close_range(first, kept - 1, 0) != 0) return false;
  return ::close_range(kept + 1, ~0U, 0) == 0;
}

// Waits for the next message; none at the end.
std::optional<ipc::Datagram> next_message(int socket) {
  pollfd entry{socket, POLLIN, 0};
  while (::poll(&entry, 1, -1) < 0 && errno == EINTR) {
  }
  auto message = ipc::receive_datagram(socket);
  return message.ok() ? *std::move(message) : std::nullopt;
}

bool say(int socket, std::span<const std::byte> bytes) {
  return ipc::send_datagram(socket, bytes).ok();
}

// Its socket closes with the thread's table.
void serve(int socket) {
  const int unable = keep_only(socket) ? 0 : errno;
  bool goes_on = say(socket, std::as_bytes(std::span(&unable, 1))) && unable == 0;
  while (goes_on) {
    auto message = next_message(socket);
    if (!message || message->fds.size() != 1) return;
    Order* order = nullptr;
    memcpy(&order, message->bytes.data(), sizeof order);
    const Fd channel = away_from_channel_number(std::move(message->fds[0]));
    carry_out(*order, channel.get());
    goes_on = say(socket, message->bytes);
  }
}

Error unable_to_start(int why) {
  return system_error("have a thread that starts processes", why);
}

}  // namespace

Spawner::Spawner() {
  ready_ = make_thread();
}

Status Spawner::make_thread() {
  DJINN_TRY(ipc::SocketPair pair, ipc::make_socket_pair());
  DJINN_TRY(thread_, start_thread("spawner", [socket = pair.right.get()] { serve(socket); }));
  socket_ = std::move(pair.left);
  const auto answer = next_message(socket_.get());  // before that its end is ours, too
  int why = EPIPE;
  if (answer && answer->bytes.size() == sizeof why) memcpy(&why, answer->bytes.data(), sizeof why);
  if (why != 0) return unable_to_start(why);
  return {};
}

Spawner::~Spawner() {
  socket_.reset();
  if (thread_.joinable()) thread_.join();
}

Result<pid_t> Spawner::start(const Program& program, const Fd& channel) {
  DJINN_CHECK(ready_);
  Order order{&program};
  Order* const pointer = &order;
  const int fds[] = {channel.get()};
  DJINN_CHECK(ipc::send_datagram(socket_.get(), std::as_bytes(std::span(&pointer, 1)), fds));
  if (!next_message(socket_.get())) return unable_to_start(EPIPE);
  if (order.failed != 0) return system_error("start a child process", order.failed);
  return order.pid;
}

}  // namespace djinn::daemon
