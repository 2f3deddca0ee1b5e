// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/naming_file.h"

#include "ipc/file_number.h"

namespace djinn::client {

Error naming_file(const Error& error, std::span<const std::string> paths) {
  const auto found = ipc::file_message(error.message, paths.size());
  if (!found) return error;
  return {error.code, paths[found->index] + ": " + std::string(found->message)};
}

}  // namespace djinn::client
