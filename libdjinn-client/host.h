// SPDX-License-Identifier: Apache-2.0

// Host: where a djinnd is, on this machine or on another one.
//
//   unix:PATH, /PATH        its socket, on this machine
//   ssh://[USER@]HOST[:PORT]  djinn-gate there, started by ssh
//   djinn://NAME[:PORT]       djinn-gate there, at its door on the network; NAME is that of a
//                             profile (reach/profile.h), which has the address and certificates
//   exec:COMMAND            what COMMAND, run by sh, says by its standard input and output: for
//                           tests, and only where DJINN_ALLOW_EXEC=1
#pragma once

#include <cstdint>
#include <string>

#include "kernel/base/result.h"

namespace djinn::client {

enum class HostKind : uint8_t { kUnix, kSsh, kTls, kExec };

struct Host {
  HostKind kind = HostKind::kUnix;
  std::string path;         // kUnix
  std::string destination;  // kSsh: [USER@]HOST; kTls: NAME
  uint16_t port = 0;        // kSsh, kTls; 0: as ssh, or the profile, has it
  std::string command;      // kExec

  // On another machine, or as if it were: djinn-reach speaks to it.
  [[nodiscard]] bool is_far() const { return kind != HostKind::kUnix; }
  // As a user writes it; parse_host() gives the same one back.
  [[nodiscard]] std::string text() const;
  friend bool operator==(const Host&, const Host&) = default;
};

// text: not empty. Errors: kInvalidArgument, kPermissionDenied (exec: without DJINN_ALLOW_EXEC=1).
Result<Host> parse_host(const std::string& text);

// Where options or the environment say that djinnd is; empty: DJINN_HOST, else the user's daemon,
// else the system's. Errors: those of parse_host().
Result<Host> resolve_host(const std::string& host);

// Where this user has profiles of hosts, each as NAME.pem (reach/profile.h). Error:
// kInvalidArgument where the environment does not say.
Result<std::string> profiles_folder();

}  // namespace djinn::client
