// SPDX-License-Identifier: Apache-2.0

// check_token: whether an id is one of the model's tokens.
#pragma once

#include <cstdint>

#include "kernel/base/result.h"

namespace djinn::client {

// what: the id's part, for the error, as "Token". Errors: kOutOfRange for an id that is not in
// [0, vocabulary).
Status check_token(const char* what, int64_t token, int64_t vocabulary);

}  // namespace djinn::client
