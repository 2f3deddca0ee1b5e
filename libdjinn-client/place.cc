// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/place.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include "ipc/codec/control_codec.h"
#include "ipc/limits.h"
#include "kernel/base/text.h"

namespace djinn::client {
namespace {

using std::filesystem::path;

constexpr std::string_view kEnding = ".safetensors";
constexpr std::string_view kOneFile = "model.safetensors";
constexpr std::string_view kEllipsis = "…";

// Directories and files of many models have these names.
constexpr std::array<std::string_view, 14> kGeneral{
    "adapter_model", "best",          "checkpoint",  "current", "diffusion_pytorch_model",
    "final",         "latest",        "main",        "merged",  "model",
    "output",        "pytorch_model", "safetensors", "weights"};

bool is_number(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

bool is_general(std::string_view name) {
  constexpr std::string_view kCheckpoint = "checkpoint-";
  const bool is_checkpoint =
      name.starts_with(kCheckpoint) && is_number(name.substr(kCheckpoint.size()));
  return is_checkpoint || is_number(name) || std::ranges::find(kGeneral, name) != kGeneral.end();
}

// The hub's cache keeps org/name as models--org--name/snapshots/HASH.
std::string hub_label(std::string name) {
  constexpr std::string_view kPrefix = "models--";
  if (name.starts_with(kPrefix)) name.erase(0, kPrefix.size());
  if (const size_t at = name.find("--"); at != std::string::npos) name.replace(at, 2, "/");
  return name;
}

// If a directory's name is general, the one above is looked at in the same way; few follow each
// other.
std::string directory_label(const path& directory) {
  const path parent = directory.parent_path();
  const std::string name = directory.filename();
  if (parent.filename() == "snapshots") return hub_label(parent.parent_path().filename());
  if (!is_general(name) || !parent.has_filename()) return name;
  const std::string above = directory_label(parent);
  return name == "model" ? above : above + "/" + name;
}

}  // namespace

std::string place_of(std::span<const std::string> paths) {
  if (paths.empty()) return "";
  std::error_code failed;  // without a working directory a path stays as it was named
  path place = std::filesystem::absolute(paths.front(), failed);
  if (failed) place = paths.front();
  place = place.lexically_normal();
  if (!place.has_filename()) place = place.parent_path();
  const bool is_a_directory_s = paths.size() > 1 || place.filename() == kOneFile;
  return is_a_directory_s ? place.parent_path() : place;
}

std::string showable_place(const std::string& place) {
  if (place.size() <= limits::kNameBytes) return ipc::showable_name(place);
  size_t begin = place.size() - (limits::kNameBytes - kEllipsis.size());
  while (begin < place.size() && is_continuation(place[begin])) ++begin;
  return ipc::showable_name(std::string(kEllipsis) + place.substr(begin));
}

std::string label_of(const std::string& place) {
  const path named(place);
  const bool is_file = named.extension() == kEnding;
  if (is_file && !is_general(named.stem().string())) return named.stem();
  std::error_code failed;
  const path directory = is_file ? named.parent_path() : named;
  const path canonical = std::filesystem::weakly_canonical(directory, failed);
  return directory_label(failed ? directory : canonical);
}

}  // namespace djinn::client
