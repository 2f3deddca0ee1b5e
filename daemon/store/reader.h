// SPDX-License-Identifier: Apache-2.0

// Reader: who may read a published model, beside who published it and administrators.
//
//   owner               nobody else
//   local               every user of this machine
//   all                 principals of other machines, too
//   group:G             the members of a group of this machine
//   principal:P         a principal, spiffe://DOMAIN/PATH; or with /* as its end all below that
//   path
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernel/base/owner.h"
#include "kernel/base/result.h"

namespace djinn::store {

// Who asks.
struct Asker {
  Owner owner;
  bool is_administrator = false;
  std::vector<std::string> groups{};  // of a local user
  std::string principal{};            // of one who is no local user
};

class Reader {
 public:
  static Result<Reader> parse(std::string_view text);  // errors: kInvalidArgument
  [[nodiscard]] const std::string& text() const { return text_; }
  [[nodiscard]] bool admits(const Asker& asker) const;
  friend bool operator==(const Reader&, const Reader&) = default;

 private:
  explicit Reader(std::string_view text) : text_(text) {}

  std::string text_;
};

}  // namespace djinn::store
