// SPDX-License-Identifier: Apache-2.0

#include "daemon/gate/authority/record.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace djinn::authority {
namespace {

constexpr std::string_view kHead = "djinn-gate-ca 1";
constexpr std::string_view kNever = "-";

// Reads lines, and words of them.
class Lines {
 public:
  explicit Lines(std::string_view text) : text_(text) {}

  // The next line; nothing behind the last one, and where the text ends within one.
  std::optional<std::string_view> next() {
    const size_t end = text_.find('\n');
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view line = text_.substr(0, end);
    text_.remove_prefix(end + 1);
    ++number_;
    return line;
  }
  [[nodiscard]] bool is_at_end() const { return text_.empty(); }
  [[nodiscard]] size_t number() const { return number_; }

 private:
  std::string_view text_;
  size_t number_ = 0;
};

template <typename T>
std::optional<T> number_in(std::string_view text) {
  T number{};
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_one = error == std::errc() && rest == text.data() + text.size();
  return is_one ? std::optional(number) : std::nullopt;
}

std::optional<Issued> issued_of(std::string_view line) {
  std::array<std::string_view, 5> words;
  for (size_t i = 0; i < words.size(); ++i) {
    const size_t space = line.find(' ');
    if ((space == std::string_view::npos) != (i + 1 == words.size())) return std::nullopt;
    words[i] = line.substr(0, space);
    line.remove_prefix(std::min(space + 1, line.size()));
  }
  const auto serial = serial_of(words[0]);
  const auto since = number_in<int64_t>(words[2]);
  const auto until = number_in<int64_t>(words[3]);
  const auto revoked = number_in<int64_t>(words[4]);
  if (!serial || words[1].empty() || !since || !until || (!revoked && words[4] != kNever)) {
    return std::nullopt;
  }
  return Issued{*serial, std::string(words[1]), *since, *until, revoked};
}

// Takes the value of "key: value".
bool take(std::string_view line, std::string_view key, std::string& value) {
  const std::string begin = fmt::format("{}: ", key);
  if (!line.starts_with(begin) || line.size() == begin.size()) return false;
  value = line.substr(begin.size());
  return true;
}

// Reads what stands before the empty line.
bool read_head(Lines& lines, Record& record) {
  if (lines.next() != kHead) return false;
  std::string number;
  for (auto line = lines.next(); line && !line->empty(); line = lines.next()) {
    std::string address;
    if (take(*line, "address", address)) {
      record.addresses.push_back(std::move(address));
    } else if (!take(*line, "trust-domain", record.trust_domain) &&
               !take(*line, "gate", record.gate) && !take(*line, "list", number)) {
      return false;
    }
  }
  const auto list_number = number_in<uint64_t>(number);
  record.list_number = list_number.value_or(0);
  return list_number && !record.trust_domain.empty() && !record.gate.empty() &&
         !record.addresses.empty();
}

}  // namespace

const char* name_of(State state) {
  switch (state) {
    case State::kValid:
      return "valid";
    case State::kExpired:
      return "expired";
    case State::kRevoked:
      return "revoked";
  }
  return "";
}

State Issued::state(int64_t now_s) const {
  if (revoked_s) return State::kRevoked;
  return until_s <= now_s ? State::kExpired : State::kValid;
}

std::string text_of(const Record& record) {
  std::string text =
      fmt::format("{}\ntrust-domain: {}\ngate: {}\n", kHead, record.trust_domain, record.gate);
  for (const std::string& address : record.addresses) text += fmt::format("address: {}\n", address);
  text += fmt::format("list: {}\n\n", record.list_number);
  for (const Issued& one : record.issued) {
    text += fmt::format("{} {} {} {} {}\n", text_of(one.serial), one.principal, one.since_s,
                        one.until_s,
                        one.revoked_s ? fmt::format("{}", *one.revoked_s) : std::string(kNever));
  }
  return text;
}

Result<Record> record_of(std::string_view text, const std::string& what) {
  Lines lines(text);
  Record record;
  bool is_whole = read_head(lines, record);
  while (is_whole && !lines.is_at_end()) {
    const auto line = lines.next();
    auto issued = line ? issued_of(*line) : std::nullopt;
    is_whole = issued.has_value();
    if (issued) record.issued.push_back(*std::move(issued));
  }
  if (is_whole) return record;
  return Error{ErrorCode::kMalformed,
               fmt::format("{} is no record of an authority's, or of another version: line {} "
                           "cannot be read. Without it nobody knows what was issued. Put back the "
                           "file that was there, from a copy.",
                           what, std::max<size_t>(lines.number(), 1))};
}

}  // namespace djinn::authority
