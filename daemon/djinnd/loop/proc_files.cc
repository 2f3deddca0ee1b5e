// SPDX-License-Identifier: Apache-2.0

#include "daemon/djinnd/loop/proc_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "kernel/base/fd.h"

namespace djinn::daemon {

std::string read_proc_file(const char* path) {
  constexpr size_t kBytesMax = size_t{64} << 10;
  const Fd file(::open(path, O_RDONLY | O_CLOEXEC));
  std::string text(kBytesMax, '\0');
  size_t length = 0;
  while (file.valid() && length < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + length, text.size() - length);
    if (got <= 0) break;
    length += static_cast<size_t>(got);
  }
  text.resize(length);
  return text;
}

std::string name_of_cpu() {
  const std::string text = read_proc_file("/proc/cpuinfo");
  constexpr std::string_view kKey = "model name\t: ";
  const size_t key = text.find(kKey);
  if (key == std::string::npos) return "";
  const size_t begin = key + kKey.size();
  return text.substr(begin, text.find('\n', begin) - begin);
}

std::vector<uint64_t> numbers_in(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n";
  std::vector<uint64_t> numbers;
  for (;;) {
    text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
    if (text.empty()) return numbers;
    const std::string_view word = text.substr(0, text.find_first_of(kSpace));
    uint64_t number = 0;
    std::from_chars(word.data(), word.data() + word.size(), number);
    numbers.push_back(number);
    text.remove_prefix(word.size());
  }
}

}  // namespace djinn::daemon
