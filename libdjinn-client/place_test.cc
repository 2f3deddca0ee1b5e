// SPDX-License-Identifier: Apache-2.0

#include "libdjinn-client/place.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "ipc/limits.h"

namespace djinn::client {
namespace {

std::string place_of_each(std::vector<std::string> paths) {
  return place_of(paths);
}

TEST(Place, is_the_directory_of_several_files_and_of_the_one_that_all_call_alike) {
  EXPECT_EQ(place_of_each({"/m/a.safetensors"}), "/m/a.safetensors");
  EXPECT_EQ(place_of_each({"/m/model.safetensors"}), "/m");
  EXPECT_EQ(place_of_each({"/m/1.safetensors", "/m/2.safetensors"}), "/m");
  EXPECT_EQ(place_of_each({"/m/minilm"}), "/m/minilm");
  EXPECT_EQ(place_of_each({}), "");
}

TEST(Place, is_absolute_and_has_no_detours) {
  const std::string here = std::filesystem::current_path();
  EXPECT_EQ(place_of_each({"models/bytes/"}), here + "/models/bytes");
  EXPECT_EQ(place_of_each({"/m/./x/../bert//"}), "/m/bert");
}

TEST(Place, that_is_too_long_for_a_message_keeps_its_end) {
  const std::string place = "/" + std::string(limits::kNameBytes, 'd') + "/ö/bert";
  const std::string shown = showable_place(place);
  EXPECT_LE(shown.size(), limits::kNameBytes);
  EXPECT_TRUE(shown.starts_with("…d"));
  EXPECT_TRUE(shown.ends_with("/ö/bert"));
  for (size_t more = 0; more < 4; ++more) {
    const std::string wide = "/" + std::string(more, 'd') + std::string(limits::kNameBytes, '\xc3');
    EXPECT_LE(showable_place(wide).size(), limits::kNameBytes);
  }
}

TEST(Place, steers_no_terminal) {
  EXPECT_EQ(showable_place("/m/a\x1b[2J\nb"), "/m/a?[2J?b");
}

TEST(Label, says_more_of_the_path_where_its_last_part_says_nothing) {
  const std::pair<const char*, const char*> table[] = {
      {"/srv/minilm", "minilm"},
      {"/srv/minilm/model", "minilm"},
      {"/srv/minilm/model/model", "minilm"},
      {"/srv/run-3/checkpoint-500", "run-3/checkpoint-500"},
      {"/srv/bert/1", "bert/1"},
      {"/srv/bert/final/model", "bert/final"},
      {"/hub/models--org--small--v2/snapshots/0123abcd", "org/small--v2"},
      {"/hub/models--org--small/snapshots/0123abcd/adapter_model.safetensors", "org/small"},
      {"/srv/minilm/weights.safetensors", "minilm"},
      {"/srv/minilm/tiny.safetensors", "tiny"},
      {"/model", "model"},
      {"", ""},
  };
  for (const auto& [place, label] : table) EXPECT_EQ(label_of(place), label) << place;
}

}  // namespace
}  // namespace djinn::client
