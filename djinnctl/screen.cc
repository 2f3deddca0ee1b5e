// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/screen.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "djinnctl/output.h"
#include "djinnctl/text.h"

namespace djinn::ctl {
namespace {

constexpr std::string_view kEnter = "\x1b[?1049h\x1b[?25l";  // alternate screen, no cursor
constexpr std::string_view kLeave = "\x1b[?25h\x1b[?1049l";

// These are globals because nothing can be passed to signal handlers.
termios mode_before{};
termios keys{};
std::atomic<bool> has_terminal = false;
std::atomic<bool> is_stale = false;  // what was shown is not there any more
static_assert(std::atomic<bool>::is_always_lock_free);

// Runs in signal handlers, as all of these do, and calls only what is safe there.
void say(std::string_view codes) {
  [[maybe_unused]] const ssize_t written = ::write(STDOUT_FILENO, codes.data(), codes.size());
}

void call_at(int number, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_NODEFER;  // who raises it again means it; without SA_RESTART: poll() ends
  ::sigaction(number, &action, nullptr);
}

[[noreturn]] void ended(int number) {
  give_terminal_back();
  ::signal(number, SIG_DFL);
  ::raise(number);
  ::_exit(128 + number);
}

// After Ctrl-Z the shell has the terminal until this process goes on. Without a shell it goes on at
// once.
void paused(int number) {
  const int error = errno;
  give_terminal_back();
  ::signal(number, SIG_DFL);
  ::raise(number);
  call_at(number, paused);
  has_terminal = true;
  is_stale = true;
  ::tcsetattr(STDIN_FILENO, TCSANOW, &keys);
  say(kEnter);
  errno = error;
}

}  // namespace

void give_terminal_back() {
  if (!has_terminal) return;
  say(kLeave);
  ::tcsetattr(STDIN_FILENO, TCSANOW, &mode_before);
  has_terminal = false;  // last: another signal may come in between
}

Result<Screen> Screen::open() {
  if (!terminal_of(STDOUT_FILENO).takes_escapes || ::tcgetattr(STDIN_FILENO, &mode_before) != 0) {
    return Error{ErrorCode::kUnsupported, "This is no terminal for a live view. Use --batch."};
  }
  keys = mode_before;
  keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  keys.c_cc[VMIN] = 0;
  keys.c_cc[VTIME] = 0;
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) call_at(number, ended);
  call_at(SIGTSTP, paused);
  call_at(SIGWINCH, [](int) { is_stale = true; });
  has_terminal = true;
  if (::tcsetattr(STDIN_FILENO, TCSANOW, &keys) != 0) {
    has_terminal = false;
    return system_error("set the terminal", errno);
  }
  Screen screen;
  DJINN_CHECK(write_out(kEnter));
  return screen;
}

Screen::Screen(Screen&& other) noexcept : owns_(std::exchange(other.owns_, false)) {}

Screen::~Screen() {
  if (owns_) give_terminal_back();
}

Screen::Size Screen::size() const {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return {};
  return {size.ws_col, size.ws_row};
}

Status Screen::show(std::string_view text) const {
  const Size size = this->size();
  std::string out = "\x1b[H";
  for (size_t row = 0; row < size.rows && !text.empty(); ++row) {
    const size_t end = std::min(text.find('\n'), text.size());
    if (row > 0) out += "\r\n";
    out += cut(text.substr(0, end), size.columns);
    out += "\x1b[K";
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return write_out(out + "\x1b[J");
}

std::optional<char> Screen::key(int timeout_ms) const {
  sigset_t handled;
  sigset_t usual;
  ::sigemptyset(&handled);
  ::sigaddset(&handled, SIGTSTP);
  ::sigaddset(&handled, SIGWINCH);
  ::sigprocmask(SIG_BLOCK, &handled, &usual);  // or one could come between the look and the wait
  pollfd input{STDIN_FILENO, POLLIN, 0};
  const timespec timeout{timeout_ms / 1000, timeout_ms % 1000 * 1'000'000L};
  const int ready = is_stale.exchange(false) ? 0 : ::ppoll(&input, 1, &timeout, &usual);
  ::sigprocmask(SIG_SETMASK, &usual, nullptr);
  if (ready <= 0) return std::nullopt;
  char key = 0;
  return ::read(STDIN_FILENO, &key, 1) == 1 ? key : 'q';
}

}  // namespace djinn::ctl
