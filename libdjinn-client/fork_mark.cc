// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/fork_mark.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include <utility>

namespace djinn::client {

Result<ForkMark> ForkMark::make() {
  const auto bytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  void* const page =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return system_error("map a page", errno);
  ForkMark mark(pal::Mapping(static_cast<std::byte*>(page), bytes));
  if (::madvise(page, bytes, MADV_WIPEONFORK) != 0) {
    return system_error("have a page cleared in children", errno);
  }
  *mark.page_.data() = std::byte{1};
  return mark;
}

bool ForkMark::is_in_child() const {
  return *page_.data() == std::byte{0};
}

Error forked() {
  return {ErrorCode::kDisconnected,
          "This process was forked from the one that connected to djinnd, and the session is its "
          "parent's. Open anew what this process needs, models, programs and refs: that gives it a "
          "session of its own."};
}

}  // namespace djinn::client
