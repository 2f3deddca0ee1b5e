// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/descriptors.h"

#include <sys/resource.h>

#include <algorithm>

namespace djinn::daemon {

Error out_of_descriptors() {
  return {ErrorCode::kLimitExceeded,
          "djinnd has too many descriptors open. Close a session or unload a model, or let it have "
          "more (LimitNOFILE= of its unit, ulimit -n); then repeat."};
}

Status check_descriptors_left(const Fd& newest) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return {};
  const rlim_t kept = std::min<rlim_t>(kDescriptorsKept, limit.rlim_cur / 8);
  if (static_cast<rlim_t>(newest.get()) + kept < limit.rlim_cur) return {};
  return out_of_descriptors();
}

}  // namespace djinn::daemon
