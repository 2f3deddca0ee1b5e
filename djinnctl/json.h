// SPDX-License-Identifier: Apache-2.0

// JSON: what --json prints. {"schema":"djinn.VERB.vN","items":[...]}, in one line or indented,
// fields in a fixed order and only ever added. Sizes are raw bytes, times RFC 3339, what is not
// known is null.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "djinnctl/dtypes.h"
#include "libdjinn-client/client.h"

namespace djinn::ctl {

using Json = nlohmann::ordered_json;

enum class JsonStyle { kOff, kShort, kPretty };

// The envelope, with its newline. schema: "ps" gives "djinn.ps.v1". Bytes of names that are no
// UTF-8 become U+FFFD.
[[nodiscard]] std::string json_text(const std::string& schema, std::vector<Json> items,
                                    JsonStyle style = JsonStyle::kShort);

[[nodiscard]] Json to_json(const ipc::QuotaReport& quota);
[[nodiscard]] Json to_json(const ipc::StatusReport& report);
[[nodiscard]] Json to_json(const ipc::WorkerReport& report);
[[nodiscard]] Json to_json(const ipc::SessionReport& report);
[[nodiscard]] Json to_json(const ipc::ModelReport& report);
[[nodiscard]] Json to_json(const ipc::ProgramReport& report);
[[nodiscard]] Json to_json(const ipc::DeviceReport& report);
[[nodiscard]] Json to_json(const ipc::MemoryReport& report);
[[nodiscard]] Json to_json(const ipc::EventReport& report);
[[nodiscard]] Json to_json(const ipc::PublishedReport& report);
[[nodiscard]] Json to_json(const DTypeUse& use);
// Of a lane, at that time, in nanoseconds since the epoch.
[[nodiscard]] Json to_json(const ipc::ScheduleReport& report, uint64_t now_ns);

}  // namespace djinn::ctl
