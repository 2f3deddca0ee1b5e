// SPDX-License-Identifier: Apache-2.0

// Files in which the kernel tells of a process or of itself, proc(5).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace djinn::daemon {

// The content of the file, at most 64 KiB of it; nothing where it cannot be read.
[[nodiscard]] std::string read_proc_file(const char* path);

// What the first processor calls itself; empty if the kernel does not say.
[[nodiscard]] std::string name_of_cpu();

// Its words, as white space divides them, as numbers without a sign; 0 for what is none.
[[nodiscard]] std::vector<uint64_t> numbers_in(std::string_view text);

}  // namespace djinn::daemon
