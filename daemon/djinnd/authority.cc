// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/authority.h"

#include <errno.h>
#include <grp.h>

#include <algorithm>
#include <vector>

namespace djinn::daemon {
namespace {

constexpr size_t kGroupBytes = 4096;
// A hundred thousand members and more.
constexpr size_t kGroupBytesMax = size_t{64} << 20;

}  // namespace

Caller Authority::judge(uid_t user, std::span<const gid_t> groups) const {
  const bool member = admins_ && std::find(groups.begin(), groups.end(), *admins_) != groups.end();
  return {user, user == 0 || member || owner_ == user};
}

std::optional<gid_t> group_named(const std::string& name) {
  std::vector<char> buffer(kGroupBytes);
  group entry{};
  group* found = nullptr;
  // A group of many members needs more.
  while (::getgrnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found) == ERANGE &&
         buffer.size() < kGroupBytesMax) {
    buffer.resize(2 * buffer.size());
  }
  if (found == nullptr) return std::nullopt;
  return found->gr_gid;
}

}  // namespace djinn::daemon
