// SPDX-License-Identifier: Apache-2.0

// tests/data/captures: graphs that ghosts of real models define, as ./dev matrix --captures writes
// them. A prompt's are named "llama.prefill", or "t5.adoption" where it was computed elsewhere,
// those of each token after it "llama.decode". tests/data/forwards: whole forward passes in
// float32, of encoders and models of images and sound, "bert"; with all gradients, "vit.training".
#pragma once

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "kernel/base/assert.h"
#include "kernel/srg/text.h"

namespace djinn::srg {

inline std::filesystem::path captures_folder() {
  return std::filesystem::path(__FILE__).parent_path() / "../../tests/data/captures";
}
inline std::filesystem::path forwards_folder() {
  return captures_folder() / "../forwards";
}

// Empty where there is none.
inline std::string content_of(const std::filesystem::path& path) {
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return {};
  std::string content(std::filesystem::file_size(path), '\0');
  content.resize(std::fread(content.data(), 1, content.size(), file));
  std::fclose(file);
  return content;
}

inline void write_content(const std::filesystem::path& path, const std::string& content) {
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  DJINN_ASSERT(file != nullptr);
  DJINN_ASSERT(std::fwrite(content.data(), 1, content.size(), file) == content.size());
  DJINN_ASSERT(std::fclose(file) == 0);
}

struct Capture {
  std::string name;
  Graph graph;
};

// All of a folder, by name.
inline std::vector<Capture> read_captures(const std::filesystem::path& folder = captures_folder()) {
  std::vector<Capture> captures;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".srg") continue;
    Result<Graph> graph = parse_text(content_of(entry.path()));
    DJINN_ASSERT(graph.ok());
    captures.push_back({entry.path().stem(), *std::move(graph)});
  }
  std::ranges::sort(captures, {}, &Capture::name);
  return captures;
}

}  // namespace djinn::srg
