// SPDX-License-Identifier: Apache-2.0

// Names: who may be named in a certificate, and how. There is no second way to write one name.
//
//   trust domain   whose names these are; lower-case, as SPIFFE has it
//   name           a client's, or "djinn-gate/HOST": segments with / between them
//   principal      spiffe://TRUST_DOMAIN/NAME (ipc/principal.h)
//   address        where a gate listens: HOST:PORT
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ipc/gate_port.h"
#include "kernel/base/result.h"

namespace djinn::authority {

inline constexpr std::string_view kGatePrefix = "djinn-gate/";

// Errors of all: kInvalidArgument.
Status check_trust_domain(std::string_view domain);
// Of a client: it may not call itself a gate. domain: checked.
Status check_client_name(std::string_view domain, std::string_view name);
// The name of the gate of a host, checked likewise.
Result<std::string> gate_name(std::string_view domain, std::string_view host);

[[nodiscard]] std::string principal_of(std::string_view domain, std::string_view name);

struct Address {
  std::string host;  // without brackets
  uint16_t port = ipc::kGatePort;
  bool is_number = false;  // of IPv4 or IPv6; a certificate names none

  // "HOST:PORT", "[2001:db8::1]:PORT".
  [[nodiscard]] std::string text() const;
};
// HOST, HOST:PORT, [IPV6]:PORT, or an address of IPv6 alone.
Result<Address> parse_address(std::string_view text);

}  // namespace djinn::authority
