// SPDX-License-Identifier: Apache-2.0

// Screen: the terminal taken over for a live view: its alternate screen, no echo, keys one by one.
// What was there before comes back when this goes, however the command ends.
#pragma once

#include <optional>
#include <string_view>

#include "libdjinn-client/client.h"

namespace djinn::ctl {

class Screen {
 public:
  // Errors: kUnsupported unless stdin and stdout are a terminal that takes escape codes.
  static Result<Screen> open();
  ~Screen();
  Screen(Screen&& other) noexcept;
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;
  Screen& operator=(Screen&&) = delete;

  struct Size {
    size_t columns = 80;
    size_t rows = 24;
  };
  [[nodiscard]] Size size() const;
  // Shows the text from the top; lines that do not fit are cut.
  [[nodiscard]] Status show(std::string_view text) const;
  // The next key; nothing after so long without one, or when the terminal's size has changed. 'q'
  // at the end of the input.
  [[nodiscard]] std::optional<char> key(int timeout_ms) const;

 private:
  Screen() = default;
  bool owns_ = true;
};

// For who ends the process at once: gives the terminal back if a Screen has it. May be called in a
// signal handler.
void give_terminal_back();

}  // namespace djinn::ctl
