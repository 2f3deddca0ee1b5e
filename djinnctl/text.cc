// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/text.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace djinn::ctl {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kMinute = 60 * kSecond;
constexpr uint64_t kHour = 60 * kMinute;
constexpr uint64_t kDay = 24 * kHour;

bool steers_terminal(char byte) {
  const auto value = static_cast<unsigned char>(byte);
  return value < 0x20 || value == 0x7f;
}

// The other bytes of a character of UTF-8 are marked so.
bool begins_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0) != 0x80;
}

}  // namespace

uint64_t percent_of(uint64_t done, uint64_t total) {
  if (total == 0 || done >= total) return total == 0 ? 0 : 100;
  return std::min<uint64_t>(
      99, static_cast<uint64_t>(100.0 * static_cast<double>(done) / static_cast<double>(total)));
}

std::string time_text(uint64_t wall_ns) {
  const auto seconds = static_cast<time_t>(wall_ns / kSecond);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:09}Z", fmt::gmtime(seconds), wall_ns % kSecond);
}

std::string span_text(uint64_t span_ns) {
  if (span_ns < kMinute) return fmt::format("{}s", span_ns / kSecond);
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

std::string printable(std::string_view text) {
  std::string out(text);
  for (char& byte : out) {
    if (steers_terminal(byte)) byte = '?';
  }
  return out;
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
  return static_cast<size_t>(std::ranges::count_if(text, begins_character));
}

std::string shortened(std::string_view text, size_t columns_max) {
  if (width_of(text) <= columns_max) return std::string(text);
  if (columns_max == 0) return "";
  size_t end = 0;
  for (size_t columns = 0; end < text.size(); ++end) {
    if (begins_character(text[end]) && ++columns == columns_max) break;
  }
  return std::string(text.substr(0, end)) + "…";
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

uint64_t now_ns() {
  return SystemClock().wall_ns();
}

std::optional<uint64_t> milliseconds_of(std::string_view text) {
  if (text == "forever") return ipc::kKeepForever;
  constexpr std::array<std::pair<std::string_view, uint64_t>, 6> kUnits{{{"", 1000},
                                                                         {"s", 1000},
                                                                         {"m", 60'000},
                                                                         {"min", 60'000},
                                                                         {"h", 3'600'000},
                                                                         {"d", 86'400'000}}};
  uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc()) return std::nullopt;
  for (const auto& [unit, factor] : kUnits) {
    if (std::string_view(rest, static_cast<size_t>(end - rest)) != unit) continue;
    if (number > UINT64_MAX / factor) return std::nullopt;
    return number * factor;
  }
  return std::nullopt;
}

std::string_view cut(std::string_view line, size_t columns) {
  size_t end = 0;
  for (; end < line.size(); ++end) {
    const bool begins = (static_cast<unsigned char>(line[end]) & 0xc0) != 0x80;
    if (begins && columns-- == 0) break;
  }
  return line.substr(0, end);
}

}  // namespace djinn::ctl
