// SPDX-License-Identifier: Apache-2.0

// The tables of objects, each made in one place: what the verbs list. Columns are only ever added.
#pragma once

#include <span>
#include <string>

#include "djinnctl/dtypes.h"
#include "djinnctl/table.h"
#include "libdjinn-client/client.h"

namespace djinn::ctl {

// What a client calls itself, as a table has room for it: JSON has all of it.
[[nodiscard]] std::string app_text(const std::string& client_name);
[[nodiscard]] Table model_table(std::span<const ipc::ModelReport> models, uint64_t now_ns);
// Of djinnd's store.
[[nodiscard]] Table published_table(std::span<const ipc::PublishedReport> published,
                                    uint64_t now_ns);
[[nodiscard]] Table session_table(std::span<const ipc::SessionReport> sessions, uint64_t now_ns);
[[nodiscard]] Table holder_table(std::span<const ipc::UseReport> holders);
// What users call a model.
[[nodiscard]] Table name_table(std::span<const ipc::UseReport> names);
// Of which dtypes a model's weights are.
[[nodiscard]] Table dtype_table(std::span<const DTypeUse> dtypes);
[[nodiscard]] Table schedule_table(std::span<const ipc::ScheduleDecision> decisions);
[[nodiscard]] Table program_table(std::span<const ipc::ProgramReport> programs);
[[nodiscard]] Table device_table(std::span<const ipc::DeviceReport> devices);
// Why devices cannot be used, or not for all: a line for each, whole.
[[nodiscard]] std::string reasons_text(std::span<const ipc::DeviceReport> devices);
[[nodiscard]] Table memory_table(std::span<const ipc::MemoryReport> pools);

}  // namespace djinn::ctl
