// SPDX-License-Identifier: Apache-2.0

// Owner: who pays for memory, whose sessions and models they are, and whose graphs share a worker
// (a trust domain is named by its owner).
//
//   below 2^32    a local user: their user id. No process has the largest one.
//   2^63 and up   a principal, who comes from another machine: the top bit, and 63 bits of a digest
//                 of their name (daemon/djinnd/access/principals.h)
//   kNobody       no owner's; what has none yet
//
// A user id, the kernel's notion of a peer or of a file's owner, becomes an owner in of_user(), and
// nowhere else: what was judged by one is never mistaken for the other. No digest makes a local
// user's.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>

namespace djinn {

class Owner {
 public:
  constexpr Owner() noexcept = default;
  static constexpr Owner of_user(uint32_t uid) noexcept { return Owner(uid); }
  static constexpr Owner of_principal(uint64_t digest) noexcept {
    return Owner(digest | kPrincipals);
  }
  // Reads back what number() gave. Nothing: the number is no owner's.
  static constexpr std::optional<Owner> of_number(uint64_t number) noexcept {
    const bool is_owner = number < kUsersEnd || number >= kPrincipals;
    return is_owner ? std::optional(Owner(number)) : std::nullopt;
  }

  [[nodiscard]] constexpr bool valid() const noexcept { return number_ != kNobody; }
  // The user id of a local user; nothing: it is no local user.
  [[nodiscard]] constexpr std::optional<uint32_t> user() const noexcept {
    return number_ < kUsersEnd ? std::optional(static_cast<uint32_t>(number_)) : std::nullopt;
  }
  [[nodiscard]] constexpr bool is_principal() const noexcept { return number_ >= kPrincipals; }
  [[nodiscard]] constexpr uint64_t number() const noexcept { return number_; }
  friend constexpr auto operator<=>(const Owner&, const Owner&) noexcept = default;

 private:
  static constexpr uint64_t kUsersEnd = uint64_t{1} << 32;
  static constexpr uint64_t kPrincipals = uint64_t{1} << 63;
  static constexpr uint64_t kNobody = kUsersEnd;

  explicit constexpr Owner(uint64_t number) noexcept : number_(number) {}

  uint64_t number_ = kNobody;
};

}  // namespace djinn
