// SPDX-License-Identifier: Apache-2.0

// Sealed memfds that clients and loaders send: graphs, plans, manifests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "daemon/djinnd/loop/deferred_close.h"
#include "kernel/base/fd.h"
#include "kernel/base/result.h"
#include "kernel/load/hash.h"

namespace djinn::daemon {

// Says how large a memfd is whose content nobody can change any more. Touches no foreign file
// system: the seals tell a memfd from everything else first. A memfd with holes is refused: reading
// it would cost us what it did not cost its maker. Errors: kInvalidArgument for another kind of
// descriptor, missing seals or holes, kLimitExceeded.
Result<uint64_t> size_of_sealed(const Fd& fd, uint64_t bytes_max, std::string_view what);

Result<std::vector<std::byte>> read_sealed(const Fd& fd, uint64_t bytes_max, std::string_view what);

// The bytes that a client sent, read once.
struct Payload {
  load::Digest hash{};  // SHA-256 of its bytes; of none where nothing was sent
  uint64_t bytes = 0;
  SharedFd copy;  // djinnd's own, sealed; null where nothing was sent
};
// Takes as long as the bytes do; not for the loop. closer: of the copy. Errors: as read_sealed,
// kOutOfMemory, kLimitExceeded (descriptors).
Result<Payload> take_payload(const Fd& fd, uint64_t bytes_max, std::string_view what,
                             Closer& closer);
// The payload where nothing was sent.
Result<Payload> no_payload();

}  // namespace djinn::daemon
