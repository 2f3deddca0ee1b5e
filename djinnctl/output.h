// SPDX-License-Identifier: Apache-2.0

// Output: the two streams. Results go to stdout, everything else to stderr.
//
//   terminal   what a stream leads to, as far as looks depend on it
#pragma once

#include <string>
#include <string_view>

#include "libdjinn-client/client.h"

namespace djinn::ctl {

struct Terminal {
  bool is_terminal = false;
  bool rewrites_lines = false;  // unless TERM=dumb
  bool takes_escapes = false;   // neither NO_COLOR nor TERM=dumb forbids it
  size_t columns = 0;           // 0: no terminal, lines may be of any length
};
// fd: STDOUT_FILENO or STDERR_FILENO.
[[nodiscard]] Terminal terminal_of(int fd);

// Showable, and on a terminal with names that turn nothing else (text.h).
[[nodiscard]] std::string sentence_for(const Terminal& terminal, std::string_view sentence);

// All bytes, or an Error: a full disk must not look like success.
Status write_out(std::string_view text);
// May be called in a signal handler. Begins on a line of its own.
void write_error(std::string_view text);
// A line on stderr without its newline, which the next one replaces; "" leaves an empty one. At
// most one column less than the terminal has. On the thread that takes SIGALRM: its handler writes
// to stderr, too.
void rewrite_error_line(std::string_view line, size_t columns);

[[nodiscard]] bool out_is_terminal();

}  // namespace djinn::ctl
