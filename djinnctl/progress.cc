// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "djinnctl/text.h"
#include "kernel/base/clock.h"
#include "kernel/base/text.h"

namespace djinn::ctl {
namespace {

constexpr size_t kLabelMax = 24;
// A bar with fewer marks tells nothing, and one with more tells no more.
constexpr size_t kMarksMin = 4;
constexpr size_t kMarksMax = 40;
// A rate is shown after this time; before, it would be a guess.
constexpr uint64_t kRateAfter = kNsPerSecond / 2;

std::optional<uint64_t> bytes_a_second(const ProgressLook& first, const ProgressLook& now) {
  const uint64_t elapsed = now.now_ns - std::min(first.now_ns, now.now_ns);
  if (elapsed < kRateAfter || now.done_bytes <= first.done_bytes) return std::nullopt;
  const auto bytes = static_cast<double>(now.done_bytes - first.done_bytes);
  return static_cast<uint64_t>(bytes * static_cast<double>(kNsPerSecond) /
                               static_cast<double>(elapsed));
}

// Gives a text such as "  350 MiB/s  4s left"; empty while the rate is not known.
std::string rate_text(const ProgressLook& first, const ProgressLook& now) {
  const auto rate = bytes_a_second(first, now);
  if (!rate || *rate == 0) return "";
  const uint64_t seconds = (now.total_bytes - now.done_bytes) / *rate;
  return fmt::format("  {}/s  {} left", size_text(*rate), span_text(seconds * kNsPerSecond));
}

std::string bar_of(size_t columns, uint64_t percent) {
  constexpr size_t kFrame = 4;  // brackets, and the gap before them
  if (columns < kMarksMin + kFrame) return "";
  const size_t marks = std::min(columns - kFrame, kMarksMax);
  const size_t full = marks * percent / 100;
  return fmt::format("  [{}{}]", std::string(full, '#'), std::string(marks - full, '.'));
}

}  // namespace

Progress::Progress(std::string label, const Terminal& terminal)
    : label_(showable(label)), columns_(terminal.rewrites_lines ? terminal.columns : 0) {}

void Progress::show(const ProgressLook& look) {
  if (columns_ == 0) return;
  if (!begun_) first_ = look;
  begun_ = true;
  rewrite_error_line(line(label_, first_, look, columns_), columns_);
}

void Progress::finish() {
  if (begun_) rewrite_error_line("", columns_);
  begun_ = false;
}

std::string Progress::line(const std::string& label, const ProgressLook& first,
                           const ProgressLook& now, size_t columns) {
  const size_t room = columns - 1;
  const std::string name = isolated(shortened(label, std::min(kLabelMax, room)));
  if (now.total_bytes == 0) return shortened(name + "  waiting", room);
  ProgressLook look = now;
  look.done_bytes = std::min(look.done_bytes, look.total_bytes);
  const uint64_t percent = percent_of(look.done_bytes, look.total_bytes);
  const std::string head = fmt::format("{}  {:3}%", name, percent);
  const std::string tail = fmt::format("  {}/{}{}", size_text(look.done_bytes),
                                       size_text(look.total_bytes), rate_text(first, look));
  const size_t taken = width_of(head) + width_of(tail);
  const std::string bar = taken < room ? bar_of(room - taken, percent) : "";
  return shortened(head + bar + tail, room);
}

}  // namespace djinn::ctl
