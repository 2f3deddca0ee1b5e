// SPDX-License-Identifier: Apache-2.0

// Name: what a published model is called. NAME:TAG is given by administrators, ~USER/NAME:TAG by
// that user alone, who may be a principal of another machine.
//
// NAME and TAG are of few characters, so that no two look alike; USER may have any that ASCII can
// show. The file of a name's record is called by its escape, which has neither slashes nor a point
// in front.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "kernel/base/result.h"

namespace djinn::store {

inline constexpr size_t kNamePartBytesMax = 64;   // of NAME, and of TAG
inline constexpr size_t kNameFileBytesMax = 240;  // 255 of Linux, less what Disk puts around it
inline constexpr std::string_view kTagOfNone = "latest";

class Name {
 public:
  // Without a tag it has kTagOfNone. Errors: kInvalidArgument, with what is wrong.
  static Result<Name> parse(std::string_view text);
  // The name whose record a file is. Errors: kMalformed.
  static Result<Name> of_file(std::string_view file_name);

  // With its tag, always.
  [[nodiscard]] const std::string& text() const { return text_; }
  // Who alone gives it; empty: administrators.
  [[nodiscard]] std::string_view user() const;
  [[nodiscard]] std::string file_name() const;
  friend bool operator==(const Name&, const Name&) = default;

 private:
  explicit Name(std::string text) : text_(std::move(text)) {}

  std::string text_;
};

// Letters, digits and . _ - , of which the first is a letter or a digit.
[[nodiscard]] bool is_plain(std::string_view text) noexcept;
// Characters that ASCII can show, without the blank; one at least.
[[nodiscard]] bool is_shown_by_ascii(std::string_view text) noexcept;

}  // namespace djinn::store
