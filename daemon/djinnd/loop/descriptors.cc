// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/loop/descriptors.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

namespace djinn::daemon {

Error out_of_descriptors() {
  return {ErrorCode::kLimitExceeded,
          "djinnd has too many descriptors open. Close a session or unload a model, or let it have "
          "more (LimitNOFILE= of its unit, ulimit -n); then repeat."};
}

Error for_client(const Error& of_kernel) {
  return {of_kernel.code,
          fmt::format("djinnd could not {}. Close a session or unload a model, then repeat.",
                      of_kernel.message)};
}

Status check_descriptors_left(const Fd& newest, size_t spoken_for) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return {};
  const rlim_t kept = std::min<rlim_t>(kDescriptorsKept, limit.rlim_cur / 8);
  if (static_cast<rlim_t>(newest.get()) + spoken_for + kept < limit.rlim_cur) return {};
  return out_of_descriptors();
}

bool may_hold_sockets(const Fd& fd) {
  std::array<char, 16> link{};  // its beginning says of what kind it is; files' is a path
  const std::string name = fmt::format("/proc/self/fd/{}", fd.get());
  const ssize_t length = ::readlink(name.c_str(), link.data(), link.size());
  const std::string_view kind(link.data(), length > 0 ? static_cast<size_t>(length) : 0);
  return kind.starts_with("socket:") || kind.starts_with("anon_inode:");
}

}  // namespace djinn::daemon
