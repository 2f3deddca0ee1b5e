// SPDX-License-Identifier: Apache-2.0

#include "ipc/file_number.h"

#include <fmt/format.h>

#include <charconv>

#include "kernel/base/assert.h"

namespace djinn::ipc {
namespace {

constexpr std::string_view kBegin = "File ";

}  // namespace

std::string with_file_number(size_t index, size_t count, std::string_view message) {
  DJINN_ASSERT(index < count);
  return fmt::format("{}{} of {}: {}", kBegin, index + 1, count, message);
}

std::optional<FileMessage> file_message(std::string_view text, size_t count) {
  if (!text.starts_with(kBegin)) return std::nullopt;
  text.remove_prefix(kBegin.size());
  size_t number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (read.ec != std::errc() || number == 0 || number > count) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(read.ptr - text.data()));
  const std::string middle = fmt::format(" of {}: ", count);
  if (!text.starts_with(middle)) return std::nullopt;
  return FileMessage{number - 1, text.substr(middle.size())};
}

}  // namespace djinn::ipc
