// SPDX-License-Identifier: Apache-2.0

#include "kernel/pal/huge_pages.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>

#include "kernel/base/assert.h"
#include "kernel/base/checked.h"

namespace djinn::pal {
namespace {

// Gives what the file holds from its beginning on; nothing where it cannot be read.
std::string content_of(const Fd& file) {
  std::string content;
  std::array<char, 16384> buffer{};
  for (;;) {
    const ssize_t got =
        ::pread(file.get(), buffer.data(), buffer.size(), static_cast<off_t>(content.size()));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got == 0 ? content : "";
    content.append(buffer.data(), static_cast<size_t>(got));
  }
}

// Gives, of "always [advise] never", the word that is in force.
std::string chosen_word(const std::string& path) {
  const std::string text = content_of(Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)));
  const size_t begin = text.find('[');
  const size_t end = text.find(']');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return "";
  return text.substr(begin + 1, end - begin - 1);
}

std::optional<uint64_t> number_in(std::string_view text, int base) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

// Gives the first address of a mapping whose line this is, "7f0000000000-7f0000200000 rw-s ...".
std::optional<uint64_t> address_in(std::string_view line) {
  const size_t dash = line.find('-');
  if (dash == std::string_view::npos || dash > line.find(' ')) return std::nullopt;
  return number_in(line.substr(0, dash), 16);
}

// Gives the bytes of a line "ShmemPmdMapped:     2048 kB"; nothing for another line.
std::optional<uint64_t> huge_bytes_in(std::string_view line) {
  constexpr std::string_view kKey = "ShmemPmdMapped:";
  if (!line.starts_with(kKey)) return std::nullopt;
  const size_t digits = line.find_first_not_of(' ', kKey.size());
  if (digits == std::string_view::npos) return std::nullopt;
  const auto kibibytes = number_in(line.substr(digits), 10);
  return kibibytes ? checked_mul<uint64_t>(*kibibytes, 1024) : std::nullopt;
}

}  // namespace

// More is reserved than is wanted, and what lies before and behind goes back.
Result<Mapping> reserve_addresses(uint64_t bytes) {
  if (bytes == 0) return Error{ErrorCode::kInvalidArgument, "a mapping needs at least one byte"};
  const uint64_t slack = bytes >= kHugePageBytes ? kHugePageBytes : 0;
  const auto whole = checked_add(bytes, slack);
  void* const at =
      whole ? ::mmap(nullptr, *whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
            : MAP_FAILED;
  if (at == MAP_FAILED) return system_error("reserve addresses", whole ? errno : ENOMEM);
  auto* const data = static_cast<std::byte*>(at);
  if (slack == 0) return Mapping(data, bytes);
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t before = (~reinterpret_cast<uint64_t>(data) + 1) % kHugePageBytes;
  const uint64_t end = *align_up(before + bytes, page);
  bool trimmed = before == 0 || ::munmap(data, before) == 0;
  if (end < *whole) trimmed &= ::munmap(data + end, *whole - end) == 0;
  DJINN_ASSERT(trimmed);
  return Mapping(data + before, bytes);
}

void ask_for_huge_pages(std::span<std::byte> mapped) {
  const uint64_t bytes = mapped.size() - mapped.size() % kHugePageBytes;
  const bool begins_a_block = reinterpret_cast<uint64_t>(mapped.data()) % kHugePageBytes == 0;
  if (bytes == 0 || !begins_a_block) return;
  [[maybe_unused]] const int refused = ::madvise(mapped.data(), bytes, MADV_HUGEPAGE);
}

std::string huge_page_setting(const std::string& directory) {
  const std::string own = chosen_word(directory + "/hugepages-2048kB/shmem_enabled");
  const bool inherits = own.empty() || own == "inherit";
  return inherits ? chosen_word(directory + "/shmem_enabled") : own;
}

OwnMappings OwnMappings::open() {
  return OwnMappings(Fd(::open("/proc/self/smaps", O_RDONLY | O_CLOEXEC)));
}

uint64_t OwnMappings::huge_bytes(std::span<const std::byte> mapped) const {
  const auto begin = reinterpret_cast<uint64_t>(mapped.data());
  const std::string text = smaps_.valid() ? content_of(smaps_) : "";
  bool inside = false;
  uint64_t bytes = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = std::string_view(text).substr(at, end - at);
    if (const auto address = address_in(line)) {
      inside = *address >= begin && *address - begin < mapped.size();
    } else if (inside) {
      bytes += huge_bytes_in(line).value_or(0);
    }
    at = end + 1;
  }
  return std::min<uint64_t>(bytes, mapped.size());
}

}  // namespace djinn::pal
