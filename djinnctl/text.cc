// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/text.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "kernel/base/clock.h"
#include "kernel/base/text.h"
#include "kernel/base/units.h"

namespace djinn::ctl {
namespace {

constexpr uint64_t kMinute = 60 * kNsPerSecond;
constexpr uint64_t kHour = 60 * kMinute;
constexpr uint64_t kDay = 24 * kHour;

constexpr std::string_view kIsolate = "\u2068";
constexpr std::string_view kIsolateEnd = "\u2069";

bool is_within(uint32_t point, uint32_t first, uint32_t last) {
  return point >= first && point <= last;
}

// Tells whether the character is of a block that is written from right to left
// (DerivedBidiClass.txt gives characters that are still unassigned there the same class), or a mark
// that makes others be.
bool turns_others(uint32_t point) {
  return is_within(point, 0x590, 0x8ff) || is_within(point, 0x200e, 0x200f) ||
         is_within(point, 0xfb1d, 0xfdff) || is_within(point, 0xfe70, 0xfefe) ||
         is_within(point, 0x10800, 0x10fff) || is_within(point, 0x1e800, 0x1efff);
}

// Tells whether the character may stand within a name, so that a stretch goes on behind it.
bool joins_words(uint32_t point) {
  return point == ' ' || point == '-' || point == '_' || point == '.' || point == '/';
}

size_t columns_of(uint32_t point) {
  const bool only_orders =
      is_within(point, 0x200e, 0x200f) || is_within(point, 0x2068, 0x2069) || point == 0x61c;
  return only_orders ? 0 : 1;
}

// Gives the bytes from the first character of text that turns others to the last one of the same
// stretch; 0 if text does not begin with such a character.
size_t stretch_bytes(std::string_view text) {
  size_t end = 0;
  for (size_t at = 0; at < text.size();) {
    const Character next = first_character(text.substr(at));
    if (!turns_others(next.point) && (at == 0 || !joins_words(next.point))) break;
    at += next.bytes;
    if (turns_others(next.point)) end = at;
  }
  return end;
}

std::string in_isolate(std::string_view text) {
  return fmt::format("{}{}{}", kIsolate, text, kIsolateEnd);
}

}  // namespace

uint64_t percent_of(uint64_t done, uint64_t total) {
  if (total == 0 || done >= total) return total == 0 ? 0 : 100;
  return std::min<uint64_t>(
      99, static_cast<uint64_t>(100.0 * static_cast<double>(done) / static_cast<double>(total)));
}

std::string time_text(uint64_t wall_ns) {
  const auto seconds = static_cast<time_t>(wall_ns / kNsPerSecond);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:09}Z", fmt::gmtime(seconds), wall_ns % kNsPerSecond);
}

std::string second_text(uint64_t wall_ns) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}Z",
                     fmt::gmtime(static_cast<time_t>(wall_ns / kNsPerSecond)));
}

std::string span_text(uint64_t span_ns) {
  if (span_ns < kMinute) return fmt::format("{}s", span_ns / kNsPerSecond);
  if (span_ns < kHour) return fmt::format("{}m", span_ns / kMinute);
  if (span_ns < kDay) return fmt::format("{}h", span_ns / kHour);
  return fmt::format("{}d", span_ns / kDay);
}

std::string age_text(uint64_t wall_ns, uint64_t now_ns) {
  if (wall_ns == 0) return "-";
  return span_text(now_ns > wall_ns ? now_ns - wall_ns : 0);
}

std::string id_text(uint64_t id) {
  return fmt::format("{:012x}", id);
}

std::string isolated(std::string_view name) {
  for (size_t at = 0; at < name.size(); at += first_character(name.substr(at)).bytes) {
    if (turns_others(first_character(name.substr(at)).point)) return in_isolate(name);
  }
  return std::string(name);
}

std::string isolated_within(std::string_view sentence) {
  std::string out;
  while (!sentence.empty()) {
    const size_t turned = stretch_bytes(sentence);
    const size_t bytes = turned > 0 ? turned : first_character(sentence).bytes;
    const std::string_view next = sentence.substr(0, bytes);
    out += turned > 0 ? in_isolate(next) : next;
    sentence.remove_prefix(bytes);
  }
  return out;
}

std::string_view without_isolate(std::string_view name) {
  const bool has_one = name.starts_with(kIsolate) && name.ends_with(kIsolateEnd);
  return has_one ? name.substr(kIsolate.size(), name.size() - kIsolate.size() - kIsolateEnd.size())
                 : name;
}

std::string Harmless::next(char byte) {
  constexpr unsigned char kLeadOfControls = 0xc2;
  const auto value = static_cast<unsigned char>(byte);
  const bool continues = value >= 0x80 && value < 0xc0;
  std::string out;
  if (left_ > 0 && continues) {
    --left_;
    if (!std::exchange(may_be_control_, false)) return {byte};
    return value < 0xa0 ? "?" : std::string{static_cast<char>(kLeadOfControls), byte};
  }
  if (std::exchange(may_be_control_, false)) out = "?";
  const bool begins = value >= kLeadOfControls && value <= 0xf4;
  left_ = !begins ? 0 : value >= 0xf0 ? 3 : value >= 0xe0 ? 2 : 1;
  may_be_control_ = value == kLeadOfControls;
  if (may_be_control_) return out;
  const bool steers = (value < 0x20 && byte != '\n' && byte != '\t') || value == 0x7f;
  return out + (steers || (value >= 0x80 && !begins) ? '?' : byte);
}

size_t width_of(std::string_view text) {
  size_t columns = 0;
  for (size_t at = 0; at < text.size();) {
    const Character next = first_character(text.substr(at));
    columns += columns_of(next.point);
    at += next.bytes;
  }
  return columns;
}

std::string shortened(std::string_view text, size_t columns_max) {
  if (width_of(text) <= columns_max) return std::string(text);
  if (columns_max == 0) return "";
  return cut(text, columns_max - 1) + "…";
}

std::string hash_text(const std::array<uint8_t, 32>& hash) {
  std::string out;
  for (const uint8_t byte : hash) out += fmt::format("{:02x}", byte);
  return out;
}

std::string until_text(const ipc::ModelReport& model, uint64_t now_ns) {
  const std::string_view until = until_text(model);
  if (until != "expiry") return std::string(until);
  const uint64_t left =
      model.expires_wall_ns > now_ns ? model.expires_wall_ns - now_ns : uint64_t{0};
  return age_text(1, 1 + left);
}

std::string plan_text(uint32_t plan) {
  return plan == 0 ? "" : fmt::format("{:08x}", plan);
}

uint64_t now_ns() {
  return SystemClock().wall_ns();
}

std::optional<uint64_t> stay_ms_of(std::string_view text) {
  return text == "forever" ? ipc::kKeepForever : milliseconds_of(text);
}

std::optional<uint64_t> wait_ms_of(std::string_view text) {
  return milliseconds_of(text, NoUnit::kSeconds);
}

std::string wait_fault(std::string_view text, std::string_view least, std::string_view most) {
  const auto time = wait_ms_of(text);
  if (time && *time >= wait_ms_of(least) && *time <= wait_ms_of(most)) return {};
  return fmt::format("'{}' is no time from {} to {}, like 10 (seconds), 10s or 5m.", text, least,
                     most);
}

std::string cut(std::string_view line, size_t columns) {
  size_t end = 0;
  size_t open = 0;
  while (end < line.size()) {
    const std::string_view rest = line.substr(end);
    const Character next = first_character(rest);
    if (columns_of(next.point) > columns) break;
    columns -= columns_of(next.point);
    open += rest.starts_with(kIsolate) ? 1 : 0;
    open -= rest.starts_with(kIsolateEnd) && open > 0 ? 1 : 0;
    end += next.bytes;
  }
  std::string out(line.substr(0, end));
  for (; open > 0; --open) out += kIsolateEnd;
  return out;
}

}  // namespace djinn::ctl
