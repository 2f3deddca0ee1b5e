// SPDX-License-Identifier: Apache-2.0

// Which of a model's files an error is about. Files cross as descriptors: a loader knows their
// numbers alone, and the client their names, which it puts in place of the number.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace djinn::ipc {

// "File 2 of 3: MESSAGE", of the file with index 1.
[[nodiscard]] std::string with_file_number(size_t index, size_t count, std::string_view message);

struct FileMessage {
  size_t index = 0;
  std::string_view message;  // without the number
};
// Nothing where the text does not begin as above, with this count.
[[nodiscard]] std::optional<FileMessage> file_message(std::string_view text, size_t count);

}  // namespace djinn::ipc
