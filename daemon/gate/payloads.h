// SPDX-License-Identifier: Apache-2.0

// Payloads: what requests of the near side have descriptors of, as memfds of this side.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>

#include "kernel/base/fd.h"
#include "kernel/base/result.h"

namespace djinn::gate {

class Payloads {
 public:
  // Adds bytes to payload `id`. Throws kj::Exception where there are too many of them; what else
  // goes wrong, take() tells.
  void add(uint64_t id, std::span<const std::byte> bytes);
  // A sealed memfd with what was added, perhaps nothing; the payload is gone. Errors: kOutOfMemory,
  // kLimitExceeded (descriptors).
  Result<Fd> take(uint64_t id);

 private:
  // invariant: one that failed has no memory.
  Result<Fd>& of(uint64_t id);

  std::map<uint64_t, Result<Fd>> payloads_;
};

}  // namespace djinn::gate
