#include "daemon/djinnd/authority.h"

#include <grp.h>

#include <algorithm>
#include <array>

namespace djinn::daemon {

Caller Authority::judge(uid_t user, std::span<const gid_t> groups) const {
  const bool admin =
      user == 0 || (admins_ && std::find(groups.begin(), groups.end(), *admins_) != groups.end());
  return {user, admin};
}

std::optional<gid_t> group_named(const std::string& name) {
  std::array<char, 16384> buffer{};
  group entry{};
  group* found = nullptr;
  ::getgrnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found == nullptr) return std::nullopt;
  return found->gr_gid;
}

}  // namespace djinn::daemon
