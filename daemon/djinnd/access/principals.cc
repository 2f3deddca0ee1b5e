// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/access/principals.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "ipc/principal.h"
#include "kernel/load/hash.h"

namespace djinn::daemon {

Result<uint64_t> Principals::sha256_of(std::string_view name) {
  DJINN_TRY(load::Sha256 hash, load::Sha256::make());
  DJINN_CHECK(hash.update(std::as_bytes(std::span(name))));
  DJINN_TRY(const load::Digest digest, hash.finish());
  uint64_t bits = 0;
  for (size_t i = 0; i < sizeof bits; ++i) bits = bits << 8 | static_cast<uint64_t>(digest[i]);
  return bits;
}

Result<Owner> Principals::take_in(std::string_view name) {
  const auto principal = ipc::Principal::parse(name);
  if (!principal) return principal.error();
  if (principal->is_gate()) {
    return Error{ErrorCode::kPermissionDenied, "The name is a djinn-gate's, and no client's."};
  }
  DJINN_TRY(const uint64_t digest, digest_(name));
  const Owner owner = Owner::of_principal(digest);
  const auto known = names_.find(owner);
  if (known != names_.end()) {
    if (known->second == name) return owner;
    return Error{
        ErrorCode::kPermissionDenied,
        "Another name has the same number here, and came before. Enrol under another one."};
  }
  if (names_.size() >= kKnownMax) {
    const std::set<Owner> here = who_is_here_();
    std::erase_if(names_, [&](const auto& entry) { return !here.contains(entry.first); });
  }
  if (names_.size() >= kKnownMax) {
    return Error{ErrorCode::kLimitExceeded,
                 fmt::format("{} principals have something here, or had a worker since djinnd was "
                             "started, and there is room for no more until it is started anew.",
                             kKnownMax)};
  }
  names_.emplace(owner, name);
  return owner;
}

std::string Principals::name_of(Owner owner) const {
  const auto known = names_.find(owner);
  return known == names_.end() ? std::string() : known->second;
}

}  // namespace djinn::daemon
