// SPDX-License-Identifier: Apache-2.0

// Place: where a model's files are, as whoever opens them calls it, and what the model is called by
// that. Both are for people: djinnd knows files by their descriptors alone.
#pragma once

#include <span>
#include <string>

namespace djinn::client {

// Where a model is, for people: one file's path; the (first) directory of model.safetensors and of
// several files; a directory that is named in their stead. It is absolute, without "." and "..";
// symbolic links stay as they were named. Empty if there are no paths.
[[nodiscard]] std::string place_of(std::span<const std::string> paths);

// A place as a message may carry it: what does not fit is left out at its beginning, which says
// least.
[[nodiscard]] std::string showable_place(const std::string& place);

// The last part of a place that says something: a file's name without its ending, a directory's;
// the hub's name of what lies in its cache; more of the path where the last part would be a general
// one ("model", "checkpoint-500").
[[nodiscard]] std::string label_of(const std::string& place);

}  // namespace djinn::client
