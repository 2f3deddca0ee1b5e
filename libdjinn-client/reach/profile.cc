// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/reach/profile.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "kernel/base/file.h"

namespace djinn::reach {
namespace {

constexpr uint64_t kBytesMax = 65536;
constexpr std::string_view kEndOfCertificate = "-----END CERTIFICATE-----";

std::optional<std::string> value_of(std::string_view text, std::string_view key) {
  while (!text.empty() && !text.starts_with("-----")) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.starts_with(key)) return std::string(line.substr(key.size()));
  }
  return std::nullopt;
}

Result<Profile> parse(const std::string& text, uint16_t port) {
  const auto malformed = [](const char* why) { return Error{ErrorCode::kMalformed, why}; };
  auto address = value_of(text, "address: ");
  const auto gate = value_of(text, "gate: ");
  if (!address || !gate) return malformed("It does not say where the gate is, and who.");
  auto name = ipc::Principal::parse(*gate);
  if (!name || !name->is_gate()) return malformed("It names no gate.");
  if (port != 0) address = address->substr(0, address->rfind(':') + 1) + std::to_string(port);
  const size_t end = text.find(kEndOfCertificate);
  if (end == std::string::npos) return malformed("It has no certificate.");
  const size_t others = end + kEndOfCertificate.size();
  const tls::Identity identity{text.substr(0, others), text, text.substr(others), {}};
  DJINN_TRY(auto context, tls::Context::make(tls::Side::kClient, identity, *std::move(name)));
  return Profile{*std::move(address), std::move(context)};
}

}  // namespace

Result<Profile> read_profile(const client::Host& host) {
  DJINN_TRY(const std::string folder, client::profiles_folder());
  const std::string path = folder + '/' + host.destination + ".pem";
  auto text = read_secret_file(path, kBytesMax);
  if (!text && text.error().code == ErrorCode::kNotFound) {
    return Error{ErrorCode::kNotFound,
                 "There is no profile of " + host.text() + " in " + folder +
                     ": who runs the gate there makes one ('djinnctl gate enrol'), and 'djinnctl "
                     "host add FILE' takes it."};
  }
  if (!text) return text.error();
  auto profile = parse(*text, host.port);
  if (profile) return profile;
  return Error{profile.error().code, "The profile " + path +
                                         " cannot be used: " + profile.error().message +
                                         " Ask who runs the gate for another one ('djinnctl gate "
                                         "enrol')."};
}

}  // namespace djinn::reach
