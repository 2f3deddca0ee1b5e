// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/dbus/bus_intake.h"

#include <errno.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace djinn::daemon {
namespace {

bool would_block() {
  return errno == EAGAIN || errno == EINTR;
}

// Gives the path as it is written in D-Bus addresses.
std::string escaped(std::string_view path) {
  std::string out;
  for (const char c : path) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '/' || c == '.' ||
                       c == '-' || c == '_';
    out += plain ? std::string(1, c) : fmt::format("%{:02x}", static_cast<unsigned char>(c));
  }
  return out;
}

// Gives the address that sd_bus_open_system() or sd_bus_open_user() would take; empty if there is
// none.
std::string address_of(BusKind kind) {
  const bool system = kind == BusKind::kSystem;
  const char* const given =
      ::secure_getenv(system ? "DBUS_SYSTEM_BUS_ADDRESS" : "DBUS_SESSION_BUS_ADDRESS");
  if (given != nullptr) return given;
  if (system) return "unix:path=/run/dbus/system_bus_socket";
  const char* const runtime = ::secure_getenv("XDG_RUNTIME_DIR");
  return runtime != nullptr ? fmt::format("unix:path={}/bus", escaped(runtime)) : std::string();
}

std::string unescaped(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    auto byte = static_cast<unsigned char>(text[i]);
    if (byte == '%' && i + 2 < text.size()) {
      std::from_chars(text.data() + i + 1, text.data() + i + 3, byte, 16);
      i += 2;
    }
    out += static_cast<char>(byte);
  }
  return out;
}

// Gives the value of a key in one address, as in "unix:path=/run/bus,guid=1".
std::string value_of(std::string_view address, std::string_view key) {
  constexpr std::string_view kUnix = "unix:";
  if (!address.starts_with(kUnix)) return {};
  address.remove_prefix(kUnix.size());
  while (!address.empty()) {
    const std::string_view pair = address.substr(0, address.find(','));
    if (pair.starts_with(key) && pair.substr(key.size()).starts_with('=')) {
      return unescaped(pair.substr(key.size() + 1));
    }
    address.remove_prefix(std::min(address.size(), pair.size() + 1));
  }
  return {};
}

// Connects to one address. Gives 0 or a negative errno.
int connect_at(std::string_view address, Fd& connected) {
  const std::string path = value_of(address, "path");
  const std::string abstract = value_of(address, "abstract");
  if (path.empty() && abstract.empty()) return -EAFNOSUPPORT;
  const std::string name = path.empty() ? '\0' + abstract : path;
  sockaddr_un place{};
  place.sun_family = AF_UNIX;
  if (name.size() >= sizeof place.sun_path) return -ENAMETOOLONG;
  ::memcpy(place.sun_path, name.data(), name.size());
  const size_t bytes =
      offsetof(sockaddr_un, sun_path) + name.size() + (path.empty() ? size_t{0} : size_t{1});
  connected = Fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!connected.valid()) return -errno;
  const auto* const raw = reinterpret_cast<const sockaddr*>(&place);
  return ::connect(connected.get(), raw, static_cast<socklen_t>(bytes)) < 0 ? -errno : 0;
}

// Connects to the first address at which somebody listens; ';' separates addresses.
int connect_to(std::string_view addresses, Fd& connected) {
  int failed = -ENOMEDIUM;
  while (!addresses.empty()) {
    const std::string_view one = addresses.substr(0, addresses.find(';'));
    failed = connect_at(one, connected);
    if (failed >= 0) return failed;
    addresses.remove_prefix(std::min(addresses.size(), one.size() + 1));
  }
  return failed;
}

}  // namespace

int BusIntake::pass_on() {
  if (passing_.empty()) {
    const ssize_t read = ::recv(bus_.get(), buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    if (read == 0) return -ECONNRESET;
    if (read < 0) return would_block() ? 0 : -errno;
    frames_.pass(std::span(buffer_).first(static_cast<size_t>(read)), passing_);
  }
  if (passing_.empty()) return 0;
  const ssize_t sent =
      ::send(to_.get(), passing_.data(), passing_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0) return would_block() ? 0 : -errno;
  passing_.erase(passing_.begin(), passing_.begin() + sent);
  return 0;
}

// sd-bus sends on the bus's socket itself, and the intake reads from it.
int connect_bus(BusKind kind, sd_bus* raw, std::unique_ptr<BusIntake>& intake) {
  const std::string address = address_of(kind);
  Fd sends;
  if (const int failed = connect_to(address, sends); failed < 0) return failed;
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) < 0) {
    return -errno;
  }
  Fd hears(ends[0]);
  Fd to(ends[1]);
  auto reads = sends.duplicate();
  auto passed = hears.duplicate();
  if (!reads || !passed) return -EMFILE;
  intake = std::make_unique<BusIntake>(*std::move(reads), std::move(to), *std::move(passed));
  const int failed = ::sd_bus_set_fd(raw, hears.get(), sends.get());
  if (failed < 0) return failed;
  static_cast<void>(hears.release());  // both are sd-bus's now
  static_cast<void>(sends.release());
  return 0;
}

}  // namespace djinn::daemon
