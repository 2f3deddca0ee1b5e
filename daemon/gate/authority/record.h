// SPDX-License-Identifier: Apache-2.0

// Record: what an authority knows beside its key: whose it is, and every certificate that it has
// issued, until a year after its end. It is text, one line each, written whole.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/gate/authority/certificates.h"
#include "kernel/base/result.h"

namespace djinn::authority {

enum class State : uint8_t { kValid, kExpired, kRevoked };
[[nodiscard]] const char* name_of(State state);

struct Issued {
  Serial serial{};
  std::string principal;
  int64_t since_s = 0;  // since the epoch
  int64_t until_s = 0;
  std::optional<int64_t> revoked_s{};

  [[nodiscard]] State state(int64_t now_s) const;
  friend bool operator==(const Issued&, const Issued&) = default;
};

// Each costs a line of some 100 bytes, and all are written with each that is issued.
inline constexpr size_t kIssuedMax = 65536;
inline constexpr uint64_t kRecordBytesMax = uint64_t{32} << 20;

struct Record {
  std::string trust_domain;
  std::string gate;                    // its principal
  std::vector<std::string> addresses;  // of the gate: HOST:PORT; never empty
  uint64_t list_number = 0;            // of the last list of revoked certificates
  std::vector<Issued> issued{};        // the oldest first

  friend bool operator==(const Record&, const Record&) = default;
};

[[nodiscard]] std::string text_of(const Record& record);
// Error: kMalformed, which names the line. what: the file's name, for that.
Result<Record> record_of(std::string_view text, const std::string& what);

}  // namespace djinn::authority
