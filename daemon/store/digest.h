// SPDX-License-Identifier: Apache-2.0

// Digests of the store's blobs and records, SHA-256, as 64 lower-case hex digits.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "kernel/base/fd.h"
#include "kernel/base/result.h"
#include "kernel/load/hash.h"

namespace djinn::store {

using load::Digest;

[[nodiscard]] std::string text_of(const Digest& digest);
[[nodiscard]] std::optional<Digest> digest_from(std::string_view text);
Result<Digest> digest_of(std::string_view bytes);
// Of a file's first bytes, read from its beginning, wherever its position is; it may take seconds.
// Errors: kFileChanged for a file that has fewer, kIo and its kin. Any thread.
Result<Digest> digest_of_file(const Fd& file, uint64_t bytes);

}  // namespace djinn::store
