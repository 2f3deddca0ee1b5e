// SPDX-License-Identifier: Apache-2.0

// SessionsOf: whose the sessions are that a gate has with djinnd, and where it connects for them.
#pragma once

#include <string>

namespace djinn::gate {

struct SessionsOf {
  std::string socket;       // djinnd's: for clients, or, where a principal is named, for gates
  std::string principal{};  // empty: the gate's own user's
};

}  // namespace djinn::gate
