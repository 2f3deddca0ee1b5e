// SPDX-License-Identifier: Apache-2.0

#include "kernel/pal/process_state.h"

#include <fcntl.h>
#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "kernel/base/fd.h"

namespace djinn::pal {
namespace {

std::string read_maps() {
  const Fd fd(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC));
  std::string text;
  char chunk[16384];
  for (ssize_t got; (got = ::read(fd.get(), chunk, sizeof chunk)) > 0;) {
    text.append(chunk, static_cast<size_t>(got));
  }
  return text;
}

uint64_t hex(std::string_view digits) {
  uint64_t value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  return value;
}

// A line is, for example, "7f00-7f10 rw-s 00000000 00:01 5  /memfd:name (deleted)".
void count_line(std::string_view line, ProcessState& state) {
  const size_t dash = line.find('-'), space = line.find(' ');
  const uint64_t bytes = hex(line.substr(dash + 1, space - dash - 1)) - hex(line.substr(0, dash));
  if (line.find("/memfd:") != line.npos) {
    state.memfd_mappings += 1;
    state.memfd_mapped_bytes += bytes;
  } else if (kCountsReserved && line.substr(space + 1, 4) == "---p" &&
             line.find('/') == line.npos) {
    state.reserved_bytes += bytes;
  }
}

uint64_t count_descriptors() {
  uint64_t count = 0;
  std::error_code ignored;
  const std::filesystem::directory_iterator all("/proc/self/fd", ignored);
  for ([[maybe_unused]] const auto& entry : all) ++count;
  return count - 1;  // the directory itself was open meanwhile
}

}  // namespace

ProcessState read_process_state() {
  ProcessState state;
  state.descriptors = count_descriptors();
  const std::string text = read_maps();
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    count_line(std::string_view(text).substr(at, end - at), state);
    at = end + 1;
  }
  return state;
}

}  // namespace djinn::pal
