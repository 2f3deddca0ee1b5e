// The tables of objects, each made in one place: what ps and sessions list and show picks from.
#pragma once

#include <span>
#include <string>

#include "libdjinn-client/client.h"

namespace djinn::ctl {

[[nodiscard]] std::string model_table(std::span<const ipc::ModelReport> models, uint64_t now_ns);
[[nodiscard]] std::string session_table(std::span<const ipc::SessionReport> sessions,
                                        uint64_t now_ns);

}  // namespace djinn::ctl
