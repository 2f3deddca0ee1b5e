// SPDX-License-Identifier: Apache-2.0

// The fake NVML, in the order of the table in nvml_api.h.

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "kernel/base/fd.h"
#include "kernel/pal/cuda/nvml_api.h"

namespace djinn::fake_nvml {
namespace {

using pal::cuda::NvmlCode;

constexpr auto kUnknown = static_cast<NvmlCode>(999);

class Library {
 public:
  void read_options() {
    const char* const text = ::getenv("DJINN_FAKE_NVML");
    std::string_view rest = text == nullptr ? "" : text;
    while (!rest.empty()) {
      const std::string_view word = rest.substr(0, rest.find(';'));
      if (!word.empty() && !read_word(word)) {
        fmt::print(stderr, "fake NVML: DJINN_FAKE_NVML has '{}', which means nothing\n", word);
        std::abort();
      }
      rest.remove_prefix(std::min(rest.size(), word.size() + 1));
    }
  }

  // The next fault in the pipe; 0: there is none yet.
  unsigned long long next_xid() {
    char digit = 0;
    while (xids_.valid() && ::read(xids_.get(), &digit, 1) == 1) {
      if (digit == '\n') return std::exchange(xid_, 0);
      xid_ = 10 * xid_ + static_cast<unsigned>(digit - '0');
    }
    return 0;
  }

  std::string driver = "580.0";
  std::string fails;
  bool supports_events = true;
  unsigned minor = 0;

 private:
  bool read_word(std::string_view word) {
    const size_t equals = word.find('=');
    const std::string_view key = word.substr(0, equals);
    const std::string value(equals == word.npos ? "" : word.substr(equals + 1));
    if (key == "driver") driver = value;
    if (key == "fails") fails = value;
    if (key == "minor") minor = static_cast<unsigned>(std::stoul(value));
    if (key == "unsupported") supports_events = value != "1";
    if (key == "xids") xids_ = Fd(::open(value.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    return key == "driver" || key == "fails" || key == "unsupported" || key == "xids" ||
           key == "minor";
  }

  Fd xids_;
  unsigned long long xid_ = 0;  // what has been read of it
};

Library& library() {
  static Library* const it = new Library;
  return *it;
}

NvmlCode answer(std::string_view function) {
  return library().fails == function ? kUnknown : NvmlCode::kSuccess;
}

}  // namespace
}  // namespace djinn::fake_nvml

namespace djinn::pal::cuda {

using fake_nvml::answer;
using fake_nvml::library;

#define DJINN_FAKE_DECLARE(name, symbol, arguments) extern "C" NvmlCode symbol arguments;
DJINN_NVML_FUNCTIONS(DJINN_FAKE_DECLARE)
#undef DJINN_FAKE_DECLARE

NvmlCode nvmlInit_v2() {
  library().read_options();
  return answer(__func__);
}

NvmlCode nvmlShutdown() {
  return answer(__func__);
}

NvmlCode nvmlSystemGetDriverVersion(char* version, unsigned bytes) {
  const size_t count = library().driver.copy(version, bytes - 1);
  version[count] = '\0';
  return answer(__func__);
}

NvmlCode nvmlDeviceGetHandleByUUID(const char*, NvmlDevice* device) {
  *device = reinterpret_cast<NvmlDevice>(&library());
  return answer(__func__);
}

NvmlCode nvmlDeviceGetMinorNumber(NvmlDevice, unsigned* minor) {
  *minor = library().minor;
  return answer(__func__);
}

NvmlCode nvmlEventSetCreate(NvmlEventSet* set) {
  *set = reinterpret_cast<NvmlEventSet>(&library());
  return answer(__func__);
}

NvmlCode nvmlDeviceRegisterEvents(NvmlDevice, unsigned long long, NvmlEventSet) {
  return library().supports_events ? answer(__func__) : NvmlCode::kNotSupported;
}

NvmlCode nvmlEventSetWait_v2(NvmlEventSet, NvmlEvent* event, unsigned) {
  const unsigned long long xid = library().next_xid();
  if (xid == 0) return NvmlCode::kTimeout;
  *event = {.type = kNvmlXidEvent, .data = xid};
  return answer(__func__);
}

NvmlCode nvmlEventSetFree(NvmlEventSet) {
  return answer(__func__);
}

}  // namespace djinn::pal::cuda
