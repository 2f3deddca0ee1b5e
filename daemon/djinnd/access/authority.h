// SPDX-License-Identifier: Apache-2.0

// Authority: who may see and steer what (ARCHITECTURE section 10). The socket and D-Bus ask the
// same.
//
//   caller   a user, or a principal, who asks for something
//   mapped   a principal whom the configuration makes a user of the machine: what they have is that
//            user's, and so is their worker; an admin they are not, though that user be one
//   admin    root, members of the administrators' group, by whichever of their groups, and whose
//            own djinnd it is: they see and steer what belongs to others
//
// invariant: a principal is no admin, and no local user; nor is who comes by djinn-gate's socket
// anybody at all until it has named one.
// Group membership is that of the moment when the caller connected.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/djinnd/access/principals.h"
#include "daemon/djinnd/access/visitor.h"
#include "kernel/base/error.h"
#include "kernel/base/owner.h"
#include "kernel/base/result.h"

namespace djinn::daemon {

// Whom the configuration makes of a principal: a user, with their groups, as the system's database
// had them when it was read.
struct MappedUser {
  std::string name;
  std::optional<uid_t> number{};  // nothing: there is no such user
  std::vector<gid_t> groups{};
  friend bool operator==(const MappedUser&, const MappedUser&) = default;
};
using PrincipalMap = std::map<std::string, MappedUser, std::less<>>;

struct Caller {
  Owner user;
  bool admin = false;

  [[nodiscard]] bool may_steer(Owner owner) const { return admin || user == owner; }
};

class Authority {
 public:
  // admins: their group. owner: whose own djinnd this is; they are its admin.
  explicit Authority(std::optional<gid_t> admins = {}, std::optional<uid_t> owner = {})
      : admins_(admins), owner_(owner) {}
  // user, groups: as the kernel or the bus says; primary and supplementary.
  [[nodiscard]] Caller judge(uid_t user, std::span<const gid_t> groups) const;
  // Who has connected, before Hello.
  [[nodiscard]] Caller judge(const Visitor& visitor) const;
  // Whom djinn-gate names, by its socket. Errors: kPermissionDenied (mapped to nobody, or to root),
  // and those of Principals::take_in().
  Result<Caller> judge(std::string_view principal);
  // Of connections from now on.
  void set_map(PrincipalMap map) { map_ = std::move(map); }
  // Those of the user whom a principal is mapped to; of others none.
  [[nodiscard]] std::vector<gid_t> groups_of(std::string_view principal) const;
  [[nodiscard]] Principals& principals() { return principals_; }
  [[nodiscard]] bool has_admin_group() const { return admins_.has_value(); }

 private:
  std::optional<gid_t> admins_;
  std::optional<uid_t> owner_;
  Principals principals_;
  PrincipalMap map_;
};

// What others hear of what is for administrators alone.
[[nodiscard]] Error only_administrators_may();

// The number that every user has here who has none in djinnd's user namespace: so many are one, and
// who has it is not to be told from others. Nothing where all users have one.
// uid_map: user_namespaces(7).
[[nodiscard]] std::optional<uid_t> number_of_unmapped(std::string_view uid_map,
                                                      std::string_view overflow_uid);
// The number that the user namespace of this process gives to users whom it does not map; nothing
// if it maps all.
[[nodiscard]] std::optional<uid_t> number_of_unmapped();

// Nothing if there is no such group, or user. Asks the system's database, which may block.
[[nodiscard]] std::optional<gid_t> group_named(const std::string& name);
[[nodiscard]] std::optional<uid_t> user_named(const std::string& name);
// Of a user who is there, the primary one among them. Likewise.
[[nodiscard]] std::vector<gid_t> groups_of_user(const std::string& name);

}  // namespace djinn::daemon
