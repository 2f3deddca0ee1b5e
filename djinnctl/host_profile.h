// SPDX-License-Identifier: Apache-2.0

// Host profile: what a gate's authority gives to somebody who may come in, as one file of text:
// where the gate is and what it is called, then certificates and a key. It is looked at as text,
// so that what cannot be one is refused where it is added; who connects judges the certificates.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "libdjinn-client/client.h"

namespace djinn::ctl {

inline constexpr uint64_t kProfileBytesMax = 65536;

struct HostProfile {
  std::string address;  // HOST:PORT
  std::string gate;     // its principal
};

// Errors: kMalformed, with what is wrong. what: the file's name, for that.
Result<HostProfile> parse_host_profile(std::string_view text, const std::string& what);

// What stands behind djinn://. Error: kInvalidArgument.
Status check_host_name(std::string_view name);
// The address's host; of an IPv6 address, empty.
[[nodiscard]] std::string name_from(const HostProfile& profile);

// Replaces a profile of the same gate. Errors: kAlreadyExists for another gate's, kMalformed for
// one that is none; what the system said.
Status install_host_profile(const std::string& folder, const std::string& name,
                            std::string_view text, const HostProfile& profile);

}  // namespace djinn::ctl
