// Output: the two streams. Results go to stdout, everything else to stderr.
#pragma once

#include <string_view>

#include "libdjinn-client/client.h"

namespace djinn::ctl {

// All bytes, or an Error: a full disk must not look like success.
Status write_out(std::string_view text);
void write_error(std::string_view text);
[[nodiscard]] bool out_is_terminal();

}  // namespace djinn::ctl
