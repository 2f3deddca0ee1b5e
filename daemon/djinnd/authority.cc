#include "daemon/djinnd/authority.h"

#include <grp.h>

#include <algorithm>
#include <array>

namespace djinn::daemon {

Caller Authority::judge(uid_t user, std::span<const gid_t> groups) const {
  const bool member = admins_ && std::find(groups.begin(), groups.end(), *admins_) != groups.end();
  return {user, user == 0 || member || owner_ == user};
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
