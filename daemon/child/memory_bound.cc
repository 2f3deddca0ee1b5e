// SPDX-License-Identifier: Apache-2.0

#include "daemon/child/memory_bound.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "kernel/base/checked.h"
#include "kernel/base/fd.h"

namespace djinn::child {
namespace {

// Gives the field `data` of statm (proc(5)). It counts stacks too, which the limit does not.
Result<uint64_t> private_bytes() {
  const Fd file(::open("/proc/self/statm", O_RDONLY | O_CLOEXEC));
  std::array<char, 256> text{};
  if (!file.valid() || ::read(file.get(), text.data(), text.size() - 1) <= 0) {
    return system_error("read what memory this process has", errno);
  }
  const char* field = text.data();
  for (int skipped = 0; skipped < 5 && field != nullptr; ++skipped) {
    field = ::strchr(field, ' ');
    if (field != nullptr) ++field;
  }
  uint64_t pages = 0;
  if (field == nullptr || std::from_chars(field, text.end(), pages).ec != std::errc()) {
    return Error{ErrorCode::kSystem,
                 "The kernel tells what memory this process has in no known way."};
  }
  return pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

Status bound_private_memory(uint64_t more_bytes) {
  DJINN_TRY(const uint64_t now, private_bytes());
  rlimit limit{};
  if (::getrlimit(RLIMIT_DATA, &limit) != 0) return system_error("read a limit of memory", errno);
  limit.rlim_max =
      std::min<uint64_t>(limit.rlim_max, checked_add(now, more_bytes).value_or(RLIM_INFINITY));
  limit.rlim_cur = std::min(limit.rlim_cur, limit.rlim_max);
  if (::setrlimit(RLIMIT_DATA, &limit) != 0) return system_error("limit memory", errno);
  return {};
}

}  // namespace djinn::child
