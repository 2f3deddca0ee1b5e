// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/next_weights.h"

namespace djinn::exec {

NextWeights& NextWeights::mine() {
  static thread_local NextWeights next;
  return next;
}

}  // namespace djinn::exec
