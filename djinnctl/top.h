// SPDX-License-Identifier: Apache-2.0

// Top: what `djinnctl top` shows at one moment, as text. Pure, so that a test can read it.
//
//   sample   what djinnd reported, and when
//   frame    the text of a sample; rates are those since the sample before
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "djinnctl/table.h"
#include "libdjinn-client/client.h"

namespace djinn::ctl {

enum class TopSort : uint8_t { kMemory, kRate, kAge, kUser };
// "memory", "rate", "age", "user"; nothing for another name.
[[nodiscard]] std::optional<TopSort> top_sort_named(std::string_view name);
[[nodiscard]] std::string_view name_of(TopSort sort);
// The one after it, round and round.
[[nodiscard]] TopSort next(TopSort sort);

struct TopSample {
  uint64_t wall_ns = 0;
  ipc::StatusReport status;
  std::vector<ipc::SessionReport> sessions;
  std::vector<ipc::ModelReport> models;
};

// before: or null at first, when rates are not known. layout: no line is wider than its columns;
// its legend is shown and no header is bold. Lines end with '\n'.
[[nodiscard]] std::string top_frame(const TopSample& now, const TopSample* before, TopSort sort,
                                    const Table::Layout& layout);

}  // namespace djinn::ctl
