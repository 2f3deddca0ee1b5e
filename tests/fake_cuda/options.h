// SPDX-License-Identifier: Apache-2.0

// Options: what DJINN_FAKE_CUDA asks of the fake driver; README.md lists its words.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fake_cuda/codes.h"

namespace djinn::fake_cuda {

// Call `number` of a function, counted from 1, fails with `code`.
struct Fault {
  std::string function;  // the driver's symbol without _v2; "*": any
  uint64_t number = 0;
  Code code = Code::kUnknown;
  bool is_done = false;  // the call has its effect all the same
};

// Of the device; memory is imported where it is the same.
using Uuid = std::array<unsigned char, 16>;

struct Options {
  std::vector<Fault> faults;
  Uuid uuid{'d', 'j', 'i', 'n', 'n', ' ', 'f', 'a', 'k', 'e', ' ', 'g', 'p', 'u'};
  uint64_t memory_bytes = uint64_t{16} << 30;
  unsigned delay_us = 100;  // how long after its turn has come work on a stream begins
  std::string name = "Fake GPU";
  int driver_version = 13'000;
  int devices = 1;       // 0 or 1
  int compute_mode = 0;  // as Attribute::kComputeMode
  int mps = 0;           // 1: contexts are shared by MPS
  int partial_maps = 0;  // 1: a mapping may be of the beginning of its memory
};

// The symbol without _v2.
[[nodiscard]] std::string_view plain_name(std::string_view symbol);

// Ends the process with a message if it does not understand a word: a fault that is not planted
// would make a test pass.
[[nodiscard]] Options read_options(std::string_view text);

// The same of another library, which knows its functions.
using IsFunction = bool(std::string_view name);
[[nodiscard]] Options read_options(std::string_view text, IsFunction* is_function);

}  // namespace djinn::fake_cuda
