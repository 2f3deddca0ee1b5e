// SPDX-License-Identifier: Apache-2.0

// Progress: how far a piece of work is, as one line on a terminal that is rewritten in place:
//
//   llama-3.2-1b   45%  [######........]  1.2 GiB/2.5 GiB  350 MiB/s  4s left
//
// It goes to stderr, and nowhere when that is no terminal, or a dumb one: a log wants no such
// lines. The bar takes the columns that the rest leaves; a narrow terminal has none.
//
//   label   what is worked at, as people call it
//   rate    bytes a second since the first look
#pragma once

#include <cstdint>
#include <string>

#include "djinnctl/output.h"

namespace djinn::ctl {

struct ProgressLook {
  uint64_t done_bytes = 0;
  uint64_t total_bytes = 0;  // 0: not known yet
  uint64_t now_ns = 0;       // of a clock that does not jump
};

// One thread at a time.
class Progress {
 public:
  // terminal: of stderr, or none to show nothing.
  Progress(std::string label, const Terminal& terminal);
  ~Progress() { finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(const ProgressLook& look);
  // Leaves an empty line, with the cursor at its beginning.
  void finish();

  // The line for a look; at most one column less than columns, so that no terminal wraps it.
  [[nodiscard]] static std::string line(const std::string& label, const ProgressLook& first,
                                        const ProgressLook& now, size_t columns);

 private:
  std::string label_;
  size_t columns_;  // 0: nothing is shown
  bool begun_ = false;
  ProgressLook first_;
};

}  // namespace djinn::ctl
