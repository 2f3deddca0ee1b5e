// SPDX-License-Identifier: Apache-2.0

// Principal: who a certificate says that its holder is: a name of the form spiffe://DOMAIN/PATH
// (SPIFFE-ID, sections 2.1 to 2.4, of fewer bytes than it allows).
#pragma once

#include <string>
#include <string_view>

#include "ipc/limits.h"
#include "kernel/base/result.h"

namespace djinn::ipc {

// Of one name: it travels and is shown as names are.
inline constexpr size_t kPrincipalBytesMax = limits::kNameBytes;
static_assert(kPrincipalBytesMax == 256);  // as what refuses longer ones says

class Principal {
 public:
  // Errors: kInvalidArgument, with what is wrong.
  static Result<Principal> parse(std::string_view uri);

  [[nodiscard]] const std::string& text() const { return text_; }
  // Who may sign for it: as in spiffe://DOMAIN/.
  [[nodiscard]] std::string_view domain() const;
  [[nodiscard]] std::string_view path() const;  // from its slash on
  // The name of a djinn-gate, which no client has.
  [[nodiscard]] bool is_gate() const;
  friend bool operator==(const Principal&, const Principal&) = default;

 private:
  explicit Principal(std::string_view text) : text_(text) {}

  std::string text_;
};

}  // namespace djinn::ipc
