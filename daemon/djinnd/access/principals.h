// SPDX-License-Identifier: Apache-2.0

// Principals: the owners who come from other machines, whom djinn-gate names.
//
//   name     spiffe://DOMAIN/PATH (ipc/principal.h), as the certificate says it
//   number   the owner's: the top bit, and 63 bits of the name's SHA-256; the same after a restart
//
// invariant: of two names with one number the first alone is let in, so an owner is one principal.
// A name is kept as long as there is room, or its owner has something here.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "kernel/base/owner.h"
#include "kernel/base/result.h"

namespace djinn::daemon {

class Principals {
 public:
  // Names that are kept; then those are forgotten whose owners have nothing here.
  static constexpr size_t kKnownMax = 4096;
  // Bits of a name's digest.
  using Digest = std::function<Result<uint64_t>(std::string_view name)>;
  static Result<uint64_t> sha256_of(std::string_view name);

  explicit Principals(Digest digest = sha256_of) : digest_(std::move(digest)) {}

  // Who has something here: a session, a model, a worker, or a place for one that has ended.
  void on_full(std::function<std::set<Owner>()> who_is_here) {
    who_is_here_ = std::move(who_is_here);
  }
  // The owner of that name. Errors: kInvalidArgument (no name of a principal), kPermissionDenied (a
  // gate's, or one whose number another name has), kLimitExceeded.
  Result<Owner> take_in(std::string_view name);
  // Empty for others than principals, and for one whose name nobody has said yet.
  [[nodiscard]] std::string name_of(Owner owner) const;

 private:
  Digest digest_;
  std::function<std::set<Owner>()> who_is_here_ = [] { return std::set<Owner>(); };
  std::map<Owner, std::string> names_;
};

}  // namespace djinn::daemon
