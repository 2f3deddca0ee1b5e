#include "djinnctl/screen.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "djinnctl/output.h"
#include "djinnctl/text.h"

namespace djinn::ctl {
namespace {

constexpr std::string_view kEnter = "\x1b[?1049h\x1b[?25l";  // alternate screen, no cursor
constexpr std::string_view kLeave = "\x1b[?25h\x1b[?1049l";

termios before{};  // for the signal handler, which can be given nothing else

// Only what is safe in a signal handler.
void restore() {
  [[maybe_unused]] const ssize_t written = ::write(STDOUT_FILENO, kLeave.data(), kLeave.size());
  ::tcsetattr(STDIN_FILENO, TCSANOW, &before);
}

[[noreturn]] void ended(int number) {
  restore();
  ::signal(number, SIG_DFL);
  ::raise(number);
  ::_exit(128 + number);
}

}  // namespace

Result<Screen> Screen::open() {
  const char* const kind = ::getenv("TERM");
  const bool dumb = kind == nullptr || std::string_view(kind) == "dumb";
  if (dumb || ::isatty(STDOUT_FILENO) == 0 || ::tcgetattr(STDIN_FILENO, &before) != 0) {
    return Error{ErrorCode::kUnsupported, "This is no terminal for a live view. Use --batch."};
  }
  termios keys = before;
  keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  keys.c_cc[VMIN] = 0;
  keys.c_cc[VTIME] = 0;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::signal(number, ended);
  struct sigaction resized {};
  resized.sa_handler = [](int) {};  // without SA_RESTART: poll() ends
  ::sigaction(SIGWINCH, &resized, nullptr);
  if (::tcsetattr(STDIN_FILENO, TCSANOW, &keys) != 0)
    return system_error("set the terminal", errno);
  DJINN_CHECK(write_out(kEnter));
  return Screen();
}

Screen::Screen(Screen&& other) noexcept : owns_(std::exchange(other.owns_, false)) {}

Screen::~Screen() {
  if (owns_) restore();
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
  pollfd input{STDIN_FILENO, POLLIN, 0};
  if (::poll(&input, 1, timeout_ms) <= 0) return std::nullopt;
  char key = 0;
  return ::read(STDIN_FILENO, &key, 1) == 1 ? key : 'q';
}

}  // namespace djinn::ctl
