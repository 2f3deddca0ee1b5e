// SPDX-License-Identifier: Apache-2.0

// djinn-reach: the near side of remote sessions, for one program and one host. libdjinn-client
// starts it.
//
//   djinn-reach --door-fd N HOST
//
// Each datagram of the door brings the end of a session's control socket. It ends when the door is
// closed and no session is left, and when the far side is gone.

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include "libdjinn-client/reach/reach.h"

namespace djinn::reach {
namespace {

// Whoever started it does not have to wait for it. The terminal's keys, and its end, are the
// program's business, whose ssh may ask there for a password: this ends with the program.
void leave_starter(int door) {
  if (const pid_t child = ::fork(); child != 0) ::_exit(child > 0 ? 0 : 1);
  for (const int signal : {SIGINT, SIGQUIT, SIGTSTP, SIGHUP}) ::signal(signal, SIG_IGN);
  const Fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    ::dup2(null.get(), number);
  }
  // What the program has open is not to live on here.
  ::fcntl(door, F_SETFD, FD_CLOEXEC);
  if (door > STDERR_FILENO + 1)
    ::close_range(STDERR_FILENO + 1, static_cast<unsigned>(door) - 1, 0);
  ::close_range(static_cast<unsigned>(door) + 1, ~0u, 0);
}

}  // namespace
}  // namespace djinn::reach

int main(int argc, char** argv) {
  int door = -1;
  std::string host;
  CLI::App app("djinn-reach: sessions with a djinnd on another machine; libdjinn-client starts it");
  app.set_version_flag("--version", DJINN_VERSION);
  app.add_option("--door-fd", door, "socket to the program")->required();
  app.add_option("HOST", host, "as DJINN_HOST has it")->required();
  CLI11_PARSE(app, argc, argv);
  const auto parsed = djinn::client::parse_host(host);
  if (!parsed || !parsed->is_far() || door <= STDERR_FILENO) {
    fmt::print(stderr, "djinn-reach: {}\n",
               parsed ? "libdjinn-client starts this, for a host of another machine."
                      : parsed.error().message);
    return 2;
  }
  djinn::reach::leave_starter(door);
  ::unsetenv("DJINN_HOST");  // what is started next is there already
  djinn::reach::serve(djinn::Fd(door), *parsed);
  return 0;
}
