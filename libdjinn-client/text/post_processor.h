// SPDX-License-Identifier: Apache-2.0

// Frame: the special tokens that a post-processor of `tokenizers` puts before and behind a text.
#pragma once

#include <cstdint>
#include <vector>

#include "libdjinn-client/text/settings.h"

namespace djinn::text {

struct Frame {
  std::vector<int32_t> before;
  std::vector<int32_t> behind;
};

// json: the file's post_processor, or null. Errors: kUnsupported for one that is not known,
// kMalformed.
Result<Frame> make_frame(const Json& json);

}  // namespace djinn::text
