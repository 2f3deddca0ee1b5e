// SPDX-License-Identifier: Apache-2.0

// Text: how single values look to people and in --json.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kernel/base/size_text.h"
#include "libdjinn-client/client.h"

namespace djinn::ctl {

// Whole percent, rounded down, so that 100 means done; 0 of nothing.
[[nodiscard]] uint64_t percent_of(uint64_t done, uint64_t total);

// "2026-03-01T12:00:00.123456789Z", in UTC; of nanoseconds since the epoch.
[[nodiscard]] std::string time_text(uint64_t wall_ns);
// "2026-03-01T12:00:00Z".
[[nodiscard]] std::string second_text(uint64_t wall_ns);

// A span of time in its largest unit, rounded down: "59s", "3m", "5h", "12d".
[[nodiscard]] std::string span_text(uint64_t span_ns);

// How long ago, as span_text(); "-" for a time that is not set.
// A time that lies ahead (the clock was set back) counts as now.
[[nodiscard]] std::string age_text(uint64_t wall_ns, uint64_t now_ns);

// An id as 12 hex digits (ids are 48 random bits).
[[nodiscard]] std::string id_text(uint64_t id);
template <typename Tag>
[[nodiscard]] std::string id_text(Id<Tag> id) {
  return id_text(id.value);
}

// A terminal orders what stands on a line by the directions of its characters: behind a name in
// Hebrew or Arabic digits and points change places, though no byte of it steers anything. So there,
// and there alone, such names stand in an isolate (U+2068 ... U+2069; the Unicode Standard, annex
// 9). Others get nothing, and what goes to a pipe, a file or JSON is each name as it is, for it is
// searched for and compared there.
[[nodiscard]] std::string isolated(std::string_view name);
// Likewise of a sentence that may hold such names: each stretch that is written from right to left.
[[nodiscard]] std::string isolated_within(std::string_view sentence);
// A name as people paste it, who copied it from a terminal: without its isolate.
[[nodiscard]] std::string_view without_isolate(std::string_view name);

// What a stream of bytes may show on a terminal: it says what it likes, and does not steer.
// Newlines and tabs stay; other control characters, those that UTF-8 writes in two bytes included,
// and bytes that begin or continue no character become '?'.
class Harmless {
 public:
  // What to write for the next byte; nothing while it may yet become one of those.
  [[nodiscard]] std::string next(char byte);

 private:
  unsigned left_ = 0;            // bytes that the character still has
  bool may_be_control_ = false;  // its first byte waits
};

// Columns on a screen: characters of UTF-8. Wide ones count as one, those that only order text as
// none.
[[nodiscard]] size_t width_of(std::string_view text);
// text in at most so many columns; what was cut off shows as an ellipsis.
[[nodiscard]] std::string shortened(std::string_view text, size_t columns_max);

// A SHA-256 as 64 hex digits.
[[nodiscard]] std::string hash_text(const std::array<uint8_t, 32>& hash);

// What ends a model's stay, with the time that is left where that is an expiry.
[[nodiscard]] std::string until_text(const ipc::ModelReport& model, uint64_t now_ns);
// "3fa2c011"; empty for none.
[[nodiscard]] std::string plan_text(uint32_t plan);

// By the wall clock, in nanoseconds since the epoch.
[[nodiscard]] uint64_t now_ns();

// How long a model is to stay: a time, "0", or "forever" (ipc::kKeepForever).
[[nodiscard]] std::optional<uint64_t> stay_ms_of(std::string_view text);
// A time, or a number of seconds.
[[nodiscard]] std::optional<uint64_t> wait_ms_of(std::string_view text);
// What is wrong with one that is to be within these bounds, which are times; empty if nothing is.
[[nodiscard]] std::string wait_fault(std::string_view text, std::string_view least,
                                     std::string_view most);

// The first columns of a line; never half of a UTF-8 character, and no isolate stays open.
[[nodiscard]] std::string cut(std::string_view line, size_t columns);

}  // namespace djinn::ctl
