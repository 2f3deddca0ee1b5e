// SPDX-License-Identifier: Apache-2.0

// What the configuration files amount to, as djinnd itself reads them: `djinnd --show-config` is
// run, so that there is one parser and djinnctl never says anything else than djinnd would do.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "libdjinn-client/client.h"

namespace djinn::ctl {

struct ShownSetting {
  std::string key;
  std::string value;
  std::string origin;                     // "FILE:LINE"; empty: the standard
  std::optional<std::string> in_force{};  // in the djinnd that runs, as far as that is known
  bool reloads = false;                   // a reload takes up what is written
  bool is_hidden = false;                 // a section: djinnd tells administrators what is in force
  bool is_missing = false;                // a section's: nothing is in force for it
  // Whether another value is in force, or none.
  [[nodiscard]] bool is_pending() const { return is_missing || (in_force && *in_force != value); }
};

// Lines as djinnd prints them: "KEY = VALUE  # ORIGIN". Errors: kMalformed.
Result<std::vector<ShownSetting>> parse_shown_config(const std::string& text);

// root: stands before the paths of the files; "" for none. What is wrong with them djinnd says on
// stderr. Errors: kNotFound when djinnd is not installed here, kMalformed when it would not start
// so.
Result<std::vector<ShownSetting>> read_shown_config(const std::string& root);

// Notes what is in force, or that it is not told to who asks, and adds what is and is not written
// any more: its value is empty. report: of the djinnd that runs.
void compare_with(const ipc::StatusReport& report, std::vector<ShownSetting>& settings);

}  // namespace djinn::ctl
