// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/host.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "libdjinn-client/connect_advice.h"

namespace djinn::client {
namespace {

constexpr std::string_view kUnixScheme = "unix:";
constexpr std::string_view kSshScheme = "ssh://";
constexpr std::string_view kExecScheme = "exec:";
constexpr std::string_view kTlsScheme = "djinn://";
constexpr const char* kForms =
    "Name a socket as unix:PATH or a path from /, or another machine as ssh://USER@HOST or "
    "djinn://NAME.";

Error not_a_host(const std::string& text, const std::string& why) {
  return {ErrorCode::kInvalidArgument, "The host '" + text + "' " + why + ' ' + kForms};
}

// What ssh might take for an option, or a shell for more than a word, is no name.
bool is_name(std::string_view text) {
  constexpr std::string_view kOthers = "-._:%[]";
  return !text.empty() && text.front() != '-' && std::ranges::all_of(text, [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           kOthers.find(c) != std::string_view::npos;
  });
}

std::string_view scheme_of(HostKind kind) {
  return kind == HostKind::kSsh ? kSshScheme : kTlsScheme;
}

// Behind a scheme that leads to another machine.
Result<Host> parse_machine(const std::string& text, HostKind kind) {
  Host host{kind, {}, {}, 0, {}};
  std::string_view rest = std::string_view(text).substr(scheme_of(kind).size());
  if (rest.ends_with('/')) rest.remove_suffix(1);
  const size_t at = rest.rfind('@');
  const std::string_view user = at == std::string_view::npos ? "" : rest.substr(0, at);
  std::string_view name = at == std::string_view::npos ? rest : rest.substr(at + 1);
  const bool is_bracketed = name.starts_with('[');
  const size_t colon = name.rfind(':');
  const size_t bracket = name.rfind(']');
  if (!is_bracketed && name.find(':') != colon) {
    return not_a_host(text, "has an address with colons, which stands in brackets.");
  }
  if (colon != std::string_view::npos && (!is_bracketed || colon > bracket)) {
    const std::string_view port = name.substr(colon + 1);
    const auto read = std::from_chars(port.data(), port.data() + port.size(), host.port);
    if (read.ec != std::errc() || read.ptr != port.data() + port.size() || host.port == 0) {
      return not_a_host(text, "has no port number behind its colon.");
    }
    name = name.substr(0, colon);
  }
  if (is_bracketed) {
    if (!name.ends_with(']')) return not_a_host(text, "has a bracket that is not closed.");
    name = name.substr(1, name.size() - 2);
  }
  if (!is_name(name) || (at != std::string_view::npos && !is_name(user))) {
    return not_a_host(text, "has no name of a machine, or one that ssh cannot take.");
  }
  if (kind == HostKind::kTls && at != std::string_view::npos) {
    return not_a_host(text, "names a user: who comes there is named by the certificate.");
  }
  host.destination = user.empty() ? std::string(name) : std::string(user) + '@' + std::string(name);
  return host;
}

Result<Host> parse_exec(const std::string& text) {
  const char* const allowed = ::getenv("DJINN_ALLOW_EXEC");
  if (allowed == nullptr || std::string_view(allowed) != "1") {
    return Error{ErrorCode::kPermissionDenied,
                 "A host that begins with exec: runs a command of its own. Set "
                 "DJINN_ALLOW_EXEC=1 if you mean that."};
  }
  const std::string command = text.substr(kExecScheme.size());
  if (command.empty()) return not_a_host(text, "has no command.");
  return Host{HostKind::kExec, {}, {}, 0, command};
}

}  // namespace

std::string Host::text() const {
  switch (kind) {
    case HostKind::kUnix:
      return std::string(kUnixScheme) + path;
    case HostKind::kSsh:
    case HostKind::kTls: {
      const size_t at = destination.rfind('@');
      const std::string user = at == std::string::npos ? "" : destination.substr(0, at + 1);
      const std::string name = destination.substr(at == std::string::npos ? 0 : at + 1);
      const bool is_address = name.find(':') != std::string::npos;
      return std::string(scheme_of(kind)) + user + (is_address ? '[' + name + ']' : name) +
             (port != 0 ? ':' + std::to_string(port) : "");
    }
    case HostKind::kExec:
      break;
  }
  return std::string(kExecScheme) + command;
}

Result<Host> parse_host(const std::string& text) {
  if (text.starts_with('/')) return Host{HostKind::kUnix, text, {}, 0, {}};
  if (text.starts_with(kUnixScheme) && text.size() > kUnixScheme.size()) {
    return Host{HostKind::kUnix, text.substr(kUnixScheme.size()), {}, 0, {}};
  }
  if (text.starts_with(kSshScheme)) return parse_machine(text, HostKind::kSsh);
  if (text.starts_with(kTlsScheme)) return parse_machine(text, HostKind::kTls);
  if (text.starts_with(kExecScheme)) return parse_exec(text);
  return not_a_host(text, "has no form of one.");
}

Result<Host> resolve_host(const std::string& host) {
  const char* const from_environment = ::getenv("DJINN_HOST");
  if (!host.empty()) return parse_host(host);
  if (from_environment != nullptr && *from_environment != '\0') {
    auto parsed = parse_host(from_environment);
    if (parsed) return parsed;
    return Error{parsed.error().code, "In DJINN_HOST: " + parsed.error().message};
  }
  const auto at = [](std::string path) {
    return Host{HostKind::kUnix, std::move(path), {}, 0, {}};
  };
  const char* const runtime = ::getenv("XDG_RUNTIME_DIR");
  const std::string of_user = runtime ? std::string(runtime) + "/djinn/djinnd.sock" : "";
  if (!of_user.empty() && ::access(of_user.c_str(), F_OK) == 0) return at(of_user);
  // If there is no socket of either, the host is the service's if systemd would start it.
  const bool is_there = ::access(kServiceSocket, F_OK) == 0 || service_is_installed();
  return at(of_user.empty() || is_there ? kServiceSocket : of_user);
}

Result<std::string> profiles_folder() {
  const char* const config = ::getenv("XDG_CONFIG_HOME");
  if (config != nullptr && *config == '/') return std::string(config) + "/djinn/hosts";
  const char* const home = ::getenv("HOME");
  if (home != nullptr && *home == '/') return std::string(home) + "/.config/djinn/hosts";
  return Error{ErrorCode::kInvalidArgument,
               "Neither HOME nor XDG_CONFIG_HOME says where profiles of hosts are. Set one."};
}

}  // namespace djinn::client
