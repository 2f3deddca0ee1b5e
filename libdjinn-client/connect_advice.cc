// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/connect_advice.h"

#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <vector>

namespace djinn::client {
namespace {

constexpr std::array kUnits{"/lib/systemd/system/djinnd.socket",
                            "/usr/lib/systemd/system/djinnd.socket",
                            "/etc/systemd/system/djinnd.socket"};
// The entry of a group with a thousand members fits. For a larger group no names are told.
constexpr size_t kEntryBytes = 64 * 1024;

std::string name_of_user() {
  std::vector<char> buffer(kEntryBytes);
  passwd entry{};
  passwd* found = nullptr;
  ::getpwuid_r(::geteuid(), &entry, buffer.data(), buffer.size(), &found);
  return found == nullptr ? "" : found->pw_name;
}

}  // namespace

bool service_is_installed() {
  return std::ranges::any_of(kUnits, [](const char* unit) { return ::access(unit, F_OK) == 0; });
}

Error nobody_answers(const std::string& path, bool is_service) {
  if (std::error_code error; std::filesystem::is_directory(path, error)) {
    return {ErrorCode::kNotFound, path +
                                      " is a directory, and no socket of a djinnd. Name the socket "
                                      "in it, as DJINN_HOST=" +
                                      path + "/djinnd.sock."};
  }
  const char* const start = is_service
                                ? "Start the service with 'systemctl start djinnd.socket', as root"
                                : "Start one of your own with 'djinnd --user' (in a clone, "
                                  "eval \"$(./dev up)\")";
  return {ErrorCode::kNotFound,
          "No djinnd answers at " + path + ". " + start + ", or set DJINN_HOST to where it runs."};
}

Error not_as_djinnd_answers(ErrorCode code, const std::string& what) {
  return {code, what +
                    " So it is no djinnd of this version. Compare 'djinnctl version', and have "
                    "djinnd restarted, by root where it is the service, or set DJINN_HOST to where "
                    "another one runs."};
}

Stranger stranger_to(const std::string& path) {
  Stranger who{name_of_user(), "", false};
  struct stat socket {};
  if (::stat(path.c_str(), &socket) != 0 || (socket.st_mode & S_IWGRP) == 0) return who;
  std::vector<char> buffer(kEntryBytes);
  group entry{};
  group* found = nullptr;
  ::getgrgid_r(socket.st_gid, &entry, buffer.data(), buffer.size(), &found);
  if (found == nullptr) return who;
  who.group = found->gr_name;
  for (char** member = found->gr_mem; *member != nullptr; ++member) {
    who.is_in |= who.user == std::string_view(*member);
  }
  return who;
}

Error not_allowed(const std::string& path, const Stranger& who) {
  const std::string begin = "You may not connect to djinnd at " + path;
  if (who.group.empty()) {
    return {ErrorCode::kPermissionDenied,
            begin +
                ": it is another user's. Start your own with 'djinnd --user', or set DJINN_HOST "
                "to one that you may use."};
  }
  const std::string user = who.user.empty() ? "USER" : who.user;
  const std::string next =
      who.is_in ? "You are a member of it since you logged in: log in again, or say 'newgrp " +
                      who.group + "'."
                : "Have an administrator say 'adduser " + user + " " + who.group +
                      "', then log in again.";
  return {ErrorCode::kPermissionDenied,
          begin + ": it is for members of the group " + who.group + ". " + next};
}

}  // namespace djinn::client
