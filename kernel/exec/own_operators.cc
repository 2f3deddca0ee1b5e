// SPDX-License-Identifier: Apache-2.0

#include "kernel/exec/own_operators.h"

namespace djinn::exec {

void register_operators() {
  // The dispatcher is global to the process; so, then, is what we add to it. It is never destroyed,
  // because the dispatcher may be gone first at exit.
  static const OwnLibraries* const libraries = [] {
    auto* const made = new OwnLibraries;
    define_fast_attend(*made);
    define_fast_linear(*made);
    define_fast_rows(*made);
    define_kv_append(*made);
    define_linear_backward(*made);
    define_random(*made);
    return made;
  }();
  (void)libraries;
}

}  // namespace djinn::exec
