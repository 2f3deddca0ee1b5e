// SPDX-License-Identifier: Apache-2.0

#include "djinnctl/host_profile.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "ipc/principal.h"
#include "kernel/base/file.h"
#include "kernel/base/text.h"

namespace djinn::ctl {
namespace {

constexpr std::string_view kBegin = "-----BEGIN ";
constexpr std::string_view kEnd = "-----END ";
constexpr std::string_view kDashes = "-----";
constexpr std::string_view kKey = "PRIVATE KEY";
constexpr size_t kNameBytesMax = 128;

Error malformed(const std::string& what, std::string_view why) {
  return {ErrorCode::kMalformed,
          fmt::format("{} is no profile of a gate: {}. Ask who runs the gate for another one "
                      "('djinnctl gate enrol').",
                      showable(what), why)};
}

std::string_view next_line(std::string_view& text) {
  const size_t end = std::min(text.find('\n'), text.size());
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line.ends_with('\r') ? line.substr(0, line.size() - 1) : line;
}

bool is_address(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0 || !is_showable(text)) return false;
  const std::string_view port = text.substr(colon + 1);
  uint16_t number = 0;
  const auto [rest, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  const bool is_whole = error == std::errc() && rest == port.data() + port.size();
  return is_whole && number != 0 && text.find_first_of(" /") == std::string_view::npos;
}

bool is_gate(std::string_view text) {
  const auto principal = ipc::Principal::parse(text);
  return principal && principal->is_gate();
}

// Takes the value of "key: value", once. Whether the line is one of that key.
bool take(std::string_view line, std::string_view key, std::string& value) {
  const std::string begin = fmt::format("{}: ", key);
  if (!line.starts_with(begin) || !value.empty()) return false;
  value = line.substr(begin.size());
  return true;
}

struct Blocks {
  size_t certificates = 0;
  size_t keys = 0;
  bool has_locked_key = false;  // under a password
  bool is_whole = true;         // each that begins ends
};

Blocks blocks_in(std::string_view text) {
  Blocks found;
  std::string_view open;
  while (!text.empty()) {
    const std::string_view line = next_line(text);
    const bool begins = line.starts_with(kBegin);
    if (!begins && !line.starts_with(kEnd)) continue;
    const size_t from = begins ? kBegin.size() : kEnd.size();
    const std::string_view label = line.substr(from, line.rfind(kDashes) - from);
    if (begins != open.empty() || !line.ends_with(kDashes) || (!begins && label != open)) {
      found.is_whole = false;
      return found;
    }
    open = begins ? label : std::string_view();
    if (begins) continue;
    found.certificates += label == "CERTIFICATE" ? 1 : 0;
    found.keys += label.ends_with(kKey) ? 1 : 0;
    found.has_locked_key |= label == "ENCRYPTED PRIVATE KEY";
  }
  found.is_whole = open.empty();
  return found;
}

Status check_blocks(std::string_view text, const std::string& what) {
  const Blocks found = blocks_in(text);
  if (!found.is_whole)
    return malformed(what, "it was cut, or changed, within a certificate or key");
  if (found.certificates < 2) return malformed(what, "it lacks a certificate");
  if (found.keys == 1 && !found.has_locked_key) return {};
  const char* const why = found.has_locked_key ? "has a key under a password, of which nobody is "
                                                 "asked. Put the key there without one"
                          : found.keys == 0    ? "has no key: who enrolled you signed a request of "
                                                 "yours. Append the key that you made it with"
                                               : "has several keys. Leave the one that the request "
                                                 "was made with";
  return Error{ErrorCode::kMalformed, fmt::format("{} {}, and add it again.", showable(what), why)};
}

Error failed(std::string_view what, const std::string& path) {
  return system_error(fmt::format("{} {}", what, path), errno);
}

Status make_folders(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return system_error("make the folder " + folder, error.value());
  if (::chmod(folder.c_str(), 0700) != 0) return failed("close to others", folder);
  return {};
}

Status refuse_other_gate(const std::string& path, const HostProfile& profile) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0 && errno == ENOENT) return {};
  DJINN_TRY(const std::string text, read_regular_file(path, kProfileBytesMax));
  DJINN_TRY(const HostProfile present, parse_host_profile(text, path));
  if (present.gate == profile.gate) return {};
  return Error{ErrorCode::kAlreadyExists,
               fmt::format("{} leads to another gate, {}. Give this one another name with --name, "
                           "or remove that file.",
                           path, present.gate)};
}

}  // namespace

Result<HostProfile> parse_host_profile(std::string_view text, const std::string& what) {
  HostProfile profile;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view line = next_line(rest);
    if (line.empty()) break;
    if (!take(line, "address", profile.address) && !take(line, "gate", profile.gate)) {
      return malformed(what, "it does not begin with lines 'address:' and 'gate:'");
    }
  }
  if (!is_address(profile.address)) return malformed(what, "it has no address HOST:PORT");
  if (!is_gate(profile.gate)) return malformed(what, "it does not say what the gate is called");
  DJINN_CHECK(check_blocks(rest, what));
  return profile;
}

Status check_host_name(std::string_view name) {
  const auto is_of_name = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  if (!name.empty() && name.size() <= kNameBytesMax && name.front() != '.' && name.front() != '-' &&
      std::ranges::all_of(name, is_of_name)) {
    return {};
  }
  return Error{
      ErrorCode::kInvalidArgument,
      fmt::format("'{}' is no name of a host. It has 1 to {} letters, digits, '.', '_' and "
                  "'-', and begins with none of the last but '_'. Give one with --name.",
                  showable(name), kNameBytesMax)};
}

std::string name_from(const HostProfile& profile) {
  if (profile.address.starts_with('[')) return "";
  return profile.address.substr(0, profile.address.rfind(':'));
}

Status install_host_profile(const std::string& folder, const std::string& name,
                            std::string_view text, const HostProfile& profile) {
  const std::string path = fmt::format("{}/{}.pem", folder, name);
  DJINN_CHECK(make_folders(folder));
  DJINN_CHECK(refuse_other_gate(path, profile));
  std::string beside = fmt::format("{}/.{}.XXXXXX", folder, name);
  const Fd file(::mkostemp(beside.data(), O_CLOEXEC));  // 0600
  if (!file.valid()) return failed("make a file in", folder);
  Status done = write_to_disk(file, text, beside);
  if (done && ::rename(beside.c_str(), path.c_str()) != 0) done = failed("rename to", path);
  if (!done) {
    ::unlink(beside.c_str());
    return done;
  }
  return sync_folder(folder);
}

}  // namespace djinn::ctl
