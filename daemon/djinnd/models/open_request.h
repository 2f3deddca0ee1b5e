// SPDX-License-Identifier: Apache-2.0

// OpenRequest: what a session asks for that opens a model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "daemon/djinnd/loop/sealed.h"
#include "daemon/djinnd/models/model.h"
#include "kernel/base/fd.h"

namespace djinn::daemon {

struct OpenRequest {
  Opener opener;
  std::string label;
  std::string path;
  std::optional<uint64_t> keep_alive_ms{};
  bool unpins = false;  // ends the user's own pin
  std::optional<srg::Numerics> numerics{};
  std::vector<SharedFd> files;
  std::vector<std::string> file_names;  // of each, or empty
  Payload plan;                         // or nothing
};

}  // namespace djinn::daemon
