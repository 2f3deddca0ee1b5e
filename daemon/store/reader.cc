// SPDX-License-Identifier: Apache-2.0

#include "daemon/store/reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "daemon/store/name.h"
#include "kernel/base/text.h"

namespace djinn::store {
namespace {

constexpr std::string_view kGroup = "group:";
constexpr std::string_view kPrincipal = "principal:";
constexpr std::string_view kPrincipals = "spiffe://";
constexpr std::string_view kBelow = "/*";
constexpr size_t kReaderBytesMax = 280;  // a principal of the most bytes, and what stands around it

bool is_pattern(std::string_view text) {
  if (!text.starts_with(kPrincipals)) return false;
  text.remove_prefix(kPrincipals.size());
  if (text.ends_with(kBelow)) text.remove_suffix(kBelow.size());
  return is_shown_by_ascii(text) && !text.starts_with('/') &&
         text.find('*') == std::string_view::npos;
}

}  // namespace

Result<Reader> Reader::parse(std::string_view text) {
  const bool is_word = text == "owner" || text == "local" || text == "all";
  const bool is_group = text.starts_with(kGroup) && is_shown_by_ascii(text.substr(kGroup.size()));
  const bool is_principal =
      text.starts_with(kPrincipal) && is_pattern(text.substr(kPrincipal.size()));
  if ((is_word || is_group || is_principal) && text.size() <= kReaderBytesMax) return Reader(text);
  return Error{ErrorCode::kInvalidArgument,
               fmt::format("'{}' says of nobody that they may read a model. Say owner, local, all, "
                           "group:NAME, or principal:spiffe://DOMAIN/PATH, whose end may be /*.",
                           showable(text.substr(0, kReaderBytesMax)))};
}

bool Reader::admits(const Asker& asker) const {
  const std::string_view text = text_;
  const bool is_local = asker.owner.user().has_value();
  if (text == "all") return asker.owner.valid();
  if (text == "local") return is_local;
  if (text.starts_with(kGroup)) {
    return is_local &&
           std::ranges::find(asker.groups, text.substr(kGroup.size())) != asker.groups.end();
  }
  if (!text.starts_with(kPrincipal) || !asker.owner.is_principal()) return false;
  std::string_view pattern = text.substr(kPrincipal.size());
  if (!pattern.ends_with(kBelow)) return asker.principal == pattern;
  pattern.remove_suffix(1);  // the slash stays: /team/* is not /teams
  return asker.principal.size() > pattern.size() && asker.principal.starts_with(pattern);
}

}  // namespace djinn::store
