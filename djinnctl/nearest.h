// SPDX-License-Identifier: Apache-2.0

// Nearest: the word that was meant by one that nobody knows.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace djinn::ctl {

// The known word that takes the fewest changes of a letter (one put in, left out or exchanged), the
// first of several; "" if each takes more than half as many as the word has letters.
[[nodiscard]] std::string_view nearest(std::string_view word, std::span<const std::string> known);

}  // namespace djinn::ctl
