// SPDX-License-Identifier: Apache-2.0

// IdSource: ids that nobody has to guess and nobody confuses: 48 random bits, 12 hex digits.
// invariant: never zero. Ids are not secrets: whoever uses one is asked who he is.
#pragma once

#include "kernel/base/ids.h"
#include "kernel/base/random.h"

namespace djinn::daemon {

class IdSource {
 public:
  explicit IdSource(uint64_t seed) : random_(seed) {}

  // An id for which taken(id) is false.
  template <typename Id, typename Taken>
  Id next(const Taken& taken) {
    for (;;) {
      const Id id{random_.next() >> 16};
      if (id.valid() && !taken(id)) return id;
    }
  }

 private:
  Random random_;
};

}  // namespace djinn::daemon
