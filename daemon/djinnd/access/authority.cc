// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/access/authority.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "daemon/djinnd/loop/proc_files.h"
#include "kernel/base/assert.h"

namespace djinn::daemon {
namespace {

constexpr size_t kEntryBytes = 4096;
// The entry of a group with more than a hundred thousand members fits.
constexpr size_t kEntryBytesMax = size_t{64} << 20;

constexpr uid_t kOverflowUid = 65534;  // unless somebody has set another

}  // namespace

Caller Authority::judge(uid_t user, std::span<const gid_t> groups) const {
  const bool member = admins_ && std::find(groups.begin(), groups.end(), *admins_) != groups.end();
  return {Owner::of_user(user), user == 0 || member || owner_ == user};
}

Caller Authority::judge(const Visitor& visitor) const {
  const ipc::PeerCredentials& peer = visitor.peer;
  if (visitor.entrance == Entrance::kGates) return {Owner::of_user(peer.uid), false};
  return judge(peer.uid, peer.groups);
}

Result<Caller> Authority::judge(std::string_view principal) {
  DJINN_TRY(const Owner owner, principals_.take_in(principal));
  DJINN_ASSERT(owner.is_principal());
  const auto mapped = map_.find(principal);
  if (mapped == map_.end()) return Caller{owner, false};
  if (mapped->second.number.value_or(0) == 0) {  // root's events are administrators'
    return Error{ErrorCode::kPermissionDenied,
                 "djinnd's configuration makes this principal a user who is not there, or root, "
                 "which none can be. Ask the administrator."};
  }
  return Caller{Owner::of_user(*mapped->second.number), false};
}

std::vector<gid_t> Authority::groups_of(std::string_view principal) const {
  const auto mapped = map_.find(principal);
  return mapped == map_.end() ? std::vector<gid_t>() : mapped->second.groups;
}

std::optional<uid_t> number_of_unmapped(std::string_view uid_map, std::string_view overflow_uid) {
  const std::vector<uint64_t> lines = numbers_in(uid_map);  // of three each: inside, outside, count
  uint64_t mapped = 0;
  for (size_t i = 2; i < lines.size(); i += 3) mapped += lines[i];
  // The last number stands for no user. A kernel without user namespaces has no map.
  if (mapped == 0 || mapped >= std::numeric_limits<uid_t>::max()) return std::nullopt;
  const std::vector<uint64_t> told = numbers_in(overflow_uid);
  return told.empty() ? kOverflowUid : static_cast<uid_t>(told.front());
}

std::optional<uid_t> number_of_unmapped() {
  return number_of_unmapped(read_proc_file("/proc/self/uid_map"),
                            read_proc_file("/proc/sys/kernel/overflowuid"));
}

// Gives the entry of that name; `ask` is getgrnam_r or getpwnam_r. The buffer grows for a group
// with many members.
template <typename Entry, typename Ask>
static std::optional<Entry> entry_named(const std::string& name, std::vector<char>& buffer,
                                        Ask* ask) {
  Entry entry{};
  Entry* found = nullptr;
  while (ask(name.c_str(), &entry, buffer.data(), buffer.size(), &found) == ERANGE &&
         buffer.size() < kEntryBytesMax) {
    buffer.resize(2 * buffer.size());
  }
  return found == nullptr ? std::nullopt : std::optional(entry);
}

Error only_administrators_may() {
  return {ErrorCode::kPermissionDenied,
          "Only administrators may do this: root, and members of the group djinn-admin, or of the "
          "one that djinnd's --admin-group names. Who has just become one logs in again."};
}

std::optional<gid_t> group_named(const std::string& name) {
  std::vector<char> buffer(kEntryBytes);
  const auto entry = entry_named<group>(name, buffer, &::getgrnam_r);
  return entry ? std::optional(entry->gr_gid) : std::nullopt;
}

std::optional<uid_t> user_named(const std::string& name) {
  std::vector<char> buffer(kEntryBytes);
  const auto entry = entry_named<passwd>(name, buffer, &::getpwnam_r);
  return entry ? std::optional(entry->pw_uid) : std::nullopt;
}

std::vector<gid_t> groups_of_user(const std::string& name) {
  std::vector<char> buffer(kEntryBytes);
  const auto entry = entry_named<passwd>(name, buffer, &::getpwnam_r);
  if (!entry) return {};
  int count = 64;  // NGROUPS_MAX is 65536
  std::vector<gid_t> groups(static_cast<size_t>(count));
  while (::getgrouplist(name.c_str(), entry->pw_gid, groups.data(), &count) < 0 &&
         static_cast<size_t>(count) > groups.size()) {
    groups.resize(static_cast<size_t>(count));
  }
  groups.resize(static_cast<size_t>(std::max(count, 0)));
  return groups;
}

}  // namespace djinn::daemon
