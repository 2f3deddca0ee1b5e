// SPDX-License-Identifier: Apache-2.0

#include "daemon/gate/authority/names.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "ipc/principal.h"
#include "kernel/base/text.h"

namespace djinn::authority {
namespace {

constexpr std::string_view kScheme = "spiffe://";
constexpr size_t kDomainBytesMax = 200;  // leaves room for a name
constexpr size_t kHostBytesMax = 253;    // of a DNS name: RFC 1035, section 2.3.4
constexpr size_t kLabelBytesMax = 63;

Error wrong(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}

Status check_name(std::string_view domain, std::string_view name) {
  const std::string principal = principal_of(domain, name);
  if (principal.size() > ipc::kPrincipalBytesMax) {
    return wrong(
        fmt::format("That name has {} bytes with its trust domain, and at most {} are "
                    "read. Take a shorter one.",
                    principal.size(), ipc::kPrincipalBytesMax));
  }
  if (ipc::Principal::parse(principal)) return {};
  return wrong(fmt::format(
      "'{}' is no name that a certificate may have. It is made of A-Z, a-z, 0-9, '.', '_' and "
      "'-', with single '/' between its parts, none of which is '.' or '..'. Name somebody as "
      "'alice' or 'team/alice'.",
      showable(name)));
}

bool is_of_label(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-';
}

bool is_number(const std::string& host) {
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  return ::inet_pton(AF_INET, host.c_str(), bytes.data()) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), bytes.data()) == 1;
}

// Tells whether each label is one of RFC 1123 section 2.1, or has an underscore, as hosts of
// private networks do.
bool is_host_name(std::string_view host) {
  if (host.empty() || host.size() > kHostBytesMax) return false;
  for (size_t begin = 0; begin <= host.size();) {
    const size_t end = std::min(host.find('.', begin), host.size());
    const std::string_view label = host.substr(begin, end - begin);
    if (label.empty() || label.size() > kLabelBytesMax || label.front() == '-' ||
        label.back() == '-' || !std::ranges::all_of(label, is_of_label)) {
      return false;
    }
    begin = end + 1;
  }
  return true;
}

Error no_address(std::string_view text) {
  return wrong(
      fmt::format("'{}' is no address of a gate. Write HOST, HOST:PORT or [IPV6]:PORT; "
                  "without a port it is {}.",
                  showable(text), ipc::kGatePort));
}

}  // namespace

Status check_trust_domain(std::string_view domain) {
  const auto somebody = ipc::Principal::parse(principal_of(domain, "somebody"));
  if (somebody && somebody->domain() == domain && domain.size() <= kDomainBytesMax) return {};
  return wrong(fmt::format(
      "'{}' is no trust domain. One has 1 to {} bytes of a-z, 0-9, '.', '_' and '-', and begins "
      "with one of the first two. Name one with --trust-domain, such as 'gpu.example.org'.",
      showable(domain), kDomainBytesMax));
}

Status check_client_name(std::string_view domain, std::string_view name) {
  DJINN_CHECK(check_name(domain, name));
  if (!name.starts_with(kGatePrefix)) return {};
  return wrong(
      fmt::format("'{}' would be a gate's name, and who holds such a certificate passes "
                  "for that gate. Give clients names that do not begin with '{}'.",
                  name, kGatePrefix));
}

Result<std::string> gate_name(std::string_view domain, std::string_view host) {
  if (host.find('/') != std::string_view::npos || !check_name(domain, host)) {
    return wrong(
        fmt::format("This host is called '{}', which no certificate may say. Give it a "
                    "name of letters, digits, '.', '_' and '-' (hostnamectl).",
                    showable(host)));
  }
  std::string name = std::string(kGatePrefix).append(host);
  DJINN_CHECK(check_name(domain, name));
  return name;
}

std::string principal_of(std::string_view domain, std::string_view name) {
  return fmt::format("{}{}/{}", kScheme, domain, name);
}

std::string Address::text() const {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return is_ipv6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

Result<Address> parse_address(std::string_view text) {
  Address address{.host = std::string(text)};
  address.is_number = is_number(address.host);
  if (address.is_number) return address;
  std::string_view port;
  if (text.starts_with('[')) {
    const size_t end = text.find(']');
    if (end == std::string_view::npos) return no_address(text);
    address.host = text.substr(1, end - 1);
    port = text.substr(end + 1);
    if (address.host.find(':') == std::string::npos) return no_address(text);
  } else {
    const size_t colon = std::min(text.find(':'), text.size());
    address.host = text.substr(0, colon);
    port = text.substr(colon);
  }
  address.is_number = is_number(address.host);
  if (!address.is_number && !is_host_name(address.host)) return no_address(text);
  if (port.empty()) return address;
  port.remove_prefix(1);
  const auto [rest, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  const bool is_whole = error == std::errc() && rest == port.data() + port.size();
  if (!is_whole || address.port == 0 || text[text.size() - port.size() - 1] != ':') {
    return no_address(text);
  }
  return address;
}

}  // namespace djinn::authority
