// SPDX-License-Identifier: Apache-2.0

// What to do where djinnd cannot be connected to: it does not run, or its socket is not for this
// user.
#pragma once

#include <string>

#include "kernel/base/error.h"

namespace djinn::client {

// Where the service listens.
inline constexpr const char* kServiceSocket = "/run/djinn/djinnd.sock";

// Whether the service is installed here: systemd starts it.
[[nodiscard]] bool service_is_installed();

// is_service: the socket would be the service's.
[[nodiscard]] Error nobody_answers(const std::string& path, bool is_service);

// What answers is no djinnd of this version. what: a sentence.
[[nodiscard]] Error not_as_djinnd_answers(ErrorCode code, const std::string& what);

// A user who may not connect to a socket, and the group that may.
struct Stranger {
  std::string user;    // empty: unknown
  std::string group;   // empty: unknown, or no group may
  bool is_in = false;  // the group has them as a member, since this login began
};
[[nodiscard]] Error not_allowed(const std::string& path, const Stranger& who);
// What this process is to the socket at path. Asks the system's databases.
[[nodiscard]] Stranger stranger_to(const std::string& path);

}  // namespace djinn::client
