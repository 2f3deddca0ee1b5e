// SPDX-License-Identifier: Apache-2.0

// Freed: how a std::unique_ptr gives back what a C library made: unique_ptr<SSL, Freed<&SSL_free>>.
#pragma once

namespace djinn {

template <auto kFree>
struct Freed {
  void operator()(auto* one) const { kFree(one); }
};

}  // namespace djinn
