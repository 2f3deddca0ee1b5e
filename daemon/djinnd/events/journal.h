// SPDX-License-Identifier: Apache-2.0

// Journal: where djinnd's lines and events go: to systemd's journal with fields, where stderr leads
// there; else to stderr, a line each.
//
// Each kind of event has a MESSAGE_ID, which packaging/journal/djinnd.catalog explains, and the
// fields DJINN_SESSION, DJINN_MODEL (12 hex digits), DJINN_DEVICE, DJINN_BYTES, DJINN_ERROR,
// DJINN_USER (a number), DJINN_PATH, DJINN_REASON as far as they apply.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "daemon/djinnd/events/events.h"
#include "daemon/djinnd/loop/background.h"

namespace djinn::daemon {

// 32 hex digits.
[[nodiscard]] std::string_view message_id_of(EventKind kind);

// The journal's fields of an event, "NAME=value" each. Pure.
[[nodiscard]] std::vector<std::string> journal_fields(const Event& event);

// Loop's thread. Another thread hands the lines to journald, which may be slow to take them: lines
// that find no place meanwhile are lost, counted, and told of as soon as there is place again.
class Journal {
 public:
  // Some minutes of a busy machine, as for Events::kRecent, and more.
  static constexpr size_t kBacklogMax = 4096;

  Journal();
  // It never fails aloud: a log that cannot be written has nobody to tell.
  void write(const Event& event);

  [[nodiscard]] uint64_t lost() const { return thread_.lost(); }

 private:
  bool is_connected_;
  uint64_t lost_told_ = 0;
  Background thread_;
};

}  // namespace djinn::daemon
