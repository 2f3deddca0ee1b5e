// SPDX-License-Identifier: Apache-2.0

#include "kernel/pal/available_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "kernel/base/checked.h"
#include "kernel/base/size_text.h"

namespace djinn::pal {
namespace {

// Gives the number of the line "MemAvailable:   123 kB".
std::optional<uint64_t> parse_available_kib(std::string_view text) {
  constexpr std::string_view kKey = "MemAvailable:";
  const size_t at = text.find(kKey);
  if (at == text.npos) return std::nullopt;
  const size_t digits = text.find_first_not_of(' ', at + kKey.size());
  if (digits == text.npos) return std::nullopt;
  uint64_t kib = 0;
  const auto [end, error] = std::from_chars(text.data() + digits, text.data() + text.size(), kib);
  if (error != std::errc{}) return std::nullopt;
  return kib;
}

}  // namespace

Result<AvailableMemory> AvailableMemory::open() {
  Fd fd(::open("/proc/meminfo", O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return system_error("open the kernel's memory figures", errno);
  return AvailableMemory(std::move(fd));
}

Result<uint64_t> AvailableMemory::bytes() const {
  char text[512];  // MemAvailable is the third line
  const ssize_t got = ::pread(meminfo_.get(), text, sizeof text, 0);
  if (got < 0) return system_error("read the kernel's memory figures", errno);
  const auto kib = parse_available_kib({text, static_cast<size_t>(got)});
  const auto bytes = kib ? checked_mul<uint64_t>(*kib, 1024) : std::nullopt;
  if (!bytes)
    return Error{ErrorCode::kMalformed, "the kernel's memory figures name no MemAvailable"};
  return *bytes;
}

Status AvailableMemory::check(uint64_t needed_bytes) const {
  DJINN_TRY(const uint64_t available, bytes());
  const uint64_t usable = available - std::min(available, kHeadroomBytes);
  if (needed_bytes <= usable) return {};
  return Error{ErrorCode::kOutOfMemory,
               fmt::format("the machine has {} of memory left for {} that are needed",
                           size_text(usable), size_text(needed_bytes))};
}

}  // namespace djinn::pal
