// SPDX-License-Identifier: Apache-2.0

#include "daemon/store/record.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <set>

#include "kernel/base/assert.h"
#include "kernel/base/size_text.h"
#include "kernel/base/text.h"

namespace djinn::store {
namespace {

constexpr std::string_view kHead = "djinn-model 1";
constexpr std::string_view kWeights = ".safetensors";
constexpr std::array<std::string_view, 4> kSmall = {".json", ".txt", ".model", ".jinja"};

std::optional<uint64_t> number_in(std::string_view text) {
  uint64_t number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_one = error == std::errc() && rest == text.data() + text.size() &&
                      text == fmt::format("{}", number);
  return is_one ? std::optional(number) : std::nullopt;
}

// What stands before the first blank; the text goes on behind it.
std::string_view take_word(std::string_view& text) {
  const size_t blank = std::min(text.find(' '), text.size());
  const std::string_view word = text.substr(0, blank);
  text.remove_prefix(std::min(blank + 1, text.size()));
  return word;
}

std::string line_of(const File& file) {
  return fmt::format("file {} {} {}\n", text_of(file.digest), file.bytes, file.name);
}

bool add_file(std::string_view rest, Record& record) {
  const auto digest = digest_from(take_word(rest));
  const auto bytes = number_in(take_word(rest));
  if (!digest || !bytes || record.files.size() == kFilesMax) return false;
  record.files.push_back({std::string(rest), *digest, *bytes});
  return true;
}

bool add_reader(std::string_view rest, Record& record) {
  auto reader = Reader::parse(rest);
  if (reader) record.readers.push_back(*std::move(reader));
  return reader.ok();
}

bool take_line(std::string_view line, Record& record) {
  const std::string_view key = take_word(line);
  if (key == "name") return line == record.name.text();
  if (key == "reader") return add_reader(line, record);
  if (key == "file") return add_file(line, record);
  if (key == "alias") {
    record.aliases.emplace_back(line);
    return true;
  }
  const auto number = number_in(line);
  if (!number) return false;
  if (key == "since") {
    record.since_s = *number;
    return true;
  }
  const auto owner = Owner::of_number(*number);
  if (key != "owner" || !owner) return false;
  record.owner = *owner;
  return true;
}

Error malformed(const Name& name) {
  return {
      ErrorCode::kMalformed,
      fmt::format("The record of {} in the store of models is damaged, or of another version. "
                  "Nothing of the store is removed while it is. Remove the name, and import the "
                  "model again.",
                  name.text())};
}

bool is_alias(std::string_view text) {
  return is_shown_by_ascii(text) && text.size() <= kAliasBytesMax &&
         text.find(':') != std::string_view::npos;
}

Error not_published(std::string_view what) {
  return {ErrorCode::kInvalidArgument, fmt::format("The model is not published: {}.", what)};
}

}  // namespace

bool Record::may_read(const Asker& asker) const {
  if (asker.is_administrator || (asker.owner.valid() && asker.owner == owner)) return true;
  return std::ranges::any_of(readers, [&](const Reader& one) { return one.admits(asker); });
}

Status check_file(std::string_view name, uint64_t bytes) {
  const bool is_small =
      std::ranges::any_of(kSmall, [&](std::string_view end) { return name.ends_with(end); });
  if (!is_plain(name) || name.size() > kFileNameBytesMax ||
      (!is_small && !name.ends_with(kWeights))) {
    return Error{
        ErrorCode::kInvalidArgument,
        fmt::format("'{}' is no file of a model that the store takes: those are called "
                    "*.safetensors, *.json, *.txt, *.model or *.jinja, with letters, digits "
                    "and . _ - of ASCII, and are in no folder of their own.",
                    showable(name.substr(0, kFileNameBytesMax)))};
  }
  const uint64_t bytes_max = is_small ? kSmallFileBytesMax : kFileBytesMax;
  if (bytes <= bytes_max) return {};
  return Error{ErrorCode::kLimitExceeded,
               fmt::format("{} has {}, and such a file has at most {}.", name, size_text(bytes),
                           size_text(bytes_max))};
}

Status check(const Record& record) {
  if (!record.owner.valid()) return not_published("nobody publishes it");
  if (record.files.empty()) return not_published("it has no files");
  if (record.files.size() > kFilesMax) {
    return not_published(fmt::format("it has more than {} files", kFilesMax));
  }
  if (record.readers.size() > kReadersMax || record.aliases.size() > kReadersMax) {
    return not_published(fmt::format("it has more than {} readers or aliases", kReadersMax));
  }
  if (!std::ranges::all_of(record.aliases, is_alias)) {
    return not_published("an alias is like hf:ORG/REPO@COMMIT, in characters of ASCII");
  }
  std::set<std::string_view> names;
  for (const File& file : record.files) {
    DJINN_CHECK(check_file(file.name, file.bytes));
    if (!names.insert(file.name).second) return not_published(file.name + " is there twice");
  }
  return {};
}

Result<std::string> text_of(const Record& record) {
  DJINN_CHECK(check(record));
  std::string text = fmt::format("{}\nname {}\nowner {}\nsince {}\n", kHead, record.name.text(),
                                 record.owner.number(), record.since_s);
  for (const Reader& reader : record.readers) text += fmt::format("reader {}\n", reader.text());
  for (const std::string& alias : record.aliases) text += fmt::format("alias {}\n", alias);
  for (const File& file : record.files) text += line_of(file);
  DJINN_TRY(const Digest sum, digest_of(text));
  text += fmt::format("sum {}\n", text_of(sum));
  DJINN_ASSERT(text.size() <= kRecordBytesMax);
  return text;
}

Result<Record> record_of(std::string_view text, const Name& name) {
  const size_t end = text.rfind("sum ");
  if (end == std::string_view::npos || !text.ends_with('\n')) return malformed(name);
  DJINN_TRY(const Digest sum, digest_of(text.substr(0, end)));
  if (text.substr(end) != fmt::format("sum {}\n", text_of(sum))) return malformed(name);
  Record record{.name = name, .owner = {}};
  std::string_view rest = text.substr(0, end);
  bool is_head = true;
  while (!rest.empty()) {
    const size_t line_end = rest.find('\n');
    if (line_end == std::string_view::npos) return malformed(name);
    const std::string_view line = rest.substr(0, line_end);
    rest.remove_prefix(line_end + 1);
    const bool is_good = is_head ? line == kHead : take_line(line, record);
    if (!is_good) return malformed(name);
    is_head = false;
  }
  // The same record has one text: what was left out, or is there twice, is found so.
  const auto again = text_of(record);
  if (!again || *again != text) return malformed(name);
  return record;
}

Result<Digest> contents_of(const Record& record) {
  std::vector<File> files = record.files;
  std::ranges::sort(files, {}, &File::name);
  std::string text;
  for (const File& file : files) text += line_of(file);
  return digest_of(text);
}

}  // namespace djinn::store
